//! Membership as a segment of a rank lives it: join the master, keep the link, send heartbeats,
//! hand frames to the Owner, come back when the link breaks. It decides nothing about objects.

mod listening;

use crate::actor::ActorAddr;
use crate::control_hello::hello;
use crate::error::{Error, Result};
use crate::log_limit::LogLimit;
use crate::message::{
    MasterToOwner, OwnerToMaster, PlanId, Purpose, RankInfo, Refusal, Settings, Term, Welcome,
};
use crate::owner::tables::{OwnerTables, TermOrder};
use crate::owner::{FromMaster, NewTerm, Owner};
use crate::race::race;
use listening::Listening;
use nkv_store::clock::Clock;
use nkv_transport::wire::auth::Credentials;
use nkv_transport::wire::{Address, BoxStream, MAX_FRAME_BYTES, Net, read_frame, write_frame};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::{ReadHalf, WriteHalf};
use tokio::sync::{Notify, mpsc, watch};

/// Frames waiting for the master; past it the link is cut and the next report says everything.
const UPLINK_FRAMES: usize = 8192;
/// A connect or hello that takes longer has failed.
const HELLO_LIMIT: Duration = Duration::from_secs(2);
/// How long a link that takes no frame any more is still listened to.
const LAST_FRAMES_LIMIT: Duration = Duration::from_millis(500);
/// Pauses between tries to reach the master.
const RETRY_FIRST_MS: u64 = 20;
const RETRY_LAST_MS: u64 = 500;
/// How long a Leave waits for the master to cut the link, which is its answer.
const LEAVE_ANSWER: Duration = Duration::from_millis(500);
/// How long a join may be refused because the old incarnation still looks alive: the master may
/// learn of a killed process a moment after its successor asks.
const SUCCESSOR_LIMIT_MS: u64 = 1_500;

/// The owner's way to the master. Sending never blocks; what cannot be sent is recovered by the
/// report that follows the next join.
#[derive(Debug, Default)]
pub struct Uplink {
    tx: Mutex<Option<mpsc::Sender<OwnerToMaster>>>,
    // When it came up or broke.
    changed_ms: AtomicU64,
}

impl Uplink {
    /// Sends or, when the link is down or choked, drops the frame and cuts the link.
    pub fn send(&self, up: OwnerToMaster) {
        let mut tx = self.tx.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(t) = tx.as_ref()
            && t.try_send(up).is_err()
        {
            tracing::warn!("the link to the master is choked; it will be set up again");
            *tx = None;
        }
    }

    /// What would be sent, for a test that plays the master.
    #[cfg(any(test, feature = "hostile"))]
    pub(crate) fn capture(&self) -> mpsc::Receiver<OwnerToMaster> {
        let (tx, rx) = mpsc::channel(UPLINK_FRAMES);
        self.set(Some(tx), 0);
        rx
    }

    fn set(&self, new: Option<mpsc::Sender<OwnerToMaster>>, now_ms: u64) {
        *self.tx.lock().unwrap_or_else(PoisonError::into_inner) = new;
        self.changed_ms.store(now_ms, Ordering::Relaxed);
    }

    /// When the link came up or broke; 0 if it never was up.
    pub fn changed_ms(&self) -> u64 {
        self.changed_ms.load(Ordering::Relaxed)
    }
}

/// The mounted segments of a node, by number: what its first one tells a master that it joins.
#[derive(Debug, Default)]
pub struct Siblings(Mutex<BTreeMap<u32, u64>>);

impl Siblings {
    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<u32, u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From here on it may hold objects.
    pub fn add(&self, segment: u32, incarnation: u64) {
        self.lock().insert(segment, incarnation);
    }

    /// What it held is gone.
    pub fn remove(&self, segment: u32) {
        self.lock().remove(&segment);
    }

    fn list(&self) -> Vec<(u32, u64)> {
        self.lock().iter().map(|(segment, incarnation)| (*segment, *incarnation)).collect()
    }
}

/// What a node learns from its link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LinkState {
    /// Trying to join for the first time.
    Joining,
    /// Joined, and the master has taken the report in.
    Joined,
    /// Joined once, link down, trying again.
    Lost(String),
    /// The first join was refused for good.
    Refused(Refusal),
    /// No master answered within the join timeout.
    NoMaster(String),
    /// Declared gone: this incarnation is over [I17].
    Gone,
    /// Left by its own will; whether the master cut the link upon that.
    Left {
        /// It did: nothing that lay there is in its index any more.
        confirmed: bool,
    },
}

/// What the link task works with.
pub struct Membership {
    /// How to reach others.
    pub net: Arc<dyn Net>,
    /// The master's control addresses, nearest first.
    pub master: Vec<Address>,
    /// What to prove to the master; names the job.
    pub credentials: Credentials,
    /// Who we are.
    pub info: RankInfo,
    /// Receives the master's frames.
    pub owner: ActorAddr<Owner>,
    /// Its tables, for the heartbeat.
    pub tables: Arc<OwnerTables>,
    /// Filled while the link is up.
    pub uplink: Arc<Uplink>,
    /// The time.
    pub clock: Arc<dyn Clock>,
    /// Between heartbeats.
    pub heartbeat: Duration,
    /// For the first join.
    pub join_timeout: Duration,
    /// Set while it drains: said again after every join.
    pub draining: Arc<AtomicBool>,
    /// Set by the master's word that no plan follows.
    pub quiet: Arc<AtomicBool>,
    /// Other segments of this node, if this is its first.
    pub siblings: Arc<Siblings>,
    /// Set when the node shuts down: then a broken link is no news.
    pub closing: Arc<AtomicBool>,
    /// Set while the log's last word is that the link is lost.
    pub missed: AtomicBool,
}

impl Membership {
    /// Runs until the node closes or the rank is refused or gone.
    pub async fn run(
        self,
        state: watch::Sender<LinkState>,
        settings: watch::Sender<Option<(Term, Settings)>>,
    ) {
        let (mut joined_once, mut confirmed) = (false, false);
        let mut pause = RETRY_FIRST_MS;
        let started = self.clock.now_ms();
        let mut refusals = LogLimit::default();
        loop {
            if self.closing.load(Ordering::Acquire) {
                state.send_replace(LinkState::Left { confirmed });
                return;
            }
            let why = match self.join().await {
                Ok((stream, (term, set, confirm))) => match self.obey(term).await {
                    Ok(()) => {
                        (joined_once, refusals) = (true, LogLimit::default());
                        pause = RETRY_FIRST_MS;
                        let silence = Duration::from_millis(set.ttl_ms);
                        settings.send_replace(Some((term, set)));
                        let (e, answered) = self.serve((stream, confirm), silence, &state).await;
                        self.uplink.set(None, self.clock.now_ms());
                        confirmed = answered;
                        e.message
                    }
                    Err(e) => e.message,
                },
                Err(JoinError::Refused(Refusal::Gone { .. })) => {
                    state.send_replace(LinkState::Gone);
                    return;
                }
                Err(JoinError::Refused(r)) => {
                    let waited = self.clock.now_ms() - started;
                    let again = match r {
                        Refusal::RankAlive { .. } => waited < SUCCESSOR_LIMIT_MS,
                        // Bounded by the join timeout below.
                        Refusal::Later(_) => true,
                        _ => false,
                    };
                    if !joined_once && !again {
                        state.send_replace(LinkState::Refused(r));
                        return;
                    }
                    if joined_once {
                        self.log_refused(&r, &mut refusals);
                    }
                    r.to_string()
                }
                Err(JoinError::Unreachable(why)) => why,
            };
            let waited = Duration::from_millis(self.clock.now_ms() - started);
            if !joined_once && waited >= self.join_timeout {
                state.send_replace(LinkState::NoMaster(why));
                return;
            }
            if self.closing.load(Ordering::Acquire) {
                continue;
            }
            if joined_once {
                self.log_lost(&why, &state);
                state.send_replace(LinkState::Lost(why));
            }
            tokio::time::sleep(Duration::from_millis(pause)).await;
            pause = (pause * 2).min(RETRY_LAST_MS);
        }
    }

    /// Once for each loss; the tries that follow say nothing.
    fn log_lost(&self, why: &str, state: &watch::Sender<LinkState>) {
        if *state.borrow() == LinkState::Joined {
            self.missed.store(true, Ordering::Relaxed);
            tracing::warn!(
                segment_id = %self.info.id(), %why,
                "no link to the master any more: what is here is served on, and the master is \
                 looked for until it is back"
            );
        }
    }

    /// Now and then for as long as it lasts: somebody has to start one of the two differently.
    fn log_refused(&self, why: &Refusal, limit: &mut LogLimit<()>) {
        if matches!(why, Refusal::Later(_)) || !limit.is_due((), self.clock.now_ms()) {
            return;
        }
        tracing::warn!(
            segment_id = %self.info.id(), %why,
            "the master refuses this rank, which had joined: what is here is served on to those \
             who know of it, and the master is asked again until it takes this rank in"
        );
    }

    async fn join(&self) -> std::result::Result<(BoxStream, (Term, Settings, bool)), JoinError> {
        let mut last = "no address for the master".to_string();
        for address in &self.master {
            let (obeyed, holds, seen) = self.tables.memory();
            let (info, siblings) = (Box::new(self.info.clone()), self.siblings.list());
            let purpose = Purpose::Rank { info, obeyed, holds, seen, siblings };
            let work = hello(&*self.net, address, &self.credentials, purpose);
            match tokio::time::timeout(HELLO_LIMIT, work).await {
                Ok(Ok((stream, Welcome::Rank { term, settings, confirm }))) => {
                    match settings.check() {
                        Ok(()) => return Ok((stream, (term, settings, confirm))),
                        Err(e) => last = format!("{address} welcomed a join with {}", e.message),
                    }
                }
                Ok(Ok((_, Welcome::Refused { why }))) => return Err(JoinError::Refused(why)),
                Ok(Ok((_, other))) => last = format!("{address} answered a join {other}"),
                Ok(Err(e)) => last = format!("{address}: {e}"),
                Err(_) => last = format!("{address} did not answer within {HELLO_LIMIT:?}"),
            }
        }
        Err(JoinError::Unreachable(last))
    }

    /// Before the first frame: only the highest term is obeyed.
    async fn obey(&self, term: Term) -> Result<()> {
        match self.tables.obey(term) {
            TermOrder::Same => Ok(()),
            TermOrder::New => self.owner.push(NewTerm, crate::actor::Reply::nobody()).await,
            TermOrder::Older(obeyed) => Err(Error::disconnected(format!(
                "the master is of term {}, and this rank obeys term {}",
                term.number, obeyed.number
            ))),
        }
    }

    /// Moves frames both ways until the link breaks; says whether it was the master who cut it
    /// after a Leave. The master asks for a report first.
    async fn serve(
        &self,
        (stream, confirm): (BoxStream, bool),
        silence: Duration,
        state: &watch::Sender<LinkState>,
    ) -> (Error, bool) {
        let (reader, writer) = tokio::io::split(stream);
        let (tx, rx) = mpsc::channel(UPLINK_FRAMES);
        self.uplink.set(Some(tx), self.clock.now_ms());
        let left = AtomicBool::new(false);
        let recorded = confirm.then(Recorded::default);
        if self.draining.load(Ordering::Acquire) {
            self.uplink.send(OwnerToMaster::Draining);
        }
        let mut read = std::pin::pin!(self.read(reader, silence, state, recorded.as_ref()));
        let (frame, taken) = race(async { (read.as_mut().await, false) }, async {
            (self.write(writer, rx, &left, recorded.as_ref()).await, true)
        })
        .await;
        if taken {
            // What a dead master had sent is still to be heard: plans, and with them their keys.
            let _ = tokio::time::timeout(LAST_FRAMES_LIMIT, read).await;
            return (frame, false);
        }
        (frame, left.load(Ordering::Acquire))
    }

    async fn read(
        &self,
        mut reader: ReadHalf<BoxStream>,
        silence: Duration,
        state: &watch::Sender<LinkState>,
        recorded: Option<&Recorded>,
    ) -> Error {
        let mut buf = Vec::new();
        let mut listening = Listening::new(&*self.clock, silence);
        loop {
            let frame = read_frame::<_, MasterToOwner>(&mut reader, &mut buf, MAX_FRAME_BYTES);
            // A master that lives says so often enough.
            let Some(frame) = listening.hear(frame).await else {
                return Error::disconnected(format!("the master was silent for {silence:?}"));
            };
            if let Ok(Some((_, down))) = &frame
                && let Err(e) = self.info.check_to_owner(down)
            {
                return Error::disconnected(format!(
                    "the master said what cannot be: {}",
                    e.message
                ));
            }
            match frame {
                Ok(Some((_, MasterToOwner::Heartbeat))) => {}
                Ok(Some((_, MasterToOwner::Refused(why)))) => {
                    return Error::disconnected(format!(
                        "the master believes this rank no more: {why}"
                    ));
                }
                Ok(Some((_, MasterToOwner::View(view)))) => {
                    let number = view.number;
                    self.tables.keep_view(view);
                    self.uplink.send(OwnerToMaster::ViewSeen { number });
                }
                Ok(Some((_, MasterToOwner::ReportTaken))) => {
                    state.send_replace(LinkState::Joined);
                    if self.missed.swap(false, Ordering::Relaxed) {
                        tracing::info!(segment_id = %self.info.id(), "joined again");
                    }
                }
                Ok(Some((_, MasterToOwner::NoMorePlans))) => {
                    self.quiet.store(true, Ordering::Release)
                }
                Ok(Some((_, down))) => {
                    if let MasterToOwner::PlanOpened(p) = &down
                        && p.at.incarnation == self.info.incarnation
                    {
                        // Outside the actor first: a panic must not lose a plan [I10].
                        let now = self.clock.now_ns();
                        if self.tables.record(p, self.info.header_base, now) {
                            recorded.inspect(|r| r.add(p.plan));
                        }
                    }
                    let sent = self.owner.push(FromMaster(down), crate::actor::Reply::nobody());
                    if let Err(e) = sent.await {
                        return e;
                    }
                }
                Ok(None) => {
                    let stood = listening.stood();
                    return Error::disconnected(format!("the master closed the link{stood}"));
                }
                Err(e) => {
                    let stood = listening.stood();
                    return Error::disconnected(format!("link to the master: {e}{stood}"));
                }
            }
        }
    }

    async fn write(
        &self,
        mut writer: WriteHalf<BoxStream>,
        mut rx: mpsc::Receiver<OwnerToMaster>,
        left: &AtomicBool,
        recorded: Option<&Recorded>,
    ) -> Error {
        let mut beat = tokio::time::interval(self.heartbeat);
        beat.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut buf = Vec::new();
        loop {
            let up = tokio::select! {
                // In this order: a heartbeat is due now and then, frames may be there without end.
                biased;
                _ = beat.tick() => {
                    let gauges = self.tables.gauges.snapshot();
                    OwnerToMaster::Heartbeat(Box::new(gauges))
                }
                up_to = Recorded::next(recorded) => OwnerToMaster::PlansRecorded { up_to },
                up = rx.recv() => match up {
                    Some(up) => up,
                    None => return Error::disconnected("the link was choked"),
                },
            };
            if let Err(e) = write_frame(&mut writer, &mut buf, 0, &up).await {
                return Error::disconnected(format!("link to the master: {e}"));
            }
            if matches!(up, OwnerToMaster::Leave) {
                left.store(true, Ordering::Release);
                tokio::time::sleep(LEAVE_ANSWER).await;
                return Error::disconnected("left");
            }
        }
    }
}

/// Plans of one link that are recorded, and that its master has not been told are. The reader takes
/// in whatever has come before the writer has its turn: one frame acknowledges many plans.
#[derive(Debug, Default)]
struct Recorded {
    up_to: Mutex<Option<PlanId>>,
    news: Notify,
}

impl Recorded {
    fn add(&self, plan: PlanId) {
        *self.up_to.lock().unwrap_or_else(PoisonError::into_inner) = Some(plan);
        self.news.notify_one();
    }

    /// The latest one, once there is one to tell of; never where the master does not ask.
    async fn next(recorded: Option<&Self>) -> PlanId {
        let Some(recorded) = recorded else { return std::future::pending().await };
        loop {
            let up_to = recorded.up_to.lock().unwrap_or_else(PoisonError::into_inner).take();
            match up_to {
                Some(plan) => return plan,
                None => recorded.news.notified().await,
            }
        }
    }
}

enum JoinError {
    Refused(Refusal),
    Unreachable(String),
}
