//! The machine below a simulated process: segments by name on its host, and the data plane between
//! hosts. The program uses a machine through `nkv_actors::machine::Machine`; only that trait is
//! simulated.

use crate::data::{AgentEndpoint, SimAgent, SimVerbs, Wire, WireProfile};
use crate::dice::Dice;
use crate::ledger::Ledger;
use crate::memory::{ClaimTrap, SimMemory, StallInjection, StallProfile};
use crate::net::Net;
use crate::oracle::Watch;
use crate::process::Pid;
use crate::stack::{self, StackfulFuture};
use nkv::Credentials;
use nkv_actors::machine::{AgentConfig, Connected, DataAgent, Machine, NewSegment, SegmentKind};
use nkv_store::shm::Allocation;
use nkv_store::{Heap, Memory, SegmentName, StoreError, Stripes};
use nkv_transport::wire::BoxFuture;
use nkv_transport::{TransportError, Verbs};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

#[derive(Debug)]
struct Shared {
    // By host and file name.
    segments: BTreeMap<(usize, String), Arc<SimMemory>>,
    // Made, and not served yet.
    fresh: Vec<Arc<SimMemory>>,
    // Watches of segments, by incarnation.
    watches: BTreeMap<u64, Arc<Watch>>,
    agents: BTreeMap<SocketAddr, AgentEndpoint>,
    next_port: u16,
    dice: Dice,
}

/// All machines of one run. Clones are the same ones.
#[derive(Debug, Clone)]
pub struct Machines {
    shared: Arc<Mutex<Shared>>,
    net: Net,
    ledger: Arc<Ledger>,
    hiccups: StallProfile,
    wire_profile: WireProfile,
    kind: Arc<AtomicBool>,
    pub trap: Arc<ClaimTrap>,
}

impl Machines {
    pub fn new(
        net: Net,
        ledger: Arc<Ledger>,
        hiccups: StallProfile,
        wire_profile: WireProfile,
        dice: Dice,
    ) -> Self {
        let shared = Shared {
            segments: BTreeMap::new(),
            fresh: Vec::new(),
            watches: BTreeMap::new(),
            agents: BTreeMap::new(),
            next_port: 40_000,
            dice,
        };
        let (kind, trap) = (Arc::default(), Arc::default());
        Self {
            shared: Arc::new(Mutex::new(shared)),
            net,
            ledger,
            hiccups,
            wire_profile,
            kind,
            trap,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From here on nothing is lost, and no thread is delayed.
    pub fn be_kind(&self) {
        self.kind.store(true, Ordering::Relaxed);
    }

    /// The watch over the segment of an incarnation.
    pub fn watch(&self, incarnation: u64) -> Option<Arc<Watch>> {
        self.lock().watches.get(&incarnation).cloned()
    }

    /// The machine as seen by a process of this host; `master`: it runs the master.
    pub fn of(&self, pid: Pid, host: usize, master: bool) -> SimMachine {
        SimMachine { machines: self.clone(), pid, host, master }
    }
}

/// See the file's first paragraph.
#[derive(Debug, Clone)]
pub struct SimMachine {
    machines: Machines,
    pid: Pid,
    host: usize,
    master: bool,
}

/// Removes a segment's name with its owner.
struct Name {
    machines: Machines,
    called: (usize, String),
}

impl Drop for Name {
    fn drop(&mut self) {
        let gone = self.machines.lock().segments.remove(&self.called);
        drop(gone);
    }
}

impl Machine for SimMachine {
    fn start_task(&self, work: Pin<Box<dyn Future<Output = ()>>>) {
        tokio::task::spawn_local(StackfulFuture::new(work));
    }

    fn boot_id(&self) -> u64 {
        0xb007 + self.host as u64
    }

    fn pid(&self) -> u32 {
        self.pid
    }

    fn create(
        &self,
        kind: SegmentKind<'_>,
        bytes: u64,
        _: Allocation,
    ) -> Result<NewSegment, StoreError> {
        let name = if let SegmentKind::Shared(name) = kind { Some(name) } else { None };
        let file_name = name.map(SegmentName::file_name);
        let called = (self.host, file_name.clone().unwrap_or_default());
        let watch = Arc::new(Watch::new(self.machines.ledger.clone()));
        let mut shared = self.machines.lock();
        let dice = shared.dice.fork();
        let (kind, trap) = (self.machines.kind.clone(), self.machines.trap.clone());
        let stalls = StallInjection::new(self.machines.hiccups, kind, trap, dice);
        let memory = Arc::new(SimMemory::new(&called.1, bytes, watch, stalls)?);
        let name = name.map(|_| {
            shared.segments.insert(called.clone(), memory.clone());
            let machines = self.machines.clone();
            Box::new(Name { machines, called }) as Box<dyn Send + Sync>
        });
        shared.fresh.push(memory.clone());
        Ok(NewSegment { memory, file_name, name, payload: None })
    }

    fn attach(&self, file_name: &str) -> Result<Arc<dyn Memory>, StoreError> {
        let called = (self.host, file_name.to_string());
        let there = self.machines.lock().segments.get(&called).cloned();
        let gone = || StoreError::BadSegment(format!("{file_name} is not there"));
        there.map(|m| m as Arc<dyn Memory>).ok_or_else(gone)
    }

    fn prefault(&self, _: &str) {}

    fn rest(&self, pause: Duration) {
        // Only a client's thread can wait: no other part of a process may be stopped alone.
        if stack::is_client() {
            stack::rest(pause);
        }
    }

    fn available(&self) -> u64 {
        0
    }

    fn remove_socket(&self, _: &Path) {}

    fn serve(&self, what: AgentConfig) -> Result<Box<dyn DataAgent>, TransportError> {
        let heap = Heap::open(what.memory.clone())?;
        let incarnation = what.incarnation;
        let mut shared = self.machines.lock();
        let it = |m: &Arc<SimMemory>| std::ptr::addr_eq(Arc::as_ptr(m), Arc::as_ptr(&what.memory));
        if let Some(i) = shared.fresh.iter().position(it) {
            let watch = shared.fresh.swap_remove(i).watch().clone();
            watch.formatted(&heap);
            shared.watches.insert(incarnation, watch);
        }
        self.machines.ledger.home(incarnation, self.pid, self.master);
        shared.next_port += 1;
        let at = SocketAddr::new(what.at.ip(), shared.next_port);
        let (machines, dice) = (self.machines.clone(), shared.dice.fork());
        let wire = Wire::new(machines.wire_profile, machines.kind.clone(), dice);
        let (agent, endpoint) = SimAgent::start(at, self.host, what, &machines.net, wire);
        shared.agents.insert(at, endpoint);
        drop(shared);
        Ok(Box::new(agent))
    }

    fn connect(
        &self,
        at: &str,
        incarnation: u64,
        _: &Credentials,
        _: Stripes,
    ) -> BoxFuture<'static, Result<Connected, TransportError>> {
        let endpoint = at.parse().ok().and_then(|at| self.machines.lock().agents.get(&at).cloned());
        let (net, wire_profile, host) =
            (self.machines.net.clone(), self.machines.wire_profile, self.host);
        let (dice, at) = (self.machines.lock().dice.fork(), at.to_string());
        let wire = Wire::new(wire_profile, self.machines.kind.clone(), dice);
        Box::pin(async move {
            let gone = |why: &str| TransportError::Disconnected(format!("{at}: {why}"));
            let endpoint = endpoint.ok_or_else(|| gone("nobody listens there"))?;
            tokio::time::sleep(net.delay(host, endpoint.host) + net.delay(endpoint.host, host))
                .await;
            if !net.is_open(host, endpoint.host) || !net.is_open(endpoint.host, host) {
                tokio::time::sleep(wire_profile.connect).await;
                return Err(gone("no answer"));
            }
            if endpoint.incarnation != incarnation || !endpoint.is_served() {
                return Err(gone("another segment is served there"));
            }
            let verbs = SimVerbs::new(net, host, endpoint, wire);
            let alive = verbs.alive();
            Ok((Arc::new(verbs) as Arc<dyn Verbs>, alive))
        })
    }
}
