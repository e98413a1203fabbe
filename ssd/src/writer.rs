//! Saves objects behind the callers' backs: a bounded queue and a few threads.
//!
//! A caller that finds the queue full waits 50 ms for room, and then saves its object itself: so
//! memory never grows, and whoever produces faster than the disk writes is slowed to its rate.

use crate::engine::{Durability, Engine, Found, Object, Saved};
use crate::sync::lock;
use hashbrown::HashMap;
use nkv_store::clock::Clock;
use nkv_store::log_limit::LogLimit;
use nkv_store::threads::spawn_named;
use nkv_store::{Key, StoreError};
use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// An object whose bytes stay where they are as long as it is held.
pub trait Held: Send {
    /// Its key.
    fn key(&self) -> &Key;
    /// The object. None if its bytes are gone after all: it is then dropped.
    fn object(&self) -> Option<Object<'_>>;
}

/// What became of an object that was handed over.
#[derive(Debug)]
pub enum Enqueued {
    /// It will be saved.
    Queued,
    /// The same object waits already, or is being saved.
    Dedup,
    /// The queue was full: this is what saving it at once came to.
    Waited(Saved),
    /// It will not be saved: its bytes are gone, or another object of its key is in the way.
    Dropped,
    /// The writer is being stopped: it will not be saved.
    Closed,
}

/// How a writer works.
#[derive(Debug, Clone, Copy)]
pub struct WriterOptions {
    /// Objects that may wait.
    pub queue_objects: usize,
    /// Bytes of payload that may wait. One object may always wait, however long.
    pub queue_bytes: u64,
    /// Threads, each of which saves one group at a time.
    pub threads: usize,
    /// Objects that one call of the engine saves at most: under [`Durability::Persistent`] they
    /// share a sync.
    pub group: usize,
    /// Under [`Durability::Persistent`] a save that failed is tried again, this often.
    pub retries: u32,
    /// What a save promises.
    pub durability: Durability,
}

impl Default for WriterOptions {
    fn default() -> Self {
        Self {
            queue_objects: 512,
            queue_bytes: 256 << 20,
            threads: 4,
            group: 32,
            retries: 3,
            durability: Durability::BestEffort,
        }
    }
}

/// How long a caller waits for another object of its key to be saved.
const WAIT_FOR_ANOTHER: Duration = Duration::from_secs(1);
/// How long a caller waits for room in the queue.
const WAIT_FOR_ROOM: Duration = Duration::from_millis(50);
/// Pause before a save that failed is tried again; twice as long each time.
const RETRY_PAUSE: Duration = Duration::from_millis(20);

/// Counters.
#[derive(Debug, Default)]
pub struct WriterStats {
    /// Objects handed over, without those of [`Self::enqueue_dedup_skip`].
    pub enqueue_total: AtomicU64,
    /// Objects of a key that waited already.
    pub enqueue_dedup_skip: AtomicU64,
    /// Objects that are on disk now: saved, or there before.
    pub save_success: AtomicU64,
    /// Objects that are not.
    pub save_fail: AtomicU64,
    /// Objects that their callers saved, because the queue was full.
    pub queue_full_sync_fallback: AtomicU64,
    /// Saves tried again.
    pub retry_attempts: AtomicU64,
    /// Objects given up after the last retry.
    pub retry_final_fail: AtomicU64,
}

/// An object that no thread has taken yet.
struct Waiting {
    held: Box<dyn Held>,
    bytes: u64,
    since_ms: u64,
}

struct Queue {
    waiting: VecDeque<Waiting>,
    waiting_bytes: u64,
    /// What waits or is being saved under each key.
    pending: HashMap<Key, Found>,
    /// Calls of `enqueue`, and groups of the threads, that are in progress.
    in_flight: usize,
    closing: bool,
}

struct Shared {
    engine: Arc<dyn Engine>,
    options: WriterOptions,
    clock: Arc<dyn Clock>,
    queue: Mutex<Queue>,
    /// Something waits, or the writer is closing.
    filled: Condvar,
    /// Something was taken out, or a call has ended.
    taken: Condvar,
    stats: WriterStats,
    limit: Mutex<LogLimit<()>>,
}

/// See the module.
pub struct Writer {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl std::fmt::Debug for Writer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Writer").field("options", &self.shared.options).finish_non_exhaustive()
    }
}

impl Writer {
    /// Starts the threads.
    ///
    /// # Errors
    /// If the kernel gives no thread.
    pub fn start(
        engine: Arc<dyn Engine>,
        options: WriterOptions,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, StoreError> {
        let queue = Queue {
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            pending: HashMap::new(),
            in_flight: 0,
            closing: false,
        };
        let shared = Arc::new(Shared {
            engine,
            options,
            clock,
            queue: Mutex::new(queue),
            filled: Condvar::new(),
            taken: Condvar::new(),
            stats: WriterStats::default(),
            limit: Mutex::default(),
        });
        let writer = Self { shared, threads: Mutex::new(Vec::new()) };
        for number in 0..options.threads.max(1) {
            let shared = Arc::clone(&writer.shared);
            let thread = spawn_named(&format!("nkv-ssd-{number}"), move || shared.run())?;
            lock(&writer.threads).push(thread);
        }
        Ok(writer)
    }

    /// Hands an object over. Waits for at most 50 ms, and then for the disk. One that differs from
    /// another of its key that is not saved yet waits for that, a second at most: saved after it,
    /// the two collide.
    pub fn enqueue(&self, held: Box<dyn Held>) -> Enqueued {
        let (shared, stats) = (&*self.shared, &self.shared.stats);
        let found = held.object().map(|o| Found { len: o.payload.len, layout: o.layout });
        let Some(found) = found else {
            stats.save_fail.fetch_add(1, Ordering::Relaxed);
            return Enqueued::Dropped;
        };
        let bytes = found.len;
        let differs = |queue: &mut Queue| {
            !queue.closing && queue.pending.get(held.key()).is_some_and(|there| *there != found)
        };
        let waited =
            shared.taken.wait_timeout_while(lock(&shared.queue), WAIT_FOR_ANOTHER, differs);
        let (mut queue, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        if queue.closing {
            return Enqueued::Closed;
        }
        if timeout.timed_out() {
            stats.save_fail.fetch_add(1, Ordering::Relaxed);
            return Enqueued::Dropped;
        }
        if queue.pending.contains_key(held.key()) {
            stats.enqueue_dedup_skip.fetch_add(1, Ordering::Relaxed);
            return Enqueued::Dedup;
        }
        queue.pending.insert(held.key().clone(), found);
        stats.enqueue_total.fetch_add(1, Ordering::Relaxed);
        queue.in_flight += 1;
        let full = |queue: &mut Queue| !queue.has_space(bytes, &shared.options);
        let waited = shared.taken.wait_timeout_while(queue, WAIT_FOR_ROOM, full);
        let (mut queue, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if queue.has_space(bytes, &shared.options) {
            queue.waiting.push_back(Waiting { held, bytes, since_ms: shared.clock.now_ms() });
            queue.waiting_bytes += bytes;
            queue.in_flight -= 1;
            // All, if the writer is closing: each thread looks whether it may end.
            shared.filled.notify_all();
            return Enqueued::Queued;
        }
        drop(queue);
        stats.queue_full_sync_fallback.fetch_add(1, Ordering::Relaxed);
        let group = [held];
        let mut saved = shared.save(&group);
        shared.ended(&group);
        match saved.pop() {
            Some(saved) => Enqueued::Waited(saved),
            None => Enqueued::Dropped,
        }
    }

    /// Drops what waits under these keys, and waits until none of them is being saved. False after
    /// the limit.
    pub fn forget(&self, which: impl Fn(&Key) -> bool, limit: Duration) -> bool {
        let shared = &*self.shared;
        shared.drop_waiting(|waiting| which(waiting.held.key()));
        let busy = |queue: &mut Queue| queue.pending.keys().any(&which);
        let waited = shared.taken.wait_timeout_while(lock(&shared.queue), limit, busy);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    /// Drops what no thread has taken for this long: the disk hangs. Returns how many.
    pub fn drop_late(&self, limit: Duration) -> usize {
        let (now_ms, limit_ms) = (self.shared.clock.now_ms(), limit.as_millis() as u64);
        let is_late = |waiting: &Waiting| now_ms >= waiting.since_ms.saturating_add(limit_ms);
        if lock(&self.shared.queue).waiting.front().is_none_or(|first| !is_late(first)) {
            return 0;
        }
        let late = self.shared.drop_waiting(is_late);
        self.shared.stats.save_fail.fetch_add(late as u64, Ordering::Relaxed);
        late
    }

    /// Takes no more objects, and waits until all that were handed over are saved. False if that
    /// takes longer than `limit`: the rest goes on, and what is lost by then is not on disk.
    pub fn stop(&self, limit: Duration) -> bool {
        let shared = &*self.shared;
        let mut queue = lock(&shared.queue);
        queue.closing = true;
        shared.filled.notify_all();
        let busy = |queue: &mut Queue| queue.in_flight > 0 || !queue.waiting.is_empty();
        let waited = shared.taken.wait_timeout_while(queue, limit, busy);
        let (queue, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        if timeout.timed_out() {
            let left = queue.waiting.len() + queue.in_flight;
            tracing::error!(objects = left, "objects are not on disk yet after {limit:?}");
            return false;
        }
        drop(queue);
        let threads = std::mem::take(&mut *lock(&self.threads));
        threads.into_iter().all(|thread| thread.join().is_ok())
    }

    /// Counters.
    pub fn stats(&self) -> &WriterStats {
        &self.shared.stats
    }

    /// Objects that wait now.
    pub fn waiting(&self) -> usize {
        lock(&self.shared.queue).waiting.len()
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        lock(&self.shared.queue).closing = true;
        self.shared.filled.notify_all();
    }
}

impl Queue {
    fn has_space(&self, bytes: u64, options: &WriterOptions) -> bool {
        self.waiting.is_empty()
            || (self.waiting.len() < options.queue_objects
                && self.waiting_bytes + bytes <= options.queue_bytes)
    }
}

impl Shared {
    fn run(&self) {
        loop {
            // A call that is in progress may still queue its object.
            let over = |queue: &Queue| queue.closing && queue.in_flight == 0;
            let idle = |queue: &mut Queue| queue.waiting.is_empty() && !over(queue);
            let waited = self.filled.wait_while(lock(&self.queue), idle);
            let mut queue = waited.unwrap_or_else(PoisonError::into_inner);
            if queue.waiting.is_empty() {
                return;
            }
            // What waits is shared among the threads: one of them does not take all.
            let share = queue.waiting.len().div_ceil(self.options.threads.max(1));
            let some = share.min(self.options.group.max(1));
            let group: Vec<_> = queue.waiting.drain(..some).collect();
            queue.waiting_bytes -= group.iter().map(|waiting| waiting.bytes).sum::<u64>();
            queue.in_flight += 1;
            drop(queue);
            self.taken.notify_all();
            let group: Vec<_> = group.into_iter().map(|waiting| waiting.held).collect();
            self.save(&group);
            self.ended(&group);
        }
    }

    /// Drops what waits; returns how many.
    fn drop_waiting(&self, which: impl Fn(&Waiting) -> bool) -> usize {
        let mut queue = lock(&self.queue);
        let waiting = std::mem::take(&mut queue.waiting);
        let (dropped, kept): (VecDeque<_>, VecDeque<_>) = waiting.into_iter().partition(which);
        queue.waiting = kept;
        for waiting in &dropped {
            queue.waiting_bytes -= waiting.bytes;
            queue.pending.remove(waiting.held.key());
        }
        drop(queue);
        self.taken.notify_all();
        // Outside the lock: who holds them may look at the queue.
        dropped.len()
    }

    /// Ends a group that was counted as in flight.
    fn ended(&self, group: &[Box<dyn Held>]) {
        let mut queue = lock(&self.queue);
        for held in group {
            queue.pending.remove(held.key());
        }
        queue.in_flight -= 1;
        self.taken.notify_all();
        if queue.closing {
            self.filled.notify_all();
        }
    }

    /// A panic of the engine fails the objects; the thread goes on.
    fn save_once(&self, objects: &[Object<'_>]) -> Vec<Saved> {
        let saved = catch_unwind(AssertUnwindSafe(|| self.engine.save(objects)));
        saved.unwrap_or_else(|_| {
            let panicked = || Saved::Error(io::Error::other("a panic while saving").into());
            objects.iter().map(|_| panicked()).collect()
        })
    }

    /// Saves a group; what fails is tried again under `Persistent`.
    fn save(&self, group: &[Box<dyn Held>]) -> Vec<Saved> {
        let objects: Vec<Object<'_>> = group.iter().filter_map(|held| held.object()).collect();
        let add = |counter: &AtomicU64, count: usize| {
            counter.fetch_add(count as u64, Ordering::Relaxed);
        };
        add(&self.stats.save_fail, group.len() - objects.len());
        let mut results = self.save_once(&objects);
        let failed = |results: &[Saved]| {
            let failed = results.iter().enumerate().filter(|(_, saved)| is_error(saved));
            failed.map(|(at, _)| at).collect::<Vec<_>>()
        };
        let retries = match self.options.durability {
            Durability::Persistent => self.options.retries,
            Durability::BestEffort => 0,
        };
        let mut pause = RETRY_PAUSE;
        for _ in 0..retries {
            let again = failed(&results);
            if again.is_empty() {
                break;
            }
            std::thread::sleep(pause);
            pause *= 2;
            add(&self.stats.retry_attempts, again.len());
            let objects: Vec<Object<'_>> = again.iter().map(|at| objects[*at]).collect();
            for (at, saved) in again.into_iter().zip(self.save_once(&objects)) {
                results[at] = saved;
            }
        }
        let lost = failed(&results).len();
        let there = results.iter().filter(|saved| matches!(saved, Saved::Saved | Saved::Dedup));
        add(&self.stats.save_success, there.count());
        add(&self.stats.save_fail, lost);
        if retries > 0 {
            add(&self.stats.retry_final_fail, lost);
        }
        for saved in &results {
            if let Saved::Error(error) = saved {
                if lock(&self.limit).is_due((), self.clock.now_ms()) {
                    tracing::warn!(%error, "objects are not saved on disk; logged once a minute");
                }
                break;
            }
        }
        results
    }
}

/// Not on disk, and worth another try.
fn is_error(saved: &Saved) -> bool {
    matches!(saved, Saved::Error(_) | Saved::Busy)
}
