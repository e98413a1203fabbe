//! What makes the identities of keys at a handle [I16]. All clones share it, and it is that of the
//! job whose master they last connected to: nodes of a job without a secret that all ended and came
//! back have another cookie, and with it another hasher.

use arc_swap::ArcSwap;
use nkv_store::KeyHasher;
use std::sync::Arc;

/// See the file's first paragraph.
#[derive(Debug, Clone)]
pub(crate) struct HandleKeys(Arc<ArcSwap<KeyHasher>>);

impl HandleKeys {
    pub(crate) fn new(hasher: KeyHasher) -> Self {
        Self(Arc::new(ArcSwap::from_pointee(hasher)))
    }

    /// The hasher now.
    #[inline]
    pub(crate) fn now(&self) -> KeyHasher {
        **self.0.load()
    }

    /// A master was connected to: said before anything that it tells of its ranks is used.
    pub(crate) fn keep(&self, hasher: KeyHasher) {
        if self.now() != hasher {
            self.0.store(Arc::new(hasher));
        }
    }
}

#[cfg(test)]
mod tests;
