//! The entry of one key. A master has millions of them, so an entry that is live in one segment, as
//! nearly all are, takes 64 bytes; what the others have besides is allocated for itself.

use crate::message::{ObjectDesc, PlanId, SegmentId, SlotRef};
use nkv_store::Key;
use nkv_store::arena::Extent;
use nkv_store::layout::PAYLOAD_ALIGN;

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
    /// The plan that writes it, until that is committed or over.
    plan: Option<PlanId>,
    /// Further replicas with the same bytes. Empty until puts write several.
    others: Vec<Replica>,
    /// While Removing: when waiting removes fail, in ms.
    remove_until_ms: u64,
    /// The first replica, where its packed form is not exact.
    exact: Option<Replica>,
}

/// Of an entry that is live in one place.
static NOTHING: Rest =
    Rest { state: State::Live, plan: None, others: Vec::new(), remove_until_ms: 0, exact: None };

impl Rest {
    fn is_nothing(&self) -> bool {
        self.state == State::Live
            && self.plan.is_none()
            && self.others.is_empty()
            && self.exact.is_none()
    }
}

/// The entry of one key.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub key: Key,
    rest: Option<Box<Rest>>,
    /// The one that a plan writes.
    first: Packed,
}

impl Entry {
    /// An entry with one replica.
    pub(super) fn new(key: Key, replica: Replica, state: State, plan: Option<PlanId>) -> Self {
        let mut entry = Self { key, rest: None, first: Packed::of(&replica) };
        entry.set_replica(replica);
        if state != State::Live || plan.is_some() {
            entry.change(|rest| (rest.state, rest.plan) = (state, plan));
        }
        entry
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

    /// The plan that writes it, until that is committed or over.
    pub(super) fn plan(&self) -> Option<PlanId> {
        self.rest().plan
    }

    /// It is live: its plan is over. Returns that plan.
    pub(super) fn becomes_live(&mut self) -> Option<PlanId> {
        let plan = self.plan();
        self.change(|rest| (rest.state, rest.plan) = (State::Live, None));
        plan
    }

    /// It is being removed, and readable no more.
    pub(super) fn becomes_removing(&mut self) {
        self.change(|rest| rest.state = State::Removing);
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

    /// The first replica: the one that a plan writes.
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

    pub(super) fn replicas(&self) -> impl Iterator<Item = Replica> {
        std::iter::once(self.replica()).chain(self.rest().others.iter().copied())
    }

    /// Whether one of its replicas is the object at `at`.
    pub(super) fn is_at(&self, at: SlotRef) -> bool {
        self.first.at == at || self.rest().others.iter().any(|replica| replica.at == at)
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

    /// Forgets the replica at `at`; false if it was the last one.
    pub(super) fn survives(&mut self, at: SlotRef) -> bool {
        if self.rest().others.is_empty() {
            return false;
        }
        let mut next = None;
        let was_first = self.first.at == at;
        self.change(|rest| {
            if was_first {
                next = Some(rest.others.remove(0));
            } else {
                rest.others.retain(|other| other.at != at);
            }
        });
        next.into_iter().for_each(|next| self.set_replica(next));
        true
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

    fn entry(replica: Replica, state: State, plan: Option<PlanId>) -> Entry {
        Entry::new(Key::new(b"k").unwrap(), replica, state, plan)
    }

    #[test]
    fn a_live_entry_takes_64_bytes_and_no_box() {
        assert_eq!((size_of::<Packed>(), size_of::<Option<Entry>>()), (48, 64));
        for replica in [replica(0, 4096 * 9, 777, 777), replica(0, 1 << 43, 5 << 12, 20_000)] {
            let mut entry = entry(replica, State::Writing(PLAN), Some(PLAN));
            assert_eq!((entry.state(), entry.plan()), (State::Writing(PLAN), Some(PLAN)));
            assert!(entry.rest.is_some());
            assert_eq!(entry.becomes_live(), Some(PLAN));
            assert!(entry.rest.is_none() && entry.is_live());
            assert_eq!(entry.replica(), replica);
            entry.removes_until(8);
            assert_eq!((entry.state(), entry.remove_until_ms()), (State::Removing, 8));
        }
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
            let mut entry = entry(given, State::Live, None);
            prop_assert_eq!(entry.replica(), given);
            let next = replica(4, 8192, 4096, 4096);
            entry.relocate(given.at, next);
            prop_assert_eq!(entry.replica(), next);
            prop_assert!(entry.rest.is_none());
            entry.add(given, true);
            prop_assert_eq!(entry.replicas().collect::<Vec<_>>(), [given, next]);
            prop_assert!(entry.survives(given.at) && !entry.survives(next.at));
            prop_assert_eq!(entry.replica(), next);
        }
    }
}
