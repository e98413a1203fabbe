//! Extra replicas that readers make: a handle keeps what it read from another host at its own rank
//! (`cache_on_read`). They are evicted before all other objects, and count for nothing.

use super::Master;
use super::allocator::Need;
use super::open::Opening;
use crate::error::{Error, Result};
use crate::message::{MAX_REPLICAS, PlanDesc, ReplicaSet, SegmentId};
use nkv_store::{KeyId, Retention};

impl Master {
    /// A plan for an extra replica of a stored object, at the rank that is preferred.
    ///
    /// # Errors
    /// `AlreadyExists` if the host of that rank has a replica, or the object as many as there may
    /// be. `OutOfMemory` where it would have to evict others.
    pub(super) fn place_extra(&mut self, o: &Opening, id: KeyId) -> Result<PlanDesc> {
        let rank = o.open.preferred_rank.filter(|rank| *rank < self.durable.world_size);
        let rank = rank.ok_or_else(|| Error::invalid("an extra replica names its rank"))?;
        let host = |id: SegmentId| self.allocators.get(&id).map(|b| b.info.boot_id);
        let here = host(SegmentId::first(rank));
        let Some(e) = self.objects.get(&id) else {
            return Err(Error::not_found(format!("no key {}", o.key)));
        };
        let there = |id: SegmentId| id.rank == rank || host(id) == here;
        let beside = e.places().find(|r| there(r.segment_id)).map(|r| r.segment_id);
        if beside.is_some() || e.places().count() >= usize::from(MAX_REPLICAS) {
            let beside = beside.map_or_else(String::new, |id| format!(", one of them on {id}"));
            let text = format!("key {} has {} replicas{beside}", o.key, e.places().count());
            return Err(Error::already_exists(text));
        }
        // It would outlive its time; or it would be where a missing replica is to be.
        let goes = matches!(e.retention(), Retention::UntilRead(_));
        if goes || e.begun().0 < self.wanted(&id, e).0 {
            let text = format!("key {} goes after a read, or lacks a replica", o.key);
            return Err(Error::already_exists(text));
        }
        let (object, mut set) = (e.replica().object, e.set());
        let takes = |id: &SegmentId| {
            !self.durable.members.is_backlogged(*id)
                && self.may_retain(*id, object.bytes_total, Retention::Extra)
        };
        let room =
            self.segments_of(rank, Need::of_bytes(object.bytes_total)).into_iter().find(takes);
        if set == ReplicaSet::NONE && room.is_some() {
            self.replicate(std::slice::from_ref(&o.open.key.clone().into()), 1).remove(0)?;
            set = self.objects.get(&id).map_or(ReplicaSet::NONE, |e| e.set());
        }
        let copy = room.and_then(|id| self.take_copy(id, object, Retention::Extra));
        let copy = copy.ok_or_else(|| {
            let text = format!("rank {rank} has no room for an extra replica of key {}", o.key);
            Error::out_of_memory(text).at_rank(rank)
        })?;
        let granted = [(self.grant_one(o, &copy, (set, Retention::Extra)), copy)];
        self.add_copies(id, &granted);
        self.described_of(&o.key, granted.into_iter())
    }
}
