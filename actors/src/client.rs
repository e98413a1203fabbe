//! The client handle: the operations of the API. Control requests go to the master in batches, one
//! round trip each. Payload bytes move one-sided between the caller's buffer and the owner's
//! memory, on the caller's thread. The Producer actor does the background work, which continues
//! when no call is running.

mod blocking;
mod buffers;
mod closing;
mod contact;
pub(crate) mod control;
mod counters;
mod find;
pub(crate) mod keys;
mod listing;
mod locations;
mod lookup;
mod mapped;
pub mod peer;
mod peers;
pub(crate) mod put_log;
mod read;
mod segments;
mod view;
mod write;

pub use blocking::Blocking;
pub(crate) use closing::closed;
pub use counters::{CallTimes, MessageCounters, ReadCounters, WriteCounters};
pub use peer::TransportChoice;
pub use view::ObjectView;
pub use write::{PublishError, WritePlan};

use crate::actor::{ActorAddr, Message, On};
use crate::environment::Environment;
use crate::error::{Error, Result};
use crate::executor::OwnedExecutor;
use crate::message::{
    ClusterStats, KeyBytes, RankInfo, RankState, Request, Response, Settings, View,
};
use crate::plans::OpenPlans;
use crate::producer::{Attach, Producer, ProducerDurable};
use crate::slow_path::{ClientSlowPath, ClientSlowPathCounters};
use buffers::Buffers;
use contact::contact;
use control::{ControlPool, MasterPath};
use counters::{Messages, Reads, Times, Writes};
use keys::HandleKeys;
use locations::Locations;
use nkv_store::fork::ProcessMark;
use nkv_store::{Key, KeyHasher};
use nkv_transport::fabric::FabricConfig;
use nkv_transport::wire::Address;
use nkv_transport::wire::auth::{Credentials, Secret};
use peer::Peer;
use peers::Peers;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::time::Duration;

/// How a client behaves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientConfig {
    /// The job; must be the cluster's.
    pub job: String,
    /// Which data path to use to the owners.
    pub transport: TransportChoice,
    /// Limit of one control call in milliseconds.
    pub call_timeout_ms: u64,
    /// Whether puts go into the owner's device log without a request to the master, unless their
    /// options set it otherwise. Then Ok means that the bytes are written: they are readable once
    /// the owner has accepted them, after some 1 ms. Where the key has an object already, that one
    /// stays, and the put is Ok all the same. Puts to owners without a log use plans.
    pub device_alloc: bool,
    /// Number of stripes into which one read or write of at least 8 MiB is cut. Each stripe has its
    /// own thread and, over tcp, its own connection. 0: one for every two processors, at most 4; 1:
    /// no striping; at most 16.
    pub data_stripes: usize,
    /// Bytes of buffers kept for later gets after the bytes that `get` returned are dropped; 0:
    /// none.
    pub get_pool_bytes: u64,
    /// Whether a background thread prefaults a mapped segment during the first calls, if its owner
    /// prefaulted it too (0.3 s/GiB). Later calls then have no page faults. A process that makes
    /// few calls does not need it.
    pub prefault: bool,
    /// Which RDMA devices of this host reach owners that have RDMA devices too.
    pub fabric: FabricConfig,
    /// The job's secret [I20]. Without it the nodes must run on this host as this user.
    pub secret: Option<Secret>,
}

/// Default of [`ClientConfig::get_pool_bytes`].
pub(crate) const GET_POOL_BYTES: u64 = 64 << 20;

impl Default for ClientConfig {
    fn default() -> Self {
        let transport = TransportChoice::Auto;
        Self {
            job: "nkv".to_string(),
            transport,
            call_timeout_ms: 2_000,
            device_alloc: false,
            data_stripes: 0,
            get_pool_bytes: GET_POOL_BYTES,
            prefault: true,
            fabric: FabricConfig::default(),
            secret: None,
        }
    }
}

/// State that all clones of a handle share with its Producer.
pub struct Shared {
    pub(crate) env: Environment,
    pub(crate) config: ClientConfig,
    pub(crate) credentials: Credentials,
    pub(crate) keys: HandleKeys,
    pub(crate) producer_id: u64,
    pub(crate) plans: Arc<OpenPlans>,
    // Has one more reference for each message about abandoned plans that is in flight.
    pub(crate) abandoning: Arc<()>,
    pub(crate) peers: Peers,
    pub(crate) actor: OnceLock<ActorAddr<Producer>>,
    pub(crate) locations: Locations,
    pub(crate) buffers: Arc<Buffers>,
    pub(crate) reads: Reads,
    pub(crate) writes: Writes,
    pub(crate) messages: Arc<Messages>,
    pub(crate) times: Times,
    pub(crate) slow_path: Arc<ClientSlowPath>,
    pub(crate) draining: Arc<AtomicBool>,
    // The handle is closed: every call fails.
    pub(crate) closed: AtomicBool,
    settings: Mutex<Settings>,
    view: RwLock<View>,
    // World size of the job; 0 while unknown.
    world: AtomicU32,
    next_request: AtomicU64,
    // Only a standalone client has one; a node's handle uses the executor of its node.
    executor: Option<OwnedExecutor>,
    pub(crate) made: ProcessMark,
}

/// After the last handle is dropped its thread runs this much longer, so that its links can send
/// Detach.
const LAST_FRAMES_LIMIT: Duration = Duration::from_millis(100);

impl Drop for Shared {
    fn drop(&mut self) {
        // A forked child must not send anything for its parent.
        if !self.made.is_here() {
            return;
        }
        // Only this handle can report these keys.
        for peer in self.peers.all() {
            peer.send_names(usize::MAX);
        }
        if let Some(executor) = self.executor.take() {
            let here = executor.executor().clone();
            here.task(async move {
                tokio::time::sleep(LAST_FRAMES_LIMIT).await;
                drop(executor);
            });
        }
    }
}

impl Shared {
    /// Counts a message whose answer a call waits for.
    fn waits(&self) {
        Messages::count(&self.messages.waited, 1);
    }

    /// Sends a message to the Producer without waiting for a reply. None if there is no Producer,
    /// or in a forked child.
    pub(crate) fn notify_producer<M: Message>(&self, message: M) -> Option<Result<()>>
    where
        Producer: On<M>,
    {
        let actor = self.actor.get().filter(|_| self.made.is_here())?;
        Messages::count(&self.messages.one_way, 1);
        Some(actor.try_send(message))
    }

    /// World size of the job; 0 while this handle does not know it.
    pub(crate) fn world(&self) -> u32 {
        self.world.load(Ordering::Relaxed)
    }

    /// Adds a new attachment to an owner; it is disconnected if the owner was declared gone
    /// meanwhile [I17]. False if this handle was closed meanwhile.
    pub(crate) fn take_in(&self, peer: Arc<Peer>) -> bool {
        let view = self.view.read().unwrap_or_else(PoisonError::into_inner);
        let member = |(info, _): &&(RankInfo, RankState)| info.incarnation == peer.incarnation;
        match view.ranks.iter().find(member) {
            Some((_, state)) => peer.take_puts(*state == RankState::Alive),
            None if view.settled => peer.disconnect(),
            None => {}
        }
        self.peers.insert(peer, &self.closed)
    }

    /// Incarnation of a rank's first segment, if the segment is alive and has a device log.
    pub(crate) fn first_with_log(&self, rank: u32) -> Option<u64> {
        let view = self.view.read().unwrap_or_else(PoisonError::into_inner);
        let first = view.nodes().find(|(info, _)| info.rank == rank);
        let up = first.filter(|(info, s)| info.log_slots > 0 && *s == RankState::Alive);
        up.map(|(info, _)| info.incarnation)
    }

    /// Bytes per page of a put that sets no page size.
    pub(crate) fn page_bytes(&self) -> u32 {
        self.settings.lock().unwrap_or_else(PoisonError::into_inner).page_bytes
    }

    pub(crate) fn view(&self) -> View {
        self.view.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Keeps a view of the membership, unless a later one is already kept. Disconnects owners that
    /// are no longer members: their objects may have been removed and put again elsewhere [I17].
    pub(crate) fn keep_view(&self, view: View) {
        let mut kept = self.view.write().unwrap_or_else(PoisonError::into_inner);
        if view.order() < kept.order() {
            return;
        }
        self.world.store(view.world_size, Ordering::Relaxed);
        for (info, state) in &view.ranks {
            self.peers.take_puts(info.incarnation, *state == RankState::Alive);
        }
        if view.settled {
            let members = view.ranks.iter().map(|(info, _)| info.incarnation).collect();
            self.peers.disconnect_others(&members);
        }
        *kept = view;
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Shared(producer {:016x})", self.producer_id)
    }
}

/// The handle. Cheap to clone; clones share connections. See also [`Client::blocking`].
#[derive(Debug, Clone)]
pub struct Client {
    pub(crate) shared: Arc<Shared>,
    pub(crate) pool: Arc<ControlPool>,
}

/// What a handle is made from.
pub(crate) struct Parts {
    pub env: Environment,
    pub config: ClientConfig,
    pub credentials: Credentials,
    pub hasher: KeyHasher,
    pub settings: Settings,
    pub view: View,
    pub path: MasterPath,
    pub draining: Arc<AtomicBool>,
    pub producer_id: u64,
    pub executor: Option<OwnedExecutor>,
}

impl Client {
    /// Connects to a cluster through any of its nodes; starts one background thread.
    pub async fn connect(node: &Address, config: ClientConfig) -> Result<Self> {
        Self::connect_in(Environment::of_this_process(), node, config).await
    }

    /// As [`Client::connect`], in an environment that the caller provides.
    pub async fn connect_in(
        env: Environment,
        node: &Address,
        config: ClientConfig,
    ) -> Result<Self> {
        let producer_id = env.random.u64();
        let limit = Duration::from_millis(config.call_timeout_ms);
        let credentials = Credentials::of_client(&config.job, config.secret.clone());
        let credentials = credentials.with_random(env.random.clone());
        let found = contact(&*env.net, node, &credentials, producer_id, limit).await?;
        found.settings.check()?;
        let mut addresses = found.master;
        if let Some((info, _)) = found.view.ranks.iter().find(|(i, _)| i.rank == 0)
            && info.boot_id == env.machine.boot_id()
            && let Some(local) = &info.local
        {
            addresses.insert(0, local.clone());
        }
        let executor = env.executor()?;
        let here = executor.executor().clone();
        let parts = Parts {
            env,
            config,
            credentials,
            hasher: found.hasher,
            settings: found.settings,
            view: found.view,
            path: MasterPath::Remote(Arc::new(Mutex::new(addresses))),
            draining: Arc::default(),
            producer_id,
            executor: Some(executor),
        };
        let client = Self::from_parts(parts);
        client.start_producer(&here).await?;
        Ok(client)
    }

    pub(crate) fn from_parts(p: Parts) -> Self {
        // A client that asks for tcp even where memory could be shared gets no ring either.
        let rings = p.config.transport != TransportChoice::Tcp;
        let keys = HandleKeys::new(p.hasher);
        let means = (p.credentials.clone(), keys.clone());
        let pool = ControlPool::new(p.env.net.clone(), p.path, means, p.producer_id);
        let pool = pool.with_rings(rings);
        let shared = Shared {
            buffers: Buffers::new(p.config.get_pool_bytes),
            env: p.env,
            config: p.config,
            credentials: p.credentials,
            keys,
            producer_id: p.producer_id,
            plans: Arc::default(),
            abandoning: Arc::default(),
            peers: Peers::default(),
            actor: OnceLock::new(),
            locations: Locations::default(),
            reads: Reads::default(),
            writes: Writes::default(),
            messages: Arc::default(),
            times: Times::default(),
            slow_path: pool.slow_path.clone(),
            draining: p.draining,
            closed: AtomicBool::new(false),
            settings: Mutex::new(p.settings),
            world: AtomicU32::new(p.view.world_size),
            view: RwLock::new(p.view),
            next_request: AtomicU64::new(1),
            executor: p.executor,
            made: ProcessMark::here(),
        };
        Self { shared: Arc::new(shared), pool: Arc::new(pool) }
    }

    /// Starts the Producer behind this handle.
    pub(crate) async fn start_producer(
        &self,
        executor: &crate::executor::Executor,
    ) -> Result<ActorAddr<Producer>> {
        let durable = ProducerDurable::new(&self.shared, self.pool.another());
        let exhausted = Arc::new(|name: &'static str| {
            tracing::error!(
                actor = name,
                "restart budget spent; this handle's background work ends"
            );
        });
        let actor = ActorAddr::start(executor, durable, exhausted).await?;
        let _ = self.shared.actor.set(actor.clone());
        let pool = self.pool.another();
        let weak = Arc::downgrade(&self.shared);
        executor.task(async move { pool.presence(weak).await });
        Ok(actor)
    }

    /// A synchronous handle for one thread, with connections of its own.
    pub fn blocking(&self) -> Result<Blocking> {
        Blocking::new(self)
    }

    /// The same handle with fresh connections: a connection belongs to the runtime that made it.
    pub fn for_another_runtime(&self) -> Self {
        Self { shared: self.shared.clone(), pool: Arc::new(self.pool.another()) }
    }

    /// The same for a single-threaded runtime that runs one call at a time.
    fn for_a_thread(&self) -> Self {
        let pool = Arc::new(self.pool.another().of_a_thread());
        Self { shared: self.shared.clone(), pool }
    }

    pub(crate) fn limit(&self) -> Duration {
        Duration::from_millis(self.shared.config.call_timeout_ms)
    }

    pub(crate) async fn call(&self, request: Request) -> Result<Response> {
        self.check_usable()?;
        self.call_within(request, self.limit()).await
    }

    async fn call_within(&self, request: Request, limit: Duration) -> Result<Response> {
        self.shared.waits();
        let (kind, clock) = (request.kind(), &self.shared.env.clock);
        let asked_ns = clock.now_ns();
        let answer = self.pool.call(request, limit).await;
        self.shared.times.requests[kind].record(clock.now_ns().saturating_sub(asked_ns));
        answer
    }

    /// The cluster's settings, as received when this handle connected.
    pub fn settings(&self) -> Settings {
        self.shared.settings.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn next_request(&self) -> u64 {
        self.shared.next_request.fetch_add(1, Ordering::Relaxed)
    }

    /// The attachment to the owner of an incarnation; attaches on first use.
    pub(crate) async fn peer(&self, incarnation: u64) -> Result<Arc<Peer>> {
        if let Some(p) = self.shared.peers.get(incarnation) {
            return Ok(p);
        }
        if self.shared.peers.is_dead(incarnation) {
            self.shared.slow_path.attached_again.one();
        }
        self.shared.peers.remove_dead();
        let info = self.rank_info(incarnation).await?;
        let actor = self.shared.actor.get().ok_or_else(|| Error::internal("no producer actor"))?;
        self.shared.waits();
        match actor.call(Attach(info.clone()), self.limit()).await {
            // The actor was restarted under this call: ask its rebuilt state once.
            Err(e) if e.kind == crate::ErrorKind::Internal => {
                actor.call(Attach(info), self.limit()).await?
            }
            other => other?,
        }
    }

    async fn rank_info(&self, incarnation: u64) -> Result<RankInfo> {
        let find = |v: &View| {
            v.ranks.iter().find(|(i, _)| i.incarnation == incarnation).map(|(i, _)| i.clone())
        };
        let cached = find(&self.shared.view.read().unwrap_or_else(PoisonError::into_inner));
        if let Some(info) = cached {
            return Ok(info);
        }
        let view = self.membership().await?;
        find(&view).ok_or_else(|| {
            Error::disconnected(format!("incarnation {incarnation:016x} is no longer a member"))
        })
    }

    /// Counters of reads since this handle was made.
    pub fn read_counters(&self) -> ReadCounters {
        self.shared.reads.all()
    }

    /// Counters of puts since this handle was made.
    pub fn write_counters(&self) -> WriteCounters {
        self.shared.writes.snapshot()
    }

    /// Counters of messages to actors since this handle was made.
    pub fn message_counters(&self) -> MessageCounters {
        self.shared.messages.snapshot()
    }

    /// Durations of calls since this handle was made.
    pub fn call_times(&self) -> CallTimes {
        self.shared.times.snapshot()
    }

    /// Counters of this handle's slow paths, such as retries and reconnections.
    pub fn slow_path_counters(&self) -> ClientSlowPathCounters {
        self.shared.slow_path.snapshot()
    }

    /// Fetches the view of the membership from the master.
    pub async fn membership(&self) -> Result<View> {
        match self.call(Request::View).await? {
            Response::View(v) => {
                self.shared.keep_view(v.clone());
                Ok(v)
            }
            other => Err(self.pool.unexpected("View", &other)),
        }
    }

    /// Statistics of every rank, as of its last heartbeat.
    pub async fn stats(&self) -> Result<ClusterStats> {
        match self.call(Request::Stats).await? {
            Response::Stats(s) => Ok(s),
            other => Err(self.pool.unexpected("Stats", &other)),
        }
    }

    /// Asks every owner to evict until its heap is used to at most this ratio (0 to 1).
    pub async fn evict_until_below(&self, usage_ratio: f64) -> Result<()> {
        match self.call(Request::EvictUntilBelow(usage_ratio)).await? {
            Response::Done(list) => one(list),
            other => Err(self.pool.unexpected("EvictUntilBelow", &other)),
        }
    }
}

/// InvalidArgument if one is no valid key. Checked before any lookup, which would only report such
/// a key as absent.
fn check_keys(keys: &[&[u8]]) -> Result<()> {
    keys.iter().try_for_each(|key| Key::check(key)).map_err(Error::from)
}

fn key_bytes(keys: &[&[u8]]) -> Vec<KeyBytes> {
    keys.iter().map(|k| KeyBytes::from(*k)).collect()
}

pub(crate) fn one<T>(list: Vec<Result<T>>) -> Result<T> {
    list.into_iter().next().unwrap_or_else(|| Err(Error::internal("an empty answer to one item")))
}

pub(crate) fn spread<T>(n: usize, e: Error) -> Vec<Result<T>> {
    (0..n).map(|_| Err(e.clone())).collect()
}
