//! Rebuilds the master's state from the owners' reports: for a segment after it joins, and for all
//! of them after a panic of the Master actor. Requests that arrive meanwhile are parked and
//! answered from the rebuilt state.

use super::Master;
use super::allocator::{SegmentAllocator, Taken, arena_of};
use super::entry::{Entry, Replica, State};
use super::objects::PlanInfo;
use crate::error::Error;
use crate::message::{
    EndCause, LogObjectEntry, MAX_REPLICAS, MasterToOwner, PlanOpened, PlanRef, RankInfo,
    ReplicaSet, SLOTS_PER_FRAME, SegmentId, SlotContent, SlotEntry, SlotRef,
};
use hashbrown::{HashMap, HashSet};
use nkv_store::arena::Extent;
use nkv_store::heap::FIRST_EPOCH;
use nkv_store::{Key, KeyId, Retention, StoreError};
use std::sync::atomic::Ordering;

/// A report that takes longer is requested again.
const REPORT_LIMIT_MS: u64 = 2_000;

/// A plan that its owner has not received, and what must be sent after the plan itself.
type UnopenedPlan = (PlanOpened, Option<MasterToOwner>);

/// The contents of a report of one segment.
#[derive(Default)]
struct Reported {
    taken: HashMap<u32, Taken>,
    free: HashMap<u32, u32>,
    // Slots, epochs and bytes of hard pins.
    hard: Vec<(u32, u32, u64)>,
    // Listed after the segment's allocator is rebuilt: the keys of taken slots, as (slot, epoch,
    // key), and the objects of the log.
    keys: Vec<(u32, u32, KeyId)>,
    logged: Vec<(SlotRef, LogObjectEntry)>,
    // Objects to retire, since another object of their key is served.
    duplicates: Vec<SlotRef>,
}

/// How long a rebuilt master waits for reports before it serves requests. Segments without a report
/// by then stay in `blind` until they report.
const RECOVER_LIMIT_MS: u64 = 1_000;

impl Master {
    /// At boot: asks every member for a report.
    pub(super) fn recover(&mut self) {
        self.recover_until_ms = self.now_ms() + RECOVER_LIMIT_MS;
        for info in self.durable.members.infos() {
            let segment_id = info.id();
            // This term may have granted plans there.
            if self.durable.members.lock().reported_once.contains(&info.incarnation) {
                self.forgotten.insert(info.incarnation);
            }
            self.allocators.insert(segment_id, SegmentAllocator::new(info));
            self.recovering.insert(segment_id);
            self.ask_for_report(segment_id);
        }
    }

    /// Asks for a report under a new number; parts of older reports are ignored from now on.
    pub(super) fn ask_for_report(&mut self, segment_id: SegmentId) {
        let (now, number) = (self.now_ms(), self.durable.next_plan.fetch_add(1, Ordering::Relaxed));
        let Some(allocator) = self.allocators.get_mut(&segment_id) else { return };
        allocator.reported = false;
        allocator.report.clear();
        allocator.report_number = number;
        allocator.report_asked_ms = now;
        self.durable.members.send(segment_id, MasterToOwner::RequestReport { number });
    }

    /// Asks again for reports that are overdue: the owner may have panicked meanwhile.
    pub(super) fn ask_again_for_reports(&mut self) {
        let now = self.now_ms();
        let unreported: Vec<_> = self
            .allocators
            .iter()
            .filter(|(_, b)| !b.reported && now >= b.report_asked_ms + REPORT_LIMIT_MS)
            .map(|(segment_id, _)| *segment_id)
            .collect();
        self.durable.members.slow_path.reports_repeated.add(unreported.len());
        for segment_id in unreported {
            self.ask_for_report(segment_id);
        }
    }

    /// `NotReady` while ranks with objects have not reported: a key that is not in the index may
    /// exist there.
    pub(super) fn check_all_reported(&self) -> crate::error::Result<()> {
        self.check_settled()?;
        let unreported = self.durable.members.unreported();
        if unreported.is_empty() {
            return Ok(());
        }
        Err(Error::not_ready(format!(
            "{} hold objects that they have not reported to this master: they wait for a process \
             that may still write to them",
            names(&unreported)
        )))
    }

    /// Whether a new key may be placed: the wait for all reports is bounded by one TTL.
    pub(super) fn check_settled(&self) -> crate::error::Result<()> {
        if !self.settled() {
            return Err(self.early("this key"));
        }
        if self.blind.is_empty() {
            return Ok(());
        }
        Err(Error::not_ready(format!(
            "the master was restarted and has no report yet of {}",
            names(&self.blind)
        )))
    }

    /// Answers the parked requests, once no report is missing.
    pub(super) fn unpark(&mut self) {
        while self.recovering.is_empty()
            && let Some((ask, reply)) = self.parked.pop_front()
        {
            self.answer(ask, reply);
            // Before the next request: a remove must not overtake a commit on the owner's link.
            self.flush_commits();
        }
    }

    pub(super) fn report(
        &mut self,
        segment_id: SegmentId,
        number: u64,
        slots: Vec<SlotEntry>,
        last: bool,
    ) {
        let Some(allocator) = self.allocators.get_mut(&segment_id) else { return };
        if allocator.report_number != number || allocator.reported {
            return;
        }
        let (len, most) = (allocator.report.len() + slots.len(), allocator.info.layout.slots);
        if len > most as usize || (slots.is_empty() && !last) {
            let text = format!("a report of {len} slots and more; the segment has {most}");
            allocator.report = Vec::new();
            return self.refuse_frame(segment_id, &Error::invalid(text));
        }
        allocator.report.extend(slots);
        // Every part extends the time for the rest.
        allocator.report_asked_ms = self.durable.clock.now_ms();
        if !last {
            return;
        }
        let report = std::mem::take(&mut allocator.report);
        if let Err(error) = self.apply_report(segment_id, report) {
            // It changed nothing; the owner is asked again after its next join.
            let text = format!("the report contradicts itself: {error}");
            return self.refuse_frame(segment_id, &Error::invalid(text));
        }
        self.recovering.remove(&segment_id);
        self.blind.remove(&segment_id);
        let incarnation = self.allocators.get(&segment_id).map_or(0, |b| b.info.incarnation);
        self.forgotten.remove(&incarnation);
        self.durable.members.set_reported(segment_id);
        self.durable.members.send(segment_id, MasterToOwner::ReportTaken);
        self.ask_log_again(segment_id);
        self.send_missed_removals(segment_id);
        self.ask_disk_again(segment_id);
        self.await_again(segment_id);
        self.recheck_commits(segment_id);
        self.retry_waiting(segment_id.rank);
        self.unpark();
    }

    /// The report is authoritative for this segment: its entries replace what was known of it.
    fn apply_report(
        &mut self,
        segment_id: SegmentId,
        report: Vec<SlotEntry>,
    ) -> Result<(), StoreError> {
        let Some(info) = self.allocators.get(&segment_id).map(|b| b.info.clone()) else {
            return Ok(());
        };
        self.check_report(segment_id, &report)?;
        // A rank's first report in a term: all entries need not be searched for places there.
        let known = self.allocators.get(&segment_id).is_some_and(|b| b.has_listed);
        let mut lost = match known {
            true => self.plans_the_owner_never_opened(segment_id, &report),
            false => Vec::new(),
        };
        // In the order of their grants: an owner that has a plan assumes that it has all earlier
        // ones.
        lost.sort_by_key(|(opened, _)| opened.plan);
        let kept: HashSet<SlotRef> = lost.iter().map(|(opened, _)| opened.at).collect();
        // Checked before anything is changed: a contradictory report changes nothing.
        let extents = report.iter().filter_map(extent_of);
        let lost_extents = lost.iter().map(|(opened, _)| opened.object.extent);
        let all: Vec<_> = extents.chain(lost_extents).filter(|e| e.len > 0).collect();
        let arena = arena_of(&info, &all)?;
        if known {
            self.forget_what_the_report_lacks(segment_id, &report, &kept);
        }
        let Reported { mut taken, free, mut hard, mut keys, logged, mut duplicates } =
            self.take_in(segment_id, &info, report, &kept);
        for (p, _) in &lost {
            taken.insert(p.at.slot, Taken::new(p.at.epoch, p.object.extent, &info));
            keys.push((p.at.slot, p.at.epoch, self.id_of(&p.key)));
            hard.extend(hard_pin(p));
        }
        let mut allocator = SegmentAllocator::rebuild(info, arena, taken, free);
        hard.into_iter().for_each(|(slot, epoch, bytes)| allocator.pin(slot, epoch, bytes));
        if let Some(old) = self.allocators.get(&segment_id) {
            allocator.report_number = old.report_number;
            allocator.has_listed = old.has_listed;
        }
        for (slot, epoch, id) in keys {
            if let Some(number) = self.objects.number(&id) {
                allocator.list(slot, epoch, number);
            }
        }
        self.allocators.insert(segment_id, allocator);
        for (at, o) in logged {
            if self.objects.get(&o.id).is_some_and(|e| e.is_at(at)) {
                self.list_at(o.id, segment_id, at);
            }
            if !self.logged(segment_id, at, &o, true) {
                duplicates.push(at);
            }
        }
        for part in duplicates.chunks(SLOTS_PER_FRAME) {
            self.durable.members.send(segment_id, MasterToOwner::Retire(part.to_vec()));
        }
        self.resend_plans(segment_id, lost);
        Ok(())
    }

    /// Checks that each slot occurs once, and that no plan belongs to another segment or has a
    /// number that was never granted.
    fn check_report(&self, segment_id: SegmentId, report: &[SlotEntry]) -> Result<(), StoreError> {
        let bad = |text: String| Err(StoreError::BadSegment(text));
        let mut slots = HashSet::with_capacity(report.len());
        let (term, next) =
            (self.durable.members.term(), self.durable.next_plan.load(Ordering::Relaxed));
        for e in report {
            if !slots.insert(e.slot) {
                return bad(format!("slot {} is in it twice", e.slot));
            }
            let SlotContent::Open(p) = &e.what else { continue };
            let theirs =
                self.plans.get(&p.plan).is_some_and(|known| known.segment_id != segment_id);
            if theirs || p.plan.term > term || (p.plan.term == term && p.plan.seq >= next) {
                return bad(format!("it has the plan {} of term {:?}", p.plan.seq, p.plan.term));
            }
        }
        Ok(())
    }

    /// Takes in the entries of a report; `kept` are the slots of plans that the owner never
    /// received.
    fn take_in(
        &mut self,
        segment_id: SegmentId,
        info: &RankInfo,
        report: Vec<SlotEntry>,
        kept: &HashSet<SlotRef>,
    ) -> Reported {
        let mut reported = Reported::default();
        let Reported { taken, free, hard, keys, logged, duplicates } = &mut reported;
        for e in report {
            let at = SlotRef { incarnation: info.incarnation, slot: e.slot, epoch: e.epoch };
            match e.what {
                SlotContent::Free if kept.contains(&at) => {}
                SlotContent::Free => {
                    free.insert(e.slot, e.epoch);
                }
                SlotContent::Held(extent) => {
                    taken.insert(e.slot, Taken::new(e.epoch, extent, info));
                }
                SlotContent::Logged(o) => logged.push((at, *o)),
                SlotContent::Open(p) => {
                    let key = self.reported_plan(segment_id, &p);
                    keys.extend(key.map(|id| (e.slot, e.epoch, id)));
                    taken.insert(e.slot, Taken::new(e.epoch, p.object.extent, info));
                    hard.extend(hard_pin(&p));
                }
                SlotContent::Live { key, mut object, set, retention } => {
                    let extent = object.extent;
                    // The producer wrote this length into the header, so it is capped at the
                    // extent.
                    object.bytes_total = object.bytes_total.min(extent.len);
                    let key = Key::new(&key).ok();
                    let id = key.as_ref().map(|k| self.id_of(k.as_bytes()));
                    keys.extend(id.map(|id| (e.slot, e.epoch, id)));
                    taken.insert(e.slot, Taken::new(e.epoch, extent, info));
                    if retention == Retention::HardPin {
                        hard.push((e.slot, e.epoch, extent.len));
                    }
                    let replica = Replica { segment_id, at, object };
                    if !key.is_some_and(|k| self.reported_live(replica, k, (set, retention))) {
                        duplicates.push(at);
                    }
                }
            }
        }
        reported
    }

    /// Sends an owner the plans that it never received, and what happened to them since.
    fn resend_plans(&self, segment_id: SegmentId, lost: Vec<UnopenedPlan>) {
        self.durable.members.slow_path.plans_resent.add(lost.len());
        for (opened, then) in lost {
            self.durable.members.send(segment_id, MasterToOwner::PlanOpened(opened));
            then.into_iter().for_each(|then| self.durable.members.send(segment_id, then));
        }
    }

    /// Plans granted (and perhaps committed) over a link that broke before the owner received them.
    /// Their slots stay taken and they are sent again, so that nothing acknowledged is lost and no
    /// two producers write to one extent [I10].
    fn plans_the_owner_never_opened(
        &self,
        segment_id: SegmentId,
        report: &[SlotEntry],
    ) -> Vec<UnopenedPlan> {
        let known: HashMap<u32, (u32, bool)> = report
            .iter()
            .map(|e| (e.slot, (e.epoch, matches!(e.what, SlotContent::Free))))
            .collect();
        // A slot that the report leaves out is free at its first epoch.
        let unopened = |at: SlotRef| {
            let (epoch, free) = known.get(&at.slot).copied().unwrap_or((FIRST_EPOCH, true));
            free && epoch == at.epoch
        };
        let first = self.allocators.get(&segment_id).map_or(0, |b| b.info.layout.log_slots);
        // Plans are never granted in a log.
        let managed = |r: &Replica| r.segment_id == segment_id && r.at.slot >= first;
        let all = self.objects.iter().flat_map(|(id, e)| e.places().map(move |r| (id, e, r)));
        let mine = all.filter(|(.., replica)| managed(replica) && unopened(replica.at));
        mine.filter_map(|(key, e, replica)| {
            let at = replica.at;
            let opened = |plan, token, asked, retention| {
                self.opened((plan, token, asked), &e.key, &replica, (e.set(), retention))
            };
            if let Some(plan) = e.plan_at(at) {
                let info = self.plans.get(&plan)?;
                let then = info.ending.map(|cause| MasterToOwner::EndPlan { plan, at, cause });
                return Some((opened(plan, info.token, info.asked, info.retention), then));
            }
            // Committed: its plan is over here, so any new number will do.
            let (plan, token) = (self.next_plan(), self.durable.random.u64());
            let then = match e.state() {
                // An object that is being removed may be READY there: it must be retired before its
                // slot is used again, and before the removal is confirmed [I6].
                State::Removing => MasterToOwner::EndPlan { plan, at, cause: EndCause::Removed },
                _ => MasterToOwner::Committed(vec![PlanRef { plan, at, key: *key }]),
            };
            Some((opened(plan, token, (0, 0, 0), e.retention_at(at)), Some(then)))
        })
        .collect()
    }

    fn forget_what_the_report_lacks(
        &mut self,
        segment_id: SegmentId,
        report: &[SlotEntry],
        kept: &HashSet<SlotRef>,
    ) {
        let objects =
            report.iter().filter(|e| !matches!(e.what, SlotContent::Free | SlotContent::Held(_)));
        let present: HashSet<_> = objects.map(|e| (e.slot, e.epoch)).collect();
        self.drop_replicas(segment_id, |at| {
            !kept.contains(&at) && !present.contains(&(at.slot, at.epoch))
        });
    }

    fn reported_plan(&mut self, segment_id: SegmentId, p: &PlanOpened) -> Option<KeyId> {
        let key = Key::new(&p.key).ok()?;
        let id = self.id_of(key.as_bytes());
        if let Some(plan) = self.plans.get_mut(&p.plan) {
            plan.reported = true;
        }
        let replica = Replica { segment_id, at: p.at, object: p.object };
        let (asked, token, retention) = ((p.producer, p.request, p.item), p.token, p.retention);
        let (at, reported, ending) = (p.at, true, None);
        let info = PlanInfo { segment_id, at, asked, token, retention, reported, ending };
        if let Some(e) = self.objects.get(&id) {
            let here = e.is_at(p.at);
            if !here && self.is_replica_of(e, &replica, p.set) {
                let e = self.objects.get_mut(&id)?;
                e.add_copy(p.plan, replica);
                e.keeps(p.at, retention);
                self.plans.insert(p.plan, info);
                return Some(id);
            }
            // Another plan has the key, or the last message about this one was lost with the link:
            // send it again.
            if here && e.plan_at(p.at).is_none() && e.state() != State::Removing {
                let done = PlanRef { plan: p.plan, at: p.at, key: id };
                self.durable.members.send(segment_id, MasterToOwner::Committed(vec![done]));
                return Some(id);
            }
            let ending = self.plans.get(&p.plan).and_then(|i| i.ending);
            let cause = match e.state() {
                State::Removing => Some(EndCause::Removed),
                _ if !here => Some(EndCause::Unknown),
                _ => ending,
            };
            if let Some(cause) = cause {
                let end = MasterToOwner::EndPlan { plan: p.plan, at: p.at, cause };
                self.durable.members.send(segment_id, end);
            }
            return Some(id);
        }
        if self.durable.members.is_older(&id, p.at.incarnation) {
            // A plan of an earlier term, held for kernels: the key was put again before this rank
            // had reported, and may be removed since [I6].
            self.durable.members.slow_path.superseded.one();
            let (plan, at, cause) = (p.plan, p.at, EndCause::Unknown);
            self.durable.members.send(segment_id, MasterToOwner::EndPlan { plan, at, cause });
            return None;
        }
        let mut entry = Entry::writing(key, replica, p.plan).in_set(p.set);
        entry.keeps(p.at, retention);
        self.add_object(id, entry);
        self.awaiting.note(id);
        self.plans.insert(p.plan, info);
        Some(id)
    }

    /// Whether what a rank reports is a further replica of an entry: of the same put, and at a rank
    /// that has none.
    pub(super) fn is_replica_of(&self, e: &Entry, replica: &Replica, set: ReplicaSet) -> bool {
        let elsewhere = |r: Replica| r.segment_id.rank != replica.segment_id.rank;
        set.is_same(e.set())
            && e.state() != State::Removing
            && e.replica().object.bytes_total == replica.object.bytes_total
            && e.places().count() < usize::from(MAX_REPLICAS)
            && e.places().all(elsewhere)
    }

    /// Lists a live object of a report. False if it must be retired: another object of its key is
    /// live (the first report wins), or it is superseded or removed.
    fn reported_live(
        &mut self,
        replica: Replica,
        key: Key,
        (set, retention): (ReplicaSet, Retention),
    ) -> bool {
        let (id, at) = (self.id_of(key.as_bytes()), replica.at);
        let known = self.objects.get(&id);
        let further = known.is_some_and(|e| !e.is_at(at) && self.is_replica_of(e, &replica, set));
        if !further && !known.is_some_and(|e| e.is_at(at)) {
            if self.durable.members.is_older(&id, at.incarnation) {
                // The key was put again before this rank had reported, and may be removed since
                // [I6].
                self.durable.members.slow_path.superseded.one();
                return false;
            }
            self.end_older_plan_of(&id);
        }
        let Some(e) = self.objects.get_mut(&id) else {
            let mut entry = Entry::live(key, replica).in_set(set);
            entry.keeps(at, retention);
            self.add_object(id, entry);
            self.awaiting.note(id);
            self.note_short(id);
            return true;
        };
        match e.plan_at(at) {
            Some(plan) if e.state() != State::Removing => {
                // Its Committed or Adopted crossed the report. If its plan was aborted or removed
                // meanwhile, it is retired.
                if given_up(self.plans.get(&plan).and_then(|p| p.ending)) {
                    e.gives_up();
                    return false;
                }
                e.commits(plan);
                e.keeps(at, retention);
                self.plans.remove(&plan);
            }
            _ if further => {
                e.add_live(replica);
                e.keeps(at, retention);
            }
            // A Retire may have been lost with the link: a removed object must never come back
            // [I6].
            _ => {
                let stays = e.is_at(at) && e.state() != State::Removing;
                self.mend_set(id, replica.segment_id, at, set);
                return stays;
            }
        }
        self.became_live(id, replica.segment_id);
        self.note_short(id);
        true
    }

    /// A plan of an earlier term that is held for kernels gives up its key to an object that is
    /// live elsewhere: that one was acknowledged, and this one may never be.
    fn end_older_plan_of(&mut self, id: &KeyId) {
        let Some(e) = self.objects.get(id) else { return };
        let State::Writing(plan) = e.state() else { return };
        if plan.term >= self.durable.members.term() {
            return;
        }
        self.durable.members.slow_path.superseded.one();
        for (plan, Replica { segment_id, at, .. }) in e.plans().collect::<Vec<_>>() {
            let end = MasterToOwner::EndPlan { plan, at, cause: EndCause::Unknown };
            self.durable.members.send(segment_id, end);
            self.plans.remove(&plan);
        }
        self.take_object(id);
    }
}

/// Segments as a list for an error text.
pub(super) fn names<'s>(segment_ids: impl IntoIterator<Item = &'s SegmentId>) -> String {
    segment_ids.into_iter().map(SegmentId::to_string).collect::<Vec<_>>().join(", ")
}

/// Slot, epoch and bytes of a plan whose object will have a hard pin.
fn hard_pin(p: &PlanOpened) -> Option<(u32, u32, u64)> {
    (p.retention == Retention::HardPin).then_some((p.at.slot, p.at.epoch, p.object.extent.len))
}

/// The extent of an entry of a report, if it has one.
fn extent_of(e: &SlotEntry) -> Option<Extent> {
    match &e.what {
        SlotContent::Free | SlotContent::Logged(_) => None,
        SlotContent::Held(extent) => Some(*extent),
        SlotContent::Live { object, .. } => Some(object.extent),
        SlotContent::Open(p) => Some(p.object.extent),
    }
}

/// True if a plan ended so that its object must not become readable, READY or not.
pub(super) fn given_up(ending: Option<EndCause>) -> bool {
    matches!(ending, Some(EndCause::Aborted | EndCause::Removed | EndCause::Unknown))
}
