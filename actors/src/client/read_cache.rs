//! What a handle has read and keeps at its own rank: what waits to be put there, within bounds, and
//! what is not tried.

use super::peer::TransportChoice;
use crate::message::SlotRef;
use crate::work_queue::WorkQueue;
use bytes::Bytes;
use hashbrown::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Objects that wait at most, their bytes, and the bytes of one. Others are not kept.
const MOST_WAITING: usize = 1024;
const MOST_BYTES: u64 = 64 << 20;
const LARGEST: u64 = 16 << 20;
/// After the rank had no room, nothing is kept for so long.
const NO_ROOM_PAUSE_NS: u64 = 1_000_000_000;
/// Keys that are not tried again: their host has a replica that this process cannot map.
const MOST_REFUSED: usize = 4096;

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
    refused: Mutex<HashSet<Box<[u8]>>>,
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
            })
        })
    }

    /// Its thread ends after the object that it puts now.
    pub(super) fn close(&self) {
        self.queue.close();
    }

    /// Room for an object of so many bytes.
    pub(super) fn reserve(&self, bytes: u64) -> bool {
        let waiting = self.waiting_bytes.fetch_add(bytes, Ordering::Relaxed);
        let fits = bytes <= LARGEST && waiting.saturating_add(bytes) <= MOST_BYTES;
        if !fits {
            self.release(bytes);
        }
        fits
    }

    pub(super) fn release(&self, bytes: u64) {
        self.waiting_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    pub(super) fn is_refused(&self, key: &[u8]) -> bool {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner).contains(key)
    }

    pub(super) fn refuse(&self, key: Box<[u8]>) {
        let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        if refused.len() >= MOST_REFUSED {
            refused.clear();
        }
        refused.insert(key);
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
