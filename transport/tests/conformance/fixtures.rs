//! A segment, the target's own access to it, and a handle to it, per transport.

use nkv_store::memory::SplitMemory;
use nkv_store::shm;
use nkv_store::testkit::Unaddressable;
use nkv_store::{AnonMemory, Memory, Stripes, random_u64};
use nkv_transport::access::OpenAccess;
use nkv_transport::wire::auth::{Credentials, Guard, Secret};
use nkv_transport::{AgentLimits, Alive, MappedVerbs, TcpAgent, TcpOptions, TcpVerbs, Verbs};
use std::sync::Arc;

/// Room for twice the largest operation of the suite.
pub const SEGMENT_BYTES: u64 = 40 << 20;
/// Any token: access is open here.
pub const TOKEN: u64 = 0xfeed;

/// The inputs of a property test.
pub struct Fixture {
    /// The handle under test.
    pub verbs: Arc<dyn Verbs>,
    /// The target memory, as its owner accesses it.
    pub memory: Arc<dyn Memory>,
    /// The handle's flag.
    pub alive: Alive,
    /// Marks the owner as dead.
    pub kill: Box<dyn FnOnce() + Send>,
    /// Values that must live as long.
    pub keep: Vec<Box<dyn std::any::Any>>,
}

/// Even operations hardly larger than a header are cut.
fn stripes() -> Stripes {
    Stripes::new(4, 0)
}

pub fn local() -> Fixture {
    over_loads(anonymous(), Stripes::NONE)
}

pub fn local_striped() -> Fixture {
    over_loads(anonymous(), stripes())
}

fn anonymous() -> Arc<dyn Memory> {
    Arc::new(AnonMemory::new(SEGMENT_BYTES).unwrap())
}

fn over_loads(memory: Arc<dyn Memory>, stripes: Stripes) -> Fixture {
    let alive = Alive::new();
    let verbs = MappedVerbs::local(memory.clone(), alive.clone()).with_stripes(stripes);
    let verbs = Arc::new(verbs);
    let dies = alive.clone();
    Fixture { verbs, memory, alive, kill: Box::new(move || dies.mark_dead()), keep: vec![] }
}

pub fn shm() -> Fixture {
    // A separate folder below /dev/shm: the suite must not see segments of a running node.
    let dir = tempfile::tempdir_in(shm::SHM_DIR).unwrap();
    let name =
        shm::SegmentName { job: "conformance".to_string(), rank: 0, incarnation: random_u64() };
    let owner = shm::create_in(dir.path(), &name, SEGMENT_BYTES, shm::Allocation::LATER).unwrap();
    let mapped = shm::attach_in(dir.path(), owner.file_name(), false).unwrap();
    let alive = Alive::new();
    let verbs = Arc::new(MappedVerbs::shm(mapped, alive.clone()));
    let dies = alive.clone();
    Fixture {
        verbs,
        memory: Arc::new(owner),
        alive,
        kill: Box::new(move || dies.mark_dead()),
        keep: vec![Box::new(dir)],
    }
}

pub fn tcp() -> Fixture {
    over_tcp(Arc::new(AnonMemory::new(SEGMENT_BYTES).unwrap()), Stripes::NONE, None)
}

pub fn tcp_striped() -> Fixture {
    over_tcp(Arc::new(AnonMemory::new(SEGMENT_BYTES).unwrap()), stripes(), None)
}

/// Between two ends that share a secret: heads and small payloads have tags.
pub fn tcp_authenticated() -> Fixture {
    let secret = Secret::new(b"a secret of both ends", "test").unwrap();
    let credentials = Credentials::of_client("job", Some(secret));
    let memory = Arc::new(AnonMemory::new(SEGMENT_BYTES).unwrap());
    over_tcp(memory, stripes(), Some(credentials))
}

/// An agent whose memory the CPU cannot address, as VRAM: everything is staged.
pub fn tcp_unaddressable() -> Fixture {
    over_tcp(Arc::new(Unaddressable(AnonMemory::new(SEGMENT_BYTES).unwrap())), Stripes::NONE, None)
}

/// A segment whose payload is in such a memory, behind control words that the CPU can address.
pub fn tcp_split() -> Fixture {
    over_tcp(split(), Stripes::NONE, None)
}

/// The same, mapped by its reader.
pub fn local_split() -> Fixture {
    over_loads(split(), Stripes::NONE)
}

fn split() -> Arc<dyn Memory> {
    // Not at a border of any tested operation, so that some cross it.
    const CONTROL_BYTES: u64 = SEGMENT_BYTES / 2 + 4096;
    let control = Arc::new(AnonMemory::new(CONTROL_BYTES).unwrap());
    let payload = AnonMemory::new(SEGMENT_BYTES - CONTROL_BYTES).unwrap();
    Arc::new(SplitMemory::new(control, Arc::new(Unaddressable(payload))).unwrap())
}

fn over_tcp(
    memory: Arc<dyn Memory>,
    stripes: Stripes,
    credentials: Option<Credentials>,
) -> Fixture {
    let guard = credentials.clone().map(|c| Arc::new(Guard::new(c)));
    let incarnation = random_u64();
    // A request limit below the largest operation, so that splitting is tested.
    let limits = AgentLimits { max_request_bytes: 5_000_001, ..AgentLimits::default() };
    let access = Arc::new(OpenAccess);
    let at = "127.0.0.1:0".parse().unwrap();
    let agent =
        TcpAgent::start(at, memory.clone(), incarnation, "job", access, guard, limits).unwrap();
    let to = agent.local_addr().to_string();
    let options = TcpOptions { credentials, stripes, ..TcpOptions::default() };
    let verbs = TcpVerbs::connect(&to, incarnation, "job", options).unwrap();
    let alive = verbs.alive();
    Fixture {
        verbs: Arc::new(verbs),
        memory,
        alive,
        kill: Box::new(move || agent.stop()),
        keep: vec![],
    }
}

/// Through a device of this host to itself, or to another device.
#[cfg(feature = "rdma")]
pub fn rdma() -> Fixture {
    over_devices(1)
}

/// Over several pairs: large operations are cut, and batches of one call use different ones.
#[cfg(feature = "rdma")]
pub fn rdma_spread() -> Fixture {
    over_devices(3)
}

#[cfg(feature = "rdma")]
fn over_devices(pairs: usize) -> Fixture {
    use nkv_transport::fabric::{FabricConfig, Part, SegmentBounds};
    use nkv_transport::rdma;
    let mut devices: Vec<String> = rdma::devices()
        .expect("run it by scripts/rdma-test")
        .into_iter()
        .map(|device| device.name)
        .collect();
    let memory: Arc<dyn Memory> = Arc::new(AnonMemory::new(SEGMENT_BYTES).unwrap());
    let mut open = |turned: bool| {
        if turned {
            devices.reverse();
        }
        let config = FabricConfig { devices: devices.clone(), gid_index: None, pairs };
        rdma::open(&config).expect("a device that works")
    };
    // If there are two, each is connected to the other.
    let (fabric, other) = (open(false), open(true));
    // In the middle of the tested range, so that an operation may cross it.
    let exported = fabric.export(memory.clone(), &Part::halves(SEGMENT_BYTES), false).unwrap();
    let offering = other.offer().unwrap();
    let (served, answer) = exported.accept(&offering.offer()).unwrap();
    let alive = Alive::new();
    let verbs =
        offering.connect(&answer, SegmentBounds::halves(SEGMENT_BYTES), alive.clone()).unwrap();
    let kill = Box::new(move || served.sever());
    Fixture { verbs, memory, alive, kill, keep: vec![Box::new(exported)] }
}
