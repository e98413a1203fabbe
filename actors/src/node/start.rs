//! Starting a node, step by step; whatever was made before a step that fails is taken down again by
//! its owner's Drop.

use super::{MemoryChoice, Node, NodeConfig, StartError, watchdog};
use crate::cell::{CellAddr, RESTART_BUDGET, RESTART_WINDOW_MS};
use crate::client::control::MasterPath;
use crate::client::{Client, ClientConfig, Parts};
use crate::error::Error;
use crate::evictor::{Evictor, EvictorTruth};
use crate::master::{Master, MasterTruth, Members};
use crate::membership::{LinkState, Membership, Uplink};
use crate::message::{RankInfo, Refusal, Settings, Term, View};
use crate::owner::tables::OwnerTables;
use crate::owner::{Owner, OwnerTruth};
use crate::place::{OwnedPlace, Place};
use crate::producer::Producer;
use crate::server::{LocalOwner, Published, Server, publish_local, serve};
use nkv_store::clock::{BootClock, Clock};
use nkv_store::evict::Watermarks;
use nkv_store::heap::{Heap, HeapConfig};
use nkv_store::shm::{self, SegmentName, ShmMemory};
use nkv_store::{AnonMemory, Memory, StoreError, boot_id, new_incarnation, random_u64};
use nkv_transport::Alive;
use nkv_transport::grants::Grants;
use nkv_transport::tcp::{AgentLimits, TcpAgent};
use nkv_transport::wire::auth::{Credentials, Guard};
use nkv_transport::wire::{Address, Listener, Net, OsNet};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;
use tokio::sync::{oneshot, watch};

struct Segment {
    heap: Heap,
    file_name: String,
    // Before the segment's name: a socket without a segment counts as stale.
    socket: Option<SocketFile>,
    named: Option<ShmMemory>,
}

/// The unix socket's file, removed with the node.
#[derive(Debug)]
pub(super) struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Absent if the node failed before it listened.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// The actors of a rank, and what they share.
struct Roles {
    owner: CellAddr<Owner>,
    evictor: CellAddr<Evictor>,
    tables: Arc<OwnerTables>,
    uplink: Arc<Uplink>,
    failed: watch::Sender<Option<String>>,
}

/// A node under construction: what later steps need of earlier ones.
struct Building {
    config: NodeConfig,
    clock: Arc<dyn Clock>,
    net: Arc<dyn Net>,
    guard: Arc<Guard>,
    segment: Segment,
    place: OwnedPlace,
    master_place: Option<OwnedPlace>,
    agent: TcpAgent,
    roles: Roles,
    master: Option<(CellAddr<Master>, Arc<Members>)>,
    draining: Arc<AtomicBool>,
    closing: Arc<AtomicBool>,
}

impl Node {
    /// Starts a rank; it has joined when this returns. Errors say what to do.
    pub async fn start(config: NodeConfig) -> Result<Self, StartError> {
        config.validate()?;
        let building = Building::new(config).await?;
        let (info, settings) = building.listen().await?;
        let alive = Alive::new();
        let published = publish_local(
            info.incarnation,
            LocalOwner {
                memory: building.segment.heap.memory().clone(),
                alive: alive.clone(),
                owner: building.roles.owner.clone(),
                tables: building.roles.tables.clone(),
            },
        );
        let link = building.join(&info, settings.0);
        let client = building.client();
        let producer = client.start_producer(building.place.place()).await?;
        building.watch(&producer)?;
        let node =
            building.finish(info, (alive, published), (client, producer), (link, settings.1));
        node.wait_joined().await?;
        Ok(node)
    }

    async fn wait_joined(&self) -> Result<(), StartError> {
        let mut link = self.link.clone();
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
            LinkState::NoMaster(why) => Err(StartError::NoMaster(format!(
                "no master within {} ms at {}:{}; is rank 0 up, and NKV_PORT the same everywhere? ({why})",
                self.config.join_timeout_ms, self.config.master_host, self.config.port
            ))),
            _ => Ok(()),
        }
    }
}

type JoinedAs = Option<(Term, Settings)>;

impl Building {
    /// Segment, agent, actors.
    async fn new(config: NodeConfig) -> Result<Self, StartError> {
        let clock: Arc<dyn Clock> = Arc::new(BootClock);
        let incarnation = new_incarnation();
        let guard = make_guard(&config).await?;
        // Prefaulting takes seconds per GiB: not on the caller's event loop.
        let sized = config.clone();
        let segment = tokio::task::spawn_blocking(move || make_segment(&sized, incarnation))
            .await
            .map_err(|e| StartError::Internal(format!("segment task: {e}")))??;
        let place = OwnedPlace::arbiter()?;
        let master_place = if config.rank == 0 { Some(OwnedPlace::arbiter()?) } else { None };
        let grants = Arc::new(Grants::new());
        let memory = segment.heap.memory().clone();
        let agent = start_agent(&config, memory, incarnation, grants.clone(), guard.clone())?;
        let roles = start_roles(&config, &segment, grants, &clock, place.place()).await?;
        let master = match &master_place {
            Some(p) => Some(start_master(&config, &clock, &roles.failed, p.place()).await?),
            None => None,
        };
        let (draining, closing) =
            (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let net = Arc::new(OsNet);
        Ok(Self {
            config,
            clock,
            net,
            guard,
            segment,
            place,
            master_place,
            agent,
            roles,
            master,
            draining,
            closing,
        })
    }

    fn master_at(&self) -> Address {
        Address::Tcp(format!("{}:{}", self.config.master_host, self.config.port))
    }

    /// Opens the control port and the unix socket, and serves both.
    async fn listen(
        &self,
    ) -> Result<(RankInfo, (watch::Sender<JoinedAs>, watch::Receiver<JoinedAs>)), StartError> {
        let c = &self.config;
        let place = self.master_place.as_ref().unwrap_or(&self.place).place();
        let port = if c.rank == 0 { c.port } else { 0 };
        let control = Address::Tcp(SocketAddr::new(c.listen, port).to_string());
        let listener = listen(&self.net, place, control).await?;
        let local = match &self.segment.socket {
            Some(file) => Some(listen(&self.net, place, Address::Unix(file.0.clone())).await?),
            None => None,
        };
        let info = rank_info(c, &self.segment, &self.agent, &*listener, local.as_deref());
        let settings = watch::channel(None);
        let server = Arc::new(Server {
            job: c.job.clone(),
            guard: self.guard.clone(),
            info: info.clone(),
            master: self.master.clone(),
            master_at: self.master.is_none().then(|| self.master_at()),
            settings: settings.1.clone(),
            defaults: defaults(c),
            owner: self.roles.owner.clone(),
            tables: self.roles.tables.clone(),
            clock: self.clock.clone(),
            closing: self.closing.clone(),
            connections: Default::default(),
            strangers: Server::room_for_strangers(),
        });
        serve(place, server.clone(), listener);
        if let Some(l) = local {
            serve(place, server, l);
        }
        Ok((info, settings))
    }

    /// Starts the link to the master.
    fn join(&self, info: &RankInfo, told: watch::Sender<JoinedAs>) -> watch::Receiver<LinkState> {
        let (state, link) = watch::channel(LinkState::Joining);
        let near = info.local.clone().into_iter().chain([info.control.clone()]);
        let membership = Membership {
            net: self.net.clone(),
            master: if self.master.is_some() { near.collect() } else { vec![self.master_at()] },
            credentials: self.guard.credentials().clone(),
            info: info.clone(),
            owner: self.roles.owner.clone(),
            tables: self.roles.tables.clone(),
            uplink: self.roles.uplink.clone(),
            clock: self.clock.clone(),
            heartbeat: Duration::from_millis(self.config.beat_ms()),
            join_timeout: Duration::from_millis(self.config.join_timeout_ms),
            draining: self.draining.clone(),
            closing: self.closing.clone(),
        };
        self.place.place().task(async move { membership.run(state, told).await });
        link
    }

    /// From here on somebody sees actors that no longer move.
    fn watch(&self, producer: &CellAddr<Producer>) -> Result<(), StartError> {
        let r = &self.roles;
        let mut cells = vec![r.owner.watch(), r.evictor.watch(), producer.watch()];
        cells.extend(self.master.iter().map(|(m, _)| m.watch()));
        // A rank whose owner is frozen sends no heartbeats: by then it is gone anyway.
        watchdog::start(cells, self.config.ttl_ms, r.failed.clone(), self.closing.clone())
            .map_err(|e| StartError::Internal(e.to_string()))
    }

    fn client(&self) -> Client {
        let path = match &self.master {
            Some((m, _)) => MasterPath::Local(m.clone()),
            None => MasterPath::Remote(Arc::new(Mutex::new(vec![self.master_at()]))),
        };
        Client::from_parts(Parts {
            net: self.net.clone(),
            clock: self.clock.clone(),
            config: ClientConfig {
                job: self.config.job.clone(),
                call_timeout_ms: self.config.call_timeout_ms,
                ..ClientConfig::default()
            },
            credentials: self.guard.credentials().clone(),
            settings: defaults(&self.config),
            view: View::default(),
            path,
            draining: self.draining.clone(),
            producer_id: random_u64(),
            place: None,
        })
    }

    fn finish(
        self,
        info: RankInfo,
        (alive, published): (Alive, Published),
        (client, producer): (Client, CellAddr<Producer>),
        (link, settings): (watch::Receiver<LinkState>, watch::Receiver<JoinedAs>),
    ) -> Node {
        Node {
            started_ms: self.clock.now_ms(),
            config: self.config,
            guard: self.guard,
            info,
            client,
            producer,
            owner: self.roles.owner,
            evictor: self.roles.evictor,
            master: self.master,
            tables: self.roles.tables,
            uplink: self.roles.uplink,
            link,
            settings,
            failed: self.roles.failed.subscribe(),
            agent: self.agent,
            alive,
            _published: published,
            closing: self.closing,
            clock: self.clock,
            _socket: self.segment.socket,
            _named: self.segment.named,
            _master_place: self.master_place,
            _place: self.place,
        }
    }
}

/// The job's secret, or its cookie.
async fn make_guard(config: &NodeConfig) -> Result<Arc<Guard>, StartError> {
    let (job, secret) = (config.job.clone(), config.secret.clone());
    // A cookie is a file: not on the caller's event loop.
    let made = tokio::task::spawn_blocking(move || Credentials::of_node(&job, secret)).await;
    let made = made.map_err(|e| StartError::Internal(format!("cookie task: {e}")))?;
    made.map(|c| Arc::new(Guard::new(c))).map_err(|e| StartError::Config(e.to_string()))
}

fn make_segment(config: &NodeConfig, incarnation: u64) -> Result<Segment, StartError> {
    let wanted = HeapConfig {
        arena_bytes: config.heap_bytes,
        rank: config.rank,
        segment_id: 0,
        incarnation,
        boot_id: boot_id(),
        quarantine_ms: config.quarantine_ms,
        water_hi: config.water_hi,
        water_lo: config.water_lo,
    };
    let internal = |e: StoreError| match e {
        StoreError::NotEnoughMemory(text) => StartError::HeapTooLarge(text),
        StoreError::InvalidConfig(text) => StartError::Config(text),
        other => StartError::Internal(other.to_string()),
    };
    wanted.validate().map_err(internal)?;
    let bytes = wanted.segment_bytes();
    if config.memory == MemoryChoice::Private {
        let memory: Arc<dyn Memory> = Arc::new(AnonMemory::new(bytes).map_err(internal)?);
        let heap = Heap::format(memory, &wanted).map_err(internal)?;
        return Ok(Segment { heap, named: None, file_name: String::new(), socket: None });
    }
    for name in shm::remove_stale() {
        tracing::info!(name, "removed what a dead process left behind");
    }
    let name = SegmentName { job: config.job.clone(), rank: config.rank, incarnation };
    let named = shm::create(&name, bytes, config.prefault).map_err(internal)?;
    // The node keeps the handle that unlinks; the heap lives on its own, for those still using it.
    let memory = shm::attach(named.file_name(), false).map_err(internal)?;
    let heap = Heap::format(memory, &wanted).map_err(internal)?;
    let file_name = named.file_name().to_string();
    Ok(Segment {
        heap,
        named: Some(named),
        file_name,
        socket: Some(SocketFile(name.socket_path())),
    })
}

fn start_agent(
    config: &NodeConfig,
    memory: Arc<dyn Memory>,
    incarnation: u64,
    grants: Arc<Grants>,
    guard: Arc<Guard>,
) -> Result<TcpAgent, StartError> {
    let limits = AgentLimits { max_connections: config.data_connections, ..AgentLimits::default() };
    let at = SocketAddr::new(config.listen, 0);
    TcpAgent::start(at, memory, incarnation, &config.job, grants, Some(guard), limits)
        .map_err(|e| StartError::Internal(format!("cannot start the tcp agent at {at}: {e}")))
}

async fn start_roles(
    config: &NodeConfig,
    segment: &Segment,
    grants: Arc<Grants>,
    clock: &Arc<dyn Clock>,
    place: &Place,
) -> Result<Roles, StartError> {
    let tables = Arc::new(OwnerTables::new(grants, segment.heap.geometry().arena.len));
    let uplink = Arc::new(Uplink::default());
    let (failed, _) = watch::channel(None);
    let (owner_slot, evictor_slot) = (Arc::new(OnceLock::new()), Arc::new(OnceLock::new()));
    let owner_truth = OwnerTruth {
        heap: segment.heap.clone(),
        tables: tables.clone(),
        uplink: uplink.clone(),
        evictor: evictor_slot.clone(),
        clock: clock.clone(),
    };
    let owner = CellAddr::<Owner>::start(place, owner_truth, report_to(&failed)).await?;
    let evictor_truth = EvictorTruth {
        heap: segment.heap.clone(),
        policy: config.policy,
        watermarks: Watermarks { hi: config.water_hi, lo: config.water_lo },
        tables: tables.clone(),
        owner: owner_slot.clone(),
    };
    let evictor = CellAddr::<Evictor>::start(place, evictor_truth, report_to(&failed)).await?;
    let _ = owner_slot.set(owner.clone());
    let _ = evictor_slot.set(evictor.clone());
    Ok(Roles { owner, evictor, tables, uplink, failed })
}

fn report_to(failed: &watch::Sender<Option<String>>) -> Arc<dyn Fn(&'static str) + Send + Sync> {
    let failed = failed.clone();
    Arc::new(move |name| {
        let text = format!(
            "the {name} actor failed more than {RESTART_BUDGET} times in {} s",
            RESTART_WINDOW_MS / 1_000
        );
        failed.send_replace(Some(text));
    })
}

async fn start_master(
    config: &NodeConfig,
    clock: &Arc<dyn Clock>,
    failed: &watch::Sender<Option<String>>,
    place: &Place,
) -> Result<(CellAddr<Master>, Arc<Members>), StartError> {
    let term = Term { number: 1, master: random_u64() };
    let members = Arc::new(Members::new(term, config.world_size, clock.now_ms()));
    let truth = MasterTruth {
        world_size: config.world_size,
        ttl_ms: config.ttl_ms,
        full_wait_ms: config.full_wait_ms,
        settings: defaults(config),
        members: members.clone(),
        next_plan: Arc::new(AtomicU64::new(1)),
        clock: clock.clone(),
    };
    Ok((CellAddr::start(place, truth, report_to(failed)).await?, members))
}

fn defaults(config: &NodeConfig) -> Settings {
    Settings {
        page_bytes: config.page_bytes,
        write_ttl_ms: config.write_ttl_ms,
        ttl_ms: config.ttl_ms,
        call_timeout_ms: config.call_timeout_ms,
    }
}

/// Binds on the place whose event loop will serve the listener.
async fn listen(
    net: &Arc<dyn Net>,
    place: &Place,
    at: Address,
) -> Result<Box<dyn Listener>, StartError> {
    let (tx, rx) = oneshot::channel();
    let (net, address) = (net.clone(), at.clone());
    place.task(async move {
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

fn rank_info(
    config: &NodeConfig,
    segment: &Segment,
    agent: &TcpAgent,
    control: &dyn Listener,
    local: Option<&dyn Listener>,
) -> RankInfo {
    let g = segment.heap.geometry();
    RankInfo {
        rank: config.rank,
        world_size: config.world_size,
        incarnation: g.incarnation,
        boot_id: g.boot_id,
        pid: std::process::id(),
        control: control.local(),
        local: local.map(|l| l.local()),
        data: Some(agent.local_addr().to_string()),
        http: config.http.clone(),
        segment: segment.file_name.clone(),
        segment_bytes: g.segment_bytes,
        slots: g.slots,
        header_base: g.header_base,
        arena_offset: g.arena.offset,
        arena_bytes: g.arena.len,
        quarantine_ms: config.quarantine_ms,
        prefault: config.prefault && config.memory == MemoryChoice::Shm,
    }
}
