//! Owner: the only writer of one segment's owner words. It hears of plans, commits and retirements
//! from the master, ends plans by [I10], runs quarantine [I8] and frees slots. Its state is rebuilt
//! from headers and from the tables outside it; it never touches payload bytes.

pub mod attachments;
mod clearing;
mod ending;
pub mod log;
pub mod log_producers;
pub mod pin_tables;
mod report;
mod retiring;
pub mod tables;
mod terms;

use crate::actor::{ActorAddr, Context, Message, On, Reply, Role};
use crate::evictor::{Admit, EvictTo, Evictor, MakeRoom, Touched};
use crate::membership::Uplink;
use crate::message::{
    MasterToOwner, OwnerGauges, OwnerToMaster, PlanId, PlanOpened, PlanRef, SlotRef, Term,
    TouchBatch,
};
use attachments::AttachId;
use nkv_store::KeyHasher;
use nkv_store::arena::Extent;
use nkv_store::clock::Clock;
use nkv_store::heap::Heap;
use nkv_store::object::{OpenSlot, Slots};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tables::{Gauges, OwnerTables, PlanRecord, PlanStatus};

/// The owner looks at deadlines and unacknowledged frees this often.
const IDLE_TICK_MS: u64 = 100;
/// And this often while a fence is incomplete.
const FENCE_TICK_MS: u64 = 5;
/// A pin that holds a retired object up for so long is counted as suspect; it is honoured all the
/// same.
const SUSPECT_PIN_NS: u64 = 10_000_000_000;
/// `Freed` is repeated after this many idle ticks.
const FREED_REPEAT_TICKS: u64 = 5;

/// What outlives the Owner actor.
#[derive(Clone)]
pub struct OwnerDurable {
    /// The segment.
    pub heap: Heap,
    /// Plans, keys, grants, attachments, gauges.
    pub tables: Arc<OwnerTables>,
    /// What makes the identities of the job's keys [I16].
    pub hasher: KeyHasher,
    /// The way to the master.
    pub uplink: Arc<Uplink>,
    /// Told of what becomes live and what ceases to be.
    pub evictor: Arc<OnceLock<ActorAddr<Evictor>>>,
    /// The time.
    pub clock: Arc<dyn Clock>,
    /// A claim in the device log that is open for so long is asked about.
    pub log_claim_ttl_ms: u64,
}

/// See the file's first paragraph.
pub struct Owner {
    durable: OwnerDurable,
    incarnation: u64,
    slots: Slots,
    ending: Vec<PlanId>,
    next_tick_ns: u64,
    tick_generation: u64,
    idle_ticks: u64,
    // The device log, if the segment has one.
    log: Option<log::Log>,
    // The report that is asked for and waits for the term to be fenced.
    report_wanted: Option<u64>,
}

/// A higher term is obeyed (the tables say which): fence what went before.
#[derive(Debug)]
pub struct NewTerm;
/// A producer writes for no plan of a lower term.
#[derive(Debug)]
pub struct TermObeyed(pub AttachId, pub u64, pub Term);
/// A process has no claim open below this position of the log.
#[derive(Debug)]
pub struct LogClear(pub AttachId, pub u64);
/// A frame from the master.
#[derive(Debug)]
pub struct FromMaster(pub MasterToOwner);
/// A reader's report.
#[derive(Debug)]
pub struct Touches(pub TouchBatch);
/// A producer (all its attachments at once) dropped a plan.
#[derive(Debug)]
pub struct PlanDropped(pub AttachId, pub u64, pub PlanId);
/// The evictor's victims: retire those that are still live.
#[derive(Debug)]
pub struct Evict(pub Vec<(u32, u32)>);
/// Retire the cheapest address-contiguous window of this many bytes.
#[derive(Debug)]
pub struct EvictWindow(pub u64);
/// The segment is being unmounted: every live object goes. Answers how many went.
#[derive(Debug)]
pub struct RetireAll;
/// A timer.
#[derive(Debug)]
pub struct OwnerTick(u64);
/// For embedding programs: figures straight from the owner.
#[derive(Debug)]
pub struct GetGauges;

impl Message for FromMaster {
    type Reply = ();
}
impl Message for NewTerm {
    type Reply = ();
}
impl Message for TermObeyed {
    type Reply = ();
}
impl Message for Touches {
    type Reply = ();
}
impl Message for LogClear {
    type Reply = ();
}
impl Message for PlanDropped {
    type Reply = ();
}
impl Message for Evict {
    type Reply = u64;
}
impl Message for EvictWindow {
    type Reply = u64;
}
impl Message for RetireAll {
    type Reply = u64;
}
impl Message for OwnerTick {
    type Reply = ();
}
impl Message for GetGauges {
    type Reply = OwnerGauges;
}

impl Role for Owner {
    type Durable = OwnerDurable;
    const NAME: &'static str = "owner";

    fn boot(durable: &OwnerDurable, ctx: &mut Context<'_, Self>) -> Self {
        let now = durable.clock.now_ns();
        let (open, ending) = {
            let t = durable.tables.lock();
            let open: Vec<OpenSlot> = t.plans.values().map(open_slot).collect();
            let ending = t.plans.iter().filter(|(_, p)| p.ending.is_some());
            (open, ending.map(|(id, _)| *id).collect())
        };
        let mut slots =
            Slots::scan(durable.heap.clone(), &open, |s, e| durable.tables.has_key(s, e), now);
        // So may the evictor have missed one that a panic swallowed. At the first start there is
        // none.
        if durable.evictor.get().is_some() {
            durable.tables.evictor_missed.store(true, std::sync::atomic::Ordering::Release);
        }
        // A word that a panic swallowed is said again.
        durable.tables.log_signals.notified.store(false, std::sync::atomic::Ordering::Release);
        let log = log::Log::of(durable, &mut slots, now);
        let mut owner = Self {
            incarnation: durable.heap.geometry().incarnation,
            slots,
            log,
            durable: durable.clone(),
            ending,
            next_tick_ns: u64::MAX,
            tick_generation: 0,
            idle_ticks: 0,
            report_wanted: None,
        };
        owner.fence_again();
        owner.begin_term();
        owner.retire_again();
        owner.process_log();
        owner.reschedule(ctx);
        owner
    }
}

fn open_slot(p: &PlanRecord) -> OpenSlot {
    OpenSlot {
        slot: p.opened.at.slot,
        epoch: p.opened.at.epoch,
        extent: Extent { offset: p.opened.extent_offset, len: p.opened.extent_len },
        ending: p.ending.is_some_and(|e| e.retired),
    }
}

impl Owner {
    fn at(&self, slot: u32, epoch: u32) -> SlotRef {
        SlotRef { incarnation: self.incarnation, slot, epoch }
    }

    /// After every message: publish the levels and make sure the next due moment has a timer.
    fn reschedule(&mut self, ctx: &mut Context<'_, Self>) {
        let g = &self.durable.tables.gauges;
        g.levels(&self.slots.usage());
        // A plan that ran out of time is fenced before its slot is: its writer holds it all the
        // same.
        g.fencing.store(self.ending.len() as u64, std::sync::atomic::Ordering::Relaxed);
        let now = self.durable.clock.now_ns();
        let (pinned, suspect) = self.slots.held_by_pins(now, SUSPECT_PIN_NS);
        let pinned = pinned + u64::from(self.log.as_ref().is_some_and(log::Log::waits_for_view));
        g.pinned.store(pinned, std::sync::atomic::Ordering::Relaxed);
        g.pins_suspect.store(suspect, std::sync::atomic::Ordering::Relaxed);
        // Quarantine counts from when the cleared LIVE is visible, which is surely so by now [I8].
        self.slots.restart_quarantines(now);
        if let Some(log) = &mut self.log {
            log.restart_quarantines(now);
            log.publish(&self.durable.tables.gauges);
        }
        let mut due = now + IDLE_TICK_MS * 1_000_000;
        if !self.ending.is_empty() || self.term_pending() || pinned > 0 {
            due = now + FENCE_TICK_MS * 1_000_000;
        }
        if self.log.as_ref().is_some_and(log::Log::has_work)
            || !self.durable.tables.lock().reported_keys.is_empty()
            || self.durable.tables.log_producers.is_settling()
        {
            due = due.min(now + FENCE_TICK_MS * 1_000_000);
        }
        let log_due = self.log.as_ref().and_then(log::Log::next_due_ns);
        for q in self.slots.next_due_ns().into_iter().chain(log_due) {
            due = due.min(q.max(now));
        }
        if due < self.next_tick_ns {
            self.next_tick_ns = due;
            self.tick_generation += 1;
            // Round up: a tick before the due moment would only be repeated.
            let wait = (due - now).div_ceil(1_000_000).max(1);
            ctx.after(Duration::from_millis(wait), OwnerTick(self.tick_generation));
        }
    }

    fn send_to_master(&self, up: OwnerToMaster) {
        self.durable.uplink.send(up);
    }

    fn notify_evictor<M: Message>(&self, message: M)
    where
        Evictor: On<M>,
    {
        if let Some(e) = self.durable.evictor.get()
            && let Err(error) = e.try_send(message)
        {
            // It reads the headers again at its next look, in half a second.
            self.durable.tables.evictor_missed.store(true, std::sync::atomic::Ordering::Release);
            tracing::debug!(%error, "the evictor missed a batch");
        }
    }

    fn plan_opened(&mut self, p: PlanOpened) {
        let extent = Extent { offset: p.extent_offset, len: p.extent_len };
        if p.at.incarnation != self.incarnation {
            return;
        }
        // The link recorded plan and token already; this makes the slot agree.
        let header_base = self.durable.heap.geometry().header_base;
        self.durable.tables.record(&p, header_base, self.durable.clock.now_ns());
        if self.durable.tables.has_elsewhere(&p) {
            // It would take the place of the first, whose slot would be open for ever.
            tracing::warn!(plan = ?p.plan, at = ?p.at, "a plan of the number of another");
            return;
        }
        if self.durable.tables.standing(p.plan) == PlanStatus::Over {
            // Ended before this message of it was handled: its slot has been seen to.
            return;
        }
        if self.slots.is_live(p.at.slot, p.at.epoch) {
            // Told again after a lost link, and committed meanwhile.
            return self.close_plan(p.plan);
        }
        if let Err(error) = self.slots.open(p.at.slot, p.at.epoch, extent) {
            tracing::warn!(%error, plan = ?p.plan, "a plan that this owner cannot open");
            self.close_plan(p.plan);
            self.send_to_master(OwnerToMaster::Retired(vec![p.at]));
        }
    }

    fn committed(&mut self, batch: Vec<PlanRef>) {
        let mut admitted = Vec::with_capacity(batch.len());
        let mut second = Vec::new();
        for c in batch {
            if c.at.incarnation != self.incarnation {
                continue;
            }
            match self.slots.commit(c.at.slot, c.at.epoch) {
                Ok(done) if done.newly => {
                    self.close_plan(c.plan);
                    let g = &self.durable.tables.gauges;
                    Gauges::add(&g.commits, 1);
                    Gauges::add(&g.bytes_written, done.bytes_total);
                    if self.log_serves(done.key) {
                        second.push((c.at.slot, c.at.epoch));
                        continue;
                    }
                    admitted.push((c.at.slot, c.at.epoch, done.extent.len));
                }
                Ok(_) => {}
                Err(error) => {
                    // [I11]: not READY or of another epoch. The master believed a wrong commit.
                    self.durable.tables.slow_path.commits_denied.one();
                    tracing::warn!(%error, plan = ?c.plan, "a commit that the header denies");
                    self.send_to_master(OwnerToMaster::Retired(vec![c.at]));
                }
            }
        }
        // Tail to head, like touches: the head of a prefix stays longest.
        admitted.reverse();
        self.notify_evictor(Admit(admitted));
        // The first one accepted is served [I15].
        if !second.is_empty() {
            self.retire(&second);
        }
    }

    /// A plan that ended well: its token is of no more use.
    fn close_plan(&mut self, plan: PlanId) {
        let record = self.durable.tables.lock().plans.remove(&plan);
        self.ending.retain(|p| *p != plan);
        if let Some(r) = record {
            self.durable.tables.grants.revoke(r.opened.token);
            self.durable.tables.grants.forget(r.opened.token);
        }
    }
}

impl On<FromMaster> for Owner {
    fn on(&mut self, m: FromMaster, reply: Reply<()>, ctx: &mut Context<'_, Self>) {
        match m.0 {
            MasterToOwner::PlanOpened(p) => self.plan_opened(p),
            MasterToOwner::Committed(batch) => self.committed(batch),
            MasterToOwner::EndPlan { plan, at, cause } => self.end_plan(plan, at, cause),
            MasterToOwner::Retire(list) => self.retire_by_master(list),
            MasterToOwner::FreedAck(list) => {
                let mut t = self.durable.tables.lock();
                for r in list {
                    if t.unacked.get(&r.slot) == Some(&r.epoch) {
                        t.unacked.remove(&r.slot);
                    }
                }
            }
            MasterToOwner::MakeRoom { bytes, attempt } => {
                self.notify_evictor(MakeRoom { bytes, attempt })
            }
            MasterToOwner::EvictTo { bytes } => self.notify_evictor(EvictTo(bytes)),
            MasterToOwner::AskLog { number, question } => self.answer_about_log(number, question),
            MasterToOwner::RequestReport { number } => self.report_when_fenced(number),
            // The link's matter.
            MasterToOwner::ReportTaken
            | MasterToOwner::NoMorePlans
            | MasterToOwner::Heartbeat
            | MasterToOwner::View(_)
            | MasterToOwner::Refused(_) => {}
        }
        self.reschedule(ctx);
        reply.send(());
    }
}

impl On<Touches> for Owner {
    fn on(&mut self, m: Touches, reply: Reply<()>, ctx: &mut Context<'_, Self>) {
        let now_ms = self.durable.clock.now_ms();
        let TouchBatch { list, counts: served } = m.0;
        let mut fresh = Vec::with_capacity(list.len());
        let mut bytes = 0u64;
        for t in &list {
            bytes = bytes.saturating_add(t.bytes);
            if self.slots.touch(t.slot, t.epoch, now_ms) {
                fresh.push((t.slot, t.epoch));
            }
        }
        let g = &self.durable.tables.gauges;
        let all = served.by_index.saturating_add(served.by_cache).saturating_add(served.by_master);
        Gauges::add(&g.gets_served, all);
        Gauges::add(&g.gets_by_index, served.by_index);
        Gauges::add(&g.gets_by_cache, served.by_cache);
        Gauges::add(&g.gets_by_master, served.by_master);
        Gauges::add(&g.bytes_read, bytes);
        // A hint: a list that lacks it is as good as one that was late.
        if let Some(evictor) = self.durable.evictor.get() {
            let _ = evictor.try_send(Touched(fresh));
        }
        self.reschedule(ctx);
        reply.send(());
    }
}

impl On<PlanDropped> for Owner {
    fn on(&mut self, m: PlanDropped, reply: Reply<()>, ctx: &mut Context<'_, Self>) {
        self.durable.tables.attachments.dropped(m.0, m.1, m.2);
        self.complete_fences();
        self.reschedule(ctx);
        reply.send(());
    }
}

impl On<NewTerm> for Owner {
    fn on(&mut self, _: NewTerm, reply: Reply<()>, ctx: &mut Context<'_, Self>) {
        self.begin_term();
        self.reschedule(ctx);
        reply.send(());
    }
}

impl On<TermObeyed> for Owner {
    fn on(&mut self, m: TermObeyed, reply: Reply<()>, ctx: &mut Context<'_, Self>) {
        self.durable.tables.attachments.term_obeyed(m.0, m.1, m.2);
        self.complete_term();
        self.reschedule(ctx);
        reply.send(());
    }
}

impl On<Evict> for Owner {
    fn on(&mut self, m: Evict, reply: Reply<u64>, ctx: &mut Context<'_, Self>) {
        let before = self.durable.tables.gauges.retired.load(std::sync::atomic::Ordering::Relaxed);
        let bytes = self.retire(&m.0);
        let after = self.durable.tables.gauges.retired.load(std::sync::atomic::Ordering::Relaxed);
        Gauges::add(&self.durable.tables.gauges.evictions, after - before);
        self.reschedule(ctx);
        reply.send(bytes);
    }
}

impl On<EvictWindow> for Owner {
    fn on(&mut self, m: EvictWindow, reply: Reply<u64>, ctx: &mut Context<'_, Self>) {
        let arena = self.durable.heap.geometry().arena;
        let extents: Vec<_> = self.slots.extents().collect();
        let window = nkv_store::evict::cheapest_window(&extents, arena, m.0, |_| 1);
        let victims = window.unwrap_or_default();
        let bytes = self.retire(&victims);
        Gauges::add(&self.durable.tables.gauges.evictions, victims.len() as u64);
        self.reschedule(ctx);
        reply.send(bytes);
    }
}

impl On<OwnerTick> for Owner {
    fn on(&mut self, m: OwnerTick, reply: Reply<()>, ctx: &mut Context<'_, Self>) {
        if m.0 == self.tick_generation {
            self.next_tick_ns = u64::MAX;
            self.idle_ticks += 1;
            self.expire_plans();
            self.complete_fences();
            self.complete_term();
            let in_log = self.log.as_ref().is_some_and(log::Log::waits_for_view);
            let pinned = &self.durable.tables.gauges.pinned;
            if in_log || pinned.load(std::sync::atomic::Ordering::Relaxed) > 0 {
                // A dead process holds nothing [I9].
                self.durable.tables.pins.remove_dead();
            }
            self.quarantine_over();
            self.process_log();
            if self.idle_ticks.is_multiple_of(FREED_REPEAT_TICKS) {
                self.repeat_unacked();
            }
        }
        self.reschedule(ctx);
        reply.send(());
    }
}

impl On<GetGauges> for Owner {
    fn on(&mut self, _: GetGauges, reply: Reply<OwnerGauges>, _: &mut Context<'_, Self>) {
        reply.send(self.durable.tables.gauges.snapshot());
    }
}

#[cfg(test)]
mod tests;
