//! Why a data connection cannot be used any more, and the limits after which it counts as stalled.

use super::deadline::Deadline;
use crate::error::TransportError;
use nkv_store::StoreError;
use std::io;

/// Each blocking call waits for one of this many parts of the stall limit, so a stall is detected
/// within the limit plus one part.
pub(super) const STALL_PARTS: u32 = 10;

/// Why a connection cannot be used any more.
#[derive(Debug, thiserror::Error)]
pub(super) enum Broken {
    /// The peer closed or reset the connection, or it was shut down here.
    #[error("connection closed ({0})")]
    Closed(String),
    /// No progress for so many milliseconds.
    #[error("no progress for {0} ms")]
    Stalled(u64),
    /// There was progress, but it was not complete within so many milliseconds.
    #[error("too slow: not done within {0} ms")]
    Late(u64),
    /// A tag was wrong: the other end did not send these bytes.
    #[error(
        "a message that the other end did not send: the data of this connection is changed on the \
         way"
    )]
    Forged,
    /// Another system error.
    #[error(transparent)]
    Io(io::Error),
}

pub(super) fn broken(e: io::Error) -> Broken {
    use io::ErrorKind as K;
    match e.kind() {
        K::ConnectionReset
        | K::ConnectionAborted
        | K::ConnectionRefused
        | K::BrokenPipe
        | K::NotConnected
        | K::TimedOut
        | K::HostUnreachable
        | K::NetworkUnreachable
        | K::NetworkDown
        | K::UnexpectedEof => Broken::Closed(e.to_string()),
        _ => Broken::Io(e),
    }
}

/// Limits of the time without progress and of the total time.
#[derive(Debug, Clone, Copy)]
pub(super) struct TimeLimits {
    pub(super) stall_ms: u64,
    // For everything from here on, until it is changed.
    pub(super) deadline: Deadline,
}

impl TimeLimits {
    /// Called between system calls, each of which ends within a part of the stall limit.
    pub(super) fn in_time(&self) -> Result<(), Broken> {
        if self.deadline.is_over() { Err(Broken::Late(self.deadline.limit_ms)) } else { Ok(()) }
    }

    /// Handles a failed call: no progress for a part of the limit, or a real error.
    pub(super) fn after_error(&self, idle_parts: &mut u32) -> Result<(), Broken> {
        let e = io::Error::last_os_error();
        match e.kind() {
            io::ErrorKind::Interrupted => Ok(()),
            io::ErrorKind::WouldBlock => {
                *idle_parts += 1;
                if *idle_parts < STALL_PARTS { Ok(()) } else { Err(Broken::Stalled(self.stall_ms)) }
            }
            _ => Err(broken(e)),
        }
    }
}

/// Why a connection ended.
#[derive(Debug)]
pub(super) enum End {
    /// The peer left, or was idle for too long.
    Left,
    /// Refused at the hello, with an answer.
    TurnedAway(String),
    /// A message on an authenticated connection had a wrong tag.
    Forged,
    /// A fence cut it.
    Fenced,
    /// The content it wanted to write is not permitted for its token. The peer gets an answer.
    Unfit(String),
    /// The peer violated the protocol, or the connection or the memory failed.
    Broken(String),
}

/// Of the handshake, which goes on over an ordinary stream.
impl From<Broken> for io::Error {
    fn from(b: Broken) -> Self {
        match b {
            Broken::Closed(why) => io::Error::new(io::ErrorKind::BrokenPipe, why),
            Broken::Stalled(ms) | Broken::Late(ms) => {
                io::Error::new(io::ErrorKind::TimedOut, format!("not done within {ms} ms"))
            }
            Broken::Forged => io::Error::other(b),
            Broken::Io(e) => e,
        }
    }
}

impl From<Broken> for End {
    fn from(b: Broken) -> Self {
        match b {
            Broken::Forged => End::Forged,
            other => End::Broken(other.to_string()),
        }
    }
}

impl From<StoreError> for End {
    fn from(e: StoreError) -> Self {
        End::Broken(TransportError::from(e).to_string())
    }
}
