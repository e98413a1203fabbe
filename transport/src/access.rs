//! Who may change a segment from outside: the question an agent asks before it places the first
//! byte of a request. Production answers with [`crate::grants::Grants`]; the conformance suite with
//! [`OpenAccess`]. Reads are not asked for: whoever passed the handshake may read.

use std::fmt;
use std::sync::Arc;

/// Writes of up to this many bytes are seen by [`Permit::starts`] before they are placed: a
/// header's fields among them.
pub const SEEN_BYTES: usize = 64;

/// One change that a request wants to make; offsets in bytes, words aligned, all in bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Intent {
    /// `len` bytes at `offset`.
    Write {
        /// Where.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// An aligned word.
    Store {
        /// Where.
        offset: u64,
        /// The word.
        value: u64,
    },
    /// An atomic addition.
    FetchAdd {
        /// Where.
        offset: u64,
        /// What is added.
        add: u64,
    },
    /// An atomic exchange.
    CompareSwap {
        /// Where.
        offset: u64,
        /// Word that must be found.
        expect: u64,
        /// Its replacement.
        new: u64,
    },
}

/// Interrupts whoever is inside a gate and waits for a peer: a stalled connection wakes up and
/// leaves. Called when its token is revoked, or when its producer ends what it is writing over
/// another connection. At most a few times; must not block.
pub trait Cut: Send + Sync + fmt::Debug {
    /// Stops the reception of more bytes.
    fn cut(&self);
}

/// Admission of one request. While it lives the bytes of the request may be placed; dropping it
/// says that no more will be [I10].
pub trait Permit {
    /// Refuses a change with the reason. Asked for every change before the first byte is placed.
    fn check(&self, intent: &Intent) -> Result<(), String>;
    /// True once a fence waits for this permit: place no more bytes.
    fn is_revoked(&self) -> bool;
    /// An allowed change comes next; whatever happens to the request from here on, it may have been
    /// made. `bytes` is what a write of up to [`SEEN_BYTES`] will place, and empty for all else. On
    /// an error it is not made, and the connection ends.
    fn starts(&self, _: &Intent, _: &[u8]) -> Result<(), String> {
        Ok(())
    }
    /// The change was made, just now and in this thread. `found` is the word that an atomic found,
    /// and 0 for all else.
    fn done(&self, _: &Intent, _: u64) {}
}

/// Decides over tokens.
pub trait Access: Send + Sync + fmt::Debug {
    /// Admits a request that shows `token`, or says why not. May wait, bounded. `cut` interrupts
    /// the connection should the token be revoked while the permit lives.
    fn admit<'a>(&'a self, token: u64, cut: &Arc<dyn Cut>) -> Result<Box<dyn Permit + 'a>, String>;
}

/// Everything in bounds is allowed to any token but 0: for conformance tests and benches.
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
