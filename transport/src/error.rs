//! The one error type of the data plane. A kind says what the caller can do, the text says which
//! peer, offsets and limits were involved. It carries no errno to be matched on: what an errno
//! means for a verb is decided here, once.

use nkv_store::StoreError;

/// Why a batch of verbs did not happen, or why nobody knows whether it did.
#[derive(Debug, thiserror::Error)]
pub enum TransportError {
    /// The peer is gone, or the incarnation that the handle belongs to is. Ask for the location
    /// again; a write may have landed in part, but was not published by this batch for sure.
    #[error("disconnected: {0}")]
    Disconnected(String),
    /// No progress within the limit; the peer may live. As after `Disconnected`, a write is whole
    /// or absent only once its plan has ended.
    #[error("timed out: {0}")]
    Timeout(String),
    /// The token is unknown, fenced, or does not cover what was asked. Nothing of the request was
    /// placed if it was refused at once; a plan revoked in the middle ends here, too.
    #[error("refused: {0}")]
    Refused(String),
    /// The two ends share no secret, or this end's cannot be used [I20]; or what came back was not
    /// said by the other end. Of a request whose answer this is, nothing is known.
    #[error("not let in: {0}")]
    Unauthenticated(String),
    /// Outside the segment, or a word that is not aligned. Nothing of the batch was placed.
    #[error("out of bounds: {0}")]
    OutOfBounds(String),
    /// The peer speaks another version or sent nonsense.
    #[error("protocol: {0}")]
    Protocol(String),
    /// The operating system said no, for a reason that is not the peer's.
    #[error("{call} on {target}: {source}")]
    Io {
        /// System call or step.
        call: &'static str,
        /// What it was applied to.
        target: String,
        /// errno.
        source: std::io::Error,
    },
}

impl TransportError {
    /// Wraps an errno with the call and the thing it was applied to.
    pub fn io(
        call: &'static str,
        target: impl Into<String>,
        source: impl Into<std::io::Error>,
    ) -> Self {
        Self::Io { call, target: target.into(), source: source.into() }
    }
}

impl From<StoreError> for TransportError {
    fn from(e: StoreError) -> Self {
        match e {
            StoreError::OutOfBounds { .. } | StoreError::Misaligned { .. } => {
                Self::OutOfBounds(e.to_string())
            }
            StoreError::Os { call, path, source } => Self::Io { call, target: path, source },
            other => Self::Protocol(other.to_string()),
        }
    }
}
