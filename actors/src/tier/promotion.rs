//! From disk to memory. A promotion reads an object and puts it as any other client would: into the
//! log or the heap of its rank, with the usual eviction, and without replacing what is there. Two
//! requests for one key are one promotion.

use super::{DiskTier, Promoted, caught, lock};
use crate::client::{Blocking, PutOptions};
use crate::error::{Error, ErrorKind, Result};
use crate::message::KeyBytes;
use crate::striping::{MANIFEST_BYTES, is_stripe};
use hashbrown::HashMap;
use nkv_ssd::{LoadError, Payload};
use nkv_store::{AnonMemory, Key, OwnMemory};
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Promotions that are in progress at a time.
pub(super) const THREADS: usize = 4;
/// Promotions that wait at most; further ones fail.
const MOST_WAITING: usize = 65_536;
/// How long a promotion waits for an object that is on its way to disk.
const SETTLE_LIMIT: Duration = Duration::from_secs(1);
/// A thread keeps a buffer of up to this many bytes.
const KEPT_BYTES: u64 = 16 << 20;

/// Keys that were asked for together.
struct Batch {
    results: Mutex<(usize, Vec<Result<()>>)>,
    done: Mutex<Option<Promoted>>,
}

impl Batch {
    fn one(&self, at: usize, result: Result<()>) {
        let mut results = lock(&self.results);
        results.1[at] = result;
        results.0 -= 1;
        if results.0 > 0 {
            return;
        }
        let all = std::mem::take(&mut results.1);
        drop(results);
        if let Some(done) = lock(&self.done).take() {
            done(all);
        }
    }
}

type Waiters = Vec<(Arc<Batch>, usize)>;

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Wanted>,
    /// Keys that wait or are being promoted.
    in_flight: HashMap<Key, Waiters>,
    closing: bool,
}

struct Wanted {
    key: Key,
    rank: Option<u32>,
    since_ns: u64,
}

/// The promotions of a node.
#[derive(Default)]
pub(super) struct Promotions {
    queue: Mutex<Queue>,
    changed: Condvar,
}

impl Promotions {
    /// Returns how many of the keys are being promoted already.
    pub fn add(
        &self,
        keys: &[KeyBytes],
        rank: Option<u32>,
        since_ns: u64,
        done: Promoted,
    ) -> usize {
        if keys.is_empty() {
            done(Vec::new());
            return 0;
        }
        let results = Mutex::new((keys.len(), vec![Ok(()); keys.len()]));
        let batch = Arc::new(Batch { results, done: Mutex::new(Some(done)) });
        let (mut coalesced, mut refused) = (0, Vec::new());
        {
            let mut queue = lock(&self.queue);
            for (at, key) in keys.iter().enumerate() {
                let key = match Key::new(key) {
                    Ok(key) if queue.closing => {
                        refused.push((at, Error::disconnected("this node is shutting down")));
                        drop(key);
                        continue;
                    }
                    Ok(key) => key,
                    Err(e) => {
                        refused.push((at, e.into()));
                        continue;
                    }
                };
                if let Some(waiters) = queue.in_flight.get_mut(&key) {
                    waiters.push((batch.clone(), at));
                    coalesced += 1;
                } else if queue.waiting.len() >= MOST_WAITING {
                    let text = format!("{MOST_WAITING} promotions from disk wait already");
                    refused.push((at, Error::not_ready(text)));
                } else {
                    queue.in_flight.insert(key.clone(), vec![(batch.clone(), at)]);
                    queue.waiting.push_back(Wanted { key, rank, since_ns });
                }
            }
        }
        self.changed.notify_all();
        refused.into_iter().for_each(|(at, error)| batch.one(at, Err(error)));
        coalesced
    }

    pub fn pending(&self) -> u64 {
        lock(&self.queue).in_flight.len() as u64
    }

    /// Waits until none of these keys is being promoted; false after the limit.
    pub fn wait_for(&self, which: impl Fn(&Key) -> bool, limit: Duration) -> bool {
        let busy = |queue: &mut Queue| queue.in_flight.keys().any(&which);
        let waited = self.changed.wait_timeout_while(lock(&self.queue), limit, busy);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    pub fn close(&self) {
        lock(&self.queue).closing = true;
        self.changed.notify_all();
    }

    /// The next one. None at the end, when nothing waits any more.
    fn next(&self) -> Option<Wanted> {
        let idle = |queue: &mut Queue| queue.waiting.is_empty() && !queue.closing;
        let queue = self.changed.wait_while(lock(&self.queue), idle);
        queue.unwrap_or_else(PoisonError::into_inner).waiting.pop_front()
    }

    pub(super) fn over(&self, key: &Key, result: &Result<()>) {
        let waiters = lock(&self.queue).in_flight.remove(key).unwrap_or_default();
        self.changed.notify_all();
        waiters.into_iter().for_each(|(batch, at)| batch.one(at, result.clone()));
    }
}

/// A buffer that a thread uses again.
#[derive(Default)]
struct Buffer(Option<AnonMemory>);

impl Buffer {
    fn of(&mut self, bytes: u64) -> Result<&mut AnonMemory> {
        use nkv_store::Memory;
        let kept = self.0.take().filter(|kept| kept.len() >= bytes);
        let kept = kept.map_or_else(|| AnonMemory::huge(bytes.next_multiple_of(2 << 20)), Ok)?;
        Ok(self.0.insert(kept))
    }

    fn let_go(&mut self) {
        use nkv_store::Memory;
        self.0.take_if(|kept| kept.len() > KEPT_BYTES);
    }
}

/// Puts what was read: where it is wanted, else on the disk's own rank, else on any. No rank's log
/// is waited for while another has room.
fn put(
    client: &Blocking,
    key: &Key,
    bytes: &[u8],
    (rank, layout): (Option<u32>, u64),
) -> Result<()> {
    let opts = PutOptions::default().page_bytes(u32::try_from(layout).unwrap_or_default());
    let (key, home) = (key.as_bytes(), client.client().home());
    // By a plan: the master must know of manifests and stripes.
    let of_striped = is_stripe(key) || bytes.len() == MANIFEST_BYTES;
    let opts = opts.restores().device_alloc(of_striped.then_some(false));
    let mut ranks: SmallVec<[Option<u32>; 3]> =
        [rank, home].into_iter().filter(Option::is_some).collect();
    ranks.dedup();
    for rank in &ranks {
        if let Some(done) = client.put_by_log(key, bytes, &opts.clone().preferred_rank(*rank)) {
            return done;
        }
    }
    let first = ranks.first().copied().flatten();
    match client.put(key, bytes, &opts.clone().preferred_rank(first)) {
        // Waited for once already, where there is no other rank.
        Err(e) if e.kind() == ErrorKind::OutOfMemory && !client.client().is_alone() => {
            client.put(key, bytes, &opts)
        }
        done => done,
    }
}

impl DiskTier {
    /// One of the threads.
    pub(super) fn promote_all(&self, client: &Blocking) {
        let mut buffer = Buffer::default();
        while let Some(Wanted { key, rank, since_ns }) = self.promotions.next() {
            let done = caught(|| self.promote_one(&key, rank, client, &mut buffer));
            let done = done.and_then(|done| done);
            buffer.let_go();
            match &done {
                Ok(bytes) => {
                    self.counters.promote_hits.one();
                    self.counters.promoted_bytes.add(*bytes as usize);
                    let took_ns = self.clock.now_ns().saturating_sub(since_ns);
                    self.counters.promote_times.record(took_ns);
                }
                Err(error) => {
                    self.counters.promote_fail.one();
                    tracing::debug!(%error, %key, "a promotion from disk failed");
                }
            }
            self.promotions.over(&key, &done.map(|_| ()));
        }
    }

    /// Returns the bytes of the object.
    fn promote_one(
        &self,
        key: &Key,
        rank: Option<u32>,
        client: &Blocking,
        buffer: &mut Buffer,
    ) -> Result<u64> {
        let none = || Error::not_found(format!("key {key} is not on disk any more"));
        // On its way to disk.
        if !self.feed.wait_for_key(key, SETTLE_LIMIT) {
            return Err(Error::not_ready(format!("key {key} is still being written to disk")));
        }
        let found = self.engine.find(key).filter(|_| !self.removals.covers(key));
        let found = found.ok_or_else(none)?;
        let memory = buffer.of(found.len)?;
        let own = OwnMemory::of(memory);
        let into = Payload { memory: &own, offset: 0, len: found.len };
        let loaded = self.engine.load(key, into).map_err(|error| match error {
            LoadError::NotFound => none(),
            LoadError::Corrupt(what) => {
                tracing::warn!(%key, %what, "an object is damaged on disk; it was removed");
                Error::not_found(format!("key {key} was damaged on disk, and removed: {what}"))
            }
            // The disk did not give it, and it was dropped: a miss.
            other if self.engine.find(key).is_none() => {
                tracing::warn!(%key, error = %other, "an object cannot be read from disk");
                Error::not_found(format!("key {key} could not be read from disk: {other}"))
            }
            other => Error::not_ready(format!("key {key} cannot be read from disk: {other}")),
        })?;
        if self.removals.covers(key) {
            return Err(none());
        }
        let bytes = memory.bytes(found.len as usize);
        put(client, key, bytes, (rank, loaded.layout)).map(|()| found.len)
    }
}
