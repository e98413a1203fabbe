//! What can go wrong and what the user should do about it: one sentence, or one JSON object, and an
//! exit status each.

use crate::keys::shown;
use nkv::{Error, ErrorKind};
use nkv_programs::endpoints::NoneServes;
use nkv_programs::exit;
use serde_json::json;
use std::io;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CliError {
    /// A call failed.
    #[error("{0}; {hint}", hint = hint(.0))]
    Call(#[from] Error),
    /// A call about one key failed.
    #[error("{error}; {hint}", hint = hint(.error))]
    OfKey {
        /// The key, as shown.
        key: String,
        /// The call's error.
        error: Error,
    },
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
    /// No node answers, or none takes this client: each node's answer, and what to do.
    #[error("{0}")]
    Connect(#[from] NoneServes),
    /// The same, where the nodes' answers are printed already.
    #[error("none of {0} nodes reaches the master")]
    NoMaster(usize),
    /// A file or stream.
    #[error("{what}: {error}")]
    Io {
        /// Which one, and what was done with it.
        what: String,
        /// The system's error.
        error: io::Error,
    },
    /// Some ranks were not reached; the text names what the others did.
    #[error("{0}; nkv status shows which ranks are there")]
    NotReached(String),
    /// A limit of this process.
    #[error("{0}")]
    Limit(String),
    /// A wrong command line that the parser accepts, a value that is too large for every rank, or a
    /// segment that is not there or cannot be: the message has it all.
    #[error("{}", .0.message())]
    Plain(Error),
}

impl CliError {
    /// A wrong command line that the parser accepts.
    pub(crate) fn usage(why: impl Into<String>) -> Self {
        Self::Plain(Error::invalid(why))
    }

    /// A value that is too large for every rank.
    pub(crate) fn too_large(why: impl Into<String>) -> Self {
        Self::Plain(Error::out_of_memory(why))
    }

    /// A call about one key failed; `place` returns the rank that has it, if that is known.
    pub(crate) fn about(key: &[u8], error: Error, place: impl FnOnce() -> Option<u32>) -> Self {
        let key = shown(key);
        match error.kind() {
            ErrorKind::NotFound => Self::Absent(key),
            ErrorKind::AlreadyExists => {
                let place = place().map(|rank| format!(" on rank {rank}")).unwrap_or_default();
                Self::Exists { key, place }
            }
            // The message names the heap and the setting to raise.
            ErrorKind::InvalidArgument if error.message().contains("--heap-bytes") => {
                Self::too_large(error.message())
            }
            _ => Self::OfKey { key, error },
        }
    }

    /// A call about a segment failed: hints about keys and objects would mislead.
    pub(crate) fn segment(error: Error) -> Self {
        match error.kind() {
            ErrorKind::NotFound | ErrorKind::InvalidArgument | ErrorKind::OutOfMemory => {
                Self::Plain(error)
            }
            _ => Self::Call(error),
        }
    }

    /// A call with a pattern failed; for a wrong pattern the message says what is wrong.
    pub(crate) fn pattern(error: Error) -> Self {
        match error.kind() {
            ErrorKind::InvalidArgument => Self::Plain(error),
            _ => Self::Call(error),
        }
    }

    /// A file or stream failed.
    pub(crate) fn io(what: impl Into<String>, error: io::Error) -> Self {
        Self::Io { what: what.into(), error }
    }

    /// The library's error kind, which tells the caller what to do.
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Call(e) | Self::OfKey { error: e, .. } | Self::Plain(e) => e.kind(),
            Self::Connect(none) => none.kind(),
            Self::Absent(_) => ErrorKind::NotFound,
            Self::Exists { .. } => ErrorKind::AlreadyExists,
            Self::NotReached(_) | Self::NoMaster(_) => ErrorKind::Disconnected,
            Self::Io { .. } | Self::Limit(_) => ErrorKind::Unsupported,
        }
    }

    /// The kind's name for programs; this program adds `Io` and `Refused`.
    fn kind_name(&self) -> String {
        match self {
            Self::Io { .. } | Self::Limit(_) => "Io".to_string(),
            Self::Connect(none) if none.kind() == ErrorKind::InvalidArgument => {
                "Refused".to_string()
            }
            _ => self.kind().to_string(),
        }
    }

    /// The key it is about.
    fn key(&self) -> Option<&str> {
        match self {
            Self::OfKey { key, .. } | Self::Absent(key) | Self::Exists { key, .. } => Some(key),
            _ => None,
        }
    }

    /// As one JSON object.
    pub(crate) fn json(&self) -> serde_json::Value {
        let mut error = json!({ "kind": self.kind_name(), "message": self.to_string() });
        if let Some(key) = self.key() {
            error["key"] = key.into();
        }
        json!({ "error": error })
    }

    /// The process's exit status.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::Connect(none) => none.exit_status(),
            _ => exit::of(self.kind()),
        }
    }

    /// True if the reader of the output closed the pipe.
    pub(crate) fn is_closed_pipe(&self) -> bool {
        matches!(self, Self::Io { error, .. } if error.kind() == io::ErrorKind::BrokenPipe)
    }
}

/// What to do next: a command or flag of this program where one helps.
fn hint(error: &Error) -> String {
    let hint = match error.kind() {
        ErrorKind::NotFound => "it was never put, or evicted, removed, or lost with its rank",
        ErrorKind::AlreadyExists => "values do not change: nkv rm it first to store another",
        ErrorKind::OutOfMemory => "remove something, wait for eviction, or give ranks larger heaps",
        ErrorKind::Reclaimed => "the put took longer than the cluster allows: try it again",
        ErrorKind::Timeout => "try again, or give --timeout-ms a larger limit",
        ErrorKind::Disconnected => "nkv status shows which ranks are there",
        ErrorKind::InvalidArgument => "nkv --help says what is taken",
        ErrorKind::Unsupported => "try another --transport",
        // NotReady, Corrupt, Internal.
        kind => kind.what_to_do(),
    };
    // It follows a semicolon, so it starts in lower case.
    let mut letters = hint.trim_end_matches('.').chars();
    letters.next().map(|first| first.to_lowercase().chain(letters).collect()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::{CliError, hint};
    use nkv::Error;
    use nkv_programs::endpoints::NoneServes;
    use nkv_programs::exit;
    use serde_json::json;
    use std::io;

    fn connecting(error: Error) -> CliError {
        NoneServes(vec![("h:1".parse().unwrap(), error)]).into()
    }

    #[test]
    fn every_outcome_has_an_exit_status_of_its_own() {
        for (error, code) in [
            (CliError::from(Error::not_found("x")), 1),
            (CliError::Absent("x".into()), 1),
            (CliError::segment(Error::not_found("x")), 1),
            (CliError::from(Error::invalid("x")), 2),
            (CliError::usage("x"), 2),
            (CliError::segment(Error::invalid("x")), 2),
            (CliError::about(b"x", Error::already_exists("x"), || Some(1)), 3),
            (CliError::from(Error::timeout("x")), 4),
            (CliError::from(Error::disconnected("x")), 4),
            (CliError::from(Error::not_ready("x")), 4),
            (CliError::NotReached("x".into()), 4),
            (CliError::NoMaster(2), 4),
            (connecting(Error::disconnected("x")), 4),
            (connecting(Error::invalid("x")), 5),
            (CliError::too_large("x"), 6),
            (CliError::segment(Error::out_of_memory("x")), 6),
            (CliError::io("f", io::Error::from(io::ErrorKind::NotFound)), 7),
            (CliError::from(Error::unsupported("x")), 7),
            (CliError::Limit("x".into()), 7),
            (CliError::from(Error::internal("x")), 8),
            (CliError::from(Error::corrupt("x")), 8),
        ] {
            assert_eq!(error.exit_code(), code, "{error}");
            assert!(exit::TABLE.contains(&format!("\n  {code}  ")), "{code}");
        }
    }

    #[test]
    fn as_json_an_error_names_its_kind_and_its_key() {
        let absent = CliError::about(b"k", Error::not_found("x"), || None);
        let text = absent.to_string();
        let error = json!({ "error": { "kind": "NotFound", "message": text, "key": "k" } });
        assert_eq!(absent.json(), error);
        let refused = connecting(Error::invalid("no")).json();
        assert_eq!(refused, json!({ "error": { "kind": "Refused", "message": "no" } }));
        let io = CliError::io("f", io::Error::from(io::ErrorKind::NotFound)).json();
        assert_eq!(io["error"]["kind"], "Io");
        let busy = CliError::about(b"k", Error::not_ready("x"), || None).json();
        assert_eq!(
            (&busy["error"]["kind"], &busy["error"]["key"]),
            (&json!("NotReady"), &json!("k"))
        );
    }

    #[test]
    fn every_error_says_what_to_do_next() {
        let error = Error::already_exists("key \"a\"");
        assert_eq!(CliError::from(error.clone()).to_string(), format!("{error}; {}", hint(&error)));
    }

    #[test]
    fn an_error_about_a_segment_has_no_hint_about_keys() {
        let message = CliError::segment(Error::not_found("there is no segment 1")).to_string();
        assert_eq!(message, "there is no segment 1");
    }

    #[test]
    fn an_error_about_a_key_is_printed_once() {
        let message = |error, at| CliError::about(b"k", error, || at).to_string();
        assert_eq!(
            message(Error::already_exists("x"), Some(2)),
            "k exists on rank 2; values never change: nkv rm it first"
        );
        assert_eq!(
            message(Error::already_exists("x"), None),
            "k exists; values never change: nkv rm it first"
        );
        assert_eq!(
            message(Error::not_found("x"), None),
            "no key k (never put, evicted, removed, or lost with its rank)"
        );
        let large = Error::invalid("larger than the heap; raise --heap-bytes");
        assert_eq!(CliError::about(b"k", large.clone(), || None).exit_code(), 6);
        assert_eq!(message(large, None), "larger than the heap; raise --heap-bytes");
    }

    #[test]
    fn only_a_closed_pipe_is_a_closed_pipe() {
        let io = |kind| CliError::io("stdout", io::Error::from(kind)).is_closed_pipe();
        assert!(io(io::ErrorKind::BrokenPipe) && !io(io::ErrorKind::NotFound));
    }
}
