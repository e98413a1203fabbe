//! Commit: an object becomes live once its owner has recorded the plan, and with it the key string:
//! from then on it is found again after a death of the master. A commit that comes before that
//! waits, bounded, and changes nothing if it times out.

use super::Master;
use super::entry::State;
use crate::actor::Reply;
use crate::error::{Error, Result};
use crate::message::{
    EndCause, MasterToOwner, PlanId, PlanRef, RankState, ReplicaSet, Response, SLOTS_PER_FRAME,
    SegmentId,
};

/// How long a commit waits until the owner has recorded its plan. Short enough that a client can
/// repeat the commit a few times.
const RECORD_LIMIT_MS: u64 = 400;
/// Commits that wait for owners at a time; further ones fail with `NotReady`, and their clients
/// repeat them.
const MAX_UNRECORDED: usize = 65_536;

/// A commit whose owner has not recorded the plan yet.
#[derive(Debug)]
pub(super) struct Unrecorded {
    pub batch: u64,
    pub item: usize,
    commit: PlanRef,
    until_ms: u64,
}

impl Master {
    pub(super) fn commit(&mut self, list: &[PlanRef], reply: Reply<Response>) {
        let accepted: Vec<_> = list.iter().map(|c| self.commit_one(c)).collect();
        if !accepted.iter().any(|a| matches!(a, Ok(Some(_)))) {
            let done = accepted.into_iter().map(|a| a.map(drop)).collect();
            return reply.send(Response::Done(done));
        }
        let batch = self.batches.done(list.len(), reply);
        let until_ms = self.now_ms() + self.record_limit_ms();
        let mut room =
            MAX_UNRECORDED.saturating_sub(self.unrecorded.values().map(Vec::len).sum::<usize>());
        for (item, (accepted, commit)) in accepted.into_iter().zip(list).enumerate() {
            match accepted {
                Ok(Some(segment_id)) if room == 0 => {
                    let why = format!(
                        "{MAX_UNRECORDED} commits wait for owners already, this one for \
                         {segment_id}"
                    );
                    self.batches.complete_item(batch, item, Err(Error::not_ready(why)));
                }
                Ok(Some(segment_id)) => {
                    room -= 1;
                    self.durable.members.slow_path.commits_waited.one();
                    let waits = Unrecorded { batch, item, commit: *commit, until_ms };
                    self.unrecorded.entry(segment_id).or_default().push(waits);
                }
                other => self.batches.complete_item(batch, item, other.map(drop)),
            }
        }
    }

    /// Half of a call's limit, at most.
    fn record_limit_ms(&self) -> u64 {
        RECORD_LIMIT_MS.min(self.durable.settings.call_timeout_ms / 2)
    }

    /// Commits a plan, or returns the segment whose owner has not recorded it yet.
    fn commit_one(&mut self, c: &PlanRef) -> Result<Option<SegmentId>> {
        self.accept_commit(c).inspect_err(|_| self.counters.commit_refused += 1)
    }

    fn accept_commit(&mut self, c: &PlanRef) -> Result<Option<SegmentId>> {
        self.check_lease()?;
        let id = c.key;
        let reclaimed = |why: &str| {
            Err(Error::reclaimed(format!("the plan {} of key {id:?} {why}", c.plan.seq)))
        };
        let plan = self.plans.get(&c.plan);
        let (ending, reported) = plan.map_or((None, false), |p| (p.ending, p.reported));
        if !self.objects.contains_key(&id) {
            self.check_all_reported()?;
        }
        let Some(e) = self.objects.get_mut(&id) else {
            return reclaimed("ended before the commit (deadline, abort or remove)");
        };
        let Some(replica) = e.places().find(|r| r.at == c.at) else {
            return reclaimed("lost its slot: it ended and the key was written again");
        };
        if e.state() == State::Removing {
            return reclaimed("was aborted by a remove");
        }
        match e.plan_at(c.at) {
            None => return Ok(None),
            Some(plan) if plan != c.plan => return reclaimed("is over: another one has its slot"),
            Some(_) => {}
        }
        match ending {
            None => {}
            // The owner is checking it: its Adopted or Retired follows.
            Some(EndCause::ProducerGone | EndCause::Expired) => {
                return Err(Error::not_ready(format!("the plan of key {id:?} is being ended")));
            }
            Some(_) => return reclaimed("was aborted"),
        }
        let segment_id = replica.segment_id;
        if !matches!(
            self.durable.members.state(segment_id),
            Some(RankState::Alive | RankState::Draining)
        ) {
            let whom = super::lookup::named(&self.allocators, segment_id);
            return Err(Error::disconnected(format!("{whom}, which holds it, is down")));
        }
        // Between a join and its report it is not known whether the owner ever received the plan.
        if !self.allocators.get(&segment_id).is_some_and(|b| b.reported) {
            return Err(Error::not_ready(format!("{segment_id} is still reporting")));
        }
        if !reported && !self.durable.members.is_recorded(segment_id, c.plan) {
            return Ok(Some(segment_id));
        }
        e.commits(c.plan);
        let one_of_several = e.set() != ReplicaSet::NONE && !e.is_extra(c.at);
        self.plans.remove(&c.plan);
        self.counters.committed += 1;
        self.commits_out.entry(segment_id).or_default().push(*c);
        self.became_live(id, segment_id);
        if one_of_several {
            self.note_unmade(id);
        }
        Ok(None)
    }

    /// Commits of one request go to each owner as one frame.
    pub(super) fn flush_commits(&mut self) {
        for (segment_id, list) in std::mem::take(&mut self.commits_out) {
            for part in list.chunks(SLOTS_PER_FRAME) {
                self.durable.members.send(segment_id, MasterToOwner::Committed(part.to_vec()));
            }
        }
    }

    /// An owner has recorded the plans up to this one: tries the commits of those again.
    pub(super) fn recheck_recorded(&mut self, segment_id: SegmentId, up_to: PlanId) {
        let Some(waiting) = self.unrecorded.get_mut(&segment_id) else { return };
        let recorded = waiting.extract_if(.., |w| w.commit.plan <= up_to).collect();
        if waiting.is_empty() {
            self.unrecorded.remove(&segment_id);
        }
        self.recheck(recorded);
    }

    /// An owner's link is new or gone: tries all commits that wait for it again.
    pub(super) fn recheck_commits(&mut self, segment_id: SegmentId) {
        let waiting = self.unrecorded.remove(&segment_id).unwrap_or_default();
        self.recheck(waiting);
    }

    fn recheck(&mut self, waiting: Vec<Unrecorded>) {
        for w in waiting {
            match self.commit_one(&w.commit) {
                Ok(Some(segment_id)) => self.unrecorded.entry(segment_id).or_default().push(w),
                other => self.batches.complete_item(w.batch, w.item, other.map(drop)),
            }
        }
        // At once: no later message about an object may overtake its commit.
        self.flush_commits();
    }

    /// Fails commits that waited too long. Their plans stay open: the client repeats the commit or
    /// aborts.
    pub(super) fn expire_commits(&mut self) {
        let (now, limit) = (self.now_ms(), self.record_limit_ms());
        let allocators = &self.allocators;
        for (segment_id, waiting) in &mut self.unrecorded {
            for w in waiting.extract_if(.., |w| w.until_ms <= now) {
                self.durable.members.slow_path.commits_unrecorded.one();
                let whom = super::lookup::named(allocators, *segment_id);
                let why = format!(
                    "{whom} did not confirm within {limit} ms that it has plan {}: it is \
                     stopped, busy or cut off; nothing is stored, put it again",
                    w.commit.plan.seq
                );
                self.batches.complete_item(w.batch, w.item, Err(Error::not_ready(why)));
            }
        }
        self.unrecorded.retain(|_, waiting| !waiting.is_empty());
    }
}
