//! The table of members, one per segment: term, links, views, producers. It is kept outside the
//! Master actor: connection tasks read it, and it survives a panic.

mod gone;
mod outbox;

pub use outbox::DOWNLINK_FRAMES;

use crate::durations::{Durations, Histogram, named};
use crate::error::Result;
use crate::message::{
    MasterToOwner, OwnerGauges, OwnerToMaster, PlanId, RankInfo, RankState, RankStats, Request,
    SeenView, SegmentId, Term, View, is_news, is_quorum,
};
use crate::placement::Placement;
use crate::slow_path::MasterSlowPath;
use gone::Gone;
use hashbrown::HashSet;
use nkv_store::KeyId;
use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, mpsc};

/// Longest wait for a later view; then the same view is sent again.
pub(crate) const WATCH_LIMIT: Duration = Duration::from_secs(5);

/// How long an elected master waits for ranks that were alive when it was elected.
const LATE_MS: u64 = 3_000;

/// Identifies one connection of one segment. A type of its own, so that it is not confused with an
/// incarnation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LinkId(u64);

impl LinkId {
    pub(super) fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

#[derive(Debug)]
pub(super) struct Member {
    pub info: RankInfo,
    pub state: RankState,
    pub tx: Option<mpsc::Sender<MasterToOwner>>,
    // The connection behind `tx`: frames of an older one are ignored.
    pub link: LinkId,
    // Frames handed to the link's task, and frames that it has written to the socket.
    pub sent: u64,
    pub written: Arc<AtomicU64>,
    // Notified when a call waits for a frame that was handed to the link.
    pub urgent: Arc<Notify>,
    // Whether its memory can be mapped by clients on this host.
    pub same_host: bool,
    // It is in this process, and ends with it: no commit waits until it has recorded the plan.
    pub own: bool,
    // The last plan sent over this link, and the last that its owner has recorded.
    pub last_sent: Option<PlanId>,
    pub recorded: Option<PlanId>,
    pub heard_ms: u64,
    pub gauges: OwnerGauges,
    // Its report arrived: plans may be placed there.
    pub reported: bool,
    // Whether anything was placed on it before it joined.
    pub holds: bool,
    // The other segments of its node, if it is a first one: segment and incarnation.
    pub siblings: Vec<(u32, u64)>,
    // The view that it kept from an earlier master, and the number of the latest view of ours that
    // it keeps.
    pub brought: SeenView,
    pub keeps_view: u64,
    // Its last stamp of ours: until a lease after it, it obeys no other master. None: it returned
    // none yet.
    pub stamp_ms: Option<u64>,
    // Its owner was made in this process, and obeyed no other master.
    pub of_this_life: bool,
}

#[derive(Debug, Default)]
struct Producer {
    connections: usize,
    // How many of them are rings: a producer with a ring maps the memory of owners on this host.
    rings: usize,
    since_ms: u64,
}

#[derive(Debug, Default)]
pub(super) struct Inner {
    pub term: Term,
    // When the term began, and whether every rank has reported since or a TTL has passed; latched.
    pub began_ms: u64,
    pub settled: bool,
    // The term was settled and had a quorum at some time: its answers from then are valid. Latched.
    pub ruled: bool,
    pub ranks: BTreeMap<SegmentId, Member>,
    pub gone: Gone,
    // Incarnations that have reported their objects in this term, also if their links broke since.
    pub reported_once: HashSet<u64>,
    // Found so since the last join: asked for every put.
    none_unreported: bool,
    // Time, and number of the view, at which there was a quorum. Within a view stamps only grow.
    quorum_at: Option<(u64, u64)>,
    // Views of earlier masters that ranks brought with their joins.
    pub past: Vec<SeenView>,
    // Keys put while a rank with objects of an earlier term had not reported. Kept here, so that a
    // panic of the actor does not lose them.
    pub superseded: HashSet<KeyId>,
    // Removals of which the disks of ranks that were away do not know.
    pub missed: super::disk::Missed,
    // Ordered, so that lost producers are handled in a fixed order.
    producers: BTreeMap<u64, Producer>,
    pub number: u64,
    // Wakes the tasks that wait for a later view. Not a tokio `watch`, which wakes them in any
    // order.
    later: Arc<Notify>,
    // Number of the first view without the member that was lost last: removes wait until other
    // ranks keep that view.
    pub loss: u64,
    pub links: LinkId,
}

/// See the file's first paragraph.
#[derive(Debug)]
pub struct Members {
    inner: Mutex<Inner>,
    world_size: u32,
    placement: Placement,
    // The master's own rank.
    rank: u32,
    // Ranks that were alive when it was elected.
    alive: BTreeSet<u32>,
    // See `Settings`; 0: a rank counts as long as its link is up.
    lease_ms: u64,
    later: Arc<Notify>,
    // Kept here, so that a panic of the actor does not lose it.
    pub(crate) slow_path: MasterSlowPath,
    // Times from the arrival of a request to its answer, by kind.
    pub(crate) requests: [Histogram; Request::KINDS.len()],
}

impl Members {
    /// The durations of requests, by kind.
    pub(crate) fn request_times(&self) -> Vec<(&'static str, Durations)> {
        named(Request::KINDS, &self.requests)
    }

    /// A table without members.
    pub fn new(term: Term, (rank, world_size): (u32, u32), lease_ms: u64, now_ms: u64) -> Self {
        let inner = Inner { term, began_ms: now_ms, ..Inner::default() };
        let (later, slow_path) = (inner.later.clone(), MasterSlowPath::default());
        let requests = Default::default();
        Self {
            inner: Mutex::new(inner),
            world_size,
            placement: Placement::default(),
            rank,
            alive: BTreeSet::new(),
            lease_ms,
            later,
            slow_path,
            requests,
        }
    }

    /// The same, that waits longer for these ranks: they were alive when it was elected.
    pub(crate) fn waiting_for(self, alive: BTreeSet<u32>) -> Self {
        Self { alive, ..self }
    }

    /// The same, of a job that places objects so.
    pub fn with_placement(self, placement: Placement) -> Self {
        Self { placement, ..self }
    }

    pub(super) fn placement(&self) -> Placement {
        self.placement
    }

    pub(super) fn world_size(&self) -> u32 {
        self.world_size
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The master's term.
    pub fn term(&self) -> Term {
        self.lock().term
    }

    /// The present view.
    pub fn view(&self) -> View {
        let inner = self.lock();
        View {
            number: inner.number,
            term: inner.term,
            master: self.rank,
            world_size: self.world_size,
            placement: self.placement,
            settled: inner.settled,
            ranks: inner.ranks.values().map(|m| (m.info.clone(), m.state)).collect(),
        }
    }

    /// The view once it is later than `seen`, or the same after `WATCH_LIMIT`.
    pub(crate) async fn view_after(&self, seen: (Term, u64)) -> View {
        let later = async {
            loop {
                let mut later = pin!(self.later.notified());
                // Registered before the check, so that a change after it wakes this task.
                later.as_mut().enable();
                let shown = {
                    let inner = self.lock();
                    (inner.term, inner.number)
                };
                if is_news(shown, seen) {
                    return;
                }
                later.await;
            }
        };
        // A timeout does not change the answer.
        let _ = tokio::time::timeout(WATCH_LIMIT, later).await;
        self.view()
    }

    /// True if an object of this key in this incarnation is superseded: the incarnation had not
    /// reported when the key was put. Incarnations that reported before are excluded, since a
    /// rebuilt master gets their objects again.
    pub(super) fn is_older(&self, id: &KeyId, incarnation: u64) -> bool {
        let inner = self.lock();
        inner.superseded.contains(id) && !inner.reported_once.contains(&incarnation)
    }

    /// Members that brought objects from an earlier term and have not reported them.
    pub(super) fn unreported(&self) -> Vec<SegmentId> {
        let mut inner = self.lock();
        if inner.none_unreported {
            return Vec::new();
        }
        let known = |m: &Member| inner.reported_once.contains(&m.info.incarnation);
        let unreported = |m: &&Member| m.holds && !m.reported && !known(m);
        let all: Vec<_> = inner.ranks.values().filter(unreported).map(|m| m.info.id()).collect();
        inner.none_unreported = all.is_empty();
        all
    }

    /// Number of ranks whose first segment joined and reported.
    pub fn ready_ranks(&self) -> usize {
        self.lock().reported()
    }

    /// True once every rank has reported since the term began, with the segments its node has, or
    /// one TTL has passed; stays so. Where ranks elect the master a lease in place of the TTL, and
    /// three seconds for ranks that were known to be alive. And not without a quorum: of two
    /// masters of one number, only one that ruled may say who is lost [I6].
    pub(super) fn settled(&self, now_ms: u64, ttl_ms: u64) -> bool {
        let mut inner = self.lock();
        if inner.settled && inner.ruled {
            return true;
        }
        let quorum = inner.too_few(self.world_size, self.since(now_ms)).is_none();
        if !inner.settled {
            let here = |rank: &u32| inner.ranks.contains_key(&SegmentId::first(*rank));
            let wait_ms = match self.lease_ms {
                0 => ttl_ms,
                lease if self.alive.iter().all(here) => ttl_ms.min(lease),
                lease => ttl_ms.min(lease.max(LATE_MS)),
            };
            let all = inner.reported() >= self.world_size as usize && inner.awaited().is_empty();
            inner.settled = all || now_ms >= inner.began_ms + wait_ms;
            inner.settled &= quorum || self.lease_ms == 0;
            if inner.settled {
                inner.log_missing(self.world_size);
                // From now on a rank that is not in the view counts as lost.
                inner.spread_view();
                inner.loss = inner.number;
            }
        }
        inner.ruled |= inner.settled && quorum;
        inner.settled
    }

    /// The earliest stamp that counts now; None if stamps do not matter.
    fn since(&self, now_ms: u64) -> Option<u64> {
        (self.lease_ms > 0).then(|| now_ms.saturating_sub(self.lease_ms))
    }

    /// The number of ranks that obey now, if they are no quorum (more than half, or half with rank
    /// 0). A rank counts if its first segment obeys; its other segments do not count. Where others
    /// may become master it counts for a lease after its last stamp.
    pub(super) fn too_few(&self, now_ms: u64) -> Option<usize> {
        let mut inner = self.lock();
        let at = Some((now_ms, inner.number));
        if inner.quorum_at == at {
            return None;
        }
        let few = inner.too_few(self.world_size, self.since(now_ms));
        inner.quorum_at = if few.is_none() { at } else { None };
        few
    }

    /// Whether it has a quorum, or began less than so long ago.
    pub(crate) fn is_in_office(&self, now_ms: u64, forming_ms: u64) -> bool {
        now_ms < self.lock().began_ms + forming_ms || self.has_quorum(now_ms)
    }

    /// Whether other ranks may become master.
    pub(super) fn elects(&self) -> bool {
        self.lease_ms > 0
    }

    /// Whether a quorum obeys it.
    pub(crate) fn has_quorum(&self, now_ms: u64) -> bool {
        self.too_few(now_ms).is_none()
    }

    /// A rank returned a stamp of this master, which cannot lie in the future.
    pub(super) fn stamped(&self, segment_id: SegmentId, stamp_ms: u64, now_ms: u64) {
        if let Some(m) = self.lock().ranks.get_mut(&segment_id) {
            m.stamp_ms = m.stamp_ms.max(Some(stamp_ms.min(now_ms)));
        }
    }

    pub(super) fn set_reported(&self, segment_id: SegmentId) {
        let mut inner = self.lock();
        if let Some(m) = inner.ranks.get_mut(&segment_id) {
            m.reported = true;
            let incarnation = m.info.incarnation;
            inner.reported_once.insert(incarnation);
        }
    }

    /// State of a segment.
    pub fn state(&self, segment_id: SegmentId) -> Option<RankState> {
        self.lock().ranks.get(&segment_id).map(|m| m.state)
    }

    /// Rows for the statistics.
    pub fn rows(&self, now_ms: u64) -> Vec<RankStats> {
        let inner = self.lock();
        let row = |m: &Member| RankStats {
            rank: m.info.rank,
            segment: m.info.segment_id,
            incarnation: m.info.incarnation,
            state: m.state.to_string(),
            heard_ms: now_ms.saturating_sub(m.heard_ms),
            owner: m.gauges,
            ..RankStats::default()
        };
        inner.ranks.values().map(row).collect()
    }

    /// The master itself was paused for `ms`: moves the TTLs of all ranks and producers on by that
    /// time.
    pub(super) fn forgive(&self, ms: u64, now_ms: u64) {
        let mut inner = self.lock();
        // Not past `now_ms`: a rank that sends nothing from now on is gone after one TTL.
        inner.ranks.values_mut().for_each(|m| m.heard_ms = (m.heard_ms + ms).min(now_ms));
        inner.producers.values_mut().for_each(|p| p.since_ms = (p.since_ms + ms).min(now_ms));
        inner.began_ms = (inner.began_ms + ms).min(now_ms);
    }

    /// Records that a frame arrived; false if it came over another link than the segment's current
    /// one.
    pub(super) fn heard(&self, segment_id: SegmentId, link: LinkId, now_ms: u64) -> bool {
        let mut inner = self.lock();
        match inner.ranks.get_mut(&segment_id) {
            Some(m) if m.link == link => {
                m.heard_ms = m.heard_ms.max(now_ms);
                true
            }
            _ => false,
        }
    }

    /// A link ended. An older link than the current one is ignored.
    pub(super) fn link_down(&self, segment_id: SegmentId, link: LinkId) {
        let mut inner = self.lock();
        let Some(m) = inner.ranks.get_mut(&segment_id) else { return };
        if m.link == link && m.state != RankState::Suspect {
            m.cut();
            inner.changed();
            tracing::warn!(%segment_id, "link down: the segment is suspect");
        }
    }

    /// Whether a frame is possible for this segment; the error says what is not.
    pub(super) fn check_to_master(&self, segment_id: SegmentId, up: &OwnerToMaster) -> Result<()> {
        self.lock().ranks.get(&segment_id).map_or(Ok(()), |m| m.info.check_to_master(up))
    }

    /// Ends a link after an invalid frame of its owner.
    pub(super) fn cut(&self, segment_id: SegmentId) {
        let mut inner = self.lock();
        if let Some(m) = inner.ranks.get_mut(&segment_id) {
            m.cut();
            inner.changed();
        }
    }

    /// A client connection, or a ring in its place, was opened.
    pub fn producer_up(&self, producer: u64, ring: bool) {
        let mut inner = self.lock();
        let p = inner.producers.entry(producer).or_default();
        p.connections += 1;
        p.rings += usize::from(ring);
    }

    /// A client connection ended.
    pub fn producer_down(&self, producer: u64, ring: bool, now_ms: u64) {
        if let Some(p) = self.lock().producers.get_mut(&producer) {
            p.connections = p.connections.saturating_sub(1);
            p.rings = p.rings.saturating_sub(usize::from(ring));
            p.since_ms = now_ms;
        }
    }

    /// Producers without a connection for a TTL; each is reported once.
    pub(super) fn lost_producers(&self, now_ms: u64, ttl_ms: u64) -> HashSet<u64> {
        let late = |p: &Producer| p.connections == 0 && now_ms >= p.since_ms + ttl_ms;
        self.lock().producers.extract_if(.., |_, p| late(p)).map(|(id, _)| id).collect()
    }

    /// Members with their links, for a rebuilt master.
    pub(super) fn infos(&self) -> Vec<RankInfo> {
        self.lock().ranks.values().map(|m| m.info.clone()).collect()
    }
}

impl Inner {
    fn firsts(&self) -> impl Iterator<Item = &Member> {
        self.ranks.iter().filter(|(segment_id, _)| segment_id.is_first()).map(|(_, m)| m)
    }

    fn reported(&self) -> usize {
        self.firsts().filter(|m| m.reported).count()
    }

    fn too_few(&self, world_size: u32, since: Option<u64>) -> Option<usize> {
        let counts = |m: &Member| since.is_none_or(|s| m.stamp_ms.is_some_and(|at| at >= s));
        let obeys = |m: &&Member| m.tx.is_some() && m.state != RankState::Suspect && counts(m);
        let n = self.firsts().filter(obeys).count();
        let with_first = self.ranks.get(&SegmentId::first(0)).is_some_and(|m| obeys(&m));
        (!is_quorum(n, with_first, world_size)).then_some(n)
    }

    /// The term is settled: who has not joined is gone.
    fn log_missing(&self, world_size: u32) {
        let joined = |rank: &u32| self.ranks.contains_key(&SegmentId::first(*rank));
        let missing: Vec<u32> = (0..world_size).filter(|rank| !joined(rank)).collect();
        if !missing.is_empty() {
            tracing::warn!(
                term = self.term.number,
                ?missing,
                "this master serves without these ranks: what they had is gone, and they come back \
                 empty"
            );
        }
    }

    /// Segments that their nodes announced and that have not reported yet.
    pub(super) fn awaited(&self) -> Vec<SegmentId> {
        let met = |segment_id: &SegmentId, incarnation: u64| {
            let here = |m: &Member| m.info.incarnation == incarnation && m.reported;
            self.gone.contains(incarnation) || self.ranks.get(segment_id).is_some_and(here)
        };
        let announced = self.firsts().flat_map(|m| m.siblings.iter().map(|s| (m.info.rank, *s)));
        let awaited = announced.filter_map(|(rank, (segment, incarnation))| {
            let segment_id = SegmentId { rank, segment };
            (!met(&segment_id, incarnation)).then_some(segment_id)
        });
        awaited.collect()
    }

    /// The view changed.
    pub(super) fn changed(&mut self) {
        self.number += 1;
        self.none_unreported = false;
        self.later.notify_waiters();
    }

    /// Segments of a rank without a link, other than its first. If its node was started again, no
    /// process is left that could bring them back.
    pub fn orphans(&self, rank: u32) -> Vec<(SegmentId, u64)> {
        let cut = |m: &Member| m.tx.as_ref().is_none_or(mpsc::Sender::is_closed);
        let theirs = self.ranks.range(SegmentId::of_rank(rank));
        let orphans = theirs.filter(|(segment_id, m)| !segment_id.is_first() && cut(m));
        orphans.map(|(segment_id, m)| (*segment_id, m.info.incarnation)).collect()
    }

    /// Removes a member permanently [I17] and sends the new view to the others.
    pub(super) fn forget(&mut self, segment_id: SegmentId) {
        let Some(m) = self.ranks.remove(&segment_id) else { return };
        self.gone.insert(m.info.incarnation);
        self.reported_once.remove(&m.info.incarnation);
        self.spread_view();
        if self.settled {
            self.loss = self.number;
        }
    }

    /// The membership as ranks keep it for a later master.
    pub(super) fn as_kept(&self) -> SeenView {
        let incarnations = self.ranks.values().map(|m| m.info.incarnation).collect();
        SeenView { term: self.term, number: self.number, incarnations }
    }

    /// The membership changed: sends the new view to every rank, which keeps it. Not before the
    /// term is settled: until then a rank that has not joined is not lost, and nothing was granted
    /// or removed that a later master must know.
    pub(super) fn spread_view(&mut self) {
        self.changed();
        if !self.settled {
            return;
        }
        let view = self.as_kept();
        for m in self.ranks.values_mut() {
            m.send(MasterToOwner::View(view.clone()));
            m.urgent.notify_one();
        }
        // A link with a full queue was cut.
        self.quorum_at = None;
    }
}
