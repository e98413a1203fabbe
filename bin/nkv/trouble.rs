//! What can go wrong and what the user should do about it: one sentence and an exit code each.

use nkv::{Address, Error, ErrorKind};
use std::io;

/// Exit code if a key is not there.
pub(crate) const EXIT_ABSENT: u8 = 1;
/// Exit code for a wrong command line.
pub(crate) const EXIT_USAGE: u8 = 2;
/// Exit code for everything else.
pub(crate) const EXIT_OTHER: u8 = 3;

/// How a command ended that ended well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    /// Done, and everything asked for is there.
    Found,
    /// Done, but a key is not there.
    Absent,
}

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Trouble {
    /// The cluster said no.
    #[error("{0}; {hint}", hint = hint(.0))]
    Call(#[from] Error),
    /// No such key.
    #[error("no key {0} (never put, evicted, removed, or lost with its rank)")]
    Absent(String),
    /// The key has a value already.
    #[error("{key} exists{place}; values never change: nkv rm it first")]
    Exists {
        /// The key, as shown.
        key: String,
        /// " on rank N", or nothing if it is gone by now.
        place: String,
    },
    /// A node there that does not take this client: which one, what it said, and what to do.
    #[error("{0}")]
    Refused(String),
    /// No node there.
    #[error("cannot use a cluster through {node}: {error}")]
    Connect {
        /// Where.
        node: Address,
        /// Why, and what to do.
        error: Error,
    },
    /// A file or stream.
    #[error("{what}: {error}")]
    Io {
        /// Which one, and what was done with it.
        what: String,
        /// What the system says.
        error: io::Error,
    },
    /// A segment that is not there, or cannot be.
    #[error("{}", .0.message)]
    Segment(Error),
    /// A value no rank could hold.
    #[error("{0}")]
    TooLarge(String),
    /// A command line that only the values show to be wrong.
    #[error("{0}")]
    Usage(String),
}

impl Trouble {
    /// Connecting failed.
    pub(crate) fn connecting(node: &Address, error: Error) -> Self {
        match error.kind {
            ErrorKind::InvalidArgument => Self::Refused(error.message),
            _ => Self::Connect { node: node.clone(), error },
        }
    }

    /// A call about one key failed; `place` says where it is, if that is known.
    pub(crate) fn about(key: String, error: Error, place: impl FnOnce() -> Option<u32>) -> Self {
        match error.kind {
            ErrorKind::NotFound => Self::Absent(key),
            ErrorKind::AlreadyExists => {
                let place = place().map(|rank| format!(" on rank {rank}")).unwrap_or_default();
                Self::Exists { key, place }
            }
            // The message says which heap and what to raise.
            ErrorKind::InvalidArgument if error.message.contains("--heap-bytes") => {
                Self::TooLarge(error.message)
            }
            _ => Self::Call(error),
        }
    }

    /// A call about a segment failed: what is said of keys and objects would mislead.
    pub(crate) fn segment(error: Error) -> Self {
        match error.kind {
            ErrorKind::NotFound | ErrorKind::InvalidArgument | ErrorKind::OutOfMemory => {
                Self::Segment(error)
            }
            _ => Self::Call(error),
        }
    }

    /// A call with a pattern failed; a wrong one is shown with what is wrong about it.
    pub(crate) fn pattern(error: Error) -> Self {
        match error.kind {
            ErrorKind::InvalidArgument => Self::Usage(error.message),
            _ => Self::Call(error),
        }
    }

    /// Nobody said where the cluster is.
    pub(crate) fn nowhere() -> Self {
        Self::Usage(
            "where is the cluster? Give --connect HOST:PORT, or NKV_CONNECT: the control address \
             of any node"
                .to_string(),
        )
    }

    /// A file or stream failed.
    pub(crate) fn io(what: impl Into<String>, error: io::Error) -> Self {
        Self::Io { what: what.into(), error }
    }

    /// The process's exit code.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::Call(e) | Self::Segment(e) if e.kind == ErrorKind::NotFound => EXIT_ABSENT,
            Self::Absent(_) => EXIT_ABSENT,
            Self::Call(e) | Self::Segment(e) if e.kind == ErrorKind::InvalidArgument => EXIT_USAGE,
            Self::Usage(_) => EXIT_USAGE,
            _ => EXIT_OTHER,
        }
    }

    /// True if whoever read our output has closed it.
    pub(crate) fn is_closed_pipe(&self) -> bool {
        matches!(self, Self::Io { error, .. } if error.kind() == io::ErrorKind::BrokenPipe)
    }
}

/// What to do next.
fn hint(error: &Error) -> &'static str {
    match error.kind {
        ErrorKind::NotFound => "it was never put, or evicted, removed, or lost with its rank",
        ErrorKind::AlreadyExists => "values do not change: nkv rm it first to store another",
        ErrorKind::NotReady => "try again in a moment",
        ErrorKind::OutOfMemory => "remove something, wait for eviction, or give ranks larger heaps",
        ErrorKind::Reclaimed => "the put took longer than the cluster allows: try it again",
        ErrorKind::Timeout => "try again, or give --timeout-ms a larger limit",
        ErrorKind::Disconnected => "nkv status shows which ranks are there",
        ErrorKind::InvalidArgument => "nkv --help says what is taken",
        ErrorKind::Corrupt => "the stored bytes are damaged: remove the key and put it again",
        ErrorKind::Unsupported => "try another --transport",
        ErrorKind::Internal => "try again; the log of the nodes says more",
    }
}

#[cfg(test)]
mod tests {
    use super::{Trouble, hint};
    use nkv::Error;
    use std::io;

    #[test]
    fn exit_codes_tell_absent_from_wrong_from_failed() {
        for (trouble, code) in [
            (Trouble::from(Error::not_found("x")), 1),
            (Trouble::from(Error::invalid("x")), 2),
            (Trouble::Usage("x".into()), 2),
            (Trouble::from(Error::timeout("x")), 3),
            (Trouble::TooLarge("x".into()), 3),
            (Trouble::segment(Error::not_found("x")), 1),
            (Trouble::segment(Error::invalid("x")), 2),
            (Trouble::segment(Error::out_of_memory("x")), 3),
            (Trouble::Absent("x".into()), 1),
            (Trouble::about("x".into(), Error::already_exists("x"), || Some(1)), 3),
            (Trouble::connecting(&"h:1".parse().unwrap(), Error::disconnected("x")), 3),
            (Trouble::connecting(&"h:1".parse().unwrap(), Error::invalid("x")), 3),
            (Trouble::io("f", io::Error::from(io::ErrorKind::NotFound)), 3),
        ] {
            assert_eq!(trouble.exit_code(), code, "{trouble}");
        }
    }

    #[test]
    fn every_error_says_what_to_do_next() {
        let error = Error::already_exists("key \"a\"");
        assert_eq!(Trouble::from(error.clone()).to_string(), format!("{error}; {}", hint(&error)));
    }

    #[test]
    fn of_a_segment_nothing_is_said_that_is_about_keys() {
        let said = Trouble::segment(Error::not_found("there is no segment 1")).to_string();
        assert_eq!(said, "there is no segment 1");
    }

    #[test]
    fn a_node_that_refuses_speaks_for_itself_and_one_that_is_not_there_cannot() {
        let at = "h:1".parse().unwrap();
        let said = |error| Trouble::connecting(&at, error).to_string();
        assert_eq!(said(Error::invalid("tcp://h:1 refused: x")), "tcp://h:1 refused: x");
        let nothing = said(Error::disconnected("cannot connect to tcp://h:1: refused; start it"));
        assert!(nothing.starts_with("cannot use a cluster through tcp://h:1: "), "{nothing}");
    }

    #[test]
    fn what_a_key_met_is_said_once() {
        let said = |error, at| Trouble::about("k".to_string(), error, || at).to_string();
        assert_eq!(
            said(Error::already_exists("x"), Some(2)),
            "k exists on rank 2; values never change: nkv rm it first"
        );
        assert_eq!(
            said(Error::already_exists("x"), None),
            "k exists; values never change: nkv rm it first"
        );
        assert_eq!(
            said(Error::not_found("x"), None),
            "no key k (never put, evicted, removed, or lost with its rank)"
        );
        let large = Error::invalid("larger than the heap; raise --heap-bytes");
        assert_eq!(Trouble::about("k".into(), large.clone(), || None).exit_code(), 3);
        assert_eq!(said(large, None), "larger than the heap; raise --heap-bytes");
    }

    #[test]
    fn only_a_closed_pipe_is_a_closed_pipe() {
        let io = |kind| Trouble::io("stdout", io::Error::from(kind)).is_closed_pipe();
        assert!(io(io::ErrorKind::BrokenPipe) && !io(io::ErrorKind::NotFound));
    }
}
