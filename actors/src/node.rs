//! Node: one rank, in a process of its own or embedded. It creates the first segment, starts
//! actors, listeners and the tcp agent, joins the cluster, and stops all of them at its end.
//! Further segments are mounted and unmounted while it runs. It decides nothing about objects.

mod common;
mod config;
mod memory;
mod mount;
mod report;
mod rights;
mod segment;
mod settings;
mod start;
mod starter;
mod status;
mod watchdog;

pub use config::{ElectionChoice, MemoryChoice, NodeConfig, StartError};
pub use memory::PinnedStatus;
pub(crate) use mount::Segments;
pub use status::{AttachedTo, NodeStatus, SegmentStatus};

use crate::actor::ActorAddr;
use crate::announce_poller::AnnouncePoller;
use crate::client::Client;
use crate::client::producer::Producer;
use crate::current_master::LocalMaster;
use crate::evictor::Evictor;
use crate::executor::OwnedExecutor;
use crate::master::Master;
use crate::membership::LinkState;
use crate::message::{RankInfo, UnmountReport, View};
use crate::owner::Owner;
use crate::tier::DiskTier;
use futures_util::future::join_all;
use memory::SocketFile;
use mount::{QUIET_LIMIT_MS, until};
use nkv_store::KeyHasher;
use nkv_store::fork::OwnProcessOnly;
use nkv_store::shm;
use nkv_transport::wire::auth::Credentials;
use segment::{SegmentHandle, SegmentHost};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::watch;

/// Pause between two checks of [`Node::ready`].
const READY_POLL_INTERVAL: Duration = Duration::from_millis(5);
/// How long an embedded cluster waits for the first reports of its ranks.
const READY_LIMIT: Duration = Duration::from_secs(10);

/// Why a node cannot go on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ended {
    /// The master declared this incarnation gone: start a new node [I17].
    Gone,
    /// An actor spent its restart budget, or is frozen; the text says which one.
    ActorFailed(String),
}

/// The result of a drain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DrainReport {
    /// Plans that ended while it waited.
    pub plans_finished: u64,
    /// Plans still open at the limit.
    pub plans_left: u64,
    /// Milliseconds it took.
    pub waited_ms: u64,
}

/// One rank of a cluster. Its drop ends it at once; see [`Node::drain`] and [`Node::stop`] for an
/// orderly end.
pub struct Node(OwnProcessOnly<NodeParts>);

/// The parts of a node. A child made by fork has a copy, whose drop ends nothing.
pub struct NodeParts {
    client: Client,
    producer: ActorAddr<Producer>,
    segments: Arc<Segments>,
    failed: watch::Receiver<Option<String>>,
    closing: Arc<AtomicBool>,
    started_ms: u64,
    // Dropped before the first segment's name: a socket without a segment counts as stale.
    _socket: Option<SocketFile>,
    first: SegmentHost,
    // Dropped last: its thread ends with it.
    _control_executor: Option<OwnedExecutor>,
}

impl std::ops::Deref for Node {
    type Target = NodeParts;

    fn deref(&self) -> &NodeParts {
        &self.0
    }
}

impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Node(rank {} of job {})", self.config().rank, self.config().job)
    }
}

impl Node {
    /// A handle of this rank, which reaches owners of this process without sockets. Each call
    /// returns a handle with its own control connections, for the runtime that uses it.
    pub fn client(&self) -> Client {
        self.client.for_another_runtime()
    }

    /// Addresses of this rank, and layout and incarnation of its first segment.
    pub fn info(&self) -> &RankInfo {
        &self.first.segment_handle.info
    }

    /// The SSD tier, if it has one.
    pub fn tier(&self) -> Option<Arc<DiskTier>> {
        self.segments.common.tier.clone()
    }

    /// The credentials that this node shows, and demands of others.
    pub fn credentials(&self) -> &Credentials {
        self.segments.common.guard.credentials()
    }

    /// The hasher that makes the identities of the job's keys [I16].
    pub fn hasher(&self) -> KeyHasher {
        self.segments.common.hasher
    }

    /// The effective configuration.
    pub fn config(&self) -> &NodeConfig {
        &self.segments.common.config
    }

    /// Incarnations of its segments that are joined: the master has handled their reports.
    pub fn joined(&self) -> Vec<u64> {
        let all = self.all_handles().into_iter();
        all.filter(SegmentHandle::is_joined).map(|h| h.info.incarnation).collect()
    }

    /// The members as the master sees them, if it is here.
    pub fn membership(&self) -> Option<View> {
        self.segments.common.master.here().map(|here| here.members.view())
    }

    /// The master actor, if it is here.
    pub fn master(&self) -> Option<ActorAddr<Master>> {
        self.segments.common.master.here().map(|here| here.actor)
    }

    /// Whether the master is here and a quorum of ranks obeys it.
    pub fn serves_as_master(&self) -> bool {
        let now_ms = self.segments.common.env.clock.now_ms();
        self.segments.common.master.here().is_some_and(|here| here.members.has_quorum(now_ms))
    }

    /// The owner actor of the first segment.
    pub fn owner(&self) -> &ActorAddr<Owner> {
        &self.first.segment_handle.roles.owner
    }

    /// The evictor actor of the first segment.
    pub fn evictor(&self) -> &ActorAddr<Evictor> {
        &self.first.segment_handle.roles.evictor
    }

    /// The actor that polls the device log of the first segment, if it has one.
    pub fn poller(&self) -> Option<&ActorAddr<AnnouncePoller>> {
        self.first.segment_handle.roles.poller.as_ref()
    }

    /// The owner actor of a mounted segment.
    pub fn owner_of(&self, segment: u32) -> Option<ActorAddr<Owner>> {
        let mut all = self.segments.all().into_iter();
        all.find(|h| h.info.segment_id == segment).map(|h| h.roles.owner)
    }

    /// The producer actor behind this node's handle.
    pub fn producer(&self) -> &ActorAddr<Producer> {
        &self.producer
    }

    /// True while this rank is joined and does not drain; at the master also every rank of the
    /// world must have joined and reported.
    pub fn is_ready(&self) -> bool {
        let joined = self.first.segment_handle.is_joined();
        let all =
            |here: LocalMaster| here.members.ready_ranks() == self.config().world_size as usize;
        joined && !self.is_draining() && self.segments.common.master.here().is_none_or(all)
    }

    /// Returns once [`Self::is_ready`] is true. It has no time limit: give it one.
    pub async fn ready(&self) {
        while !self.is_ready() {
            tokio::time::sleep(READY_POLL_INTERVAL).await;
        }
    }

    /// True once a drain has begun.
    pub fn is_draining(&self) -> bool {
        self.first.segment_handle.is_draining()
    }

    /// Mounts one more segment, of `bytes` payload bytes, with the kind of memory and the settings
    /// of the first; returns its number once objects may be placed on it. A rank has at most
    /// [`MAX_SEGMENTS`](crate::message::MAX_SEGMENTS). `OutOfMemory` if the machine has too little
    /// memory. A failed mount leaves nothing behind.
    pub async fn mount_segment(&self, bytes: u64) -> crate::Result<u32> {
        self.segments.mount(bytes).await.map(|info| info.segment_id)
    }

    /// Unmounts a segment, with the objects on it: no new plan is placed there, and open plans have
    /// `limit` to end. Reads in progress return a whole value or `NotFound`. The memory is freed
    /// when the last process unmaps it. Segment 0 cannot be unmounted: it ends with its node.
    pub async fn unmount_segment(
        &self,
        segment: u32,
        limit: Duration,
    ) -> crate::Result<UnmountReport> {
        self.segments.unmount(segment, limit).await
    }

    /// Segments mounted now, without the first one.
    pub fn mounted(&self) -> Vec<RankInfo> {
        self.segments.each(|h| RankInfo::clone(&h.segment_handle.info))
    }

    /// Files of this node: its unix socket, and the shared memory of all its segments.
    pub fn files(&self) -> Vec<PathBuf> {
        let socket = self._socket.iter().map(|s| s.0.clone());
        let all = self.all_handles().into_iter();
        let memory = all.filter_map(|h| h.info.memory.name().map(shm::files)).flatten();
        memory.chain(socket).collect()
    }

    /// Resolves when the node cannot go on.
    pub async fn ended(&self) -> Ended {
        let (mut link, mut failed) = (self.first.segment_handle.link.clone(), self.failed.clone());
        tokio::select! {
            biased;
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

    /// Refuses new plans, and waits at most `limit` for the open ones, on all segments.
    pub async fn drain(&self, limit: Duration) -> DrainReport {
        self.segments.drain();
        self.first.segment_handle.drain();
        let all = self.all_handles();
        let clock = &*self.segments.common.env.clock;
        let here = || all.iter().map(SegmentHandle::open_plans).sum::<u64>();
        let open = || here().max(self.client.open_plans() as u64);
        let (start, limit_ms) = (clock.now_ms(), limit.as_millis() as u64);
        // Plans that the master granted before it received the drain may still be in flight.
        let quiet = || all.iter().all(SegmentHandle::is_quiet);
        let before = open();
        until(quiet, start + limit_ms.min(QUIET_LIMIT_MS), clock).await;
        let first = before.max(open());
        until(|| open() == 0, start + limit_ms, clock).await;
        if let Err(error) = self.client.flush().await {
            tracing::debug!(%error, "draining");
        }
        let left = open();
        DrainReport {
            plans_finished: first.saturating_sub(left),
            plans_left: left,
            waited_ms: clock.now_ms() - start,
        }
    }

    fn all_handles(&self) -> Vec<SegmentHandle> {
        [self.first.segment_handle.clone()].into_iter().chain(self.segments.all()).collect()
    }

    /// Leaves the cluster and unlinks its files.
    pub async fn stop(self) {
        self.closing.store(true, Ordering::Release);
        self.client.for_another_runtime().close().await;
        self.segments.common.replication.stop().await;
        if let Some(tier) = self.tier() {
            let stopped = tokio::task::spawn_blocking(move || tier.stop()).await;
            if let Err(error) = stopped {
                tracing::error!(%error, "the SSD tier was not stopped");
            }
        }
        // The first one last: it represents the rank.
        let mounted = self.segments.all();
        join_all(mounted.iter().map(SegmentHandle::leave)).await;
        self.first.segment_handle.leave().await;
    }
}

impl Drop for NodeParts {
    fn drop(&mut self) {
        self.closing.store(true, Ordering::Release);
        self.segments.close();
        self.segments.common.replication.close();
        if let Some(tier) = &self.segments.common.tier {
            tier.close();
        }
        // Clients of this node may keep its credentials longer.
        self.segments.common.guard.credentials().let_go();
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
        if base.election.is_any_rank() {
            return Self::elected(ranks, base).await;
        }
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
        Self { nodes }.reported().await
    }

    /// The same where ranks elect the master: none joins before most of them run.
    async fn elected(ranks: u32, base: NodeConfig) -> Result<Self, StartError> {
        let free = std::net::TcpListener::bind((base.listen, 0)).and_then(|l| l.local_addr());
        let free = free.map_err(|e| StartError::Internal(format!("no free port: {e}")))?;
        let config =
            |rank| NodeConfig { rank, world_size: ranks, port: free.port(), ..base.clone() };
        let started = join_all((0..ranks).map(|rank| Node::start(config(rank)))).await;
        let nodes = started.into_iter().collect::<Result<_, _>>()?;
        Self { nodes }.reported().await
    }

    /// Waits until the master has everybody's report.
    async fn reported(self) -> Result<Self, StartError> {
        let all = join_all(self.nodes.iter().map(Node::ready));
        let ranks = self.nodes.len();
        let late = || {
            StartError::Internal(format!(
                "{ranks} ranks joined but not all reported within {READY_LIMIT:?}"
            ))
        };
        tokio::time::timeout(READY_LIMIT, all).await.map_err(|_| late())?;
        Ok(self)
    }

    /// The nodes, for a caller that ends them one by one.
    pub fn into_nodes(self) -> Vec<Node> {
        self.nodes
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
