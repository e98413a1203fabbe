//! The one error type of every fallible call: its kind says what the caller can do, its message
//! names the key, rank and numbers involved.

use nkv_store::{Key, StoreError};
use nkv_transport::TransportError;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Makes the kinds, and the sentences about each, from one table: the documentation of a kind is
/// what [`ErrorKind::meaning`] and [`ErrorKind::what_to_do`] return.
macro_rules! kinds {
    ($($kind:ident: $meaning:literal, $what_to_do:literal;)+) => {
        /// What the caller can do about it.
        #[non_exhaustive]
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
        pub enum ErrorKind {
            $(#[doc = $meaning] #[doc = $what_to_do] $kind,)+
        }

        impl ErrorKind {
            /// Every kind.
            pub const ALL: &[Self] = &[$(Self::$kind),+];

            /// What happened, as a sentence.
            pub fn meaning(self) -> &'static str {
                match self { $(Self::$kind => $meaning),+ }
            }

            /// What the caller does about it, as a sentence.
            pub fn what_to_do(self) -> &'static str {
                match self { $(Self::$kind => $what_to_do),+ }
            }
        }
    };
}

kinds! {
    NotFound: "No such key.", "Compute the value.";
    AlreadyExists: "The key is there already, and values are immutable.", "Nothing.";
    NotReady: "Being written, being removed, or the cluster is starting.", "Try again soon.";
    OutOfMemory: "No room within the time allowed.", "Free something, or drop the put.";
    Reclaimed: "The plan ended before it was committed: deadline, abort or remove.",
        "Open a new one.";
    Timeout: "No answer in time. The outcome is whole or absent.",
        "Try again, or allow more time.";
    Disconnected: "The rank that is needed is gone or unreachable.",
        "Go on without it, or try again once it is back.";
    InvalidArgument: "The call itself is wrong.", "Change it: the message says what.";
    Corrupt: "Stored bytes failed a check.", "Remove the key and put it again.";
    Unsupported: "Not available in this build or on this machine.",
        "Use another transport, build or machine.";
    Internal: "A defect of nkv, or an actor that was restarted under this call.",
        "Try again; the log of the nodes says more.";
}

impl std::fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self:?}")
    }
}

/// The error of every public call.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
// Boxed, so that a result of the fast paths stays small.
pub struct Error(Box<Inner>);

#[derive(Clone, Serialize, Deserialize)]
struct Inner {
    kind: ErrorKind,
    message: String,
    rank: Option<u32>,
    // The caller knows its keys: they do not travel back to it.
    #[serde(skip)]
    key: Option<Key>,
    #[serde(skip)]
    source: Option<Arc<dyn std::error::Error + Send + Sync>>,
}

/// Result of every public call.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// An error of a kind.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self(Box::new(Inner { kind, message: message.into(), rank: None, key: None, source: None }))
    }

    /// What the caller can do.
    #[inline]
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// What happened, with key, rank and numbers.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// The key that the failed operation was about, if it was about one.
    pub fn key(&self) -> Option<&[u8]> {
        self.0.key.as_ref().map(Key::as_bytes)
    }

    /// The rank that the failed operation needed, if it failed at one.
    pub fn rank(&self) -> Option<u32> {
        self.0.rank
    }

    /// The same error, about this key, unless it is about one already, or this is none.
    pub(crate) fn about(mut self, key: &[u8]) -> Self {
        self.0.key = self.0.key.or_else(|| Key::new(key).ok());
        self
    }

    /// The same error, at this rank, unless it is at one already.
    pub(crate) fn at_rank(mut self, rank: u32) -> Self {
        self.0.rank.get_or_insert(rank);
        self
    }

    /// The same error with another message.
    pub(crate) fn with_message(mut self, message: String) -> Self {
        self.0.message = message;
        self
    }

    fn caused_by(kind: ErrorKind, source: impl std::error::Error + Send + Sync + 'static) -> Self {
        let mut error = Self::new(kind, source.to_string());
        error.0.source = Some(Arc::new(source));
        error
    }

    /// The error of every call on a closed handle.
    pub(crate) fn handle_closed() -> Self {
        Self::disconnected("this handle is closed, and its clones with it: connect once more")
    }
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.0.kind, self.0.message)
    }
}

impl std::fmt::Debug for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Inner { kind, message, rank, key, source } = &*self.0;
        let mut shown = f.debug_struct("Error");
        shown.field("kind", kind).field("message", message);
        if let Some(rank) = rank {
            shown.field("rank", rank);
        }
        if let Some(key) = key {
            shown.field("key", key);
        }
        if let Some(source) = source {
            shown.field("source", source);
        }
        shown.finish()
    }
}

impl std::error::Error for Error {
    /// The error of a lower layer, whose text the message contains. It stays in the process in
    /// which it happened.
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source.as_ref().map(|source| &**source as _)
    }
}

// Without the source: two errors that say the same are equal.
impl PartialEq for Inner {
    fn eq(&self, other: &Self) -> bool {
        let context = |e: &Self| (e.kind, e.rank, e.key.clone());
        context(self) == context(other) && self.message == other.message
    }
}

impl Eq for Inner {}

macro_rules! constructors {
    ($($name:ident => $kind:ident),+ $(,)?) => {
        impl Error {
            $(
                #[doc = concat!("An error of kind `", stringify!($kind), "`.")]
                pub fn $name(message: impl Into<String>) -> Self {
                    Self::new(ErrorKind::$kind, message)
                }
            )+
        }
    };
}

constructors! {
    not_found => NotFound, already_exists => AlreadyExists, not_ready => NotReady,
    out_of_memory => OutOfMemory, reclaimed => Reclaimed, timeout => Timeout,
    disconnected => Disconnected, invalid => InvalidArgument, corrupt => Corrupt,
    unsupported => Unsupported, internal => Internal,
}

impl From<StoreError> for Error {
    fn from(e: StoreError) -> Self {
        let kind = match &e {
            StoreError::BadKey { .. } | StoreError::InvalidConfig(_) => ErrorKind::InvalidArgument,
            StoreError::NotEnoughMemory(_) | StoreError::ArenaFull { .. } => ErrorKind::OutOfMemory,
            StoreError::WrongState { .. } => ErrorKind::Reclaimed,
            StoreError::InUse(_) => ErrorKind::NotReady,
            StoreError::Unsupported(_) => ErrorKind::Unsupported,
            StoreError::OutOfBounds { .. }
            | StoreError::Misaligned { .. }
            | StoreError::BadSegment(_)
            | StoreError::Device(_)
            | StoreError::Os { .. } => ErrorKind::Internal,
        };
        Self::caused_by(kind, e)
    }
}

impl From<TransportError> for Error {
    fn from(e: TransportError) -> Self {
        let kind = match &e {
            // The master accepted this client, so an owner that refuses it is not the expected one.
            TransportError::Disconnected(_) | TransportError::Unauthenticated(_) => {
                ErrorKind::Disconnected
            }
            TransportError::Timeout(_) => ErrorKind::Timeout,
            TransportError::Refused(_) => ErrorKind::Reclaimed,
            TransportError::OutOfBounds(_) => ErrorKind::InvalidArgument,
            _ => ErrorKind::Internal,
        };
        Self::caused_by(kind, e)
    }
}

#[cfg(test)]
mod tests {
    use super::{Error, ErrorKind};
    use nkv_transport::TransportError;
    use std::error::Error as _;

    #[test]
    fn an_error_names_kind_message_key_rank_and_cause_and_travels_without_key_and_cause() {
        let cause = TransportError::Timeout("1500 ms".to_string());
        let error = Error::from(cause).about(b"k").about(b"other").at_rank(3).at_rank(4);
        assert_eq!(
            (error.kind(), error.key(), error.rank()),
            (ErrorKind::Timeout, Some(&b"k"[..]), Some(3))
        );
        assert!(error.source().is_some_and(|cause| cause.is::<TransportError>()));
        assert_eq!(error.to_string(), format!("Timeout: {}", error.message()));
        let there: Error = bincode::deserialize(&bincode::serialize(&error).unwrap()).unwrap();
        assert_eq!((there.message(), there.rank(), there.key()), (error.message(), Some(3), None));
        assert!(there.source().is_none());
        assert_eq!(size_of::<super::Result<usize>>(), 16);
    }
}
