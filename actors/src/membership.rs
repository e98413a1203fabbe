//! The membership task of one segment: it joins the master, keeps the link, sends heartbeats,
//! passes frames to the Owner, and joins again when the link breaks. It decides nothing about
//! objects.

mod listening;

use crate::actor::ActorAddr;
use crate::control_hello::hello;
use crate::current_master::CurrentMaster;
use crate::election::{Voter, promise_ms};
use crate::error::{Error, Result};
use crate::message::{
    MasterToOwner, OwnerToMaster, PlanId, Purpose, RankInfo, Refusal, Settings, Term, Welcome,
};
use crate::owner::tables::{OwnerTables, TermOrder};
use crate::owner::{FromMaster, NewTerm, Owner};
use crate::race::{race, read_and_write};
use crate::uplink::{UPLINK_FRAMES, Uplink};
use futures_util::FutureExt;
use listening::Listening;
use nkv_store::clock::Clock;
use nkv_store::log_limit::LogLimit;
use nkv_transport::wire::auth::Credentials;
use nkv_transport::wire::{BoxStream, MAX_FRAME_BYTES, Net, read_frame, write_frame};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::{ReadHalf, WriteHalf};
use tokio::sync::{mpsc, watch};

/// A connect or hello that takes longer fails.
const HELLO_LIMIT: Duration = Duration::from_secs(2);
/// Pauses between tries to reach the master.
const RETRY_FIRST_MS: u64 = 20;
const RETRY_LAST_MS: u64 = 500;
/// How long a Leave waits until the master closes the link, which is the answer.
const LEAVE_ANSWER: Duration = Duration::from_millis(500);
/// How long a join is repeated that is refused because the old incarnation still seems alive: the
/// master may notice the end of a killed process a moment after its successor joins.
const SUCCESSOR_LIMIT_MS: u64 = 1_500;

/// The mounted segments of a node, by number; its first segment reports them when it joins a
/// master.
#[derive(Debug, Default)]
pub struct Siblings(Mutex<BTreeMap<u32, u64>>);

impl Siblings {
    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<u32, u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a segment, which may hold objects from here on.
    pub fn add(&self, segment: u32, incarnation: u64) {
        self.lock().insert(segment, incarnation);
    }

    /// Removes a segment, whose objects are gone.
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
    /// Joined, and the master has handled the report.
    Joined,
    /// Joined once, link down, trying again.
    Lost(String),
    /// The first join was refused, and is not repeated.
    Refused(Refusal),
    /// No master answered within the join timeout.
    NoMaster(String),
    /// Declared gone: this incarnation is over [I17].
    Gone,
    /// Left the cluster on request, or the node closes.
    Left {
        /// The master closed the link after the Leave: its index has no object of this segment any
        /// more.
        confirmed: bool,
    },
}

/// What the link task works with.
pub struct Membership {
    /// How to reach others.
    pub net: Arc<dyn Net>,
    /// Where the master is.
    pub(crate) master: Arc<CurrentMaster>,
    /// What the rank promises its master, if another rank may become master and this is its first
    /// segment.
    pub(crate) voter: Option<Arc<Voter>>,
    /// The lease that every master of the job must have; 0: no elections.
    pub lease_ms: u64,
    /// Credentials for the master; they name the job.
    pub credentials: Credentials,
    /// The segment that joins.
    pub info: RankInfo,
    /// Receives the master's frames.
    pub owner: ActorAddr<Owner>,
    /// The owner's tables, for heartbeats and joins.
    pub tables: Arc<OwnerTables>,
    /// Filled while the link is up.
    pub uplink: Arc<Uplink>,
    /// The time.
    pub clock: Arc<dyn Clock>,
    /// Interval between heartbeats.
    pub heartbeat: Duration,
    /// Limit for the first join.
    pub join_timeout: Duration,
    /// Set while the segment drains: sent again after every join.
    pub draining: Arc<AtomicBool>,
    /// Set by the master's message that no plan follows.
    pub quiet: Arc<AtomicBool>,
    /// Other segments of this node, if this is its first.
    pub siblings: Arc<Siblings>,
    /// Set when the node shuts down: a broken link is then not logged.
    pub closing: Arc<AtomicBool>,
    /// Set while the last line logged about the link says that it is lost.
    pub missed: AtomicBool,
}

impl Membership {
    /// Runs until the node closes or the rank is refused or gone.
    pub async fn run(
        self,
        state: watch::Sender<LinkState>,
        settings: watch::Sender<(Term, Settings)>,
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
            let number = self.master.path_and_number().1;
            let joined = async { Some(self.join().await) };
            let elsewhere = async {
                self.master.changed_since(number).await;
                None
            };
            // At once where the master is now: a dead host lets a join wait for seconds.
            let Some(joined) = race(joined, elsewhere).await else {
                pause = RETRY_FIRST_MS;
                continue;
            };
            let why = match joined {
                Ok((stream, joined)) => match self.obey(joined.term).await {
                    Ok(()) => {
                        (joined_once, refusals) = (true, LogLimit::default());
                        pause = RETRY_FIRST_MS;
                        let silence = joined.silence();
                        settings.send_replace((joined.term, joined.settings.clone()));
                        let serve = self.serve(stream, &joined, silence, &state);
                        let moved = async {
                            self.master.changed_since(number).await;
                            (Error::disconnected("another rank is the master now"), false)
                        };
                        let (e, answered) = race(serve, moved).await;
                        self.uplink.set(None, self.clock.now_ms());
                        confirmed = answered;
                        e.message().to_string()
                    }
                    Err(e) => e.message().to_string(),
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
            let paused = tokio::time::sleep(Duration::from_millis(pause));
            let elsewhere = self.master.changed_since(number).map(|()| true);
            pause = match race(elsewhere, paused.map(|()| false)).await {
                true => RETRY_FIRST_MS,
                false => (pause * 2).min(RETRY_LAST_MS),
            };
        }
    }

    /// Logs each loss of the link once, not the retries after it.
    fn log_lost(&self, why: &str, state: &watch::Sender<LinkState>) {
        if *state.borrow() == LinkState::Joined {
            self.missed.store(true, Ordering::Relaxed);
            tracing::warn!(
                segment_id = %self.info.id(), %why,
                "no link to the master any more: objects here are still served, and the join is \
                 repeated until a master takes it"
            );
        }
    }

    /// Logs a refusal once a minute while it lasts: an operator has to restart one of the two with
    /// other settings.
    fn log_refused(&self, why: &Refusal, limit: &mut LogLimit<()>) {
        if matches!(why, Refusal::Later(_)) || !limit.is_due((), self.clock.now_ms()) {
            return;
        }
        tracing::warn!(
            segment_id = %self.info.id(), %why,
            "the master refuses this rank, which had joined: objects here are still served to \
             clients with their location, and the join is repeated until it is accepted"
        );
    }

    async fn join(&self) -> std::result::Result<(BoxStream, Joined), JoinError> {
        let mut last = "no rank is master yet".to_string();
        for address in self.master.path().addresses().iter() {
            let (obeyed, holds, seen) = self.tables.memory();
            let (info, siblings) = (Box::new(self.info.clone()), self.siblings.list());
            let purpose = Purpose::Rank { info, obeyed, holds, seen, siblings };
            let work = hello(&*self.net, address, &self.credentials, purpose);
            match tokio::time::timeout(HELLO_LIMIT, work).await {
                Ok(Ok((stream, Welcome::Rank { term, settings, confirm, stamp_ms }))) => {
                    if let Some(why) = self.other_lease(settings.master_lease_ms) {
                        return Err(JoinError::Refused(why));
                    }
                    match settings.check() {
                        Ok(()) if !self.heard(term) => {
                            last = format!("the last master may count on this rank: not {address}");
                        }
                        Ok(()) => {
                            let stamp = AtomicU64::new(stamp_ms);
                            return Ok((stream, Joined { term, settings, confirm, stamp }));
                        }
                        Err(e) => last = format!("{address} welcomed a join with {}", e.message()),
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

    /// The master of this term was heard: the rank obeys no other one for a while. False if it must
    /// not obey this one yet.
    fn heard(&self, term: Term) -> bool {
        self.voter.as_ref().is_none_or(|voter| voter.heard(term.master))
    }

    /// Why a master with this lease is not obeyed: it would count on this rank for longer than the
    /// rank obeys no other [I24].
    fn other_lease(&self, theirs: u64) -> Option<Refusal> {
        let ours = self.lease_ms;
        (ours != theirs).then(|| {
            let shown = |ms: u64| match ms {
                0 => "no elections".to_string(),
                ms => format!("--master-lease-ms {ms}"),
            };
            Refusal::Invalid(format!(
                "the master has {}, and {} has {}: give every rank the same --election and \
                 --master-lease-ms",
                shown(theirs),
                self.info.id(),
                shown(ours)
            ))
        })
    }

    /// Called before the first frame: a segment obeys only the highest term. Disconnected if the
    /// master's term is lower.
    async fn obey(&self, term: Term) -> Result<()> {
        match self.tables.obey(term) {
            TermOrder::Same => Ok(()),
            TermOrder::New => self.owner.push(NewTerm).await,
            TermOrder::Older(obeyed) => Err(Error::disconnected(format!(
                "the master is of term {}, and this rank obeys term {}",
                term.number, obeyed.number
            ))),
        }
    }

    /// Moves frames both ways until the link breaks; returns why, and whether the master closed it
    /// after a Leave. The master requests a report first.
    async fn serve(
        &self,
        stream: BoxStream,
        joined: &Joined,
        silence: Duration,
        state: &watch::Sender<LinkState>,
    ) -> (Error, bool) {
        let (reader, writer) = tokio::io::split(stream);
        let (tx, rx) = mpsc::channel(UPLINK_FRAMES);
        self.uplink.set(Some(tx), self.clock.now_ms());
        let left = AtomicBool::new(false);
        // The latest recorded plan that is not acknowledged yet. The reader handles all frames that
        // have arrived before the writer runs, so one frame acknowledges many plans.
        let (recorded, news) = watch::channel(None);
        let recorded = joined.confirm.then_some(&recorded);
        let stamp = &joined.stamp;
        if self.draining.load(Ordering::Acquire) {
            self.uplink.send(OwnerToMaster::Draining);
        }
        let read = async {
            Err(self.read(reader, (silence, joined.term), state, (recorded, stamp)).await)
        };
        let write = async { Err(self.write(writer, rx, (news, stamp), &left).await) };
        // Frames that a dead master sent before bring plans with their keys.
        let Err(ended) = read_and_write::<std::convert::Infallible, _>(read, write).await;
        (ended, left.load(Ordering::Acquire))
    }

    async fn read(
        &self,
        mut reader: ReadHalf<BoxStream>,
        (silence, term): (Duration, Term),
        state: &watch::Sender<LinkState>,
        (recorded, stamp): (Option<&watch::Sender<Option<PlanId>>>, &AtomicU64),
    ) -> Error {
        let mut buf = Vec::new();
        let mut listening = Listening::new(&*self.clock, silence);
        loop {
            let frame = read_frame::<_, MasterToOwner>(&mut reader, &mut buf, MAX_FRAME_BYTES);
            // A live master sends heartbeats often enough.
            let Some(frame) = listening.hear(frame).await else {
                return Error::disconnected(format!("the master was silent for {silence:?}"));
            };
            let down = match frame {
                Ok(Some((_, down))) if self.heard(term) => down,
                Ok(Some(_)) => return Error::disconnected("this rank obeys another master now"),
                Ok(None) => {
                    let stood = listening.stood();
                    return Error::disconnected(format!("the master closed the link{stood}"));
                }
                Err(e) => {
                    let stood = listening.stood();
                    return Error::disconnected(format!("link to the master: {e}{stood}"));
                }
            };
            if let Err(e) = self.info.check_to_owner(&down) {
                return Error::disconnected(format!(
                    "the master sent an impossible frame: {}",
                    e.message()
                ));
            }
            match down {
                // After `heard`: the promise runs before the master learns of it.
                MasterToOwner::Heartbeat { stamp_ms } => {
                    stamp.fetch_max(stamp_ms, Ordering::AcqRel);
                }
                MasterToOwner::Refused(why) => {
                    return Error::disconnected(format!(
                        "the master refused a frame of this rank: {why}"
                    ));
                }
                MasterToOwner::View(view) => {
                    let number = view.number;
                    self.tables.keep_view(view);
                    self.uplink.send(OwnerToMaster::ViewSeen { number });
                }
                MasterToOwner::ReportTaken => {
                    state.send_replace(LinkState::Joined);
                    if self.missed.swap(false, Ordering::Relaxed) {
                        let segment_id = self.info.id();
                        tracing::info!(%segment_id, term = term.number, "joined again");
                    }
                }
                MasterToOwner::NoMorePlans => self.quiet.store(true, Ordering::Release),
                down => {
                    if let MasterToOwner::PlanOpened(p) = &down
                        && p.at.incarnation == self.info.incarnation
                    {
                        // Recorded outside the actor first: a panic must not lose a plan [I10].
                        if self.tables.record(p, self.clock.now_ns())
                            && let Some(recorded) = recorded
                        {
                            recorded.send_replace(Some(p.plan));
                        }
                    }
                    let sent = self.owner.push(FromMaster(down));
                    if let Err(e) = sent.await {
                        return e;
                    }
                }
            }
        }
    }

    async fn write(
        &self,
        mut writer: WriteHalf<BoxStream>,
        mut rx: mpsc::Receiver<OwnerToMaster>,
        (mut recorded, stamp): (watch::Receiver<Option<PlanId>>, &AtomicU64),
        left: &AtomicBool,
    ) -> Error {
        let mut beat = tokio::time::interval(self.heartbeat);
        beat.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut buf = Vec::new();
        loop {
            let up = tokio::select! {
                // In this order: heartbeats are rare, and an endless stream of frames must not
                // delay them.
                biased;
                _ = beat.tick() => {
                    let gauges = Box::new(self.tables.gauges.snapshot());
                    OwnerToMaster::Heartbeat { gauges, stamp_ms: stamp.load(Ordering::Acquire) }
                }
                Ok(()) = recorded.changed() => match *recorded.borrow_and_update() {
                    Some(up_to) => OwnerToMaster::PlansRecorded { up_to },
                    None => continue,
                },
                up = rx.recv() => match up {
                    Some(up) => up,
                    None => return Error::disconnected("the queue of the link was full"),
                },
            };
            if let Err(e) = write_frame(&mut writer, &mut buf, 0, &up).await {
                return Error::disconnected(format!("link to the master: {e}"));
            }
            if matches!(up, OwnerToMaster::Leave) {
                left.store(true, Ordering::Release);
                tokio::time::sleep(LEAVE_ANSWER).await;
                left.store(false, Ordering::Release);
                return Error::disconnected("left");
            }
        }
    }
}

/// What a master answered a join.
struct Joined {
    term: Term,
    settings: Settings,
    confirm: bool,
    // Its last stamp.
    stamp: AtomicU64,
}

impl Joined {
    /// After a silence of this length the link is given up.
    fn silence(&self) -> Duration {
        Duration::from_millis(match promise_ms(self.settings.master_lease_ms) {
            0 => self.settings.ttl_ms,
            promise => promise.min(self.settings.ttl_ms),
        })
    }
}

enum JoinError {
    Refused(Refusal),
    Unreachable(String),
}
