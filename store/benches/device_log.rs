//! The cost of the device log without copying the bytes, in nanoseconds: a put's bookkeeping, and
//! the owner's accept and eviction of one object. `cargo bench -p nkv-store --bench device_log`.
//! Prints medians of rounds, with the fastest and the slowest; asserts nothing. The directory is
//! empty, so the cost of an index is not included.
#![expect(clippy::unwrap_used, reason = "a measurement ends where it cannot go on")]

use nkv_store::clock::{BootClock, Clock};
use nkv_store::device_log::{
    BUMP_PTR_OFF, ClaimStep, ControlLine, DeviceLog, Directory, HEAP_LIMIT_OFF, Landing, LogLayout,
    LogObject, LogPut, LogRules, OpenClaims,
};
use nkv_store::op::Op;
use nkv_store::threads::spawn_named;
use nkv_store::{KeyId, Memory, SegmentName, random_u64, shm};
use std::hint::black_box;
use std::sync::{Arc, Barrier};

const UNIT: u64 = 4096;
const LOG_BYTES: u64 = 512 << 20;
const HEADER_BASE: u64 = 4096;
const LOG_BASE: u64 = 16 << 20;
const ROUNDS: usize = 31;

struct Nobody;

impl Directory for Nobody {
    fn contains(&self, key: &KeyId) -> bool {
        black_box(key.hash) == 0
    }
    fn insert(&mut self, object: &LogObject) {
        black_box(object);
    }
    fn remove(&mut self, key: &KeyId, _slot: u32, _epoch: u32) {
        black_box(key);
    }
}

/// The producers of one process.
#[derive(Clone)]
struct Process {
    memory: Arc<dyn Memory>,
    layout: LogLayout,
    claims: Arc<OpenClaims>,
}

/// How much of a put is done.
#[derive(Clone, Copy, PartialEq)]
enum Much {
    /// None: copies 4 KiB to where they would be written, for comparison.
    Copy,
    /// Claimed and left: what the log adds to a put with a plan's verbs.
    Claim,
    /// Header, WRITING and READY as well.
    Header,
    /// And 4 KiB.
    Whole,
}

impl Process {
    fn run(&self, op: &mut Op<'_>) {
        op.run(self.memory.as_ref()).unwrap();
    }

    /// One put as a client does it; false if the log has no room.
    fn put(&self, much: Much, id: u64, bytes: &[u8]) -> bool {
        if much == Much::Copy {
            let offset = self.layout.payload_off((id >> 8) * UNIT);
            self.run(&mut Op::Write { offset, src: bytes });
            return true;
        }
        let key = KeyId { hash: id | 1, check: id };
        let put = LogPut::new(self.layout, key, 4096, UNIT).unwrap();
        let mut line = ControlLine::unread();
        self.run(&mut line.read());
        let Some(bound) = put.room(&line) else { return false };
        let open = self.claims.enter(bound).unwrap();
        let mut op = put.fetch_add();
        self.run(&mut op);
        let Op::FetchAdd { old, .. } = op else { return false };
        open.note(old);
        let ClaimStep::Write(write) = put.claimed(old).next(line.heap_limit()) else {
            return false;
        };
        black_box(write.object.payload_off());
        if much != Much::Claim {
            let object = write.publication();
            object.announce().iter_mut().for_each(|op| self.run(op));
            if much == Much::Whole {
                self.run(&mut object.page(0, bytes));
            }
            let [_, mut ready] = object.publish();
            self.run(&mut ready);
        }
        open.leave();
        true
    }
}

fn world() -> (Process, DeviceLog) {
    let name = SegmentName { job: "log-bench".into(), rank: 0, incarnation: random_u64() };
    let memory: Arc<dyn Memory> =
        Arc::new(shm::create(&name, LOG_BASE + LOG_BYTES, shm::Allocation::NOW).unwrap());
    let layout = LogLayout::new(LOG_BASE, LOG_BYTES, UNIT, HEADER_BASE).unwrap();
    let rules = LogRules::with_a_quarter_free(0, 5_000_000_000);
    let log = DeviceLog::fresh(memory.clone(), layout, rules, Arc::default()).unwrap();
    let claims = Arc::new(OpenClaims::new(Landing::InCall));
    (Process { memory, layout, claims }, log)
}

fn show(what: &str, mut per_op: Vec<f64>) {
    per_op.sort_by(f64::total_cmp);
    let [first, middle, last] = [0, per_op.len() / 2, per_op.len() - 1].map(|i| per_op[i]);
    println!("{what:<52} {middle:>8.1}   ({first:.1} to {last:.1})");
}

/// Nanoseconds of one put, by so many threads at once, each on its own. Each round starts with a
/// new log: it has no owner.
fn puts(process: &Process, much: Much, threads: u64) -> Vec<f64> {
    const PUTS: u64 = 50_000;
    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        process.memory.store(BUMP_PTR_OFF, 0).unwrap();
        process.memory.store(HEAP_LIMIT_OFF, LOG_BYTES).unwrap();
        let start = Arc::new(Barrier::new(threads as usize));
        let put = |i| {
            let (process, start) = (process.clone(), start.clone());
            move || {
                let bytes = vec![7; UNIT as usize];
                start.wait();
                let start = BootClock.now_ns();
                for id in 0..PUTS {
                    assert!(process.put(much, id << 8 | i, &bytes));
                }
                (BootClock.now_ns() - start) as f64 / PUTS as f64
            }
        };
        let workers: Vec<_> = (0..threads).map(|i| spawn_named("put", put(i)).unwrap()).collect();
        times.extend(workers.into_iter().map(|worker| worker.join().unwrap()));
    }
    times
}

/// Nanoseconds per object of the owner's accept, then of its eviction, `batch` objects at a time,
/// put by another thread.
fn owner(batch: u64) -> (Vec<f64>, Vec<f64>) {
    let (process, mut log) = world();
    let (mut accepts, mut evictions) = (Vec::new(), Vec::new());
    let turns = (3 * LOG_BYTES / UNIT / batch).clamp(ROUNDS as u64, 4000);
    for turn in 0..turns {
        let producer = process.clone();
        let put = move || {
            (0..batch).for_each(|id| assert!(producer.put(Much::Header, turn << 32 | id, &[])));
        };
        spawn_named("put", put).unwrap().join().unwrap();
        let start = BootClock.now_ns();
        assert_eq!(log.accept(start, &mut Nobody).unwrap(), batch);
        accepts.push((BootClock.now_ns() - start) as f64 / batch as f64);
        let start = BootClock.now_ns();
        let evicted = log.retire_ahead(start, &mut Nobody).unwrap();
        log.restart_quarantines(start);
        log.advance(start, |_, _| true).unwrap();
        if evicted > 0 {
            evictions.push((BootClock.now_ns() - start) as f64 / evicted as f64);
        }
    }
    (accepts, evictions)
}

/// Nanoseconds of an accept that finds nothing, after some objects.
fn idle() -> Vec<f64> {
    const CALLS: u64 = 10_000;
    let (process, mut log) = world();
    (0..100).for_each(|id| assert!(process.put(Much::Header, id, &[])));
    log.accept(0, &mut Nobody).unwrap();
    let round = |_| {
        let start = BootClock.now_ns();
        (0..CALLS).for_each(|_| assert_eq!(log.accept(start, &mut Nobody).unwrap(), 0));
        (BootClock.now_ns() - start) as f64 / CALLS as f64
    };
    (0..ROUNDS).map(round).collect()
}

fn main() {
    println!("{:<52} {:>8}", "ns, median (fastest to slowest round)", "");
    let (process, _) = world();
    show("put: claim and bookkeeping, 1 thread", puts(&process, Much::Claim, 1));
    show("put: claim and bookkeeping, each of 2 threads", puts(&process, Much::Claim, 2));
    show("put: and header and READY, 1 thread", puts(&process, Much::Header, 1));
    show("put: and header and READY, each of 2 threads", puts(&process, Much::Header, 2));
    show("put: and 4 KiB, 1 thread", puts(&process, Much::Whole, 1));
    show("4 KiB alone, 1 thread", puts(&process, Much::Copy, 1));
    drop(process);
    for batch in [64, 1024, 16384] {
        let (accepts, evictions) = owner(batch);
        show(&format!("accept, per object, {batch} in a drain"), accepts);
        show(&format!("evict and pass, per object, after {batch}"), evictions);
    }
    show("accept with nothing new", idle());
}
