//! The control port of a node: accepts connections, checks the hello, and serves clients, ranks and
//! attached processes. Each connection is a task on the executor of the actor that it talks to, so
//! a request costs no thread hop. A connection whose frames do not decode is closed, and affects no
//! other [I19].

mod commands;
mod link;
mod registry;
mod requests;
mod unauthenticated;

pub(crate) use registry::{LocalOwner, LocalOwners, Published, RegisteredSegment, SegmentRegistry};
pub use unauthenticated::UnauthenticatedPeers;

use crate::actor::{ActorAddr, Reply};
use crate::error::Error;
use crate::executor::Executor;
use crate::master::{Join, Master, Members};
use crate::message::{
    AttachBy, ClientToOwner, Hello, MESSAGES_VERSION, OwnerToClient, Purpose, Refusal, Settings,
    Welcome,
};
use crate::node::Segments;
use crate::owner::attachments::{ATTACH_QUEUE, AttachId, Route};
use crate::owner::log::{Drain, GiveUp, KeyReports};
use crate::owner::pin_tables::Proof;
use crate::owner::{LogClear, PlanDropped, TermObeyed, Touches};
use crate::race::race;
use nkv_store::KeyHasher;
use nkv_store::clock::Clock;
use nkv_store::log_lines::LogLines;
use nkv_store::random::Random;
use nkv_transport::fabric::{Answer, RemoteAccess};
use nkv_transport::wire::auth::{AuthError, Guard};
use nkv_transport::wire::{
    Address, BoxStream, Listener, Peer, WireError, pass_descriptor, read_frame, write_frame,
};
use registry::SegmentEndpoint;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Notify, Semaphore, mpsc, watch};

/// Most authenticated control connections at a time; further ones are closed.
const MAX_CONNECTIONS: usize = 4096;
/// A connection that has not authenticated within this time is closed; so is one that then sends no
/// hello for as long again.
const HELLO_LIMIT: Duration = Duration::from_secs(2);
/// Largest hello.
const MAX_HELLO_BYTES: usize = 64 * 1024;
/// Largest frame from a rank: twice the largest part of a report.
const MAX_TO_MASTER_BYTES: usize = 8 << 20;
/// Largest frame from an attached client: the most touches that it keeps fit.
const MAX_TO_OWNER_BYTES: usize = 2 << 20;
/// Questions about plans that one attached client may have open; further ones wait.
const MAX_CHECKS: usize = 64;
/// A call to an actor that takes longer is answered with Timeout.
const ACTOR_LIMIT: Duration = Duration::from_secs(5);
/// Heartbeats of the master on a rank's link per TTL, and the longest pause between two.
const BEATS_PER_TTL: u64 = 4;
const LONGEST_BEAT: Duration = Duration::from_millis(250);
/// Pause after an accept error (out of file descriptors), so that it cannot spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// What a node's control port needs to serve.
pub struct Server {
    /// The job.
    pub job: String,
    /// Authenticates its peers.
    pub guard: Arc<Guard>,
    /// The hasher that makes the identities of the job's keys [I16].
    pub hasher: KeyHasher,
    /// This rank.
    pub rank: u32,
    /// The master, on rank 0.
    pub master: Option<(ActorAddr<Master>, Arc<Members>)>,
    /// Where the master is, on other ranks.
    pub master_at: Option<Address>,
    /// Cluster settings, once joined.
    pub settings: watch::Receiver<Option<(crate::message::Term, Settings)>>,
    /// Defaults until then.
    pub defaults: Settings,
    /// This node's segments, by incarnation.
    pub(crate) registry: SegmentRegistry,
    /// Mounts and unmounts them.
    pub(crate) segments: Weak<Segments>,
    /// The time.
    pub clock: Arc<dyn Clock>,
    /// Where tokens come from.
    pub random: Arc<dyn Random>,
    /// Set when the node shuts down.
    pub closing: Arc<AtomicBool>,
    /// Authenticated connections now.
    pub connections: AtomicUsize,
    /// Connections that have not authenticated yet.
    pub unauthenticated: Arc<UnauthenticatedPeers>,
    /// Limits log lines that peers could cause without end.
    pub lines: LogLines,
    /// Free ring slots.
    pub rings: Arc<Semaphore>,
}

impl Server {
    /// Slots for the clients that may use a ring at the same time.
    pub fn room_for_rings() -> Arc<Semaphore> {
        Arc::new(Semaphore::new(requests::MAX_RINGS))
    }
}

/// Counts a connection for as long as it lives.
struct Counted(Arc<Server>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Server {
    /// Accepts until the node closes. Runs on the master's executor on rank 0, else on the owner's.
    pub async fn run(self: Arc<Self>, mut listener: Box<dyn Listener>) {
        loop {
            match listener.accept().await {
                Ok((stream, peer)) => {
                    let slot = self.unauthenticated.enter(peer.unix.is_some());
                    let server = self.clone();
                    tokio::task::spawn_local(async move {
                        let text = peer.text.clone();
                        if let Err(why) = server.connection(stream, peer, slot).await {
                            tracing::debug!(peer = %text, %why, "control connection closed");
                        }
                    });
                }
                Err(error) => {
                    if let Some(before) = self.lines.next(self.clock.now_ms()) {
                        tracing::warn!(%error, before, "accept failed");
                    }
                    self.unauthenticated.evict_half();
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
            if self.closing.load(Ordering::Acquire) {
                return;
            }
        }
    }

    async fn connection(
        self: Arc<Self>,
        mut stream: BoxStream,
        peer: Peer,
        slot: unauthenticated::PeerSlot,
    ) -> Result<(), WireError> {
        let shown = || slot.has_shown();
        let admitted =
            async { Some(self.guard.admit(&mut stream, &peer, HELLO_LIMIT, &shown).await) };
        let gives_way = async {
            slot.evicted().await;
            None
        };
        let session = match race(admitted, gives_way).await {
            Some(Ok(session)) => session,
            // Nothing more is read from it; the guard has counted and logged the refusal [I20].
            Some(Err(_)) => return Ok(()),
            None => {
                self.guard.refuse(&peer.text, &AuthError::Crowded.to_string());
                return Ok(());
            }
        };
        drop(slot);
        let Some(_counted) = self.clone().one_more() else {
            if let Some(before) = self.lines.next(self.clock.now_ms()) {
                tracing::warn!(peer = %peer.text, before, "closed: {MAX_CONNECTIONS} connections");
            }
            return Ok(());
        };
        let mut stream = session.seal(stream);
        let mut buf = Vec::new();
        let hello = read_frame::<_, Hello>(&mut stream, &mut buf, MAX_HELLO_BYTES);
        let Ok(hello) = tokio::time::timeout(HELLO_LIMIT, hello).await else {
            return Ok(());
        };
        let Some((_, hello)) = hello? else {
            return Ok(());
        };
        if let Some(why) = self.refusal(&hello) {
            return refuse(&mut stream, why).await;
        }
        match hello.purpose {
            Purpose::Client { producer, ring } => self.client(stream, producer, ring).await,
            Purpose::Rank { info, obeyed, holds, seen, siblings } => {
                let own = self.registry.get(info.incarnation).is_some();
                let join = |tx| Join { info: *info, obeyed, holds, seen, siblings, own, tx };
                self.rank(stream, join).await
            }
            Purpose::Attach { producer, incarnation, by } => {
                let Some(endpoint) = self.registry.get(incarnation) else {
                    return refuse(&mut stream, self.no_door(incarnation)).await;
                };
                let served = attach(&endpoint, stream, peer, (producer, by), self.random.u64());
                // When the segment closes, this connection ends, and with it the client's
                // attachment: none of its verbs succeeds any more.
                let closed = async {
                    endpoint.closed().await;
                    Ok(())
                };
                race(served, closed).await
            }
            Purpose::Descriptor { incarnation } => match self.registry.get(incarnation) {
                Some(endpoint) => pass_segment(stream, &endpoint.segment).await,
                None => refuse(&mut stream, self.no_door(incarnation)).await,
            },
            Purpose::Segments(command) => {
                let done = self.command_with_signs(command, &mut stream).await;
                write_frame(&mut stream, &mut buf, 0, &Welcome::Segments(done)).await
            }
        }
    }

    fn one_more(self: Arc<Self>) -> Option<Counted> {
        let before = self.connections.fetch_add(1, Ordering::Relaxed);
        // Its drop subtracts it again if it is one too many.
        let counted = Counted(self);
        (before < MAX_CONNECTIONS).then_some(counted)
    }

    fn refusal(&self, hello: &Hello) -> Option<Refusal> {
        if hello.version != MESSAGES_VERSION {
            return Some(Refusal::Version { ours: MESSAGES_VERSION, theirs: hello.version });
        }
        if hello.job != self.job {
            let (ours, theirs) = (self.job.clone(), hello.job.clone());
            return Some(Refusal::Job { ours, theirs });
        }
        match &hello.purpose {
            Purpose::Rank { .. } if self.master.is_none() => Some(Refusal::NotHere(format!(
                "rank {} is not the master; join at rank 0's control port",
                self.rank
            ))),
            _ => None,
        }
    }

    fn no_door(&self, incarnation: u64) -> Refusal {
        Refusal::NotHere(format!(
            "rank {} has no segment of incarnation {incarnation:016x}: unmounted, or of an earlier \
             start",
            self.rank
        ))
    }

    fn settings(&self) -> Settings {
        self.settings.borrow().as_ref().map_or_else(|| self.defaults.clone(), |(_, s)| s.clone())
    }
}

/// The log token of an attachment; ends with it.
struct LogToken<'a> {
    endpoint: &'a SegmentEndpoint,
    token: Option<u64>,
}

impl Drop for LogToken<'_> {
    fn drop(&mut self) {
        if let Some(token) = self.token {
            self.endpoint.tables.log_producers.end(token);
            // The owner settles the open claims; if its mailbox is full, its timer does.
            let _ = self.endpoint.owner.try_send(Drain);
        }
    }
}

/// RDMA access of a client. `sever` also ends the client's link, so that the client notices at
/// once.
#[derive(Debug)]
struct SeverableAccess {
    served: Arc<dyn RemoteAccess>,
    severed: Notify,
}

impl RemoteAccess for SeverableAccess {
    fn sever(&self) {
        self.served.sever();
        self.severed.notify_one();
    }

    fn is_severed(&self) -> bool {
        self.served.is_severed()
    }

    fn pairs(&self) -> &[u32] {
        self.served.pairs()
    }
}

/// RDMA access that is severed when its attachment ends.
struct SeverOnDrop(Arc<SeverableAccess>);

impl SeverOnDrop {
    fn new(served: Arc<dyn RemoteAccess>, producer: u64) -> Self {
        tracing::debug!(producer, pairs = ?served.pairs(), "writes through devices");
        Self(Arc::new(SeverableAccess { served, severed: Notify::new() }))
    }

    async fn severed(access: Option<&Self>) -> Result<(), WireError> {
        match access {
            Some(Self(access)) => access.severed.notified().await,
            None => std::future::pending().await,
        }
        Ok(())
    }
}

impl Drop for SeverOnDrop {
    fn drop(&mut self) {
        self.0.sever();
    }
}

/// Makes the owner's end of an RDMA data path. The answer, or the reason for none, goes to the
/// client.
async fn through_devices(
    endpoint: &SegmentEndpoint,
    producer: u64,
    by: &AttachBy,
) -> (Option<SeverOnDrop>, Option<std::result::Result<Answer, String>>) {
    let AttachBy::Fabric(offer) = by else { return (None, None) };
    let Some(exported) = endpoint.exported.clone() else {
        let why = "this rank's memory is not registered with any device; see its log";
        return (None, Some(Err(why.to_string())));
    };
    let offer = offer.clone();
    // Not on the thread of actors: the kernel may take a second to resolve the other end's address.
    match tokio::task::spawn_blocking(move || exported.accept(&offer)).await {
        Ok(Ok((served, answer))) => (Some(SeverOnDrop::new(served, producer)), Some(Ok(answer))),
        Ok(Err(e)) => (None, Some(Err(e.to_string()))),
        Err(e) => (None, Some(Err(format!("accepting failed: {e}")))),
    }
}

/// Passes a segment's descriptor to a client on this host.
async fn pass_segment(mut stream: BoxStream, segment: &str) -> Result<(), WireError> {
    let Some(fd) = nkv_store::shm::descriptor(segment).filter(|_| stream.is_unix()) else {
        let why = "only segments in named shared memory are passed on, over a unix socket";
        return refuse(&mut stream, Refusal::NotHere(why.to_string())).await;
    };
    write_frame(&mut stream, &mut Vec::new(), 0, &Welcome::Descriptor).await?;
    let passing = pass_descriptor(stream, fd.as_fd());
    // A client that does not take it is ignored.
    match tokio::time::timeout(HELLO_LIMIT, passing).await {
        Ok(passed) => Ok(passed.map(drop)?),
        Err(_) => Ok(()),
    }
}

async fn attach(
    endpoint: &SegmentEndpoint,
    mut stream: BoxStream,
    peer: Peer,
    (producer, by): (u64, AttachBy),
    token: u64,
) -> Result<(), WireError> {
    let attachments = &endpoint.tables.attachments;
    let (tx, rx) = mpsc::channel(ATTACH_QUEUE);
    let process = peer.unix.and_then(|u| u.process);
    let proof = match (&by, process) {
        (AttachBy::Map, None) => {
            return refuse(&mut stream, Refusal::NoProof { peer: peer.text }).await;
        }
        (AttachBy::Map, process) => process,
        _ => None,
    };
    let (severing, fabric) = through_devices(endpoint, producer, &by).await;
    let route = match (&proof, &severing) {
        (Some(process), _) => Some(Route::Process { tx: tx.clone(), process: process.clone() }),
        (_, Some(access)) => Some(Route::Fabric { tx: tx.clone(), served: access.0.clone() }),
        _ => None,
    };
    // Registered before the welcome: the client is notified of every plan that ends from now on.
    let id = route.map(|route| attachments.add(producer, route));
    let proof = proof.map(Proof::Process);
    let pins = id.zip(proof).and_then(|(id, proof)| endpoint.tables.pins.give(id, proof));
    let log_token = (by == AttachBy::Agent).then_some(token);
    let log_token = log_token.and_then(|t| endpoint.tables.log_producers.give(t));
    let _rights = LogToken { endpoint, token: log_token };
    let mut buf = Vec::new();
    // Read after the route is registered: a later term is sent to it.
    let term = endpoint.tables.term();
    let welcome = Welcome::Attached { term, pins, log_token, fabric };
    if let Err(e) = write_frame(&mut stream, &mut buf, 0, &welcome).await {
        // A client writes only after the welcome. Its RDMA access is severed before its route is
        // removed.
        drop(severing);
        if let Some(id) = id {
            attachments.take_back(id);
            endpoint.tables.pins.take_back(id);
        }
        return Err(e);
    }
    let (mut reader, mut writer) = tokio::io::split(stream);
    let out = write_to_client(&mut writer, rx);
    let inn = read_from_client(endpoint, &mut reader, (producer, log_token), id, &tx);
    let moved = race(out, inn);
    let ended = race(moved, SeverOnDrop::severed(severing.as_ref())).await;
    drop(severing);
    if let Some(id) = id {
        attachments.cut(id);
    }
    ended
}

async fn read_from_client<R: AsyncRead + Unpin>(
    endpoint: &SegmentEndpoint,
    reader: &mut R,
    (producer, token): (u64, Option<u64>),
    id: Option<AttachId>,
    tx: &mpsc::Sender<OwnerToClient>,
) -> Result<(), WireError> {
    let mut buf = Vec::new();
    let checks = Arc::new(Semaphore::new(MAX_CHECKS));
    while let Some((_, m)) =
        read_frame::<_, ClientToOwner>(reader, &mut buf, MAX_TO_OWNER_BYTES).await?
    {
        if let Err(e) = m.check(endpoint.tables.geometry()) {
            // The client gets the reason, and the frame has no effect [I19].
            let _ = tx.try_send(OwnerToClient::Refused(e.message.clone()));
            return Err(unsound(&e));
        }
        let handled = match m {
            ClientToOwner::Touched(list) => {
                endpoint.owner.push(Touches(list), Reply::nobody()).await
            }
            ClientToOwner::Dropped(plan) => match id {
                Some(id) => {
                    endpoint.owner.push(PlanDropped(id, producer, plan), Reply::nobody()).await
                }
                None => Ok(()),
            },
            ClientToOwner::TermObeyed(term) => match id {
                Some(id) => {
                    endpoint.owner.push(TermObeyed(id, producer, term), Reply::nobody()).await
                }
                None => Ok(()),
            },
            ClientToOwner::KeysReported(list) => {
                endpoint.owner.push(KeyReports(list), Reply::nobody()).await
            }
            ClientToOwner::Abandoned(claim) => match token {
                // With a token: only its own claims, and only those it has not written to.
                Some(t) if !endpoint.tables.log_producers.abandon(t, claim.into()) => Ok(()),
                _ => endpoint.owner.push(GiveUp(claim), Reply::nobody()).await,
            },
            ClientToOwner::ClearBelow(below) => match id {
                Some(id) => endpoint.owner.push(LogClear(id, below), Reply::nobody()).await,
                None => Ok(()),
            },
            ClientToOwner::CheckPlan(plan) => {
                // In a task of its own: a Dropped must not wait behind it.
                let (tables, tx) = (endpoint.tables.clone(), tx.clone());
                let slot = checks.clone().acquire_owned().await;
                tokio::task::spawn_local(async move {
                    let open = tables.wait_open(plan).await;
                    let _ = tx.send(OwnerToClient::Plan { plan, open }).await;
                    drop(slot);
                });
                Ok(())
            }
            ClientToOwner::Detach => {
                if let Some(id) = id {
                    endpoint.tables.attachments.detach(id);
                    endpoint.tables.pins.take_back(id);
                }
                return Ok(());
            }
        };
        if let Err(error) = handled {
            tracing::debug!(%error, "an attached client's frame was lost");
        }
    }
    Ok(())
}

/// The error for an impossible frame from an attached client.
fn unsound(error: &Error) -> WireError {
    WireError::Io(std::io::Error::new(std::io::ErrorKind::InvalidData, error.message.clone()))
}

async fn refuse(stream: &mut BoxStream, why: Refusal) -> Result<(), WireError> {
    write_frame(stream, &mut Vec::new(), 0, &Welcome::Refused { why }).await
}

async fn write_to_client<W: AsyncWrite + Unpin>(
    writer: &mut W,
    mut rx: mpsc::Receiver<OwnerToClient>,
) -> Result<(), WireError> {
    let mut buf = Vec::new();
    while let Some(frame) = rx.recv().await {
        write_frame(writer, &mut buf, 0, &frame).await?;
    }
    Ok(())
}

/// Runs a server on an executor.
pub(crate) fn serve(executor: &Executor, server: Arc<Server>, listener: Box<dyn Listener>) {
    executor.task(async move { server.run(listener).await });
}
