//! Starts a node step by step. If a step fails, Drop takes down what the steps before it made.

use super::common::Common;
use super::mount::{First, NodeAddresses, Segments};
use super::segment::{Joining, SegmentFlags, SegmentHost, UnjoinedSegment};
use super::settings::shared_settings;
use super::starter::MasterStarter;
use super::watchdog::{self, Watchlist};
use super::{ElectionChoice, Node, NodeConfig, NodeParts, StartError};
use crate::actor::ActorAddr;
use crate::client::producer::Producer;
use crate::client::{Client, ClientConfig, Parts};
use crate::current_master::{CurrentMaster, MasterPath};
use crate::election::{Arbiter, Election, Etcd, StartMaster, Voter, keep_in_etcd};
use crate::environment::Environment;
use crate::error::Error;
use crate::executor::{Executor, OnceCompiled, OwnedExecutor};
use crate::membership::LinkState;
use crate::message::{RankInfo, Refusal, Term, View};
use crate::server::{MAX_CONNECTIONS, MAX_RINGS, SegmentCommands, SegmentRegistry, Server};
use crate::tier::DiskTier;
use nkv_store::KeyPool;
use nkv_store::fork::OwnProcessOnly;
use nkv_transport::wire::auth::{Credentials, Guard};
use nkv_transport::wire::{Address, Listener, Net};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::{Semaphore, oneshot, watch};

/// How often the node checks that the job's cookie still exists.
const COOKIE_CHECK: Duration = Duration::from_secs(1);

/// See [`OnceCompiled`].
#[inline(never)]
fn starting(
    env: Environment,
    config: NodeConfig,
) -> OnceCompiled<'static, Result<Node, StartError>> {
    Box::pin(Node::started(env, config))
}

/// A node under construction: results of earlier steps that later ones need.
struct Building {
    segments: Arc<Segments>,
    unjoined: UnjoinedSegment,
    // For the control port and the master, on a rank that is or may become master.
    control_executor: Option<OwnedExecutor>,
    switches: SegmentFlags,
}

impl Node {
    /// Starts a rank; it has joined the cluster when this returns. Errors say what to do.
    pub async fn start(config: NodeConfig) -> Result<Self, StartError> {
        Self::start_in(Environment::of_this_process(), config).await
    }

    /// As [`Node::start`], in an environment that the caller provides.
    pub async fn start_in(env: Environment, config: NodeConfig) -> Result<Self, StartError> {
        starting(env, config).await
    }

    async fn started(env: Environment, config: NodeConfig) -> Result<Self, StartError> {
        config.validate()?;
        let building = Building::new(env, config).await?;
        let (info, elected) = building.listen().await?;
        let client = building.client();
        let mut voter = None;
        if let Some((of_rank, starter)) = elected {
            building.take_part(&of_rank, starter, &client)?;
            voter = Some(of_rank);
        }
        let producer = client.start_producer(building.unjoined.executor()).await?;
        building.watch(&producer)?;
        let common = building.common();
        common.replication.start(&client, &common.env)?;
        if let Some(tier) = &building.common().tier {
            tier.start_jobs(&client)?;
        }
        let node = building.finish((info, voter), client, producer);
        node.wait_joined().await?;
        Ok(node)
    }

    async fn wait_joined(&self) -> Result<(), StartError> {
        let mut link = self.first.segment_handle.link.clone();
        let settled = link.wait_for(|l| *l != LinkState::Joining).await;
        let state =
            settled.map_err(|_| StartError::Internal("the membership task ended".into()))?;
        match &*state {
            LinkState::Refused(why @ Refusal::WorldSize { .. }) => {
                Err(StartError::WorldSize(why.to_string()))
            }
            LinkState::Refused(why @ Refusal::RankAlive { .. }) => {
                Err(StartError::RankAlive(why.to_string()))
            }
            LinkState::Refused(why) => Err(StartError::Refused(why.to_string())),
            LinkState::NoMaster(why) if self.config().election.is_any_rank() => {
                Err(StartError::NoMaster(format!(
                    "no master was elected within {} ms: start more than half of the {} ranks, \
                     with one --election and one NKV_PORT; each asks rank 0 at {}:{}, --peers, and \
                     the etcd of --election ({why})",
                    self.config().join_timeout_ms,
                    self.config().world_size,
                    self.config().master_host,
                    self.config().port
                )))
            }
            LinkState::NoMaster(why) => Err(StartError::NoMaster(format!(
                "no master within {} ms at {}:{}; is rank 0 up, and NKV_PORT the same everywhere? \
                 ({why})",
                self.config().join_timeout_ms,
                self.config().master_host,
                self.config().port
            ))),
            _ => Ok(()),
        }
    }
}

impl Building {
    /// Makes segment, agent and actors, on rank 0 also the master.
    async fn new(env: Environment, config: NodeConfig) -> Result<Self, StartError> {
        let guard = make_guard(&env, &config).await?;
        let hasher = guard.credentials().key_hasher();
        let unknown = || StartError::Internal("a node without a secret or a cookie".to_string());
        let tier = open_tier(&env, &config).await?;
        let common = Common {
            replication: Arc::default(),
            tier,
            hasher: hasher.ok_or_else(unknown)?,
            key_pool: Arc::new(match config.rank == 0 || config.election.is_any_rank() {
                true => KeyPool::shared(),
                false => KeyPool::default(),
            }),
            guard,
            env,
            failed: watch::channel(None).0,
            registry: SegmentRegistry::default(),
            master: Arc::new(CurrentMaster::of_node(MasterPath::Remote(match &config.election {
                ElectionChoice::Rank0 => [master_at(&config)].into(),
                ElectionChoice::Ranks | ElectionChoice::Etcd(_) => [].into(),
            }))),
            siblings: Arc::default(),
            watchlist: Arc::<Watchlist>::default(),
            settings: watch::Sender::new((Term::default(), shared_settings(&config))),
            config,
        };
        let (config, env) = (&common.config, &common.env);
        let unjoined = UnjoinedSegment::new(&common, 0, config.heap_bytes).await?;
        let may_be_master = config.rank == 0 || config.election.is_any_rank();
        let control_executor = if may_be_master { Some(env.executor()?) } else { None };
        let home = unjoined.executor().clone();
        let segments = Arc::new(Segments::new(common, home));
        let switches = SegmentFlags::default();
        Ok(Self { segments, unjoined, control_executor, switches })
    }

    fn common(&self) -> &Common {
        &self.segments.common
    }

    fn config(&self) -> &NodeConfig {
        &self.common().config
    }

    /// Where the control port is served, and the master runs.
    fn control(&self) -> &Executor {
        self.control_executor.as_ref().map_or(self.unjoined.executor(), OwnedExecutor::executor)
    }

    /// Opens the control port and the unix socket, and serves both.
    async fn listen(&self) -> Result<(RankInfo, Option<(Arc<Voter>, MasterStarter)>), StartError> {
        let (c, net) = (self.config(), &self.common().env.net);
        let executor = self.control();
        let at = |port| Address::Tcp(SocketAddr::new(c.listen, port).to_string());
        let port = if c.rank == 0 { c.port } else { c.control_port };
        let listener = match listen(net, executor, at(port)).await {
            // Any other port will do: only clients configured with this one must change.
            Err(StartError::PortInUse(_)) if c.rank > 0 && port > 0 => {
                listen(net, executor, at(0)).await?
            }
            listener => listener?,
        };
        let local = match &self.unjoined.made.socket {
            Some(file) => Some(listen(net, executor, Address::Unix(file.0.clone())).await?),
            None => None,
        };
        let (control, near) = (listener.local(), local.as_ref().map(|l| l.local()));
        let info = self.unjoined.info(self.common(), control.clone(), near.clone());
        let own: Arc<[Address]> = near.clone().into_iter().chain([control.clone()]).collect();
        let starter = MasterStarter::new(self.common(), executor, own);
        let voter = match &c.election {
            ElectionChoice::Rank0 if c.rank == 0 => {
                starter.begin(1, Default::default()).await?;
                None
            }
            ElectionChoice::Rank0 => None,
            ElectionChoice::Ranks | ElectionChoice::Etcd(_) => Some(self.voter(control.clone())),
        };
        // Set only once: a node listens once.
        let _ = self.segments.reach.set(NodeAddresses { control, local: near });
        let server = Arc::new(Server {
            job: c.job.clone(),
            guard: self.common().guard.clone(),
            hasher: self.common().hasher,
            rank: c.rank,
            master: self.common().master.clone(),
            voter: voter.clone(),
            settings: self.common().settings.subscribe(),
            registry: self.common().registry.clone(),
            segments: Arc::downgrade(&self.segments) as Weak<dyn SegmentCommands>,
            clock: self.common().env.clock.clone(),
            random: self.common().env.random.clone(),
            closing: self.switches.closing.clone(),
            connections: Arc::new(Semaphore::new(MAX_CONNECTIONS)),
            unauthenticated: Default::default(),
            lines: Default::default(),
            rings: Arc::new(Semaphore::new(MAX_RINGS)),
        });
        let credentials = self.common().guard.credentials().clone();
        if credentials.has_cookie() {
            executor.task(keep_cookie(credentials, self.switches.closing.clone()));
        }
        for listener in [Some(listener), local].into_iter().flatten() {
            executor.task(server.clone().run(listener));
        }
        Ok((info, voter.map(|voter| (voter, starter))))
    }

    fn voter(&self, control: Address) -> Arc<Voter> {
        let c = self.config();
        let tables = self.unjoined.tables.clone();
        Arc::new(Voter::new(
            (c.rank, c.world_size, control),
            c.master_lease_ms,
            self.common().env.clock.clone(),
            Box::new(move || tables.term()),
            self.common().master.clone(),
        ))
    }

    /// Starts to look for the master, and to stand for election.
    fn take_part(
        &self,
        voter: &Arc<Voter>,
        starter: MasterStarter,
        client: &Client,
    ) -> Result<(), StartError> {
        let (c, env) = (self.config(), &self.common().env);
        let mut configured = Vec::new();
        if c.rank > 0 {
            configured.push(master_at(c));
        }
        configured.extend(c.peer_addresses()?);
        let arbiter = match &c.election {
            ElectionChoice::Etcd(at) => {
                let etcd = Arc::new(Etcd::new(at, &c.job));
                let task = keep_in_etcd(etcd.clone(), voter.clone(), env.clock.clone());
                self.control().task(task);
                Arbiter::Etcd(etcd)
            }
            _ => Arbiter::Votes,
        };
        let election = Election {
            voter: voter.clone(),
            master: self.common().master.clone(),
            starter: Box::new(starter),
            arbiter,
            lines: Default::default(),
            net: env.net.clone(),
            credentials: self.common().guard.credentials().clone(),
            clock: env.clock.clone(),
            random: env.random.clone(),
            configured,
            handle: Arc::downgrade(&client.shared),
        };
        self.control().task(election.run());
        Ok(())
    }

    /// Starts the watchdog, which detects frozen actors.
    fn watch(&self, producer: &ActorAddr<Producer>) -> Result<(), StartError> {
        let list = &self.common().watchlist;
        list.add(0, self.unjoined.roles.watches().chain([producer.watch()]));
        // The limit is the TTL: a rank whose owner is frozen that long sent no heartbeats, and is
        // gone anyway.
        let (env, ttl_ms) = (&self.common().env, self.config().ttl_ms);
        let (failed, closing) = (self.common().failed.clone(), self.switches.closing.clone());
        watchdog::start(env, list.clone(), ttl_ms, failed, closing)
            .map_err(|e| StartError::Internal(e.to_string()))
    }

    fn client(&self) -> Client {
        Client::from_parts(Parts {
            env: self.common().env.clone(),
            config: ClientConfig {
                job: self.config().job.clone(),
                call_timeout_ms: self.config().call_timeout_ms,
                device_alloc: self.config().device_alloc,
                data_stripes: self.config().data_stripes,
                get_pool_bytes: self.config().get_pool_bytes,
                cache_on_read: self.config().cache_on_read,
                numa_node: self.config().numa_node,
                rack: self.config().rack.clone(),
                ..ClientConfig::default()
            },
            credentials: self.common().guard.credentials().clone(),
            hasher: self.common().hasher,
            settings: shared_settings(self.config()),
            view: View::default(),
            master: self.common().master.clone(),
            draining: self.switches.draining.clone(),
            producer_id: self.common().env.random.u64(),
            executor: None,
            home: Some(self.config().rank),
        })
    }

    /// Starts the link to the master, and assembles the node.
    fn finish(
        self,
        (info, voter): (RankInfo, Option<Arc<Voter>>),
        client: Client,
        producer: ActorAddr<Producer>,
    ) -> Node {
        let Self { segments, mut unjoined, control_executor, switches } = self;
        let common = &segments.common;
        let socket = unjoined.made.socket.take();
        let joining = Joining {
            voter,
            limit: Duration::from_millis(common.config.join_timeout_ms),
            siblings: common.siblings.clone(),
            settings_tx: common.settings.clone(),
            switches: switches.clone(),
        };
        let first: SegmentHost = unjoined.join(common, info, joining);
        let started_ms = common.env.clock.now_ms();
        let handle = Arc::downgrade(&client.shared);
        // Set only once: a node joins once.
        let _ = segments.first.set(First {
            segment_handle: first.segment_handle.clone(),
            handle,
            started_ms,
        });
        let parts = NodeParts {
            started_ms,
            failed: common.failed.subscribe(),
            client,
            producer,
            segments,
            closing: switches.closing,
            _socket: socket,
            first,
            _control_executor: control_executor,
        };
        Node(OwnProcessOnly::new(parts))
    }
}

/// Where the configuration says that rank 0 is.
fn master_at(config: &NodeConfig) -> Address {
    Address::Tcp(format!("{}:{}", config.master_host, config.port))
}

/// Opens the SSD tier, if there is one.
async fn open_tier(
    env: &Environment,
    config: &NodeConfig,
) -> Result<Option<Arc<DiskTier>>, StartError> {
    let Some(mut ssd) = config.ssd.clone() else { return Ok(None) };
    ssd.dir.push(format!("rank-{}", config.rank));
    // Not on the caller's event loop: it reads a journal, and may make large files.
    let clock = env.clock.clone();
    let opened = tokio::task::spawn_blocking(move || DiskTier::open(&ssd, clock)).await;
    let opened = opened.map_err(|e| StartError::Internal(format!("SSD task: {e}")))?;
    opened.map(Some).map_err(StartError::Disk)
}

/// Credentials from the job's secret, else from its cookie.
async fn make_guard(env: &Environment, config: &NodeConfig) -> Result<Arc<Guard>, StartError> {
    let (job, secret) = (config.job.clone(), config.secret.clone());
    let made = match secret {
        Some(_) => Credentials::of_node(&job, secret),
        // Not on the caller's event loop: a cookie is a file.
        None => tokio::task::spawn_blocking(move || Credentials::of_node(&job, None))
            .await
            .map_err(|e| StartError::Internal(format!("cookie task: {e}")))?,
    };
    let made = made.map_err(|e| StartError::Config(e.to_string()))?;
    Ok(Arc::new(Guard::new(made.with_random(env.random.clone()))))
}

/// Restores the job's cookie when it is missing, until the node closes.
async fn keep_cookie(credentials: Credentials, closing: Arc<AtomicBool>) {
    let mut logged = false;
    while !closing.load(Ordering::Acquire) {
        tokio::time::sleep(COOKIE_CHECK).await;
        let cookie = credentials.clone();
        // File access: not on the thread of actors.
        match tokio::task::spawn_blocking(move || cookie.put_back()).await {
            Ok(Ok(None)) => logged = false,
            Ok(Ok(Some(path))) => {
                let path = path.display();
                tracing::warn!(%path, "the job's cookie had been removed; put it back");
            }
            Ok(Err(error)) => {
                // Logged once each time that it is missing.
                if !std::mem::replace(&mut logged, true) {
                    tracing::warn!(%error, "the job's cookie is missing: no new client can connect \
                                            by tcp");
                }
            }
            Err(error) => tracing::warn!(%error, "the check of the job's cookie failed"),
        }
    }
}

/// Binds on the executor whose event loop will serve the listener. PortInUse if another socket has
/// the address.
async fn listen(
    net: &Arc<dyn Net>,
    executor: &Executor,
    at: Address,
) -> Result<Box<dyn Listener>, StartError> {
    let (tx, rx) = oneshot::channel();
    let (net, address) = (net.clone(), at.clone());
    executor.task(async move {
        let _ = tx.send(net.listen(&address).await);
    });
    let bound = rx.await.map_err(|_| Error::internal("the control thread ended"))?;
    bound.map_err(|e| match e.kind() {
        std::io::ErrorKind::AddrInUse => StartError::PortInUse(format!(
            "{at} is in use; give another --port (NKV_PORT), or end the job that has it"
        )),
        _ => StartError::Internal(format!("cannot listen at {at}: {e}")),
    })
}
