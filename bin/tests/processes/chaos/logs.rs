//! The device logs of the ranks, as this process maps them: whether one may have evicted an object,
//! and which claims in it are half written. It only reads.

use nkv::message::{ObjMeta, View};
use nkv_store::device_log::{BUMP_PTR_OFF, LogLayout};
use nkv_store::key::key_hash;
use nkv_store::layout::{ObjHeader, PUBLISH_OFF};
use nkv_store::memory::Memory;
use nkv_store::object::writing;
use nkv_store::shm;
use std::collections::BTreeMap;
use std::mem::offset_of;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Offset of an object's size in its header.
const BYTES_OFF: u64 = offset_of!(ObjHeader, bytes_total) as u64;

/// Position of an object in a log, or a lower bound of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    /// The owner.
    pub incarnation: u64,
    /// The position.
    pub position: u64,
}

#[derive(Debug, Clone)]
struct Mapped {
    memory: Arc<dyn Memory>,
    log: LogLayout,
}

#[derive(Debug, Default)]
struct Inner {
    mapped: BTreeMap<u64, Mapped>,
    latest: BTreeMap<u32, u64>,
}

/// See the file's first paragraph.
#[derive(Debug, Default)]
pub struct Logs(Mutex<Inner>);

impl Logs {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Maps the logs of a view's ranks; a rank that is gone by then is left out.
    pub fn note(&self, view: &View) {
        let mut inner = self.lock();
        for (info, _) in &view.ranks {
            let Some(log) = info.layout.device_log() else { continue };
            inner.latest.insert(info.rank, info.incarnation);
            if !inner.mapped.contains_key(&info.incarnation)
                && let Ok(memory) = shm::attach(info.memory.name().unwrap(), false)
            {
                inner.mapped.insert(info.incarnation, Mapped { memory, log });
            }
        }
    }

    /// Whether the log of an owner is mapped here.
    pub fn knows(&self, incarnation: u64) -> bool {
        self.lock().mapped.contains_key(&incarnation)
    }

    fn of(&self, incarnation: u64) -> Option<Mapped> {
        self.lock().mapped.get(&incarnation).cloned()
    }

    /// A lower bound of the position of claims in a rank's log from now on.
    pub fn mark_now(&self, rank: u32) -> Option<Mark> {
        let incarnation = *self.lock().latest.get(&rank)?;
        let position = self.of(incarnation)?.claimed();
        Some(Mark { incarnation, position })
    }

    /// The first position of a rank's log.
    pub fn start_of(&self, rank: u32) -> Option<Mark> {
        let incarnation = *self.lock().latest.get(&rank)?;
        Some(Mark { incarnation, position: 0 })
    }

    /// Position of an object; none if it is not in a log.
    pub fn mark_of(&self, meta: &ObjMeta) -> Option<Mark> {
        let position = self.of(meta.at.incarnation)?.log.position(meta.at.slot, meta.at.epoch)?;
        Some(Mark { incarnation: meta.at.incarnation, position })
    }

    /// True if the log may have evicted an object at or above a mark: it has so many claims that it
    /// had to evict it to keep a quarter free. Before that nothing is evicted.
    pub fn may_have_passed(&self, mark: Mark) -> bool {
        self.of(mark.incarnation).is_some_and(|m| {
            let needed = (m.claimed() + m.log.max_claim()).saturating_sub(m.log.log_bytes());
            mark.position < needed
        })
    }

    /// A mark beside what is claimed in its log, for a fault.
    pub fn described(&self, mark: Mark) -> String {
        let latest = self.lock().latest.clone();
        let log = self.of(mark.incarnation).map(|m| (m.claimed(), m.log.log_bytes()));
        format!("{mark:x?}: claimed and bytes of its log {log:?}; latest {latest:x?}")
    }

    /// The claim of a key that is being written, if it begins in the last `back` bytes of the log:
    /// its position and bytes.
    pub fn half_written(&self, rank: u32, key: &[u8], back: u64) -> Option<(u64, u64)> {
        let incarnation = *self.lock().latest.get(&rank)?;
        self.of(incarnation)?.half_written(key_hash(key), back)
    }

    /// True while the claim at a position is still being written.
    pub fn is_half_written(&self, rank: u32, position: u64) -> bool {
        let incarnation = self.lock().latest.get(&rank).copied();
        let mapped = incarnation.and_then(|i| self.of(i));
        mapped.is_some_and(|m| m.publish(position) == m.log.epoch(position).map(writing))
    }
}

impl Mapped {
    fn claimed(&self) -> u64 {
        self.memory.load(BUMP_PTR_OFF).unwrap_or(0)
    }

    fn publish(&self, position: u64) -> Option<u64> {
        let at = self.log.header_off(self.log.slot(position));
        self.memory.load(at + PUBLISH_OFF).ok()
    }

    fn half_written(&self, hash: u64, back: u64) -> Option<(u64, u64)> {
        let (end, unit) = (self.claimed(), self.log.unit());
        let mut p = end.saturating_sub(back) / unit * unit;
        while p < end {
            let at = self.log.header_off(self.log.slot(p));
            if self.publish(p) == self.log.epoch(p).map(writing)
                && self.memory.load(at).ok() == Some(hash)
            {
                let bytes_total = self.memory.load(at + BYTES_OFF).ok()?;
                return Some((p, self.log.claim_bytes(bytes_total)?));
            }
            p += unit;
        }
        None
    }
}
