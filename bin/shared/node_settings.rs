//! The settings of a node: the one table from which flags, `NKV_*` variables and keys of the file
//! get their names. Values stay text here: nkv-node parses them and names the source of a wrong
//! one. A range in brackets is checked by bin/tests/system/reference/settings.rs, which tries both
//! ends; without one it is as the value's name implies.

use clap::{ArgAction, Args, Command};
use std::sync::LazyLock;

// One setting is `--heap-bytes`, `NKV_HEAP_BYTES` and `heap_bytes`.
#[expect(missing_docs, reason = "clap would print it as the program's description")]
#[derive(Debug, Clone, Args)]
pub struct SettingFlags {
    /// Job id; part of joining and of every segment's name [range: 1 to 128 bytes without blanks]
    /// [default: torchrun's run id, Slurm's job and step, or nkv]
    #[arg(long, value_name = "NAME", allow_hyphen_values = true)]
    pub job: Option<String>,
    /// Number of this rank [range: 0 to world_size less one] [default: the launcher's, or 0]
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    pub rank: Option<String>,
    /// Ranks in the job [range: 1 or more] [default: the launcher's, or 1]
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    pub world_size: Option<String>,
    /// Where rank 0 is [default: the launcher's, or 127.0.0.1]
    #[arg(long, value_name = "HOST", allow_hyphen_values = true)]
    pub master_addr: Option<String>,
    /// Rank 0's control port, the same on every rank; 0 on rank 0 takes a free one [range: 0 to
    /// 65535] [default: 7400]
    #[arg(long, value_name = "PORT", allow_hyphen_values = true)]
    pub port: Option<String>,
    /// Address of this host to listen on and to be reached at [default: 127.0.0.1]
    #[arg(long, value_name = "IP", allow_hyphen_values = true)]
    pub listen: Option<String>,
    /// File with the job's secret, its user's alone (or NKV_SECRET holds the secret itself)
    /// [default: none: this user's processes on this host connect]
    #[arg(long, value_name = "FILE|none", allow_hyphen_values = true)]
    pub secret_file: Option<String>,
    /// Where /healthz /readyz /status /metrics are served [default: 127.0.0.1:0]
    #[arg(long, value_name = "IP:PORT|off", allow_hyphen_values = true)]
    pub http: Option<String>,
    /// Payload bytes of this rank (KiB, MiB, GiB) [range: 1 to 8TiB] [default: a quarter of the
    /// memory there is, shared by the ranks of this host, at most 1GiB]
    #[arg(long, value_name = "BYTES", allow_hyphen_values = true)]
    pub heap_bytes: Option<String>,
    /// Objects outside the log begin at multiples of this and take whole multiples of it: in shared
    /// memory with pages of 2 MiB, at 2MiB each has pages of its own. Those in the log take 4 KiB
    /// units: see --log-bytes [range: a power of two, 4KiB to 2MiB] [default: 4KiB]
    #[arg(long, value_name = "BYTES", allow_hyphen_values = true)]
    pub heap_align: Option<String>,
    /// The NUMA node whose memory holds payloads and headers in host memory [default: none: that of
    /// the processor which touches a page first, with --prefault at start]
    #[arg(long, value_name = "N|none", allow_hyphen_values = true)]
    pub numa_node: Option<String>,
    /// Which rank gets a new object: the one that its key selects, a drawn one, the one with most
    /// room, one of the writer's host if there is one, or the nearest by NUMA node, host and rack;
    /// that of the master counts [default: hash]
    #[arg(
        long,
        value_name = "hash|random[:SEED]|most-free|local-first|topology",
        allow_hyphen_values = true
    )]
    pub placement: Option<String>,
    /// The rack of this host, as a path from the widest level on: replicas go to different racks
    /// first. Hosts without one are in one rack [range: / or 1 to 8 names, each behind a /]
    /// [default: /]
    #[arg(long, value_name = "/NAME/...", allow_hyphen_values = true)]
    pub rack: Option<String>,
    /// File that has the rack of this host: lines of a host's name or address and a path
    /// [default: none]
    #[arg(long, value_name = "FILE|none", allow_hyphen_values = true)]
    pub rack_map: Option<String>,
    /// Where payloads lie: shared memory of this host (also called shm), a GPU, a GPU if there is
    /// one that can be used, or memory of this process alone [default: dram]
    #[arg(long, value_name = "dram|cuda|auto|private", allow_hyphen_values = true)]
    pub memory: Option<String>,
    /// Number of that GPU among those that this process can use [default: the rank on this host, as
    /// torchrun, Open MPI or Slurm number it, or 0]
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    pub gpu: Option<String>,
    /// Touch every page at start, so that memory is refused then or never [default: true]
    #[arg(long, overrides_with = "no_prefault")]
    pub prefault: bool,
    /// Leave pages to be touched when they are used
    #[arg(long, action = ArgAction::SetFalse)]
    pub no_prefault: bool,
    /// Pin payloads in host memory, so that copies from and to GPUs go at full rate and kernels can
    /// access them; 0.1 to 0.3 s/GiB at start, and an error where it cannot be done [default:
    /// false]
    #[arg(long)]
    pub pool_pinned: bool,
    /// Bytes per page where a put names none; that of rank 0 counts [range: 1 to 4294967295]
    /// [default: 256KiB]
    #[arg(long, value_name = "BYTES", allow_hyphen_values = true)]
    pub page_bytes: Option<String>,
    /// Of --heap-bytes, the device log, for puts without a message; 0: none; auto: all but a 64th
    /// of it, and but 8MiB or a quarter of it if that is more; none with --policy prefix [range:
    /// auto, 0, or 16KiB to a page less than --heap-bytes] [default: auto]
    #[arg(long, value_name = "BYTES", allow_hyphen_values = true)]
    pub log_bytes: Option<String>,
    /// Who executes claims in the device log: processors of this host, its RDMA device, or kernels
    /// of the GPU that --memory cuda names [default: cpu]
    #[arg(long, value_name = "cpu|nic|gpu", allow_hyphen_values = true)]
    pub atomic_domain: Option<String>,
    /// Whether this node's own handle puts into device logs [default: true]
    #[arg(long, value_name = "BOOL", allow_hyphen_values = true)]
    pub device_alloc: Option<String>,
    /// Whether this node's own handle, that of a program which embeds it, keeps what it reads from
    /// another host at this rank, as an extra replica that is evicted first [default: false]
    #[arg(long, value_name = "BOOL", allow_hyphen_values = true)]
    pub cache_on_read: Option<String>,
    /// Which objects are evicted first [default: lru]
    #[arg(long, value_name = "lru|lru2|prefix|fifo", allow_hyphen_values = true)]
    pub policy: Option<String>,
    /// Percent of the heap at which eviction starts and ends; auto: 95/85 beside a log; without one
    /// room for two objects of the largest size lately, 1 % of it at least and 15 % at most [range:
    /// auto, or two of 1 to 100, the first not below the second] [default: auto]
    #[arg(long, value_name = "HI/LO", allow_hyphen_values = true)]
    pub watermarks: Option<String>,
    /// Directory on an SSD for objects that leave memory, or for all; a rank uses rank-N below it
    /// [default: none]
    #[arg(long, value_name = "DIR|none", allow_hyphen_values = true)]
    pub ssd_dir: Option<String>,
    /// Bytes that objects take there, allocated at the first start [range: 64MiB to 1024TiB]
    /// [default: 32GiB]
    #[arg(long, value_name = "BYTES", allow_hyphen_values = true)]
    pub ssd_bytes: Option<String>,
    /// Which objects are saved there: those that are evicted from memory, or all soon after they
    /// were put [default: evict_only]
    #[arg(long, value_name = "evict_only|write_through", allow_hyphen_values = true)]
    pub ssd_policy: Option<String>,
    /// What a save there survives: this process, or power loss [default: best_effort]
    #[arg(long, value_name = "best_effort|persistent", allow_hyphen_values = true)]
    pub ssd_durability: Option<String>,
    /// Objects there that nobody used for so many days are removed [range: 1 to 3650] [default: 7]
    #[arg(long, value_name = "DAYS", allow_hyphen_values = true)]
    pub ssd_ttl_days: Option<String>,
    /// How objects lie there: in a few large files, or each in a safetensors file of its own
    /// [default: slab]
    #[arg(long, value_name = "slab|files", allow_hyphen_values = true)]
    pub ssd_engine: Option<String>,
    /// How long retired memory is held before it is used again [range: 1 to 60000] [default: 10]
    #[arg(long, value_name = "MS", allow_hyphen_values = true)]
    pub quarantine_ms: Option<String>,
    /// How long a producer has from open to commit [range: 1 to 86400000] [default: 30000]
    #[arg(long, value_name = "MS", allow_hyphen_values = true)]
    pub write_ttl_ms: Option<String>,
    /// How long a claim in the device log may be open before all producers are asked [range: 1 to
    /// 86400000] [default: 5000]
    #[arg(long, value_name = "MS", allow_hyphen_values = true)]
    pub log_claim_ttl_ms: Option<String>,
    /// An object that is read so often a second at one rank gets further replicas, which are
    /// evicted first and go when it is read less; 0: none does [default: 0]
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    pub hot_reads: Option<String>,
    /// Replicas of such an object at most, by the setting of the master's rank [range: 1 to 8]
    /// [default: 3]
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    pub hot_replicas: Option<String>,
    /// A rank not heard of for so long is gone [range: 400 to 86400000] [default: 10000]
    #[arg(long, value_name = "MS", allow_hyphen_values = true)]
    pub ttl_ms: Option<String>,
    /// Pause between heartbeats; 0: an eighth of the TTL, at most 250 [range: 0 to half of ttl_ms]
    /// [default: 0]
    #[arg(long, value_name = "MS", allow_hyphen_values = true)]
    pub heartbeat_ms: Option<String>,
    /// Control port of a rank other than 0; 0: any free one, and so if it is in use [range: 0 to
    /// 65535] [default: 0]
    #[arg(long, value_name = "PORT", allow_hyphen_values = true)]
    pub control_port: Option<String>,
    /// Who may be the master: rank 0 alone, or any rank that most of the ranks elect, by votes or
    /// with a key in etcd. The same on every rank [default: rank0]
    #[arg(long, value_name = "rank0|ranks|etcd://HOST:PORT,...", allow_hyphen_values = true)]
    pub election: Option<String>,
    /// With elections: how long a rank that heard from the master obeys no other; the same
    /// on every rank [range: 400 to ttl_ms] [default: 1000]
    #[arg(long, value_name = "MS", allow_hyphen_values = true)]
    pub master_lease_ms: Option<String>,
    /// With elections: control ports of other ranks, separated by commas, to ask for the
    /// master when rank 0 is down at the start [default: none]
    #[arg(long, value_name = "HOST:PORT,...", allow_hyphen_values = true)]
    pub peers: Option<String>,
    /// How long to try to reach the master [range: 1 to 86400000] [default: 120000]
    #[arg(long, value_name = "MS", allow_hyphen_values = true)]
    pub join_timeout_ms: Option<String>,
    /// Limit of one control call [range: 1 to 86400000] [default: 2000]
    #[arg(long, value_name = "MS", allow_hyphen_values = true)]
    pub call_timeout_ms: Option<String>,
    /// How long a put waits for room; 0: three times the quarantine, at least 1000 [range: 0 or
    /// more] [default: 0]
    #[arg(long, value_name = "MS", allow_hyphen_values = true)]
    pub full_wait_ms: Option<String>,
    /// RDMA devices that reach this memory; auto: what can be used, named ones must be [default:
    /// auto]
    #[arg(long, value_name = "auto|none|NAME,...", allow_hyphen_values = true)]
    pub rdma_devices: Option<String>,
    /// Index in their GID tables; auto: RoCE v2 over IPv4 first [range: 0 to 255] [default: auto]
    #[arg(long, value_name = "auto|N", allow_hyphen_values = true)]
    pub rdma_gid_index: Option<String>,
    /// Queue pairs of one data path; auto: one for each device, at most 8 [range: 1 to 8] [default:
    /// auto]
    #[arg(long, value_name = "auto|N", allow_hyphen_values = true)]
    pub rdma_pairs: Option<String>,
    /// Most tcp data connections at once [range: 1 or more] [default: 256]
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    pub data_connections: Option<String>,
    /// After SIGTERM, how long plans in flight may take to finish [range: 0 or more] [default:
    /// 5000]
    #[arg(long, value_name = "MS", allow_hyphen_values = true)]
    pub drain_ms: Option<String>,
    /// How often in a row this rank restarts with a new incarnation after it was declared gone
    /// [range: 0 or more] [default: 8]
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    pub rejoins: Option<String>,
    /// Worker threads; 0: as many as there are cores, 2 to 8 [range: 0 to 256] [default: 0]
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    pub threads: Option<String>,
    /// What is logged to stderr, as in nkv_actors=debug; nkv_node=debug: every setting, and what
    /// was found at start [default: info]
    #[arg(long, value_name = "FILTER", allow_hyphen_values = true)]
    pub log: Option<String>,
    /// Log lines for people, or JSON objects [default: text]
    #[arg(long, value_name = "text|json", allow_hyphen_values = true)]
    pub log_format: Option<String>,
}

/// The key of every setting, in the order in which they are shown.
pub static KEYS: LazyLock<Vec<String>> = LazyLock::new(|| {
    let table = SettingFlags::augment_args(Command::new(""));
    let ids = table.get_arguments().map(|arg| arg.get_id().to_string());
    ids.filter(|id| id != NO_PREFAULT).collect()
});

/// The settings whose flags are switches.
pub const SWITCHES: [&str; 2] = ["prefault", "pool_pinned"];

/// The second flag of a switch that is on by default.
pub const NO_PREFAULT: &str = "no_prefault";

/// Name of a setting's flag, with the dashes.
pub fn flag(key: &str) -> String {
    format!("--{}", key.replace('_', "-"))
}

/// Name of its environment variable.
pub fn variable(key: &str) -> String {
    format!("NKV_{}", key.to_ascii_uppercase())
}
