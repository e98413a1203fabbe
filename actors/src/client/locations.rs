//! Locations this handle has seen: with them reads continue while the master does not answer. A
//! location is only a hint: the header there decides [I2].

use crate::error::ErrorKind;
use crate::message::ObjMeta;
use hashbrown::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Reads by one location, and their bytes, until the master is asked once more: by then there may
/// be a replica that is nearer, or is read less.
const READS_PER_ANSWER: u64 = 4096;
const BYTES_PER_ANSWER: u64 = 256 << 20;
/// From so many bytes on the master is asked before the first read: beside the time of the transfer
/// a request is nothing, and an index knows one replica.
const ASKED_AT_ONCE: u64 = 4 << 20;
/// Locations per generation; two generations are kept.
const MAX_PER_GENERATION: usize = 65_536;
/// After the master did not answer, it is not asked about known keys for this long.
const RETRY_MASTER_AFTER_NS: u64 = 500_000_000;

/// Indexed by key string, not by its hashes: two keys never share an object [I16].
#[derive(Debug, Default)]
struct Generations {
    young: HashMap<Box<[u8]>, Kept>,
    old: HashMap<Box<[u8]>, Kept>,
}

/// A location, and how often it may be read by until the master is asked.
#[derive(Debug)]
struct Kept {
    meta: ObjMeta,
    left: u64,
}

impl Kept {
    fn left(meta: &ObjMeta) -> u64 {
        (BYTES_PER_ANSWER / meta.object.bytes_total.max(1)).clamp(1, READS_PER_ANSWER)
    }
}

/// What is known about where a key is read.
pub(crate) enum Hint {
    At(ObjMeta),
    /// It is known, but the master should be asked.
    Ask,
    Unknown,
}

/// See the file's first paragraph.
#[derive(Debug, Default)]
pub(crate) struct Locations {
    kept: Mutex<Generations>,
    unresponsive_until_ns: AtomicU64,
}

impl Locations {
    /// Keeps a location that the master returned.
    pub(crate) fn keep(&self, key: &[u8], meta: &ObjMeta) {
        self.keep_for(key, meta, Kept::left(meta));
    }

    /// Keeps one that an index returned.
    pub(crate) fn keep_found(&self, key: &[u8], meta: &ObjMeta) {
        let large = meta.object.bytes_total >= ASKED_AT_ONCE;
        self.keep_for(key, meta, if large { 0 } else { Kept::left(meta) });
    }

    fn keep_for(&self, key: &[u8], meta: &ObjMeta, left: u64) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.young.get(key).is_some_and(|kept| kept.meta == *meta) {
            return;
        }
        if kept.young.len() >= MAX_PER_GENERATION {
            kept.old = std::mem::take(&mut kept.young);
        }
        kept.young.insert(key.into(), Kept { meta: meta.clone(), left });
    }

    /// The last known location of a key.
    pub(crate) fn known(&self, key: &[u8]) -> Option<ObjMeta> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.young.get(key).or_else(|| kept.old.get(key)).map(|kept| kept.meta.clone())
    }

    /// The same for a read, which is counted.
    pub(crate) fn read_by(&self, key: &[u8]) -> Hint {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let Generations { young, old } = &mut *kept;
        match young.get_mut(key).or_else(|| old.get_mut(key)) {
            Some(kept) if kept.left == 0 => {
                kept.left = Kept::left(&kept.meta);
                Hint::Ask
            }
            Some(kept) => {
                kept.left -= 1;
                Hint::At(kept.meta.clone())
            }
            None => Hint::Unknown,
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{ObjectDesc, SlotRef};
    use nkv_store::KeyHasher;

    fn of_bytes(bytes: u64) -> ObjMeta {
        ObjMeta {
            key: KeyHasher::new([1; 16]).id(b"k"),
            rank: 1,
            at: SlotRef { incarnation: 1, slot: 1, epoch: 1 },
            header_off: 64,
            object: ObjectDesc::at(4096, bytes, 1),
        }
    }

    #[test]
    fn the_master_is_asked_again_after_so_many_reads_and_the_location_stays_known() {
        for (bytes, reads) in [(0, 4096), (64 << 10, 4096), (1 << 20, 256), (1 << 30, 1)] {
            let (meta, locations) = (of_bytes(bytes), Locations::default());
            assert!(matches!(locations.read_by(b"k"), Hint::Unknown));
            locations.keep(b"k", &meta);
            for _ in 0..2 {
                for _ in 0..reads {
                    assert!(matches!(locations.read_by(b"k"), Hint::At(found) if found == meta));
                }
                assert!(matches!(locations.read_by(b"k"), Hint::Ask), "{bytes}");
                assert_eq!(locations.known(b"k"), Some(meta.clone()));
            }
        }
    }

    #[test]
    fn where_an_index_found_a_large_object_the_master_is_asked_before_it_is_read() {
        for (bytes, asked) in [(ASKED_AT_ONCE - 1, false), (ASKED_AT_ONCE, true)] {
            let (meta, locations) = (of_bytes(bytes), Locations::default());
            locations.keep_found(b"k", &meta);
            assert_eq!(matches!(locations.read_by(b"k"), Hint::Ask), asked, "{bytes}");
            assert!(matches!(locations.read_by(b"k"), Hint::At(_)));
        }
    }
}
