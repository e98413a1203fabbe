//! Membership as the master keeps it: who is in, by which link, since when; the view; the producers.
//! The table lies outside the actor: connection tasks read it, and it survives a panic.

use super::Master;
use super::placement::RankBook;
use crate::message::{
    Down, OwnerGauges, RankInfo, RankState, RankStats, Refusal, Settings, Term, Up, View,
};
use hashbrown::{HashMap, HashSet};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::mpsc;

/// Frames waiting for one owner; past it the link is cut and its next report says everything.
pub const DOWNLINK_FRAMES: usize = 65_536;
/// Why a rank is gone that said so itself.
const LEFT: &str = "left";
/// Incarnations remembered as gone; older ones cannot come back in practice.
const MAX_GONE: usize = 65_536;

/// Names one connection of one rank. A type of its own: incarnations are numbers, too.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LinkId(u64);

impl LinkId {
    fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

#[derive(Debug)]
struct Member {
    info: RankInfo,
    state: RankState,
    tx: Option<mpsc::Sender<Down>>,
    // Names the connection behind `tx`: frames of an older one are no longer heard.
    link: LinkId,
    heard_ms: u64,
    gauges: OwnerGauges,
    // Its report arrived: plans may be placed there.
    reported: bool,
}

#[derive(Debug, Default)]
struct Producer {
    connections: usize,
    since_ms: u64,
}

#[derive(Debug, Default)]
struct Inner {
    ranks: BTreeMap<u32, Member>,
    gone: HashSet<u64>,
    producers: HashMap<u64, Producer>,
    number: u64,
    links: LinkId,
}

/// See the file's first paragraph.
#[derive(Debug)]
pub struct Members {
    inner: Mutex<Inner>,
    settled: AtomicBool,
    term: Term,
    world_size: u32,
}

impl Members {
    /// Nobody yet.
    pub fn new(term: Term, world_size: u32) -> Self {
        Self { inner: Mutex::default(), settled: AtomicBool::new(false), term, world_size }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The present view.
    pub fn view(&self) -> View {
        let inner = self.lock();
        View {
            number: inner.number,
            term: self.term,
            world_size: self.world_size,
            ranks: inner.ranks.values().map(|m| (m.info.clone(), m.state)).collect(),
        }
    }

    /// Ranks that joined and reported.
    pub fn ready_ranks(&self) -> usize {
        self.lock().ranks.values().filter(|m| m.reported).count()
    }

    /// True once every rank has reported, or when `late` was once true; stays so.
    pub(super) fn settled(&self, late: bool) -> bool {
        if self.settled.load(Ordering::Relaxed) {
            return true;
        }
        let now = late || self.ready_ranks() >= self.world_size as usize;
        self.settled.fetch_or(now, Ordering::Relaxed) || now
    }

    pub(super) fn set_reported(&self, rank: u32) {
        if let Some(m) = self.lock().ranks.get_mut(&rank) {
            m.reported = true;
        }
    }

    /// State of a rank.
    pub fn state(&self, rank: u32) -> Option<RankState> {
        self.lock().ranks.get(&rank).map(|m| m.state)
    }

    /// Rows for the statistics.
    pub fn rows(&self, now_ms: u64) -> Vec<RankStats> {
        let inner = self.lock();
        let row = |m: &Member| RankStats {
            rank: m.info.rank,
            incarnation: m.info.incarnation,
            state: m.state.to_string(),
            heard_ms: now_ms.saturating_sub(m.heard_ms),
            owner: m.gauges,
            ..RankStats::default()
        };
        inner.ranks.values().map(row).collect()
    }

    /// Sends to an owner; a choked link is cut, its next report repairs what was lost.
    pub(super) fn send(&self, rank: u32, down: Down) {
        let mut inner = self.lock();
        let Some(m) = inner.ranks.get_mut(&rank) else {
            return;
        };
        if let Some(tx) = &m.tx
            && tx.try_send(down).is_err()
        {
            tracing::warn!(rank, "the link to this rank is choked or down");
            m.tx = None;
            m.state = RankState::Suspect;
            inner.number += 1;
        }
    }

    /// The master itself stood still for so long: nobody is the worse for its silence.
    pub(super) fn forgive(&self, ms: u64, now_ms: u64) {
        let mut inner = self.lock();
        // Not into the future: a rank that is silent from now on is gone a TTL from now.
        inner.ranks.values_mut().for_each(|m| m.heard_ms = (m.heard_ms + ms).min(now_ms));
        inner.producers.values_mut().for_each(|p| p.since_ms = (p.since_ms + ms).min(now_ms));
    }

    /// A sign of life; false if it comes over any but the present link of the rank.
    pub(super) fn heard(&self, rank: u32, link: LinkId, now_ms: u64) -> bool {
        let mut inner = self.lock();
        match inner.ranks.get_mut(&rank) {
            Some(m) if m.link == link => {
                m.heard_ms = m.heard_ms.max(now_ms);
                true
            }
            _ => false,
        }
    }

    /// A link ended. An older one than the present says nothing of the rank.
    pub(super) fn link_down(&self, rank: u32, link: LinkId) {
        let mut inner = self.lock();
        let Some(m) = inner.ranks.get_mut(&rank) else { return };
        if m.link == link && m.state != RankState::Suspect {
            m.state = RankState::Suspect;
            m.tx = None;
            inner.number += 1;
            tracing::warn!(rank, "link down: the rank is suspect");
        }
    }

    /// A client connection began.
    pub fn producer_up(&self, producer: u64) {
        self.lock().producers.entry(producer).or_default().connections += 1;
    }

    /// A client connection ended.
    pub fn producer_down(&self, producer: u64, now_ms: u64) {
        if let Some(p) = self.lock().producers.get_mut(&producer) {
            p.connections = p.connections.saturating_sub(1);
            p.since_ms = now_ms;
        }
    }

    /// Producers without a connection for a TTL; each is told once.
    pub(super) fn lost_producers(&self, now_ms: u64, ttl_ms: u64) -> Vec<u64> {
        let mut inner = self.lock();
        let late = |p: &Producer| p.connections == 0 && now_ms >= p.since_ms + ttl_ms;
        let lost: Vec<_> =
            inner.producers.iter().filter(|(_, p)| late(p)).map(|(id, _)| *id).collect();
        for id in &lost {
            inner.producers.remove(id);
        }
        lost
    }

    /// Members with their links, for a rebuilt master.
    pub(super) fn infos(&self) -> Vec<RankInfo> {
        self.lock().ranks.values().map(|m| m.info.clone()).collect()
    }
}

/// What a rank that joined is told, and the number of its link.
#[derive(Debug)]
pub struct Joined {
    /// The master's term.
    pub term: Term,
    /// Settings of the cluster.
    pub settings: Settings,
    /// Names the link in [`super::FromRank`] and [`super::LinkDown`].
    pub link: LinkId,
}

impl Master {
    pub(super) fn join(
        &mut self,
        info: RankInfo,
        tx: mpsc::Sender<Down>,
    ) -> Result<Joined, Refusal> {
        let (rank, ours) = (info.rank, self.truth.world_size);
        if info.world_size != ours || rank >= ours {
            return Err(Refusal::WorldSize { rank, ours, theirs: info.world_size });
        }
        let now = self.now_ms();
        let mut replaced = None;
        let link = {
            let mut inner = self.truth.members.lock();
            if inner.gone.contains(&info.incarnation) {
                return Err(Refusal::Gone { rank, incarnation: info.incarnation });
            }
            if let Some(m) = inner.ranks.get(&rank)
                && m.info.incarnation != info.incarnation
            {
                let linked = m.tx.as_ref().is_some_and(|t| !t.is_closed());
                if linked {
                    let heard_ms = now.saturating_sub(m.heard_ms);
                    return Err(Refusal::RankAlive { rank, pid: m.info.pid, heard_ms });
                }
                replaced = Some(m.info.incarnation);
            }
            if let Some(old) = replaced {
                forget_member(&mut inner, rank, old);
            }
            let member = Member {
                info: info.clone(),
                state: RankState::Alive,
                tx: Some(tx),
                link: inner.links.next(),
                heard_ms: now,
                gauges: OwnerGauges::default(),
                reported: false,
            };
            inner.ranks.insert(rank, member);
            inner.number += 1;
            inner.links = inner.links.next();
            inner.links
        };
        if let Some(old) = replaced {
            tracing::info!(rank, old = format!("{old:016x}"), "replaced by a new incarnation");
            self.drop_rank_objects(rank);
            self.books.remove(&rank);
        }
        tracing::info!(rank, incarnation = format!("{:016x}", info.incarnation), "joined");
        self.books.entry(rank).or_insert_with(|| RankBook::new(info));
        self.ask_for_report(rank);
        Ok(Joined { term: self.truth.term, settings: self.truth.settings.clone(), link })
    }

    pub(super) fn rank_says(&mut self, rank: u32, incarnation: u64, up: Up) {
        match up {
            Up::Heartbeat(gauges) => {
                if let Some(m) = self.truth.members.lock().ranks.get_mut(&rank) {
                    m.gauges = gauges;
                }
            }
            Up::Retired(list) => self.retired(rank, &list),
            Up::Freed(list) => self.freed(rank, list),
            Up::Adopted(a) => self.adopted(rank, a),
            Up::Report { number, slots, last } => self.report(rank, number, slots, last),
            Up::Draining => {
                let mut inner = self.truth.members.lock();
                if let Some(m) = inner.ranks.get_mut(&rank) {
                    m.state = RankState::Draining;
                }
                inner.number += 1;
            }
            Up::Leave => self.gone(rank, incarnation, LEFT),
        }
    }

    /// Past the TTL a rank is gone, and that incarnation for good [I17].
    pub(super) fn expire_ranks(&mut self) {
        let (now, ttl) = (self.now_ms(), self.truth.ttl_ms);
        let late: Vec<_> = {
            let inner = self.truth.members.lock();
            let late = |m: &&Member| now >= m.heard_ms + ttl;
            inner.ranks.values().filter(late).map(|m| (m.info.rank, m.info.incarnation)).collect()
        };
        for (rank, incarnation) in late {
            self.gone(rank, incarnation, "not heard of for a TTL");
        }
    }

    fn gone(&mut self, rank: u32, incarnation: u64, why: &str) {
        {
            let mut inner = self.truth.members.lock();
            if inner.ranks.get(&rank).is_none_or(|m| m.info.incarnation != incarnation) {
                return;
            }
            forget_member(&mut inner, rank, incarnation);
        }
        if why == LEFT {
            tracing::info!(rank, "the rank left");
        } else {
            tracing::warn!(rank, why, "the rank is gone");
        }
        self.drop_rank_objects(rank);
        self.books.remove(&rank);
        self.recovering.remove(&rank);
        self.blind.remove(&rank);
        // Those who waited for its room are routed elsewhere or told why not.
        self.retry_waiting(rank);
    }

    /// Its objects leave the index, plans towards it are over, removes of its keys are done.
    pub(super) fn drop_rank_objects(&mut self, rank: u32) {
        let theirs: Vec<_> = self
            .objects
            .iter()
            .filter(|(_, e)| e.rank == rank)
            .map(|(id, e)| (*id, e.at))
            .collect();
        for (id, at) in theirs {
            self.drop_entry(id, at);
        }
    }
}

fn forget_member(inner: &mut Inner, rank: u32, incarnation: u64) {
    inner.ranks.remove(&rank);
    if inner.gone.len() >= MAX_GONE {
        inner.gone.clear();
    }
    inner.gone.insert(incarnation);
    inner.number += 1;
}
