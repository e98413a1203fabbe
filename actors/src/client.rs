//! The client handle: the operations of the API. Control requests go to the master in batches, one
//! round trip each. Payload bytes move one-sided between the caller's buffer and the owner's
//! memory, on the caller's thread. The Producer actor does the background work, which continues
//! when no call is running.

mod addresses;
mod batch;
mod blocking;
mod buffers;
mod cache_on_read;
mod closing;
mod config;
mod contact;
pub(crate) mod control;
mod counters;
mod device_log;
mod fetch;
mod find;
pub(crate) mod keys;
mod listing;
mod locations;
pub(crate) mod log_names;
mod lookup;
mod mapped;
pub mod peer;
mod peer_log;
mod peers;
pub(crate) mod plans;
mod pool;
pub mod producer;
pub(crate) mod put_log;
mod put_options;
mod rank_choice;
mod read;
mod read_cache;
mod save;
mod search;
mod segments;
mod shared;
mod striped;
mod value;
mod view;
mod when_ready;
mod write;

pub use addresses::{KernelAccess, MappedSegment};
use blocking::runtime as runtime_of_thread;
pub use blocking::{Blocking, BlockingWhenReady};
pub use config::ClientConfig;
pub(crate) use config::GET_POOL_BYTES;
pub use counters::{CallTimes, MessageCounters, ReadCounters, WriteCounters};
pub use device_log::{DeviceClaims, DeviceLog, DevicePut, DevicePuts};
pub use peer::TransportChoice;
pub use pool::{PoolFigures, PoolInfo, PoolOptions, ReadSlot, ShmPool, StoreSlot};
pub use put_options::{IfExists, PutOptions};
pub use save::SavedOn;
pub use shared::Shared;
pub use view::{DeviceView, ObjectView};
use when_ready::Waits;
pub use when_ready::WhenReady;
pub use write::{PlanAddresses, PublishError, WritePlan};

use crate::actor::{ActorAddr, Message, On};
use crate::client::producer::{Attach, Producer, ProducerDurable};
use crate::current_master::CurrentMaster;
use crate::environment::Environment;
use crate::error::{Error, Result};
use crate::executor::{OnceCompiled, OwnedExecutor};
use crate::message::{ClusterStats, KeyBytes, RankInfo, Request, Response, Settings, View};
use crate::slow_path::ClientSlowPathCounters;
use arc_swap::ArcSwap;
use batch::{about_keys, continued, filled, one, spread};
use buffers::Buffers;
use contact::contact;
use control::ControlPool;
use counters::{Reads, Times, Writes};
use keys::HandleKeys;
use locations::Locations;
use nkv_store::fork::ProcessMark;
use nkv_store::{Key, KeyHasher};
use nkv_transport::wire::Address;
use nkv_transport::wire::auth::Credentials;
use peer::Peer;
use peers::Peers;
use rank_choice::{RankChoice, site_of};
use read_cache::ReadCache;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::time::Duration;

/// The handle. Cheap to clone; clones share connections. See also [`Client::blocking`].
#[derive(Debug, Clone)]
pub struct Client {
    pub(crate) shared: Arc<Shared>,
    pub(crate) pool: Arc<ControlPool>,
    // Connections for requests that are answered late.
    waits: Arc<Waits>,
    actor: Arc<OnceLock<ActorAddr<Producer>>>,
}

/// What a handle is made from.
pub(crate) struct Parts {
    pub env: Environment,
    pub config: ClientConfig,
    pub credentials: Credentials,
    pub hasher: KeyHasher,
    pub settings: Settings,
    pub view: View,
    pub master: Arc<CurrentMaster>,
    pub draining: Arc<AtomicBool>,
    pub producer_id: u64,
    pub executor: Option<OwnedExecutor>,
    /// The rank whose node this handle belongs to.
    pub home: Option<u32>,
}

/// See [`OnceCompiled`].
#[inline(never)]
fn connecting(
    env: Environment,
    node: &Address,
    config: ClientConfig,
) -> OnceCompiled<'_, Result<Client>> {
    Box::pin(Client::connected(env, node, config))
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
        connecting(env, node, config).await
    }

    async fn connected(env: Environment, node: &Address, config: ClientConfig) -> Result<Self> {
        let producer_id = env.random.u64();
        let limit = Duration::from_millis(config.call_timeout_ms);
        let credentials = Credentials::of_client(&config.job, config.secret.clone());
        let credentials = credentials.with_random(env.random.clone());
        let found = contact(&*env.net, node, &credentials, producer_id, limit).await?;
        found.settings.check()?;
        if config.transport == TransportChoice::Rdma {
            let (machine, wanted) = (env.machine.clone(), config.fabric.clone());
            let opened = tokio::task::spawn_blocking(move || machine.fabric(&wanted).map(drop));
            let opened = opened.await.map_err(|e| Error::internal(e.to_string()))?;
            opened.map_err(|e| Error::unsupported(format!("transport rdma: {e}")))?;
        }
        let mut addresses = found.master;
        if let Some((info, _)) = found.view.node(found.view.master)
            && info.boot_id == env.machine.boot_id()
            && let Some(local) = &info.local
        {
            addresses.insert(0, local.clone());
        }
        let follows = found.settings.master_lease_ms > 0;
        let here = found.view.ranks.iter().map(|(info, _)| info);
        let here = here.filter(|info| info.boot_id == env.machine.boot_id());
        let home = here.map(|info| info.rank).min();
        let executor = env.executor()?;
        let here = executor.executor().clone();
        let parts = Parts {
            env,
            config,
            credentials,
            hasher: found.hasher,
            settings: found.settings,
            view: found.view,
            master: Arc::new(CurrentMaster::of_handle(addresses, follows)),
            draining: Arc::default(),
            producer_id,
            executor: Some(executor),
            home,
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
        let pool = ControlPool::new(p.env.net.clone(), p.master, means, p.producer_id, rings);
        let choice = RankChoice::new(&p.view, site_of(&p.config, &p.env));
        let read_cache = ReadCache::wanted(p.config.cache_on_read, p.config.transport);
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
            locations: Locations::default(),
            read_cache,
            reads: Reads::default(),
            writes: Writes::default(),
            messages: Arc::default(),
            times: Times::default(),
            slow_path: pool.slow_path.clone(),
            draining: p.draining,
            closed: AtomicBool::new(false),
            settings: p.settings,
            world: AtomicU32::new(p.view.world_size),
            hashed_over: AtomicU32::new(RankChoice::hashed_over(&p.view)),
            rank_choice: ArcSwap::from_pointee(choice),
            view: RwLock::new(p.view),
            next_request: AtomicU64::new(1),
            executor: p.executor,
            made: ProcessMark::here(),
            home: p.home,
        };
        let waits = Arc::new(Waits::beside(&pool));
        Self { shared: Arc::new(shared), pool: Arc::new(pool), waits, actor: Arc::default() }
    }

    /// Starts the Producer behind this handle.
    pub(crate) async fn start_producer(
        &self,
        executor: &crate::executor::Executor,
    ) -> Result<ActorAddr<Producer>> {
        let (shared, pool) = (Arc::downgrade(&self.shared), Arc::new(self.pool.another()));
        let durable = ProducerDurable { shared: shared.clone(), pool };
        let exhausted = Arc::new(|name: &'static str| {
            tracing::error!(
                actor = name,
                "restart budget spent; this handle's background work ends"
            );
        });
        let actor = ActorAddr::start(executor, durable, exhausted).await?;
        let _ = self.actor.set(actor.clone());
        // Few membership views come: a ring does not pay.
        let pool = self.pool.another().without_rings();
        executor.task(async move { pool.presence(shared).await });
        Ok(actor)
    }

    /// A synchronous handle for one thread, with connections of its own.
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/example.rs")); }
    /// # use nkv_actors::*;
    /// # example::on_one_rank("blocking", async |cache| {
    /// std::thread::spawn(move || -> Result<()> {
    ///     let cache = cache.blocking()?;
    ///     cache.put(b"block/1", b"kv bytes", &PutOptions::default())?;
    ///     assert_eq!(cache.get(b"block/1")?, &b"kv bytes"[..]);
    ///     Ok(())
    /// })
    /// .join()
    /// .unwrap()?;
    /// # Ok(())
    /// # });
    /// ```
    pub fn blocking(&self) -> Result<Blocking> {
        Blocking::new(self)
    }

    /// The same handle with fresh connections: a connection belongs to the runtime that made it.
    pub fn for_another_runtime(&self) -> Self {
        let waits = Arc::new(Waits::beside(&self.pool));
        Self { pool: Arc::new(self.pool.another()), waits, ..self.clone() }
    }

    /// The same for a runtime that one thread drives for one call at a time: a call may block it.
    fn for_a_thread(&self) -> Self {
        let waits = Arc::new(Waits::beside(&self.pool));
        Self { pool: Arc::new(self.pool.for_a_thread()), waits, ..self.clone() }
    }

    /// Sends a message to the Producer without waiting for a reply. None if there is no Producer,
    /// or in a forked child.
    fn notify_producer<M: Message>(&self, message: M) -> Option<Result<()>>
    where
        Producer: On<M>,
    {
        let actor = self.actor.get().filter(|_| self.shared.made.is_here())?;
        self.shared.messages.one_way.one();
        Some(actor.try_send(message))
    }

    pub(crate) fn limit(&self) -> Duration {
        Duration::from_millis(self.shared.config.call_timeout_ms)
    }

    pub(crate) async fn call(&self, request: Request) -> Result<Response> {
        self.check_usable()?;
        self.call_within(request, self.limit()).await
    }

    async fn call_within(&self, request: Request, limit: Duration) -> Result<Response> {
        self.shared.messages.waited.one();
        let (kind, clock) = (request.kind(), &self.shared.env.clock);
        let asked_ns = clock.now_ns();
        let answer = self.pool.call(request, limit).await;
        self.shared.times.requests[kind].record(clock.now_ns().saturating_sub(asked_ns));
        answer
    }

    /// The results in the answer to a request of `n` items that is answered with `Done`.
    fn done(&self, asked: &str, answer: Result<Response>, n: usize) -> Vec<Result<()>> {
        match answer {
            Ok(Response::Done(list)) if list.len() == n => list,
            Ok(other) => spread(n, self.pool.unexpected(asked, &other)),
            Err(e) => spread(n, e),
        }
    }

    /// The cluster's settings, as received when this handle connected.
    pub fn settings(&self) -> Settings {
        self.shared.settings.clone()
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
        let actor = self.actor.get().ok_or_else(|| Error::internal("no producer actor"))?;
        self.shared.messages.waited.one();
        let rank = info.rank;
        let attached = match actor.call(Attach(info.clone()), self.limit()).await {
            // The actor was restarted under this call: ask its rebuilt state once.
            Err(e) if e.kind() == crate::ErrorKind::Internal => {
                actor.call(Attach(info), self.limit()).await
            }
            other => other,
        };
        attached.and_then(|peer| peer).map_err(|e| e.at_rank(rank))
    }

    async fn rank_info(&self, incarnation: u64) -> Result<RankInfo> {
        let find = |v: &View| v.member(incarnation).map(|(info, _)| info.clone());
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
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/example.rs")); }
    /// # use nkv_actors::*;
    /// # example::on_one_rank("members", async |cache| {
    /// let view = cache.membership().await?;
    /// assert_eq!(view.ranks.len(), 1);
    /// # Ok(())
    /// # });
    /// ```
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
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/example.rs")); }
    /// # use nkv_actors::*;
    /// # example::on_one_rank("stats", async |cache| {
    /// let stats = cache.stats().await?;
    /// assert_eq!(stats.ranks.len(), 1);
    /// # Ok(())
    /// # });
    /// ```
    pub async fn stats(&self) -> Result<ClusterStats> {
        match self.call(Request::Stats).await? {
            Response::Stats(s) => Ok(s),
            other => Err(self.pool.unexpected("Stats", &other)),
        }
    }

    /// Asks every owner to evict until its heap is used to at most this ratio (0 to 1).
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/example.rs")); }
    /// # use nkv_actors::*;
    /// # example::on_one_rank("evict", async |cache| {
    /// cache.evict_until_below(0.5).await?;
    /// # Ok(())
    /// # });
    /// ```
    pub async fn evict_until_below(&self, usage_ratio: f64) -> Result<()> {
        let answer = self.call(Request::EvictUntilBelow(usage_ratio)).await;
        one(self.done("EvictUntilBelow", answer, 1))
    }
}

/// Checks a condition every millisecond; false if it does not hold within `limit`.
async fn holds_within(limit: Duration, holds: impl Fn() -> bool) -> bool {
    for _ in 0..limit.as_millis() {
        if holds() {
            return true;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    false
}

/// InvalidArgument if one is no valid key. Checked before any lookup, which would only report such
/// a key as absent.
fn check_keys(keys: &[&[u8]]) -> Result<()> {
    keys.iter().try_for_each(|key| Key::check(key)).map_err(Error::from)
}

fn key_bytes(keys: &[&[u8]]) -> Vec<KeyBytes> {
    keys.iter().map(|k| KeyBytes::from(*k)).collect()
}
