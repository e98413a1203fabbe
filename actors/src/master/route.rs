//! Chooses where an object goes: first a rank, then that rank's segments. It allocates nothing.

use super::Master;
use crate::error::{Error, Result};
use crate::message::{OpenItem, RankState, SegmentId};
use nkv_store::KeyId;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

impl Master {
    /// The segments to try, best first, at least one: those of `preferred_rank`, else of the key's
    /// hash modulo the world size; if none of them can hold the object, the usable segment of any
    /// rank with most room. Heaps may differ in size, so a hashed rank whose heaps are too small is
    /// passed over. `InvalidArgument` if `preferred_rank` does not exist, `Disconnected` if no
    /// segment is usable.
    pub(super) fn route(&self, id: KeyId, open: &OpenItem) -> Result<Vec<SegmentId>> {
        let world = self.durable.world_size;
        let wanted = match open.preferred_rank {
            Some(rank) if rank >= world => {
                return Err(Error::invalid(format!(
                    "preferred_rank {rank} does not exist; ranks are 0 to {}",
                    world - 1
                )));
            }
            Some(rank) => rank,
            None => (id.hash % u64::from(world)) as u32,
        };
        let theirs =
            self.allocators.range(SegmentId::of_rank(wanted)).map(|(segment_id, _)| *segment_id);
        let mut segment_ids: Vec<SegmentId> =
            theirs.filter(|s| self.may_hold(*s, open.bytes_total)).collect();
        if !segment_ids.is_empty() {
            segment_ids.sort_by_key(|s| (Reverse(self.free_bytes(*s)), *s));
            return Ok(segment_ids);
        }
        let usable = || self.allocators.keys().copied().filter(|s| self.usable(*s));
        let preferred = open.preferred_rank.is_some();
        // The largest segment of the preferred rank, so that the caller's size error names it.
        let named = usable().filter(|s| preferred && s.rank == wanted);
        let size = |s: &SegmentId| self.allocators.get(s).map_or(0, |b| b.info.layout.arena.len);
        let best = named.max_by_key(|s| (size(s), Reverse(*s))).or_else(|| {
            usable().max_by_key(|s| {
                (self.may_hold(*s, open.bytes_total), self.free_bytes(*s), Reverse(*s))
            })
        });
        best.map(|segment_id| vec![segment_id]).ok_or_else(|| {
            let joined = self.allocators.keys().filter(|s| s.is_first()).count();
            Error::disconnected(format!(
                "no rank can take an object now ({joined} of {world} joined, none alive)"
            ))
        })
    }

    /// Where further replicas of an object may go, best first: one segment of each other rank, by
    /// room; those of hosts that have none yet come before all others.
    pub(super) fn route_copies(&self, taken: &[SegmentId], bytes: u64) -> Vec<SegmentId> {
        let mut by_rank: BTreeMap<u32, SegmentId> = BTreeMap::new();
        let usable = self.allocators.keys().copied();
        let is_taken = |s: &SegmentId| taken.iter().any(|known| known.rank == s.rank);
        let usable = usable.filter(|s| !is_taken(s) && self.may_hold(*s, bytes));
        for segment_id in usable.filter(|s| !self.durable.members.is_backlogged(*s)) {
            let best = by_rank.entry(segment_id.rank).or_insert(segment_id);
            if self.free_bytes(segment_id) > self.free_bytes(*best) {
                *best = segment_id;
            }
        }
        let mut all: Vec<SegmentId> = by_rank.into_values().collect();
        all.sort_by_key(|s| (Reverse(self.free_bytes(*s)), *s));
        // The first one of each host that has none, then the others.
        let host = |s: &SegmentId| self.allocators.get(s).map(|b| b.info.boot_id);
        let mut hosts: BTreeSet<_> = taken.iter().map(host).collect();
        let (alone, shared): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|s| hosts.insert(host(s)));
        alone.into_iter().chain(shared).collect()
    }

    /// True if an object may be placed on a segment, now or once it has room.
    pub(super) fn may_hold(&self, segment_id: SegmentId, bytes: u64) -> bool {
        let fits = |b: &super::allocator::SegmentAllocator| bytes <= b.info.layout.arena.len;
        self.allocators.get(&segment_id).is_some_and(fits) && self.usable(segment_id)
    }

    fn usable(&self, segment_id: SegmentId) -> bool {
        self.allocators.get(&segment_id).is_some_and(|b| b.reported && b.info.layout.arena.len > 0)
            && self.durable.members.state(segment_id) == Some(RankState::Alive)
    }

    fn free_bytes(&self, segment_id: SegmentId) -> u64 {
        self.allocators.get(&segment_id).map_or(0, |b| b.arena.free_bytes())
    }
}
