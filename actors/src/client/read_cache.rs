//! What a handle has read and keeps at its own rank: what waits to be put there, within bounds, and
//! what is not tried.

use super::peer::TransportChoice;
use crate::message::SlotRef;
use crate::work_queue::WorkQueue;
use bytes::Bytes;
use hashbrown::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Objects that wait at most, their bytes, and the bytes of one. Others are not kept.
const MOST_WAITING: usize = 1024;
const MOST_BYTES: u64 = 64 << 20;
const LARGEST: u64 = 16 << 20;
/// After the rank had no room, nothing is kept for so long.
const NO_ROOM_PAUSE_NS: u64 = 1_000_000_000;
/// Keys that are not tried for a while, at most: their host has a replica, or there are as many as
/// there may be.
const MOST_REFUSED: usize = 4096;
const REFUSED_NS: u64 = 10_000_000_000;

/// An object that was read.
#[derive(Debug)]
pub(super) struct ReadObject {
    pub key: Box<[u8]>,
    /// Where it was read.
    pub at: SlotRef,
    pub bytes: Bytes,
}

/// See the file's first paragraph.
#[derive(Debug)]
pub(crate) struct ReadCache {
    pub(super) queue: WorkQueue<ReadObject>,
    waiting_bytes: AtomicU64,
    paused_until_ns: AtomicU64,
    started: AtomicBool,
    // Each until when.
    refused: Mutex<HashMap<Box<[u8]>, u64>>,
    // Those that wait, or are being put.
    keys: Mutex<HashSet<Box<[u8]>>>,
}

impl ReadCache {
    /// What a handle of this configuration has.
    pub(super) fn wanted(wanted: bool, transport: TransportChoice) -> Option<Arc<Self>> {
        // A handle that does not map its own rank's memory would read a replica there by the
        // network as well.
        (wanted && transport == TransportChoice::Auto).then(|| {
            Arc::new(Self {
                queue: WorkQueue::new(MOST_WAITING),
                waiting_bytes: AtomicU64::new(0),
                paused_until_ns: AtomicU64::new(0),
                started: AtomicBool::new(false),
                refused: Mutex::default(),
                keys: Mutex::default(),
            })
        })
    }

    /// Its thread ends after the object that it puts now.
    pub(super) fn close(&self) {
        self.queue.close();
    }

    /// Room for an object of so many bytes, of a key that does not wait yet.
    pub(super) fn reserve(&self, key: &[u8], bytes: u64) -> bool {
        let waiting = self.waiting_bytes.fetch_add(bytes, Ordering::Relaxed);
        let fits = bytes <= LARGEST && waiting.saturating_add(bytes) <= MOST_BYTES;
        let taken = fits && locked(&self.keys).insert(key.into());
        if !taken {
            self.waiting_bytes.fetch_sub(bytes, Ordering::Relaxed);
        }
        taken
    }

    /// It is put, or given up.
    pub(super) fn release(&self, key: &[u8], bytes: u64) {
        self.waiting_bytes.fetch_sub(bytes, Ordering::Relaxed);
        locked(&self.keys).remove(key);
    }

    pub(super) fn is_refused(&self, key: &[u8], now_ns: u64) -> bool {
        locked(&self.refused).get(key).is_some_and(|until_ns| now_ns < *until_ns)
    }

    pub(super) fn refuse(&self, key: &[u8], now_ns: u64) {
        let mut refused = locked(&self.refused);
        if refused.len() >= MOST_REFUSED {
            refused.clear();
        }
        refused.insert(key.into(), now_ns + REFUSED_NS);
    }

    /// Its rank has no room: nothing is kept for a while.
    pub(super) fn pause(&self, now_ns: u64) {
        self.paused_until_ns.store(now_ns + NO_ROOM_PAUSE_NS, Ordering::Relaxed);
    }

    pub(super) fn is_paused(&self, now_ns: u64) -> bool {
        now_ns < self.paused_until_ns.load(Ordering::Relaxed)
    }

    /// True for the first caller, who starts the worker.
    pub(super) fn starts(&self) -> bool {
        !self.started.swap(true, Ordering::Relaxed)
    }
}

fn locked<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_is_bounded_each_key_once_and_refusals_end() {
        let cache = ReadCache::wanted(true, TransportChoice::Auto).unwrap();
        assert!(ReadCache::wanted(true, TransportChoice::Tcp).is_none());
        assert!(ReadCache::wanted(false, TransportChoice::Auto).is_none());
        assert!(!cache.reserve(b"large", LARGEST + 1));
        for key in [b"a", b"b", b"c", b"d"] {
            assert!(cache.reserve(key, LARGEST) && !cache.reserve(key, 1));
        }
        assert!(!cache.reserve(b"e", 1), "{MOST_BYTES} wait");
        cache.release(b"a", LARGEST);
        assert!(cache.reserve(b"a", 1) && cache.reserve(b"e", LARGEST - 1));
        cache.refuse(b"a", 5);
        let again = 5 + REFUSED_NS;
        assert!(cache.is_refused(b"a", again - 1) && !cache.is_refused(b"a", again));
        for n in 0..MOST_REFUSED {
            cache.refuse(&n.to_le_bytes(), 5);
        }
        assert!(locked(&cache.refused).len() <= MOST_REFUSED);
    }
}
