//! The machine interface of nodes and clients: memory that processes of one host share, the data
//! plane's agent, and connections to agents. [`OsMachine`] is the real one; a simulation provides
//! its own. It moves no payload and knows neither keys nor plans.

mod device;

use nkv_store::segment_layout::SegmentLayout;
use nkv_store::shm::{self, Allocation, SegmentName};
use nkv_store::threads::sleep_shortly;
use nkv_store::{AnonMemory, Memory, StoreError, Stripes};
use nkv_transport::fabric::{Fabric, FabricConfig};
use nkv_transport::grants::Grants;
use nkv_transport::tcp::{AgentLimits, TcpAgent, TcpCounters, TcpOptions, TcpVerbs};
use nkv_transport::wire::BoxFuture;
use nkv_transport::wire::auth::{Credentials, Guard};
use nkv_transport::{Alive, TransportError, Verbs};
use std::any::Any;
use std::fmt;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
#[cfg(feature = "rdma")]
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// A shorter rest is worth two system calls, so that it ends in time.
const SHORT_REST: Duration = Duration::from_micros(100);

/// A segment just made.
pub struct NewSegment {
    /// Its memory; stays mapped while anyone uses it.
    pub memory: Arc<dyn Memory>,
    /// The name by which other processes of this host attach to it; none if they cannot.
    pub file_name: Option<String>,
    /// Removes the name when it is dropped.
    pub name: Option<Box<dyn Send + Sync>>,
    /// Its payloads, if they are in a device that other processes can map.
    pub payload: Option<Arc<dyn DevicePayload>>,
}

/// Payloads in a device.
pub trait DevicePayload: Send + Sync + fmt::Debug {
    /// The device's id, the same in every process.
    fn uuid(&self) -> [u8; 16];

    /// A descriptor by which a process of this host maps them.
    ///
    /// # Errors
    /// Those of the driver.
    fn descriptor(&self) -> Result<OwnedFd, StoreError>;
}

impl NewSegment {
    /// A segment that other processes do not map.
    pub fn private(memory: Arc<dyn Memory>) -> Self {
        Self { memory, file_name: None, name: None, payload: None }
    }
}

/// Where a segment is made.
#[derive(Debug, Clone, Copy)]
pub enum SegmentKind<'a> {
    /// In shared memory of this name.
    Shared(&'a SegmentName),
    /// In memory of this process.
    Private,
    /// Its payloads in the memory of a device, what precedes them in shared memory.
    Device {
        /// The name of that.
        name: &'a SegmentName,
        /// Number of the device.
        ordinal: u32,
        /// Where the payloads begin.
        payloads: u64,
    },
}

/// Configuration of an agent.
#[derive(Debug)]
pub struct AgentConfig {
    /// Where it listens; port 0 is any.
    pub at: SocketAddr,
    /// The segment.
    pub memory: Arc<dyn Memory>,
    /// Its incarnation: a client names the one it means.
    pub incarnation: u64,
    /// The job.
    pub job: String,
    /// Which token grants which writes.
    pub grants: Arc<Grants>,
    /// Authenticates its connections.
    pub guard: Arc<Guard>,
    /// Its bounds.
    pub limits: AgentLimits,
}

/// A running agent.
pub trait DataAgent: Send + Sync + fmt::Debug {
    /// Where it listens.
    fn local_addr(&self) -> SocketAddr;
    /// What it has done.
    fn counters(&self) -> Arc<TcpCounters>;
    /// Ends it: no byte is placed afterwards. Idempotent.
    fn stop(&self);
}

/// Verbs to a segment through its agent, and whether its owner is still alive.
pub type Connected = (Arc<dyn Verbs>, Alive);

/// See the file's first paragraph.
pub trait Machine: Send + Sync + fmt::Debug {
    /// Equal on processes that can share memory.
    fn boot_id(&self) -> u64;

    /// The id of this process, for display.
    fn pid(&self) -> u32;

    /// Makes a segment of `bytes` zero bytes. Blocks: with `prefault` it takes up to seconds per
    /// GiB. Memory of this process alone and of a GPU is allocated as it comes.
    fn create(
        &self,
        kind: SegmentKind<'_>,
        bytes: u64,
        allocation: Allocation,
    ) -> Result<NewSegment, StoreError>;

    /// Whether this process can use the GPU with this id. It opens none.
    ///
    /// # Errors
    /// Why not, and what to do about it.
    fn can_use(&self, _uuid: [u8; 16]) -> Result<(), StoreError> {
        Err(StoreError::Device("this machine has no GPU".to_string()))
    }

    /// Attaches to a segment of another process of this host.
    fn attach(&self, file_name: &str) -> Result<Arc<dyn Memory>, StoreError>;

    /// Attaches to a segment by a descriptor that its owner passed, if its name does not resolve
    /// here.
    fn adopt(&self, file_name: &str, _: OwnedFd) -> Result<Arc<dyn Memory>, StoreError> {
        Err(StoreError::BadSegment(format!("this machine maps {file_name} by its name alone")))
    }

    /// Adds the payloads of a segment, which are in the GPU with this id, to what precedes them.
    /// Blocks: to open a GPU takes up to seconds.
    ///
    /// # Errors
    /// If this process cannot use that GPU, or the sizes do not fit.
    fn with_payload(
        &self,
        _control: Arc<dyn Memory>,
        _uuid: [u8; 16],
        _fd: OwnedFd,
        _layout: &SegmentLayout,
    ) -> Result<Arc<dyn Memory>, StoreError> {
        Err(StoreError::Device("this machine has no GPU".to_string()))
    }

    /// Registers this process's mapping of host memory with the GPU of this number, so that copies
    /// from and to GPUs go at full rate and kernels can access it, until what is returned is
    /// dropped. Blocks: takes 0.1 to 0.3 s/GiB.
    ///
    /// # Errors
    /// If there is no such GPU, or its driver refuses.
    fn pin(
        &self,
        _memory: Arc<dyn Memory>,
        _ordinal: u32,
    ) -> Result<Box<dyn Any + Send + Sync>, StoreError> {
        Err(StoreError::Device("this machine has no GPU".to_string()))
    }

    /// Touches every page of a segment that this process is attached to, in the background. Only
    /// saves page faults later.
    fn prefault(&self, file_name: &str);

    /// Blocks the calling thread for a while, in a verb that waits.
    fn rest(&self, pause: Duration);

    /// Starts a task of a simulated process, in which verbs may block as on a thread of its own.
    fn start_task(&self, work: Pin<Box<dyn Future<Output = ()>>>) {
        tokio::task::spawn_local(work);
    }

    /// Bytes of memory that are available; 0: unknown.
    fn available(&self) -> u64;

    /// Removes the file of a unix socket, if it is there.
    fn remove_socket(&self, path: &Path);

    /// Starts an agent beside a segment.
    fn serve(&self, what: AgentConfig) -> Result<Box<dyn DataAgent>, TransportError>;

    /// The RDMA devices of this machine, opened once per configuration and shared.
    ///
    /// # Errors If there are none, or they cannot be used; the text has the reason.
    fn fabric(&self, _: &FabricConfig) -> Result<Arc<dyn Fabric>, TransportError> {
        Err(TransportError::Protocol("this machine has no RDMA devices".to_string()))
    }

    /// Connects to the agent of an incarnation; large reads and writes are cut into these stripes.
    fn connect(
        &self,
        at: &str,
        incarnation: u64,
        credentials: &Credentials,
        stripes: Stripes,
    ) -> BoxFuture<'static, Result<Connected, TransportError>>;
}

/// The machine that this process runs on.
#[derive(Debug, Clone, Copy, Default)]
pub struct OsMachine;

impl Machine for OsMachine {
    fn boot_id(&self) -> u64 {
        shm::boot_id()
    }

    fn pid(&self) -> u32 {
        std::process::id()
    }

    fn create(
        &self,
        kind: SegmentKind<'_>,
        bytes: u64,
        allocation: Allocation,
    ) -> Result<NewSegment, StoreError> {
        let name = match kind {
            SegmentKind::Shared(name) => name,
            SegmentKind::Private => {
                return Ok(NewSegment::private(Arc::new(AnonMemory::new(bytes)?)));
            }
            SegmentKind::Device { name, ordinal, payloads } => {
                let control = self.create(SegmentKind::Shared(name), payloads, allocation)?;
                return device::create(control, ordinal, bytes - payloads);
            }
        };
        // Logs what it removes.
        shm::remove_stale();
        let named = shm::create(name, bytes, allocation)?;
        // The node keeps the handle that unlinks the name; the heap has its own mapping, for those
        // still using it.
        let memory = shm::attach(named.file_name(), false)?;
        let file_name = Some(named.file_name().to_string());
        Ok(NewSegment { memory, file_name, name: Some(Box::new(named)), payload: None })
    }

    fn can_use(&self, uuid: [u8; 16]) -> Result<(), StoreError> {
        device::can_use(uuid)
    }

    fn attach(&self, file_name: &str) -> Result<Arc<dyn Memory>, StoreError> {
        Ok(shm::attach(file_name, false)?)
    }

    fn adopt(&self, file_name: &str, fd: OwnedFd) -> Result<Arc<dyn Memory>, StoreError> {
        Ok(shm::adopt(file_name, fd)?)
    }

    fn with_payload(
        &self,
        control: Arc<dyn Memory>,
        uuid: [u8; 16],
        fd: OwnedFd,
        layout: &SegmentLayout,
    ) -> Result<Arc<dyn Memory>, StoreError> {
        device::attach(control, uuid, fd, layout)
    }

    fn pin(
        &self,
        memory: Arc<dyn Memory>,
        ordinal: u32,
    ) -> Result<Box<dyn Any + Send + Sync>, StoreError> {
        device::pin(memory, ordinal)
    }

    fn prefault(&self, file_name: &str) {
        let file_name = file_name.to_string();
        drop(tokio::task::spawn_blocking(move || {
            if let Err(error) = shm::attach(&file_name, true) {
                tracing::debug!(%error, "not prefaulted");
            }
        }));
    }

    fn rest(&self, pause: Duration) {
        if pause < SHORT_REST { sleep_shortly(pause) } else { std::thread::sleep(pause) }
    }

    fn available(&self) -> u64 {
        shm::mem_available()
    }

    fn remove_socket(&self, path: &Path) {
        // Absent if the node failed before it listened.
        let _ = std::fs::remove_file(path);
    }

    fn serve(&self, what: AgentConfig) -> Result<Box<dyn DataAgent>, TransportError> {
        let AgentConfig { at, memory, incarnation, job, grants, guard, limits } = what;
        let agent = TcpAgent::start(at, memory, incarnation, &job, grants, Some(guard), limits)?;
        Ok(Box::new(agent))
    }

    #[cfg(not(feature = "rdma"))]
    fn fabric(&self, _: &FabricConfig) -> Result<Arc<dyn Fabric>, TransportError> {
        Err(TransportError::Protocol(
            "this program was built without the feature rdma (cargo build --features rdma)"
                .to_string(),
        ))
    }

    #[cfg(feature = "rdma")]
    fn fabric(&self, config: &FabricConfig) -> Result<Arc<dyn Fabric>, TransportError> {
        type Open = Vec<(FabricConfig, Arc<dyn Fabric>)>;
        static OPEN: Mutex<Open> = Mutex::new(Vec::new());
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, fabric)) = open.iter().find(|(c, _)| c == config) {
            return Ok(fabric.clone());
        }
        let fabric = nkv_transport::rdma::open(config)?;
        open.push((config.clone(), fabric.clone()));
        Ok(fabric)
    }

    fn connect(
        &self,
        at: &str,
        incarnation: u64,
        credentials: &Credentials,
        stripes: Stripes,
    ) -> BoxFuture<'static, Result<Connected, TransportError>> {
        let (at, credentials) = (at.to_string(), credentials.clone());
        Box::pin(async move {
            let job = credentials.job().to_string();
            let credentials = Some(credentials);
            let opts = TcpOptions { credentials, stripes, ..TcpOptions::default() };
            let connecting = tokio::task::spawn_blocking(move || {
                TcpVerbs::connect(&at, incarnation, &job, opts)
            });
            let broken = |e| TransportError::Protocol(format!("the connecting task failed: {e}"));
            let verbs = connecting.await.map_err(broken)??;
            let alive = verbs.alive();
            Ok((Arc::new(verbs) as Arc<dyn Verbs>, alive))
        })
    }
}

impl DataAgent for TcpAgent {
    fn local_addr(&self) -> SocketAddr {
        TcpAgent::local_addr(self)
    }

    fn counters(&self) -> Arc<TcpCounters> {
        TcpAgent::counters(self)
    }

    fn stop(&self) {
        TcpAgent::stop(self);
    }
}
