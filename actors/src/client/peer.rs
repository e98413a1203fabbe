//! One owner as a client sees it: the one-sided verbs to its segment, and the link over which
//! touches go out and plans are dropped. Made by the Producer actor, used without it.

use super::put_log::{NAMES_PER_FRAME, PeerLog};
use crate::cell::{CellAddr, Reply};
use crate::environment::Environment;
use crate::error::{Error, ErrorKind, Result};
use crate::membership::hello;
use crate::message::{
    PlanId, Purpose, RankInfo, Served, ToClient, ToOwner, Touch, TouchBatch, Via, Welcome,
};
use crate::owner::attachments::{AttachId, Route};
use crate::owner::log::{GiveUp, Name};
use crate::owner::pin_tables::Proof;
use crate::owner::tables::OwnerTables;
use crate::owner::{Owner, Touches};
use crate::plans::{Obeyed, OpenPlans};
use crate::race::race;
use nkv_store::device_log::{Landing, OpenClaims};
use nkv_store::fork;
use nkv_store::heap::{Heap, NOWHERE};
use nkv_store::layout::{HEADER_BYTES, Region};
use nkv_store::pins::Pins;
use nkv_store::reader::Reader;
use nkv_transport::Alive;
use nkv_transport::local::LocalVerbs;
use nkv_transport::shm::ShmVerbs;
use nkv_transport::verbs::{Kind, Verbs};
use nkv_transport::wire::auth::Credentials;
use nkv_transport::wire::{BoxStream, MAX_FRAME_BYTES, read_frame, write_frame};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
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
    pub(crate) incarnation: u64,
    // The first segment of its rank: where a key's hash leads to.
    pub(crate) first: bool,
    // Where headers, index and payloads lie.
    pub(crate) slots: u32,
    header_base: u64,
    pub(crate) index: Region,
    pub(crate) payloads: Region,
    // The segment by loads alone, where this process maps it.
    pub(crate) reader: Option<Reader>,
    pub(crate) pins: Option<Arc<Pins>>,
    // The device log, if it has one and this handle may write to it.
    pub(crate) log: Option<PeerLog>,
    takes_puts: AtomicBool,
    pub(crate) quarantine_ns: u64,
    pub(crate) verbs: Arc<dyn Verbs>,
    // Plans asked for before this moment must be checked with the owner before their first byte.
    pub(crate) attached_ns: u64,
    pub(crate) obeyed: Arc<Obeyed>,
    link: Link,
    alive: Alive,
    parted: AtomicBool,
    touches: Mutex<TouchBatch>,
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

/// What an attachment may do beyond reading by verbs.
struct Rights {
    // The segment by loads, and a pin table, where it is mapped.
    mapped: Option<(Reader, Option<u32>)>,
    log_token: Option<u64>,
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

    fn peer(&self, verbs: Arc<dyn Verbs>, (link, alive): (Link, Alive), rights: Rights) -> Peer {
        let Rights { mapped, log_token } = rights;
        let pins = mapped.as_ref().and_then(|(reader, table)| {
            let region = &reader.geometry().pins;
            Pins::new(reader.memory().clone(), region, (*table)?).map(Arc::new)
        });
        let claims = self.obeyed.claims().cloned();
        let log = match (mapped.is_some(), log_token) {
            // Memory at hand: the token is shown to nobody.
            (true, _) => claims.map(|claims| (claims, 1)),
            // The agent knows the claims: nobody asks this table.
            (false, Some(token)) => Some((Arc::new(OpenClaims::new(Landing::InCall)), token)),
            (false, None) => None,
        };
        let log = self.info.device_log().zip(log);
        let log = log.map(|(geometry, (claims, token))| PeerLog::new(geometry, claims, token));
        Peer {
            rank: self.info.rank,
            incarnation: self.info.incarnation,
            first: self.info.seat().is_first(),
            slots: self.info.slots,
            header_base: self.info.header_base,
            index: self.info.index(),
            payloads: self.info.payloads(),
            reader: mapped.map(|(reader, _)| reader),
            pins,
            log,
            takes_puts: AtomicBool::new(true),
            quarantine_ns: u64::from(self.info.quarantine_ms) * 1_000_000,
            verbs,
            attached_ns: self.env.clock.now_ns(),
            obeyed: self.obeyed.clone(),
            link,
            alive,
            parted: AtomicBool::new(false),
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
        let heap = Heap::open(l.memory.clone()).ok();
        let reader = heap.as_ref().and_then(Reader::of);
        let mapped = reader.map(|reader| (reader, l.tables.pins.give(id, Proof::Here)));
        let rights = Rights { mapped, log_token: None };
        Some(Arc::new(self.peer(Arc::new(verbs), (link, l.alive.clone()), rights)))
    }

    async fn shared(&self) -> Result<Option<Arc<Peer>>> {
        let Some(address) = &self.info.local else {
            return Ok(None);
        };
        if self.info.boot_id != self.env.machine.boot_id() || self.info.segment.is_empty() {
            return Ok(None);
        }
        let (mut stream, table, _) = self.hello(address, true).await?;
        let heap = match self.map() {
            Ok(heap) => heap,
            Err(e) => {
                // Registered by the hello: take that back, or the owner would wait for our word.
                let _ = write_frame(&mut stream, &mut Vec::new(), 0, &ToOwner::Detach).await;
                return Err(e);
            }
        };
        let alive = Alive::new();
        let verbs = ShmVerbs::new(heap.memory().clone(), alive.clone());
        let mapped = Reader::of(&heap).map(|reader| (reader, table));
        let rights = Rights { mapped, log_token: None };
        Ok(Some(self.linked(stream, Arc::new(verbs), alive, rights)))
    }

    fn map(&self) -> Result<Heap> {
        let (segment, machine) = (&self.info.segment, &self.env.machine);
        let heap = Heap::open(machine.attach(segment)?)?;
        if heap.geometry().incarnation != self.info.incarnation {
            return Err(Error::disconnected(format!(
                "segment {segment} holds another incarnation"
            )));
        }
        if self.info.prefault {
            // Beside the first calls: it takes 0.3 s/GiB.
            machine.prefault(segment);
        }
        Ok(heap)
    }

    async fn tcp(&self) -> Result<Arc<Peer>> {
        let Some(data) = self.info.data.clone() else {
            return Err(Error::unsupported(format!("rank {} has no tcp agent", self.info.rank)));
        };
        let (stream, _, log_token) = self.hello(&self.info.control, false).await?;
        let machine = &self.env.machine;
        let connecting = machine.connect(&data, self.info.incarnation, &self.credentials);
        let (verbs, alive) = connecting.await?;
        Ok(self.linked(stream, verbs, alive, Rights { mapped: None, log_token }))
    }

    /// The link, and what it was given: a pin table, a token for the log.
    async fn hello(
        &self,
        address: &nkv_transport::wire::Address,
        maps: bool,
    ) -> Result<(BoxStream, Option<u32>, Option<u64>)> {
        let (producer, incarnation) = (self.producer, self.info.incarnation);
        let purpose = Purpose::Attach { producer, incarnation, maps };
        let work = hello(&*self.env.net, address, &self.credentials, purpose);
        match tokio::time::timeout(ATTACH_LIMIT, work).await {
            Ok(Ok((stream, Welcome::Attached { term, pins, log_token }))) => {
                self.plans.obey(&self.obeyed, term);
                Ok((stream, pins, log_token))
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

    fn linked(
        &self,
        stream: BoxStream,
        verbs: Arc<dyn Verbs>,
        alive: Alive,
        rights: Rights,
    ) -> Arc<Peer> {
        let (tx, rx) = mpsc::channel(LINK_FRAMES);
        let (rank, weak) = (self.info.rank, tx.downgrade());
        let plans = (self.plans.clone(), self.obeyed.clone());
        let peer = Arc::new(self.peer(verbs, (Link::Remote(tx), alive.clone()), rights));
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
        !self.parted.load(Ordering::SeqCst) && self.alive.is_alive() && self.verbs.is_alive()
    }

    /// Whether its rank takes new objects, as the membership says.
    pub(crate) fn take_puts(&self, takes: bool) {
        self.takes_puts.store(takes, Ordering::Relaxed);
    }

    /// Its log, while it takes new objects.
    pub(crate) fn open_log(&self) -> Option<&PeerLog> {
        self.log.as_ref().filter(|_| self.takes_puts.load(Ordering::Relaxed))
    }

    /// A word to the owner, without waiting; false if the link is full or down.
    pub(crate) fn say(&self, word: ToOwner) -> bool {
        match (&self.link, word) {
            (Link::Local(owner, ..), ToOwner::Abandoned(claim)) => {
                owner.tell(GiveUp(claim)).is_ok()
            }
            (Link::Local(owner, ..), ToOwner::Named(list)) => owner.tell(Name(list)).is_ok(),
            (Link::Local(..), _) => true,
            (Link::Remote(tx), word) => tx.try_send(Outgoing::Frame(word)).is_ok(),
        }
    }

    /// Tells the keys of objects put into its log, at most so many.
    pub(crate) fn send_names(&self, most: usize) {
        let Some(log) = &self.log else { return };
        let mut left = most.min(log.names_noted());
        while left > 0 {
            let names = log.take_names(self, left.min(NAMES_PER_FRAME));
            left = left.saturating_sub(names.len().max(1));
            if !names.is_empty() && !self.say(ToOwner::Named(names.clone())) {
                return log.keep_names(names);
            }
        }
    }

    /// The master declared it gone: it is neither read nor written any more, whatever it says itself.
    pub(crate) fn part(&self) {
        self.parted.store(true, Ordering::SeqCst);
        self.alive_for_detach();
    }

    /// A peer that reaches nothing, for tests of plans.
    #[cfg(test)]
    pub(crate) fn nowhere(obeyed: Arc<Obeyed>) -> Arc<Self> {
        let memory = nkv_store::AnonMemory::new(4096).expect("a page of memory");
        let alive = Alive::new();
        Arc::new(Self {
            rank: 0,
            incarnation: 0,
            first: true,
            slots: 0,
            header_base: 0,
            index: Region::default(),
            payloads: Region::default(),
            reader: None,
            pins: None,
            log: None,
            takes_puts: AtomicBool::new(true),
            quarantine_ns: 0,
            verbs: Arc::new(LocalVerbs::new(Arc::new(memory), alive.clone())),
            attached_ns: 0,
            obeyed,
            link: Link::Remote(mpsc::channel(1).0),
            alive,
            parted: AtomicBool::new(false),
            touches: Mutex::default(),
        })
    }

    /// Which transport it uses.
    pub fn kind(&self) -> Kind {
        self.verbs.kind()
    }

    fn noted(&self) -> MutexGuard<'_, TouchBatch> {
        self.touches.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a read; sent in batches, by the Producer's timer.
    pub(crate) fn note(&self, via: Via, touch: Touch) {
        let mut noted = self.noted();
        noted.served.count(via);
        if noted.list.len() >= MAX_TOUCHES {
            // The older half: recency is what they are for.
            noted.list.drain(..MAX_TOUCHES / 2);
        }
        noted.list.push(touch);
    }

    /// Reads noted and not sent.
    pub(crate) fn touches_noted(&self) -> usize {
        self.noted().list.len()
    }

    /// Segment offset of a slot's header.
    pub(crate) fn header_off(&self, slot: u32) -> u64 {
        if slot >= self.slots {
            return NOWHERE;
        }
        self.header_base + u64::from(slot) * HEADER_BYTES
    }

    /// Sends what was noted; with `wait`, returns once it has left this process.
    pub(crate) async fn send_touches(&self, wait: bool) -> Result<()> {
        let batch = std::mem::take(&mut *self.noted());
        let some = batch.served != Served::default();
        match &self.link {
            Link::Local(owner, ..) => {
                if some {
                    owner.push(Touches(batch), Reply::nobody()).await?;
                }
            }
            Link::Remote(tx) => {
                let gone = |_| Error::disconnected(format!("rank {} is gone", self.rank));
                if some {
                    tx.send(Outgoing::Frame(ToOwner::Touched(batch))).await.map_err(gone)?;
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

    /// Says goodbye: nothing is or will be written or viewed through this attachment. Returns once it
    /// is said. With a view still out, its owner is not told: its death or the view's drop ends it.
    pub(crate) async fn detach(&self) {
        self.alive_for_detach();
        if !self.is_out_of_log().await {
            tracing::warn!(rank = self.rank, "closed with a put in flight: its claim stays open");
            return;
        }
        if self.pins.as_ref().is_some_and(|pins| !pins.close()) {
            tracing::warn!(rank = self.rank, "closed with views: their objects stay in place");
            return;
        }
        if let Link::Remote(tx) = &self.link
            && tx.send(Outgoing::Frame(ToOwner::Detach)).await.is_ok()
        {
            // The link task ends, and with it the receiver, when the frame is written.
            let _ = tokio::time::timeout(ATTACH_LIMIT, tx.closed()).await;
        }
    }

    /// Once no put through this attachment is in the middle of a claim; false after a bounded wait.
    async fn is_out_of_log(&self) -> bool {
        for _ in 0..ATTACH_LIMIT.as_millis() {
            if self.log.as_ref().is_none_or(PeerLog::is_out) {
                return true;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        false
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
        // A forked child speaks for nobody, and its parent may have held the lock at the fork.
        if fork::is_child() {
            return;
        }
        // Plans hold their peer: with no peer left there is no writer. A remote link says so itself
        // when its sender is gone.
        if let Link::Local(_, tables, id) = &self.link {
            tables.attachments.detach(*id);
            // Views hold their peer, too.
            tables.pins.take_back(*id);
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
                Ok(Some((_, ToClient::ClearBelow(below)))) => {
                    let (obeyed, tx) = (obeyed.clone(), tx.clone());
                    tokio::task::spawn_local(async move {
                        let clear = || obeyed.is_clear_below(below);
                        say_when(clear, ToOwner::ClearBelow(below), tx).await;
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
