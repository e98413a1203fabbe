//! One owner as a client sees it: the one-sided verbs to its segment, and the link over which
//! touches go out and plans are dropped. Made by the Producer actor, used without it.

use crate::cell::{CellAddr, Reply};
use crate::environment::Environment;
use crate::error::{Error, ErrorKind, Result};
use crate::membership::hello;
use crate::message::{PlanId, Purpose, RankInfo, ToClient, ToOwner, Touch, Welcome};
use crate::owner::attachments::{AttachId, Route};
use crate::owner::tables::OwnerTables;
use crate::owner::{Owner, Touches};
use crate::plans::{Obeyed, OpenPlans};
use crate::race::race;
use nkv_store::layout::Region;
use nkv_transport::Alive;
use nkv_transport::local::LocalVerbs;
use nkv_transport::shm::ShmVerbs;
use nkv_transport::verbs::{Kind, Verbs};
use nkv_transport::wire::auth::Credentials;
use nkv_transport::wire::{BoxStream, MAX_FRAME_BYTES, read_frame, write_frame};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

/// Frames waiting for one owner.
const LINK_FRAMES: usize = 1024;
/// A hello that takes longer has failed.
const ATTACH_LIMIT: Duration = Duration::from_millis(1_500);
/// Touches kept until they are sent; past it the oldest are lost (recency only, never counters'
/// correctness: `flush` waits).
const MAX_TOUCHES: usize = 65_536;

/// Which way a client may take to an owner.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum TransportChoice {
    /// Same process, else shared memory, else tcp.
    #[default]
    Auto,
    /// Shared memory (or the same process) or an error.
    Shm,
    /// tcp even where shared memory would do.
    Tcp,
}

impl std::str::FromStr for TransportChoice {
    type Err = Error;
    fn from_str(s: &str) -> Result<Self> {
        match s {
            "auto" => Ok(Self::Auto),
            "shm" => Ok(Self::Shm),
            "tcp" => Ok(Self::Tcp),
            _ => Err(Error::invalid(format!("transport is auto, shm or tcp, not '{s}'"))),
        }
    }
}

impl std::fmt::Display for TransportChoice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Shm => "shm",
            Self::Tcp => "tcp",
        })
    }
}

enum Link {
    Local(CellAddr<Owner>, Arc<OwnerTables>, AttachId),
    Remote(mpsc::Sender<Outgoing>),
}

/// What the link task sends.
pub(crate) enum Outgoing {
    /// A frame.
    Frame(ToOwner),
    /// Answers when everything before it is written.
    Flushed(oneshot::Sender<()>),
    /// A question about a plan, and who waits for the answer.
    Check(PlanId, oneshot::Sender<bool>),
}

/// See the file's first paragraph.
pub struct Peer {
    pub(crate) rank: u32,
    pub(crate) arena: Region,
    pub(crate) quarantine_ns: u64,
    pub(crate) verbs: Arc<dyn Verbs>,
    // Plans asked for before this moment must be checked with the owner before their first byte.
    pub(crate) attached_ns: u64,
    pub(crate) obeyed: Arc<Obeyed>,
    link: Link,
    alive: Alive,
    touches: Mutex<Vec<Touch>>,
}

impl std::fmt::Debug for Peer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Peer(rank {} by {})", self.rank, self.verbs.kind())
    }
}

/// What a peer is made from.
pub(crate) struct Attaching {
    pub env: Environment,
    pub credentials: Credentials,
    pub producer: u64,
    pub info: RankInfo,
    pub choice: TransportChoice,
    pub plans: Arc<OpenPlans>,
    pub obeyed: Arc<Obeyed>,
}

impl Attaching {
    /// Attaches by the best way that is allowed. Must run on a place with `spawn_local`.
    pub(crate) async fn run(self) -> Result<Arc<Peer>> {
        if self.choice != TransportChoice::Tcp {
            if let Some(peer) = self.local() {
                return Ok(peer);
            }
            match self.shared().await {
                Ok(Some(peer)) => return Ok(peer),
                Ok(None) => {}
                // It does not answer: by tcp it would not either, and the call's limit is near.
                Err(e) if e.kind == ErrorKind::Timeout => return Err(e),
                Err(e) if self.choice == TransportChoice::Shm => return Err(e),
                Err(error) => tracing::info!(rank = self.info.rank, %error, "not by shm"),
            }
            if self.choice == TransportChoice::Shm {
                return Err(Error::unsupported(format!(
                    "rank {} shares no memory with this process (other host or private heap)",
                    self.info.rank
                )));
            }
        }
        self.tcp().await
    }

    fn peer(&self, verbs: Arc<dyn Verbs>, link: Link, alive: Alive) -> Peer {
        Peer {
            rank: self.info.rank,
            arena: Region { offset: self.info.arena_offset, len: self.info.arena_bytes },
            quarantine_ns: u64::from(self.info.quarantine_ms) * 1_000_000,
            verbs,
            attached_ns: self.env.clock.now_ns(),
            obeyed: self.obeyed.clone(),
            link,
            alive,
            touches: Mutex::default(),
        }
    }

    fn local(&self) -> Option<Arc<Peer>> {
        let l = self.env.owners.get(self.info.incarnation)?;
        let route = Route::Local(self.plans.clone(), self.obeyed.clone());
        let id = l.tables.attachments.add(self.producer, route);
        // Read after it is registered: a later term reaches the route.
        self.plans.obey(&self.obeyed, l.tables.term());
        let verbs = LocalVerbs::new(l.memory.clone(), l.alive.clone());
        let link = Link::Local(l.owner.clone(), l.tables.clone(), id);
        Some(Arc::new(self.peer(Arc::new(verbs), link, l.alive.clone())))
    }

    async fn shared(&self) -> Result<Option<Arc<Peer>>> {
        let Some(address) = &self.info.local else {
            return Ok(None);
        };
        if self.info.boot_id != self.env.machine.boot_id() || self.info.segment.is_empty() {
            return Ok(None);
        }
        let mut stream = self.hello(address, true).await?;
        let memory = match self.map() {
            Ok(memory) => memory,
            Err(e) => {
                // Registered by the hello: take that back, or the owner would wait for our word.
                let _ = write_frame(&mut stream, &mut Vec::new(), 0, &ToOwner::Detach).await;
                return Err(e);
            }
        };
        let alive = Alive::new();
        let verbs = ShmVerbs::new(memory, alive.clone());
        Ok(Some(self.linked(stream, Arc::new(verbs), alive)))
    }

    fn map(&self) -> Result<Arc<dyn nkv_store::Memory>> {
        let (segment, machine) = (&self.info.segment, &self.env.machine);
        let memory = machine.attach(segment)?;
        let heap = nkv_store::heap::Heap::open(memory.clone())?;
        if heap.geometry().incarnation != self.info.incarnation {
            return Err(Error::disconnected(format!(
                "segment {segment} holds another incarnation"
            )));
        }
        if self.info.prefault {
            // Beside the first calls: it takes 0.3 s/GiB.
            machine.prefault(segment);
        }
        Ok(memory)
    }

    async fn tcp(&self) -> Result<Arc<Peer>> {
        let Some(data) = self.info.data.clone() else {
            return Err(Error::unsupported(format!("rank {} has no tcp agent", self.info.rank)));
        };
        let stream = self.hello(&self.info.control, false).await?;
        let machine = &self.env.machine;
        let connecting = machine.connect(&data, self.info.incarnation, &self.credentials);
        let (verbs, alive) = connecting.await?;
        Ok(self.linked(stream, verbs, alive))
    }

    async fn hello(&self, address: &nkv_transport::wire::Address, maps: bool) -> Result<BoxStream> {
        let (producer, incarnation) = (self.producer, self.info.incarnation);
        let purpose = Purpose::Attach { producer, incarnation, maps };
        let work = hello(&*self.env.net, address, &self.credentials, purpose);
        match tokio::time::timeout(ATTACH_LIMIT, work).await {
            Ok(Ok((stream, Welcome::Attached { term }))) => {
                self.plans.obey(&self.obeyed, term);
                Ok(stream)
            }
            Ok(Ok((_, Welcome::Refused { why }))) => Err(Error::disconnected(why.to_string())),
            Ok(Ok((_, other))) => Err(Error::internal(format!("{address} said {other:?}"))),
            Ok(Err(e)) => Err(Error::new(
                e.kind,
                format!("rank {} is not reachable: {}", self.info.rank, e.message),
            )),
            Err(_) => Err(Error::timeout(format!(
                "rank {} at {address} did not answer within {ATTACH_LIMIT:?}: stopped or overloaded? \
                 nkv status says when it was last heard of",
                self.info.rank
            ))),
        }
    }

    fn linked(&self, stream: BoxStream, verbs: Arc<dyn Verbs>, alive: Alive) -> Arc<Peer> {
        let (tx, rx) = mpsc::channel(LINK_FRAMES);
        let (rank, weak) = (self.info.rank, tx.downgrade());
        let plans = (self.plans.clone(), self.obeyed.clone());
        let peer = Arc::new(self.peer(verbs, Link::Remote(tx), alive.clone()));
        tokio::task::spawn_local(async move {
            let why = run_link(stream, rx, weak, plans).await;
            // From here on no verb through this handle may report success.
            alive.mark_dead();
            tracing::debug!(rank, %why, "detached");
        });
        peer
    }
}

impl Peer {
    pub(crate) fn is_alive(&self) -> bool {
        self.alive.is_alive() && self.verbs.is_alive()
    }

    /// A peer that reaches nothing, for tests of plans.
    #[cfg(test)]
    pub(crate) fn nowhere(obeyed: Arc<Obeyed>) -> Arc<Self> {
        let memory = nkv_store::AnonMemory::new(4096).expect("a page of memory");
        let alive = Alive::new();
        Arc::new(Self {
            rank: 0,
            arena: Region { offset: 0, len: 0 },
            quarantine_ns: 0,
            verbs: Arc::new(LocalVerbs::new(Arc::new(memory), alive.clone())),
            attached_ns: 0,
            obeyed,
            link: Link::Remote(mpsc::channel(1).0),
            alive,
            touches: Mutex::default(),
        })
    }

    /// Which transport it uses.
    pub fn kind(&self) -> Kind {
        self.verbs.kind()
    }

    /// Notes a read; sent in batches.
    pub(crate) fn touch(&self, list: impl IntoIterator<Item = Touch>) -> usize {
        let mut t = self.touches.lock().unwrap_or_else(PoisonError::into_inner);
        t.extend(list);
        let excess = t.len().saturating_sub(MAX_TOUCHES);
        t.drain(..excess);
        t.len()
    }

    pub(crate) fn has_touches(&self) -> bool {
        !self.touches.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// Sends what was noted; with `wait`, returns once it has left this process.
    pub(crate) async fn send_touches(&self, wait: bool) -> Result<()> {
        let list =
            std::mem::take(&mut *self.touches.lock().unwrap_or_else(PoisonError::into_inner));
        match &self.link {
            Link::Local(owner, ..) => {
                if !list.is_empty() {
                    owner.push(Touches(list), Reply::nobody()).await?;
                }
            }
            Link::Remote(tx) => {
                let gone = |_| Error::disconnected(format!("rank {} is gone", self.rank));
                if !list.is_empty() {
                    tx.send(Outgoing::Frame(ToOwner::Touched(list))).await.map_err(gone)?;
                }
                if wait {
                    let (done, flushed) = oneshot::channel();
                    tx.send(Outgoing::Flushed(done)).await.map_err(gone)?;
                    let lost = |_| Error::disconnected(format!("rank {} is gone", self.rank));
                    flushed.await.map_err(lost)?;
                }
            }
        }
        Ok(())
    }

    /// Asks the owner whether a plan that was granted before we attached may still be written.
    pub(crate) async fn check_plan(&self, plan: PlanId, limit: Duration) -> Result<()> {
        let (answer, answered) = oneshot::channel();
        let work = async {
            match &self.link {
                Link::Local(_, tables, _) => Some(tables.wait_open(plan).await),
                Link::Remote(tx) => {
                    tx.send(Outgoing::Check(plan, answer)).await.ok()?;
                    answered.await.ok()
                }
            }
        };
        match tokio::time::timeout(limit, work).await {
            Ok(Some(true)) => Ok(()),
            Ok(Some(false)) => Err(Error::reclaimed(format!(
                "rank {} ended the plan before its first byte",
                self.rank
            ))),
            _ => Err(Error::disconnected(format!("rank {} does not answer", self.rank))),
        }
    }

    /// Says goodbye: nothing is or will be written through this attachment. Returns once it is said.
    pub(crate) async fn detach(&self) {
        self.alive_for_detach();
        if let Link::Remote(tx) = &self.link
            && tx.send(Outgoing::Frame(ToOwner::Detach)).await.is_ok()
        {
            // The link task ends, and with it the receiver, when the frame is written.
            let _ = tokio::time::timeout(ATTACH_LIMIT, tx.closed()).await;
        }
    }

    /// From here on no verb through this handle succeeds. A local segment's flag is its node's.
    fn alive_for_detach(&self) {
        if let Link::Remote(_) = &self.link {
            self.alive.mark_dead();
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // Plans hold their peer: with no peer left there is no writer. A remote link says so itself
        // when its sender is gone.
        if let Link::Local(_, tables, id) = &self.link {
            tables.attachments.detach(*id);
        }
    }
}

/// Questions about plans that wait for their answer.
type Checks = Arc<Mutex<Vec<(PlanId, oneshot::Sender<bool>)>>>;

/// Moves frames both ways until the owner or the client goes; returns why.
async fn run_link(
    stream: BoxStream,
    mut rx: mpsc::Receiver<Outgoing>,
    tx: mpsc::WeakSender<Outgoing>,
    (plans, obeyed): (Arc<OpenPlans>, Arc<Obeyed>),
) -> String {
    let (mut reader, mut writer) = tokio::io::split(stream);
    let checks: Checks = Arc::default();
    let asked = checks.clone();
    let out = async {
        let mut buf = Vec::new();
        while let Some(o) = rx.recv().await {
            let frame = match o {
                Outgoing::Frame(f) => f,
                Outgoing::Flushed(done) => {
                    let _ = done.send(());
                    continue;
                }
                Outgoing::Check(plan, answer) => {
                    let mut waiting = asked.lock().unwrap_or_else(PoisonError::into_inner);
                    // Callers that gave up leave nothing behind.
                    waiting.retain(|(_, answer)| !answer.is_closed());
                    waiting.push((plan, answer));
                    drop(waiting);
                    ToOwner::CheckPlan(plan)
                }
            };
            let last = matches!(frame, ToOwner::Detach);
            if let Err(e) = write_frame(&mut writer, &mut buf, 0, &frame).await {
                return e.to_string();
            }
            if last {
                return "detached".to_string();
            }
        }
        match write_frame(&mut writer, &mut buf, 0, &ToOwner::Detach).await {
            Ok(()) => "the client ended".to_string(),
            Err(e) => e.to_string(),
        }
    };
    let inn = async {
        let mut buf = Vec::new();
        loop {
            match read_frame::<_, ToClient>(&mut reader, &mut buf, MAX_FRAME_BYTES).await {
                Ok(Some((_, ToClient::Drop(plan)))) => {
                    plans.drop_plan(plan);
                    let (plans, tx) = (plans.clone(), tx.clone());
                    tokio::task::spawn_local(async move {
                        say_when(|| plans.is_out(plan), ToOwner::Dropped(plan), tx).await;
                    });
                }
                Ok(Some((_, ToClient::Term(term)))) => {
                    plans.obey(&obeyed, term);
                    let (plans, obeyed, tx) = (plans.clone(), obeyed.clone(), tx.clone());
                    tokio::task::spawn_local(async move {
                        let obeys = || plans.obeys(&obeyed, term);
                        say_when(obeys, ToOwner::TermObeyed(term), tx).await;
                    });
                }
                Ok(Some((_, ToClient::Plan { plan, open }))) => {
                    let mut waiting = checks.lock().unwrap_or_else(PoisonError::into_inner);
                    if let Some(i) = waiting.iter().position(|(p, _)| *p == plan) {
                        let _ = waiting.swap_remove(i).1.send(open);
                    }
                }
                Ok(None) => return "closed by the owner".to_string(),
                Err(e) => return e.to_string(),
            }
        }
    };
    race(out, inn).await
}

/// Says a word once no copy is in flight that it would deny. A copy is bounded by its size.
async fn say_when(out: impl Fn() -> bool, word: ToOwner, tx: mpsc::WeakSender<Outgoing>) {
    while !out() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    if let Some(tx) = tx.upgrade() {
        let _ = tx.send(Outgoing::Frame(word)).await;
    }
}
