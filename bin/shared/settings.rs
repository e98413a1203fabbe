//! The effective configuration: flags over `NKV_*` variables over the file over the launcher over
//! defaults, each value with its source. It starts nothing and opens only the configuration file
//! and the secret's file.

mod file;
mod resolve;
mod values;

use crate::endpoints::DEFAULT_PORT;
use crate::launcher::{self, Env, Launcher};
use crate::logging::LogFormat;
use crate::rack_map::RackMap;
use crate::sizes::{parse_bytes, show_bytes};
use crate::variables;
use nkv::{MemoryChoice, NodeConfig, RackPath, Secret};
use nkv_actors::tier::{
    DAY_S, DEFAULT_TTL_DAYS, Durability, MAX_BYTES, MAX_TTL_DAYS, MIN_BYTES, SsdConfig, SsdEngine,
    SsdPolicy,
};
use nkv_store::ArenaUnit;
use nkv_store::segment_layout::MAX_ARENA_BYTES;
use nkv_transport::fabric::FabricConfig;
use nkv_transport::wire::auth::{SECRET_FILE_VARIABLE, SECRET_VARIABLE};
use resolve::Resolver;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use values::{Devices, Election, boolean, http_address, job_name, number, one_of, watermarks};

pub use resolve::Line;

/// Largest heap by default.
const DEFAULT_HEAP_BYTES: u64 = 1 << 30;
/// Default heap: available memory divided by this and by the ranks of the host.
const DEFAULT_HEAP_PART: u64 = 4;
/// Default heaps are whole multiples of this.
const DEFAULT_HEAP_STEP: u64 = 1 << 20;
/// How long plans in flight may take to finish after SIGTERM.
const DEFAULT_DRAIN_MS: u64 = 5_000;
/// Fresh starts in a row after being declared gone.
const DEFAULT_REJOINS: u32 = 8;
/// What is logged.
const DEFAULT_LOG: &str = "info";
/// Bytes of the SSD tier.
const DEFAULT_SSD_BYTES: u64 = 32 << 30;
/// Value of `secret_file` for no file.
const NO_SECRET_FILE: &str = "none";
/// The default job.
const DEFAULT_JOB: &str = "nkv";
/// Most and least worker threads chosen by default.
const THREADS: std::ops::RangeInclusive<usize> = 2..=8;
/// Most worker threads that may be set.
const MAX_THREADS: usize = 256;

/// What the user set beside the environment.
#[derive(Debug, Clone)]
pub struct Given {
    /// Values of settings by key, as typed.
    pub values: BTreeMap<&'static str, String>,
    /// The configuration file.
    pub config: Option<PathBuf>,
    /// How errors name the setting of a key: `--heap-bytes`, or `heap_bytes`.
    pub named: fn(&str) -> String,
}

/// What a rank runs with.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The library's configuration.
    pub node: NodeConfig,
    /// Where HTTP is served; `None`: nowhere.
    pub http: Option<SocketAddr>,
    /// How long plans in flight may take to finish after SIGTERM.
    pub drain_ms: u64,
    /// Fresh starts in a row after being declared gone.
    pub rejoins: u32,
    /// Worker threads.
    pub threads: usize,
    /// Filter of log lines.
    pub log: String,
    /// Their form.
    pub log_format: LogFormat,
    /// Every effective value and its source, in the order of the table.
    pub lines: Vec<Line>,
    /// Warnings for the user.
    pub warnings: Vec<String>,
}

/// What this machine has: measured once, so that the rest is a pure function.
#[derive(Debug, Clone, Copy)]
pub struct Machine {
    /// Bytes of memory that a segment may take; 0 if unknown.
    pub memory_bytes: u64,
    /// Cores of this process.
    pub cores: usize,
}

impl Machine {
    /// Asks the system.
    pub fn measure() -> Self {
        let cores = std::thread::available_parallelism().map_or(*THREADS.start(), usize::from);
        Self { memory_bytes: nkv_store::shm::available_bytes(), cores }
    }
}

/// Resolves every setting.
///
/// # Errors
/// One sentence: which value of which source is wrong, or what a launcher left out.
pub fn resolve(given: &Given, env: &Env, machine: Machine) -> Result<Settings, String> {
    let mut r = Resolver::new(given, env)?;
    let mut warnings = Vec::new();
    let launcher = match launcher::detect(env) {
        Ok(found) => found,
        // A user who gives both numbers needs no launcher, so an incomplete set is only a warning.
        Err(broken) if r.has("rank") && r.has("world_size") => {
            warnings.push(format!("ignored, since rank and world size are given: {broken}"));
            None
        }
        Err(broken) => return Err(broken.to_string()),
    };
    let launcher = launcher.as_ref();
    let mut node = NodeConfig::default();
    place(&mut r, &mut node, launcher, env)?;
    let http = SocketAddr::new(loopback_like(node.listen), 0);
    let http = r.take_unless("http", "off", http_address, Some(http))?;
    node.heap_bytes = heap_bytes(&mut r, &node, launcher, machine)?;
    heap_use(&mut r, &mut node, launcher)?;
    node.ssd = ssd(&mut r)?;
    limits(&mut r, &mut node)?;
    node.secret = secret(&mut r, env)?;
    if node.listen.is_loopback() && launcher.is_some_and(|l| !l.one_host) {
        warnings.push(format!(
            "the ranks may run on several hosts, but this one listens on {} only: give --listen \
             an address that the other hosts reach",
            node.listen
        ));
    }
    if http.is_some_and(|http| !http.ip().is_loopback()) {
        warnings.push("the HTTP address is open to other hosts and not authenticated".to_string());
    }
    warnings.extend(variables::unknown(env.keys().map(String::as_str)));
    let settings = Settings {
        node,
        http,
        drain_ms: r.take("drain_ms", number, DEFAULT_DRAIN_MS)?,
        rejoins: r.take("rejoins", number, DEFAULT_REJOINS)?,
        threads: threads(&mut r, machine)?,
        log: r.take("log", |text| Ok(text.to_string()), DEFAULT_LOG.to_string())?,
        log_format: match r.take("log_format", one_of(["text", "json"]), "text")? {
            "json" => LogFormat::Json,
            _ => LogFormat::Text,
        },
        lines: r.into_lines(),
        warnings,
    };
    settings.node.validate().map_err(|e| e.to_string())?;
    Ok(settings)
}

/// Where a value comes from that nobody gave: the launcher, or nowhere.
fn source_of(launcher: Option<&Launcher>) -> String {
    launcher.map_or("default".to_string(), |l| l.family.to_string())
}

/// Which rank of which job this is, and where it and rank 0 listen.
fn place(
    r: &mut Resolver,
    node: &mut NodeConfig,
    launcher: Option<&Launcher>,
    env: &Env,
) -> Result<(), String> {
    let (job, from) = launcher::job(env).unwrap_or((DEFAULT_JOB.to_string(), "default"));
    node.job = r.take_or("job", job_name, job, from)?;
    let from = source_of(launcher);
    let (rank, world_size) = launcher.map_or((0, 1), |l| (l.rank, l.world_size));
    node.rank = r.take_or("rank", number, rank, &from)?;
    node.world_size = r.take_or("world_size", number, world_size, &from)?;
    if node.rank >= node.world_size {
        return Err(format!(
            "rank {} does not exist in a world of {}: ranks go from 0 to the world size less one; \
             give --rank and --world-size alike",
            node.rank, node.world_size
        ));
    }
    node.listen = r.take("listen", reachable, node.listen)?;
    node.master_host = master_host(r, launcher, node)?;
    node.port = r.take("port", number, DEFAULT_PORT)?;
    // Other ranks could not find a port that was picked at random.
    if node.rank != 0 && node.port == 0 {
        return Err("--port is 0, and only rank 0 takes a free port: give --port or NKV_PORT the \
                    port in control= of rank 0's ready line"
            .to_string());
    }
    Ok(())
}

fn heap_bytes(
    r: &mut Resolver,
    node: &NodeConfig,
    launcher: Option<&Launcher>,
    machine: Machine,
) -> Result<u64, String> {
    let local_ranks = match launcher.and_then(|l| l.local_world_size) {
        Some(n) => n,
        None if is_this_host(&node.master_host) => node.world_size,
        None => 1,
    };
    let share = machine.memory_bytes / DEFAULT_HEAP_PART / u64::from(local_ranks.max(1));
    let share = share.min(DEFAULT_HEAP_BYTES) / DEFAULT_HEAP_STEP * DEFAULT_HEAP_STEP;
    let why = format!(
        "default: at most {}, a quarter of {} over {local_ranks} ranks of this host",
        show_bytes(DEFAULT_HEAP_BYTES),
        show_bytes(machine.memory_bytes)
    );
    match r.take_or("heap_bytes", parse_bytes, share, &why)? {
        0 if r.has("heap_bytes") => Err("heap_bytes 0: at least 1 byte".to_string()),
        0 => Err("there is no memory for a heap by default: give --heap-bytes".to_string()),
        bytes @ 1..=MAX_ARENA_BYTES => Ok(bytes),
        bytes => Err(format!(
            "heap_bytes {}: at most {} a rank",
            show_bytes(bytes),
            show_bytes(MAX_ARENA_BYTES)
        )),
    }
}

/// The host of rank 0. A launcher on one host may give the host's external name, under which a rank
/// that listens on loopback cannot be reached; so the default there is `listen`.
fn master_host(
    r: &mut Resolver,
    launcher: Option<&Launcher>,
    node: &NodeConfig,
) -> Result<String, String> {
    let here = node.listen.to_string();
    let (host, source) = match launcher {
        Some(l) if l.one_host => (here, format!("{}: one host", l.family)),
        Some(Launcher { master_host: Some(host), family, .. }) => {
            (host.clone(), family.to_string())
        }
        Some(l) if node.rank != 0 && !r.has("master_addr") => {
            return Err(format!(
                "{} does not set the host of rank 0: give --master-addr HOST or NKV_MASTER_ADDR",
                l.family
            ));
        }
        _ => (here, "default".to_string()),
    };
    r.take_or("master_addr", values::host, host, &source)
}

fn heap_use(
    r: &mut Resolver,
    node: &mut NodeConfig,
    launcher: Option<&Launcher>,
) -> Result<(), String> {
    let from = source_of(launcher);
    let local_rank = launcher.and_then(|l| l.local_rank).unwrap_or(0);
    let gpu = r.take_or("gpu", number, local_rank, &from)?;
    let memories = one_of(["dram", "shm", "cuda", "auto", "private"]);
    node.memory = match r.take("memory", memories, "dram")? {
        "cuda" => MemoryChoice::Cuda(gpu),
        "auto" => MemoryChoice::Auto(gpu),
        "private" => MemoryChoice::Private,
        _ => MemoryChoice::Shm,
    };
    let unit = |text: &str| ArenaUnit::of_bytes(parse_bytes(text)?).map_err(|e| e.to_string());
    node.heap_align = r.take("heap_align", unit, node.heap_align)?;
    node.numa_node = r.take_unless("numa_node", "none", number, node.numa_node)?;
    node.placement = r.take("placement", str::parse, node.placement)?;
    node.rack = rack(r, node)?;
    node.prefault = r.take("prefault", boolean, node.prefault)?;
    node.pool_pinned = r.take("pool_pinned", boolean, false)?.then_some(gpu);
    let page_bytes = |text: &str| {
        let bytes = parse_bytes(text)?;
        u32::try_from(bytes).map_err(|_| format!("{bytes} bytes are more than 4 GiB less one"))
    };
    node.page_bytes = r.take("page_bytes", page_bytes, node.page_bytes)?;
    let policy = |text: &str| text.parse().map_err(|e: nkv_store::StoreError| e.to_string());
    node.policy = r.take("policy", policy, node.policy)?;
    node.watermarks = r.take("watermarks", watermarks, node.watermarks)?;
    node.quarantine_ms = r.take("quarantine_ms", number, node.quarantine_ms)?;
    node.log_bytes = r.take_unless("log_bytes", "auto", parse_bytes, node.log_bytes)?;
    node.atomic_domain = r.take("atomic_domain", str::parse, node.atomic_domain)?;
    node.device_alloc = r.take("device_alloc", boolean, node.device_alloc)?;
    node.cache_on_read = r.take("cache_on_read", boolean, node.cache_on_read)?;
    Ok(())
}

/// The rack of this host: given, or from a file.
fn rack(r: &mut Resolver, node: &NodeConfig) -> Result<RackPath, String> {
    let both = r.has("rack");
    let read = |file: &str| match both {
        true => Err("--rack is given too: leave one out, or say --rack-map none".to_string()),
        false => RackMap::read(file, node.listen),
    };
    let map = r.take_unless("rack_map", "none", read, None)?;
    let source = map.as_ref().map_or("default".to_string(), |map| format!("rack_map {map}"));
    let rack = map.map_or_else(|| node.rack.clone(), |map| map.rack);
    r.take_or("rack", str::parse, rack, &source)
}

/// The SSD tier. Without a directory the other settings of it mean nothing.
fn ssd(r: &mut Resolver) -> Result<Option<SsdConfig>, String> {
    let path = |text: &str| match text {
        "" => Err("a directory is expected, or none".to_string()),
        _ => Ok(text.to_string()),
    };
    let dir = r.take_unless("ssd_dir", "none", path, None)?;
    let given = SsdConfig::new(dir.clone().unwrap_or_default(), DEFAULT_SSD_BYTES);
    let bytes = |text: &str| match parse_bytes(text)? {
        bytes @ MIN_BYTES..=MAX_BYTES => Ok(bytes),
        _ => Err(format!("{} to {}", show_bytes(MIN_BYTES), show_bytes(MAX_BYTES))),
    };
    let bytes = r.take("ssd_bytes", bytes, given.bytes)?;
    let policy =
        match r.take("ssd_policy", one_of(["evict_only", "write_through"]), "evict_only")? {
            "write_through" => SsdPolicy::WriteThrough,
            _ => SsdPolicy::EvictOnly,
        };
    let durabilities = one_of(["best_effort", "persistent"]);
    let durability = match r.take("ssd_durability", durabilities, "best_effort")? {
        "persistent" => Durability::Persistent,
        _ => Durability::BestEffort,
    };
    let days = |text: &str| match number(text)? {
        days @ 1..=MAX_TTL_DAYS => Ok(days),
        days => Err(format!("{days} is not between 1 and {MAX_TTL_DAYS}")),
    };
    let ttl_days: u64 = r.take("ssd_ttl_days", days, DEFAULT_TTL_DAYS)?;
    let engine = match r.take("ssd_engine", one_of(["slab", "files"]), "slab")? {
        "files" => SsdEngine::Files,
        _ => SsdEngine::Slab,
    };
    let ttl_s = ttl_days * DAY_S;
    Ok(dir.map(|_| SsdConfig { bytes, policy, durability, ttl_s, engine, ..given }))
}

fn limits(r: &mut Resolver, node: &mut NodeConfig) -> Result<(), String> {
    node.write_ttl_ms = r.take("write_ttl_ms", number, node.write_ttl_ms)?;
    node.log_claim_ttl_ms = r.take("log_claim_ttl_ms", number, node.log_claim_ttl_ms)?;
    node.hot_reads = r.take("hot_reads", number, node.hot_reads)?;
    node.hot_replicas = r.take("hot_replicas", number, node.hot_replicas)?;
    node.ttl_ms = r.take("ttl_ms", number, node.ttl_ms)?;
    node.heartbeat_ms = r.take("heartbeat_ms", number, node.heartbeat_ms)?;
    node.control_port = r.take("control_port", number, node.control_port)?;
    node.election = r.take("election", values::election, Election::default())?.0;
    node.master_lease_ms = r.take("master_lease_ms", number, node.master_lease_ms)?;
    let peers = r.take_unless("peers", "none", |text| Ok(text.to_string()), None)?;
    node.peers = peers.iter().flat_map(|all| all.split(',')).map(str::to_string).collect();
    node.join_timeout_ms = r.take("join_timeout_ms", number, node.join_timeout_ms)?;
    node.call_timeout_ms = r.take("call_timeout_ms", number, node.call_timeout_ms)?;
    node.full_wait_ms = r.take("full_wait_ms", number, node.full_wait_ms)?;
    node.data_connections = r.take("data_connections", number, node.data_connections)?;
    let devices = Some(Devices::default());
    let devices = r.take_unless("rdma_devices", "none", values::devices, devices)?;
    let gid_index = r.take_unless("rdma_gid_index", "auto", number, None)?;
    let pairs = r.take_unless("rdma_pairs", "auto", values::pairs, None)?;
    if devices.is_none() && (gid_index.is_some() || pairs.is_some()) {
        return Err("rdma_devices none: then rdma_gid_index and rdma_pairs mean nothing; leave \
                    them out"
            .to_string());
    }
    let pairs = pairs.unwrap_or(0);
    node.fabric = devices.map(|Devices(devices)| FabricConfig { devices, gid_index, pairs });
    Ok(())
}

/// The job's secret, from the variable or a file. A flag wins over the variable, which wins over
/// the file of settings; the two variables together are a contradiction.
fn secret(r: &mut Resolver, env: &Env) -> Result<Option<Secret>, String> {
    let variable = env.get(SECRET_VARIABLE).map(OsStr::new);
    let source = r.source("secret_file").unwrap_or_default();
    if variable.is_some() && !r.is_typed("secret_file") {
        let named = (source == SECRET_FILE_VARIABLE).then(|| OsStr::new("another"));
        let found = Secret::choose(None, variable, named).map_err(|e| e.to_string())?;
        r.note("secret_file", NO_SECRET_FILE, SECRET_VARIABLE);
        return Ok(found);
    }
    let path = |text: &str| match text {
        "" => Err(format!("a file is expected, or {NO_SECRET_FILE}")),
        _ => Ok(text.to_string()),
    };
    let path = r.take_unless("secret_file", NO_SECRET_FILE, path, None)?;
    let read = path.map(|path| Secret::read(Path::new(&path)));
    read.transpose().map_err(|e| format!("{source}: {e}"))
}

fn threads(r: &mut Resolver, machine: Machine) -> Result<usize, String> {
    match r.take("threads", number, 0usize)? {
        0 => Ok(machine.cores.clamp(*THREADS.start(), *THREADS.end())),
        n if n <= MAX_THREADS => Ok(n),
        n => Err(format!("threads: {n} is more than {MAX_THREADS}")),
    }
}

/// Other ranks connect to this address, so it must be a specific address of this host.
fn reachable(text: &str) -> Result<IpAddr, String> {
    match text.parse::<IpAddr>() {
        Ok(ip) if ip.is_unspecified() => {
            Err("the other ranks connect to this address: give the one that leads here".to_string())
        }
        Ok(ip) => Ok(ip),
        Err(_) => Err("an IP address is expected, such as 127.0.0.1 or ::1".to_string()),
    }
}

fn loopback_like(listen: IpAddr) -> IpAddr {
    match listen {
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::LOCALHOST),
    }
}

fn is_this_host(host: &str) -> bool {
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

#[cfg(test)]
mod tests;
