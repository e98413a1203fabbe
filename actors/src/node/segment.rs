//! One segment of a node with everything that serves it: memory, tcp agent, owner, evictor, link to
//! the master. A node has a first segment, and those mounted while it runs. Each runs on its own
//! executor and can be taken down alone. It decides nothing about objects.

use super::StartError;
use super::common::Common;
use super::memory::{self, Made, Pinned, Wanted};
use super::settings::shared_settings;
use crate::actor::{ActorAddr, ActorWatch, RESTART_BUDGET, RESTART_WINDOW_MS};
use crate::announce_poller::{AnnouncePoller, PollerDurable};
use crate::attachment::Published;
use crate::election::Voter;
use crate::evictor::{Evictor, EvictorDurable};
use crate::executor::{Executor, OwnedExecutor};
use crate::machine::{AgentConfig, DataAgent};
use crate::membership::{LinkState, Membership, Siblings};
use crate::message::{ExportedMemory, OwnerToMaster, RankInfo, SegmentId, Settings, Term};
use crate::owner::tables::OwnerTables;
use crate::owner::{HeapObserver, Owner, OwnerDurable};
use crate::server::{LocalSegment, RegisteredSegment};
use crate::tier::Demotion;
use crate::uplink::Uplink;
use nkv_store::Memory;
use nkv_store::heap::Heap;
use nkv_transport::Alive;
use nkv_transport::grants::Grants;
use nkv_transport::tcp::AgentLimits;
use nkv_transport::wire::Address;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::watch;

/// How long a leaving segment waits until its link has ended.
const LEAVE_LIMIT: Duration = Duration::from_secs(1);

/// Flags that a segment's tasks read. All but `quiet` are set from outside.
#[derive(Debug, Clone, Default)]
pub(super) struct SegmentFlags {
    pub draining: Arc<AtomicBool>,
    // The master has confirmed that no plan follows.
    pub quiet: Arc<AtomicBool>,
    pub closing: Arc<AtomicBool>,
}

/// A segment with its memory, agent and actors, but without a link to the master yet.
pub(super) struct UnjoinedSegment {
    segment_id: SegmentId,
    pub made: Made,
    agent: Box<dyn DataAgent>,
    pub roles: Roles,
    pub tables: Arc<OwnerTables>,
    uplink: Arc<Uplink>,
    executor: OwnedExecutor,
}

/// The actors of a segment.
#[derive(Clone)]
pub(super) struct Roles {
    pub owner: ActorAddr<Owner>,
    pub evictor: ActorAddr<Evictor>,
    /// Only if it has a device log.
    pub poller: Option<ActorAddr<AnnouncePoller>>,
}

impl Roles {
    /// For the watchdog and the status.
    pub(super) fn watches(&self) -> impl Iterator<Item = ActorWatch> {
        let poller = self.poller.iter().map(ActorAddr::watch);
        [self.owner.watch(), self.evictor.watch()].into_iter().chain(poller)
    }
}

/// How a segment joins.
pub(super) struct Joining {
    /// What the rank promises its master, if this is its first segment and takes part in elections.
    pub voter: Option<Arc<Voter>>,
    /// How long to try to reach the master.
    pub limit: Duration,
    /// The mounted segments of its node, if this is the first segment.
    pub siblings: Arc<Siblings>,
    /// Where to send the cluster's settings.
    pub settings_tx: watch::Sender<(Term, Settings)>,
    pub switches: SegmentFlags,
}

/// A cloneable handle, usable without the lock of the segment table: enough to drain the segment,
/// to evict from it, and to leave.
#[derive(Clone)]
pub(super) struct SegmentHandle {
    pub info: Arc<RankInfo>,
    pub roles: Roles,
    pub tables: Arc<OwnerTables>,
    pub link: watch::Receiver<LinkState>,
    pub uplink: Arc<Uplink>,
    switches: SegmentFlags,
}

/// See the file's first paragraph.
pub(super) struct SegmentHost {
    pub segment_handle: SegmentHandle,
    pub agent: Box<dyn DataAgent>,
    pub pinned: Option<Pinned>,
    alive: Alive,
    _registered: RegisteredSegment,
    _published: Published,
    // Unlinks the segment's name when dropped.
    _name: Option<Box<dyn Send + Sync>>,
    // Dropped last: its thread ends with it.
    _executor: OwnedExecutor,
}

impl UnjoinedSegment {
    /// Makes memory, agent and actors.
    pub(super) async fn new(common: &Common, id: u32, bytes: u64) -> Result<Self, StartError> {
        let segment_id = SegmentId { rank: common.config.rank, segment: id };
        let incarnation = common.env.random.u64();
        let executor = common.env.executor()?;
        let wanted = Wanted { segment_id, bytes, incarnation };
        let made = memory::make(common, wanted, executor.executor()).await?;
        let grants = Arc::new(Grants::new());
        let agent = start_agent(common, made.heap.memory().clone(), incarnation, &grants)?;
        let tables = Arc::new(OwnerTables::new(grants, &made.heap, common.key_pool.clone()));
        let uplink = Arc::new(Uplink::default());
        let roles =
            start_roles(common, segment_id, &made.heap, (&tables, &uplink), executor.executor());
        let roles = roles.await?;
        Ok(Self { segment_id, made, agent, roles, tables, uplink, executor })
    }

    pub(super) fn executor(&self) -> &Executor {
        self.executor.executor()
    }

    /// What the segment reports of itself when it joins; its addresses are those of its node.
    pub(super) fn info(
        &self,
        common: &Common,
        control: Address,
        local: Option<Address>,
    ) -> RankInfo {
        let (config, identity) = (&common.config, self.made.heap.identity());
        RankInfo {
            rank: self.segment_id.rank,
            segment_id: self.segment_id.segment,
            world_size: config.world_size,
            incarnation: identity.incarnation,
            boot_id: identity.boot_id,
            numa_node: config.numa_node,
            rack: config.rack.clone(),
            pid: common.env.machine.pid(),
            control,
            local,
            data: Some(self.agent.local_addr().to_string()),
            fabric: self.made.registered.as_ref().map(|(_, devices)| devices.clone()),
            http: config.http.clone(),
            memory: self.made.exported.clone(),
            layout: *self.made.heap.layout(),
            key_fingerprint: common.hasher.fingerprint(),
            prefault: config.prefault
                && matches!(self.made.exported, ExportedMemory::Shared { .. }),
            disk: self.segment_id.is_first() && common.tier.is_some(),
        }
    }

    /// Registers the segment with its node, and starts its link to the master.
    pub(super) fn join(self, common: &Common, info: RankInfo, how: Joining) -> SegmentHost {
        let (owner, tables) = (self.roles.owner.clone(), self.tables.clone());
        let exported = self.made.registered.as_ref().map(|(exported, _)| exported.clone());
        let id = info.incarnation;
        let mapped = (info.memory.clone(), self.made.payload.clone());
        let registered =
            common.registry.register(id, owner.clone(), tables.clone(), exported, mapped);
        let (alive, memory) = (Alive::new(), self.made.heap.memory().clone());
        let local = Arc::new(LocalSegment { memory, alive: alive.clone(), owner, tables });
        let published = common.env.owners.publish(info.incarnation, local);
        let (state, link) = watch::channel(LinkState::Joining);
        let Joining { voter, limit, siblings, settings_tx, switches } = how;
        let membership = Membership {
            net: common.env.net.clone(),
            master: common.master.clone(),
            voter,
            lease_ms: shared_settings(&common.config).master_lease_ms,
            credentials: common.guard.credentials().clone(),
            info: info.clone(),
            owner: self.roles.owner.clone(),
            tables: self.tables.clone(),
            uplink: self.uplink.clone(),
            clock: common.env.clock.clone(),
            heartbeat: Duration::from_millis(common.config.beat_ms()),
            join_timeout: limit,
            draining: switches.draining.clone(),
            quiet: switches.quiet.clone(),
            siblings,
            closing: switches.closing.clone(),
            missed: AtomicBool::new(false),
        };
        self.executor().task(async move { membership.run(state, settings_tx).await });
        let Self { roles, tables, uplink, .. } = self;
        let info = Arc::new(info);
        SegmentHost {
            segment_handle: SegmentHandle { info, roles, tables, link, uplink, switches },
            agent: self.agent,
            alive,
            _registered: registered,
            _published: published,
            pinned: self.made.pinned,
            _name: self.made.name,
            _executor: self.executor,
        }
    }
}

impl Drop for SegmentHost {
    fn drop(&mut self) {
        self.segment_handle.switches.closing.store(true, Ordering::Release);
        self.alive.mark_dead();
        self.agent.stop();
    }
}

impl SegmentHandle {
    /// Begins to drain: the master is asked to open no new plans here.
    pub(super) fn drain(&self) {
        self.switches.draining.store(true, Ordering::Release);
        self.uplink.send(OwnerToMaster::Draining);
    }

    pub(super) fn is_draining(&self) -> bool {
        self.switches.draining.load(Ordering::Acquire)
    }

    /// Number of plans open now. While it drains, none is added once the master has confirmed it.
    pub(super) fn open_plans(&self) -> u64 {
        self.tables.lock().plans.len() as u64
    }

    /// True while the link is up and the master has handled the report.
    pub(super) fn is_joined(&self) -> bool {
        *self.link.borrow() == LinkState::Joined
    }

    /// True once the master has confirmed that no plan follows, or while the segment is not joined.
    pub(super) fn is_quiet(&self) -> bool {
        self.switches.quiet.load(Ordering::Acquire) || !self.is_joined()
    }

    /// Leaves the cluster. True if the master confirmed it: then its index has no object of this
    /// segment any more.
    pub(super) async fn leave(&self) -> bool {
        self.switches.closing.store(true, Ordering::Release);
        self.uplink.send(OwnerToMaster::Leave);
        let mut link = self.link.clone();
        let left = link.wait_for(|l| *l != LinkState::Joined);
        if tokio::time::timeout(LEAVE_LIMIT, left).await.is_err() {
            tracing::debug!("left without the master's confirmation");
        }
        matches!(&*self.link.borrow(), LinkState::Left { confirmed: true })
    }
}

fn start_agent(
    common: &Common,
    memory: Arc<dyn Memory>,
    incarnation: u64,
    grants: &Arc<Grants>,
) -> Result<Box<dyn DataAgent>, StartError> {
    let config = &common.config;
    let limits = AgentLimits { max_connections: config.data_connections, ..AgentLimits::default() };
    let at = SocketAddr::new(config.listen, 0);
    let (job, grants, guard) = (config.job.clone(), grants.clone(), common.guard.clone());
    let what = AgentConfig { at, memory, incarnation, job, grants, guard, limits };
    let agent = common.env.machine.serve(what);
    agent.map_err(|e| StartError::Internal(format!("cannot start the tcp agent at {at}: {e}")))
}

async fn start_roles(
    common: &Common,
    segment_id: SegmentId,
    heap: &Heap,
    (tables, uplink): (&Arc<OwnerTables>, &Arc<Uplink>),
    executor: &Executor,
) -> Result<Roles, StartError> {
    let owner_slot: Arc<OnceLock<ActorAddr<Owner>>> = Arc::default();
    let evictor_slot: Arc<OnceLock<Arc<dyn HeapObserver>>> = Arc::default();
    let exhausted = report_to(&common.failed, Some(segment_id));
    let owner_durable = OwnerDurable {
        heap: heap.clone(),
        hasher: common.hasher,
        tables: tables.clone(),
        uplink: uplink.clone(),
        evictor: evictor_slot.clone(),
        clock: common.env.clock.clone(),
        log_claim_ttl_ms: common.config.log_claim_ttl_ms,
        hot_reads: common.config.hot_reads,
        holders: Vec::new(),
        replication: common.replication.clone(),
        demotion: common.tier.clone().map(|tier| Arc::new(Demotion::new(tier, heap.clone()))),
    };
    if let Some(tier) = common.tier.as_ref().filter(|_| segment_id.is_first()) {
        tier.publish_in(tables);
    }
    let owner = ActorAddr::<Owner>::start(executor, owner_durable, exhausted.clone()).await?;
    let config = &common.config;
    let evictor_durable = EvictorDurable {
        heap: heap.clone(),
        policy: config.policy,
        watermarks: config.watermarks,
        tables: tables.clone(),
        owner: owner_slot.clone(),
        clock: common.env.clock.clone(),
    };
    let evictor = ActorAddr::<Evictor>::start(executor, evictor_durable, exhausted.clone()).await?;
    let _ = owner_slot.set(owner.clone());
    let _ = evictor_slot.set(Arc::new(evictor.clone()));
    let mut poller = None;
    if heap.layout().log_slots > 0 {
        let durable = PollerDurable {
            heap: heap.clone(),
            tables: tables.clone(),
            owner: owner_slot,
            platform: common.env.platform,
        };
        poller = Some(ActorAddr::<AnnouncePoller>::start(executor, durable, exhausted).await?);
    }
    Ok(Roles { owner, evictor, poller })
}

/// The callback for an actor that failed too often: it ends the node with the reason.
pub(super) fn report_to(
    failed: &watch::Sender<Option<String>>,
    segment_id: Option<SegmentId>,
) -> Arc<dyn Fn(&'static str) + Send + Sync> {
    let failed = failed.clone();
    let of = segment_id.filter(|s| !s.is_first()).map(|s| format!(" of {s}")).unwrap_or_default();
    Arc::new(move |name| {
        let text = format!(
            "the {name} actor{of} failed more than {RESTART_BUDGET} times in {} s",
            RESTART_WINDOW_MS / 1_000
        );
        failed.send_replace(Some(text));
    })
}
