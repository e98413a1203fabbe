//! Master: the only writer of the object index, of placement and of membership. One actor on an
//! arbiter of its own; every request is a batch. Its state is rebuilt from the owners' reports.

mod allocator;
mod aside;
mod awaiting;
mod batch;
mod commit;
mod disk;
mod entry;
mod extras;
mod finish;
mod groups;
mod hard_pins;
mod hot;
mod index;
mod known;
mod log;
mod logged;
mod lookup;
mod matching;
mod members;
mod membership;
mod objects;
mod open;
mod recover;
mod repairs;
mod route;
mod slab;
mod stripes;
mod terms;
mod waiting;

use crate::actor::{Context, Message, On, Reply, Role};
use crate::error::Error;
use crate::message::{
    ClusterStats, MasterCounters, MasterToOwner, OwnerToMaster, PlanId, PlanRef, RankInfo,
    RankStats, Refusal, Request, Response, SeenView, SegmentId, Settings, Term,
};
use crate::placement::Strategy;
use allocator::SegmentAllocator;
use awaiting::Awaiting;
use batch::Batches;
use entry::Entry;
use hashbrown::{HashMap, HashSet};
use index::Index;
use matching::{RemovedBefore, Round, Rounds};
use nkv_store::Random;
use nkv_store::clock::Clock;
use nkv_store::log_limit::LogLimit;
use nkv_store::log_lines::LogLines;
use nkv_store::{KeyHasher, KeyId, KeyPool};
use objects::{IdentityState, PlanInfo};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use stripes::Stripes;
use waiting::WaitingOpens;

pub(crate) use members::WATCH_LIMIT;
pub use members::{DOWNLINK_FRAMES, LinkId, Members};
pub use membership::Joined;

/// Interval between checks of deadlines, TTLs and waiting requests.
const TICK_MS: u64 = 10;
/// If the master itself paused for longer than the TTL divided by this, it moves all TTLs on by the
/// length of the pause.
const PAUSES_PER_TTL: u64 = 4;
/// Requests held while the state is being rebuilt; further ones fail with `NotReady`.
const MAX_PARKED: usize = 8192;

/// State that outlives the Master actor.
#[derive(Clone)]
pub struct MasterDurable {
    /// Number of ranks of the job.
    pub world_size: u32,
    /// Membership TTL.
    pub ttl_ms: u64,
    /// How long an `OpenForWrite` waits for room; 0 means max(3 Q, 250 ms).
    pub full_wait_ms: u64,
    /// Computes the key identities of the job [I16].
    pub hasher: KeyHasher,
    /// Where the key strings come from: owners of this process have the same ones.
    pub key_pool: Arc<KeyPool>,
    /// Settings that clients and ranks are sent.
    pub settings: Settings,
    /// Links, views, producers.
    pub members: Arc<Members>,
    /// The next plan number; plan numbers never repeat within a term.
    pub next_plan: Arc<AtomicU64>,
    /// Boot id of the host that the master runs on.
    pub boot_id: u64,
    /// The time.
    pub clock: Arc<dyn Clock>,
    /// Source of the tokens.
    pub random: Arc<dyn Random>,
    /// Replicas of an object that is read often, at most.
    pub hot_replicas: u8,
}

/// See the file's first paragraph.
pub struct Master {
    durable: MasterDurable,
    objects: Index<Entry>,
    stripes: Stripes,
    hot: hot::HotObjects,
    groups: groups::Groups,
    placement: Box<dyn Strategy>,
    plans: HashMap<PlanId, PlanInfo>,
    allocators: BTreeMap<SegmentId, SegmentAllocator>,
    batches: Batches,
    waiting: WaitingOpens,
    rounds: Rounds,
    // Requests that wait for owners of logs, by the number of their question.
    log_questions: BTreeMap<u64, log::Asked>,
    // Requests that wait for nodes with disks, by the number of their question.
    disk_questions: BTreeMap<u64, disk::Asked>,
    // By rank.
    resending: BTreeMap<u32, disk::Resending>,
    // Requests that wait for keys to be READY.
    awaiting: Awaiting,
    // Keys for which device logs serve objects besides the listed entry, and where: at most one per
    // segment.
    aside: HashMap<KeyId, BTreeMap<SegmentId, entry::Replica>>,
    /// Sets of replicas of which logs retired some for a removal, and that are not ended yet.
    unended: BTreeSet<(KeyId, u32)>,
    // Those of them whose listed object a reader found gone: then the logged object is no
    // duplicate.
    found_gone: HashSet<KeyId>,
    // Ranks where opens wait because an owner has a long queue of messages.
    backlogged: BTreeSet<u32>,
    removing: HashMap<KeyId, Vec<(u64, usize)>, IdentityState>,
    // Answers to removes that wait until ranks keep the current view.
    deferred: Vec<terms::Deferred>,
    commits_out: BTreeMap<SegmentId, Vec<PlanRef>>,
    // Commits whose owners have not recorded the plan yet.
    unrecorded: BTreeMap<SegmentId, Vec<commit::Unrecorded>>,
    counters: MasterCounters,
    repairs: repairs::Repairs,
    // Segments that have not reported since a panic; requests are parked until they have.
    recovering: BTreeSet<SegmentId>,
    recover_until_ms: u64,
    // Segments that did not report in time: their objects are unknown.
    blind: BTreeSet<SegmentId>,
    // Incarnations that reported before the panic and have not reported again.
    forgotten: HashSet<u64>,
    parked: VecDeque<(Ask, Reply<Response>)>,
    // Limits the log lines about refused ranks, by segment and world size.
    refused: LogLimit<(SegmentId, u32)>,
    // The last refusal of each rank that has not joined since.
    not_taken: membership::NotTaken,
    last_tick_ms: u64,
    // Limits the log lines about invalid frames.
    refused_lines: LogLines,
}

/// A client's request.
#[derive(Debug)]
pub struct Ask {
    /// The client.
    pub producer: u64,
    /// The request.
    pub request: Request,
}
/// A rank wants to join with one of its segments, over a new link.
#[derive(Debug)]
pub struct Join {
    /// The rank and the segment.
    pub info: RankInfo,
    /// The highest term that its owner obeyed.
    pub obeyed: Term,
    /// Whether anything was ever placed on it, by a plan or by a claim in its log.
    pub holds: bool,
    /// The last view that it kept.
    pub seen: SeenView,
    /// The other segments of its node as (segment, incarnation); only the first segment sends them.
    pub siblings: Vec<(u32, u64)>,
    /// The segment is in the master's process, and ends with it.
    pub own: bool,
    /// It is, and has obeyed no other master: none can have declared it gone.
    pub of_this_life: bool,
    /// Frames to it.
    pub tx: tokio::sync::mpsc::Sender<MasterToOwner>,
}
/// A frame from a joined segment's owner.
#[derive(Debug)]
pub struct FromRank {
    /// Whose.
    pub segment_id: SegmentId,
    /// Its incarnation.
    pub incarnation: u64,
    /// Which link of it.
    pub link: LinkId,
    /// The frame.
    pub up: OwnerToMaster,
}
/// A link ended.
#[derive(Debug)]
pub struct LinkDown {
    /// Whose.
    pub segment_id: SegmentId,
    /// Which link of it.
    pub link: LinkId,
}
/// A timer.
#[derive(Debug)]
pub struct MasterTick;

impl Message for Ask {
    type Reply = Response;
}
impl Message for Join {
    type Reply = Result<Joined, Refusal>;
}
impl Message for FromRank {
    type Reply = ();
}
impl Message for LinkDown {
    type Reply = ();
}
impl Message for MasterTick {
    type Reply = ();
}

impl Role for Master {
    type Durable = MasterDurable;
    const NAME: &'static str = "master";

    fn boot(durable: &MasterDurable, ctx: &mut Context<'_, Self>) -> Self {
        let mut master = Self {
            durable: durable.clone(),
            objects: Index::default(),
            stripes: Stripes::default(),
            hot: hot::HotObjects::default(),
            groups: groups::Groups::default(),
            placement: durable.members.placement().strategy(durable.world_size),
            plans: HashMap::new(),
            allocators: BTreeMap::new(),
            batches: Batches::default(),
            waiting: WaitingOpens::default(),
            rounds: Rounds::default(),
            log_questions: BTreeMap::new(),
            disk_questions: BTreeMap::new(),
            resending: BTreeMap::new(),
            awaiting: Awaiting::default(),
            aside: HashMap::new(),
            unended: BTreeSet::new(),
            found_gone: HashSet::new(),
            backlogged: BTreeSet::new(),
            removing: HashMap::default(),
            deferred: Vec::new(),
            commits_out: BTreeMap::new(),
            unrecorded: BTreeMap::new(),
            counters: MasterCounters::default(),
            repairs: repairs::Repairs::default(),
            recovering: BTreeSet::new(),
            recover_until_ms: 0,
            blind: BTreeSet::new(),
            forgotten: HashSet::new(),
            parked: VecDeque::new(),
            refused: LogLimit::default(),
            not_taken: membership::NotTaken::default(),
            last_tick_ms: durable.clock.now_ms(),
            refused_lines: LogLines::default(),
        };
        master.recover();
        ctx.after(Duration::from_millis(TICK_MS), MasterTick);
        master
    }
}

impl Master {
    fn now_ms(&self) -> u64 {
        self.durable.clock.now_ms()
    }

    fn next_plan(&self) -> PlanId {
        let seq = self.durable.next_plan.fetch_add(1, Ordering::Relaxed);
        PlanId { term: self.durable.members.term(), seq }
    }

    /// True once every rank has reported with all its segments, or one TTL has passed since the
    /// term began.
    fn settled(&self) -> bool {
        // Latched outside the actor: it stays true when a rank leaves later.
        self.durable.members.settled(self.now_ms(), self.durable.ttl_ms)
    }

    fn early(&self, what: &str) -> Error {
        let world = self.durable.world_size;
        let joined =
            |r: &u32| self.allocators.get(&SegmentId::first(*r)).is_some_and(|b| b.reported);
        let missing: Vec<u32> = (0..world).filter(|r| !joined(r)).collect();
        let mut whom = format!("ranks {missing:?} of {world}");
        if missing.is_empty() {
            whom = recover::names(&self.durable.members.lock().awaited());
        }
        let wait = match self.durable.settings.master_lease_ms {
            0 => format!("{} ms", self.durable.ttl_ms),
            lease => format!("{lease} ms with more than half of the ranks"),
        };
        Error::not_ready(format!(
            "the cluster is starting: {what} waits for {whom} to join, or {wait}{}",
            self.not_taken.text(self.now_ms())
        ))
    }

    /// What a request asks for, if only a settled master with a quorum may answer it.
    fn needs_quorum(request: &Request) -> Option<&'static str> {
        Some(match request {
            Request::OpenForWrite { .. } => "a put",
            Request::Remove(_) | Request::RemoveAt(_) | Request::RemoveMatching(_) => "a remove",
            Request::Replicate { .. } => "a change of replicas",
            // An object of a joining rank may have been removed after an earlier master lost that
            // rank. The ranks that kept a view of that loss must join first [I6].
            Request::GetLocation { .. }
            | Request::MatchPrefix(_)
            | Request::Exists { .. }
            | Request::AwaitReady(_)
            | Request::List { .. } => "a lookup",
            Request::SaveToDisk { .. } => "a save",
            _ => return None,
        })
    }

    /// The error of a request that cannot be served now, if any.
    fn refuse(&self, request: &Request) -> Option<Error> {
        let Some(what) = Self::needs_quorum(request) else { return request.check().err() };
        request.check().err().or_else(|| match self.settled() {
            false => Some(self.early(what)),
            // Checked before any log is asked, since asking a log removes the key there: a refused
            // remove must not have removed anything.
            true if known::removes(request) => {
                self.check_quorum().and_then(|()| self.check_all_reported()).err()
            }
            true => self.check_quorum().err(),
        })
    }

    fn answer(&mut self, ask: Ask, reply: Reply<Response>) {
        if let Some(e) = self.refuse(&ask.request) {
            return reply.send(Response::Failed(e));
        }
        if let Some((ask, reply)) = self.remove_from_disks_first(ask, reply) {
            self.answer_from_memory(ask, reply, known::Known::default());
        }
    }

    /// As `answer`, once what is to be removed is on no disk any more.
    fn answer_from_memory(&mut self, ask: Ask, reply: Reply<Response>, known: known::Known) {
        // Again: logs and disks were asked meanwhile.
        let checked = Self::needs_quorum(&ask.request).map(|_| self.check_lease());
        if let Some(Err(e)) = checked {
            return reply.send(Response::Failed(e));
        }
        let removed = known.removed.clone();
        let taken = RemovedBefore { from_logs: 0, from_disks: known.removed_count };
        let Some((ask, reply)) = self.ask_logs_first(ask, reply, known) else {
            return;
        };
        match ask.request {
            Request::OpenForWrite { request, wait_ms, items } => {
                self.open(ask.producer, request, wait_ms, items, reply);
            }
            Request::Commit(list) => self.commit(&list, reply),
            Request::Abort(list) => reply.send(Response::Done(self.abort(&list))),
            Request::Withdraw { request } => {
                self.withdraw(ask.producer, request);
                reply.send(Response::Done(Vec::new()));
            }
            Request::GetLocation { .. }
            | Request::MatchPrefix(_)
            | Request::Exists { .. }
            | Request::SaveToDisk { .. } => {
                self.answer_lookup(ask, reply, known::Known::default());
            }
            Request::AwaitReady(asked) => self.await_ready(asked, reply),
            Request::Replicate { keys, wanted } => {
                reply.send(Response::Done(self.replicate(&keys, wanted)))
            }
            Request::Remove(keys) => self.remove(&keys, &removed, reply),
            Request::RemoveAt(list) => self.remove_at(&list, reply),
            Request::EvictUntilBelow(ratio) => reply.send(self.evict_until_below(ratio)),
            Request::Stats => reply.send(Response::Stats(self.stats())),
            Request::View | Request::Watch { .. } => {
                reply.send(Response::View(self.durable.members.view()))
            }
            Request::List { .. } | Request::RemoveMatching(_) => {
                self.enter_round(Round::new(ask, reply, taken))
            }
        }
    }

    fn evict_until_below(&mut self, ratio: f64) -> Response {
        if !(0.0..=1.0).contains(&ratio) {
            return Response::Failed(Error::invalid(format!(
                "evict_until_below takes a ratio from 0 to 1, not {ratio}"
            )));
        }
        for (segment_id, allocator) in &self.allocators {
            let bytes = (allocator.info.layout.arena.len as f64 * ratio) as u64;
            self.durable.members.send(*segment_id, MasterToOwner::EvictTo { bytes });
        }
        Response::Done(vec![Ok(())])
    }

    fn stats(&self) -> ClusterStats {
        let rows = self.durable.members.rows(self.now_ms());
        let ranks = rows.into_iter().map(|row| {
            let allocator =
                self.allocators.get(&SegmentId { rank: row.rank, segment: row.segment });
            RankStats {
                allocated_bytes: allocator.map_or(0, |b| b.arena.used_bytes()),
                largest_hole: allocator.map_or(0, |b| b.arena.largest_hole()),
                ..row
            }
        });
        ClusterStats {
            objects: self.objects.values().filter(|e| e.is_live()).count() as u64,
            plans_open: self.plans.len() as u64,
            waiting: self.waiting.len() as u64,
            master: MasterCounters {
                repairs_waiting: self.waiting_repairs(),
                ..self.counters.clone()
            },
            ranks: ranks.collect(),
            refused: self.not_taken.list(self.now_ms()),
        }
    }
}

impl On<Ask> for Master {
    fn on(&mut self, ask: Ask, reply: Reply<Response>, ctx: &mut Context<'_, Self>) {
        if self.recovering.is_empty() {
            self.answer(ask, reply);
            self.flush_commits();
            self.answer_awaiting();
            self.start_rounds(ctx);
        } else if self.parked.len() < MAX_PARKED {
            self.durable.members.slow_path.calls_parked.one();
            self.parked.push_back((ask, reply));
        } else {
            reply.send(Response::Failed(Error::not_ready("the master is being rebuilt")));
        }
    }
}

impl On<FromRank> for Master {
    fn on(&mut self, m: FromRank, reply: Reply<()>, ctx: &mut Context<'_, Self>) {
        if self.durable.members.heard(m.segment_id, m.link, self.now_ms()) {
            match self.durable.members.check_to_master(m.segment_id, &m.up) {
                Ok(()) => self.receive_from_segment(m.segment_id, m.incarnation, m.up),
                Err(error) => self.refuse_frame(m.segment_id, &error),
            }
            self.answer_awaiting();
            self.start_rounds(ctx);
        }
        reply.send(());
    }
}

impl On<Join> for Master {
    fn on(&mut self, m: Join, reply: Reply<Result<Joined, Refusal>>, _: &mut Context<'_, Self>) {
        reply.send(self.join(m));
    }
}

impl On<LinkDown> for Master {
    fn on(&mut self, m: LinkDown, reply: Reply<()>, _: &mut Context<'_, Self>) {
        self.durable.members.link_down(m.segment_id, m.link);
        self.recheck_commits(m.segment_id);
        reply.send(());
    }
}

impl On<MasterTick> for Master {
    fn on(&mut self, _: MasterTick, reply: Reply<()>, ctx: &mut Context<'_, Self>) {
        ctx.after(Duration::from_millis(TICK_MS), MasterTick);
        // After the process was stopped, suspended or starved, heartbeats wait in the sockets; they
        // are not missing.
        let now = self.now_ms();
        let pause = now.saturating_sub(self.last_tick_ms);
        self.last_tick_ms = now;
        if pause > self.durable.ttl_ms / PAUSES_PER_TTL {
            tracing::warn!(pause_ms = pause, "the master was paused; TTLs of ranks move on");
            self.durable.members.slow_path.pauses_forgiven.one();
            self.durable.members.forgive(pause, now);
        }
        self.forgive_waiting(pause);
        self.expire_ranks();
        // Also without a request: the view is sent to the ranks.
        self.settled();
        self.ask_again_for_reports();
        self.end_plans_of_lost_producers();
        self.expire_waiting();
        self.expire_removes();
        self.expire_commits();
        self.expire_log_questions();
        self.expire_disk_questions();
        self.resend_missed();
        self.cool();
        self.pass_groups_on();
        self.repair();
        self.answer_awaiting();
        self.expire_awaiting();
        self.complete_deferred();
        let superseded = self.durable.members.lock().superseded.len();
        if superseded > 0 && self.durable.members.unreported().is_empty() {
            self.durable.members.lock().superseded = HashSet::new();
        }
        if !self.recovering.is_empty() && self.now_ms() >= self.recover_until_ms {
            self.blind = std::mem::take(&mut self.recovering);
            self.unpark();
        }
        self.start_rounds(ctx);
        reply.send(());
    }
}

#[cfg(test)]
mod tests;
