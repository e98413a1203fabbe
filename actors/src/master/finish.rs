//! How objects and plans end at the master: Abort, Remove, and the owner's messages Retired, Freed
//! and Adopted. Only a message of the owner or the owner's death ends a plan [I10]; every message
//! carries {plan, term, incarnation, slot, epoch}, and a mismatch changes nothing [I11].

use super::entry::{Entry, State};
use super::objects::PlanInfo;
use super::recover::{given_up, names};
use super::{Ask, Master};
use crate::actor::Reply;
use crate::error::{Error, ErrorKind, Result};
use crate::message::{
    EndCause, KeyBytes, MasterToOwner, PlanId, PlanRef, RankState, Request, Response,
    SLOTS_PER_FRAME, SegmentId, SlotRef,
};
use hashbrown::HashSet;
use nkv_store::{Key, KeyId};
use smallvec::SmallVec;
use std::collections::{BTreeMap, BTreeSet};

/// Retired objects whose entries are looked up together.
const SIDE_BY_SIDE: usize = 32;
/// Slots that owners are to retire, by segment.
pub(super) type Retire = BTreeMap<SegmentId, Vec<SlotRef>>;

/// How long a Remove waits for the owner's `Retired` before it fails with `Disconnected`.
const REMOVE_LIMIT_MS: u64 = 1_500;

impl Master {
    pub(super) fn abort(&mut self, list: &[PlanRef]) -> Vec<Result<()>> {
        list.iter().map(|a| self.abort_one(a.plan)).collect()
    }

    /// A plan that is not listed has ended, unless its owner has not reported to this master yet.
    fn abort_one(&mut self, plan: PlanId) -> Result<()> {
        if !self.plans.contains_key(&plan) && plan.term < self.durable.members.term() {
            return self.check_all_reported();
        }
        self.end_plan(plan, EndCause::Aborted);
        Ok(())
    }

    pub(super) fn withdraw(&mut self, producer: u64, request: u64) {
        self.give_up_waiting(producer, request);
        let of = |p: &PlanInfo| (p.asked.0, p.asked.1) == (producer, request);
        self.end_plans(of, EndCause::Aborted);
    }

    /// Ends the plans that `which` picks, in the order of their grants; returns their number.
    fn end_plans(&mut self, which: impl Fn(&PlanInfo) -> bool, cause: EndCause) -> usize {
        let open = self.plans.iter().filter(|(_, p)| p.ending.is_none() && which(p));
        let mut plans: Vec<_> = open.map(|(id, _)| *id).collect();
        plans.sort_unstable();
        plans.iter().for_each(|plan| self.end_plan(*plan, cause));
        plans.len()
    }

    /// Asks the owner to end a plan; the plan ends at the master with the owner's Retired or
    /// Adopted.
    pub(super) fn end_plan(&mut self, plan: PlanId, cause: EndCause) {
        if let Some(p) = self.plans.get_mut(&plan) {
            p.ending = Some(cause);
            let (segment_id, at) = (p.segment_id, p.at);
            self.durable.members.send(segment_id, MasterToOwner::EndPlan { plan, at, cause });
        }
    }

    pub(super) fn end_plans_of_lost_producers(&mut self) {
        let lost = self.durable.members.lost_producers(self.now_ms(), self.durable.ttl_ms);
        if lost.is_empty() {
            return;
        }
        let plans = self.end_plans(|p| lost.contains(&p.asked.0), EndCause::ProducerGone);
        if plans > 0 {
            tracing::info!(plans, "producers are gone; their plans end");
        }
    }

    /// `elsewhere`: keys of which an object in a device log is retired, or one on disk is removed
    /// already.
    pub(super) fn remove(
        &mut self,
        keys: &[KeyBytes],
        elsewhere: &HashSet<KeyId>,
        reply: Reply<Response>,
    ) {
        let batch = self.batches.done(keys.len(), reply);
        self.remove_each(batch, keys.iter().map(|k| &**k), elsewhere);
    }

    /// Removes keys, each if its object lies there.
    pub(super) fn remove_at(&mut self, list: &[(KeyBytes, SlotRef)], reply: Reply<Response>) {
        let batch = self.batches.done(list.len(), reply);
        let mut retire = Retire::new();
        for (item, (key, at)) in list.iter().enumerate() {
            let there = |e: &Entry| e.is_at(*at) && e.state() != State::Removing;
            match self.entry(key).map(|e| e.is_some_and(there)) {
                Ok(true) => self.begin_removal((batch, item), key, &HashSet::new(), &mut retire),
                Ok(false) => self.complete_remove(batch, item, Ok(())),
                Err(e) => self.complete_remove(batch, item, Err(e)),
            }
        }
        self.send_retire(retire);
    }

    /// Begins the removals of a batch.
    pub(super) fn remove_each<'k>(
        &mut self,
        batch: u64,
        keys: impl Iterator<Item = &'k [u8]>,
        elsewhere: &HashSet<KeyId>,
    ) {
        let mut retire = Retire::new();
        for (item, key) in keys.enumerate() {
            self.begin_removal((batch, item), key, elsewhere, &mut retire);
        }
        self.send_retire(retire);
    }

    /// One of a batch.
    fn begin_removal(
        &mut self,
        (batch, item): (u64, usize),
        key: &[u8],
        elsewhere: &HashSet<KeyId>,
        retire: &mut Retire,
    ) {
        match self.start_remove(key, retire) {
            Ok(id) => {
                self.removing.entry(id).or_default().push((batch, item));
                self.remove_stripes(key, retire);
            }
            Err(e) if e.kind() == ErrorKind::NotFound && elsewhere.contains(&self.id_of(key)) => {
                self.remove_stripes(key, retire);
                self.counters.removed += 1;
                self.complete_remove(batch, item, Ok(()));
            }
            Err(e) => self.complete_remove(batch, item, Err(e)),
        }
    }

    /// Each owner is sent its slots in as few frames as possible.
    pub(super) fn send_retire(&self, retire: Retire) {
        for (segment_id, slots) in retire {
            for part in slots.chunks(SLOTS_PER_FRAME) {
                self.durable.members.send(segment_id, MasterToOwner::Retire(part.to_vec()));
            }
        }
    }

    /// Begins one removal. Adds the slots that owners must retire to `retire`, by segment.
    fn start_remove(&mut self, bytes: &[u8], retire: &mut Retire) -> Result<KeyId> {
        let key = Key::new(bytes)?;
        let id = self.id_of(bytes);
        let entry = self.entry(bytes)?;
        // A rank that has not reported may hold an older object of this key, which readers can
        // still read by its location: the key may have been put again before that rank reports,
        // under this master or an earlier one, or through a log [I6].
        self.check_all_reported()?;
        if entry.is_none() {
            return Err(Error::not_found(format!("no key {key}")));
        }
        self.retire_object(id, retire);
        Ok(id)
    }

    /// No reader is sent to an object any more, and its owners must retire it.
    pub(super) fn retire_object(&mut self, id: KeyId, retire: &mut Retire) {
        let now = self.now_ms();
        let Some(e) = self.objects.get_mut(&id) else { return };
        let state = e.state();
        if state != State::Removing || e.remove_until_ms() <= now {
            e.removes_until(now + REMOVE_LIMIT_MS);
        }
        self.remove_aside(id);
        let Some(e) = self.objects.get(&id) else { return };
        // What is being removed already is retired once more: its owner answers again.
        let ends = |at| if state == State::Removing { None } else { e.plan_at(at) };
        let places: SmallVec<[_; 1]> = e.places().map(|r| (ends(r.at), r)).collect();
        for (plan, r) in places {
            match plan {
                Some(plan) => self.end_plan(plan, EndCause::Removed),
                None => retire.entry(r.segment_id).or_default().push(r.at),
            }
        }
    }

    /// A remove fails if the owner does not answer in time, or at once if its link is down. The key
    /// stays in state Removing all the same, and is never readable again [I6].
    pub(super) fn expire_removes(&mut self) {
        let now = self.now_ms();
        let over = |e: &Entry| e.remove_until_ms() <= now || self.unreachable_place(e).is_some();
        let late = self.removing.keys().filter(|id| self.objects.get(id).is_none_or(over));
        let late: Vec<_> = late.copied().collect();
        self.durable.members.slow_path.removals_unconfirmed.add(late.len());
        for id in late {
            let unconfirmed = self.objects.get(&id).map(|e| self.unconfirmed(e));
            for (batch, item) in self.removing.remove(&id).unwrap_or_default() {
                let result = unconfirmed.clone().map_or(Ok(()), Err);
                self.batches.complete_item(batch, item, result);
            }
        }
    }

    fn unreachable_place(&self, e: &Entry) -> Option<SegmentId> {
        e.places().map(|r| r.segment_id).find(|segment_id| !self.reachable(*segment_id))
    }

    fn unconfirmed(&self, e: &Entry) -> Error {
        let key = &e.key;
        Error::disconnected(match self.unreachable_place(e) {
            None => {
                let asked: BTreeSet<_> = e.places().map(|r| r.segment_id).collect();
                let whom = names(&asked);
                format!("{whom} did not confirm the removal within {REMOVE_LIMIT_MS} ms")
            }
            Some(segment_id) => format!(
                "the link of {segment_id} is down: key {key} is removed once it is back, or gone \
                 for its TTL"
            ),
        })
    }

    pub(super) fn retired(&mut self, segment_id: SegmentId, list: &[SlotRef]) {
        // One that leaves has evicted nothing: its replicas are made elsewhere.
        let leaves = self.durable.members.state(segment_id) == Some(RankState::Draining);
        for part in list.chunks(SIDE_BY_SIDE) {
            let keys = part.iter().map(|at| self.listed_at(segment_id, at));
            let keys: SmallVec<[_; SIDE_BY_SIDE]> = keys.collect();
            // A million objects do not fit into the CPU caches: loading the entries of a part
            // together overlaps the cache misses.
            let entries = keys.iter().flatten().filter_map(|key| self.objects.get(key));
            std::hint::black_box(entries.map(|e| e.key.as_bytes()[0]).fold(0, u8::wrapping_add));
            for (at, key) in part.iter().zip(keys) {
                if let Some(key) = key {
                    self.drop_entry(key, *at);
                    if leaves {
                        self.note_short(key);
                    }
                }
            }
            if let Some(allocator) = self.allocators.get_mut(&segment_id) {
                for at in part {
                    allocator.forget_listed(at.slot, at.epoch);
                    allocator.unpin(at.slot, at.epoch);
                }
            }
        }
    }

    pub(super) fn freed(&mut self, segment_id: SegmentId, list: Vec<SlotRef>) {
        // Not acknowledged before the report, which replaces this allocator: the `Freed` would be
        // lost.
        if !self.allocators.get(&segment_id).is_some_and(|b| b.reported) {
            return;
        }
        self.retired(segment_id, &list);
        if let Some(allocator) = self.allocators.get_mut(&segment_id) {
            for at in &list {
                allocator.give_back(at.slot, at.epoch);
            }
        }
        self.durable.members.send(segment_id, MasterToOwner::FreedAck(list));
        self.retry_waiting(segment_id.rank);
    }

    /// Keys to be removed: an owner says that their time after the first read is over. What cannot
    /// be removed now the owner names again.
    pub(super) fn expired(&mut self, segment_id: SegmentId, list: &[SlotRef]) {
        // What the report of another rank would list again must not be removed before.
        if !self.recovering.is_empty() {
            return;
        }
        let mut keys = Vec::with_capacity(list.len());
        for at in list {
            let Some(id) = self.listed_at(segment_id, at) else { continue };
            let here = self.objects.get(&id).filter(|e| e.is_live() && e.is_at(*at));
            keys.extend(here.map(|e| (KeyBytes::shared(e.key.clone()), *at)));
        }
        if !keys.is_empty() {
            let request = Request::RemoveAt(keys);
            self.answer(Ask { producer: 0, request }, Reply::nobody());
        }
    }

    pub(super) fn adopted(&mut self, segment_id: SegmentId, a: PlanRef) {
        // Ignored before the segment's report, which contains the object as Live.
        if !self.allocators.get(&segment_id).is_some_and(|b| b.reported) {
            return;
        }
        let id = a.key;
        let live = |e: &&mut Entry| e.is_at(a.at) && e.state() != State::Removing;
        match self.objects.get_mut(&id).filter(live) {
            Some(e) if e.plan_at(a.at).is_none() => return,
            Some(e) if e.plan_at(a.at) == Some(a.plan) => {
                if !given_up(self.plans.get(&a.plan).and_then(|p| p.ending)) {
                    e.commits(a.plan);
                    self.plans.remove(&a.plan);
                    self.counters.adopted += 1;
                    return self.became_live(id, segment_id);
                }
                // The plan was aborted or removed before the owner received that: its object must
                // not become readable.
                e.gives_up();
            }
            // Removed meanwhile, or unknown: a removed object must never come back.
            _ => {}
        }
        self.durable.members.send(segment_id, MasterToOwner::Retire(vec![a.at]));
    }
}
