//! Properties specific to tcp: tokens and fences, bad peers, limits, and how a client ends if its
//! agent does not answer.
#![expect(clippy::unwrap_used, reason = "a test says what went wrong by panicking")]

mod between;
mod ends;
mod fences;
mod find;
mod flushes;
mod hostile;
mod log;
mod raw;
mod stripes;
mod trust;
mod unproven;

use nkv_pace::HANGS_MS;
use nkv_store::arena::Extent;
use nkv_store::clock::{BootClock, Clock};
use nkv_store::{AnonMemory, Memory};
use nkv_transport::access::{Access, OpenAccess};
use nkv_transport::grants::{Grant, Grants};
use nkv_transport::{AgentLimits, TcpAgent, TcpOptions, TcpVerbs, TransportError};
use raw::Raw;
use std::sync::Arc;

const SEGMENT_BYTES: u64 = 8 << 20;
const INCARNATION: u64 = 0x1234_5678_9abc_def0;
const JOB: &str = "job-a";
const TOKEN: u64 = 0xfeed;
const GRANT: Grant =
    Grant { header_off: 4096, epoch: 7, extent: Extent { offset: 1 << 20, len: 4 << 20 } };

/// An agent beside a fresh segment.
struct Fixture {
    agent: TcpAgent,
    memory: Arc<AnonMemory>,
    grants: Arc<Grants>,
}

fn rig_with(limits: AgentLimits, open: bool) -> Fixture {
    let memory = Arc::new(AnonMemory::new(SEGMENT_BYTES).unwrap());
    let grants = Arc::new(Grants::new());
    grants.open(TOKEN, GRANT);
    let access: Arc<dyn Access> = if open { Arc::new(OpenAccess) } else { grants.clone() };
    let at = "127.0.0.1:0".parse().unwrap();
    let agent =
        TcpAgent::start(at, memory.clone(), INCARNATION, JOB, access, None, limits).unwrap();
    Fixture { agent, memory, grants }
}

/// Production's access: one open plan, [`GRANT`] under [`TOKEN`].
fn granted() -> Fixture {
    rig_with(AgentLimits::default(), false)
}

impl Fixture {
    fn client(&self) -> TcpVerbs {
        self.client_with(TcpOptions::default()).unwrap()
    }

    fn client_with(&self, opts: TcpOptions) -> Result<TcpVerbs, TransportError> {
        TcpVerbs::connect(&self.agent.local_addr().to_string(), INCARNATION, JOB, opts)
    }

    fn raw(&self) -> Raw {
        Raw::connect(self.agent.local_addr(), INCARNATION, JOB)
    }

    fn bytes(&self) -> Vec<u8> {
        let mut v = vec![0; SEGMENT_BYTES as usize];
        self.memory.read(0, &mut v).unwrap();
        v
    }

    fn is_untouched(&self) -> bool {
        self.bytes().iter().all(|b| *b == 0)
    }
}

/// Waits, bounded, until a condition is true.
fn eventually(what: &str, mut cond: impl FnMut() -> bool) {
    let clock = BootClock;
    let deadline = clock.now_ms() + HANGS_MS;
    while !cond() {
        assert!(clock.now_ms() < deadline, "it never came true that {what}");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}
