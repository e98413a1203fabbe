//! Control words that are registered with a GPU for its kernels, as long as a cache.

use nkv::KernelAccess;
use std::sync::{Mutex, PoisonError};

/// One registration for each segment.
#[derive(Debug, Default)]
pub(crate) struct KernelAccesses(Mutex<Vec<KernelAccess>>);

impl KernelAccesses {
    /// Keeps a registration for as long as its rank is there.
    pub(crate) fn keep(&self, access: KernelAccess) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.retain(KernelAccess::is_alive);
        if kept.iter().all(|known| known.control() != access.control()) {
            kept.push(access);
        }
    }

    /// Keeps none any more.
    pub(crate) fn take(&self) -> Vec<KernelAccess> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
