//! Which rank a handle puts a key to, and where it expects one, by its view of the membership.

use super::{ClientConfig, Shared};
use crate::environment::Environment;
use crate::message::{RankState, View};
use crate::placement::{Candidate, Nearest, Placement, Site, Strategy, best};
use std::sync::atomic::Ordering;

/// Room of logs is compared in such parts of the largest: what a handle knows of it is not exact,
/// and puts of one batch shall not all go to one rank.
const PARTS_OF_LOG: u64 = 16;

/// What a handle knows of ranks and of the job's placement.
#[derive(Debug)]
pub(crate) struct RankChoice {
    placement: Placement,
    strategy: Box<dyn Strategy>,
    /// Ranks whose logs take puts, with all their room.
    with_logs: Vec<Candidate>,
    nearest: Option<Nearest>,
}

impl RankChoice {
    /// Of a handle at this site, which has this view.
    pub(crate) fn new<'a>(view: &'a View, mut own: Site<'a>) -> Self {
        let beside = view.nodes().find(|(info, _)| info.boot_id == own.boot_id);
        if let Some((info, _)) = beside.filter(|_| own.rack.is_unknown()) {
            own.rack = &info.rack;
        }
        let takes = view.nodes().filter(|(_, state)| *state == RankState::Alive);
        let with_logs = takes.filter(|(info, _)| info.layout.log_slots > 0);
        let with_logs = with_logs.map(|(info, _)| Candidate {
            rank: info.rank,
            distance: own.to(Site::of(info)),
            free_bytes: info.layout.log.len,
        });
        let nearest = view.nodes().map(|(info, _)| (own.to(Site::of(info)), info.rank)).min();
        Self {
            placement: view.placement,
            strategy: view.placement.strategy(view.world_size),
            with_logs: with_logs.collect(),
            nearest: nearest.map(|(distance, rank)| Nearest { rank, distance }),
        }
    }

    /// As `View`'s ranks are placed by hash: their number; else 0.
    pub(crate) fn hashed_over(view: &View) -> u32 {
        match view.placement {
            Placement::Hash => view.world_size,
            _ => 0,
        }
    }
}

/// Where a handle is that is configured so.
pub(crate) fn site_of<'a>(config: &'a ClientConfig, env: &Environment) -> Site<'a> {
    let boot_id = env.machine.boot_id();
    Site { boot_id, numa_node: config.numa_node, rack: &config.rack }
}

impl Shared {
    /// The rank that a key's hash selects, in a job that places by hash. None in another, and while
    /// this handle does not know the world size.
    #[inline]
    fn hashed(&self, hash: u64) -> Option<u32> {
        let world = self.hashed_over.load(Ordering::Relaxed);
        hash.checked_rem(u64::from(world)).map(|rank| rank as u32)
    }

    /// The rank whose log takes a new object with a key of this hash, if that is known.
    #[inline]
    pub(crate) fn rank_for(&self, hash: u64) -> Option<u32> {
        self.hashed(hash).or_else(|| {
            let choice = self.rank_choice.load();
            let largest = choice.with_logs.iter().map(|c| c.free_bytes).max()?;
            let part = (largest / PARTS_OF_LOG).max(1);
            let known = choice.with_logs.iter().map(|c| match choice.placement.by_room() {
                true => Candidate { free_bytes: self.room_at(c) / part, ..*c },
                false => *c,
            });
            best(&*choice.strategy, hash, known)
        })
    }

    /// The rank where a key of this hash most likely is; None: it may be anywhere.
    #[inline]
    pub(crate) fn likely_rank(&self, hash: u64) -> Option<u32> {
        self.hashed(hash).or_else(|| {
            let choice = self.rank_choice.load();
            let known = choice.with_logs.iter().copied();
            choice.placement.by_key().then(|| best(&*choice.strategy, hash, known))?
        })
    }

    /// Where this handle is, if plans are placed by that.
    pub(crate) fn nearest(&self) -> Option<Nearest> {
        let choice = self.rank_choice.load();
        choice.nearest.filter(|_| choice.placement.by_distance())
    }

    /// Bytes that the log of a rank takes before its tail must move, as this handle last saw it.
    fn room_at(&self, candidate: &Candidate) -> u64 {
        let peer = self.peers.first_of(candidate.rank);
        let line = peer.as_ref().and_then(|peer| peer.open_log()?.known_line());
        line.map_or(candidate.free_bytes, |line| line.heap_limit().saturating_sub(line.bump_ptr()))
    }
}
