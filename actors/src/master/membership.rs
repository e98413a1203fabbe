//! Membership at the master: which segments may join, which are gone, and the frames of their
//! owners. Every segment joins, reports and leaves by itself; a rank is counted by its first
//! segment.

use super::allocator::SegmentAllocator;
use super::members::{LinkId, Member};
use super::{Join, Master};
use crate::error::Error;
use crate::message::{
    MAX_SEGMENTS, MAX_TEXT_BYTES, MasterToOwner, OwnerGauges, OwnerToMaster, RankInfo, RankState,
    Refusal, RefusedRank, SegmentId, Settings, Term,
};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use tokio::sync::Notify;

/// The reason given when a segment left by its own `Leave`.
const LEFT: &str = "left";

/// The answer to a join: what the rank is sent, and its link.
#[derive(Debug)]
pub struct Joined {
    /// The master's term.
    pub term: Term,
    /// Settings of the cluster.
    pub settings: Settings,
    /// Identifies the link in [`super::FromRank`] and [`super::LinkDown`].
    pub link: LinkId,
    /// The link's task counts here the frames that it has written to the socket.
    pub written: Arc<AtomicU64>,
    /// Notifies the link's task that a call waits for a frame that it was handed.
    pub urgent: Arc<Notify>,
}

/// Ranks that run and were refused; `stats` and errors show them. One entry per rank: its last
/// refusal, and when that was, in ms.
#[derive(Debug, Default)]
pub(super) struct NotTaken(BTreeMap<u32, (RefusedRank, u64)>);

impl NotTaken {
    /// The caller has checked that the job has a rank of that number.
    fn note(&mut self, info: &RankInfo, why: &Refusal, now_ms: u64) {
        let mut why = why.to_string();
        why.truncate(why.floor_char_boundary(MAX_TEXT_BYTES));
        let refused = RefusedRank { rank: info.rank, pid: info.pid, why, ago_ms: 0 };
        self.0.insert(info.rank, (refused, now_ms));
    }

    /// All refused ranks, by rank number.
    pub(super) fn list(&self, now_ms: u64) -> Vec<RefusedRank> {
        let now = |(refused, at_ms): &(RefusedRank, u64)| RefusedRank {
            ago_ms: now_ms.saturating_sub(*at_ms),
            ..refused.clone()
        };
        self.0.values().map(now).collect()
    }

    /// Text about the first of them to append to an error; empty if there is none.
    pub(super) fn text(&self, now_ms: u64) -> String {
        let first = self.list(now_ms).into_iter().next();
        first.map_or_else(String::new, |r| {
            let RefusedRank { rank, pid, why, ago_ms } = r;
            format!("; rank {rank} (pid {pid}) was refused {ago_ms} ms ago: {why}")
        })
    }
}

impl Master {
    pub(super) fn join(&mut self, m: Join) -> Result<Joined, Refusal> {
        self.check_consistent(&m).inspect_err(|why| self.note_refused(&m.info, why))?;
        self.refuse_the_lost(&m).inspect_err(|why| {
            if matches!(why, Refusal::Gone { .. }) {
                self.durable.members.slow_path.late_refused.one();
            }
        })?;
        let segment_id = m.info.id();
        let Join { info, seen, tx, own, of_this_life, holds, siblings, .. } = m;
        let now = self.now_ms();
        let (written, urgent) = (Arc::new(AtomicU64::new(0)), Arc::new(Notify::new()));
        let same_host = info.boot_id == self.durable.boot_id && info.memory.name().is_some();
        let mut replaced = None;
        let (link, term) = {
            let mut inner = self.durable.members.lock();
            if let Some(m) = inner.ranks.get(&segment_id)
                && m.info.incarnation != info.incarnation
            {
                let linked = m.tx.as_ref().is_some_and(|t| !t.is_closed());
                if linked {
                    let heard_ms = now.saturating_sub(m.heard_ms);
                    let (rank, pid) = (segment_id.rank, m.info.pid);
                    return Err(Refusal::RankAlive { rank, pid, heard_ms });
                }
                replaced = Some(m.info.incarnation);
                inner.forget(segment_id);
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
                same_host,
                own,
                last_sent: None,
                recorded: None,
                heard_ms: now,
                gauges: OwnerGauges::default(),
                reported: false,
                holds,
                siblings,
                brought: seen,
                keeps_view: 0,
                stamp_ms: None,
                of_this_life,
            };
            inner.ranks.insert(segment_id, member);
            inner.missed.joins(segment_id, info.incarnation);
            inner.spread_view();
            (inner.links, inner.term)
        };
        if let Some(old) = replaced {
            let old = format!("{old:016x}");
            tracing::info!(%segment_id, old, "replaced by a new incarnation");
            self.drop_objects_of(segment_id);
            self.allocators.remove(&segment_id);
            if segment_id.is_first() {
                self.drop_orphans(segment_id.rank);
            }
        }
        self.not_taken.0.remove(&segment_id.rank);
        self.forget_resending(segment_id);
        tracing::info!(%segment_id, incarnation = format!("{:016x}", info.incarnation), "joined");
        self.allocators.entry(segment_id).or_insert_with(|| SegmentAllocator::new(info));
        self.ask_for_report(segment_id);
        let settings = self.durable.settings.clone();
        Ok(Joined { term, settings, link, written, urgent })
    }

    fn check_consistent(&self, m: &Join) -> Result<(), Refusal> {
        let (segment_id, ours) = (m.info.id(), self.durable.world_size);
        let (rank, segment) = (segment_id.rank, segment_id.segment);
        let checked = m.info.check().and_then(|()| m.info.check_siblings(&m.siblings));
        if m.info.world_size != ours || rank >= ours {
            return Err(Refusal::WorldSize { rank, ours, theirs: m.info.world_size });
        }
        let (here, theirs) = (self.durable.hasher.fingerprint(), m.info.key_fingerprint);
        if theirs != here {
            return Err(Refusal::Keys { who: segment_id.to_string(), ours: here, theirs });
        }
        if segment >= MAX_SEGMENTS {
            return Err(Refusal::Segment { rank, segment, last: MAX_SEGMENTS - 1 });
        }
        if let Err(e) = checked.and_then(|()| m.seen.check(ours)) {
            if let Some(before) = self.refused_lines.next(self.now_ms()) {
                tracing::warn!(%segment_id, error = %e, before, "refused: an impossible hello");
            }
            return Err(Refusal::Invalid(e.message().to_string()));
        }
        Ok(())
    }

    /// Shows a refusal in the statistics and in the log; there limited, since a refused rank tries
    /// again twice a second for as long as it runs.
    fn note_refused(&mut self, info: &RankInfo, why: &Refusal) {
        if info.rank < self.durable.world_size {
            self.not_taken.note(info, why, self.now_ms());
        }
        if !self.refused.is_due((info.id(), info.world_size), self.now_ms()) {
            return;
        }
        let (segment_id, at, pid) = (info.id(), &info.control, info.pid);
        tracing::warn!(%segment_id, %at, pid, %why, "refused a rank");
    }

    /// A rank was started again: the other segments that its former process had mounted are gone.
    fn drop_orphans(&mut self, rank: u32) {
        let orphans = self.durable.members.lock().orphans(rank);
        for (segment_id, incarnation) in orphans {
            self.gone(segment_id, incarnation, "its node was started afresh");
        }
    }

    /// A segment's owner sent an invalid frame. It is sent the reason, and its link ends [I19]. Its
    /// objects are recovered by the report that follows its next join.
    pub(super) fn refuse_frame(&self, segment_id: SegmentId, error: &Error) {
        let members = &self.durable.members;
        if let Some(before) = self.refused_lines.next(self.now_ms()) {
            tracing::warn!(%segment_id, %error, before, "an invalid frame of an owner: its link \
                                                         is cut");
        }
        let why = error.message();
        let why = &why[..why.floor_char_boundary(MAX_TEXT_BYTES)];
        members.send(segment_id, MasterToOwner::Refused(why.to_string()));
        members.cut(segment_id);
    }

    pub(super) fn receive_from_segment(
        &mut self,
        segment_id: SegmentId,
        incarnation: u64,
        up: OwnerToMaster,
    ) {
        match up {
            OwnerToMaster::Heartbeat { gauges, stamp_ms } => {
                self.durable.members.stamped(segment_id, stamp_ms, self.now_ms());
                if let Some(m) = self.durable.members.lock().ranks.get_mut(&segment_id) {
                    m.gauges = *gauges;
                }
            }
            OwnerToMaster::Retired(list) => self.retired(segment_id, &list),
            OwnerToMaster::Freed(list) => self.freed(segment_id, list),
            OwnerToMaster::Adopted(a) => self.adopted(segment_id, a),
            OwnerToMaster::PlansRecorded { up_to } => {
                self.durable.members.has_recorded(segment_id, up_to);
                self.recheck_recorded(segment_id, up_to);
            }
            OwnerToMaster::Report { number, slots, last } => {
                self.report(segment_id, number, slots, last)
            }
            OwnerToMaster::Draining => {
                {
                    let mut inner = self.durable.members.lock();
                    if let Some(m) = inner.ranks.get_mut(&segment_id) {
                        m.state = RankState::Draining;
                    }
                    inner.changed();
                }
                self.durable.members.send(segment_id, MasterToOwner::NoMorePlans);
                // Opens that waited for room there are routed elsewhere.
                self.retry_waiting(segment_id.rank);
            }
            OwnerToMaster::ViewSeen { number } => {
                self.durable.members.keeps_view(segment_id, number);
                self.complete_deferred();
            }
            OwnerToMaster::Announced(list) => self.announced(segment_id, list),
            OwnerToMaster::Accepted(list) => self.accepted(segment_id, list),
            OwnerToMaster::Moved(list) => self.moved(segment_id, list),
            OwnerToMaster::Groups(news) => self.note_groups(news),
            OwnerToMaster::OftenRead(list) => self.often_read(segment_id, list),
            OwnerToMaster::Expired(list) => self.expired(segment_id, &list),
            OwnerToMaster::LogAnswer { number, served, removed, taken } => {
                self.log_answer(segment_id, number, served, (removed, taken));
            }
            OwnerToMaster::DiskAnswer { number, answer } => {
                self.disk_answer(segment_id, number, answer);
            }
            OwnerToMaster::Leave => self.gone(segment_id, incarnation, LEFT),
        }
    }

    /// Removes segments without a heartbeat for a TTL. Their incarnations never come back [I17].
    pub(super) fn expire_ranks(&mut self) {
        let (now, ttl) = (self.now_ms(), self.durable.ttl_ms);
        let late: Vec<_> = {
            let inner = self.durable.members.lock();
            let late = |m: &&Member| now >= m.heard_ms + ttl;
            inner.ranks.values().filter(late).map(|m| (m.info.id(), m.info.incarnation)).collect()
        };
        for (segment_id, incarnation) in late {
            self.gone(segment_id, incarnation, "no heartbeat for a TTL");
        }
    }

    /// Removes a segment, if this is its current incarnation.
    pub(super) fn gone(&mut self, segment_id: SegmentId, incarnation: u64, why: &str) {
        {
            let mut inner = self.durable.members.lock();
            if inner.ranks.get(&segment_id).is_none_or(|m| m.info.incarnation != incarnation) {
                return;
            }
            inner.forget(segment_id);
        }
        if why == LEFT {
            tracing::info!(%segment_id, "left");
        } else {
            tracing::warn!(%segment_id, why, "gone");
        }
        self.drop_objects_of(segment_id);
        self.allocators.remove(&segment_id);
        self.blind.remove(&segment_id);
        self.recheck_commits(segment_id);
        self.recovering.remove(&segment_id);
        self.unpark();
        // Opens that waited for room there are routed elsewhere, or fail.
        self.retry_waiting(segment_id.rank);
    }

    /// Removes its objects from the index, ends plans on it, and completes removes of its keys.
    pub(super) fn drop_objects_of(&mut self, segment_id: SegmentId) {
        self.drop_replicas(segment_id, |_| true);
    }
}
