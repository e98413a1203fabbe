//! A device log whose words are under the model checker: its owner, a whole put and a read, by the
//! production code. `log_claims`, `log_table` and `log_reuse` contain the tests.

use crate::segment::{BYTES, KEYS, Modelled};
use nkv_store::KeyId;
use nkv_store::device_log::{
    BUMP_PTR_OFF, ClaimStep, ClaimWrite, ControlLine, DeviceLog, Directory, Entry, HEAP_LIMIT_OFF,
    LogLayout, LogObject, LogPut, LogRules, OpenClaims,
};
use nkv_store::layout::{HEADER_BYTES, KEY_CHECK_OFF, OWNER_OFF, PUBLISH_OFF};
use nkv_store::object::{Expect, Reading};
use nkv_store::op::Op;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Bytes of a unit, and of every object.
pub const U: u64 = BYTES as u64;
const HEADER_BASE: u64 = 4096;
const LOG_BASE: u64 = 8192;

/// A directory of a few objects.
#[derive(Debug, Default)]
pub struct Index(pub BTreeMap<KeyId, LogObject>);

impl Directory for Index {
    fn contains(&self, key: &KeyId) -> bool {
        self.0.contains_key(key)
    }
    fn insert(&mut self, object: &LogObject) {
        self.0.insert(object.key, *object);
    }
    fn remove(&mut self, key: &KeyId, _slot: u32, _epoch: u32) {
        self.0.remove(key);
    }
}

/// The segment as every party sees it.
#[derive(Debug, Clone)]
pub struct Segment {
    pub memory: Arc<Modelled>,
    pub layout: LogLayout,
}

/// The owner of a log.
pub struct Owner {
    pub segment: Segment,
    pub log: DeviceLog,
    pub index: Index,
}

/// An entry of a table of open claims, under the model checker.
#[derive(Debug)]
pub struct Modeled(loom::sync::atomic::AtomicU64);

impl Entry for Modeled {
    fn load(&self, order: Ordering) -> u64 {
        self.0.load(order)
    }
    fn store(&self, value: u64, order: Ordering) {
        self.0.store(value, order);
    }
    fn exchange(&self, expect: u64, new: u64, done: Ordering, failed: Ordering) -> bool {
        self.0.compare_exchange(expect, new, done, failed).is_ok()
    }
}

/// A table of so many entries.
pub fn table(entries: usize) -> Arc<OpenClaims<Modeled>> {
    let entries = (0..entries).map(|_| Modeled(loom::sync::atomic::AtomicU64::new(0)));
    Arc::new(OpenClaims::with(entries.collect(), nkv_store::device_log::Landing::InCall))
}

/// A fresh log of so many units, of which these slots, both control words and the first and last
/// word of their payloads are modelled.
pub fn log(units: u64, slots: &[u64]) -> Owner {
    let header = [0, 16, PUBLISH_OFF, OWNER_OFF, KEY_CHECK_OFF];
    let of_slot = |slot: &u64| {
        let (at, payload) = (HEADER_BASE + HEADER_BYTES * slot, LOG_BASE + U * slot);
        header.map(move |word| at + word).into_iter().chain([payload, payload + U - 8])
    };
    let watched = slots.iter().flat_map(of_slot).chain([HEAP_LIMIT_OFF, BUMP_PTR_OFF]);
    let memory = Arc::new(Modelled::new(LOG_BASE + units * U, watched, None));
    let layout = LogLayout::new(LOG_BASE, units * U, U, HEADER_BASE).unwrap();
    let rules = LogRules::with_a_quarter_free(0, 0);
    let log = DeviceLog::fresh(memory.clone(), layout, rules, Arc::default()).unwrap();
    Owner { segment: Segment { memory, layout }, log, index: Index::default() }
}

pub fn key(name: u64) -> KeyId {
    KEYS.id(&name.to_le_bytes())
}

/// The payload of an object: its number in every watched word.
pub fn payload(name: u64, bytes: u64) -> Vec<u8> {
    let mut payload = vec![0; bytes as usize];
    for unit in payload.chunks_mut(U as usize) {
        for at in [0, U as usize - 8] {
            unit[at..at + 8].copy_from_slice(&name.to_ne_bytes());
        }
    }
    payload
}

impl Segment {
    pub fn run(&self, ops: &mut [Op<'_>]) {
        for op in ops {
            op.run(self.memory.as_ref()).unwrap();
        }
    }

    pub fn line(&self) -> ControlLine {
        let mut line = ControlLine::unread();
        line.read().run(self.memory.as_ref()).unwrap();
        line
    }

    pub fn put_of(&self, name: u64, bytes: u64) -> LogPut {
        LogPut::new(self.layout, key(name), 4096, bytes).unwrap()
    }

    pub fn fetch_add(&self, put: &LogPut) -> u64 {
        let mut op = put.fetch_add();
        op.run(self.memory.as_ref()).unwrap();
        let Op::FetchAdd { old, .. } = op else { unreachable!() };
        old
    }

    pub fn write(&self, write: &ClaimWrite, name: u64, bytes: u64) {
        let (object, payload) = (write.publication(), payload(name, bytes));
        let mut ops = object.whole(&payload);
        self.run(&mut ops);
        assert_eq!(object.took(&ops), Ok(()));
    }

    /// A put of one unit that reads the limit once: its slot, or none if there was no room.
    pub fn put(&self, name: u64) -> Option<u32> {
        self.put_bytes(name, U)
    }

    pub fn put_bytes(&self, name: u64, bytes: u64) -> Option<u32> {
        let put = self.put_of(name, bytes);
        put.room(&self.line())?;
        let claim = put.claimed(self.fetch_add(&put));
        let ClaimStep::Write(write) = claim.next(self.line().heap_limit()) else {
            panic!("it saw room, and was alone in seeing it");
        };
        self.write(&write, name, bytes);
        Some(write.slot.0)
    }

    /// A strict read of one unit's object by location: the copy, if it may be accepted.
    pub fn read(&self, slot: u32, epoch: u32, name: u64) -> Option<Vec<u8>> {
        self.read_bytes((slot, epoch), name, U)
    }

    pub fn read_bytes(&self, at: (u32, u32), name: u64, bytes_total: u64) -> Option<Vec<u8>> {
        let (slot, epoch) = (at.0, Some(at.1));
        let payload_base = LOG_BASE + u64::from(slot) * U;
        let expect = Expect { key: Some(key(name)), epoch, payload_base, bytes_total };
        let mut reading = Reading::new(self.layout.header_off(slot), expect);
        let mut copy = vec![0; bytes_total as usize];
        self.run(&mut reading.chain(&mut copy));
        reading.judge(&self.layout.region()).is_ok().then_some(copy)
    }
}

impl Owner {
    /// Puts and accepts objects of one unit.
    pub fn fill(&mut self, names: impl IntoIterator<Item = u64>) {
        names.into_iter().for_each(|name| self.add(name, U));
    }

    /// Puts and accepts one object.
    pub fn add(&mut self, name: u64, bytes: u64) {
        self.segment.put_bytes(name, bytes).unwrap();
        assert_eq!(self.log.accept(0, &mut self.index).unwrap(), 1);
    }

    /// Retires ahead of demand; without waiting for time.
    pub fn make_room(&mut self, unpinned: impl Fn(u32, u32) -> bool) -> u64 {
        self.log.retire_ahead(0, &mut self.index).unwrap();
        self.log.restart_quarantines(0);
        self.log.advance(0, unpinned).unwrap()
    }
}
