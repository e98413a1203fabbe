//! The entry of one key. A master has millions of them, so an entry that is live in one segment, as
//! nearly all are, takes 64 bytes; what the others have besides is allocated for itself.

use crate::message::{ObjectDesc, PlanId, ReplicaSet, SegmentId, SlotRef};
use nkv_store::arena::Extent;
use nkv_store::layout::PAYLOAD_ALIGN;
use nkv_store::{Key, Retention};

/// The state of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Writing(PlanId),
    Live,
    Removing,
}

/// One place where an object lies, or is being written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Replica {
    pub segment_id: SegmentId,
    pub at: SlotRef,
    pub object: ObjectDesc,
}

/// A replica in 48 bytes: its extent in units of 4 KiB.
#[derive(Debug, Clone, Copy)]
struct Packed {
    segment_id: SegmentId,
    at: SlotRef,
    bytes_total: u64,
    first_unit: u32,
    /// 0: as many bytes as the object has.
    units: u32,
    page_bytes: u32,
}

impl Packed {
    /// Exact where `is_exact` is true.
    fn of(replica: &Replica) -> Self {
        let ObjectDesc { extent, bytes_total, page_bytes } = replica.object;
        let units = if extent.len == bytes_total { 0 } else { extent.len / PAYLOAD_ALIGN };
        Self {
            segment_id: replica.segment_id,
            at: replica.at,
            bytes_total,
            first_unit: (extent.offset / PAYLOAD_ALIGN) as u32,
            units: units as u32,
            page_bytes,
        }
    }

    fn replica(&self) -> Replica {
        let bytes = |units: u32| u64::from(units) * PAYLOAD_ALIGN;
        let len = if self.units == 0 { self.bytes_total } else { bytes(self.units) };
        let extent = Extent { offset: bytes(self.first_unit), len };
        let (bytes_total, page_bytes) = (self.bytes_total, self.page_bytes);
        let object = ObjectDesc { extent, bytes_total, page_bytes };
        Replica { segment_id: self.segment_id, at: self.at, object }
    }
}

/// What an entry has that is not live in exactly one place.
#[derive(Debug, Clone)]
struct Rest {
    state: State,
    /// The plan that writes the first replica, until that is committed or over.
    plan: Option<PlanId>,
    /// Further live replicas with the same bytes.
    others: Vec<Replica>,
    /// Further replicas that are being written, by plans of their own.
    copies: Vec<(PlanId, Replica)>,
    set: ReplicaSet,
    /// Places of replicas besides those that were asked for.
    extras: Vec<SlotRef>,
    /// What its put asked for, for an owner that has yet to hear of the plan.
    retention: Retention,
    /// While Removing: when waiting removes fail, in ms.
    remove_until_ms: u64,
    /// The first replica, where its packed form is not exact.
    exact: Option<Replica>,
}

/// Of an entry that is live in one place.
static NOTHING: Rest = Rest {
    state: State::Live,
    plan: None,
    others: Vec::new(),
    copies: Vec::new(),
    set: ReplicaSet::NONE,
    extras: Vec::new(),
    retention: Retention::Usual,
    remove_until_ms: 0,
    exact: None,
};

impl Rest {
    fn is_nothing(&self) -> bool {
        self.state == State::Live
            && self.plan.is_none()
            && self.others.is_empty()
            && self.copies.is_empty()
            && self.set == ReplicaSet::NONE
            && self.extras.is_empty()
            && self.retention == Retention::Usual
            && self.exact.is_none()
    }

    /// The place that follows the first one, which is gone.
    fn next(&mut self) -> Option<Replica> {
        if !self.others.is_empty() {
            self.plan = None;
            return Some(self.others.remove(0));
        }
        if self.copies.is_empty() {
            return None;
        }
        let (plan, replica) = self.copies.remove(0);
        self.plan = Some(plan);
        if self.state != State::Removing {
            self.state = State::Writing(plan);
        }
        Some(replica)
    }
}

/// The entry of one key.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub key: Key,
    rest: Option<Box<Rest>>,
    first: Packed,
}

/// A place that an entry has no more.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Forgotten {
    /// The plan that wrote there.
    pub plan: Option<PlanId>,
    /// The entry has another place.
    pub survives: bool,
}

impl Entry {
    /// An object that is live in one place.
    pub(super) fn live(key: Key, replica: Replica) -> Self {
        let mut entry = Self { key, rest: None, first: Packed::of(&replica) };
        entry.set_replica(replica);
        entry
    }

    /// An object that a plan writes.
    pub(super) fn writing(key: Key, replica: Replica, plan: PlanId) -> Self {
        let mut entry = Self::live(key, replica);
        entry.change(|rest| (rest.state, rest.plan) = (State::Writing(plan), Some(plan)));
        entry
    }

    /// Whose put asked for this.
    pub(super) fn retained(mut self, retention: Retention) -> Self {
        // What only the first owner uses is not kept.
        if !retention.is_usual() {
            self.change(|rest| rest.retention = retention);
        }
        self
    }

    /// What the owner at `at` is to do with it.
    pub(super) fn retention_at(&self, at: SlotRef) -> Retention {
        match self.is_extra(at) {
            true => Retention::Extra,
            false => self.rest().retention,
        }
    }

    /// What the replicas that were asked for are to have.
    pub(super) fn retention(&self) -> Retention {
        self.rest().retention
    }

    /// How the replica at `at` is kept, as its owner reports.
    pub(super) fn keeps(&mut self, at: SlotRef, retention: Retention) {
        match retention {
            Retention::Extra if self.is_extra(at) => {}
            Retention::Extra => self.change(|rest| rest.extras.push(at)),
            Retention::Usual | Retention::LastOfBatch => {}
            other => self.change(|rest| rest.retention = other),
        }
    }

    /// Whether the replica at `at` is one besides those that were asked for.
    pub(super) fn is_extra(&self, at: SlotRef) -> bool {
        self.rest().extras.contains(&at)
    }

    /// How many replicas are live of those that were asked for, and how many besides.
    pub(super) fn made(&self) -> (usize, usize) {
        let extras = self.replicas().filter(|r| self.is_extra(r.at)).count();
        (self.replicas().count() - extras, extras)
    }

    /// The same with those that are being written.
    pub(super) fn begun(&self) -> (usize, usize) {
        let extras = self.places().filter(|r| self.is_extra(r.at)).count();
        (self.places().count() - extras, extras)
    }

    /// As another replica of these is.
    pub(super) fn in_set(mut self, set: ReplicaSet) -> Self {
        if set != ReplicaSet::NONE {
            self.change(|rest| rest.set = set);
        }
        self
    }

    /// The same, for an entry that is listed.
    pub(super) fn belongs_to(&mut self, set: ReplicaSet) {
        self.change(|rest| rest.set = set);
    }

    /// The replicas of one put; `NONE` if it asked for one.
    pub(super) fn set(&self) -> ReplicaSet {
        self.rest().set
    }

    fn rest(&self) -> &Rest {
        self.rest.as_deref().unwrap_or(&NOTHING)
    }

    fn change(&mut self, change: impl FnOnce(&mut Rest)) {
        let mut rest = self.rest.take().unwrap_or_else(|| Box::new(NOTHING.clone()));
        change(&mut rest);
        self.rest = (!rest.is_nothing()).then_some(rest);
    }

    fn set_replica(&mut self, replica: Replica) {
        self.first = Packed::of(&replica);
        let exact = (self.first.replica() != replica).then_some(replica);
        if self.rest.is_some() || exact.is_some() {
            self.change(|rest| rest.exact = exact);
        }
    }

    pub(super) fn state(&self) -> State {
        self.rest().state
    }

    pub(super) fn is_live(&self) -> bool {
        self.state() == State::Live
    }

    /// The plans that write it, until those are committed or over, with what they write.
    pub(super) fn plans(&self) -> impl Iterator<Item = (PlanId, Replica)> {
        let first = self.rest().plan.map(|plan| (plan, self.replica()));
        first.into_iter().chain(self.rest().copies.iter().copied())
    }

    /// The plan that writes the replica at `at`.
    pub(super) fn plan_at(&self, at: SlotRef) -> Option<PlanId> {
        self.plans().find(|(_, replica)| replica.at == at).map(|(plan, _)| plan)
    }

    /// One more plan writes a replica.
    pub(super) fn add_copy(&mut self, plan: PlanId, replica: Replica) {
        self.change(|rest| rest.copies.push((plan, replica)));
    }

    /// What this plan wrote is live, and with it the entry, unless that is being removed.
    pub(super) fn commits(&mut self, plan: PlanId) {
        if self.rest().plan == Some(plan) {
            return self.change(|rest| {
                rest.plan = None;
                if matches!(rest.state, State::Writing(_)) {
                    rest.state = State::Live;
                }
            });
        }
        let of_plan = |(of, _): &&(PlanId, Replica)| *of == plan;
        let Some((_, replica)) = self.rest().copies.iter().find(of_plan).copied() else { return };
        self.change(|rest| rest.copies.retain(|(of, _)| *of != plan));
        self.add_live(replica);
    }

    /// An object of the same put is live there, too. If none was, it comes first.
    pub(super) fn add_live(&mut self, replica: Replica) {
        match self.state() {
            State::Writing(plan) => {
                let first = self.replica();
                self.set_replica(replica);
                self.change(|rest| {
                    rest.copies.push((plan, first));
                    (rest.state, rest.plan) = (State::Live, None);
                });
            }
            _ => self.change(|rest| rest.others.push(replica)),
        }
    }

    /// One of its plans was given up and its object must be retired. If it has no other place, it
    /// is being removed, and readable no more.
    pub(super) fn gives_up(&mut self) {
        if self.places().count() == 1 {
            self.change(|rest| rest.state = State::Removing);
        }
    }

    /// While it is being removed: when waiting removes fail, in ms.
    pub(super) fn remove_until_ms(&self) -> u64 {
        self.rest().remove_until_ms
    }

    /// It is being removed, and waiting removes fail at this time, in ms.
    pub(super) fn removes_until(&mut self, until_ms: u64) {
        self.change(|rest| {
            (rest.state, rest.remove_until_ms) = (State::Removing, until_ms);
        });
    }

    /// The first replica. If none is live, its plan was granted first.
    pub(super) fn replica(&self) -> Replica {
        self.rest().exact.unwrap_or_else(|| self.first.replica())
    }

    /// The segment of the first replica.
    pub(super) fn segment_id(&self) -> SegmentId {
        self.first.segment_id
    }

    /// The slot of the first replica.
    pub(super) fn at(&self) -> SlotRef {
        self.first.at
    }

    /// The first replica, and the other live ones.
    pub(super) fn replicas(&self) -> impl Iterator<Item = Replica> {
        std::iter::once(self.replica()).chain(self.rest().others.iter().copied())
    }

    /// The replicas, with those that are being written.
    pub(super) fn places(&self) -> impl Iterator<Item = Replica> {
        self.replicas().chain(self.rest().copies.iter().map(|(_, replica)| *replica))
    }

    /// Whether one of its places is `at`.
    pub(super) fn is_at(&self, at: SlotRef) -> bool {
        self.first.at == at || self.rest.is_some() && self.places().any(|r| r.at == at)
    }

    /// The replica at `from` lies elsewhere now.
    pub(super) fn relocate(&mut self, from: SlotRef, to: Replica) {
        if self.first.at == from {
            self.set_replica(to);
        }
        if self.rest().others.iter().any(|other| other.at == from) {
            self.change(|rest| {
                let moved = rest.others.iter_mut().filter(|other| other.at == from);
                moved.for_each(|other| *other = to);
            });
        }
    }

    /// Forgets the place at `at`. The next one is the first: a live one, if there is one.
    pub(super) fn forget(&mut self, at: SlotRef) -> Forgotten {
        let plan = self.plan_at(at);
        if self.is_extra(at) {
            self.change(|rest| rest.extras.retain(|extra| *extra != at));
        }
        if self.first.at != at {
            self.change(|rest| {
                rest.others.retain(|other| other.at != at);
                rest.copies.retain(|(_, copy)| copy.at != at);
            });
            return Forgotten { plan, survives: true };
        }
        let mut next = None;
        if self.rest.is_some() {
            self.change(|rest| next = rest.next());
        }
        next.into_iter().for_each(|next| self.set_replica(next));
        Forgotten { plan, survives: next.is_some() }
    }

    /// One more replica, as the first or as the last one.
    #[cfg(test)]
    pub(super) fn add(&mut self, replica: Replica, as_first: bool) {
        let known = self.replica();
        let (first, other) = if as_first { (replica, known) } else { (known, replica) };
        self.set_replica(first);
        self.change(|rest| rest.others.push(other));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Term;
    use proptest::prelude::*;

    const PLAN: PlanId = PlanId { term: Term { number: 3, master: 9 }, seq: 4 };

    fn replica(slot: u32, offset: u64, len: u64, bytes_total: u64) -> Replica {
        let object = ObjectDesc { extent: Extent { offset, len }, bytes_total, page_bytes: 4096 };
        let segment_id = SegmentId { rank: 1, segment: 2 };
        Replica { segment_id, at: SlotRef { incarnation: 7, slot, epoch: 5 }, object }
    }

    fn live(replica: Replica) -> Entry {
        Entry::live(Key::new(b"k").unwrap(), replica)
    }

    fn writing(replica: Replica) -> Entry {
        Entry::writing(Key::new(b"k").unwrap(), replica, PLAN)
    }

    #[test]
    fn a_live_entry_takes_64_bytes_and_no_box() {
        assert_eq!((size_of::<Packed>(), size_of::<Option<Entry>>()), (48, 64));
        for replica in [replica(0, 4096 * 9, 777, 777), replica(0, 1 << 43, 5 << 12, 20_000)] {
            let mut entry = writing(replica);
            assert_eq!(
                (entry.state(), entry.plan_at(replica.at)),
                (State::Writing(PLAN), Some(PLAN))
            );
            assert!(entry.rest.is_some());
            entry.commits(PLAN);
            assert!(entry.rest.is_none() && entry.is_live());
            assert_eq!(entry.replica(), replica);
            entry.removes_until(8);
            assert_eq!((entry.state(), entry.remove_until_ms()), (State::Removing, 8));
        }
    }

    fn copy(slot: u32) -> (PlanId, Replica) {
        (PlanId { seq: u64::from(slot) + 100, ..PLAN }, replica(slot, 4096, 4096, 4096))
    }

    fn slots(replicas: impl Iterator<Item = Replica>) -> Vec<u32> {
        replicas.map(|replica| replica.at.slot).collect()
    }

    #[test]
    fn the_replica_that_is_committed_first_makes_the_entry_live_and_comes_first() {
        let ((second_plan, second), (third_plan, third)) = (copy(1), copy(2));
        let mut entry = writing(replica(0, 8192, 4096, 4096));
        entry.add_copy(second_plan, second);
        entry.add_copy(third_plan, third);
        assert_eq!((slots(entry.replicas()), slots(entry.places())), (vec![0], vec![0, 1, 2]));
        entry.commits(third_plan);
        assert!(entry.is_live());
        let plans = (entry.plan_at(third.at), entry.plan_at(second.at));
        assert_eq!(plans, (None, Some(second_plan)));
        assert_eq!((slots(entry.replicas()), slots(entry.places())), (vec![2], vec![2, 1, 0]));
        entry.commits(PLAN);
        assert_eq!(slots(entry.replicas()), [2, 0]);
        // The live ones come first as long as there are any.
        assert_eq!(entry.forget(third.at), Forgotten { plan: None, survives: true });
        assert_eq!((entry.state(), slots(entry.places())), (State::Live, vec![0, 1]));
        assert!(entry.forget(entry.at()).survives);
        assert_eq!(entry.state(), State::Writing(second_plan));
        assert_eq!(entry.forget(second.at), Forgotten { plan: Some(second_plan), survives: false });
    }

    #[test]
    fn i6_an_entry_that_is_being_removed_stays_so_until_its_last_place_is_gone() {
        let (plan, second) = copy(1);
        let mut entry = writing(replica(0, 8192, 4096, 4096));
        entry.add_copy(plan, second);
        entry.removes_until(9);
        entry.commits(plan);
        assert_eq!((entry.state(), slots(entry.replicas())), (State::Removing, vec![0, 1]));
        assert_eq!(entry.forget(entry.at()), Forgotten { plan: Some(PLAN), survives: true });
        assert_eq!(entry.state(), State::Removing);
        assert!(!entry.forget(second.at).survives);
    }

    proptest! {
        #[test]
        fn every_replica_comes_back_as_it_was_given(
            offset: u64, len: u64, bytes_total: u64, aligned in any::<[bool; 3]>()
        ) {
            let of = |n: u64, aligned: bool| if aligned { n >> 20 & !4095 } else { n };
            let len = of(len, aligned[1]);
            let bytes_total = if aligned[2] { len } else { bytes_total };
            let given = replica(3, of(offset, aligned[0]), len, bytes_total);
            let mut entry = live(given);
            prop_assert_eq!(entry.replica(), given);
            let next = replica(4, 8192, 4096, 4096);
            entry.relocate(given.at, next);
            prop_assert_eq!(entry.replica(), next);
            prop_assert!(entry.rest.is_none());
            entry.add(given, true);
            prop_assert_eq!(entry.replicas().collect::<Vec<_>>(), [given, next]);
            prop_assert!(entry.forget(given.at).survives && !entry.forget(next.at).survives);
            prop_assert_eq!(entry.replica(), next);
        }
    }
}
