//! The error type of the data plane. A kind tells the caller what it can do; the text names the
//! peer, offsets and limits. There is no errno to match on: this file alone maps an errno to the
//! meaning for a verb.

use nkv_store::StoreError;

/// Why a batch of verbs did not happen, or why its outcome is unknown.
#[derive(Debug, thiserror::Error)]
pub enum TransportError {
    /// The peer is gone, or the incarnation that the handle belongs to is. Ask for the location
    /// again. A write may have landed in part, but this batch is not known to have published it.
    #[error("disconnected: {0}")]
    Disconnected(String),
    /// No progress within the limit; the peer may be alive. As after `Disconnected`, a write is
    /// known to be whole or absent only once its plan has ended.
    #[error("timed out: {0}")]
    Timeout(String),
    /// The token is unknown, fenced, or does not cover the request. If the request was refused at
    /// once, nothing was written; a plan that is revoked during a request is reported by this kind,
    /// too.
    #[error("refused: {0}")]
    Refused(String),
    /// The two ends share no secret, or this end's cannot be used [I20]; or an answer had a wrong
    /// tag. The outcome of the request of such an answer is unknown.
    #[error("not authenticated: {0}")]
    Unauthenticated(String),
    /// Outside the segment, or an unaligned word. Nothing of the batch was executed.
    #[error("out of bounds: {0}")]
    OutOfBounds(String),
    /// The peer uses another version or violated the protocol.
    #[error("protocol: {0}")]
    Protocol(String),
    /// A system call failed, for a reason that does not involve the peer.
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
