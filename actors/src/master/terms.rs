//! Terms across master processes, and why a second master does no harm: a term above every one that
//! an owner ever obeyed, a quorum of ranks that obey it, views that owners keep, and removes that
//! wait until the ranks that may report to a later master know of a loss.

use super::members::{Inner, Members};
use super::recover::names;
use super::{Join, Master};
use crate::error::{Error, Result};
use crate::message::{Refusal, SeenView, SegmentId, Term};
use hashbrown::HashSet;

/// An answer to a remove that waits until the loss of a rank is known to the others.
#[derive(Debug)]
pub(super) struct Deferred {
    batch: u64,
    item: usize,
    result: Result<()>,
    until_ms: u64,
}

/// How long such an answer waits before it fails with `Disconnected`.
const DEFER_LIMIT_MS: u64 = 1_500;

/// Views of earlier terms that are kept, one per term; beyond that the oldest is dropped.
const MAX_PAST: usize = 1_024;

impl Inner {
    /// True if a view later than the one that it keeps lacks this incarnation: an earlier master
    /// declared it gone, and it did not learn of that. Of two masters whose terms have one number
    /// neither is known to be the later; if this process was one of them, its answers, which it
    /// gave without that incarnation, must stay true [I6].
    fn was_lost(&self, incarnation: u64, brought: &SeenView) -> bool {
        let lacks = |v: &&SeenView| !v.incarnations.contains(&incarnation);
        let earlier = self.past.iter().filter(|v| v.term < self.term);
        let ours = |v: &SeenView| {
            let (v, brought) = (v.term, brought.term);
            v.master == self.term.master && v.number == brought.number && v.master != brought.master
        };
        earlier.filter(|v| v.order() > brought.order() || ours(v)).any(|v| lacks(&v))
    }

    /// Takes in a view of an earlier master; returns the members that it proves lost.
    fn learn(&mut self, seen: &SeenView) -> Vec<(SegmentId, u64)> {
        // Incarnations that this process declared gone in an earlier term of its own are in `gone`.
        let ours = seen.term.master == self.term.master;
        if seen.number == 0 || ours || !self.keep_past(seen.clone()) {
            return Vec::new();
        }
        let lost = |m: &&super::members::Member| {
            m.holds && !m.of_this_life && self.was_lost(m.info.incarnation, &m.brought)
        };
        let lost = self.ranks.values().filter(lost);
        lost.map(|m| (m.info.id(), m.info.incarnation)).collect()
    }

    /// Keeps the latest view of a term: members that were lost in an earlier view are absent from
    /// the latest one, too. False if this view or a later one is kept already.
    fn keep_past(&mut self, seen: SeenView) -> bool {
        if let Some(v) = self.past.iter_mut().find(|v| v.term == seen.term) {
            let later = v.number < seen.number;
            if later {
                *v = seen;
            }
            return later;
        }
        self.past.push(seen);
        if self.past.len() > MAX_PAST {
            let oldest = (0..self.past.len()).min_by_key(|&i| self.past[i].order());
            oldest.map(|i| self.past.swap_remove(i));
        }
        true
    }
}

impl Members {
    /// Linked members that do not keep a view without the member that was lost last yet.
    fn unaware_of_loss(&self) -> Vec<SegmentId> {
        let inner = self.lock();
        let unaware = |m: &&super::members::Member| m.tx.is_some() && m.keeps_view < inner.loss;
        inner.ranks.values().filter(unaware).map(|m| m.info.id()).collect()
    }

    pub(super) fn keeps_view(&self, segment_id: SegmentId, number: u64) {
        let mut inner = self.lock();
        let number = number.min(inner.number);
        if let Some(m) = inner.ranks.get_mut(&segment_id) {
            m.keeps_view = m.keeps_view.max(number);
        }
    }
}

impl Master {
    /// Refuses an incarnation that was declared gone, or that must be assumed to have been [I17].
    pub(super) fn refuse_the_lost(&mut self, m: &Join) -> std::result::Result<(), Refusal> {
        let (rank, incarnation) = (m.info.rank, m.info.incarnation);
        let gone = Err(Refusal::Gone { rank, incarnation });
        let members = self.durable.members.clone();
        if members.lock().gone.contains(incarnation) {
            return gone;
        }
        // Includes an earlier term of this process: the owner does not know what was placed since.
        let others = m.obeyed != Term::default() && m.obeyed != members.term();
        if others && self.settled() && self.may_refuse(m.obeyed) {
            // The term is settled, so this rank was counted as gone.
            return gone;
        }
        // Before its panic the actor may have granted plans there whose messages were lost with the
        // link, and only it knew which: a new term fences them [I10].
        let forgotten = self.forgotten.contains(&incarnation);
        if others || forgotten {
            self.rise_above(if forgotten { m.obeyed.max(members.term()) } else { m.obeyed })?;
        }
        let lost = {
            let mut inner = members.lock();
            let lost = inner.learn(&m.seen);
            if m.holds && !m.of_this_life && inner.was_lost(incarnation, &m.seen) {
                return gone;
            }
            lost
        };
        for (segment_id, incarnation) in lost {
            tracing::warn!(%segment_id, "an earlier master had declared this segment gone");
            self.gone(segment_id, incarnation, "lost before this master began");
        }
        Ok(())
    }

    /// Whether a rank that comes too late for a settled term may be refused. Without a quorum this
    /// master may itself be superseded, by the master that the rank obeyed. It is not if that one
    /// has a lower term and this term once had a quorum: its answers, which counted that rank as
    /// gone, must stay true [I6].
    fn may_refuse(&self, obeyed: Term) -> bool {
        let members = &self.durable.members;
        let (term, ruled) = {
            let inner = members.lock();
            (inner.term, inner.ruled)
        };
        members.too_few(self.now_ms()).is_none() || (ruled && obeyed < term)
    }

    /// Makes sure that this master's term is above the one that a joining rank obeyed. If it was
    /// not, another master ran before or at the same time: all state is discarded, and every rank
    /// joins again.
    fn rise_above(&mut self, obeyed: Term) -> std::result::Result<(), Refusal> {
        if obeyed.number < self.durable.members.term().number {
            return Ok(());
        }
        let number = obeyed.number.checked_add(1).ok_or_else(|| {
            Refusal::NotHere("this rank claims to obey the highest possible term".to_string())
        })?;
        {
            let mut inner = self.durable.members.lock();
            // Answers were given with these members alone and must stay true: a rank that never
            // joined this term counts as lost in later terms [I6].
            if inner.ruled {
                let ruled = inner.as_kept();
                inner.keep_past(ruled);
            }
            inner.term.number = number;
            inner.began_ms = self.durable.clock.now_ms();
            inner.settled = false;
            inner.ruled = false;
            inner.ranks.clear();
            inner.reported_once.clear();
            inner.changed();
            inner.loss = 0;
        }
        self.durable.members.slow_path.terms_risen.one();
        tracing::warn!(
            term = number,
            "another master ran before, or messages to a rank were lost: a new term begins"
        );
        self.forget_all();
        Ok(())
    }

    /// `Disconnected` unless more than half of the ranks, or half with rank 0, obey this master.
    pub(super) fn check_quorum(&self) -> Result<()> {
        let Some(n) = self.durable.members.too_few(self.now_ms()) else { return Ok(()) };
        Err(Error::disconnected(format!(
            "only {n} of {} ranks obey this master, and it serves with more than half, or half \
             with rank 0: start the missing ranks{}",
            self.durable.world_size,
            self.not_taken.text(self.now_ms())
        )))
    }

    /// `NotReady` while another master may serve: no quorum obeys this one, and ranks elect others
    /// [I24]. For what is decided later than the request came.
    pub(super) fn check_lease(&self) -> Result<()> {
        let served = !self.durable.members.elects()
            || self.durable.members.has_quorum(self.durable.clock.now_ms());
        let why = || Error::not_ready("too few ranks obey this master at this moment; try again");
        served.then_some(()).ok_or_else(why)
    }

    /// The answer to a removal once every linked rank knows of the lost ones. Without a quorum it
    /// fails: the linked ranks may all be gone before a later master asks them, and then objects on
    /// the other side of a network partition would come back [I6].
    fn known_to_enough(&self, result: Result<()>) -> Result<()> {
        self.check_quorum()?;
        result
    }

    /// Answers an item of a remove, once every linked rank knows of the ranks that were lost.
    pub(super) fn complete_remove(&mut self, batch: u64, item: usize, result: Result<()>) {
        if self.durable.members.unaware_of_loss().is_empty() {
            let result = self.known_to_enough(result);
            return self.batches.complete_item(batch, item, result);
        }
        let until_ms = self.now_ms() + DEFER_LIMIT_MS;
        self.durable.members.slow_path.removals_deferred.one();
        self.deferred.push(Deferred { batch, item, result, until_ms });
    }

    /// Sends deferred answers that need to wait no longer; called after an acknowledgement and at
    /// every tick.
    pub(super) fn complete_deferred(&mut self) {
        if self.deferred.is_empty() {
            return;
        }
        let (unaware, now) = (self.durable.members.unaware_of_loss(), self.now_ms());
        for d in std::mem::take(&mut self.deferred) {
            if unaware.is_empty() {
                let result = self.known_to_enough(d.result);
                self.batches.complete_item(d.batch, d.item, result);
            } else if now >= d.until_ms {
                let text = format!("{} did not confirm a loss in time", names(&unaware));
                self.batches.complete_item(d.batch, d.item, Err(Error::disconnected(text)));
            } else {
                self.deferred.push(d);
            }
        }
    }

    /// A new term: discards all state, which the reports rebuild.
    fn forget_all(&mut self) {
        let again = || Error::not_ready("a new term of the master began; try again");
        for w in self.waiting.take() {
            self.batches.complete_plan(w.opening.batch, w.opening.item(), Err(again()));
        }
        let open = std::mem::take(&mut self.removing).into_values().flatten();
        let deferred = std::mem::take(&mut self.deferred);
        for (batch, item) in open.chain(deferred.iter().map(|d| (d.batch, d.item))) {
            let text = "a new term of the master began before the removal was confirmed";
            self.batches.complete_item(batch, item, Err(Error::disconnected(text)));
        }
        for w in std::mem::take(&mut self.unrecorded).into_values().flatten() {
            self.batches.complete_item(w.batch, w.item, Err(again()));
        }
        self.objects.clear();
        self.stripes = super::Stripes::default();
        self.aside.clear();
        self.found_gone.clear();
        self.forget_announced();
        self.plans.clear();
        self.allocators.clear();
        self.commits_out.clear();
        self.durable.members.lock().superseded = HashSet::new();
        self.recovering.clear();
        self.blind.clear();
        self.forgotten.clear();
        self.unpark();
    }
}
