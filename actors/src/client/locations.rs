//! Locations this handle has seen: with them reads continue while the master does not answer. A
//! location is only a hint: the header there decides [I2].

use crate::error::ErrorKind;
use crate::message::ObjMeta;
use hashbrown::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Locations per generation; two generations are kept.
const MAX_PER_GENERATION: usize = 65_536;
/// After the master did not answer, it is not asked about known keys for this long.
const RETRY_MASTER_AFTER_NS: u64 = 500_000_000;

/// Indexed by key string, not by its hashes: two keys never share an object [I16].
#[derive(Debug, Default)]
struct Generations {
    young: HashMap<Box<[u8]>, ObjMeta>,
    old: HashMap<Box<[u8]>, ObjMeta>,
}

/// See the file's first paragraph.
#[derive(Debug, Default)]
pub(crate) struct Locations {
    kept: Mutex<Generations>,
    unresponsive_until_ns: AtomicU64,
}

impl Locations {
    /// Keeps a location that the master or an index returned.
    pub(crate) fn keep(&self, key: &[u8], meta: &ObjMeta) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.young.get(key).is_some_and(|m| m == meta) {
            return;
        }
        if kept.young.len() >= MAX_PER_GENERATION {
            kept.old = std::mem::take(&mut kept.young);
        }
        kept.young.insert(key.into(), meta.clone());
    }

    /// The last known location of a key.
    pub(crate) fn known(&self, key: &[u8]) -> Option<ObjMeta> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.young.get(key).or_else(|| kept.old.get(key)).cloned()
    }

    /// Removes the location of a key, which is not there any more.
    pub(crate) fn forget(&self, key: &[u8]) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.young.remove(key);
        kept.old.remove(key);
    }

    /// Records that the master did not answer.
    pub(crate) fn mark_master_unresponsive(&self, now_ns: u64) {
        self.unresponsive_until_ns.store(now_ns + RETRY_MASTER_AFTER_NS, Ordering::Relaxed);
    }

    /// True while the master should not be asked about known keys.
    pub(crate) fn is_master_unresponsive(&self, now_ns: u64) -> bool {
        now_ns < self.unresponsive_until_ns.load(Ordering::Relaxed)
    }
}

/// Whether an error means only that the location is unknown, not that the object is absent.
pub(crate) fn unknown(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::Disconnected | ErrorKind::Timeout | ErrorKind::NotReady)
}
