//! Membership as the master decides it: who may join, who is gone, and what each segment's owner
//! says. Every segment joins, reports and leaves by itself; ranks are counted by their first ones.

use super::members::{LinkId, Member};
use super::placement::Book;
use super::{Join, Master};
use crate::error::Error;
use crate::message::{
    Down, MAX_SEGMENTS, MAX_TEXT_BYTES, OwnerGauges, RankInfo, RankState, Refusal, Seat, Settings,
    Term, Up,
};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use tokio::sync::Notify;

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
    /// Tells the link's task that somebody waits for what it was handed.
    pub urgent: Arc<Notify>,
}

impl Master {
    pub(super) fn join(&mut self, m: Join) -> Result<Joined, Refusal> {
        self.refuse_the_odd(&m).inspect_err(|why| self.tell_refused(&m.info, why))?;
        let lost = self.refuse_the_lost(&m);
        if matches!(lost, Err(Refusal::Gone { .. })) {
            self.truth.members.rare.late_refused.one();
        }
        lost?;
        let seat = m.info.seat();
        let Join { info, seen, tx, own, holds, siblings, .. } = m;
        let siblings = siblings.into_iter();
        let siblings = siblings.map(|(segment, inc)| (Seat { rank: seat.rank, segment }, inc));
        let now = self.now_ms();
        let (written, urgent) = (Arc::new(AtomicU64::new(0)), Arc::new(Notify::new()));
        let near = info.boot_id == self.truth.boot_id && !info.segment.is_empty();
        let mut replaced = None;
        let (link, term) = {
            let mut inner = self.truth.members.lock();
            if let Some(m) = inner.ranks.get(&seat)
                && m.info.incarnation != info.incarnation
            {
                let linked = m.tx.as_ref().is_some_and(|t| !t.is_closed());
                if linked {
                    let heard_ms = now.saturating_sub(m.heard_ms);
                    let (rank, pid) = (seat.rank, m.info.pid);
                    return Err(Refusal::RankAlive { rank, pid, heard_ms });
                }
                replaced = Some(m.info.incarnation);
            }
            if replaced.is_some() {
                inner.forget(seat);
            }
            inner.links = inner.links.next();
            let member = Member {
                info: info.clone(),
                state: RankState::Alive,
                tx: Some(tx),
                link: inner.links,
                sent: 0,
                written: written.clone(),
                urgent: urgent.clone(),
                near,
                own,
                told: None,
                recorded: None,
                heard_ms: now,
                gauges: OwnerGauges::default(),
                reported: false,
                holds,
                siblings: siblings.collect(),
                brought: seen,
                keeps_view: 0,
            };
            inner.ranks.insert(seat, member);
            inner.spread_view();
            (inner.links, inner.term)
        };
        if let Some(old) = replaced {
            tracing::info!(%seat, old = format!("{old:016x}"), "replaced by a new incarnation");
            self.drop_objects_of(seat);
            self.books.remove(&seat);
            if seat.is_first() {
                self.drop_orphans(seat.rank);
            }
        }
        tracing::info!(%seat, incarnation = format!("{:016x}", info.incarnation), "joined");
        self.books.entry(seat).or_insert_with(|| Book::new(info));
        self.ask_for_report(seat);
        let settings = self.truth.settings.clone();
        Ok(Joined { term, settings, link, written, urgent })
    }

    fn refuse_the_odd(&self, m: &Join) -> Result<(), Refusal> {
        let (seat, ours) = (m.info.seat(), self.truth.world_size);
        let (rank, segment) = (seat.rank, seat.segment);
        let checked = m.info.check().and_then(|()| m.info.check_siblings(&m.siblings));
        if m.info.world_size != ours || rank >= ours {
            return Err(Refusal::WorldSize { rank, ours, theirs: m.info.world_size });
        }
        let (here, theirs) = (self.truth.hasher.fingerprint(), m.info.key_fingerprint);
        if theirs != here {
            return Err(Refusal::Keys { who: seat.to_string(), ours: here, theirs });
        }
        if segment >= MAX_SEGMENTS {
            return Err(Refusal::Segment { rank, segment, last: MAX_SEGMENTS - 1 });
        }
        if let Err(e) = checked.and_then(|()| m.seen.check(ours)) {
            if let Some(before) = self.refused_lines.next(self.now_ms()) {
                tracing::warn!(%seat, error = %e, before, "a hello that cannot be true: refused");
            }
            return Err(Refusal::Invalid(e.message));
        }
        Ok(())
    }

    /// A rank that does not fit asks twice a second for as long as it runs.
    fn tell_refused(&mut self, info: &RankInfo, why: &Refusal) {
        if !self.refused.is_due((info.seat(), info.world_size), self.now_ms()) {
            return;
        }
        tracing::warn!(seat = %info.seat(), at = %info.control, pid = info.pid, %why, "refused a rank");
    }

    /// A rank started afresh: the segments its former node had mounted went with that node.
    fn drop_orphans(&mut self, rank: u32) {
        let orphans = self.truth.members.lock().orphans(rank);
        for (seat, incarnation) in orphans {
            self.gone(seat, Some(incarnation), "its node was started afresh");
        }
    }

    /// What a segment's owner said cannot be. It is told so, and its link ends [I19]: whatever it holds is
    /// made good by the report that follows its next join.
    pub(super) fn refuse_words(&self, seat: Seat, error: &Error) {
        let members = &self.truth.members;
        if let Some(before) = self.refused_lines.next(self.now_ms()) {
            tracing::warn!(%seat, %error, before, "an owner's word that cannot be: its link is cut");
        }
        let why = &error.message;
        let why = &why[..why.floor_char_boundary(MAX_TEXT_BYTES)];
        members.send(seat, Down::Refused(why.to_string()));
        members.cut(seat);
    }

    pub(super) fn seat_says(&mut self, seat: Seat, incarnation: u64, up: Up) {
        match up {
            Up::Heartbeat(gauges) => {
                if let Some(m) = self.truth.members.lock().ranks.get_mut(&seat) {
                    m.gauges = *gauges;
                }
            }
            Up::Retired(list) => self.retired(seat, &list),
            Up::Freed(list) => self.freed(seat, list),
            Up::Adopted(a) => self.adopted(seat, a),
            Up::PlansRecorded { up_to } => {
                self.truth.members.has_recorded(seat, up_to);
                self.settle_recorded(seat, up_to);
            }
            Up::Report { number, slots, last } => self.report(seat, number, slots, last),
            Up::Draining => {
                {
                    let mut inner = self.truth.members.lock();
                    if let Some(m) = inner.ranks.get_mut(&seat) {
                        m.state = RankState::Draining;
                    }
                    inner.number += 1;
                }
                self.truth.members.send(seat, Down::NoMorePlans);
                // Those who waited for its room are routed elsewhere.
                self.retry_waiting(seat.rank);
            }
            Up::ViewSeen { number } => {
                self.truth.members.keeps_view(seat, number);
                self.settle_deferred();
            }
            Up::Announced(list) => self.announced(seat, list),
            Up::LogAnswer { number, served, removed, taken } => {
                self.log_answer(seat, number, served, (removed, taken));
            }
            Up::Leave => self.gone(seat, Some(incarnation), LEFT),
        }
    }

    /// Past the TTL a segment is gone, and that incarnation for good [I17].
    pub(super) fn expire_ranks(&mut self) {
        let (now, ttl) = (self.now_ms(), self.truth.ttl_ms);
        let late: Vec<_> = {
            let inner = self.truth.members.lock();
            let late = |m: &&Member| now >= m.heard_ms + ttl;
            inner.ranks.values().filter(late).map(|m| (m.info.seat(), m.info.incarnation)).collect()
        };
        for (seat, incarnation) in late {
            self.gone(seat, Some(incarnation), "not heard of for a TTL");
        }
    }

    /// `incarnation` guards against a word that was meant for an earlier one.
    pub(super) fn gone(&mut self, seat: Seat, incarnation: Option<u64>, why: &str) {
        {
            let mut inner = self.truth.members.lock();
            let Some(m) = inner.ranks.get(&seat) else { return };
            if incarnation.is_some_and(|i| i != m.info.incarnation) {
                return;
            }
            inner.forget(seat);
        }
        if why == LEFT {
            tracing::info!(%seat, "left");
        } else {
            tracing::warn!(%seat, why, "gone");
        }
        self.drop_objects_of(seat);
        self.books.remove(&seat);
        self.blind.remove(&seat);
        self.settle_commits(seat);
        if self.recovering.remove(&seat) && self.recovering.is_empty() {
            self.unpark();
        }
        // Those who waited for its room are routed elsewhere or told why not.
        self.retry_waiting(seat.rank);
    }

    /// Its objects leave the index, plans towards it are over, removes of its keys are done.
    pub(super) fn drop_objects_of(&mut self, seat: Seat) {
        let theirs: Vec<_> = self
            .objects
            .iter()
            .filter(|(_, e)| e.seat == seat)
            .map(|(id, e)| (*id, e.at))
            .collect();
        for (id, at) in theirs {
            self.drop_entry(id, at);
        }
    }
}
