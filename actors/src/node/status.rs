//! The status of a node, as shown by `/status`, `/metrics` and `nkv status`.

use super::Node;
use super::memory::PinnedStatus;
use super::segment::SegmentHost;
use crate::actor::ActorStatus;
use crate::client::peer::{AttachmentUse, Peer};
use crate::client::{CallTimes, MessageCounters, ReadCounters, WriteCounters};
use crate::durations::Durations;
use crate::machine::DataAgent;
use crate::membership::LinkState;
use crate::message::{OwnerGauges, Term, View};
use crate::slow_path::{ClientSlowPathCounters, MasterSlowPathCounters, OwnerSlowPathCounters};
use crate::tier::TierFigures;
use nkv_store::shm;
use serde::Serialize;

/// A snapshot of one node.
#[derive(Debug, Clone, Serialize)]
pub struct NodeStatus {
    /// Job id.
    pub job: String,
    /// This rank.
    pub rank: u32,
    /// Ranks in the job.
    pub world_size: u32,
    /// Incarnation of the first segment, in hexadecimal.
    pub incarnation: String,
    /// The first segment's link: joining, joined, lost, refused or no master (each with the
    /// reason), gone or left.
    pub link: String,
    /// The master's term.
    pub term: Term,
    /// Shutting down.
    pub draining: bool,
    /// Milliseconds since start.
    pub uptime_ms: u64,
    /// Members as the master sees them; empty on other ranks.
    pub view: View,
    /// Gauges of this rank's first heap.
    pub owner: OwnerGauges,
    /// The pages in which the first segment lies; absent for private memory.
    pub pages: Option<String>,
    /// Its registration with a GPU; absent without `--pool-pinned`.
    pub pinned: Option<PinnedStatus>,
    /// Actors, without those of mounted segments.
    pub actors: Vec<ActorStatus>,
    /// The owners that this node's handle is attached to, and how.
    pub attached: Vec<AttachedTo>,
    /// Attachments to this node's first segment, but those by tcp.
    pub attachments: usize,
    /// Counters of reads through this node's own handle.
    pub reads: ReadCounters,
    /// Counters of puts through this node's own handle.
    pub writes: WriteCounters,
    /// Counters of messages of this node's own handle to actors.
    pub messages: MessageCounters,
    /// Slow-path counters of this node's own handle.
    pub handle_slow_path: ClientSlowPathCounters,
    /// Slow-path counters of the master; absent on other ranks.
    pub master_slow_path: Option<MasterSlowPathCounters>,
    /// Slow-path counters of the first segment's owner.
    pub owner_slow_path: OwnerSlowPathCounters,
    /// Connections refused since start because they did not prove the job's secret or cookie [I20]:
    /// on the control port, the unix socket and the tcp agents together.
    pub auth_refused: u64,
    /// Figures of the first segment's tcp agent.
    pub agent: AgentStatus,
    /// The SSD tier; absent without one.
    pub ssd: Option<TierFigures>,
    /// The mounted segments, with the same fields that are above for the first one.
    pub segments: Vec<SegmentStatus>,
    /// How long calls through this node's own handle took; not part of `/status`.
    #[serde(skip)]
    pub call_times: CallTimes,
    /// How long the master took for clients' requests; empty on other ranks.
    #[serde(skip)]
    pub master_requests: Vec<(&'static str, Durations)>,
}

/// A mounted segment.
#[derive(Debug, Clone, Serialize)]
pub struct SegmentStatus {
    /// Its number within the rank.
    pub segment: u32,
    /// Incarnation, in hexadecimal.
    pub incarnation: String,
    /// joining, joined, lost, refused or no master (each with the reason), gone or left.
    pub link: String,
    /// Being unmounted, or the node shuts down.
    pub draining: bool,
    /// Gauges of its heap.
    pub owner: OwnerGauges,
    /// The pages in which it lies; absent for private memory.
    pub pages: Option<String>,
    /// Its registration with a GPU.
    pub pinned: Option<PinnedStatus>,
    /// Its actors.
    pub actors: Vec<ActorStatus>,
    /// Attachments to it, but those by tcp.
    pub attachments: usize,
    /// Its tcp agent.
    pub agent: AgentStatus,
}

/// Figures of the tcp agent.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct AgentStatus {
    /// Payload bytes received.
    pub bytes_in: u64,
    /// Payload bytes sent.
    pub bytes_out: u64,
    /// Requests served.
    pub requests: u64,
    /// Requests refused.
    pub refused: u64,
    /// Connections now.
    pub connections: u64,
    /// Connections refused because they did not authenticate.
    pub auth_refused: u64,
}

impl NodeStatus {
    /// Every actor of the node, those of mounted segments last.
    pub fn all_actors(&self) -> impl Iterator<Item = &ActorStatus> {
        self.actors.iter().chain(self.segments.iter().flat_map(|s| &s.actors))
    }
}

/// An owner that a handle is attached to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AttachedTo {
    /// Its rank.
    pub rank: u32,
    /// The transport: local, shm, rdma or tcp.
    pub transport: String,
    /// RDMA devices of this end that it uses, one entry for each queue pair.
    pub devices: Vec<String>,
    /// Used only for claims in its device log, since an RDMA device counts them.
    pub claims_only: bool,
    /// Better transports, and why each was not used.
    pub passed_over: Vec<String>,
}

impl AttachedTo {
    fn of(peer: &Peer) -> Self {
        Self {
            rank: peer.rank,
            transport: peer.kind().to_string(),
            devices: peer.verbs.devices(),
            claims_only: peer.used_for == AttachmentUse::Claims,
            passed_over: peer.passed_over.clone(),
        }
    }
}

impl Node {
    /// A snapshot.
    pub fn status(&self) -> NodeStatus {
        let first = self.first.status();
        let (config, clock) = (self.config(), &self.segments.common.env.clock);
        let here = self.segments.common.master.here();
        let mut actors = first.actors;
        actors.push(self.producer.status());
        actors.extend(here.as_ref().map(|here| here.actor.status()));
        let peers = self.client.shared.peers.all();
        let mut attached: Vec<_> = peers.iter().map(|p| AttachedTo::of(p)).collect();
        attached.sort_by_key(|to| to.rank);
        NodeStatus {
            job: config.job.clone(),
            rank: config.rank,
            world_size: config.world_size,
            incarnation: first.incarnation,
            link: first.link,
            term: self.segments.common.settings.borrow().0,
            draining: first.draining,
            uptime_ms: clock.now_ms() - self.started_ms,
            view: here.as_ref().map(|here| here.members.view()).unwrap_or_default(),
            owner: first.owner,
            pages: first.pages,
            pinned: first.pinned,
            actors,
            attached,
            attachments: first.attachments,
            reads: self.client.read_counters(),
            writes: self.client.write_counters(),
            messages: self.client.message_counters(),
            handle_slow_path: self.client.slow_path_counters(),
            master_slow_path: here.as_ref().map(|here| here.members.slow_path.snapshot()),
            owner_slow_path: self.first.segment_handle.tables.slow_path.snapshot(),
            auth_refused: self.segments.common.guard.refused(),
            agent: first.agent,
            ssd: self.tier().map(|tier| tier.figures()),
            segments: self.segments.each(SegmentHost::status),
            call_times: self.client.call_times(),
            master_requests: here.map_or_else(Vec::new, |here| here.members.request_times()),
        }
    }
}

impl SegmentHost {
    /// A snapshot.
    pub(super) fn status(&self) -> SegmentStatus {
        let r = &self.segment_handle;
        SegmentStatus {
            segment: r.info.segment_id,
            incarnation: format!("{:016x}", r.info.incarnation),
            link: shown(&r.link.borrow()),
            draining: r.is_draining(),
            owner: r.tables.gauges.snapshot(),
            pages: r.info.memory.name().and_then(shm::pages).map(|pages| pages.to_string()),
            pinned: self.pinned.as_ref().map(|pinned| pinned.status),
            actors: r.roles.watches().map(|actor| actor.status()).collect(),
            attachments: r.tables.attachments.len(),
            agent: agent_status(&*self.agent),
        }
    }
}

pub(super) fn shown(link: &LinkState) -> String {
    match link {
        LinkState::Joining => "joining".to_string(),
        LinkState::Joined => "joined".to_string(),
        LinkState::Lost(why) => format!("lost: {why}"),
        LinkState::Refused(why) => format!("refused: {why}"),
        LinkState::NoMaster(why) => format!("no master: {why}"),
        LinkState::Gone => "gone".to_string(),
        LinkState::Left { .. } => "left".to_string(),
    }
}

fn agent_status(agent: &dyn DataAgent) -> AgentStatus {
    let c = agent.counters();
    let get = |a: &std::sync::atomic::AtomicU64| a.load(std::sync::atomic::Ordering::Relaxed);
    AgentStatus {
        bytes_in: get(&c.bytes_in),
        bytes_out: get(&c.bytes_out),
        requests: get(&c.requests),
        refused: get(&c.refused),
        connections: get(&c.connections),
        auth_refused: get(&c.auth_refused),
    }
}
