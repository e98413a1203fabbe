//! The settings of a node, their defaults, and the reasons why it may refuse to start.

use crate::client::GET_POOL_BYTES;
use crate::message::MAX_REPLICAS;
use crate::placement::{Placement, RackPath};
use crate::server::BEATS_PER_LEASE;
use crate::tier::SsdConfig;
use nkv_store::ArenaUnit;
use nkv_store::device_log::MIN_LOG_UNITS;
use nkv_store::evict::{PolicyKind, Watermarks};
use nkv_store::layout::{AtomicDomain, PAYLOAD_ALIGN};
use nkv_store::segment_layout::{MAX_ARENA_BYTES, MAX_QUARANTINE_MS};
use nkv_transport::fabric::FabricConfig;
use nkv_transport::wire::Address;
use nkv_transport::wire::auth::{SECRET_FILE_VARIABLE, SECRET_VARIABLE, Secret};
use std::net::{IpAddr, Ipv4Addr};

/// Longest job id in bytes.
const MAX_JOB_BYTES: usize = 128;
/// Maximum of every time limit: a day.
const MAX_MS: u64 = 86_400_000;
/// Heartbeats per TTL, and the longest pause between two.
const BEATS_PER_TTL: u64 = 8;
const MAX_HEARTBEAT_MS: u64 = 250;
/// Shortest lease of a master: its heartbeats must fit on a busy host.
const MIN_LEASE_MS: u64 = BEATS_PER_LEASE * KEPT_HEARTBEAT_MS;
/// Shortest heartbeat interval that holds on a busy host: the scheduler may keep a thread off the
/// processor for some tens of milliseconds.
const KEPT_HEARTBEAT_MS: u64 = 50;
/// Shortest TTL: with a shorter one, ranks that merely wait for a processor are often declared
/// gone.
const MIN_TTL_MS: u64 = BEATS_PER_TTL * KEPT_HEARTBEAT_MS;

/// Kind of memory of the heap.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum MemoryChoice {
    /// Named shared memory: processes of this host reach it directly.
    #[default]
    Shm,
    /// This process only; others use tcp.
    Private,
    /// Payloads in the memory of the GPU with this number, the rest in named shared memory:
    /// processes of this host that can use that GPU reach both directly, others use tcp.
    Cuda(u32),
    /// That GPU if it can be used, also by the RDMA devices that were asked for by name, else
    /// `Shm`: decided for each segment when it is made, and logged.
    Auto(u32),
}

/// Who may be the master.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum ElectionChoice {
    /// Rank 0 alone: while it is down, nothing is put and only known places are read.
    #[default]
    Rank0,
    /// Any rank that more than half of the ranks, or half with rank 0, elect. Needs 3 ranks to
    /// survive the loss of one.
    Ranks,
    /// The same, with a key in etcd in place of votes; ranks find each other there, too. Its
    /// endpoints, as host:port. Spoken without TLS.
    Etcd(Vec<String>),
}

impl ElectionChoice {
    /// Whether any rank may be the master.
    pub fn is_any_rank(&self) -> bool {
        *self != Self::Rank0
    }
}

/// Settings of one rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeConfig {
    /// Job id; two jobs never meet.
    pub job: String,
    /// This rank.
    pub rank: u32,
    /// Ranks in the job.
    pub world_size: u32,
    /// Host of rank 0.
    pub master_host: String,
    /// Rank 0's control port; 0 on rank 0 takes any free one.
    pub port: u16,
    /// Address to listen at, and to be reached at.
    pub listen: IpAddr,
    /// Control port of a rank other than 0; any free one if 0 or if the given port is in use.
    pub control_port: u16,
    /// Payload bytes of the arena; headers, index and log come on top.
    pub heap_bytes: u64,
    /// Objects outside the log begin at multiples of this in the segment, and take whole multiples;
    /// `heap_bytes` less the log is rounded up to it. Objects in the log take 4 KiB units.
    pub heap_align: ArenaUnit,
    /// The NUMA node whose memory holds what lies in host memory; None: where it is touched first.
    pub numa_node: Option<u32>,
    /// The rack of this host.
    pub rack: RackPath,
    /// Which rank gets a new object; that of the master counts, for the whole job.
    pub placement: Placement,
    /// Kind of memory.
    pub memory: MemoryChoice,
    /// Allocate every page at start.
    pub prefault: bool,
    /// Pin payloads in host memory for copies from and to GPUs and for their kernels, with the GPU
    /// of this number. Takes 0.1 to 0.3 s/GiB at start; a failure is an error.
    pub pool_pinned: Option<u32>,
    /// Quarantine in milliseconds [I8].
    pub quarantine_ms: u32,
    /// Membership TTL in milliseconds.
    pub ttl_ms: u64,
    /// Milliseconds between heartbeats; 0: an eighth of the TTL, at most 250 ms.
    pub heartbeat_ms: u64,
    /// Who may be the master; the same on every rank.
    pub election: ElectionChoice,
    /// With elections: milliseconds for which a rank that heard from its master obeys no other;
    /// the same on every rank. Another rank becomes master this long, and an eighth, after the loss
    /// of one.
    pub master_lease_ms: u64,
    /// Control addresses (host:port) of other ranks to ask for the master, besides rank 0: for a
    /// rank that starts while rank 0 is down.
    pub peers: Vec<String>,
    /// Milliseconds a producer has from open to commit.
    pub write_ttl_ms: u64,
    /// Milliseconds that a rank tries to reach the master at its first join.
    pub join_timeout_ms: u64,
    /// Limit of one control call in milliseconds.
    pub call_timeout_ms: u64,
    /// When eviction from a heap starts and ends.
    pub watermarks: Watermarks,
    /// Of `heap_bytes`, those of the device log of the first segment: puts of up to a quarter of it
    /// go there without asking the master. 0: no log. None: all but a 64th of it, but
    /// at least 8 MiB or a quarter; no log if `heap_bytes` is below 4 MiB, or with the policy
    /// `prefix`, which is one of heaps. The rest takes what is written by plans.
    pub log_bytes: Option<u64>,
    /// When a claim in the device log is open for this many milliseconds, with all claims before it
    /// settled, the owner asks the producers about it. It becomes void once no producer can still
    /// have it open [I14].
    pub log_claim_ttl_ms: u64,
    /// An object that is read so often a second at one rank is hot, and gets further replicas,
    /// which are evicted first and go when it is read less; 0: none is.
    pub hot_reads: u64,
    /// Replicas of a hot object at most, by the configuration of the master's rank.
    pub hot_replicas: u8,
    /// Who executes claims in the device log [I1]. `Nic`: this host's first RDMA device, so that
    /// producers of other hosts put there without asking; those of this host do so through it, too,
    /// and a tcp client takes plans. `Gpu`: kernels of processes that map the payloads, which must
    /// be in VRAM; other puts take plans.
    pub atomic_domain: AtomicDomain,
    /// Whether this node's own handle puts into device logs; see `ClientConfig`.
    pub device_alloc: bool,
    /// Stripes of large reads and writes of this node's own handle; see `ClientConfig`.
    pub data_stripes: usize,
    /// Bytes of buffers that this node's own handle keeps for later gets; see `ClientConfig`.
    pub get_pool_bytes: u64,
    /// Whether this node's own handle keeps what it reads from another host; see `ClientConfig`.
    pub cache_on_read: bool,
    /// Which objects are evicted first.
    pub policy: PolicyKind,
    /// Bytes per page if a put names none; that of rank 0 counts, for the whole job.
    pub page_bytes: u32,
    /// Milliseconds that an open waits for room; 0: max(3 quarantines, 1000 ms).
    pub full_wait_ms: u64,
    /// Most tcp data connections at a time, per segment.
    pub data_connections: usize,
    /// Secret that every rank and client of the job must have [I20]. Without one, only this user's
    /// processes on this host may connect.
    pub secret: Option<Secret>,
    /// RDMA devices to register the memory with, if the host has some; None: use no device.
    pub fabric: Option<FabricConfig>,
    /// The SSD tier; None: objects that leave memory are gone.
    pub ssd: Option<SsdConfig>,
    /// Address at which the embedding program serves `/status`, for the others to know; the node
    /// itself serves nothing there.
    pub http: Option<String>,
}

impl Default for NodeConfig {
    fn default() -> Self {
        Self {
            job: "nkv".to_string(),
            rank: 0,
            world_size: 1,
            master_host: "127.0.0.1".to_string(),
            port: 0,
            listen: IpAddr::V4(Ipv4Addr::LOCALHOST),
            control_port: 0,
            heap_bytes: 64 << 20,
            heap_align: ArenaUnit::default(),
            numa_node: None,
            rack: RackPath::default(),
            placement: Placement::Hash,
            memory: MemoryChoice::Shm,
            prefault: true,
            pool_pinned: None,
            quarantine_ms: 10,
            ttl_ms: 10_000,
            heartbeat_ms: 0,
            election: ElectionChoice::Rank0,
            master_lease_ms: 1_000,
            peers: Vec::new(),
            write_ttl_ms: 30_000,
            join_timeout_ms: 120_000,
            call_timeout_ms: 2_000,
            watermarks: Watermarks::Auto,
            log_bytes: None,
            log_claim_ttl_ms: 5_000,
            hot_reads: 0,
            hot_replicas: 3,
            atomic_domain: AtomicDomain::Cpu,
            device_alloc: true,
            data_stripes: 0,
            get_pool_bytes: GET_POOL_BYTES,
            cache_on_read: false,
            policy: PolicyKind::Lru,
            page_bytes: 256 << 10,
            full_wait_ms: 0,
            data_connections: 256,
            secret: None,
            fabric: Some(FabricConfig::default()),
            ssd: None,
            http: None,
        }
    }
}

/// Smallest device log.
const MIN_LOG_BYTES: u64 = MIN_LOG_UNITS * PAYLOAD_ALIGN;
/// Payload bytes below which a segment has no log by default.
const LEAST_WITH_LOG: u64 = 4 << 20;
/// What the log leaves to plans by default: a part, but at least so many bytes, and these are at
/// most another part. An object written page by page must fit in there.
const PLANS_PART: u64 = 64;
const PLANS_BYTES: u64 = 8 << 20;
const PLANS_MOST: u64 = 4;

impl NodeConfig {
    /// Checks all settings; the error names the bad setting and its allowed values.
    pub fn validate(&self) -> Result<(), StartError> {
        let bad = |text: String| Err(StartError::Config(text));
        if self.job.is_empty() || self.job.len() > MAX_JOB_BYTES {
            return bad(format!("a job id has 1 to {MAX_JOB_BYTES} bytes, '{}' has not", self.job));
        }
        if self.world_size == 0 || self.rank >= self.world_size {
            return bad(format!(
                "rank {} does not exist in a world of {}; ranks count from 0",
                self.rank, self.world_size
            ));
        }
        if self.listen.is_unspecified() {
            return bad(format!(
                "listen {} names no address that others could reach; give this host's own address",
                self.listen
            ));
        }
        if !self.listen.is_loopback() && self.secret.is_none() {
            return bad(format!(
                "listen {} can be reached from other hosts, and this job has no secret: set \
                 {SECRET_VARIABLE}, or {SECRET_FILE_VARIABLE} or --secret-file with a file that \
                 holds one, alike on every rank and client; or listen on 127.0.0.1",
                self.listen
            ));
        }
        if self.rank > 0 && self.port == 0 {
            return bad(format!(
                "rank {} needs the control port of rank 0: give --port or NKV_PORT",
                self.rank
            ));
        }
        let named = self.fabric.as_ref().is_some_and(FabricConfig::is_particular);
        if self.atomic_domain == AtomicDomain::Gpu && named {
            return bad(
                "RDMA devices reach no log in which kernels put: leave --atomic-domain gpu or \
                 --rdma-devices out"
                    .to_string(),
            );
        }
        if matches!(self.memory, MemoryChoice::Cuda(_)) && self.pool_pinned.is_some() {
            return bad(
                "pool_pinned pins payloads in host memory, and with memory cuda there are none: \
                 leave it out, or use memory dram"
                    .to_string(),
            );
        }
        if self.memory == MemoryChoice::Private && self.numa_node.is_some() {
            return bad("numa_node is about memory that processes share: leave it out, or use \
                        memory dram"
                .to_string());
        }
        if let Some(fault) = self.ssd.as_ref().and_then(SsdConfig::fault) {
            return bad(fault);
        }
        self.validate_ranges()?;
        let most = self.heap_bytes.saturating_sub(PAYLOAD_ALIGN);
        if let Some(log) = self.log_bytes.filter(|log| *log > 0)
            && !(MIN_LOG_BYTES..=most).contains(&log)
        {
            return bad(format!(
                "log_bytes is 0, or {MIN_LOG_BYTES} to {most}, a page less than heap_bytes {}, not \
                 {log}",
                self.heap_bytes,
            ));
        }
        if self.atomic_domain == AtomicDomain::Nic && (self.parts().1 == 0 || self.fabric.is_none())
        {
            return bad(
                "atomic_domain nic is about the device log and needs an RDMA device: give \
                 log_bytes above 0, and not rdma_devices none"
                    .to_string(),
            );
        }
        let in_vram = matches!(self.memory, MemoryChoice::Cuda(_) | MemoryChoice::Auto(_));
        if self.atomic_domain == AtomicDomain::Gpu && !in_vram {
            return bad(
                "atomic_domain gpu is about a device log in VRAM, in which kernels put: give \
                 --memory cuda, or auto"
                    .to_string(),
            );
        }
        if self.atomic_domain == AtomicDomain::Gpu && self.parts().1 == 0 {
            return bad(
                "atomic_domain gpu is about a device log, in which kernels put: give log_bytes \
                 above 0, or leave it out with another policy than prefix"
                    .to_string(),
            );
        }
        if !(MIN_TTL_MS..=MAX_MS).contains(&self.ttl_ms) {
            return bad(format!(
                "ttl_ms is {MIN_TTL_MS} to {MAX_MS}, not {}: {BEATS_PER_TTL} heartbeats, \
                 {KEPT_HEARTBEAT_MS} ms apart, must fit",
                self.ttl_ms
            ));
        }
        if self.heartbeat_ms * 2 > self.ttl_ms {
            return bad(format!(
                "heartbeat_ms {} leaves no two heartbeats in ttl_ms {}",
                self.heartbeat_ms, self.ttl_ms
            ));
        }
        self.validate_election()?;
        if self.page_bytes == 0 {
            return bad("page_bytes is at least 1, not 0".to_string());
        }
        if self.data_connections == 0 {
            return bad("data_connections is at least 1, not 0".to_string());
        }
        self.watermarks.validate().map_err(|e| StartError::Config(e.to_string()))
    }

    /// How the payload bytes of the first segment are divided: for plans, and for the device log.
    pub fn parts(&self) -> (u64, u64) {
        let by_default = match self.heap_bytes {
            0..LEAST_WITH_LOG => 0,
            _ if self.policy == PolicyKind::Prefix => 0,
            bytes => bytes - (bytes / PLANS_PART).max(PLANS_BYTES.min(bytes / PLANS_MOST)),
        };
        let log = self.log_bytes.unwrap_or(by_default).min(self.heap_bytes);
        let log = log - log % PAYLOAD_ALIGN;
        (self.heap_bytes - log, log)
    }

    fn validate_election(&self) -> Result<(), StartError> {
        let (lease, beats) = (self.master_lease_ms, self.heartbeat_ms * 2);
        if !self.election.is_any_rank() {
            return match self.peers.is_empty() {
                true => Ok(()),
                false => Err(StartError::Config(
                    "peers are asked for the master only where ranks elect it: give election \
                     ranks, or leave them out"
                        .to_string(),
                )),
            };
        }
        if !(MIN_LEASE_MS.max(beats)..=self.ttl_ms).contains(&lease) {
            return Err(StartError::Config(format!(
                "master_lease_ms is {MIN_LEASE_MS} to ttl_ms ({}), and two heartbeats at least, \
                 not {lease}",
                self.ttl_ms
            )));
        }
        if let ElectionChoice::Etcd(endpoints) = &self.election {
            let odd = endpoints.iter().find(|at| at.parse::<Address>().is_err());
            if endpoints.is_empty() || odd.is_some() {
                return Err(StartError::Config(format!(
                    "election etcd://{}: give host:port of each etcd endpoint, separated by commas",
                    endpoints.join(",")
                )));
            }
        }
        self.peer_addresses().map(drop)
    }

    /// The addresses in `peers`.
    pub fn peer_addresses(&self) -> Result<Vec<Address>, StartError> {
        let bad = |peer: &String, e: &dyn std::fmt::Display| {
            StartError::Config(format!("peers: '{peer}' is no host:port of a rank ({e})"))
        };
        self.peers.iter().map(|peer| peer.parse().map_err(|e| bad(peer, &e))).collect()
    }

    fn validate_ranges(&self) -> Result<(), StartError> {
        for (name, value, most) in [
            ("heap_bytes", self.heap_bytes, MAX_ARENA_BYTES),
            ("quarantine_ms", self.quarantine_ms.into(), MAX_QUARANTINE_MS.into()),
            ("write_ttl_ms", self.write_ttl_ms, MAX_MS),
            ("log_claim_ttl_ms", self.log_claim_ttl_ms, MAX_MS),
            ("call_timeout_ms", self.call_timeout_ms, MAX_MS),
            ("join_timeout_ms", self.join_timeout_ms, MAX_MS),
        ] {
            if !(1..=most).contains(&value) {
                return Err(StartError::Config(format!("{name} is 1 to {most}, not {value}")));
            }
        }
        if !(1..=MAX_REPLICAS).contains(&self.hot_replicas) {
            let (n, most) = (self.hot_replicas, MAX_REPLICAS);
            return Err(StartError::Config(format!("hot_replicas is 1 to {most}, not {n}")));
        }
        Ok(())
    }

    /// Milliseconds between heartbeats.
    pub fn beat_ms(&self) -> u64 {
        let by_ttl = (self.ttl_ms / BEATS_PER_TTL).clamp(1, MAX_HEARTBEAT_MS);
        match (self.heartbeat_ms, self.election.is_any_rank()) {
            (0, false) => by_ttl,
            (0, true) => by_ttl.min(self.master_lease_ms / BEATS_PER_LEASE),
            (n, _) => n,
        }
    }
}

/// Why a node did not start; each text is one sentence.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub enum StartError {
    /// A setting that cannot work.
    Config(String),
    /// The machine has too little memory.
    HeapTooLarge(String),
    /// The master has another world size.
    WorldSize(String),
    /// A live rank has this number.
    RankAlive(String),
    /// Nobody answered at the master's address in time.
    NoMaster(String),
    /// The directory of the SSD tier cannot be used.
    Disk(String),
    /// The control port is taken.
    PortInUse(String),
    /// The master refused for another reason.
    Refused(String),
    /// A defect, or the operating system refused a call.
    Internal(String),
}

impl From<crate::Error> for StartError {
    fn from(e: crate::Error) -> Self {
        Self::Internal(e.to_string())
    }
}
