//! The effective configuration: flags over `NKV_*` variables over the file over the launcher over
//! defaults, each value with its source. It starts nothing and opens only the configuration file
//! and the secret's file.

mod file;
mod resolve;
mod values;

use crate::flags::{Flags, PREFAULT};
use crate::launcher::{self, Env, Launcher, LauncherError};
use nkv::{NodeConfig, Secret};
use nkv_programs::endpoints::DEFAULT_PORT;
use nkv_programs::exit;
use nkv_programs::logging::LogFormat;
use nkv_programs::sizes::{parse_bytes, show_bytes};
use nkv_programs::variables;
use nkv_store::segment_layout::MAX_ARENA_BYTES;
use nkv_transport::fabric::FabricConfig;
use nkv_transport::wire::auth::{SECRET_FILE_VARIABLE, SECRET_VARIABLE};
use resolve::{Layers, Resolver};
use std::ffi::OsStr;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use values::{boolean, http_address, job_name, memory, number, watermarks};

pub(crate) use resolve::Line;

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
/// Value of `secret_file` for no file.
const NO_SECRET_FILE: &str = "none";
/// The default job.
const DEFAULT_JOB: &str = "nkv";
/// Most and least worker threads chosen by default.
const THREADS: std::ops::RangeInclusive<usize> = 2..=8;
/// Most worker threads that may be set.
const MAX_THREADS: usize = 256;

/// What a rank runs with.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    /// The library's configuration.
    pub(crate) node: NodeConfig,
    /// Where HTTP is served; `None`: nowhere.
    pub(crate) http: Option<SocketAddr>,
    /// How long plans in flight may take to finish after SIGTERM.
    pub(crate) drain_ms: u64,
    /// Fresh starts in a row after being declared gone.
    pub(crate) rejoins: u32,
    /// Worker threads.
    pub(crate) threads: usize,
    /// Filter of log lines.
    pub(crate) log: String,
    /// Their form.
    pub(crate) log_format: LogFormat,
    /// Every effective value and its source, in the order of the table.
    pub(crate) lines: Vec<Line>,
    /// Warnings for the user.
    pub(crate) warnings: Vec<String>,
}

/// Settings that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SettingsError {
    /// A wrong value, file or combination.
    #[error("{0}")]
    Config(String),
    /// Half a launcher environment, or a broken one.
    #[error("{0}")]
    Launcher(#[from] LauncherError),
}

impl SettingsError {
    /// The process's exit status.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::Config(_) | Self::Launcher(_) => exit::USAGE,
        }
    }
}

/// What this machine has: measured once, so that the rest is a pure function.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Machine {
    /// Bytes of memory that a segment may take; 0 if unknown.
    pub(crate) memory_bytes: u64,
    /// Cores of this process.
    pub(crate) cores: usize,
}

impl Machine {
    /// Asks the system.
    pub(crate) fn measure() -> Self {
        let cores = std::thread::available_parallelism().map_or(*THREADS.start(), usize::from);
        Self { memory_bytes: nkv_store::shm::available_bytes(), cores }
    }
}

/// Resolves every setting.
///
/// # Errors
/// One sentence: which value of which source is wrong, or what a launcher left out.
pub(crate) fn resolve(
    flags: &Flags,
    env: &Env,
    machine: Machine,
) -> Result<Settings, SettingsError> {
    let layers = Layers::new(flags, env)?;
    let mut warnings = Vec::new();
    let launcher = match launcher::detect(env) {
        Ok(found) => found,
        // A user who gives both numbers needs no launcher, so an incomplete set is only a warning.
        Err(broken) if layers.has("rank") && layers.has("world_size") => {
            warnings.push(format!("ignored, since rank and world size are given: {broken}"));
            None
        }
        Err(broken) => return Err(broken.into()),
    };
    let mut r = Resolver::new(&layers, launcher.as_ref().map(|l| l.family));
    let address = RankAddress::resolve(&mut r, launcher.as_ref(), env)?;
    let mut node = address.config(&mut r, launcher.as_ref(), machine)?;
    heap_use(&mut r, &mut node)?;
    limits(&mut r, &mut node)?;
    node.secret = secret(&mut r, env)?;
    let settings = Settings {
        node,
        http: address.http,
        drain_ms: r.take("drain_ms", number, DEFAULT_DRAIN_MS)?,
        rejoins: r.take("rejoins", number, DEFAULT_REJOINS)?,
        threads: threads(&mut r, machine)?,
        log: r.take("log", |text| Ok(text.to_string()), DEFAULT_LOG.to_string())?,
        log_format: r.take("log_format", values::log_format, LogFormat::default())?,
        lines: r.into_lines(),
        warnings: [
            warnings,
            address.warnings(launcher.as_ref()),
            variables::unknown(env.keys().map(String::as_str)),
        ]
        .concat(),
    };
    settings.node.validate().map_err(|e| SettingsError::Config(e.to_string()))?;
    Ok(settings)
}

/// Which rank this is and where it listens.
struct RankAddress {
    job: String,
    rank: u32,
    world_size: u32,
    master_host: String,
    port: u16,
    listen: IpAddr,
    http: Option<SocketAddr>,
}

impl RankAddress {
    fn resolve(
        r: &mut Resolver<'_>,
        launcher: Option<&Launcher>,
        env: &Env,
    ) -> Result<Self, SettingsError> {
        let found = launcher::job(env);
        let job = match found {
            Some((job, from)) => r.take_or("job", job_name, job, from.to_string()),
            None => r.take("job", job_name, DEFAULT_JOB.to_string()),
        }?;
        let rank = r.take_detected("rank", number, launcher.map(|l| l.rank), 0)?;
        let world_size =
            r.take_detected("world_size", number, launcher.map(|l| l.world_size), 1)?;
        if rank >= world_size {
            return Err(SettingsError::Config(format!(
                "rank {rank} does not exist in a world of {world_size}: ranks go from 0 to the \
                 world size less one; give --rank and --world-size alike"
            )));
        }
        let listen = r.peek("listen", reachable)?.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST));
        let master_host = master_host(r, launcher, rank, listen)?;
        let port = port(r, rank)?;
        let listen = r.take("listen", reachable, listen)?;
        let http = SocketAddr::new(loopback_like(listen), 0);
        let http = r.take("http", http_address, values::Http(Some(http)))?.0;
        Ok(Self { job, rank, world_size, master_host, port, listen, http })
    }

    fn config(
        &self,
        r: &mut Resolver<'_>,
        launcher: Option<&Launcher>,
        machine: Machine,
    ) -> Result<NodeConfig, SettingsError> {
        let local_ranks = match launcher.and_then(|l| l.local_world_size) {
            Some(n) => n,
            None if is_this_host(&self.master_host) => self.world_size,
            None => 1,
        };
        let share = machine.memory_bytes / DEFAULT_HEAP_PART / u64::from(local_ranks.max(1));
        let share = share.min(DEFAULT_HEAP_BYTES) / DEFAULT_HEAP_STEP * DEFAULT_HEAP_STEP;
        let why = format!(
            "default: at most {}, a quarter of {} over {local_ranks} ranks of this host",
            show_bytes(DEFAULT_HEAP_BYTES),
            show_bytes(machine.memory_bytes)
        );
        let heap_bytes = r.take_or("heap_bytes", parse_bytes, share, why)?;
        heap_fits(heap_bytes, r.has("heap_bytes"))?;
        Ok(NodeConfig {
            job: self.job.clone(),
            rank: self.rank,
            world_size: self.world_size,
            master_host: self.master_host.clone(),
            port: self.port,
            listen: self.listen,
            heap_bytes,
            ..NodeConfig::default()
        })
    }

    fn warnings(&self, launcher: Option<&Launcher>) -> Vec<String> {
        let mut found = Vec::new();
        if self.listen.is_loopback() && launcher.is_some_and(|l| !l.one_host) {
            found.push(format!(
                "the ranks may run on several hosts, but this one listens on {} only: give \
                 --listen an address that the other hosts reach",
                self.listen
            ));
        }
        if self.http.is_some_and(|http| !http.ip().is_loopback()) {
            found.push("the HTTP address is open to other hosts and not authenticated".into());
        }
        found
    }
}

/// Checks the bounds of a heap.
fn heap_fits(bytes: u64, given: bool) -> Result<(), SettingsError> {
    match bytes {
        0 if given => Err(SettingsError::Config("heap_bytes 0: at least 1 byte".to_string())),
        0 => Err(SettingsError::Config(
            "there is no memory for a heap by default: give --heap-bytes".to_string(),
        )),
        1..=MAX_ARENA_BYTES => Ok(()),
        _ => Err(SettingsError::Config(format!(
            "heap_bytes {}: at most {} a rank",
            show_bytes(bytes),
            show_bytes(MAX_ARENA_BYTES)
        ))),
    }
}

/// The host of rank 0. A launcher on one host may give the host's external name, under which a rank
/// that listens on loopback cannot be reached; so the default there is `listen`.
fn master_host(
    r: &mut Resolver<'_>,
    launcher: Option<&Launcher>,
    rank: u32,
    listen: IpAddr,
) -> Result<String, SettingsError> {
    let parse = values::host;
    let here = listen.to_string();
    match launcher {
        Some(l) if l.one_host => {
            r.take_or("master_addr", parse, here, format!("{}: one host", l.family))
        }
        Some(Launcher { master_host: Some(host), family, .. }) => {
            r.take_or("master_addr", parse, host.clone(), family.to_string())
        }
        Some(l) if rank != 0 && !r.has("master_addr") => Err(SettingsError::Config(format!(
            "{} does not set the host of rank 0: give --master-addr HOST or NKV_MASTER_ADDR",
            l.family
        ))),
        _ => r.take("master_addr", parse, here),
    }
}

/// Rank 0's port. Other ranks could not find one that was picked at random.
fn port(r: &mut Resolver<'_>, rank: u32) -> Result<u16, SettingsError> {
    let port = r.take("port", number, DEFAULT_PORT)?;
    if rank != 0 && port == 0 {
        return Err(SettingsError::Config(
            "--port is 0, and only rank 0 takes a free port: give --port or NKV_PORT the port in \
             control= of rank 0's ready line"
                .to_string(),
        ));
    }
    Ok(port)
}

fn heap_use(r: &mut Resolver<'_>, node: &mut NodeConfig) -> Result<(), SettingsError> {
    node.memory = r.take("memory", memory, values::Kind(node.memory))?.0;
    node.prefault = r.take(PREFAULT, boolean, node.prefault)?;
    let page_bytes = |text: &str| {
        let bytes = parse_bytes(text)?;
        u32::try_from(bytes).map_err(|_| format!("{bytes} bytes are more than 4 GiB less one"))
    };
    node.page_bytes = r.take("page_bytes", page_bytes, node.page_bytes)?;
    let policy = |text: &str| text.parse().map_err(|e: nkv_store::StoreError| e.to_string());
    node.policy = r.take("policy", policy, node.policy)?;
    let marks = values::Marks { hi: node.water_hi, lo: node.water_lo };
    let marks = r.take("watermarks", watermarks, marks)?;
    (node.water_hi, node.water_lo) = (marks.hi, marks.lo);
    node.quarantine_ms = r.take("quarantine_ms", number, node.quarantine_ms)?;
    node.log_bytes = r.take("log_bytes", parse_bytes, node.log_bytes)?;
    node.atomic_domain = r.take("atomic_domain", str::parse, node.atomic_domain)?;
    node.device_alloc = r.take("device_alloc", boolean, node.device_alloc)?;
    Ok(())
}

fn limits(r: &mut Resolver<'_>, node: &mut NodeConfig) -> Result<(), SettingsError> {
    node.write_ttl_ms = r.take("write_ttl_ms", number, node.write_ttl_ms)?;
    node.log_claim_ttl_ms = r.take("log_claim_ttl_ms", number, node.log_claim_ttl_ms)?;
    node.ttl_ms = r.take("ttl_ms", number, node.ttl_ms)?;
    node.heartbeat_ms = r.take("heartbeat_ms", number, node.heartbeat_ms)?;
    node.join_timeout_ms = r.take("join_timeout_ms", number, node.join_timeout_ms)?;
    node.call_timeout_ms = r.take("call_timeout_ms", number, node.call_timeout_ms)?;
    node.full_wait_ms = r.take("full_wait_ms", number, node.full_wait_ms)?;
    node.data_connections = r.take("data_connections", number, node.data_connections)?;
    let devices = r.take("rdma_devices", values::devices, values::Devices::Auto)?;
    let gid_index = r.take("rdma_gid_index", values::gid_index, values::GidIndex(None))?.0;
    let pairs = r.take("rdma_pairs", values::pairs, values::Pairs(0))?.0;
    if devices == values::Devices::Off && (gid_index.is_some() || pairs > 0) {
        return Err(SettingsError::Config(
            "rdma_devices none: then rdma_gid_index and rdma_pairs mean nothing; leave them out"
                .to_string(),
        ));
    }
    node.fabric = devices.names().map(|devices| FabricConfig { devices, gid_index, pairs });
    Ok(())
}

/// The job's secret, from the variable or a file. A flag wins over the variable, which wins over
/// the file of settings; the two variables together are a contradiction.
fn secret(r: &mut Resolver<'_>, env: &Env) -> Result<Option<Secret>, SettingsError> {
    let wrong = |e: &dyn std::fmt::Display| SettingsError::Config(e.to_string());
    let variable = env.get(SECRET_VARIABLE).map(OsStr::new);
    let source = r.source("secret_file").unwrap_or_default();
    if variable.is_some() && !source.starts_with("--") {
        let named = (source == SECRET_FILE_VARIABLE).then(|| OsStr::new("another"));
        let found = Secret::choose(None, variable, named).map_err(|e| wrong(&e))?;
        r.note("secret_file", NO_SECRET_FILE, SECRET_VARIABLE);
        return Ok(found);
    }
    let path = r.take("secret_file", secret_file, NO_SECRET_FILE.to_string())?;
    if path == NO_SECRET_FILE {
        return Ok(None);
    }
    let named = |e| SettingsError::Config(format!("{source}: {e}"));
    Secret::read(Path::new(&path)).map(Some).map_err(named)
}

fn secret_file(text: &str) -> Result<String, String> {
    match text {
        "" => Err(format!("a file is expected, or {NO_SECRET_FILE}")),
        _ => Ok(text.to_string()),
    }
}

fn threads(r: &mut Resolver<'_>, machine: Machine) -> Result<usize, SettingsError> {
    match r.take("threads", number, 0usize)? {
        0 => Ok(machine.cores.clamp(*THREADS.start(), *THREADS.end())),
        n if n <= MAX_THREADS => Ok(n),
        n => Err(SettingsError::Config(format!("threads: {n} is more than {MAX_THREADS}"))),
    }
}

fn address(text: &str) -> Result<IpAddr, String> {
    text.parse().map_err(|_| "an IP address is expected, such as 127.0.0.1 or ::1".to_string())
}

/// Other ranks connect to this address, so it must be a specific address of this host.
fn reachable(text: &str) -> Result<IpAddr, String> {
    match address(text)? {
        ip if ip.is_unspecified() => {
            Err("the other ranks connect to this address: give the one that leads here".to_string())
        }
        ip => Ok(ip),
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
