//! Where an object goes: first to a rank, then to one of that rank's segments. It places nothing.

use super::Master;
use crate::error::{Error, Result};
use crate::message::{OpenItem, RankState, Seat};
use nkv_store::KeyId;
use std::cmp::Reverse;

impl Master {
    /// The segments to try, best first and never none: those of `preferred_segment`, else of the
    /// key's hash modulo the world; with none of them usable, the usable one of any rank with most
    /// room. Heaps may differ in size: a hash does not send an object where it can never lie.
    pub(super) fn route(&self, id: KeyId, open: &OpenItem) -> Result<Vec<Seat>> {
        let world = self.truth.world_size;
        let wanted = match open.opts.preferred_segment {
            Some(rank) if rank >= world => {
                return Err(Error::invalid(format!(
                    "preferred_segment {rank} does not exist; ranks are 0 to {}",
                    world - 1
                )));
            }
            Some(rank) => rank,
            None => (id.hash % u64::from(world)) as u32,
        };
        let theirs = self.books.range(Seat::of_rank(wanted)).map(|(seat, _)| *seat);
        let mut seats: Vec<Seat> = theirs.filter(|s| self.may_hold(*s, open)).collect();
        if !seats.is_empty() {
            seats.sort_by_key(|s| (Reverse(self.free_bytes(*s)), *s));
            return Ok(seats);
        }
        let usable = || self.books.keys().copied().filter(|s| self.usable(*s));
        let preferred = open.opts.preferred_segment.is_some();
        // Said of the largest segment of the rank that was named: this object is larger.
        let named = usable().filter(|s| preferred && s.rank == wanted);
        let size = |s: &Seat| self.books.get(s).map_or(0, |b| b.info.arena_bytes);
        let best = named.max_by_key(|s| (size(s), Reverse(*s))).or_else(|| {
            usable().max_by_key(|s| (self.may_hold(*s, open), self.free_bytes(*s), Reverse(*s)))
        });
        best.map(|seat| vec![seat]).ok_or_else(|| {
            let joined = self.books.keys().filter(|s| s.is_first()).count();
            Error::disconnected(format!(
                "no rank can take an object now ({joined} of {world} joined, none alive)"
            ))
        })
    }

    /// True if an object may be placed on a segment, now or once it has room.
    pub(super) fn may_hold(&self, seat: Seat, open: &OpenItem) -> bool {
        let fits = |b: &super::placement::Book| open.bytes_total <= b.info.arena_bytes;
        self.books.get(&seat).is_some_and(fits) && self.usable(seat)
    }

    fn usable(&self, seat: Seat) -> bool {
        self.books.get(&seat).is_some_and(|b| b.reported && b.info.arena_bytes > 0)
            && self.truth.members.state(seat) == Some(RankState::Alive)
    }

    fn free_bytes(&self, seat: Seat) -> u64 {
        self.books.get(&seat).map_or(0, |b| b.arena.free_bytes())
    }
}
