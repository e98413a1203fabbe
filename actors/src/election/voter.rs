//! What a rank answers the others about the master: which one it obeys, whether it may obey
//! another, and for whom it votes.

use super::{FORMING_MS, promise_ms};
use crate::current_master::{CurrentMaster, MasterPath};
use crate::message::{Ballot, MAX_OTHERS, Standing, Term, View};
use nkv_store::clock::Clock;
use nkv_transport::wire::Address;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How long a vote holds: the candidate has begun, or failed, by then.
const VOTE_MS: u64 = 1_000;

#[derive(Debug, Default)]
struct Kept {
    // Until then it obeys no master but this one, by the random id of its terms.
    bound_until_ms: u64,
    bound_to: Option<u64>,
    // For whom it voted, and until when it votes for nobody else.
    vote: Option<(u32, u64)>,
    // By rank: where each was last.
    heard_of: BTreeMap<u32, LastAt>,
    // Order of the last view that was looked at.
    seen: (Term, u64),
}

/// Where a rank was last.
#[derive(Debug)]
struct LastAt {
    control: Address,
    // Nobody answered there lately: what others say counts.
    silent: bool,
}

impl Kept {
    /// Where ranks are that answered there, or have not been asked there.
    fn places(&self) -> impl Iterator<Item = (u32, &Address)> {
        let there = self.heard_of.iter().filter(|(_, last)| !last.silent);
        there.map(|(rank, last)| (*rank, &last.control))
    }
}

/// The term that a rank obeys.
pub(crate) type Obeyed = Box<dyn Fn() -> Term + Send + Sync>;

/// See the file's first paragraph.
pub(crate) struct Voter {
    rank: u32,
    world_size: u32,
    control: Address,
    lease_ms: u64,
    clock: Arc<dyn Clock>,
    obeyed: Obeyed,
    master: Arc<CurrentMaster>,
    kept: Mutex<Kept>,
}

impl Voter {
    /// Of a rank that is reached at `control`. It obeys no master at first: one may still count on
    /// a former process of this rank.
    pub(crate) fn new(
        (rank, world_size, control): (u32, u32, Address),
        lease_ms: u64,
        clock: Arc<dyn Clock>,
        obeyed: Obeyed,
        master: Arc<CurrentMaster>,
    ) -> Self {
        let bound_until_ms = clock.now_ms() + promise_ms(lease_ms);
        let kept = Mutex::new(Kept { bound_until_ms, ..Kept::default() });
        Self { rank, world_size, control, lease_ms, clock, obeyed, master, kept }
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn rank(&self) -> u32 {
        self.rank
    }

    pub(crate) fn world_size(&self) -> u32 {
        self.world_size
    }

    pub(crate) fn control(&self) -> Address {
        self.control.clone()
    }

    /// How long this rank waits for its last master.
    pub(crate) fn promise_ms(&self) -> u64 {
        promise_ms(self.lease_ms)
    }

    /// A master was heard: the rank obeys no other one for as long as that one may count on it.
    /// False if it must not obey this one yet: its last one may count on it still [I24].
    pub(crate) fn heard(&self, master: u64) -> bool {
        let now = self.clock.now_ms();
        let mut kept = self.lock();
        if kept.bound_to != Some(master) && now < kept.bound_until_ms {
            return false;
        }
        kept.bound_to = Some(master);
        kept.bound_until_ms = kept.bound_until_ms.max(now + self.promise_ms());
        true
    }

    /// A master of this process has ended: nobody counts on this rank by it.
    pub(super) fn release(&self, master: u64) {
        let mut kept = self.lock();
        if kept.bound_to == Some(master) {
            kept.bound_until_ms = 0;
        }
    }

    /// Whether it may obey another master now.
    pub(crate) fn is_free(&self) -> bool {
        self.master.here().is_none() && self.clock.now_ms() >= self.lock().bound_until_ms
    }

    /// Keeps where a rank is.
    fn heard_of(&self, rank: u32, control: &Address) {
        if rank != self.rank && rank < self.world_size {
            let last = LastAt { control: control.clone(), silent: false };
            self.lock().heard_of.insert(rank, last);
        }
    }

    /// Keeps where ranks are by a view that is new here.
    pub(super) fn learn(&self, view: &View) {
        if std::mem::replace(&mut self.lock().seen, view.order()) != view.order() {
            view.nodes().for_each(|(info, _)| self.heard_of(info.rank, &info.control));
        }
    }

    /// Keeps where another rank says that a rank is, if this one knows of no place, or nobody
    /// answers there.
    pub(super) fn knows_too(&self, rank: u32, control: &Address) {
        let known = self.lock().heard_of.get(&rank).is_some_and(|last| !last.silent);
        if !known {
            self.heard_of(rank, control);
        }
    }

    /// Whether nobody answered there the last time.
    pub(super) fn unanswered(&self, control: &Address) -> bool {
        let kept = self.lock();
        let mut there = kept.heard_of.values().filter(|last| last.control == *control);
        there.next().is_some_and(|last| last.silent)
    }

    /// Whether a rank answered that was asked there.
    pub(super) fn answered(&self, control: &Address, answered: bool) {
        let mut kept = self.lock();
        let there = kept.heard_of.values_mut().filter(|last| last.control == *control);
        there.for_each(|last| last.silent = !answered);
    }

    /// Where the other ranks are, or were last.
    pub(super) fn others(&self) -> Vec<Address> {
        self.lock().heard_of.values().map(|last| last.control.clone()).collect()
    }

    /// What it asks the others.
    pub(super) fn ballot(&self, stands: bool) -> Ballot {
        let knows = self.lock().places().count() as u32;
        Ballot {
            rank: self.rank,
            control: self.control.clone(),
            world_size: self.world_size,
            stands,
            knows,
        }
    }

    /// What it answers.
    pub(crate) fn standing(&self) -> Standing {
        let now = self.clock.now_ms();
        let obeyed = (self.obeyed)();
        let bound = now < self.lock().bound_until_ms;
        let master = match self.master.path() {
            MasterPath::Local(here) => {
                let in_office = here.members.is_in_office(now, FORMING_MS);
                in_office.then(|| (here.members.term(), self.control.clone()))
            }
            MasterPath::Remote(at) if bound => at.first().map(|at| (obeyed, at.clone())),
            MasterPath::Remote(_) => None,
        };
        Standing {
            rank: self.rank,
            world_size: self.world_size,
            obeyed,
            master,
            free: self.is_free(),
            granted: false,
            others: Vec::new(),
        }
    }

    /// Answers a rank that asks.
    pub(crate) fn answer(&self, ballot: Ballot) -> Standing {
        if ballot.world_size != self.world_size {
            return self.standing();
        }
        self.heard_of(ballot.rank, &ballot.control);
        let granted = ballot.stands && self.vote_for(ballot.rank);
        let others = {
            let kept = self.lock();
            let more = kept.places().count() > ballot.knows as usize;
            let named = kept.places().take(if more { MAX_OTHERS } else { 0 });
            named.map(|(rank, at)| (rank, at.clone())).collect()
        };
        Standing { granted, others, ..self.standing() }
    }

    /// Whether its vote is still for itself.
    pub(super) fn stands(&self) -> bool {
        self.lock().vote.is_some_and(|(voted, _)| voted == self.rank)
    }

    /// Votes for a rank, unless it has a master, or voted a moment ago for a lower one: of several
    /// that stand at once the lowest is elected.
    pub(super) fn vote_for(&self, rank: u32) -> bool {
        if !self.is_free() {
            return false;
        }
        let now = self.clock.now_ms();
        let mut kept = self.lock();
        let other = kept.vote.is_some_and(|(voted, until)| voted < rank && now < until);
        if !other {
            kept.vote = Some((rank, now + VOTE_MS));
        }
        !other
    }
}

#[cfg(test)]
mod tests;
