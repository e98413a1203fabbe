//! The index: one entry per key, from the grant of its plan to its owner's `Retired`.

use super::Master;
use super::entry::{Entry, Replica, State};
use crate::error::{Error, Result};
use crate::message::{EndCause, ObjMeta, PlanId, SegmentId, SlotRef};
use nkv_store::{Key, KeyId, Retention};
use smallvec::SmallVec;
use std::hash::{BuildHasherDefault, Hasher};

/// (producer, request, item): identifies an open, so that a repeated request is recognised [I11].
pub(super) type Asked = (u64, u64, u32);

/// An open plan at the master.
#[derive(Debug, Clone)]
pub(super) struct PlanInfo {
    pub segment_id: SegmentId,
    pub at: SlotRef,
    pub asked: Asked,
    pub token: u64,
    pub retention: Retention,
    // Its owner reported it, so the owner has recorded it.
    pub reported: bool,
    // The owner was asked to end it, for this cause.
    pub ending: Option<EndCause>,
}

/// Uses a [`KeyId`] as its own hash, since it is a hash already.
#[derive(Default)]
pub(super) struct IdentityHasher(u64);

impl Hasher for IdentityHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u64(&mut self, n: u64) {
        self.0 = self.0.rotate_left(32) ^ n;
    }
}

pub(super) type IdentityState = BuildHasherDefault<IdentityHasher>;

impl Master {
    /// Lists an object, under the number that its slots keep too.
    pub(super) fn enter(&mut self, id: KeyId, entry: Entry) {
        let places: SmallVec<[_; 2]> = entry.places().map(|p| (p.segment_id, p.at)).collect();
        self.add_object(id, entry);
        places.into_iter().for_each(|(segment_id, at)| self.list_at(id, segment_id, at));
        self.awaiting.note(id);
    }

    /// A slot has one of the replicas of a listed object.
    pub(super) fn list_at(&mut self, id: KeyId, segment_id: SegmentId, at: SlotRef) {
        let number = self.objects.number(&id);
        if let (Some(number), Some(b)) = (number, self.allocators.get_mut(&segment_id)) {
            b.list(at.slot, at.epoch, number);
        }
    }

    /// The identity of the object that was listed at a slot. If that is gone, it may be another
    /// one, which lies elsewhere: a caller must check with [`Entry::is_at`].
    pub(super) fn listed_at(&self, segment_id: SegmentId, at: &SlotRef) -> Option<KeyId> {
        let number = self.allocators.get(&segment_id)?.listed(at.slot, at.epoch)?;
        self.objects.at(number).map(|(id, _)| *id)
    }

    /// The identity of a key in this job [I16].
    pub(super) fn id_of(&self, key: &[u8]) -> KeyId {
        self.durable.hasher.id(key)
    }

    /// The location of an object, as clients get it.
    pub(super) fn meta(&self, key: &Key, replica: &Replica) -> ObjMeta {
        ObjMeta {
            key: self.id_of(key.as_bytes()),
            rank: replica.segment_id.rank,
            at: replica.at,
            header_off: self.header_off(replica.segment_id, replica.at.slot),
            object: replica.object,
        }
    }

    /// The locations of an object that a reader can be sent to, the first replica first.
    pub(super) fn metas(&self, e: &Entry) -> impl Iterator<Item = ObjMeta> {
        let reachable = e.replicas().filter(|replica| self.reachable(replica.segment_id));
        reachable.map(|replica| self.meta(&e.key, &replica))
    }

    /// Drops the replicas in a segment that `gone` picks.
    pub(super) fn drop_replicas(&mut self, segment_id: SegmentId, gone: impl Fn(SlotRef) -> bool) {
        let all = self.objects.iter().flat_map(|(id, e)| e.places().map(|r| (*id, r)));
        let gone = all.filter(|(_, r)| r.segment_id == segment_id && gone(r.at));
        for (id, at) in gone.map(|(id, r)| (id, r.at)).collect::<Vec<_>>() {
            self.drop_entry(id, at);
            self.note_short(id);
        }
    }

    /// The entry of a key. `Corrupt` if another key with the same 128-bit identity is stored [I16].
    pub(super) fn entry(&self, key: &[u8]) -> Result<Option<&Entry>> {
        let id = self.id_of(key);
        let entry = self.objects.get(&id);
        match entry {
            Some(e) if e.key.as_bytes() != key => Err(Error::corrupt(format!(
                "two keys with one 128-bit identity ({id:?}): {} is stored; use another key",
                e.key
            ))),
            other => Ok(other),
        }
    }

    /// Removes the place at `at` from its entry, and the entry with its last one; then completes
    /// the removes that wait for it. Nothing if the entry has no place there.
    pub(super) fn drop_entry(&mut self, id: KeyId, at: SlotRef) {
        let Some(e) = self.objects.get_mut(&id).filter(|e| e.is_at(at)) else {
            return self.forget_aside(id, at);
        };
        let segment_id = e.places().find(|r| r.at == at).map(|r| r.segment_id);
        let extra = e.is_extra(at);
        let gone = e.forget(at);
        if gone.survives {
            if let Some(plan) = gone.plan {
                self.plan_over(plan);
                if !extra {
                    self.note_unmade(id);
                }
            }
            self.drop_aside(id, segment_id);
            if self.repairs.was_surplus(at) {
                self.note_short(id);
            }
            return self.awaiting.note(id);
        }
        self.repairs.ended(&id, at);
        if let Some(e) = self.take_object(&id) {
            if let State::Writing(plan) = e.state() {
                let cause = self.plans.get(&plan).and_then(|p| p.ending);
                let lost = self.durable.members.state(e.segment_id()).is_none();
                self.awaiting.note_end(id, &e, (cause, lost));
            }
            gone.plan.into_iter().for_each(|plan| self.plan_over(plan));
            if e.state() == State::Removing {
                self.counters.removed += 1;
            }
            self.end_of_striped(&e);
            self.list_aside(id, &e.key);
        }
        for (batch, item) in self.removing.remove(&id).unwrap_or_default() {
            self.complete_remove(batch, item, Ok(()));
        }
    }

    /// A plan ended without a commit.
    pub(super) fn plan_over(&mut self, plan: PlanId) {
        if self.plans.remove(&plan).is_some() {
            self.counters.plans_ended += 1;
        }
    }
}
