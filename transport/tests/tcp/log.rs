//! The device log over tcp: producers claim and write through the agent, and a real owner accepts.
//! `work` tests success, `hostile` refusals, `ends` what a lost producer leaves, `appends` puts
//! that the agent makes.

mod appends;
mod ends;
mod hostile;
mod work;

use super::{INCARNATION, JOB, Raw, eventually};
use nkv_store::device_log::{
    Abandon, BUMP_PTR_OFF, ClaimStep, ClaimWrite, ControlLine, DeviceLog, Directory, LogLayout,
    LogObject, LogPut, LogRules,
};
use nkv_store::layout::PUBLISH_OFF;
use nkv_store::{AnonMemory, KeyHasher, KeyId, Memory, Stripes};
use nkv_transport::grants::Grants;
use nkv_transport::log_rights::LogRights;
use nkv_transport::{AgentLimits, Op, TcpAgent, TcpOptions, TcpVerbs, TransportError, Verbs};
use std::collections::HashMap;
use std::sync::Arc;

const HEADER_BASE: u64 = 4096;
/// Quarantine and claim TTL: there are no readers here, and holes are checked at once.
const RULES: LogRules = LogRules::with_a_quarter_free(0, 0);
/// Tokens of two producers.
const ONE: u64 = 0xa1;
const TWO: u64 = 0xb2;

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
        if self.0.get(key).is_some_and(|o| (o.slot, o.epoch) == (slot, epoch)) {
            self.0.remove(key);
        }
    }
}

/// An agent beside a segment with a log, its owner, and the rights of two producers.
struct Fixture {
    agent: TcpAgent,
    memory: Arc<AnonMemory>,
    grants: Arc<Grants>,
    layout: LogLayout,
    log: DeviceLog,
    index: Index,
    one: Arc<LogRights>,
    two: Arc<LogRights>,
}

fn rig(units: u64, unit: u64, limits: AgentLimits) -> Fixture {
    rig_with(units, unit, limits, |memory| memory)
}

/// With another memory for the agent than the segment's own.
fn rig_with(
    units: u64,
    unit: u64,
    limits: AgentLimits,
    double: impl FnOnce(Arc<dyn Memory>) -> Arc<dyn Memory>,
) -> Fixture {
    let log_base = HEADER_BASE + (units * 64).next_multiple_of(4096);
    let memory = Arc::new(AnonMemory::new(log_base + units * unit).unwrap());
    let layout = LogLayout::new(log_base, units * unit, unit, HEADER_BASE).unwrap();
    let log = DeviceLog::fresh(memory.clone(), layout, RULES, Arc::default()).unwrap();
    let grants = Arc::new(Grants::new());
    let [one, two] = [ONE, TWO].map(|token| {
        let rights = Arc::new(LogRights::new(layout, memory.clone()));
        grants.open_log(token, rights.clone());
        rights
    });
    let at = "127.0.0.1:0".parse().unwrap();
    let access = grants.clone();
    let of_agent = double(memory.clone());
    let agent = TcpAgent::start(at, of_agent, INCARNATION, JOB, access, None, limits).unwrap();
    Fixture { agent, memory, grants, layout, log, index: Index::default(), one, two }
}

impl Fixture {
    fn client(&self) -> Arc<TcpVerbs> {
        let to = self.agent.local_addr().to_string();
        Arc::new(TcpVerbs::connect(&to, INCARNATION, JOB, TcpOptions::default()).unwrap())
    }

    fn raw(&self) -> Raw {
        Raw::connect(self.agent.local_addr(), INCARNATION, JOB)
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.memory.len() as usize];
        self.memory.read(0, &mut bytes).unwrap();
        bytes
    }

    fn publish_word(&self, p: u64) -> u64 {
        let at = self.layout.header_off(self.layout.slot(p));
        self.memory.load(at + PUBLISH_OFF).unwrap()
    }

    /// What a strict read of an accepted object returns.
    fn payload_of(&self, name: u64) -> Vec<u8> {
        let object = &self.index.0[&key(name)];
        let mut bytes = vec![0; object.object.bytes_total as usize];
        self.memory.read(object.object.payload_off(), &mut bytes).unwrap();
        bytes
    }

    /// Fences a producer and settles what it left, as an owner does.
    fn end(&mut self, token: u64) {
        let rights = if token == ONE { &self.one } else { &self.two };
        assert!(self.grants.revoke(token));
        assert!(self.grants.wait_drained(token, nkv_pace::HANGS), "the fence hangs");
        let settled = rights.finish().unwrap();
        assert_eq!((settled.in_flight, settled.unknown, rights.open()), (0, 0, (0, 0)));
        for claim in settled.abandoned {
            self.log.abandon(claim).unwrap();
        }
        self.log.accept(0, &mut self.index).unwrap();
    }
}

fn key(name: u64) -> KeyId {
    KeyHasher::new([7; 16]).id(&name.to_le_bytes())
}

fn fill(name: u64, bytes: u64) -> Vec<u8> {
    (0..bytes).map(|i| (i as u8).wrapping_mul(31).wrapping_add(name as u8)).collect()
}

/// A claim over tcp, and where the limit was just before.
fn claim(
    verbs: &dyn Verbs,
    token: u64,
    layout: LogLayout,
    (name, bytes): (u64, u64),
) -> Result<ClaimStep, TransportError> {
    let put = LogPut::new(layout, key(name), 4096, bytes).unwrap();
    let p = verbs.fetch_add(token, BUMP_PTR_OFF, put.claim_bytes())?;
    let mut line = ControlLine::unread();
    verbs.post(0, &mut [line.read()])?;
    Ok(put.claimed(p).next(line.heap_limit()))
}

fn place(verbs: &dyn Verbs, token: u64, rig: &Fixture, name: u64, bytes: u64) -> ClaimWrite {
    match claim(verbs, token, rig.layout, (name, bytes)).unwrap() {
        ClaimStep::Write(placing) => placing,
        other => panic!("{other:?}"),
    }
}

fn refused<T: std::fmt::Debug>(r: Result<T, TransportError>) -> String {
    match r {
        Err(TransportError::Refused(why)) => why,
        other => panic!("not refused: {other:?}"),
    }
}
