//! Clusters of real `nkv-node` processes for whole-system tests: each with its own ports and its
//! own job; waits are bounded, and dropping the cluster ends it. A test fails if a rank leaves
//! processes or names in shared memory.
#![allow(dead_code, unused_imports, reason = "each test program uses a part of it")]

mod process;
mod terminal;
mod web;

pub use process::{EXIT_LIMIT, Ended, Process, READY_LIMIT, all_threads_stand, run_to_end};
pub use terminal::{AtTerminal, Terminal};
pub use web::http_get;

use nkv::{Address, Blocking, ClientConfig, TransportChoice};
use nkv_store::clock::{BootClock, Clock};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// True if clients without shared memory use RDMA devices, and these execute the claims in logs:
/// `NKV_TEST_RDMA` is set, in a guest of `scripts/rdma-test`.
pub fn by_devices() -> bool {
    std::env::var_os("NKV_TEST_RDMA").is_some()
}

/// Pause between two checks of a condition that is waited for.
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Heap of a rank unless the test says otherwise. Without `--log-bytes` it has no log: what is put
/// is listed at once, and space is what plans use.
const HEAP: &str = "16MiB";

/// What a test changes in the command of every rank.
type Customise = Box<dyn Fn(u32, &mut Command)>;

/// `n` ranks in a process each. Ranks are numbered from 0; rank 0 is the master.
pub struct ProcessCluster {
    job: String,
    ranks: u32,
    port: u16,
    // Ports at which ranks reach the master, if not directly: behind a relay.
    ports: BTreeMap<u32, u16>,
    customise: Customise,
    nodes: Vec<Option<Process>>,
    killed: bool,
}

impl ProcessCluster {
    /// Starts `n` ranks and waits until all are ready. `customise` may add flags and variables to
    /// each command; a flag that is there already (rank, world size, port) may not be given again.
    pub fn start(n: u32, customise: impl Fn(&mut Command) + 'static) -> Self {
        Self::start_each(n, move |_, command| customise(command))
    }

    /// As [`Self::start`], with the rank's number.
    pub fn start_each(n: u32, customise: impl Fn(u32, &mut Command) + 'static) -> Self {
        let mut cluster = Self::none(n, customise);
        for rank in 0..n {
            cluster.restart(rank);
        }
        cluster.wait_ready(READY_LIMIT);
        cluster
    }

    /// `n` ranks that elect their master: none is ready before most of them run.
    pub fn start_electing(n: u32, by: &str, customise: impl Fn(&mut Command) + 'static) -> Self {
        let by = by.to_string();
        let mut cluster = Self::none(n, move |_, command| {
            command.args(["--election", &by]);
            customise(command);
        });
        for rank in 0..n {
            cluster.begin(rank);
        }
        cluster.are_ready();
        cluster.wait_ready(READY_LIMIT);
        cluster
    }

    /// A cluster of `n` ranks none of which runs yet: start them with [`Self::restart`], 0 first.
    pub fn none(n: u32, customise: impl Fn(u32, &mut Command) + 'static) -> Self {
        let nodes = (0..n).map(|_| None).collect();
        let customise = Box::new(customise);
        let (job, ports) = (new_job(), BTreeMap::new());
        let port = port_to_keep();
        Self { job, ranks: n, port, ports, customise, nodes, killed: false }
    }

    /// The job's name.
    pub fn job(&self) -> &str {
        &self.job
    }

    /// Rank 0's control port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// From its next start on, a rank connects to the master at this port of this host.
    pub fn master_seen_at(&mut self, rank: u32, port: u16) {
        self.ports.insert(rank, port);
    }

    /// A rank that runs.
    pub fn node(&self, rank: u32) -> &Process {
        self.nodes[rank as usize].as_ref().unwrap_or_else(|| panic!("rank {rank} does not run"))
    }

    fn node_mut(&mut self, rank: u32) -> &mut Process {
        self.nodes[rank as usize].as_mut().unwrap_or_else(|| panic!("rank {rank} does not run"))
    }

    /// A rank's HTTP address.
    pub fn http(&self, rank: u32) -> &str {
        self.node(rank).http()
    }

    /// GETs a path of a rank: status and body.
    pub fn get(&self, rank: u32, path: &str) -> (u16, String) {
        http_get(self.http(rank), path)
    }

    /// The command of a rank, complete but for what a test adds.
    pub fn command(&self, rank: u32) -> Command {
        let mut command = node_command(&self.job);
        command.args(["--rank", &rank.to_string(), "--world-size", &self.ranks.to_string()]);
        let port = self.ports.get(&rank).unwrap_or(&self.port);
        command.args(["--port", &port.to_string()]);
        command
    }

    /// Starts a rank that does not run (any more) and waits until it has joined. Rank 0 gets the
    /// port it had.
    pub fn restart(&mut self, rank: u32) {
        self.begin(rank);
        self.node_mut(rank).is_ready();
    }

    /// The same, and waits for nothing.
    pub fn begin(&mut self, rank: u32) {
        assert!(self.nodes[rank as usize].is_none(), "rank {rank} runs");
        let mut command = self.command(rank);
        (self.customise)(rank, &mut command);
        let given = |flag: &str| command.get_args().any(|a| a == flag);
        let (heap, log) = (given("--heap-bytes"), given("--log-bytes"));
        if !heap {
            command.args(["--heap-bytes", HEAP]);
        }
        if !log {
            command.args(["--log-bytes", "0"]);
        }
        self.nodes[rank as usize] = Some(Process::spawn(command));
    }

    /// Waits until every rank that was begun has joined.
    pub fn are_ready(&mut self) {
        self.nodes.iter_mut().flatten().for_each(Process::is_ready_once);
    }

    /// Waits until every running rank reports that it is ready.
    pub fn wait_ready(&self, limit: Duration) {
        for node in self.nodes.iter().flatten() {
            let mut last = String::new();
            let ready = || {
                let (code, body) = http_get(node.http(), "/readyz");
                last = body;
                code == 200
            };
            if !holds_within(limit, ready) {
                panic!("rank {} is not ready: {last}\n{}", node.rank(), node.stderr());
            }
        }
    }

    /// SIGKILL; returns when the process is gone. Its segment stays until another rank starts.
    pub fn kill9(&mut self, rank: u32) {
        self.killed = true;
        self.node_mut(rank).kill9();
        self.nodes[rank as usize] = None;
    }

    /// Waits until a rank has joined with a new incarnation and is ready.
    pub fn joined_again(&mut self, rank: u32) {
        self.node_mut(rank).joined_again(READY_LIMIT);
        self.wait_ready(READY_LIMIT);
    }

    /// SIGTERM; returns at once.
    pub fn term(&self, rank: u32) {
        self.node(rank).signal(rustix::process::Signal::TERM);
    }

    /// Signals a draining rank until it ends: the same signal soon after the first is ignored.
    pub fn end_at_once(&mut self, rank: u32, signal: rustix::process::Signal) -> Ended {
        until(EXIT_LIMIT, "a second signal ends it", || {
            self.node(rank).signal(signal);
            !self.node_mut(rank).is_running()
        });
        self.wait_exit(rank, EXIT_LIMIT)
    }

    /// Waits for a rank to end by itself. The rank does not run any more then.
    pub fn wait_exit(&mut self, rank: u32, limit: Duration) -> Ended {
        let ended = self.node_mut(rank).wait_exit(limit);
        self.nodes[rank as usize] = None;
        ended
    }

    /// A client of the cluster through a rank.
    pub fn connect(&self, rank: u32) -> Blocking {
        self.connect_by(rank, TransportChoice::Auto)
    }

    /// A client that uses a certain transport to the owners.
    pub fn connect_by(&self, rank: u32, transport: TransportChoice) -> Blocking {
        let config = ClientConfig { job: self.job.clone(), transport, ..ClientConfig::default() };
        Blocking::connect(&self.address(rank), config)
            .unwrap_or_else(|e| panic!("no client through rank {rank}: {e}"))
    }

    /// A rank's control address.
    pub fn address(&self, rank: u32) -> Address {
        self.node(rank).control().parse().expect("a control address")
    }

    /// `nkv` with this cluster's address and job.
    pub fn cli(&self, rank: u32, args: &[&str]) -> Command {
        let mut command = clean_command(env!("CARGO_BIN_EXE_nkv"));
        command.env("NKV_CONNECT", self.node(rank).control()).env("NKV_JOB", &self.job);
        command.args(args);
        command
    }

    /// Names of this job in shared memory now.
    pub fn left_in_shm(&self) -> Vec<String> {
        left_in_shm(&self.job)
    }
}

impl Drop for ProcessCluster {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for node in self.nodes.iter_mut().flatten() {
                eprintln!("--- rank {} (pid {})\n{}", node.rank(), node.pid(), node.stderr());
                node.kill9();
            }
            remove_from_shm(&self.job);
            return;
        }
        let mut late = Vec::new();
        for node in self.nodes.iter().flatten() {
            node.signal(rustix::process::Signal::TERM);
        }
        // The master last: the others leave through it.
        for node in self.nodes.iter_mut().flatten().rev() {
            if !node.ends_within(EXIT_LIMIT) {
                late.push(format!("rank {}:\n{}", node.rank(), node.stderr()));
                node.kill9();
            }
        }
        let left = left_in_shm(&self.job);
        remove_from_shm(&self.job);
        assert!(late.is_empty(), "SIGTERM did not end {}", late.join("\n"));
        assert!(self.killed || left.is_empty(), "left in shared memory: {left:?}");
    }
}

/// A job that no other test of this machine has.
pub fn new_job() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let random = nkv_store::random_u64() as u32;
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("test-{}-{number}-{random:08x}", std::process::id())
}

/// A free port for a rank 0 that is killed and started again. It is none that the kernel hands to
/// connections and to listeners at port 0: one of these could have it between the two.
fn port_to_keep() -> u16 {
    const LOWEST: u32 = 10_000;
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range");
    let handed_out = range.ok().and_then(|r| r.split_whitespace().next()?.parse().ok());
    let end = handed_out.filter(|end: &u32| *end > 2 * LOWEST).unwrap_or(32_768);
    let count = end - LOWEST;
    // Test programs run at once, with process numbers near each other: each begins elsewhere.
    let first = std::process::id().wrapping_mul(61);
    let ports = (0..count).map(|_| {
        let number = first.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % count;
        u16::try_from(LOWEST + number).expect("below the ports handed out")
    });
    let mut free = ports.filter(|p| std::net::TcpListener::bind(("127.0.0.1", *p)).is_ok());
    free.next().expect("a free port")
}

/// A program without those variables of this process's environment that could change its behaviour.
pub fn clean_command(program: &str) -> Command {
    let mut command = Command::new(program);
    command.env_clear();
    for kept in ["PATH", "HOME", "TMPDIR", "RUST_BACKTRACE", "LLVM_PROFILE_FILE"] {
        if let Some(value) = std::env::var_os(kept) {
            command.env(kept, value);
        }
    }
    command
}

/// `nkv-node` of a job, in a clean environment and without rank, world or heap.
pub fn node_command(job: &str) -> Command {
    let mut command = clean_command(env!("CARGO_BIN_EXE_nkv-node"));
    command.env("NKV_JOB", job);
    command
}

/// Names of a job in shared memory now.
pub fn left_in_shm(job: &str) -> Vec<String> {
    let prefix = format!("nkv.{job}.");
    let entries = std::fs::read_dir(nkv_store::shm::SHM_DIR).expect("shared memory");
    let names = entries.filter_map(|e| e.ok()?.file_name().into_string().ok());
    names.filter(|name| name.starts_with(&prefix)).collect()
}

/// Removes what a killed rank left; others may have done it first.
fn remove_from_shm(job: &str) {
    for name in left_in_shm(job) {
        let _ = std::fs::remove_file(format!("{}/{name}", nkv_store::shm::SHM_DIR));
    }
    let _ = std::fs::remove_file(cookie(job));
}

/// The cookie of a plainly named job. A test's environment names no folder for it, but its user may
/// have a runtime folder.
pub fn cookie(job: &str) -> PathBuf {
    let me = rustix::process::geteuid().as_raw();
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let usual = PathBuf::from(format!("/run/user/{me}"));
    let own = PathBuf::from(format!("/tmp/nkv-{me}"));
    let name = format!("nkv-{job}.cookie");
    let mut places = runtime.into_iter().chain([usual]).map(|p| p.join(&name));
    places.find(|p| p.exists()).unwrap_or_else(|| own.join(&name))
}

/// True as soon as `condition` holds; false if it does not within `limit`.
pub fn holds_within(limit: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let start = BootClock.now_ms();
    loop {
        if condition() {
            return true;
        }
        if u128::from(BootClock.now_ms() - start) >= limit.as_millis() {
            return false;
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Waits until `condition` holds; panics with `what` if it does not within `limit`.
pub fn until(limit: Duration, what: &str, condition: impl FnMut() -> bool) {
    assert!(holds_within(limit, condition), "not within {} ms: {what}", limit.as_millis());
}
