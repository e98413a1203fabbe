//! The one error type of every fallible call: its kind says what the caller can do, its message
//! names the key, rank and numbers involved.

use nkv_store::StoreError;
use nkv_transport::TransportError;
use serde::{Deserialize, Serialize};

/// What the caller can do about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ErrorKind {
    /// No such key. Compute the value.
    NotFound,
    /// The key is there already; values are immutable, so there is nothing to do.
    AlreadyExists,
    /// Being written, being removed, or the cluster is starting. Try again soon.
    NotReady,
    /// No room within the time allowed. Free something, or drop the put.
    OutOfMemory,
    /// The plan ended (deadline, abort, remove) before it was committed. Open a new one.
    Reclaimed,
    /// No answer in time. The outcome is whole or absent.
    Timeout,
    /// The rank that is needed is gone or unreachable.
    Disconnected,
    /// The call itself is wrong.
    InvalidArgument,
    /// Stored bytes failed a check.
    Corrupt,
    /// Not available in this build or on this machine.
    Unsupported,
    /// A defect of nkv, or an actor that was restarted under this call.
    Internal,
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
            // The master let this client in: an owner that does not is not the one that was meant.
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
