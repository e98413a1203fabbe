//! Chooses where an object goes: first ranks, by the job's placement, then their segments. It
//! allocates nothing.

use super::Master;
use super::allocator::Need;
use crate::error::{Error, Result};
use crate::message::{Medium, OpenItem, RankInfo, RankState, SegmentId};
use crate::placement::{Candidate, FARTHEST, Nearest, Site, apart};
use nkv_store::{KeyId, Retention};
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// What of a rank can hold an object.
struct RankSpace<'a> {
    free_bytes: u64,
    /// Its segment with most room, and how much that is.
    best: SegmentId,
    most: u64,
    /// Of its first such segment.
    info: &'a RankInfo,
}

/// Ranks that are tried for one object, at most.
const RANKS_TRIED: usize = 32;

impl Master {
    /// The ranks to try, best first, and the segment to wait for if none of them has room:
    /// `preferred_rank`, else those that the placement names. If no segment can hold the object, no
    /// rank, and the largest segment for the error's text. `InvalidArgument` if `preferred_rank`
    /// does not exist, `Disconnected` if no segment is usable.
    pub(super) fn route(&self, id: KeyId, open: &OpenItem) -> Result<(Vec<u32>, SegmentId)> {
        let (world, need) = (self.durable.world_size, Need::of(open));
        if let Some(rank) = open.preferred_rank.filter(|rank| *rank >= world) {
            return Err(Error::invalid(format!(
                "preferred_rank {rank} does not exist; ranks are 0 to {}",
                world - 1
            )));
        }
        if let Some(Nearest { rank, distance }) = open.nearest
            && (rank >= world || distance > FARTHEST)
        {
            return Err(Error::invalid(format!(
                "a writer's nearest rank {rank}, at distance {distance}: ranks are 0 to {}, \
                 distances at most {FARTHEST}",
                world - 1
            )));
        }
        let fixed = open.preferred_rank.or_else(|| self.placement.fixed(id.hash));
        let best_of = |rank: u32| self.segments_of(rank, need).first().copied();
        if let Some((rank, best)) = fixed.and_then(|rank| Some((rank, best_of(rank)?))) {
            return Ok((vec![rank], best));
        }
        let any = Need { bytes: 0, ..need };
        let usable = || self.allocators.keys().copied().filter(|s| self.may_hold(*s, any));
        let size = |s: &SegmentId| self.allocators.get(s).map_or(0, |b| b.info.layout.arena.len);
        let largest = |s: &SegmentId| (size(s), Reverse(*s));
        let preferred = usable().filter(|s| open.preferred_rank == Some(s.rank));
        if let Some(too_small) = preferred.max_by_key(largest) {
            return Ok((Vec::new(), too_small));
        }
        let mut ranks = self.ranked(id.hash, open.nearest, need);
        ranks.truncate(if fixed.is_some() { 1 } else { RANKS_TRIED });
        if let Some((_, best)) = ranks.first() {
            return Ok((ranks.iter().map(|(rank, _)| *rank).collect(), *best));
        }
        usable().max_by_key(largest).map(|too_small| (Vec::new(), too_small)).ok_or_else(|| {
            if open.medium != Medium::Any {
                return Error::invalid(format!(
                    "no rank that is alive has memory of the kind {}: start one with --memory, or \
                     mount a segment",
                    open.medium
                ));
            }
            let joined = self.allocators.keys().filter(|s| s.is_first()).count();
            Error::disconnected(format!(
                "no rank can take an object now ({joined} of {world} joined, none alive)"
            ))
        })
    }

    /// Segments of a rank that can hold an object, those with most room first.
    pub(super) fn segments_of(&self, rank: u32, need: Need) -> Vec<SegmentId> {
        let theirs = self.allocators.range(SegmentId::of_rank(rank)).map(|(id, _)| *id);
        let mut theirs: Vec<_> = theirs.filter(|s| self.may_hold(*s, need)).collect();
        theirs.sort_by_key(|s| (Reverse(self.free_bytes(*s)), *s));
        theirs
    }

    /// Ranks that can hold an object, in the placement's order, each with its segment that has
    /// most room.
    fn ranked(&self, key: u64, nearest: Option<Nearest>, need: Need) -> Vec<(u32, SegmentId)> {
        let origin = nearest.and_then(|n| Some((n, self.site_of(n.rank)?)));
        let distance = |info: &RankInfo| {
            origin
                .as_ref()
                .map_or(FARTHEST, |(nearest, site)| nearest.distance(site.to(Site::of(info))))
        };
        let candidates = self.rooms(need).into_iter().map(|(rank, room)| {
            let (distance, free_bytes) = (distance(room.info), room.free_bytes);
            let candidate = Candidate { rank, distance, free_bytes };
            (self.placement.cost(key, &candidate), rank, room.best)
        });
        let mut candidates: Vec<_> = candidates.collect();
        candidates.sort_unstable();
        candidates.into_iter().map(|(_, rank, best)| (rank, best)).collect()
    }

    /// What of each rank can hold an object.
    fn rooms(&self, need: Need) -> BTreeMap<u32, RankSpace<'_>> {
        let mut rooms: BTreeMap<u32, RankSpace<'_>> = BTreeMap::new();
        let inner = self.durable.members.lock();
        // Both are in the order of segments.
        let alive = inner.ranks.iter().filter(|(_, m)| m.state == RankState::Alive);
        let mut alive = alive.map(|(segment_id, _)| segment_id).peekable();
        for (segment_id, b) in &self.allocators {
            while alive.next_if(|at| *at < segment_id).is_some() {}
            if alive.peek() != Some(&segment_id) || !b.takes(need) {
                continue;
            }
            let free = b.arena.free_bytes();
            let of_segment =
                RankSpace { free_bytes: 0, most: free, best: *segment_id, info: &b.info };
            let room = rooms.entry(segment_id.rank).or_insert(of_segment);
            room.free_bytes += free;
            if free > room.most {
                (room.most, room.best) = (free, *segment_id);
            }
        }
        rooms
    }

    fn site_of(&self, rank: u32) -> Option<Site<'_>> {
        let mut theirs = self.allocators.range(SegmentId::of_rank(rank));
        theirs.next().map(|(_, first)| Site::of(&first.info))
    }

    /// Where further replicas of an object may go, best first: one segment of each other rank, in
    /// the placement's order. Those of hosts that have none yet come before all others, and of
    /// these those of racks that have none.
    pub(super) fn route_copies(
        &self,
        (key, nearest): (u64, Option<Nearest>),
        taken: &[SegmentId],
        need: Need,
    ) -> Vec<SegmentId> {
        let is_free = |rank: u32| taken.iter().all(|known| known.rank != rank);
        let takes = |s: &SegmentId| !self.durable.members.is_backlogged(*s);
        let ranks = self.ranked(key, nearest, need).into_iter();
        let ranks = ranks.filter(|(rank, _)| is_free(*rank)).map(|(_, best)| best).filter(takes);
        let site = |s: &SegmentId| self.allocators.get(s).map(|b| Site::of(&b.info));
        let ranks: Vec<_> = ranks.filter_map(|s| Some((s, site(&s)?))).collect();
        apart(taken.iter().filter_map(site), ranks)
    }

    /// Whether a rank that has no replica yet has room for one of so many bytes now.
    pub(super) fn takes_another(
        &self,
        taken: &[SegmentId],
        bytes: u64,
        retention: Retention,
    ) -> bool {
        let is_free = |s: &SegmentId| taken.iter().all(|known| known.rank != s.rank);
        self.allocators.keys().any(|s| {
            is_free(s)
                && self.free_bytes(*s) >= bytes
                && self.may_retain(*s, bytes, retention)
                && self.may_hold(*s, Need::of_bytes(bytes))
                && !self.durable.members.is_backlogged(*s)
        })
    }

    /// True if an object may be placed on a segment, now or once it has room.
    pub(super) fn may_hold(&self, segment_id: SegmentId, need: Need) -> bool {
        self.allocators.get(&segment_id).is_some_and(|b| b.takes(need))
            && self.durable.members.state(segment_id) == Some(RankState::Alive)
    }

    fn free_bytes(&self, segment_id: SegmentId) -> u64 {
        self.allocators.get(&segment_id).map_or(0, |b| b.arena.free_bytes())
    }
}
