//! Work of a disk's threads on objects, one job for each key: two requests for one key are one job.

use super::lock;
use crate::error::{Error, Result};
use crate::message::KeyBytes;
use hashbrown::HashMap;
use nkv_store::{AnonMemory, Key};
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Jobs that wait at most; further ones fail.
const MOST_WAITING: usize = 65_536;
/// A thread keeps a buffer of up to this many bytes.
const KEPT_BYTES: u64 = 16 << 20;

/// What is called with the result of each key, in order: the bytes of its object.
pub(crate) type EachDone = Box<dyn FnOnce(Vec<Result<u64>>) + Send>;

/// Keys that were asked for together.
struct Batch {
    results: Mutex<(usize, Vec<Result<u64>>)>,
    done: Mutex<Option<EachDone>>,
}

impl Batch {
    fn one(&self, at: usize, result: Result<u64>) {
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
    waiting: VecDeque<Job>,
    /// Keys that wait or are being worked on.
    in_flight: HashMap<Key, Waiters>,
    closing: bool,
}

/// What is to be done for one key.
pub(super) struct Job {
    pub key: Key,
    pub rank: Option<u32>,
    pub since_ns: u64,
}

/// See the file's first paragraph.
#[derive(Default)]
pub(super) struct KeyJobs {
    queue: Mutex<Queue>,
    changed: Condvar,
}

impl KeyJobs {
    /// `refused`: why nothing is done for a key. Returns how many of the keys are being worked on
    /// already.
    pub fn add(
        &self,
        keys: &[KeyBytes],
        (rank, since_ns): (Option<u32>, u64),
        refused: impl Fn(&Key) -> Option<Error>,
        done: EachDone,
    ) -> usize {
        if keys.is_empty() {
            done(Vec::new());
            return 0;
        }
        let results = Mutex::new((keys.len(), vec![Ok(0); keys.len()]));
        let batch = Arc::new(Batch { results, done: Mutex::new(Some(done)) });
        let (mut coalesced, mut not_done) = (0, Vec::new());
        {
            let mut queue = lock(&self.queue);
            for (at, key) in keys.iter().enumerate() {
                let key = match Key::new(key) {
                    Ok(key) if queue.closing => {
                        not_done.push((at, Error::disconnected("this node is shutting down")));
                        drop(key);
                        continue;
                    }
                    Ok(key) => key,
                    Err(e) => {
                        not_done.push((at, e.into()));
                        continue;
                    }
                };
                if let Some(why) = refused(&key) {
                    not_done.push((at, why));
                } else if let Some(waiters) = queue.in_flight.get_mut(&key) {
                    waiters.push((batch.clone(), at));
                    coalesced += 1;
                } else if queue.waiting.len() >= MOST_WAITING {
                    let text = format!("{MOST_WAITING} objects wait for this disk already");
                    not_done.push((at, Error::not_ready(text)));
                } else {
                    queue.in_flight.insert(key.clone(), vec![(batch.clone(), at)]);
                    queue.waiting.push_back(Job { key, rank, since_ns });
                }
            }
        }
        self.changed.notify_all();
        not_done.into_iter().for_each(|(at, error)| batch.one(at, Err(error)));
        coalesced
    }

    pub fn pending(&self) -> u64 {
        lock(&self.queue).in_flight.len() as u64
    }

    /// Ends the jobs of these keys that nobody works on yet.
    pub fn give_up(&self, which: impl Fn(&Key) -> bool, why: &Error) {
        let mut given_up = Vec::new();
        {
            let mut queue = lock(&self.queue);
            let Queue { waiting, in_flight, .. } = &mut *queue;
            waiting.retain(|job| {
                let goes = which(&job.key);
                if goes {
                    given_up.extend(in_flight.remove(&job.key).unwrap_or_default());
                }
                !goes
            });
        }
        self.changed.notify_all();
        given_up.into_iter().for_each(|(batch, at)| batch.one(at, Err(why.clone())));
    }

    /// Waits until none of these keys is being worked on; false after the limit.
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
    pub fn next(&self) -> Option<Job> {
        let idle = |queue: &mut Queue| queue.waiting.is_empty() && !queue.closing;
        let queue = self.changed.wait_while(lock(&self.queue), idle);
        queue.unwrap_or_else(PoisonError::into_inner).waiting.pop_front()
    }

    /// The job of a key is done, with the bytes of its object.
    pub fn over(&self, key: &Key, result: &Result<u64>) {
        let waiters = lock(&self.queue).in_flight.remove(key).unwrap_or_default();
        self.changed.notify_all();
        waiters.into_iter().for_each(|(batch, at)| batch.one(at, result.clone()));
    }
}

/// A buffer that a thread uses again.
#[derive(Default)]
pub(super) struct Buffer(Option<AnonMemory>);

impl Buffer {
    pub fn of(&mut self, bytes: u64) -> Result<&mut AnonMemory> {
        use nkv_store::Memory;
        let kept = self.0.take().filter(|kept| kept.len() >= bytes);
        let kept = kept.map_or_else(|| AnonMemory::huge(bytes.next_multiple_of(2 << 20)), Ok)?;
        Ok(self.0.insert(kept))
    }

    pub fn let_go(&mut self) {
        use nkv_store::Memory;
        self.0.take_if(|kept| kept.len() > KEPT_BYTES);
    }
}
