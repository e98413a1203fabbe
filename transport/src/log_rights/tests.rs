//! What a producer may do in the log over tcp, one statement each, without a socket. `claims` tests
//! what is permitted, `ends` how claims and producers end, `races` concurrent steps.

mod claims;
mod ends;
mod races;

use super::*;
use nkv_store::device_log::{ClaimStep, DeviceLog};
use nkv_store::device_log::{ClaimWrite, Directory, LogCounts, LogObject, LogPut, LogRules};
use nkv_store::layout::{KEY_CHECK_OFF, word};
use nkv_store::object::writing;
use nkv_store::op::Op;
use nkv_store::{AnonMemory, KeyHasher};
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes of a unit of the test logs.
const U: u64 = 128;
const LOG_BASE: u64 = 8192;
const HEADER_BASE: u64 = 4096;
const RULES: LogRules = LogRules::with_a_quarter_free(10, 10);

/// One connection: a request at a time, and how often it was cut.
#[derive(Debug, Default)]
struct Line(AtomicUsize);

impl Cut for Line {
    fn cut(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

const KEYS: KeyHasher = KeyHasher::new([7; 16]);

#[derive(Debug, Default)]
struct Index(HashMap<KeyId, LogObject>);

impl Directory for Index {
    fn contains(&self, key: &KeyId) -> bool {
        self.0.contains_key(key)
    }
    fn insert(&mut self, object: &LogObject) {
        self.0.insert(object.key, *object);
    }
    fn remove(&mut self, key: &KeyId, slot: u32, epoch: u32) {
        self.0.retain(|k, o| k != key || (o.slot, o.epoch) != (slot, epoch));
    }
}

/// A log with its owner, and one producer's rights in it.
struct World {
    memory: Arc<dyn Memory>,
    layout: LogLayout,
    log: DeviceLog,
    index: Index,
    rights: Arc<LogRights>,
}

/// After the headers.
fn log_base(units: u64) -> u64 {
    LOG_BASE.max(HEADER_BASE + units * 64)
}

fn world(units: u64) -> World {
    let memory = Arc::new(AnonMemory::new(log_base(units) + units * U).unwrap());
    world_of(memory, units)
}

fn world_of(memory: Arc<dyn Memory>, units: u64) -> World {
    let layout = LogLayout::new(log_base(units), units * U, U, HEADER_BASE).unwrap();
    let log = DeviceLog::fresh(memory.clone(), layout, RULES, Arc::default()).unwrap();
    let rights = Arc::new(LogRights::new(layout, memory.clone()));
    World { memory, layout, log, index: Index::default(), rights }
}

/// A connection, as the agent uses it.
fn line() -> (Arc<Line>, Arc<dyn Cut>) {
    let line = Arc::new(Line::default());
    (line.clone(), line)
}

fn intent(op: &Op<'_>) -> Option<Intent> {
    Some(match *op {
        Op::Read { .. } | Op::Flush => return None,
        Op::ReadToDevice { .. } | Op::WriteFromDevice { .. } => return None,
        Op::Write { offset, src } => Intent::Write { offset, len: src.len() as u64 },
        Op::Store { offset, value } => Intent::Store { offset, value },
        Op::FetchAdd { offset, add, .. } => Intent::FetchAdd { offset, add },
        Op::CompareSwap { offset, expect, new, .. } => Intent::CompareSwap { offset, expect, new },
    })
}

/// A request in its steps, as the agent's executor makes them.
struct Request<'a> {
    world: &'a World,
    cut: &'a Arc<dyn Cut>,
}

impl Request<'_> {
    fn check(&self, ops: &[Op<'_>]) -> Result<(), String> {
        ops.iter().filter_map(intent).try_for_each(|i| self.world.rights.check(&i, self.cut))
    }

    fn step(&self, op: &mut Op<'_>) -> Result<(), String> {
        let bytes: &[u8] = match op {
            Op::Write { src, .. } if src.len() <= crate::access::SEEN_BYTES => src,
            _ => &[],
        };
        let intent = intent(op);
        if let Some(intent) = &intent {
            self.world.rights.starts(intent, bytes, self.cut)?;
        }
        op.run(self.world.memory.as_ref()).unwrap();
        let found = match op {
            Op::FetchAdd { old, .. } | Op::CompareSwap { old, .. } => *old,
            _ => 0,
        };
        if let Some(intent) = &intent {
            self.world.rights.done(intent, found, self.cut);
        }
        Ok(())
    }
}

impl Drop for Request<'_> {
    fn drop(&mut self) {
        self.world.rights.leave(self.cut);
    }
}

impl World {
    fn request<'a>(&'a self, cut: &'a Arc<dyn Cut>) -> Request<'a> {
        Request { world: self, cut }
    }

    /// A whole request over a connection of its own.
    fn post(&self, ops: &mut [Op<'_>]) -> Result<(), String> {
        let (_, cut) = line();
        let request = self.request(&cut);
        request.check(ops)?;
        ops.iter_mut().try_for_each(|op| request.step(op))
    }

    fn refused(&self, op: Op<'_>) -> String {
        let before = self.bytes();
        let why = self.post(&mut [op]).unwrap_err();
        assert!(before == self.bytes(), "a refused request changed something");
        why
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.memory.len() as usize];
        self.memory.read(0, &mut bytes).unwrap();
        bytes
    }

    fn add(&self, n: u64) -> Result<u64, String> {
        let mut ops = [Op::FetchAdd { offset: BUMP_PTR_OFF, add: n, old: 0 }];
        self.post(&mut ops)?;
        let [Op::FetchAdd { old, .. }] = ops else { unreachable!() };
        Ok(old)
    }

    /// Claims so many bytes; returns what to do with the claim.
    fn claim(&self, name: u64, bytes: u64) -> ClaimStep {
        let key = KEYS.id(&name.to_le_bytes());
        let put = LogPut::new(self.layout, key, 4096, bytes).unwrap();
        let p = self.add(put.claim_bytes()).unwrap();
        put.claimed(p).next(self.memory.load(HEAP_LIMIT_OFF).unwrap())
    }

    fn start_write(&self, name: u64, bytes: u64) -> ClaimWrite {
        match self.claim(name, bytes) {
            ClaimStep::Write(write) => write,
            other => panic!("{other:?}"),
        }
    }

    fn header(&self, write: &ClaimWrite) -> u64 {
        self.layout.header_off(write.slot.0)
    }

    /// A whole put, accepted.
    fn put(&mut self, name: u64, bytes: u64) {
        let write = self.start_write(name, bytes);
        self.post(&mut write.publication().whole(&vec![name as u8; bytes as usize])).unwrap();
        assert_eq!(self.log.accept(0, &mut self.index).unwrap(), 1);
    }

    /// The oldest objects are retired, and the limit moves.
    fn make_room(&mut self) {
        self.log.retire_ahead(0, &mut self.index).unwrap();
        assert!(self.log.advance(10, |_, _| true).unwrap() > 0);
    }

    fn accept(&mut self) -> LogCounts {
        self.log.accept(0, &mut self.index).unwrap();
        self.log.counts()
    }
}
