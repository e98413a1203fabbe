//! The one error type of every fallible call: its kind says what the caller can do, its message
//! names the key, rank and numbers involved.

use nkv_store::StoreError;
use nkv_transport::TransportError;
use serde::{Deserialize, Serialize};

/// Makes the kinds, and the sentences about each, from one table: the documentation of a kind is
/// what [`ErrorKind::meaning`] and [`ErrorKind::what_to_do`] return.
macro_rules! kinds {
    ($($kind:ident: $meaning:literal, $what_to_do:literal;)+) => {
        /// What the caller can do about it.
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
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{kind}: {message}")]
pub struct Error {
    /// What the caller can do.
    pub kind: ErrorKind,
    /// What happened, with key, rank and numbers.
    pub message: String,
}

/// Result of every public call.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// An error of a kind.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }

    /// The error of every call on a closed handle.
    pub(crate) fn handle_closed() -> Self {
        Self::disconnected("this handle is closed, and its clones with it: connect once more")
    }
}

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
            StoreError::OutOfBounds { .. }
            | StoreError::Misaligned { .. }
            | StoreError::BadSegment(_)
            | StoreError::Os { .. } => ErrorKind::Internal,
        };
        Self::new(kind, e.to_string())
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
        Self::new(kind, e.to_string())
    }
}
