//! Which rank a handle puts a key to, and where it expects one, by its view of the membership.

use super::peer::Peer;
use super::peer_log::PeerLog;
use super::{ClientConfig, PutOptions, Shared};
use crate::environment::Environment;
use crate::message::{Medium, Preferred, RankState, View};
use crate::placement::{
    Candidate, Nearest, Placement, RackPath, Site, Strategy, apart, best, drawn,
};
use nkv_store::device_log::ControlLine;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

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
    /// All ranks that take plans or puts into logs.
    all: Vec<Candidate>,
    nearest: Option<Nearest>,
    /// Hosts and racks of ranks.
    sites: BTreeMap<u32, (u64, RackPath)>,
    /// Ranks to which this handle tried to attach since it has this view.
    tried: Mutex<BTreeSet<u32>>,
}

impl RankChoice {
    /// Of a handle at this site, which has this view.
    pub(crate) fn new<'a>(view: &'a View, mut own: Site<'a>) -> Self {
        let beside = view.nodes().find(|(info, _)| info.boot_id == own.boot_id);
        if let Some((info, _)) = beside.filter(|_| own.rack.is_unknown()) {
            own.rack = &info.rack;
        }
        let takes = view.nodes().filter(|(_, state)| *state == RankState::Alive);
        let all = takes.map(|(info, _)| Candidate {
            rank: info.rank,
            distance: own.to(Site::of(info)),
            free_bytes: info.layout.log.len,
        });
        let all: Vec<Candidate> = all.collect();
        let nearest = view.nodes().map(|(info, _)| (own.to(Site::of(info)), info.rank)).min();
        Self {
            placement: view.placement,
            strategy: view.placement.strategy(view.world_size),
            with_logs: all.iter().copied().filter(|c| c.free_bytes > 0).collect(),
            all,
            sites: view.nodes().map(|(i, _)| (i.rank, (i.boot_id, i.rack.clone()))).collect(),
            nearest: nearest.map(|(distance, rank)| Nearest { rank, distance }),
            tried: Mutex::default(),
        }
    }

    /// Ranks in the placement's order for a key of this hash; equally good ones drawn by the key.
    fn ordered(&self, hash: u64, known: &[Candidate]) -> Vec<u32> {
        let cost = |c: &Candidate| (self.strategy.cost(hash, c), drawn(0, hash, c.rank), c.rank);
        let mut ranks: Vec<_> = known.iter().map(cost).collect();
        ranks.sort_unstable();
        ranks.into_iter().map(|(.., rank)| rank).collect()
    }

    /// The first one, and so many others: those that the put names, and ranks on other hosts and
    /// racks, in this order. None if these are not as many ranks with logs.
    fn replicas_from(
        &self,
        first: u32,
        ordered: Vec<u32>,
        (further, wanted): (&[Preferred], usize),
    ) -> Option<Vec<u32>> {
        let named = |rank: u32| further.iter().any(|wish| wish.rank == Some(rank));
        let site = |rank: u32| {
            let (boot_id, rack) = self.sites.get(&rank)?;
            Some(Site { boot_id: *boot_id, numa_node: None, rack })
        };
        let others = ordered.into_iter().filter(|rank| *rank != first && !named(*rank));
        let others = others.filter_map(|rank| Some((rank, site(rank)?))).collect();
        let mut others = apart(site(first).into_iter(), others).into_iter();
        let mut ranks = vec![first];
        for n in 1..wanted {
            let wish = further.get(n - 1).and_then(|wish| wish.rank);
            ranks.push(wish.or_else(|| others.next())?);
        }
        let has_log = |rank: &u32| self.with_logs.iter().any(|c| c.rank == *rank);
        let distinct = ranks.iter().collect::<BTreeSet<_>>().len() == wanted;
        (distinct && ranks.iter().all(has_log)).then_some(ranks)
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
            let ranks = choice.with_logs.iter();
            match choice.placement.by_room() {
                true => best(&*choice.strategy, hash, self.with_room(&choice).into_iter()),
                false => best(&*choice.strategy, hash, ranks.copied()),
            }
        })
    }

    /// The ranks to attach to before puts with keys of these hashes: where room counts, all.
    pub(crate) fn ranks_for(&self, hashes: &[u64]) -> Vec<u32> {
        let choice = self.rank_choice.load();
        match choice.placement.by_room() {
            true => choice.with_logs.iter().map(|c| c.rank).collect(),
            false => hashes.iter().filter_map(|hash| self.rank_for(*hash)).collect(),
        }
    }

    /// The handle tried to attach to these ranks.
    pub(crate) fn tried_to_attach(&self, ranks: &[u32]) {
        let choice = self.rank_choice.load();
        choice.tried.lock().unwrap_or_else(PoisonError::into_inner).extend(ranks);
    }

    /// For keys of these hashes, the ranks whose logs take the replicas of new objects, the first
    /// replica's first. None if fewer ranks have logs, or a rank that the put names has none.
    pub(crate) fn ranks_for_replicas(
        &self,
        hashes: &[u64],
        opts: &PutOptions,
    ) -> Vec<Option<Vec<u32>>> {
        let wanted = usize::from(opts.wanted_replicas());
        let choice = self.rank_choice.load();
        if opts.further.iter().any(|wish| wish.medium != Medium::Any)
            || choice.with_logs.len() < wanted
        {
            return vec![None; hashes.len()];
        }
        let known = match choice.placement.by_room() {
            true => self.with_room(&choice),
            false => choice.with_logs.iter().map(|c| Candidate { free_bytes: 0, ..*c }).collect(),
        };
        let one = |hash: &u64| {
            let ordered = choice.ordered(*hash, &known);
            let placed = || self.hashed(*hash).or_else(|| ordered.first().copied());
            let first = opts.preferred_rank.or_else(placed)?;
            choice.replicas_from(first, ordered, (&opts.further, wanted))
        };
        hashes.iter().map(one).collect()
    }

    /// The ranks whose room has to be known before a choice: all where it counts.
    pub(crate) fn logs_to_compare(&self) -> Vec<u32> {
        let choice = self.rank_choice.load();
        let compared = choice.with_logs.iter().filter(|_| choice.placement.by_room());
        compared.map(|c| c.rank).collect()
    }

    /// The rank where a key of this hash most likely is; None: it may be anywhere.
    #[inline]
    pub(crate) fn likely_rank(&self, hash: u64) -> Option<u32> {
        self.hashed(hash).or_else(|| {
            let choice = self.rank_choice.load();
            // Without logs the master chose, among all.
            let ranks = if choice.with_logs.is_empty() { &choice.all } else { &choice.with_logs };
            let ranks = ranks.iter().copied();
            choice.placement.by_key().then(|| best(&*choice.strategy, hash, ranks))?
        })
    }

    /// The rank whose mapped index is searched first for a key of this hash.
    #[inline]
    pub(crate) fn first_searched(&self, hash: u64) -> u32 {
        self.hashed(hash).or(self.home).unwrap_or_default()
    }

    /// How many ranks can take stripes of one object.
    pub(crate) fn ranks_for_stripes(&self) -> u8 {
        self.rank_choice.load().all.len().try_into().unwrap_or(u8::MAX)
    }

    /// Ranks for so many stripes of an object: one after another from the one that the key's hash
    /// selects, or from this one.
    pub(crate) fn spread_over(&self, hash: u64, stripes: usize, first: Option<u32>) -> Vec<u32> {
        let choice = self.rank_choice.load();
        let mut ranks: Vec<u32> = choice.all.iter().map(|c| c.rank).collect();
        ranks.sort_unstable();
        let selected = hash.checked_rem(ranks.len() as u64).unwrap_or_default() as usize;
        let first = first.map_or(selected, |first| ranks.partition_point(|rank| *rank < first));
        ranks.iter().copied().cycle().skip(first).take(stripes).collect()
    }

    /// The nearest rank, if plans are placed by distance.
    pub(crate) fn nearest(&self) -> Option<Nearest> {
        let choice = self.rank_choice.load();
        choice.nearest.filter(|_| choice.placement.by_distance())
    }

    /// The ranks with logs, and the room that each has until its tail must move, in parts of the
    /// largest log.
    fn with_room(&self, choice: &RankChoice) -> Vec<Candidate> {
        let largest = choice.with_logs.iter().map(|c| c.free_bytes).max().unwrap_or_default();
        let part = (largest / PARTS_OF_LOG).max(1);
        let attached: BTreeMap<u32, Arc<Peer>> = self.peers.firsts().collect();
        // Not locked while room is read, which may wait for the network.
        let tried = choice.tried.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let room = |c: &Candidate| match attached.get(&c.rank) {
            Some(peer) => self.room_of(peer),
            None if tried.contains(&c.rank) => 0,
            None => c.free_bytes,
        };
        let known = choice.with_logs.iter().map(|c| Candidate { free_bytes: room(c) / part, ..*c });
        known.collect()
    }

    /// Bytes that a log takes before its tail must move. Read anew in mapped memory, and elsewhere
    /// only if it is not known from the last put.
    fn room_of(&self, peer: &Arc<Peer>) -> u64 {
        let clock = &*self.env.clock;
        let Some(peer) = self.peers.claiming(peer.clone()) else { return 0 };
        let takes = |log: &&PeerLog| log.takes_puts(clock);
        let Some(log) = peer.open_log().filter(takes) else { return 0 };
        let mut line = ControlLine::unread();
        match log.known_line() {
            Some(known) => line = known,
            None => {
                let read = || log.read_control_line(&*peer.verbs, &mut line);
                if peer.run_blocking(read).is_err() {
                    return 0;
                }
            }
        }
        line.heap_limit().saturating_sub(line.bump_ptr())
    }
}
