//! What an owner must not forget when its actor panics: open and ending plans, key strings, and the
//! `Freed` that the master has not acknowledged. Lies outside the actor; only the actor changes it.

use super::attachments::Attachments;
use super::log::LogSignals;
use super::log_producers::LogProducers;
use super::pin_tables::PinTables;
use crate::message::{
    EndCause, KeyBytes, KeyReport, OwnerGauges, PlanId, PlanOpened, SeenView, Term,
};
use crate::slow_path::OwnerSlowPath;
use hashbrown::HashMap;
use nkv_store::device_log::BUMP_PTR_OFF;
use nkv_store::heap::{Geometry, Heap};
use nkv_store::layout::HEADER_BYTES;
use nkv_store::object::Usage;
use nkv_transport::grants::{Grant, Grants};
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long a question about a plan waits for the master's word of it.
const PLAN_WAIT_LIMIT_MS: u64 = 500;

/// How far an ended plan is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ending {
    /// Why it ends.
    pub cause: EndCause,
    /// LIVE was cleared already (not so while an expired plan is still to be looked at).
    pub retired: bool,
}

/// One plan in this owner's heap.
#[derive(Debug, Clone)]
pub struct PlanRecord {
    /// As the master granted it.
    pub opened: PlanOpened,
    /// When the owner looks, by its own clock.
    pub deadline_ns: u64,
    /// Set once it ends; the record goes when its fence is complete.
    pub ending: Option<Ending>,
}

/// The tables proper.
#[derive(Debug, Default)]
pub struct Tables {
    /// Open and ending plans.
    pub plans: BTreeMap<PlanId, PlanRecord>,
    /// Key string of every open or live slot, with its epoch.
    pub keys: HashMap<u32, (u32, KeyBytes)>,
    /// Objects of the device log that the master was told of without a name of their own: slot,
    /// epoch.
    pub log_reported: HashMap<u32, u32>,
    /// What producers told of objects of the device log, to be taken in.
    pub reported_keys: VecDeque<KeyReport>,
    /// The latest plan heard of: plans of one master arrive in order.
    pub last_opened: Option<PlanId>,
    /// Slots freed (slot -> epoch that ended) and not yet acknowledged.
    pub unacked: BTreeMap<u32, u32>,
    /// The highest term obeyed.
    pub term: Term,
    /// The term up to which no lower one's writer is left: below `term`, nothing is reported.
    pub fenced: Term,
    /// The members as last told, kept for a later master.
    pub seen: SeenView,
}

/// How a term compares with the one obeyed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TermOrder {
    /// Obeyed already.
    Same,
    /// Obeyed from now on; the Owner must fence what went before.
    New,
    /// Of a master that another one superseded.
    Older(Term),
}

/// Everything of an owner that outlives its actor.
#[derive(Debug)]
pub struct OwnerTables {
    tables: Mutex<Tables>,
    // Whose log claims leave no plan behind.
    heap: Heap,
    /// tcp tokens, shared with the agent.
    pub grants: Arc<Grants>,
    /// Local producers.
    pub attachments: Attachments,
    /// Who may pin objects.
    pub pins: PinTables,
    /// Who writes to the device log through the agent.
    pub log_producers: LogProducers,
    /// Between the owner and the thread that polls its log.
    pub log_signals: LogSignals,
    /// The evictor may have missed a word of what became live or ceased to be: it reads the
    /// headers.
    pub evictor_missed: AtomicBool,
    /// Figures.
    pub gauges: Gauges,
    pub(crate) slow_path: OwnerSlowPath,
}

impl OwnerTables {
    /// Empty tables of a segment, over the agent's grants.
    pub fn new(grants: Arc<Grants>, heap: &Heap) -> Self {
        let gauges = Gauges::default();
        gauges.heap_total.store(heap.geometry().arena.len, Ordering::Relaxed);
        Self {
            tables: Mutex::default(),
            heap: heap.clone(),
            attachments: Attachments::default(),
            pins: PinTables::of(heap),
            log_producers: LogProducers::of(heap, grants.clone()),
            log_signals: LogSignals::default(),
            grants,
            evictor_missed: AtomicBool::new(false),
            gauges,
            slow_path: OwnerSlowPath::default(),
        }
    }

    /// Where things lie in the segment.
    pub fn geometry(&self) -> &Geometry {
        self.heap.geometry()
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
                TermOrder::New
            }
        }
    }

    /// The term obeyed.
    pub fn term(&self) -> Term {
        self.lock().term
    }

    /// What a joining rank tells: the term it obeyed, whether anything was ever placed on it, by a
    /// plan or by a claim in its log, and the view it keeps.
    pub fn memory(&self) -> (Term, bool, SeenView) {
        let log = self.heap.geometry().device_log();
        // Memory that cannot be read may hold anything.
        let claimed = log.is_some() && !matches!(self.heap.memory().load(BUMP_PTR_OFF), Ok(0));
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

    /// Takes a plan in, with its tcp token, before the actor hears of it; idempotent. False if it
    /// was granted by a master that is superseded.
    pub fn record(&self, p: &PlanOpened, header_base: u64, now_ns: u64) -> bool {
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
            t.keys.insert(p.at.slot, (p.at.epoch, p.key.clone()));
            t.plans.insert(p.plan, PlanRecord { deadline_ns, ending: None, opened: p.clone() });
        }
        let grant = Grant {
            header_off: header_base + u64::from(p.at.slot) * HEADER_BYTES,
            epoch: p.at.epoch,
            extent_offset: p.extent_offset,
            extent_len: p.extent_len,
        };
        self.grants.open(p.token, grant);
        true
    }

    /// Whether a plan of this number is known that has another place.
    pub fn has_elsewhere(&self, p: &PlanOpened) -> bool {
        let location = |p: &PlanOpened| (p.at, p.extent_offset, p.extent_len);
        self.lock().plans.get(&p.plan).is_some_and(|known| location(&known.opened) != location(p))
    }

    /// Whether the table has a key string for a slot at an epoch: then a plan was opened there.
    pub fn has_key(&self, slot: u32, epoch: u32) -> bool {
        self.lock().keys.get(&slot).is_some_and(|(e, _)| *e == epoch)
    }

    /// Whether a plan may (still) be written.
    pub fn standing(&self, plan: PlanId) -> PlanStatus {
        let t = self.lock();
        match t.plans.get(&plan) {
            Some(p) if p.ending.is_none() => PlanStatus::Open,
            Some(_) => PlanStatus::Over,
            None if plan.term < t.term => PlanStatus::Over,
            None if t.last_opened.is_none_or(|last| last < plan) => PlanStatus::NotHeardOf,
            None => PlanStatus::Over,
        }
    }

    /// Whether a plan is open; waits, bounded, for the master's word of one not heard of yet.
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

/// What an owner knows of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlanStatus {
    /// It may be written.
    Open,
    /// It ended.
    Over,
    /// The master's word of it is still on its way.
    NotHeardOf,
}

macro_rules! gauges {
    ($($name:ident),+ $(,)?) => {
        /// [`OwnerGauges`] as atomics: written by the owner, read by anyone.
        #[derive(Debug, Default)]
        pub struct Gauges { $(#[doc = stringify!($name)] pub $name: AtomicU64),+ }
        impl Gauges {
            /// A copy of all figures.
            pub fn snapshot(&self) -> OwnerGauges {
                OwnerGauges { $($name: self.$name.load(Ordering::Relaxed)),+ }
            }
        }
    };
}

gauges!(
    heap_total,
    heap_used,
    live_bytes,
    open_bytes,
    held_bytes,
    objects,
    plans_open,
    fencing,
    quarantined,
    pinned,
    pins_suspect,
    index_overflow,
    log_total,
    log_live_bytes,
    log_objects,
    log_claimed_bytes,
    log_accepted_bytes,
    log_skipped_bytes,
    log_abandoned_bytes,
    log_voided_bytes,
    log_accepted,
    log_duplicates,
    log_evictions,
    log_hole_checks,
    log_fenced,
    evictions,
    gets_served,
    gets_by_index,
    gets_by_cache,
    gets_by_master,
    bytes_read,
    commits,
    bytes_written,
    plans_expired,
    producers_lost,
    adopted,
    reclaimed,
    retired,
    freed,
);

impl Gauges {
    /// Adds to a counter, which stays at the end of its numbers: what is added may be another's
    /// word.
    pub fn add(counter: &AtomicU64, n: u64) {
        let sum = |count: u64| Some(count.saturating_add(n));
        // Always Ok: `sum` always has a value.
        let _ = counter.fetch_update(Ordering::Relaxed, Ordering::Relaxed, sum);
    }

    /// Publishes the levels.
    pub fn levels(&self, u: &Usage) {
        let set = |g: &AtomicU64, v: u64| g.store(v, Ordering::Relaxed);
        set(&self.live_bytes, u.live_bytes);
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
