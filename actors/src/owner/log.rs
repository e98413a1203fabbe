//! The device log at its owner: accepts settled claims, makes room ahead of demand, reports objects
//! to the master once their key string is known, and asks every producer before a hole becomes void
//! [I13] [I14]. Producers and readers never wait for this work.

use super::attachments::AttachId;
use super::awaited::AwaitedKeys;
use super::log_directory::SegmentDirectory;
use super::log_producers::ProducerState;
use super::moving::UnnamedMoves;
use super::object_life::ObjectEnd;
use super::{Owner, OwnerDurable};
use crate::actor::{Context, Message, On, Reply};
use crate::counted_queue::CountedQueue;
use crate::message::{Gauges, KeyBytes, LogObjectEntry, OwnerToMaster, SlotRef};
use nkv_store::device_log::{DeviceLog, HEAP_LIMIT_OFF, HoleInquiry, LogObject, LogRules, Retire};
use nkv_store::layout::AtomicDomain;
use nkv_store::object::Slots;
use std::sync::atomic::{AtomicU64, Ordering};

/// Interval between two scans of the pin tables while a pinned object keeps the tail in place.
const PIN_CHECK_NS: u64 = 5_000_000;
/// The master has the key string already; with it an answer might exceed the frame limit.
pub(super) fn nameless(o: LogObjectEntry) -> LogObjectEntry {
    LogObjectEntry { key: KeyBytes::default(), ..o }
}

/// See the file's first paragraph.
pub(super) struct Log {
    pub log: DeviceLog,
    asking: Option<HoleInquiry<ClaimHolder>>,
    // When pins were scanned last.
    pins_checked_ns: u64,
    // Objects whose key string is known and that the master has not been sent: slot and epoch.
    pub(super) named: CountedQueue<(u32, u32)>,
    pub(super) unnamed: UnnamedMoves,
    pub(super) awaited: AwaitedKeys,
}

/// A producer that may have an open claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ClaimHolder {
    /// A process that maps the memory.
    Attached(AttachId),
    /// A producer over tcp, by its token.
    Agents(u64),
    /// The thread of this process that copies objects within the log.
    Copier,
}

/// Sent by the poller: claims in the log may be settled.
#[derive(Debug)]
pub struct Drain;

impl Message for Drain {
    type Reply = ();
}

impl Log {
    /// Rebuilds the log from the segment's headers and enters its live objects in the index. None
    /// if the segment has no log, or if the log cannot be rebuilt: then no more claims are
    /// possible.
    pub(super) fn of(durable: &OwnerDurable, slots: &mut Slots, now_ns: u64) -> Option<Log> {
        let layout = durable.heap.layout();
        let claim_ttl_ns = durable.log_claim_ttl_ms.saturating_mul(1_000_000);
        let rules = LogRules {
            quarantine_ns: layout.quarantine_ns(),
            claim_ttl_ns,
            least_room: None,
            on_disk: durable.demotion.is_some(),
            owner_claims: layout.atomic_domain == AtomicDomain::Cpu,
        };
        let (memory, log) = (durable.heap.memory().clone(), layout.device_log()?);
        let rules = (rules, durable.tables.moves.clone());
        let mut segment = SegmentDirectory::new(slots, None, &durable.tables);
        let rebuilt = DeviceLog::rebuild(memory, log, rules, now_ns, &mut segment);
        segment.changes.note_marks(&durable.tables);
        let rebuilt = rebuilt.and_then(|mut log| {
            // A pin outlives the actor, and so does what it holds behind the tail.
            log.find_left_behind(slots.held()?)?;
            Ok(log)
        });
        match rebuilt {
            Ok(log) => {
                // What was reported before an actor restart is sent again.
                let mut named = CountedQueue::default();
                named.extend(log.live().map(|o| (o.slot, o.epoch)));
                let unnamed = UnnamedMoves::default();
                let awaited = AwaitedKeys::default();
                Some(Log { log, asking: None, pins_checked_ns: 0, named, unnamed, awaited })
            }
            Err(error) => {
                tracing::error!(%error, "the device log is lost: puts take plans");
                // No more claims may be made, since no owner would accept them.
                if let Err(error) = durable.heap.memory().store(HEAP_LIMIT_OFF, 0) {
                    tracing::error!(%error, "the limit of the lost log cannot be set to 0");
                }
                // A producer that claims through a device may have cached an older limit.
                durable.tables.attachments.sever_devices();
                None
            }
        }
    }

    /// True while producers are being asked about a hole, objects wait to be reported, or the tail
    /// waits for a pin.
    pub(super) fn has_work(&self) -> bool {
        self.asking.is_some()
            || !self.named.is_empty()
            || self.waits_for_view()
            || self.log.awaits_copy()
    }

    /// True while a pinned object is all that keeps the tail from moving.
    pub(super) fn waits_for_view(&self) -> bool {
        self.log.held_by_pin()
    }

    /// Whether the tail may move, so that the pins must be scanned: after the quarantine of retired
    /// objects [I9], and every `PIN_CHECK_NS` while the tail waits for a pin.
    fn may_advance(&self, now_ns: u64) -> bool {
        self.log.tail_is_free()
            || self.log.next_due_ns().is_some_and(|due| due <= now_ns)
            || self.waits_for_view() && now_ns >= self.pins_checked_ns + PIN_CHECK_NS
    }

    /// Publishes the log's gauges.
    pub(super) fn publish(&self, g: &Gauges) {
        let set = |gauge: &AtomicU64, value| gauge.store(value, Ordering::Relaxed);
        let (counts, usage) = (self.log.counts(), self.log.usage());
        set(&g.log_total, self.log.layout().log_bytes());
        set(&g.log_live_bytes, usage.live.bytes);
        set(&g.log_objects, usage.live.claims);
        set(&g.log_claimed_bytes, self.log.claimed_lately().unwrap_or_default());
        let accepted = counts.accepted.bytes
            + counts.duplicates.bytes
            + counts.found_retired.bytes
            + counts.stale_copies.bytes
            + counts.before_bytes;
        set(&g.log_accepted_bytes, accepted);
        set(&g.log_skipped_bytes, counts.skipped.bytes);
        set(&g.log_abandoned_bytes, counts.abandoned.bytes);
        set(&g.log_voided_bytes, counts.voided.bytes);
        set(&g.log_accepted, counts.accepted.claims);
        set(&g.log_duplicates, counts.duplicates.claims);
        set(&g.log_evictions, counts.evicted.claims);
        set(&g.log_hole_checks, counts.hole_checks);
        set(&g.log_copies, counts.copies.claims);
        set(&g.log_spills, counts.spills.claims);
        set(&g.log_stale_copies, counts.stale_copies.claims);
        set(&g.log_lost_reads, counts.lost_reads.claims);
        set(&g.log_passed_over_bytes, counts.passed_over.bytes);
    }
}

impl Owner {
    /// Reports as retired what the master lists and the log no longer serves: a panic may have lost
    /// that report, and nothing else removes the entry at the master.
    pub(super) fn retire_again(&mut self) {
        let Some(log) = &self.log else { return };
        let ended: Vec<SlotRef> = {
            let t = self.durable.tables.lock();
            let named = t.keys.iter().map(|(slot, (epoch, _))| (slot, *epoch));
            let reported = named.chain(t.log_reported.iter().map(|(slot, epoch)| (*slot, *epoch)));
            let ended = |(slot, epoch): &(u32, u32)| {
                self.is_of_log(*slot) && log.log.object(*slot, *epoch).is_none()
            };
            reported.filter(ended).map(|(slot, epoch)| self.at(slot, epoch)).collect()
        };
        self.ended(&ended, ObjectEnd::InLog);
    }

    /// Does all work that is due in the log now.
    pub(super) fn process_log(&mut self) {
        // Before objects are accepted: a key string that is there before its object is lost.
        self.ask_names_for_disk();
        let Some(mut log) = self.log.take() else { return };
        if let Err(error) = self.process(&mut log) {
            // A device may be lost: the next pass tries again.
            tracing::error!(%error, "the device log cannot be processed");
        }
        self.take_names(&mut log);
        self.report_keys(&mut log);
        self.durable.tables.log_signals.frontier.store(log.log.frontier(), Ordering::Release);
        self.log = Some(log);
    }

    fn process(&mut self, log: &mut Log) -> Result<(), nkv_store::StoreError> {
        let (now, clock) = (self.durable.clock.now_ns(), self.durable.clock.clone());
        for left in self.durable.tables.log_producers.finish_ended() {
            log.log.abandon(left)?;
        }
        // Advance first: it is cheap and producers wait for it. Under a flood of puts the rest
        // takes long.
        self.advance(log, now)?;
        log.awaited.expire(now);
        let awaited = (!log.awaited.is_empty()).then_some(&log.awaited);
        let mut segment = SegmentDirectory::new(&mut self.slots, awaited, &self.durable.tables);
        let accepted = log.log.accept(now, &mut segment);
        let count = accepted.as_ref().map_or(0, |n| *n);
        let done = accepted.and_then(|_| log.log.retire_ahead(now, &mut segment));
        log.log.restart_quarantines(clock.now_ns());
        // Also for objects that changed before an error.
        let changes = segment.changes;
        changes.note_marks(&self.durable.tables);
        self.objects_moved(&log.log, &mut log.unnamed, &changes.moved);
        self.forget_evicted(&mut log.log, &changes.ended);
        self.accepted_for_disk(count);
        self.report_awaited(log, &changes.awaited);
        done?;
        self.copy_survivors(&mut log.log)?;
        self.advance(log, now)?;
        self.check_holes(log, now)
    }

    /// Moves tail and limit on, as far as quarantine and views allow.
    fn advance(&self, log: &mut Log, now: u64) -> Result<(), nkv_store::StoreError> {
        if log.may_advance(now) {
            log.pins_checked_ns = now;
            let held = self.slots.held()?;
            log.log.advance(now, |slot, epoch| !held.contains(&(slot, epoch)))?;
        }
        Ok(())
    }

    /// Forgets objects that were retired to make room, and reports those that the master lists.
    fn forget_evicted(&self, log: &mut DeviceLog, evicted: &[(u32, u32)]) {
        self.demote(evicted);
        let left = self.lose_groups_of(evicted);
        left.into_iter().for_each(|(slot, epoch)| log.forget_reads(slot, epoch));
        let reported: Vec<SlotRef> = {
            let mut t = self.durable.tables.lock();
            let (reported, unreported): (Vec<_>, Vec<_>) =
                evicted.iter().partition(|(slot, epoch)| t.is_reported(*slot, *epoch));
            unreported.into_iter().for_each(|(slot, epoch)| t.forget(slot, epoch));
            reported.into_iter().map(|(slot, epoch)| self.at(slot, epoch)).collect()
        };
        self.ended(&reported, ObjectEnd::InLog);
    }

    /// The owner asks every producer with rights to the log about a hole that is old
    /// enough. The hole becomes void only once each of them has nothing open below, or can write no
    /// more.
    fn check_holes(&mut self, log: &mut Log, now: u64) -> Result<(), nkv_store::StoreError> {
        if let Some(check) = log.log.hole(now)? {
            let below = check.below();
            // Producers are listed after the check was made: one that attaches later claims above
            // it.
            let attached = self.durable.tables.attachments.ask_clear(below, now);
            let by_tcp = self.durable.tables.log_producers.tokens();
            let asked: Vec<_> = attached
                .into_iter()
                .map(ClaimHolder::Attached)
                .chain(by_tcp.into_iter().map(ClaimHolder::Agents))
                .chain([ClaimHolder::Copier])
                .collect();
            tracing::info!(below, producers = asked.len(), "asking about a hole in the log");
            log.asking = Some(check.ask(asked));
        }
        let Some(mut asking) = log.asking.take() else { return Ok(()) };
        for party in asking.outstanding().to_vec() {
            match self.stands(party, asking.below(), now) {
                ProducerState::Clear => asking.clear(&party),
                ProducerState::Fenced => asking.fenced(&party),
                ProducerState::Open => {}
            }
        }
        match asking.all_clear() {
            Ok(report) => {
                let fenced = report.fenced;
                Gauges::add(&self.durable.tables.gauges.log_fenced, fenced);
                let awaited = Some(&log.awaited);
                let mut segment =
                    SegmentDirectory::new(&mut self.slots, awaited, &self.durable.tables);
                let closed = log.log.close_holes(report, now, &mut segment);
                let changes = segment.changes;
                changes.note_marks(&self.durable.tables);
                self.objects_moved(&log.log, &mut log.unnamed, &changes.moved);
                self.report_awaited(log, &changes.awaited);
                closed?;
            }
            Err(asking) => log.asking = Some(asking),
        }
        Ok(())
    }

    fn stands(&self, party: ClaimHolder, below: u64, now: u64) -> ProducerState {
        let t = &self.durable.tables;
        match party {
            ClaimHolder::Copier if t.moves.is_clear_below(below) => ProducerState::Clear,
            ClaimHolder::Copier => ProducerState::Open,
            ClaimHolder::Agents(token) => t.log_producers.stands(token, below, now),
            ClaimHolder::Attached(id) if t.attachments.cannot_write(id) => ProducerState::Fenced,
            ClaimHolder::Attached(id) if t.attachments.is_clear_below(id, below, now) => {
                ProducerState::Clear
            }
            ClaimHolder::Attached(_) => ProducerState::Open,
        }
    }

    /// Sends the master what callers wait for. It has the key strings.
    fn report_awaited(&mut self, log: &mut Log, accepted: &[LogObject]) {
        // The same pass may have retired or moved it: the master must not list what is over.
        let live = |o: &&LogObject| log.log.object(o.slot, o.epoch).is_some();
        let live: Vec<_> = accepted.iter().filter(live).copied().collect();
        let awaited = log.awaited.take(&live);
        if !awaited.is_empty() {
            let entries: Vec<_> = awaited.iter().map(|o| nameless(self.entry_of(o))).collect();
            self.report_nameless(&entries);
            self.send_to_master(OwnerToMaster::Accepted(entries));
        }
        if log.awaited.is_empty() {
            self.durable.tables.log_signals.fast_polls.store(0, Ordering::Relaxed);
        }
    }

    /// The master lists these objects without their key strings: it must learn of their end.
    pub(super) fn report_nameless(&self, entries: &[LogObjectEntry]) {
        let mut t = self.durable.tables.lock();
        t.log_reported.extend(entries.iter().map(|o| (o.slot, o.epoch)));
    }

    pub(super) fn entry_of(&self, o: &LogObject) -> LogObjectEntry {
        let t = self.durable.tables.lock();
        LogObjectEntry {
            key: t.key(o.slot, o.epoch).cloned().map_or_else(KeyBytes::default, KeyBytes::shared),
            id: o.key,
            slot: o.slot,
            epoch: o.epoch,
            object: o.object,
            set: t.set(o.slot, o.epoch),
        }
    }

    /// Every live object of the log, as (slot, epoch), after processing the log.
    pub(super) fn live_in_log(&mut self) -> Vec<(u32, u32)> {
        self.process_log();
        self.log.iter().flat_map(|log| log.log.live()).map(|o| (o.slot, o.epoch)).collect()
    }

    /// Every live object whose key string is known, for a report.
    pub(super) fn named_in_log(&self) -> Vec<LogObjectEntry> {
        let Some(log) = &self.log else { return Vec::new() };
        let entries = log.log.live().map(|o| self.entry_of(&o));
        entries.filter(|e| !e.key.is_empty()).collect()
    }

    /// Retires objects of the log; returns those that are certainly not served any more.
    pub(super) fn retire_in_log(&mut self, list: &[(u32, u32)]) -> Vec<(u32, u32)> {
        let (now, clock) = (self.durable.clock.now_ns(), self.durable.clock.clone());
        let Some(log) = &mut self.log else { return Vec::new() };
        let mut segment = SegmentDirectory::new(&mut self.slots, None, &self.durable.tables);
        let mut gone = Vec::new();
        for &(slot, epoch) in list {
            match log.log.retire(slot, epoch, now, &mut segment) {
                Ok(Retire::Done | Retire::Already) => gone.push((slot, epoch)),
                // The log does not know this object, so its end is not reported either.
                Ok(Retire::Unknown) => {}
                Err(error) => tracing::error!(%error, slot, "an object of the log stays"),
            }
        }
        log.log.restart_quarantines(clock.now_ns());
        gone
    }

    /// True for a slot of the log.
    pub(super) fn is_of_log(&self, slot: u32) -> bool {
        slot < self.durable.heap.layout().log_slots
    }
}

impl On<Drain> for Owner {
    fn on(&mut self, _: Drain, reply: Reply<()>, ctx: &mut Context<'_, Self>) {
        // Reset before the pass: the poller sends another `Drain` for what is settled later.
        self.durable.tables.log_signals.notified.store(false, Ordering::Release);
        self.process_log();
        self.answer_names(ctx);
        self.reschedule(ctx);
        reply.send(());
    }
}
