//! The log, one statement each. `claims` tests a producer's decisions, `accept` what the owner
//! accepts, `room` eviction, `holes` the hole rule, `rebuild` an actor restart, `survivors` what is
//! copied, `table` the open claims, `model` random lives with everything at once.

mod accept;
mod claims;
mod holes;
mod model;
mod rebuild;
mod room;
mod survivors;
mod table;

use super::*;
use crate::key::{KEYS, KeyId};
use crate::memory::AnonMemory;
use crate::object::{Expect, Reading};
use crate::op::Op;
use open_claims::{IN_DOUBT, TAKEN};
use std::collections::{HashMap, HashSet};
use std::sync::atomic::Ordering;

/// Bytes of a unit of the test logs.
const U: u64 = 128;
const LOG_BASE: u64 = 8192;
const HEADER_BASE: u64 = 4096;
/// Quarantine in nanoseconds.
const Q: u64 = 1000;
const TTL: u64 = 5000;
const RULES: LogRules = LogRules::with_a_quarter_free(Q, TTL);

/// A directory that records its calls.
#[derive(Debug, Default)]
struct Index {
    objects: HashMap<KeyId, LogObject>,
    /// Keys for which `contains` returned true.
    refused: std::cell::RefCell<HashSet<KeyId>>,
    /// Slot and epoch of everything ever inserted.
    inserted: HashSet<(u32, u32)>,
    /// Broken on purpose: `contains` is always false.
    blind: bool,
}

impl Directory for Index {
    fn contains(&self, key: &KeyId) -> bool {
        let found = !self.blind && self.objects.contains_key(key);
        if found {
            self.refused.borrow_mut().insert(*key);
        }
        found
    }

    fn insert(&mut self, object: &LogObject) {
        self.inserted.insert((object.slot, object.epoch));
        self.objects.insert(object.key, *object);
    }

    fn remove(&mut self, key: &KeyId, slot: u32, epoch: u32) {
        if self.objects.get(key).is_some_and(|o| (o.slot, o.epoch) == (slot, epoch)) {
            self.objects.remove(key);
        }
    }
}

/// Entries taken, and those of them in doubt.
fn open_entries(claims: &OpenClaims) -> (usize, usize) {
    let words = claims.entries.iter().map(|entry| entry.load(Ordering::Relaxed));
    words.fold((0, 0), |(taken, doubt), word| {
        (taken + usize::from(word & TAKEN != 0), doubt + usize::from(word & IN_DOUBT != 0))
    })
}

/// Bytes settled with any outcome, since the log was formatted.
fn settled_bytes(c: &LogCounts) -> u64 {
    let sums = [
        c.accepted,
        c.found_retired,
        c.duplicates,
        c.stale_copies,
        c.skipped,
        c.abandoned,
        c.voided,
    ];
    c.before_bytes + sums.iter().map(|sum| sum.bytes).sum::<u64>()
}

/// A log of so many units, its owner, and its directory.
struct World {
    memory: Arc<dyn Memory>,
    layout: LogLayout,
    log: DeviceLog,
    index: Index,
    moves: Arc<Moves>,
}

fn layout(units: u64) -> LogLayout {
    LogLayout::new(LOG_BASE, units * U, U, HEADER_BASE).unwrap()
}

fn world(units: u64) -> World {
    let memory = Arc::new(AnonMemory::new(LOG_BASE + units * U).unwrap());
    world_of(memory, units, RULES)
}

fn world_of(memory: Arc<dyn Memory>, units: u64, rules: LogRules) -> World {
    let layout = layout(units);
    let moves = Arc::<Moves>::default();
    let log = DeviceLog::fresh(memory.clone(), layout, rules, moves.clone()).unwrap();
    World { memory, layout, log, index: Index::default(), moves }
}

fn key(name: u64) -> KeyId {
    KEYS.id(&name.to_le_bytes())
}

/// The payload of an object: its number in every byte.
fn payload(name: u64, bytes: u64) -> Vec<u8> {
    vec![name as u8; bytes as usize]
}

impl World {
    fn run(&self, ops: &mut [Op<'_>]) {
        for op in ops {
            op.run(self.memory.as_ref()).unwrap();
        }
    }

    fn line(&self) -> ControlLine {
        let mut line = ControlLine::unread();
        line.read().run(self.memory.as_ref()).unwrap();
        line
    }

    /// Claims for an object, whether or not there is room.
    fn claim(&self, name: u64, bytes: u64) -> Claim {
        let put = LogPut::new(self.layout, key(name), 4096, bytes).unwrap();
        let mut op = put.fetch_add();
        op.run(self.memory.as_ref()).unwrap();
        let Op::FetchAdd { old, .. } = op else { unreachable!() };
        put.claimed(old)
    }

    /// Claims, up to the point where the object can be written.
    fn place(&self, name: u64, bytes: u64) -> ClaimWrite {
        match self.claim(name, bytes).next(self.line().heap_limit()) {
            ClaimStep::Write(write) => write,
            other => panic!("{other:?}"),
        }
    }

    /// A whole put that finds room and does not cross the end of the log.
    fn put(&self, name: u64, bytes: u64) -> ClaimWrite {
        let write = self.place(name, bytes);
        self.publish(&write, name, bytes);
        write
    }

    fn publish(&self, write: &ClaimWrite, name: u64, bytes: u64) {
        let (object, payload) = (write.publication(), payload(name, bytes));
        let mut ops = object.whole(&payload);
        self.run(&mut ops);
        assert_eq!(object.took(&ops), Ok(()));
    }

    /// Puts and accepts so many objects of one unit, named from `first` on.
    fn fill(&mut self, first: u64, count: u64) {
        for name in first..first + count {
            self.put(name, U);
        }
        assert_eq!(self.log.accept(0, &mut self.index).unwrap(), count);
    }

    /// Retires for new room and lets the quarantine pass; returns the bytes that became claimable.
    fn make_room(&mut self, now_ns: u64) -> u64 {
        self.log.retire_ahead(now_ns, &mut self.index).unwrap();
        self.log.restart_quarantines(now_ns);
        self.log.advance(now_ns + Q, |_, _| true).unwrap()
    }

    /// A strict read of the directory's object of a key.
    fn get(&self, name: u64) -> Option<Vec<u8>> {
        self.read(self.index.objects.get(&key(name))?)
    }

    /// A strict read by location.
    fn read(&self, at: &LogObject) -> Option<Vec<u8>> {
        let expect = Expect {
            key: Some(at.key),
            epoch: Some(at.epoch),
            payload_base: at.object.payload_off(),
            bytes_total: at.object.bytes_total,
        };
        let mut reading = Reading::new(self.layout.header_off(at.slot), expect);
        let mut copy = vec![0; at.object.bytes_total as usize];
        self.run(&mut reading.chain(&mut copy));
        reading.judge(&self.layout.region()).is_ok().then_some(copy)
    }

    /// Every unit claimed is settled or not, and counted once [I13].
    fn check_counts(&self) {
        let settled = settled_bytes(&self.log.counts());
        assert_eq!(
            settled + self.log.unsettled_bytes().unwrap(),
            self.log.claimed_bytes().unwrap(),
            "{:?}",
            self.log
        );
    }
}
