//! One client of the mix: a thread, a handle, some keys that nobody else uses, and for each the
//! version that is stored. After a remove a key is used again with the next version, so a removed
//! value that became readable again would show as wrong bytes.

use crate::content::Stream;
use crate::flags::{Flags, Weights};
use crate::latency::OpTimes;
use crate::memcpy::{MemcpyBaseline, faulted};
use crate::stop::Stop;
use crate::stopwatch::{Deadline, timed};
use crate::tally::ErrorTally;
use nkv::message::Existence;
use nkv::{Blocking, Error, ErrorKind, PutOptions};
use nkv_store::Buffer;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Pause after a failure, so that a cluster that is down is not flooded with calls.
const FAILURE_PAUSE: Duration = Duration::from_millis(10);

/// What all clients of a run share.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    /// Sizes, frequencies and pauses.
    pub(super) flags: Flags,
    /// Random, so that two runs never use the same keys.
    pub(super) run_id: u64,
    /// Objects that each client keeps alive.
    pub(super) objects: usize,
    /// Time at which the run ends.
    pub(super) deadline: Deadline,
    /// Flag that ends the run sooner.
    pub(super) stop: Stop,
    /// Operations done by all clients.
    pub(super) done: Arc<AtomicU64>,
}

/// What a client measured and counted.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) puts: OpTimes,
    pub(super) gets: OpTimes,
    pub(super) exists: OpTimes,
    pub(super) removes: OpTimes,
    /// Gets that were answered, with the value or with NotFound.
    pub(super) asked: u64,
    /// Time of the longest call, whether it failed or not.
    pub(super) longest_ns: u64,
    /// Wrong bytes and failures.
    pub(super) tally: ErrorTally,
}

impl Outcome {
    /// An empty outcome, for objects of so many bytes.
    pub(super) fn new(bytes: u64) -> Self {
        Self {
            puts: OpTimes::new("put", bytes),
            gets: OpTimes::new("get", bytes),
            exists: OpTimes::new("exists", 0),
            removes: OpTimes::new("remove", 0),
            asked: 0,
            longest_ns: 0,
            tally: ErrorTally::default(),
        }
    }

    /// Adds another client's outcome.
    pub(super) fn merge(&mut self, other: Self) {
        self.puts.merge(&other.puts);
        self.gets.merge(&other.gets);
        self.exists.merge(&other.exists);
        self.removes.merge(&other.removes);
        self.asked += other.asked;
        self.longest_ns = self.longest_ns.max(other.longest_ns);
        self.tally.merge(other.tally);
    }
}

/// A key of this client and what is stored under it.
#[derive(Debug, Clone, Default)]
struct Slot {
    /// Part of the key; a new one after an operation with an unknown end.
    generation: u64,
    /// The stored version, if the object is believed to be there.
    stored: Option<u64>,
    /// Version of the next put.
    next: u64,
}

/// One client.
pub(super) struct Client {
    plan: Plan,
    index: usize,
    handle: Blocking,
    slots: Vec<Slot>,
    /// Of this client's random numbers.
    seed: u64,
    draws: u64,
    buffer: Buffer,
    baseline: MemcpyBaseline,
    outcome: Outcome,
}

impl Client {
    /// Client number `index` of a run.
    pub(super) fn new(plan: Plan, index: usize, handle: Blocking) -> Self {
        Self {
            index,
            handle,
            slots: vec![Slot::default(); plan.objects],
            seed: plan.run_id.wrapping_add(index as u64),
            draws: 0,
            buffer: faulted(plan.flags.size as usize),
            baseline: MemcpyBaseline::new(plan.flags.size as usize, plan.objects),
            outcome: Outcome::new(plan.flags.size),
            plan,
        }
    }

    /// Puts all its keys, runs the mix until the end, removes its keys.
    pub(super) fn run(mut self) -> Outcome {
        for slot in 0..self.slots.len() {
            if self.over() {
                break;
            }
            self.put(slot);
        }
        while !self.over() {
            std::thread::sleep(self.plan.flags.pause());
            self.step();
        }
        self.remove_all();
        self.handle.close();
        self.outcome
    }

    fn over(&self) -> bool {
        self.plan.stop.asked() || self.plan.deadline.passed()
    }

    fn step(&mut self) {
        let Weights { put, get, exists } = self.plan.flags.mix;
        let draw = self.draw(u64::from(put) + u64::from(get) + u64::from(exists));
        let slot = self.draw(self.slots.len() as u64) as usize;
        if draw < u64::from(put) {
            self.put(slot);
        } else if draw < u64::from(put) + u64::from(get) {
            self.get(slot);
        } else {
            self.exists(slot);
        }
    }

    /// A number below `limit`, which is at least 1.
    fn draw(&mut self, limit: u64) -> u64 {
        self.draws += 1;
        xxh3_64_with_seed(&self.draws.to_le_bytes(), self.seed) % limit.max(1)
    }

    fn key(&self, slot: usize) -> Vec<u8> {
        let Self { plan, index, slots, .. } = self;
        let generation = slots[slot].generation;
        format!("mix/{:016x}/{index}/{slot}/{generation}", plan.run_id).into_bytes()
    }

    /// Stores the next version, after removing the present one.
    fn put(&mut self, slot: usize) {
        if self.slots[slot].stored.is_some() && !self.remove(slot) {
            return;
        }
        let key = self.key(slot);
        let version = self.slots[slot].next;
        Stream::of(&key, version).fill(&mut self.buffer);
        let flags = &self.plan.flags;
        let opts = PutOptions::default().stripes(flags.object_stripes).replicas(flags.replicas);
        let (outcome, ns) = timed(|| self.handle.put(&key, &self.buffer, &opts));
        self.outcome.longest_ns = self.outcome.longest_ns.max(ns);
        self.slots[slot].next += 1;
        match outcome {
            Ok(()) => {
                self.slots[slot].stored = Some(version);
                self.outcome.puts.record(ns);
            }
            Err(error) => {
                self.failed("put", slot, &key, &error);
                // The put may have succeeded: the object is whole or absent.
                let _ = self.handle.remove(&key);
            }
        }
        self.outcome.puts.record_memcpy(self.baseline.copy_in(slot, &self.buffer));
        self.plan.done.fetch_add(1, Ordering::Relaxed);
    }

    /// Reads and compares. A stored object that is not found was evicted, or its rank is gone.
    fn get(&mut self, slot: usize) {
        let Some(version) = self.slots[slot].stored else {
            return self.put(slot);
        };
        let key = self.key(slot);
        let (outcome, ns) = timed(|| self.handle.get_into(&key, &mut self.buffer));
        self.outcome.longest_ns = self.outcome.longest_ns.max(ns);
        match outcome {
            Ok(read) => {
                self.outcome.asked += 1;
                self.outcome.gets.record(ns);
                let stream = Stream::of(&key, version);
                let verdict = stream.verify(&self.buffer, read, self.buffer.len());
                self.outcome.tally.compared(&key, verdict);
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {
                self.outcome.asked += 1;
                self.slots[slot].stored = None;
            }
            Err(error) => self.failed("get", slot, &key, &error),
        }
        self.outcome.gets.record_memcpy(self.baseline.copy_out(slot, &mut self.buffer));
        self.plan.done.fetch_add(1, Ordering::Relaxed);
    }

    /// Calls `exists` for a stored key, or for one that was never put.
    fn exists(&mut self, slot: usize) {
        let stored = self.slots[slot].stored.is_some();
        let key = if stored { self.key(slot) } else { [&self.key(slot)[..], b"/none"].concat() };
        let (outcome, ns) = timed(|| self.handle.exists(&[&key]));
        self.outcome.longest_ns = self.outcome.longest_ns.max(ns);
        match outcome.as_deref().map_err(Clone::clone) {
            Ok([Existence::Absent]) => {
                self.slots[slot].stored = None;
                self.outcome.exists.record(ns);
            }
            Ok([Existence::Ready]) if stored => self.outcome.exists.record(ns),
            Ok([Existence::Unreachable]) => {
                // The location call's error names the rank that holds it.
                let error = self.handle.get_location(&key).err().unwrap_or_else(|| {
                    Error::disconnected("the rank that holds it was down a moment ago")
                });
                self.failed("exists", slot, &key, &error);
            }
            Ok(other) => {
                let text = format!("answered {other:?} for a key that is there, or was never put");
                self.failed("exists", slot, &key, &Error::internal(text));
            }
            Err(error) => self.failed("exists", slot, &key, &error),
        }
        self.plan.done.fetch_add(1, Ordering::Relaxed);
    }

    /// True if the key is absent now. `NotFound` is no failure: it may have been evicted.
    fn remove(&mut self, slot: usize) -> bool {
        let key = self.key(slot);
        let (outcome, ns) = timed(|| self.handle.remove(&key));
        self.outcome.longest_ns = self.outcome.longest_ns.max(ns);
        match outcome {
            Ok(()) => self.outcome.removes.record(ns),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => {
                self.failed("remove", slot, &key, &error);
                return false;
            }
        }
        self.slots[slot].stored = None;
        true
    }

    fn remove_all(&mut self) {
        let stored = (0..self.slots.len()).filter(|slot| self.slots[*slot].stored.is_some());
        let keys: Vec<Vec<u8>> = stored.map(|slot| self.key(slot)).collect();
        self.outcome.tally.remove(&self.handle, &keys, true);
    }

    /// Counts a failure and stops using the key: its stored version is unknown from now on.
    fn failed(&mut self, op: &str, slot: usize, key: &[u8], error: &Error) {
        self.outcome.tally.failed(op, key, error);
        let slot = &mut self.slots[slot];
        slot.stored = None;
        slot.generation += 1;
        Deadline::after(FAILURE_PAUSE).sleep(&self.plan.stop);
    }
}
