//! From memory to disk. An owner hands over objects that lose LIVE, or that became live; their
//! extents are not used again until the objects are saved [I9]. A thread passes them on to the
//! writer, and waits where that is full: so space for puts comes back at the disk's pace, and no
//! memory is taken beside the segment's own.

use super::{DiskTier, SsdPolicy, caught, lock};
use hashbrown::HashMap;
use hashbrown::HashSet;
use nkv_ssd::writer::Held;
use nkv_ssd::{Object, Payload};
use nkv_store::heap::Heap;
use nkv_store::object::{Holders, ObjectDesc};
use nkv_store::{Key, StoreError};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// An object that waits longer for the writer, or there, is dropped: a disk that hangs must not
/// keep memory from puts for good.
const WAIT_LIMIT_NS: u64 = 5_000_000_000;

/// How long a promotion or a save waits for the same object on its way to disk.
const KEY_LIMIT: Duration = Duration::from_secs(1);
/// How long an object is held until its key string is known: its producer may be dead.
const NAME_LIMIT_NS: u64 = 1_000_000_000;
/// How often producers are asked for key strings.
const ASK_EVERY_NS: u64 = 2_000_000;
/// So often after the last object whose key string is missing; then less often, until none is.
const ASKS: u64 = 8;
const ASK_LATER_NS: u64 = 50_000_000;

/// An object of a segment, as its owner hands it over.
#[derive(Debug, Clone)]
pub(crate) struct Candidate {
    pub slot: u32,
    pub epoch: u32,
    pub key: Key,
    pub object: ObjectDesc,
}

/// An object whose key string is not known yet.
#[derive(Debug, Clone, Copy)]
struct Unnamed {
    since_ns: u64,
    /// Removals that had begun by then. One that began later may have removed the object [I6].
    removals: u64,
}

/// The objects of one segment that the disk needs.
#[derive(Debug)]
pub(crate) struct Demotion {
    pub tier: Arc<DiskTier>,
    heap: Heap,
    held: Arc<Mutex<HashSet<(u32, u32)>>>,
    /// Objects that are held until their key string is known.
    unnamed: Mutex<HashMap<(u32, u32), Unnamed>>,
    asked_ns: AtomicU64,
    /// How often producers are still to be asked.
    asks_left: AtomicU64,
    /// Of `unnamed`, as last counted.
    counted: AtomicU64,
}

impl Demotion {
    pub fn new(tier: Arc<DiskTier>, heap: Heap) -> Self {
        let (held, unnamed) = (Arc::default(), Mutex::default());
        let none = || AtomicU64::new(0);
        let (asked_ns, asks_left, counted) = (none(), none(), none());
        Self { tier, heap, held, unnamed, asked_ns, asks_left, counted }
    }

    /// Whether objects are saved while they are live.
    pub fn writes_through(&self) -> bool {
        self.tier.config.policy == SsdPolicy::WriteThrough
    }

    /// Takes objects whose bytes are whole, and stay where they are as long as they are held: those
    /// that are live, or that lost LIVE in the same step.
    pub fn take(&self, objects: impl IntoIterator<Item = Candidate>) {
        for object in objects {
            let payloads = self.heap.layout().payloads();
            let (offset, bytes) = (object.object.payload_off(), object.object.bytes_total);
            let end = offset.checked_add(bytes);
            let inside = offset >= payloads.offset
                && end.is_some_and(|end| end <= payloads.offset + payloads.len);
            if !inside {
                continue;
            }
            let layout = u64::from(object.object.page_bytes);
            let there = self.tier.engine.find(&object.key);
            if there.is_some_and(|found| (found.len, found.layout) == (bytes, layout)) {
                continue;
            }
            if lock(&self.held).insert((object.slot, object.epoch)) {
                let (heap, held, key) = (self.heap.clone(), self.held.clone(), object.key.clone());
                self.tier.feed.add(OfSegment { heap, object, held }, &self.tier);
                // Looked at last: either a removal finds the object in the queue, or its mark is
                // found here [I6].
                if self.tier.removals.covers(&key) {
                    self.tier.feed.forget(|waiting| *waiting == key);
                }
            }
        }
    }

    /// Holds objects until their key strings are known, a second at most; those that lost LIVE in
    /// the same step. While anything is being removed they are lost to the disk.
    pub fn await_names(&self, objects: Vec<(u32, u32)>) {
        if objects.is_empty() {
            return;
        }
        // Read first: a removal that begins after it ends the wait, and one that began before it
        // is seen below, or is over, also for the owner of these objects.
        let removals = self.tier.removals.begun();
        if self.tier.removals.any() {
            return self.tier.counters.demote_unnamed.add(objects.len());
        }
        let awaited = Unnamed { since_ns: self.tier.clock.now_ns(), removals };
        let mut unnamed = lock(&self.unnamed);
        unnamed.extend(objects.into_iter().map(|at| (at, awaited)));
        self.count_unnamed(&unnamed);
        drop(unnamed);
        self.want_names();
    }

    /// The key strings of such objects are known now.
    pub fn take_named(&self, objects: impl IntoIterator<Item = Candidate>) {
        let still_awaited = |object: &Candidate| self.awaits((object.slot, object.epoch));
        self.take(objects.into_iter().filter(still_awaited));
    }

    /// Key strings are missing: the producers are to be asked for them soon. Their puts may note
    /// them a moment after the object is READY, so not once only.
    pub fn want_names(&self) {
        self.asks_left.store(ASKS, Ordering::Relaxed);
    }

    /// Somebody waits for them.
    pub fn ask_at_once(&self) {
        self.asked_ns.store(0, Ordering::Relaxed);
        self.want_names();
    }

    /// Whether producers are still to be asked.
    pub fn wants_names(&self) -> bool {
        self.asks_left.load(Ordering::Relaxed) > 0
    }

    /// Whether they are to be asked now.
    pub fn asks_now(&self, now_ns: u64) -> bool {
        let soon = self.wants_names();
        if !soon && self.unnamed_now().is_empty() {
            return false;
        }
        let asked_ns = self.asked_ns.load(Ordering::Relaxed);
        let every_ns = if soon { ASK_EVERY_NS } else { ASK_LATER_NS };
        let ask = now_ns >= asked_ns.saturating_add(every_ns);
        if ask {
            self.asked_ns.store(now_ns, Ordering::Relaxed);
        }
        if ask && soon {
            // The owner alone counts it down.
            self.asks_left.fetch_sub(1, Ordering::Relaxed);
        }
        ask
    }

    /// Those that are waited for. Others are lost to the disk.
    fn unnamed_now(&self) -> MutexGuard<'_, HashMap<(u32, u32), Unnamed>> {
        let mut unnamed = lock(&self.unnamed);
        let (before, begun) = (unnamed.len(), self.tier.removals.begun());
        if before > 0 {
            let now_ns = self.tier.clock.now_ns();
            unnamed.retain(|_, awaited| {
                awaited.removals == begun && now_ns < awaited.since_ns + NAME_LIMIT_NS
            });
            self.tier.counters.demote_unnamed.add(before - unnamed.len());
            self.count_unnamed(&unnamed);
        }
        unnamed
    }

    /// `unnamed` as it is now; for the gauge of what is pending.
    fn count_unnamed(&self, unnamed: &HashMap<(u32, u32), Unnamed>) {
        let n = unnamed.len() as u64;
        let before = self.counted.swap(n, Ordering::Relaxed);
        let all = &self.tier.feed.unnamed;
        all.fetch_add(n.wrapping_sub(before), Ordering::Relaxed);
    }

    pub fn awaits(&self, at: (u32, u32)) -> bool {
        let begun = self.tier.removals.begun();
        lock(&self.unnamed).get(&at).is_some_and(|awaited| awaited.removals == begun)
    }

    pub fn awaits_any(&self) -> bool {
        !self.unnamed_now().is_empty()
    }

    pub fn await_no_longer(&self, objects: &[(u32, u32)]) {
        let mut unnamed = lock(&self.unnamed);
        for at in objects {
            unnamed.remove(at);
        }
        self.count_unnamed(&unnamed);
    }
}

impl Holders for Demotion {
    fn held(&self, objects: &mut HashSet<(u32, u32)>) -> Result<(), StoreError> {
        self.tier.drop_late();
        objects.extend(lock(&self.held).iter().copied());
        objects.extend(self.unnamed_now().keys().copied());
        Ok(())
    }
}

/// An object whose extent is held.
struct OfSegment {
    heap: Heap,
    object: Candidate,
    held: Arc<Mutex<HashSet<(u32, u32)>>>,
}

impl Drop for OfSegment {
    fn drop(&mut self) {
        lock(&self.held).remove(&(self.object.slot, self.object.epoch));
    }
}

/// The same, counted as pending under its key.
struct Handed {
    of_segment: OfSegment,
    pending: Arc<Pending>,
}

impl Held for Handed {
    fn key(&self) -> &Key {
        &self.of_segment.object.key
    }

    fn object(&self) -> Option<Object<'_>> {
        let OfSegment { heap, object, .. } = &self.of_segment;
        let (offset, len) = (object.object.payload_off(), object.object.bytes_total);
        let payload = Payload { memory: &**heap.memory(), offset, len };
        let layout = u64::from(object.object.page_bytes);
        Some(Object { key: &object.key, layout, payload })
    }
}

impl Drop for Handed {
    fn drop(&mut self) {
        let mut by_key = lock(&self.pending.by_key);
        let key = &self.of_segment.object.key;
        if let Some((count, _)) = by_key.get_mut(key) {
            *count -= 1;
            if *count == 0 {
                by_key.remove(key);
            }
        }
        drop(by_key);
        self.pending.settled.notify_all();
    }
}

/// Keys that were handed over and are not settled: how many objects, and the bytes of one.
#[derive(Default)]
struct Pending {
    by_key: Mutex<HashMap<Key, (usize, u64)>>,
    settled: Condvar,
}

/// What waits for the writer.
#[derive(Default)]
pub(super) struct Feed {
    queue: Mutex<Queue>,
    changed: Condvar,
    pending: Arc<Pending>,
    /// Objects whose key string is not known yet.
    unnamed: AtomicU64,
}

#[derive(Default)]
struct Queue {
    /// With the time since when.
    waiting: VecDeque<(u64, Handed)>,
    /// The thread hands one to the writer.
    busy: bool,
    closing: bool,
}

impl Feed {
    fn add(&self, of_segment: OfSegment, tier: &DiskTier) {
        let (key, bytes) = (of_segment.object.key.clone(), of_segment.object.object.bytes_total);
        let mut queue = lock(&self.queue);
        if queue.closing {
            drop(queue);
            return tier.counters.demote_dropped.one();
        }
        lock(&self.pending.by_key).entry(key).or_insert((0, bytes)).0 += 1;
        let handed = Handed { of_segment, pending: self.pending.clone() };
        queue.waiting.push_back((tier.clock.now_ns(), handed));
        drop(queue);
        self.changed.notify_all();
    }

    /// The bytes of an object under this key that is on its way to disk.
    pub fn pending_bytes(&self, key: &Key) -> Option<u64> {
        lock(&self.pending.by_key).get(key).map(|(_, bytes)| *bytes)
    }

    /// Those of these keys whose objects are on their way to disk.
    pub fn pending_keys(&self, which: impl Fn(&Key) -> bool) -> Vec<Key> {
        lock(&self.pending.by_key).keys().filter(|key| which(key)).cloned().collect()
    }

    pub fn pending(&self) -> u64 {
        let named: usize = lock(&self.pending.by_key).values().map(|(count, _)| count).sum();
        named as u64 + self.unnamed.load(Ordering::Relaxed)
    }

    /// Waits until this key is not on its way to disk; false after the limit.
    pub fn wait_for_key(&self, key: &Key) -> bool {
        let by_key = lock(&self.pending.by_key);
        let busy = |by_key: &mut HashMap<Key, (usize, u64)>| by_key.contains_key(key);
        let waited = self.pending.settled.wait_timeout_while(by_key, KEY_LIMIT, busy);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    /// Waits until none of these keys is on its way to disk; false after the limit.
    pub fn wait_for(&self, which: impl Fn(&Key) -> bool, limit: Duration) -> bool {
        let by_key = lock(&self.pending.by_key);
        let busy = |by_key: &mut HashMap<Key, (usize, u64)>| by_key.keys().any(&which);
        let waited = self.pending.settled.wait_timeout_while(by_key, limit, busy);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    /// Takes out what waits and is to be dropped. The caller drops it without a lock.
    fn take_out(&self, which: impl Fn(&(u64, Handed)) -> bool) -> VecDeque<(u64, Handed)> {
        let mut queue = lock(&self.queue);
        let waiting = std::mem::take(&mut queue.waiting);
        let (out, kept): (VecDeque<_>, VecDeque<_>) = waiting.into_iter().partition(which);
        queue.waiting = kept;
        out
    }

    /// Drops what waits under these keys.
    pub fn forget(&self, which: impl Fn(&Key) -> bool) {
        drop(self.take_out(|(_, handed)| which(handed.key())));
    }

    /// Takes no more, and waits until all is handed on; false after the limit.
    pub fn close(&self, limit: Duration) -> bool {
        let mut queue = lock(&self.queue);
        queue.closing = true;
        self.changed.notify_all();
        let busy = |queue: &mut Queue| queue.busy || !queue.waiting.is_empty();
        let waited = self.changed.wait_timeout_while(queue, limit, busy);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }
}

impl DiskTier {
    /// Hands on what owners gave, one at a time: the writer makes it wait when it is full.
    pub(super) fn feed_writer(&self) {
        let feed = &self.feed;
        loop {
            let idle = |queue: &mut Queue| queue.waiting.is_empty() && !queue.closing;
            let queue = feed.changed.wait_while(lock(&feed.queue), idle);
            let mut queue = queue.unwrap_or_else(PoisonError::into_inner);
            let Some((_, handed)) = queue.waiting.pop_front() else { return };
            queue.busy = true;
            drop(queue);
            if self.removals.covers(handed.key()) {
                drop(handed);
            } else if let Err(error) = caught(|| self.writer.enqueue(Box::new(handed))) {
                tracing::error!(%error, "an object is not on disk");
            }
            lock(&feed.queue).busy = false;
            feed.changed.notify_all();
        }
    }

    /// What the disk has begun to write stays: its bytes are still being read.
    fn drop_late(&self) {
        let now_ns = self.clock.now_ns();
        let is_late = |since_ns: u64| now_ns >= since_ns + WAIT_LIMIT_NS;
        let first = lock(&self.feed.queue).waiting.front().map(|(since_ns, _)| *since_ns);
        let mut late = self.writer.drop_late(Duration::from_nanos(WAIT_LIMIT_NS));
        if first.is_some_and(is_late) {
            late += self.feed.take_out(|(since_ns, _)| is_late(*since_ns)).len();
        }
        if late > 0 {
            self.counters.demote_dropped.add(late);
            tracing::warn!(objects = late, "the disk is too slow: objects were not saved");
        }
    }
}
