//! How a handle attaches to an owner: in its own process, by shared memory, RDMA or tcp, whichever
//! is the best data path that is allowed and works.

use super::super::log_names::LogNames;
use super::super::peer_log::PeerLog;
use super::super::shared::Shared;
use super::link::run_link;
use super::{ATTACH_LIMIT, AttachmentUse, LINK_FRAMES, Link, Peer, TransportChoice};
use crate::attachment::ProducerGates;
use crate::control_hello::hello;
use crate::error::{Error, ErrorKind, Result};
use crate::message::{
    AttachBy, ClientToOwner, ExportedMemory, Purpose, RankInfo, Refusal, Welcome,
};
use nkv_store::device_log::{Landing, Line, OpenClaims};
use nkv_store::fork::ProcessMark;
use nkv_store::heap::Heap;
use nkv_store::pins::Pins;
use nkv_store::reader::Reader;
use nkv_store::{KeyHasher, StoreError, Stripes};
use nkv_transport::Alive;
use nkv_transport::fabric::{Answer, SegmentBounds};
use nkv_transport::log_rights::MAX_OPEN_CLAIMS;
use nkv_transport::mapped::MappedVerbs;
use nkv_transport::verbs::{Kind, Verbs};
use nkv_transport::wire::{Address, BoxStream, take_descriptor, write_frame};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::mpsc;

/// Reads and writes of at least this many bytes are cut into stripes; see
/// `docs/results/transports.md`.
const STRIPED_FROM: u64 = 8 << 20;

/// How long attaching to a mapped segment waits for the second attachment, which claims; a failed
/// one is tried again later.
const CLAIM_LIMIT: Duration = Duration::from_millis(500);

/// What a peer is made from.
pub(crate) struct Attaching {
    shared: Arc<Shared>,
    info: RankInfo,
    hasher: KeyHasher,
    /// Open claims of this process in the owner's log, if the segment has one.
    claims: Option<Arc<OpenClaims>>,
    /// Whether a write is still in flight through an earlier attachment.
    writes_on: bool,
    /// Whether this handle already has a separate attachment for claims.
    claims_already: bool,
}

/// What an owner sent with its welcome.
struct Attached {
    stream: BoxStream,
    pins: Option<u32>,
    log_token: Option<u64>,
    fabric: Option<std::result::Result<Answer, String>>,
}

/// What an attachment may do, and why no better transport was used.
struct PathChoice {
    // Plans and open claims that it answers for.
    gates: Arc<dyn ProducerGates>,
    // Keys put into the log that its owner does not have yet.
    names: Option<Arc<LogNames>>,
    // Reader and pin table of the segment, if it is mapped.
    mapped: Option<(Reader, Option<u32>)>,
    // Table of its open claims in the log, and the token that is sent with them.
    claims: Option<(Arc<OpenClaims>, u64)>,
    used_for: AttachmentUse,
    // Better transports, and why each is not used.
    passed_over: Vec<String>,
}

/// Longest wait for a GPU's driver, which takes up to seconds to open one.
const DRIVER_LIMIT: Duration = Duration::from_secs(10);

/// Runs calls of a GPU's driver, not on the thread of actors.
pub(in crate::client) async fn beside_driver<T: Send + 'static>(
    calls: impl FnOnce() -> std::result::Result<T, StoreError> + Send + 'static,
) -> Result<T> {
    match tokio::time::timeout(DRIVER_LIMIT, tokio::task::spawn_blocking(calls)).await {
        Ok(Ok(done)) => Ok(done?),
        Ok(Err(panicked)) => Err(Error::internal(format!("calls of a GPU's driver: {panicked}"))),
        // Not `Timeout`: the node itself may answer, so another transport is tried.
        Err(_) => Err(Error::unsupported(format!("a GPU's driver took over {DRIVER_LIMIT:?}"))),
    }
}

impl Attaching {
    pub(crate) fn new(shared: Arc<Shared>, info: RankInfo) -> Self {
        let incarnation = info.incarnation;
        Self {
            hasher: shared.keys.now(),
            claims: (info.layout.log_slots > 0).then(|| shared.env.claims.of(incarnation)),
            writes_on: shared.peers.writes_on(incarnation, None),
            claims_already: shared.peers.used_for(incarnation, AttachmentUse::Claims).is_some(),
            shared,
            info,
        }
    }

    /// Attaches by the best transport that is allowed, and by one more if claims need another one.
    /// Must run on an executor with `spawn_local`.
    pub(crate) async fn run(self) -> Result<(Arc<Peer>, Option<Arc<Peer>>)> {
        // This came from the master, and all offsets in the segment are computed from it.
        self.info.check().map_err(|e| {
            let rank = self.info.rank;
            Error::internal(format!("rank {rank} cannot be as the master describes it: {e}"))
        })?;
        let (ours, theirs) = (self.info.key_fingerprint, self.hasher.fingerprint());
        if ours != theirs {
            // It would find nothing there, and nobody would find what it puts [I16].
            let who = format!("this handle, which attaches to {},", self.info.id());
            return Err(Error::unsupported(Refusal::Keys { who, ours, theirs }.to_string()));
        }
        let peer = self.best().await?;
        if !peer.claims_elsewhere || self.claims_already {
            return Ok((peer, None));
        }
        // Bounded: the caller waits, and could read through the first attachment already.
        let late = |_| Err(Error::timeout(format!("not within {CLAIM_LIMIT:?}")));
        let tried = tokio::time::timeout(CLAIM_LIMIT, self.to_claim()).await.unwrap_or_else(late);
        let claiming = tried.inspect_err(|error| {
            tracing::info!(rank = self.info.rank, %error, "puts into its log take plans");
        });
        Ok((peer, claiming.ok()))
    }

    /// The attachment by which a process that maps a segment claims in a log whose claims an RDMA
    /// device counts [I1].
    pub(crate) async fn to_claim(&self) -> Result<Arc<Peer>> {
        self.devices(AttachmentUse::Claims, Vec::new()).await
    }

    async fn best(&self) -> Result<Arc<Peer>> {
        let rank = self.info.rank;
        let mut passed_over = Vec::new();
        let choice = self.shared.config.transport;
        match choice {
            TransportChoice::Rdma => {
                return self.devices(AttachmentUse::Everything, passed_over).await;
            }
            TransportChoice::Tcp => return self.tcp(passed_over).await,
            TransportChoice::Shm | TransportChoice::Auto => {}
        }
        if let Some(peer) = self.local() {
            return Ok(peer);
        }
        match self.shared().await {
            Ok(Some(peer)) => return Ok(peer),
            Ok(None) if choice == TransportChoice::Shm => {
                return Err(Error::unsupported(format!(
                    "rank {rank} shares no memory with this process (other host or private heap)"
                )));
            }
            Ok(None) => passed_over.push("shm: other host or private heap".to_string()),
            // The node does not answer: it would not over tcp either, and the call's limit is
            // almost over.
            Err(e) if e.kind() == ErrorKind::Timeout => return Err(e),
            Err(e) if choice == TransportChoice::Shm => return Err(e),
            Err(error) => passed_over.push(format!("shm: {error}")),
        }
        match self.devices(AttachmentUse::Everything, passed_over.clone()).await {
            Ok(peer) => return Ok(peer),
            Err(e) if e.kind() == ErrorKind::Timeout => return Err(e),
            Err(error) => passed_over.push(format!("rdma: {error}")),
        }
        self.tcp(passed_over).await
    }

    /// A path whose open claims, if it makes any, are kept in this table. Nobody checks its token.
    fn path(&self, claims: Option<Arc<OpenClaims>>, passed_over: Vec<String>) -> PathChoice {
        let (plans, owner) = (&self.shared.plans, self.info.incarnation);
        let names = self.info.layout.device_log().map(|layout| plans.names(owner, layout));
        PathChoice {
            gates: plans.gates(owner, claims.clone(), names.clone()),
            names,
            mapped: None,
            claims: claims.map(|claims| (claims, 1)),
            used_for: AttachmentUse::Everything,
            passed_over,
        }
    }

    /// For a segment that this process maps.
    fn mapped_path(&self) -> PathChoice {
        if self.info.layout.claims_by_gpu() {
            tracing::debug!(rank = self.info.rank, "kernels claim in its log: puts take plans");
        }
        let claims = self.claims.clone().filter(|_| !self.info.layout.claims_by_nic());
        self.path(claims, Vec::new())
    }

    fn peer(&self, verbs: Arc<dyn Verbs>, (link, alive): (Link, Alive), path: PathChoice) -> Peer {
        let PathChoice { gates, names, mapped, claims, used_for, passed_over } = path;
        let pins = mapped.as_ref().and_then(|(reader, table)| {
            let region = &reader.layout().pins;
            Pins::new(reader.memory().clone(), region, (*table)?).map(Arc::new)
        });
        let log = names.zip(claims);
        let log = log.map(|(names, (claims, token))| PeerLog::new(names, claims, token));
        Peer {
            rank: self.info.rank,
            incarnation: self.info.incarnation,
            hasher: self.hasher,
            used_for,
            claims_elsewhere: mapped.is_some()
                && self.info.layout.claims_by_nic()
                && self.claims.is_some(),
            passed_over,
            first: self.info.id().is_first(),
            layout: self.info.layout,
            reader: mapped.map(|(reader, _)| reader),
            pins,
            log,
            takes_puts: AtomicBool::new(true),
            verbs,
            attached_ns: self.shared.env.clock.now_ns(),
            gates,
            link,
            alive,
            disconnected: AtomicBool::new(false),
            unresponsive_until_ns: AtomicU64::new(0),
            touches: Mutex::default(),
            usual_bytes: AtomicU64::new(0),
            touches_sent: AtomicBool::new(false),
            messages: self.shared.messages.clone(),
            made: ProcessMark::here(),
        }
    }

    fn local(&self) -> Option<Arc<Peer>> {
        let l = self.shared.env.owners.get(self.info.incarnation)?;
        let mut path = self.mapped_path();
        let (id, term) = l.attach(self.shared.producer_id, path.gates.clone());
        path.gates.obey(term);
        let (memory, alive) = (l.memory(), l.alive());
        let verbs = MappedVerbs::local(memory.clone(), alive.clone()).with_stripes(self.stripes());
        let mapped = Heap::open(memory).ok().as_ref().and_then(|heap| self.reader(heap));
        path.mapped = mapped.map(|reader| (reader, l.pin_table(id)));
        let link = Link::Local(l, id);
        Some(Arc::new(self.peer(Arc::new(verbs), (link, alive), path)))
    }

    async fn shared(&self) -> Result<Option<Arc<Peer>>> {
        let Some((address, name)) = self.info.local.as_ref().zip(self.info.memory.name()) else {
            return Ok(None);
        };
        if self.info.boot_id != self.shared.env.machine.boot_id() {
            return Ok(None);
        }
        if let ExportedMemory::Device { uuid, .. } = self.info.memory {
            // Before the owner has an attachment that would have to end again.
            let machine = self.shared.env.machine.clone();
            beside_driver(move || machine.can_use(uuid)).await?;
        }
        let mut path = self.mapped_path();
        let attached = self.hello(address, AttachBy::Map, &*path.gates).await?;
        let (mut stream, table) = (attached.stream, attached.pins);
        let heap = match self.map(name, address, stream.is_unix()).await {
            Ok(heap) => heap,
            Err(e) => {
                // The hello registered this attachment. Without a Detach the owner would wait for
                // its acknowledgements. No Detach while a write is in flight through an earlier
                // attachment: a Detach would deny it.
                if !self.writes_on {
                    let _ =
                        write_frame(&mut stream, &mut Vec::new(), 0, &ClientToOwner::Detach).await;
                }
                return Err(e);
            }
        };
        let alive = Alive::new();
        let verbs = MappedVerbs::shm(heap.memory().clone(), alive.clone());
        let verbs = verbs.with_stripes(self.stripes());
        path.mapped = self.reader(&heap).map(|reader| (reader, table));
        Ok(Some(self.linked(stream, Arc::new(verbs), alive, path)))
    }

    fn stripes(&self) -> Stripes {
        Stripes::new(self.shared.config.data_stripes, STRIPED_FROM)
    }

    fn reader(&self, heap: &Heap) -> Option<Reader> {
        Some(Reader::of(heap)?.with_stripes(self.stripes()))
    }

    async fn map(&self, segment: &str, address: &Address, by_unix: bool) -> Result<Heap> {
        let machine = &self.shared.env.machine;
        let memory = match machine.attach(segment) {
            Err(error) if by_unix => {
                tracing::debug!(%error, "asking for a segment's descriptor");
                let purpose = Purpose::Descriptor { incarnation: self.info.incarnation };
                machine.adopt(segment, self.passed(purpose, address).await?)?
            }
            attached => attached?,
        };
        let memory = match self.info.memory {
            ExportedMemory::Device { uuid, .. } => {
                let purpose = Purpose::Payload { incarnation: self.info.incarnation };
                let fd = self.passed(purpose, address).await?;
                let (machine, layout) = (machine.clone(), self.info.layout);
                beside_driver(move || machine.with_payload(memory, uuid, fd, &layout)).await?
            }
            _ => memory,
        };
        let heap = Heap::open(memory)?;
        if heap.identity().incarnation != self.info.incarnation {
            return Err(Error::disconnected(format!(
                "segment {segment} holds another incarnation"
            )));
        }
        if self.shared.config.prefault && self.info.prefault {
            // In the background, during the first calls: it takes 0.3 s/GiB.
            machine.prefault(segment);
        }
        Ok(heap)
    }

    /// The descriptor that its owner passes: of a segment whose name may not resolve here, as in
    /// another pid namespace, or may be removed, or of payloads.
    async fn passed(&self, purpose: Purpose, address: &Address) -> Result<OwnedFd> {
        let (stream, welcome) = self.ask(address, purpose).await?;
        if welcome != Welcome::Descriptor {
            return Err(self.odd(address, &welcome));
        }
        let taking = tokio::time::timeout(ATTACH_LIMIT, take_descriptor(stream));
        let taken = taking.await.unwrap_or_else(|late| Err(late.into()));
        let (fd, _) = taken.map_err(|why| {
            Error::disconnected(format!("rank {} passed no memory: {why}", self.info.rank))
        })?;
        Ok(fd)
    }

    async fn tcp(&self, passed_over: Vec<String>) -> Result<Arc<Peer>> {
        let Some(data) = self.info.data.clone() else {
            return Err(Error::unsupported(format!("rank {} has no tcp agent", self.info.rank)));
        };
        let mut path = self.path(None, passed_over);
        let attached = self.hello(&self.info.control, AttachBy::Agent, &*path.gates).await?;
        path.claims = attached.log_token.map(|token| {
            // As many as the agent allows one token. The agent keeps count itself: the owner never
            // asks about this table.
            let entries = (0..MAX_OPEN_CLAIMS).map(|_| Line::default()).collect();
            (Arc::new(OpenClaims::with(entries, Landing::InCall)), token)
        });
        let machine = &self.shared.env.machine;
        let (owner, stripes) = (self.info.incarnation, self.stripes());
        let connecting = machine.connect(&data, owner, &self.shared.credentials, stripes);
        let (verbs, alive) = connecting.await?;
        Ok(self.linked(attached.stream, verbs, alive, path))
    }

    /// Through RDMA devices of both ends.
    async fn devices(
        &self,
        used_for: AttachmentUse,
        passed_over: Vec<String>,
    ) -> Result<Arc<Peer>> {
        let rank = self.info.rank;
        let none =
            |e: String| Error::unsupported(format!("rank {rank} is not reached by rdma: {e}"));
        if self.info.fabric.is_none() {
            return Err(none(
                "its memory is registered with no device; nkv doctor on its host says why"
                    .to_string(),
            ));
        }
        let shared = self.shared.clone();
        let opening = move || shared.env.machine.fabric(&shared.config.fabric)?.offer();
        let failed = |e| Error::internal(format!("offering to rank {rank} failed: {e}"));
        let opened = tokio::task::spawn_blocking(opening).await.map_err(failed)?;
        let offering = opened.map_err(|e| none(e.to_string()))?;
        let offer = offering.offer();
        // A posted write may land after its call returned, so each such path has its own table of
        // open claims.
        let counts = self.info.layout.claims_by_nic() && self.claims.is_some();
        let claims = counts.then(|| Arc::new(OpenClaims::new(Landing::Later)));
        let path = PathChoice { used_for, ..self.path(claims, passed_over) };
        let by = AttachBy::Fabric(offer);
        let attached = self.hello(&self.info.control, by, &*path.gates).await?;
        let answer = match attached.fabric {
            Some(Ok(answer)) => answer,
            Some(Err(why)) => return Err(none(why)),
            None => return Err(Error::internal(format!("rank {rank} gave no answer to an offer"))),
        };
        let (alive, layout) = (Alive::new(), &self.info.layout);
        let payloads = layout.payloads().offset;
        let bounds = SegmentBounds { len: layout.segment_bytes, payloads };
        let here = alive.clone();
        // Waits for the first packets, so not on the handle's executor.
        let connecting =
            tokio::task::spawn_blocking(move || offering.connect(&answer, bounds, here));
        let connected = connecting.await;
        let verbs = connected
            .map_err(|e| Error::internal(format!("connecting to rank {rank} failed: {e}")))?
            .map_err(|e| none(e.to_string()))?;
        Ok(self.linked(attached.stream, verbs, alive, path))
    }

    /// Says hello for an attachment; returns its stream and what the owner gave: pin table, log
    /// token, RDMA answer.
    async fn hello(
        &self,
        address: &Address,
        by: AttachBy,
        gates: &dyn ProducerGates,
    ) -> Result<Attached> {
        let (producer, incarnation) = (self.shared.producer_id, self.info.incarnation);
        let purpose = Purpose::Attach { producer, incarnation, by };
        match self.ask(address, purpose).await? {
            (stream, Welcome::Attached { term, pins, log_token, fabric }) => {
                gates.obey(term);
                Ok(Attached { stream, pins, log_token, fabric })
            }
            (_, other) => Err(self.odd(address, &other)),
        }
    }

    fn odd(&self, address: &Address, answer: &Welcome) -> Error {
        let rank = self.info.rank;
        Error::disconnected(format!("rank {rank} at {address} answered an attachment {answer}"))
    }

    /// Connects to the owner's node for this purpose; returns the stream and the answer, within
    /// `ATTACH_LIMIT`.
    async fn ask(&self, address: &Address, purpose: Purpose) -> Result<(BoxStream, Welcome)> {
        let work = hello(&*self.shared.env.net, address, &self.shared.credentials, purpose);
        match tokio::time::timeout(ATTACH_LIMIT, work).await {
            Ok(Ok((_, Welcome::Refused { why }))) => Err(Error::disconnected(why.to_string())),
            Ok(Ok(answered)) => Ok(answered),
            Ok(Err(e)) => {
                Err(Error::disconnected(format!("rank {} is not reachable: {e}", self.info.rank)))
            }
            Err(_) => Err(Error::timeout(format!(
                "rank {} at {address} did not answer within {ATTACH_LIMIT:?}: stopped or \
                 overloaded? nkv status shows its last heartbeat",
                self.info.rank
            ))),
        }
    }

    fn linked(
        &self,
        stream: BoxStream,
        verbs: Arc<dyn Verbs>,
        alive: Alive,
        path: PathChoice,
    ) -> Arc<Peer> {
        let (tx, rx) = mpsc::channel(LINK_FRAMES);
        let (rank, weak) = (self.info.rank, tx.downgrade());
        let gates = path.gates.clone();
        let devices = (verbs.kind() == Kind::Rdma).then(|| alive.clone());
        let peer = Arc::new(self.peer(verbs, (Link::Remote(tx), alive.clone()), path));
        tokio::task::spawn_local(async move {
            let why = run_link(stream, rx, weak, gates, devices).await;
            // From here on no verb through this attachment may report success.
            alive.mark_dead();
            tracing::debug!(rank, %why, "detached");
        });
        peer
    }
}

#[cfg(test)]
mod tests;
