//! State of an owner that survives a panic of its actor: open and ending plans, key strings, and
//! the `Freed` that the master has not acknowledged.

use super::attachments::Attachments;
use super::ended_sets::EndedSets;
use super::groups::Groups;
use super::log_producers::LogProducers;
use super::names::NameSenders;
use super::pin_tables::PinTables;
use crate::counted_queue::CountedQueue;
use crate::message::{EndCause, Gauges, KeyReport, PlanId, PlanOpened, ReplicaSet, SeenView, Term};
use crate::slot_map::SlotMap;
use crate::slow_path::OwnerSlowPath;
use hashbrown::HashMap;
use nkv_store::SegmentLayout;
use nkv_store::device_log::Moves;
use nkv_store::heap::Heap;
use nkv_store::object::{SetMark, Usage};
use nkv_store::{Key, KeyPool};
use nkv_transport::grants::{Grant, Grants};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long `wait_open` waits for the master's `PlanOpened` of a plan.
const PLAN_WAIT_LIMIT_MS: u64 = 500;

/// The state of a plan that ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ending {
    /// Why it ends.
    pub cause: EndCause,
    /// LIVE is cleared. False while the owner still has to check whether an expired plan is READY.
    pub retired: bool,
}

/// One plan in this owner's heap.
#[derive(Debug, Clone)]
pub struct PlanRecord {
    /// As the master granted it.
    pub opened: PlanOpened,
    /// When the plan expires, on the owner's clock, in ns.
    pub deadline_ns: u64,
    /// Set once it ends; the record is removed when its fence is complete.
    pub ending: Option<Ending>,
}

/// The tables proper.
#[derive(Debug)]
pub struct Tables {
    /// Open and ending plans.
    pub plans: BTreeMap<PlanId, PlanRecord>,
    /// Key string of every open or live slot, with its epoch.
    pub(crate) keys: SlotMap<(u32, Key)>,
    /// The replicas to which objects of slots belong, with their epochs.
    sets: HashMap<u32, (u32, ReplicaSet)>,
    /// Which objects belong together.
    pub(crate) groups: Groups,
    /// Objects of the device log that the master got by asking, without their key strings: slot ->
    /// epoch.
    pub log_reported: HashMap<u32, u32>,
    /// Keys that producers reported for logged objects and that are not processed yet.
    pub(crate) reported_keys: CountedQueue<KeyReport>,
    /// The latest plan received: plans of one master arrive in order.
    pub last_opened: Option<PlanId>,
    /// Slots freed (slot -> epoch that ended) and not yet acknowledged.
    pub unacked: BTreeMap<u32, u32>,
    /// The highest term obeyed.
    pub term: Term,
    // The first master obeyed, and whether another one was later.
    first_master: Option<u64>,
    obeyed_others: bool,
    /// No writer of a lower term than this is left. While it is below `term`, nothing is reported.
    pub fenced: Term,
    /// The last membership view received, kept for a later master.
    pub seen: SeenView,
}

impl Tables {
    /// Without plans or objects, for slots below `slots`.
    fn new(slots: u32) -> Self {
        Self {
            plans: BTreeMap::new(),
            keys: SlotMap::new(slots),
            sets: HashMap::new(),
            groups: Groups::default(),
            log_reported: HashMap::new(),
            reported_keys: CountedQueue::default(),
            last_opened: None,
            unacked: BTreeMap::new(),
            term: Term::default(),
            first_master: None,
            obeyed_others: false,
            fenced: Term::default(),
            seen: SeenView::default(),
        }
    }

    /// The key string of an object, if it is known.
    pub fn key(&self, slot: u32, epoch: u32) -> Option<&Key> {
        self.keys.get(slot).filter(|(named, _)| *named == epoch).map(|(_, key)| key)
    }

    /// The replicas to which an object belongs.
    pub fn set(&self, slot: u32, epoch: u32) -> ReplicaSet {
        let known = self.sets.get(&slot).filter(|(of, _)| *of == epoch);
        known.map_or(ReplicaSet::NONE, |(_, set)| *set)
    }

    /// An object lies elsewhere now, with its replicas as before.
    pub fn move_set(&mut self, from: (u32, u32), to: (u32, u32)) -> ReplicaSet {
        let set = self.set(from.0, from.1);
        if set != ReplicaSet::NONE {
            self.sets.remove(&from.0);
            self.sets.insert(to.0, (to.1, set));
        }
        set
    }

    /// The master knows these objects as belonging to these sets. Those that have ended are not
    /// noted: nothing would end them again.
    pub fn note_set(&mut self, at: (u32, u32), set: ReplicaSet) {
        if self.is_reported(at.0, at.1) {
            self.sets.insert(at.0, (at.1, set));
        }
    }

    /// The log serves these objects, whose producers put them into several logs. What the master
    /// has said of them since stays.
    pub fn note_marks(&mut self, marked: &[((u32, u32), SetMark)]) {
        for ((slot, epoch), mark) in marked {
            if self.set(*slot, *epoch) == ReplicaSet::NONE {
                self.sets.insert(*slot, (*epoch, ReplicaSet::of_mark(*mark)));
            }
        }
    }

    /// Whether the master may list an object of the log.
    pub fn is_reported(&self, slot: u32, epoch: u32) -> bool {
        self.log_reported.get(&slot) == Some(&epoch) || self.key(slot, epoch).is_some()
    }

    /// An object ended.
    pub fn forget(&mut self, slot: u32, epoch: u32) {
        self.groups.forget((slot, epoch));
        self.keys.remove_if(slot, |(named, _)| *named == epoch);
        if self.sets.get(&slot).is_some_and(|(of, _)| *of == epoch) {
            self.sets.remove(&slot);
        }
        if self.log_reported.get(&slot) == Some(&epoch) {
            self.log_reported.remove(&slot);
        }
    }
}

/// How a term compares with the one obeyed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TermOrder {
    /// Obeyed already.
    Same,
    /// Obeyed from now on; the Owner must fence the plans of lower terms.
    New,
    /// The term of a superseded master; this higher one is obeyed.
    Older(Term),
}

/// Shared by the owner and the thread that polls the log.
#[derive(Debug, Default)]
pub struct LogSignals {
    /// Position in the log from which on the owner has checked nothing.
    pub frontier: AtomicU64,
    /// A `Drain` was sent to the owner, which has not handled it yet.
    pub notified: AtomicBool,
    /// How many of the next polls come soon after each other, since callers wait for an object.
    pub fast_polls: AtomicU64,
}

/// Everything of an owner that outlives its actor.
#[derive(Debug)]
pub struct OwnerTables {
    tables: Mutex<Tables>,
    /// Where the key strings come from: a master of this process has the same ones.
    pub key_pool: Arc<KeyPool>,
    // To read the log's claim word: claims leave no plan in these tables.
    heap: Heap,
    /// tcp tokens, shared with the agent.
    pub grants: Arc<Grants>,
    /// Producers with direct access to the memory.
    pub attachments: Attachments,
    /// The producers of other processes that are asked for key strings.
    pub name_senders: NameSenders,
    /// The processes that may pin objects.
    pub pins: PinTables,
    /// The producers that write to the device log through the agent.
    pub log_producers: LogProducers,
    /// Shared by the owner and the thread that polls its log.
    pub log_signals: LogSignals,
    /// What must not be served, although a producer may still write it.
    pub ended_sets: EndedSets,
    /// Shared by the owner and the thread that copies objects within its log.
    pub moves: Arc<Moves>,
    /// The evictor may have missed an admitted or a retired object: it must read the headers.
    pub evictor_missed: AtomicBool,
    /// Bytes of retired objects of the heap that only views hold; 0 on a rank with a disk.
    pub pinned_bytes: AtomicU64,
    /// Figures.
    pub gauges: Gauges,
    pub(crate) slow_path: OwnerSlowPath,
}

impl OwnerTables {
    /// Empty tables of a segment, over the agent's grants.
    pub fn new(grants: Arc<Grants>, heap: &Heap, key_pool: Arc<KeyPool>) -> Self {
        let gauges = Gauges::default();
        gauges.heap_total.store(heap.layout().arena.len, Ordering::Relaxed);
        Self {
            tables: Mutex::new(Tables::new(heap.layout().slots)),
            key_pool,
            heap: heap.clone(),
            attachments: Attachments::default(),
            name_senders: NameSenders::default(),
            pins: PinTables::of(heap),
            log_producers: LogProducers::of(heap, grants.clone()),
            log_signals: LogSignals::default(),
            ended_sets: EndedSets::default(),
            moves: Arc::default(),
            grants,
            evictor_missed: AtomicBool::new(false),
            pinned_bytes: AtomicU64::new(0),
            gauges,
            slow_path: OwnerSlowPath::default(),
        }
    }

    /// The layout of the segment.
    pub fn layout(&self) -> &SegmentLayout {
        self.heap.layout()
    }

    /// The tables, for the actor.
    pub fn lock(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Obeys a term unless a higher one is obeyed.
    pub fn obey(&self, term: Term) -> TermOrder {
        let mut t = self.lock();
        match term.cmp(&t.term) {
            std::cmp::Ordering::Less => TermOrder::Older(t.term),
            std::cmp::Ordering::Equal => TermOrder::Same,
            std::cmp::Ordering::Greater => {
                t.term = term;
                t.obeyed_others |= *t.first_master.get_or_insert(term.master) != term.master;
                TermOrder::New
            }
        }
    }

    /// Whether it has obeyed no other master than this one.
    pub fn obeyed_only(&self, master: u64) -> bool {
        let t = self.lock();
        !t.obeyed_others && t.first_master.is_none_or(|first| first == master)
    }

    /// The term obeyed.
    pub fn term(&self) -> Term {
        self.lock().term
    }

    /// What a joining rank reports: the term that it obeys, whether anything was ever placed on it
    /// by a plan or by a claim in its log, and the view that it keeps.
    pub fn memory(&self) -> (Term, bool, SeenView) {
        let log = self.heap.layout().device_log();
        // Memory that cannot be read may hold anything.
        let bump = log.map(|log| self.heap.memory().load(log.claim_word()));
        let claimed = bump.is_some_and(|bump| !matches!(bump, Ok(0)));
        let t = self.lock();
        (t.term, t.last_opened.is_some() || claimed, t.seen.clone())
    }

    /// Keeps a view, unless a later one is kept.
    pub fn keep_view(&self, view: SeenView) {
        let mut t = self.lock();
        if view.order() > t.seen.order() {
            t.seen = view;
        }
    }

    /// Records a plan and its tcp token, before the actor gets the message; idempotent. False if a
    /// superseded master granted it.
    pub fn record(&self, p: &PlanOpened, now_ns: u64) -> bool {
        let deadline_ns = now_ns.saturating_add(p.deadline_ms.saturating_mul(1_000_000));
        {
            let mut t = self.lock();
            // Nobody may write for a plan of a lower term [I10].
            if p.plan.term < t.term {
                return false;
            }
            if t.plans.contains_key(&p.plan) {
                return true;
            }
            t.last_opened = t.last_opened.max(Some(p.plan));
            // The length was checked where the message arrived.
            if let Ok(key) = self.key_pool.key(&p.key) {
                t.keys.insert(p.at.slot, (p.at.epoch, key));
            }
            t.groups.plan_recorded((p.at.slot, p.at.epoch), &p.key);
            if p.set != ReplicaSet::NONE {
                t.sets.insert(p.at.slot, (p.at.epoch, p.set));
            }
            t.plans.insert(p.plan, PlanRecord { deadline_ns, ending: None, opened: p.clone() });
        }
        let grant = Grant {
            header_off: self.layout().header_off(p.at.slot),
            epoch: p.at.epoch,
            extent: p.object.extent,
        };
        self.grants.open(p.token, grant);
        true
    }

    /// Whether a plan of this number is recorded with another slot or extent.
    pub fn has_elsewhere(&self, p: &PlanOpened) -> bool {
        let location = |p: &PlanOpened| (p.at, p.object.extent);
        self.lock().plans.get(&p.plan).is_some_and(|known| location(&known.opened) != location(p))
    }

    /// Whether a key string is recorded for a slot at an epoch: then a plan was opened there.
    pub fn has_key(&self, slot: u32, epoch: u32) -> bool {
        self.lock().key(slot, epoch).is_some()
    }

    /// Whether a plan may (still) be written.
    pub fn standing(&self, plan: PlanId) -> PlanStatus {
        let t = self.lock();
        match t.plans.get(&plan) {
            Some(p) if p.ending.is_none() => PlanStatus::Open,
            None if plan.term >= t.term && t.last_opened < Some(plan) => PlanStatus::NotHeardOf,
            _ => PlanStatus::Over,
        }
    }

    /// Whether a plan is open. If it is not received yet, waits at most `PLAN_WAIT_LIMIT_MS`, then
    /// false.
    pub async fn wait_open(&self, plan: PlanId) -> bool {
        for _ in 0..PLAN_WAIT_LIMIT_MS {
            match self.standing(plan) {
                PlanStatus::Open => return true,
                PlanStatus::Over => return false,
                PlanStatus::NotHeardOf => tokio::time::sleep(Duration::from_millis(1)).await,
            }
        }
        false
    }
}

/// The state of a plan, as its owner has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlanStatus {
    /// It may be written.
    Open,
    /// It ended.
    Over,
    /// Its `PlanOpened` has not arrived yet.
    NotHeardOf,
}

impl Gauges {
    /// Adds to a counter, saturating: `n` may come from another process.
    pub fn add(counter: &AtomicU64, n: u64) {
        let sum = |count: u64| Some(count.saturating_add(n));
        // Always Ok: `sum` always has a value.
        let _ = counter.fetch_update(Ordering::Relaxed, Ordering::Relaxed, sum);
    }

    /// Publishes the bytes and counts of the heap.
    pub fn levels(&self, u: &Usage) {
        let set = |g: &AtomicU64, v: u64| g.store(v, Ordering::Relaxed);
        set(&self.live_bytes, u.live_bytes);
        set(&self.hard_pinned_bytes, u.hard_bytes);
        set(&self.open_bytes, u.open_bytes);
        set(&self.held_bytes, u.held_bytes);
        set(&self.heap_used, u.live_bytes + u.open_bytes + u.held_bytes);
        set(&self.objects, u.live_objects);
        set(&self.plans_open, u.open_plans);
        set(&self.fencing, u.fencing);
        set(&self.quarantined, u.quarantined);
        set(&self.index_overflow, u.index_overflow);
    }
}
