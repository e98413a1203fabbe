//! Owner: the only writer of one segment's owner words. It carries out the plans, commits and
//! retirements that the master sends, ends plans by [I10], runs quarantine [I8] and frees slots.
//! After a panic its state is rebuilt from the headers and from the tables outside the actor. It
//! never touches payload bytes.

pub mod attachments;
mod awaited;
mod clearing;
mod disk;
pub mod ended_sets;
mod ending;
pub mod groups;
mod heap_observer;
mod hot;
pub mod log;
mod log_directory;
pub mod log_producers;
mod log_questions;
mod moving;
pub mod names;
mod object_life;
pub mod pin_tables;
mod report;
mod retiring;
pub mod tables;
mod terms;

use crate::actor::{Context, Message, On, Reply, Role};
use crate::message::{
    ClientToOwner, Gauges, LogQuestion, MasterToOwner, OwnerGauges, OwnerToMaster, PlanId,
    PlanOpened, PlanRef, SlotRef, TouchBatch,
};
use crate::replication::Replication;
use crate::tier::Demotion;
use crate::uplink::Uplink;
use attachments::AttachId;
pub use heap_observer::{HeapEvent, HeapObserver};
use nkv_store::clock::Clock;
use nkv_store::evict::cheapest_window;
use nkv_store::heap::Heap;
use nkv_store::object::{Holders, LiveSlot, OpenSlot, Slots, live_slot};
use nkv_store::{KeyHasher, Retention, StoreError};
use object_life::{Became, ObjectEnd};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tables::{OwnerTables, PlanRecord, PlanStatus};

/// Interval at which the owner checks deadlines and unacknowledged frees.
const IDLE_TICK_MS: u64 = 100;
/// The same interval while a fence is incomplete.
const FENCE_TICK_MS: u64 = 5;
/// The same while the master waits for key strings.
const NAMES_TICK_MS: u64 = 1;
/// A pin that delays the reuse of a retired object for longer than this is counted as suspect. The
/// pin still counts.
const SUSPECT_PIN_NS: u64 = 10_000_000_000;
/// An unacknowledged `Freed` is sent again after this many ticks.
const FREED_REPEAT_TICKS: u64 = 5;

/// State that outlives the Owner actor.
#[derive(Clone)]
pub struct OwnerDurable {
    /// The segment.
    pub heap: Heap,
    /// Plans, keys, grants, attachments, gauges.
    pub tables: Arc<OwnerTables>,
    /// Computes the key identities of the job [I16].
    pub hasher: KeyHasher,
    /// The queue to the master.
    pub uplink: Arc<Uplink>,
    /// The evictor, which is notified when an object becomes live and when it is retired.
    pub evictor: Arc<OnceLock<Arc<dyn HeapObserver>>>,
    /// The time.
    pub clock: Arc<dyn Clock>,
    /// After this time, in milliseconds, the owner asks the producers about a claim in the device
    /// log that is still open.
    pub log_claim_ttl_ms: u64,
    /// The master hears of objects that are read so often a second; 0: of none.
    pub hot_reads: u64,
    /// Who is asked, besides the pins, before the extent of a retired object is used again [I9].
    pub holders: Vec<Arc<dyn Holders>>,
    /// The thread that makes replicas of what this node has.
    pub(crate) replication: Arc<Replication>,
    /// The SSD tier, where what leaves memory goes.
    pub(crate) demotion: Option<Arc<Demotion>>,
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
    spilling: moving::Spilling,
    // Number of a requested report that waits until the term is fenced.
    report_wanted: Option<u64>,
    name_questions: names::NameQuestions,
    read_counts: hot::ReadCounts,
}

/// The owner obeys a higher term (`OwnerTables::term`): fence the plans of lower terms.
#[derive(Debug)]
pub struct NewTerm;
/// A frame from the master.
#[derive(Debug)]
pub struct FromMaster(pub MasterToOwner);
/// A frame from an attached process.
#[derive(Debug)]
pub struct FromClient {
    /// The attachment and its producer. None for a handle of this process, whose gates the owner
    /// reads itself, and for one that writes through the agent alone.
    pub from: Option<(AttachId, u64)>,
    /// The frame.
    pub frame: ClientToOwner,
}
/// Retire those victims that are still live. Replies with the bytes that quarantine will free
/// because of those retired at once.
#[derive(Debug)]
pub struct Evict {
    /// Slots and epochs.
    pub victims: Vec<(u32, u32)>,
    /// Whether they are copied to the log first, where there is one.
    pub spill: bool,
}
/// Objects whose time after their first read is over: slots and epochs.
#[derive(Debug)]
pub struct ReadAndExpired(pub Vec<(u32, u32)>);
/// Retire the cheapest address-contiguous window of this many bytes. Replies with the bytes that
/// quarantine will free.
#[derive(Debug)]
pub struct EvictWindow(pub u64);
/// The segment is being unmounted: retire every live object. Replies with their number.
#[derive(Debug)]
pub struct RetireAll;
/// A timer.
#[derive(Debug)]
pub struct OwnerTick(u64);
/// For embedding programs: a snapshot of the owner's gauges.
#[derive(Debug)]
pub struct GetGauges;

impl Message for FromMaster {
    type Reply = ();
}
impl Message for NewTerm {
    type Reply = ();
}
impl Message for FromClient {
    type Reply = ();
}
impl Message for Evict {
    type Reply = u64;
}
impl Message for ReadAndExpired {
    type Reply = ();
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
            let open: Vec<_> = t.plans.values().map(open_slot).collect();
            let ending = t.plans.iter().filter(|(_, p)| p.ending.is_some());
            (open, ending.map(|(id, _)| *id).collect())
        };
        let mut slots =
            Slots::scan(durable.heap.clone(), &open, |s, e| durable.tables.has_key(s, e), now);
        durable.holders.iter().for_each(|holders| slots.ask_as_well(holders.clone()));
        if let Some(demotion) = &durable.demotion {
            slots.ask_as_well(demotion.clone());
        }
        // The panic may have lost a message to the evictor, so the evictor compares its list with
        // the headers. At the first start there is no evictor yet.
        if durable.evictor.get().is_some() {
            durable.tables.evictor_missed.store(true, std::sync::atomic::Ordering::Release);
        }
        // A panic may have lost the `Drain` message: let the poller send it again.
        durable.tables.log_signals.notified.store(false, std::sync::atomic::Ordering::Release);
        let log = log::Log::of(durable, &mut slots, now);
        let mut owner = Self {
            incarnation: durable.heap.identity().incarnation,
            slots,
            log,
            spilling: Default::default(),
            durable: durable.clone(),
            ending,
            next_tick_ns: u64::MAX,
            tick_generation: 0,
            idle_ticks: 0,
            report_wanted: None,
            name_questions: Default::default(),
            read_counts: Default::default(),
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
        extent: p.opened.object.extent,
        ending: p.ending.is_some_and(|e| e.retired),
    }
}

impl Owner {
    fn at(&self, slot: u32, epoch: u32) -> SlotRef {
        SlotRef { incarnation: self.incarnation, slot, epoch }
    }

    /// After every message: publish the gauges and set a timer for the next due time.
    fn reschedule(&mut self, ctx: &mut Context<'_, Self>) {
        let g = &self.durable.tables.gauges;
        g.levels(&self.slots.usage());
        // Counts ending plans, not slots: an expired plan is fenced while its slot is not retired
        // yet.
        g.fencing.store(self.ending.len() as u64, std::sync::atomic::Ordering::Relaxed);
        let now = self.durable.clock.now_ns();
        let (pinned, suspect) = self.slots.held_longer(now, SUSPECT_PIN_NS);
        // A disk also holds what it is to save, and that becomes free by itself.
        let views_alone = self.durable.demotion.is_none();
        let bytes = if views_alone { self.slots.bytes_held_longer() } else { 0 };
        self.durable.tables.pinned_bytes.store(bytes, std::sync::atomic::Ordering::Relaxed);
        let pinned = pinned + u64::from(self.log.as_ref().is_some_and(log::Log::waits_for_view));
        g.pinned.store(pinned, std::sync::atomic::Ordering::Relaxed);
        g.pins_suspect.store(suspect, std::sync::atomic::Ordering::Relaxed);
        // Quarantine counts from the time when every reader sees LIVE cleared. That is certain here
        // [I8].
        self.slots.restart_quarantines(now);
        if let Some(log) = &mut self.log {
            log.log.restart_quarantines(now);
            log.publish(&self.durable.tables.gauges);
        }
        let mut due = now + IDLE_TICK_MS * 1_000_000;
        if !self.ending.is_empty() || self.term_pending() || pinned > 0 {
            due = now + FENCE_TICK_MS * 1_000_000;
        }
        if self.log.as_ref().is_some_and(log::Log::has_work)
            || !self.spilling.is_empty()
            || !self.durable.tables.lock().reported_keys.is_empty()
            || self.durable.tables.log_producers.is_settling()
        {
            due = due.min(now + FENCE_TICK_MS * 1_000_000);
        }
        let demotion = self.durable.demotion.as_ref();
        if demotion.is_some_and(|demotion| demotion.awaits_any()) {
            due = due.min(now + FENCE_TICK_MS * 1_000_000);
        }
        let names = demotion.is_some_and(|demotion| demotion.wants_names());
        if !self.name_questions.is_empty() || names {
            due = due.min(now + NAMES_TICK_MS * 1_000_000);
        }
        let log_due = self.log.as_ref().and_then(|log| log.log.next_due_ns());
        for q in self.slots.next_due_ns().into_iter().chain(log_due) {
            due = due.min(q.max(now));
        }
        if due < self.next_tick_ns {
            self.next_tick_ns = due;
            self.tick_generation += 1;
            // Round up: a tick before the due time would do nothing and be set again.
            let wait = (due - now).div_ceil(1_000_000).max(1);
            ctx.after(Duration::from_millis(wait), OwnerTick(self.tick_generation));
        }
    }

    fn send_to_master(&self, up: OwnerToMaster) {
        self.durable.uplink.send(up);
    }

    fn notify_evictor(&self, event: HeapEvent) {
        if let Some(evictor) = self.durable.evictor.get()
            && let Err(error) = evictor.notify(event)
        {
            // The evictor reads the headers again at its next check, within half a second.
            self.durable.tables.evictor_missed.store(true, std::sync::atomic::Ordering::Release);
            tracing::debug!(%error, "the evictor's mailbox did not take a message");
        }
    }

    fn open_slot(&mut self, p: &PlanOpened) -> std::result::Result<(), StoreError> {
        self.slots.open(p.at.slot, p.at.epoch, p.object.extent)?;
        match p.retention {
            Retention::Usual => Ok(()),
            other => self.slots.retain(p.at.slot, p.at.epoch, other),
        }
    }

    fn plan_opened(&mut self, p: PlanOpened) {
        if p.at.incarnation != self.incarnation {
            return;
        }
        if let Some(log) = &mut self.log {
            log.log.put_elsewhere(p.object.bytes_total);
        }
        // The link recorded plan and token already; here the slot is opened to match.
        self.durable.tables.record(&p, self.durable.clock.now_ns());
        if self.durable.tables.has_elsewhere(&p) {
            // It would replace the first plan's record, and that plan's slot would stay open
            // forever.
            tracing::warn!(plan = ?p.plan, at = ?p.at, "ignored: a plan with a number in use");
            return;
        }
        if self.durable.tables.standing(p.plan) == PlanStatus::Over {
            // The plan ended before this message was handled: its slot is already released.
            return;
        }
        if self.slots.is_live(p.at.slot, p.at.epoch) {
            // The master sent it again after a lost link, and it was committed meanwhile.
            return self.close_plan(p.plan);
        }
        if let Err(error) = self.open_slot(&p) {
            tracing::warn!(%error, plan = ?p.plan, "this owner cannot open the slot of a plan");
            self.close_plan(p.plan);
            self.ended(&[p.at], ObjectEnd::Absent);
        }
    }

    fn committed(&mut self, batch: Vec<PlanRef>) {
        let mut live = Vec::with_capacity(batch.len());
        for c in batch {
            if c.at.incarnation != self.incarnation {
                continue;
            }
            match self.slots.commit(c.at.slot, c.at.epoch) {
                Ok(done) if done.newly => live.push((c, done)),
                Ok(_) => {}
                Err(error) => {
                    // [I11]: the slot is not READY or has another epoch. The master accepted a
                    // wrong commit.
                    self.durable.tables.slow_path.commits_denied.one();
                    tracing::warn!(%error, plan = ?c.plan, "commit refused: header does not match");
                    self.ended(&[c.at], ObjectEnd::Absent);
                }
            }
        }
        self.became_live(live, Became::Committed);
    }

    /// Removes a plan that is over, revokes its token and forgets the grant.
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
            MasterToOwner::MakeRoom { bytes, all, attempt } => {
                self.notify_evictor(HeapEvent::RoomWanted { bytes, all, attempt });
            }
            MasterToOwner::EvictTo { bytes } => self.notify_evictor(HeapEvent::Shrink(bytes)),
            MasterToOwner::AskLog { number, question: LogQuestion::AnnounceAll } => {
                self.asked_for_names(number, ctx);
            }
            MasterToOwner::AskLog { number, question } => self.answer_about_log(number, question),
            MasterToOwner::AskDisk { number, question } => self.asked_about_disk(number, question),
            MasterToOwner::RemovalOver { removal, again } => self.removal_over(removal, again),
            MasterToOwner::InSet(list) => {
                let mut t = self.durable.tables.lock();
                let mine = list.iter().filter(|(at, _)| at.incarnation == self.incarnation);
                mine.for_each(|(at, set)| t.note_set((at.slot, at.epoch), *set));
            }
            MasterToOwner::Groups(news) => self.groups_elsewhere(&news),
            MasterToOwner::MakeReplicas(list) => self.durable.replication.add(list),
            MasterToOwner::RequestReport { number } => self.report_when_fenced(number),
            // Handled by the link.
            MasterToOwner::ReportTaken
            | MasterToOwner::NoMorePlans
            | MasterToOwner::Heartbeat { .. }
            | MasterToOwner::View(_)
            | MasterToOwner::Refused(_) => {}
        }
        self.reschedule(ctx);
        reply.send(());
    }
}

impl On<FromClient> for Owner {
    fn on(&mut self, m: FromClient, reply: Reply<()>, ctx: &mut Context<'_, Self>) {
        let attachments = &self.durable.tables.attachments;
        match (m.frame, m.from) {
            (ClientToOwner::Touched(batch), _) => self.touched(batch),
            (ClientToOwner::KeysReported(list), _) => self.keys_reported(list),
            (ClientToOwner::Abandoned(claim), _) => self.abandoned(claim),
            (ClientToOwner::Dropped(plan), Some((id, producer))) => {
                attachments.dropped(id, producer, plan);
                self.complete_fences();
            }
            (ClientToOwner::TermObeyed { term, held }, Some(from)) => {
                self.term_obeyed(from, term, held);
            }
            (ClientToOwner::ClearBelow(below), Some((id, _))) => {
                attachments.clear_below(id, below);
                self.process_log();
            }
            // Handled by the connection, or about an attachment by one that has none.
            _ => {}
        }
        self.reschedule(ctx);
        reply.send(());
    }
}

impl Owner {
    fn touched(&mut self, TouchBatch { list, counts: served }: TouchBatch) {
        let now_ms = self.durable.clock.now_ms();
        let mut fresh = Vec::with_capacity(list.len());
        let mut bytes = 0u64;
        for t in &list {
            bytes = bytes.saturating_add(t.bytes);
            if self.is_of_log(t.slot) {
                self.touch_in_log(t.slot, t.epoch);
            } else if !t.read && self.is_until_read(t.slot) {
            } else if self.slots.touch(t.slot, t.epoch, now_ms) {
                fresh.push((t.slot, t.epoch));
            } else {
                self.slots.touch_open(t.slot, t.epoch, now_ms);
            }
        }
        self.count_reads(&list, now_ms);
        self.use_groups_of(&list, now_ms);
        let g = &self.durable.tables.gauges;
        let all = served.by_index.saturating_add(served.by_cache).saturating_add(served.by_master);
        Gauges::add(&g.gets_served, all);
        Gauges::add(&g.gets_by_index, served.by_index);
        Gauges::add(&g.gets_by_cache, served.by_cache);
        Gauges::add(&g.gets_by_master, served.by_master);
        Gauges::add(&g.bytes_read, bytes);
        if !fresh.is_empty() {
            self.notify_evictor(HeapEvent::WereRead(fresh));
        }
    }

    /// Whether the object in a slot goes some time after its first read.
    fn is_until_read(&self, slot: u32) -> bool {
        let live = live_slot(&self.durable.heap, slot);
        live.is_some_and(|o| matches!(o.retention, Retention::UntilRead(_)))
    }
}

impl On<NewTerm> for Owner {
    fn on(&mut self, _: NewTerm, reply: Reply<()>, ctx: &mut Context<'_, Self>) {
        self.begin_term();
        self.reschedule(ctx);
        reply.send(());
    }
}

impl On<Evict> for Owner {
    fn on(&mut self, m: Evict, reply: Reply<u64>, ctx: &mut Context<'_, Self>) {
        let evicted = if m.spill { self.spill(m.victims) } else { m.victims };
        let (_, bytes) = self.retire(&evicted, ObjectEnd::Evicted);
        self.reschedule(ctx);
        reply.send(bytes);
    }
}

impl On<ReadAndExpired> for Owner {
    fn on(&mut self, m: ReadAndExpired, reply: Reply<()>, _: &mut Context<'_, Self>) {
        let is_live = |(slot, epoch): &(u32, u32)| self.slots.is_live(*slot, *epoch);
        let (live, gone): (Vec<_>, Vec<_>) = m.0.into_iter().partition(is_live);
        if !gone.is_empty() {
            self.notify_evictor(HeapEvent::Ended(gone));
        }
        if !live.is_empty() {
            let refs = live.into_iter().map(|(slot, epoch)| self.at(slot, epoch)).collect();
            self.send_to_master(OwnerToMaster::Expired(refs));
        }
        reply.send(());
    }
}

impl On<EvictWindow> for Owner {
    fn on(&mut self, m: EvictWindow, reply: Reply<u64>, ctx: &mut Context<'_, Self>) {
        let arena = self.durable.heap.layout().arena;
        let now_ms = self.durable.clock.now_ms();
        let window = |and_pinned| {
            let may = |o: &LiveSlot| match o.retention {
                Retention::Usual
                | Retention::LastOfBatch
                | Retention::EvictFirst
                | Retention::Extra
                | Retention::UntilRead(_) => true,
                Retention::SoftPin(ttl) => {
                    and_pinned || o.last_access_ms.saturating_add(ttl.as_millis() as u64) <= now_ms
                }
                Retention::HardPin => false,
            };
            let extents: Vec<_> = self.slots.extents(may).collect();
            cheapest_window(&extents, arena, m.0)
        };
        // A soft pin holds as long as there is another window.
        let victims = window(false).or_else(|| window(true)).unwrap_or_default();
        let (_, bytes) = self.retire(&victims, ObjectEnd::Evicted);
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
                // Pins of dead processes do not count [I9].
                self.durable.tables.pins.remove_dead();
            }
            self.quarantine_over();
            self.process_log();
            self.answer_names(ctx);
            self.report_often_read(self.durable.clock.now_ms());
            self.report_groups();
            let late = self.late_spills();
            if !late.is_empty() {
                ctx.after(Duration::ZERO, Evict { victims: late, spill: false });
            }
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
