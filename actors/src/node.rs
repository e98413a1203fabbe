//! Node: one rank, in a process of its own or embedded. It builds the segment, starts actors,
//! listeners and the tcp agent, joins, and takes all of it down again. It decides nothing.

mod config;
mod start;
mod status;
mod watchdog;

pub use config::{MemoryChoice, NodeConfig, StartError};
use start::SocketFile;
pub use status::NodeStatus;

use crate::cell::CellAddr;
use crate::client::Client;
use crate::evictor::Evictor;
use crate::master::{Master, Members};
use crate::membership::{LinkState, Uplink};
use crate::message::{RankInfo, Settings, Term, Up};
use crate::owner::Owner;
use crate::owner::tables::OwnerTables;
use crate::place::OwnedPlace;
use crate::producer::Producer;
use crate::server::Published;
use nkv_store::clock::Clock;
use nkv_store::shm::ShmMemory;
use nkv_transport::Alive;
use nkv_transport::tcp::TcpAgent;
use nkv_transport::wire::auth::{Credentials, Guard};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::watch;

/// Between looks at whether a drain is done.
const DRAIN_LOOK: Duration = Duration::from_millis(10);
/// How an embedded cluster waits for its ranks' first reports: 10 s in all.
const READY_LOOK: Duration = Duration::from_millis(5);
const READY_LOOKS: u32 = 2_000;
/// How long a leaving node waits for its last word to be on its way.
const LEAVE_LIMIT: Duration = Duration::from_millis(500);

/// Why a node cannot go on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ended {
    /// The master declared this incarnation gone: start a fresh node [I17].
    Gone,
    /// An actor spent its restart budget, or is frozen: which, and how.
    ActorFailed(String),
}

/// What a drain found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DrainReport {
    /// Plans that ended while it waited.
    pub plans_finished: u64,
    /// Plans still open at its limit.
    pub plans_left: u64,
    /// Milliseconds it took.
    pub waited_ms: u64,
}

/// One rank of a cluster. Dropping it takes it down at once; see [`Node::drain`] and [`Node::stop`].
pub struct Node {
    config: NodeConfig,
    guard: Arc<Guard>,
    info: RankInfo,
    client: Client,
    producer: CellAddr<Producer>,
    owner: CellAddr<Owner>,
    evictor: CellAddr<Evictor>,
    master: Option<(CellAddr<Master>, Arc<Members>)>,
    tables: Arc<OwnerTables>,
    uplink: Arc<Uplink>,
    link: watch::Receiver<LinkState>,
    settings: watch::Receiver<Option<(Term, Settings)>>,
    failed: watch::Receiver<Option<String>>,
    agent: TcpAgent,
    alive: Alive,
    closing: Arc<AtomicBool>,
    clock: Arc<dyn Clock>,
    started_ms: u64,
    _published: Published,
    // Before the segment's name: a socket without a segment counts as stale.
    _socket: Option<SocketFile>,
    // Unlinks the segment's name when dropped.
    _named: Option<ShmMemory>,
    // Last: their threads end with them.
    _master_place: Option<OwnedPlace>,
    _place: OwnedPlace,
}

impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Node(rank {} of job {})", self.config.rank, self.config.job)
    }
}

impl Node {
    /// The handle of this rank: same-process owners are reached without sockets. Each call gives a
    /// handle with control connections of its own, for the runtime it is used in.
    pub fn client(&self) -> Client {
        self.client.for_another_runtime()
    }

    /// Addresses, segment, incarnation.
    pub fn info(&self) -> &RankInfo {
        &self.info
    }

    /// What this node proves to others and demands of them.
    pub fn credentials(&self) -> &Credentials {
        self.guard.credentials()
    }

    /// The effective configuration.
    pub fn config(&self) -> &NodeConfig {
        &self.config
    }

    /// The master actor, on rank 0.
    pub fn master(&self) -> Option<&CellAddr<Master>> {
        self.master.as_ref().map(|(m, _)| m)
    }

    /// The owner actor.
    pub fn owner(&self) -> &CellAddr<Owner> {
        &self.owner
    }

    /// The evictor actor.
    pub fn evictor(&self) -> &CellAddr<Evictor> {
        &self.evictor
    }

    /// The producer actor behind this node's handle.
    pub fn producer(&self) -> &CellAddr<Producer> {
        &self.producer
    }

    /// Joined now, and on rank 0 every rank of the world has joined and reported.
    pub fn is_ready(&self) -> bool {
        let joined = *self.link.borrow() == LinkState::Joined;
        let all = |m: &Arc<Members>| m.ready_ranks() == self.config.world_size as usize;
        joined && !self.is_draining() && self.master.as_ref().is_none_or(|(_, m)| all(m))
    }

    /// True once a drain began.
    pub fn is_draining(&self) -> bool {
        self.client.shared.draining.load(Ordering::Acquire)
    }

    /// Resolves when the node cannot go on.
    pub async fn ended(&self) -> Ended {
        let (mut link, mut failed) = (self.link.clone(), self.failed.clone());
        tokio::select! {
            r = link.wait_for(|l| *l == LinkState::Gone) => match r {
                Ok(_) => Ended::Gone,
                Err(_) => Ended::ActorFailed("the membership task ended".to_string()),
            },
            r = failed.wait_for(Option::is_some) => {
                let what = r.ok().and_then(|f| f.clone()).unwrap_or_default();
                Ended::ActorFailed(what)
            }
        }
    }

    /// Takes no new plans and waits for those in flight, at most `limit`.
    pub async fn drain(&self, limit: Duration) -> DrainReport {
        self.client.shared.draining.store(true, Ordering::Release);
        self.uplink.send(Up::Draining);
        let open = || self.tables.lock().plans.len().max(self.client.open_plans()) as u64;
        let (start, first) = (self.clock.now_ms(), open());
        while open() > 0 && self.clock.now_ms() < start + limit.as_millis() as u64 {
            tokio::time::sleep(DRAIN_LOOK).await;
        }
        if let Err(error) = self.client.flush().await {
            tracing::debug!(%error, "draining");
        }
        let left = open();
        DrainReport {
            plans_finished: first.saturating_sub(left),
            plans_left: left,
            waited_ms: self.clock.now_ms() - start,
        }
    }

    /// Leaves the cluster and unlinks everything.
    pub async fn stop(self) {
        self.closing.store(true, Ordering::Release);
        self.client.for_another_runtime().close().await;
        self.uplink.send(Up::Leave);
        let mut link = self.link.clone();
        let left = link.wait_for(|l| *l != LinkState::Joined);
        if tokio::time::timeout(LEAVE_LIMIT, left).await.is_err() {
            tracing::debug!("left without the master's notice");
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.closing.store(true, Ordering::Release);
        self.alive.mark_dead();
        self.agent.stop();
        // Clients of this node may hold its credentials for longer.
        self.guard.credentials().let_go();
    }
}

/// Several ranks in one process: for tests, examples and the load generator.
#[derive(Debug)]
pub struct Cluster {
    nodes: Vec<Node>,
}

impl Cluster {
    /// Starts `ranks` nodes that differ only in rank; rank 0's port is ephemeral.
    pub async fn start(ranks: u32, base: NodeConfig) -> Result<Self, StartError> {
        let mut nodes: Vec<Node> = Vec::with_capacity(ranks as usize);
        for rank in 0..ranks {
            let mut config = NodeConfig { rank, world_size: ranks, ..base.clone() };
            match nodes.first() {
                None => config.port = 0,
                Some(first) => {
                    let at = first.info().control.to_string();
                    let port = at.rsplit(':').next().and_then(|p| p.parse().ok());
                    config.port = port.ok_or_else(|| StartError::Internal(at.clone()))?;
                }
            }
            nodes.push(Node::start(config).await?);
        }
        let cluster = Self { nodes };
        for _ in 0..READY_LOOKS {
            if cluster.node(0).is_ready() {
                return Ok(cluster);
            }
            tokio::time::sleep(READY_LOOK).await;
        }
        Err(StartError::Internal(format!("{ranks} ranks joined but not all reported in time")))
    }

    /// One of the nodes.
    pub fn node(&self, rank: u32) -> &Node {
        &self.nodes[rank as usize]
    }

    /// All nodes.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The handle of rank 0.
    pub fn client(&self) -> Client {
        self.node(0).client()
    }

    /// Stops every node, the master last.
    pub async fn stop(mut self) {
        while let Some(node) = self.nodes.pop() {
            node.stop().await;
        }
    }
}
