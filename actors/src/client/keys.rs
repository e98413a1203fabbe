//! The hasher that makes key identities for a handle [I16], shared by all clones. It is that of the
//! job whose master they last connected to. If all nodes of a job without a secret end and restart,
//! they have a new cookie, and therefore another hasher.

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

    /// Sets the hasher of the master just connected to; call before using anything that it sends
    /// about its ranks.
    pub(crate) fn keep(&self, hasher: KeyHasher) {
        if self.now() != hasher {
            self.0.store(Arc::new(hasher));
        }
    }
}

#[cfg(test)]
mod tests;
