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
    /// No node there, or not of this job.
    #[error(
        "no cluster at {node}: {error}; give --connect the control address of any node (it \
             is in its ready line) and --job its job"
    )]
    Connect {
        /// Where.
        node: Address,
        /// Why.
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
        Self::Connect { node: node.clone(), error }
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
            Self::Call(e) if e.kind == ErrorKind::NotFound => EXIT_ABSENT,
            Self::Call(e) if e.kind == ErrorKind::InvalidArgument => EXIT_USAGE,
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
        ErrorKind::NotFound => "put it first, or list what is there with nkv status",
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
            (Trouble::connecting(&"h:1".parse().unwrap(), Error::not_found("x")), 3),
            (Trouble::io("f", io::Error::from(io::ErrorKind::NotFound)), 3),
        ] {
            assert_eq!(trouble.exit_code(), code, "{trouble}");
        }
    }

    #[test]
    fn every_error_says_what_to_do_next() {
        let error = Error::already_exists("key \"a\"");
        assert_eq!(Trouble::from(error.clone()).to_string(), format!("{error}; {}", hint(&error)));
        assert!(Trouble::connecting(&"h:1".parse().unwrap(), error).to_string().contains("--job"));
    }

    #[test]
    fn only_a_closed_pipe_is_a_closed_pipe() {
        let io = |kind| Trouble::io("stdout", io::Error::from(kind)).is_closed_pipe();
        assert!(io(io::ErrorKind::BrokenPipe) && !io(io::ErrorKind::NotFound));
    }
}
