//! Membership as the master decides it: who may join, who is gone, and what each rank says.

use super::members::{LinkId, Member};
use super::placement::RankBook;
use super::{Join, Master};
use crate::message::{OwnerGauges, RankState, Refusal, Settings, Term, Up};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// Why a rank is gone that said so itself.
const LEFT: &str = "left";

/// What a rank that joined is told, and the number of its link.
#[derive(Debug)]
pub struct Joined {
    /// The master's term.
    pub term: Term,
    /// Settings of the cluster.
    pub settings: Settings,
    /// Names the link in [`super::FromRank`] and [`super::LinkDown`].
    pub link: LinkId,
    /// The link's task counts here the frames that left this process.
    pub written: Arc<AtomicU64>,
}

impl Master {
    pub(super) fn join(&mut self, m: Join) -> Result<Joined, Refusal> {
        let (rank, ours) = (m.info.rank, self.truth.world_size);
        if m.info.world_size != ours || rank >= ours {
            return Err(Refusal::WorldSize { rank, ours, theirs: m.info.world_size });
        }
        self.refuse_the_lost(&m)?;
        let Join { info, seen, tx, holds, .. } = m;
        let now = self.now_ms();
        let written = Arc::new(AtomicU64::new(0));
        let mut replaced = None;
        let (link, term) = {
            let mut inner = self.truth.members.lock();
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
            if replaced.is_some() {
                inner.forget(rank);
            }
            inner.links = inner.links.next();
            let member = Member {
                info: info.clone(),
                state: RankState::Alive,
                tx: Some(tx),
                link: inner.links,
                sent: 0,
                written: written.clone(),
                heard_ms: now,
                gauges: OwnerGauges::default(),
                reported: false,
                holds,
                brought: seen,
                keeps_view: 0,
            };
            inner.ranks.insert(rank, member);
            inner.spread_view();
            (inner.links, inner.term)
        };
        if let Some(old) = replaced {
            tracing::info!(rank, old = format!("{old:016x}"), "replaced by a new incarnation");
            self.drop_rank_objects(rank);
            self.books.remove(&rank);
        }
        tracing::info!(rank, incarnation = format!("{:016x}", info.incarnation), "joined");
        self.books.entry(rank).or_insert_with(|| RankBook::new(info));
        self.ask_for_report(rank);
        Ok(Joined { term, settings: self.truth.settings.clone(), link, written })
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
            Up::ViewSeen { number } => {
                self.truth.members.keeps_view(rank, number);
                self.settle_deferred();
            }
            Up::Leave => self.gone(rank, Some(incarnation), LEFT),
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
            self.gone(rank, Some(incarnation), "not heard of for a TTL");
        }
    }

    /// `incarnation` guards against a word that was meant for an earlier one.
    pub(super) fn gone(&mut self, rank: u32, incarnation: Option<u64>, why: &str) {
        {
            let mut inner = self.truth.members.lock();
            let Some(m) = inner.ranks.get(&rank) else { return };
            if incarnation.is_some_and(|i| i != m.info.incarnation) {
                return;
            }
            inner.forget(rank);
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
