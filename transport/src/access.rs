//! Permission to change a segment from outside: an agent asks for it before it writes the first
//! byte of a request. Production uses [`crate::grants::Grants`], the conformance suite
//! [`OpenAccess`]. Reads need no permission: every authenticated peer may read.

use nkv_store::device_log::LogLayout;
use std::fmt;
use std::sync::Arc;

/// Content of writes of up to this many bytes is passed to [`Permit::starts`] before it is written:
/// a header's fields are such a write.
pub const SEEN_BYTES: usize = 64;

/// One change that a request makes; offsets in bytes, words aligned, all in bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Intent {
    /// `len` bytes at `offset`.
    Write {
        /// Segment offset.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// An aligned word.
    Store {
        /// Segment offset.
        offset: u64,
        /// The word.
        value: u64,
    },
    /// An atomic addition.
    FetchAdd {
        /// Segment offset.
        offset: u64,
        /// The addend.
        add: u64,
    },
    /// An atomic compare-and-swap.
    CompareSwap {
        /// Segment offset.
        offset: u64,
        /// Word that must be found.
        expect: u64,
        /// Its replacement.
        new: u64,
    },
}

/// Interrupts a connection that is inside a gate and waits for its peer: a stalled connection wakes
/// up and leaves. Called when its token is revoked, or when its producer ends the claim it is
/// writing over another connection. Called a few times at most; must not block.
pub trait Cut: Send + Sync + fmt::Debug {
    /// Stops the reception of more bytes.
    fn cut(&self);
}

/// Admission of one request. While it lives the bytes of the request may be written; after it is
/// dropped no more are written [I10].
pub trait Permit {
    /// Refuses a change with the reason. Called for every change before the first byte is written.
    fn check(&self, intent: &Intent) -> Result<(), String>;
    /// True once a fence waits for this permit: write no more bytes.
    fn is_revoked(&self) -> bool;
    /// The log in which it permits claims.
    fn log(&self) -> Option<LogLayout> {
        None
    }
    /// A permitted change is about to be executed; from here on it may have happened, whatever
    /// becomes of the request. `bytes` is the content of a write of up to [`SEEN_BYTES`], else
    /// empty. On an error it is not executed, and the connection ends.
    fn starts(&self, _: &Intent, _: &[u8]) -> Result<(), String> {
        Ok(())
    }
    /// The change was executed by this thread. `found` is the word that an atomic found, else 0.
    fn done(&self, _: &Intent, _: u64) {}
}

/// Decides on tokens.
pub trait Access: Send + Sync + fmt::Debug {
    /// Admits one request with `token`, or returns the reason for a refusal. May wait, bounded.
    /// `cut` interrupts the connection if the token is revoked while the permit lives.
    fn admit<'a>(&'a self, token: u64, cut: &Arc<dyn Cut>) -> Result<Box<dyn Permit + 'a>, String>;
}

/// Permits everything in bounds to any token except 0: for conformance tests and benches.
#[derive(Debug, Clone, Copy, Default)]
pub struct OpenAccess;

impl Access for OpenAccess {
    fn admit<'a>(&'a self, _: u64, _: &Arc<dyn Cut>) -> Result<Box<dyn Permit + 'a>, String> {
        Ok(Box::new(OpenAccess))
    }
}

impl Permit for OpenAccess {
    fn check(&self, _: &Intent) -> Result<(), String> {
        Ok(())
    }

    fn is_revoked(&self) -> bool {
        false
    }
}
