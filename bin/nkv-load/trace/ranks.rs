//! Ranks in processes of their own, which can be killed: this program started again with `--serve`.
//! A rank ends when its standard input does, so none outlives the generator.

use crate::status::ended;
use crate::stopwatch::Deadline;
use anyhow::{Context, bail};
use nkv::{Address, Blocking, ClientConfig, MemoryChoice, Node, NodeConfig};
use nkv_actors::tier::{Durability, SsdConfig, SsdPolicy};
use nkv_programs::exit;
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;
use tokio::runtime::Runtime;

/// How long a cluster may take until every rank has joined.
const READY_LIMIT: Duration = Duration::from_secs(60);

/// What a rank needs to know, as text on its command line.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct RankArguments {
    job: String,
    rank: u32,
    world_size: u32,
    port: u16,
    heap_bytes: u64,
    log_bytes: Option<u64>,
    quarantine_ms: u32,
    watermarks: String,
    policy: String,
    ssd_dir: Option<PathBuf>,
    ssd_bytes: u64,
    write_through: bool,
    persistent: bool,
}

impl RankArguments {
    fn of(config: &NodeConfig, rank: u32, world_size: u32, port: u16) -> Self {
        let ssd = config.ssd.as_ref();
        Self {
            job: config.job.clone(),
            rank,
            world_size,
            port,
            heap_bytes: config.heap_bytes,
            log_bytes: config.log_bytes,
            quarantine_ms: config.quarantine_ms,
            watermarks: config.watermarks.to_string(),
            policy: config.policy.to_string(),
            ssd_dir: ssd.map(|ssd| ssd.dir.clone()),
            ssd_bytes: ssd.map_or(0, |ssd| ssd.bytes),
            write_through: ssd.is_some_and(|ssd| ssd.policy == SsdPolicy::WriteThrough),
            persistent: ssd.is_some_and(|ssd| ssd.durability == Durability::Persistent),
        }
    }

    fn config(self) -> anyhow::Result<NodeConfig> {
        let ssd = self.ssd_dir.map(|dir| SsdConfig {
            policy: match self.write_through {
                true => SsdPolicy::WriteThrough,
                false => SsdPolicy::EvictOnly,
            },
            durability: match self.persistent {
                true => Durability::Persistent,
                false => Durability::BestEffort,
            },
            ..SsdConfig::new(dir, self.ssd_bytes)
        });
        Ok(NodeConfig {
            job: self.job,
            rank: self.rank,
            world_size: self.world_size,
            port: self.port,
            heap_bytes: self.heap_bytes,
            log_bytes: self.log_bytes,
            quarantine_ms: self.quarantine_ms,
            watermarks: self.watermarks.parse()?,
            policy: self.policy.parse()?,
            memory: MemoryChoice::Shm,
            ssd,
            ..NodeConfig::default()
        })
    }
}

/// `--serve`: one rank, until standard input ends.
///
/// # Errors
/// If it cannot start.
pub(crate) fn serve(text: &str, rt: &Runtime) -> anyhow::Result<()> {
    let arguments: RankArguments = serde_json::from_str(text).context("--serve")?;
    let node = rt.block_on(Node::start(arguments.config()?))?;
    println!("ready {}", node.info().control);
    std::io::stdout().flush()?;
    // Nothing is ever sent: it ends with the generator, or when that wants this rank to end.
    std::io::stdin().read_to_end(&mut Vec::new())?;
    rt.block_on(node.stop());
    Ok(())
}

/// A cluster of such processes.
pub(super) struct Ranks {
    processes: Vec<RankProcess>,
    pub handle: Blocking,
}

struct RankProcess {
    child: Child,
    stdin: Option<ChildStdin>,
}

impl Drop for RankProcess {
    fn drop(&mut self) {
        // Both fail only if it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl RankProcess {
    /// Starts one; returns it with its address once it has joined.
    fn start(arguments: &RankArguments) -> anyhow::Result<(Self, Address)> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("--serve").arg(serde_json::to_string(arguments)?);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let stdin = child.stdin.take();
        let mut stdout = BufReader::new(child.stdout.take().context("no standard output")?);
        let process = Self { child, stdin };
        let mut line = String::new();
        stdout.read_line(&mut line)?;
        let Some(address) = line.trim().strip_prefix("ready tcp://") else {
            bail!("rank {} printed {line:?} instead of its address", arguments.rank);
        };
        Ok((process, Address::Tcp(address.to_string())))
    }

    fn stop(mut self) {
        drop(self.stdin.take());
        let _ = self.child.wait();
    }
}

impl Ranks {
    /// Starts them, and waits until all have joined.
    ///
    /// # Errors
    /// If one does not start or join.
    pub(super) fn start(config: &NodeConfig, ranks: u32) -> anyhow::Result<Self> {
        let (mut processes, mut first, mut port) = (Vec::new(), None, 0);
        for rank in 0..ranks {
            let arguments = RankArguments::of(config, rank, ranks, port);
            let (process, address) = RankProcess::start(&arguments)?;
            processes.push(process);
            if first.is_none() {
                let text = address.to_string();
                let found = text.rsplit(':').next().and_then(|port| port.parse().ok());
                port = found.with_context(|| format!("no port in {text}"))?;
                first = Some(address);
            }
        }
        let first = first.context("no rank")?;
        let client = ClientConfig { job: config.job.clone(), ..ClientConfig::default() };
        let handle = Blocking::connect(&first, client)?;
        let deadline = Deadline::after(READY_LIMIT);
        while handle.membership()?.ranks.len() < ranks as usize {
            if deadline.passed() {
                let why = format!("not all of {ranks} ranks joined within {READY_LIMIT:?}");
                return Err(ended(exit::UNREACHED, why));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(Self { processes, handle })
    }

    /// Kills all of them.
    pub(super) fn kill(self) {
        drop(self.processes);
    }

    /// Ends them in order, the master last.
    pub(super) fn stop(self) {
        self.handle.close();
        self.processes.into_iter().rev().for_each(RankProcess::stop);
    }
}
