//! How another rank becomes master. A rank that has no master asks the others. If one of them names
//! a master it joins that one. If most of them have none, the lowest of them stands: it asks for
//! their votes, or, with etcd, takes the job's key there from its last holder. Either only makes it
//! likely that there is one new master: a master serves nobody before a quorum of ranks has joined
//! it, and no rank joins one while the lease of its last one may run.

mod etcd;
mod voter;

pub(crate) use etcd::Etcd;
pub(crate) use voter::Voter;

use crate::client::Shared;
use crate::control_hello::hello;
use crate::current_master::{CurrentMaster, LocalMaster, MasterPath};
use crate::error::Result;
use crate::master::is_quorum;
use crate::message::{Purpose, Standing, Term, Welcome};
use futures_util::future::join_all;
use nkv_store::clock::Clock;
use nkv_store::log_lines::LogLines;
use nkv_store::random::Random;
use nkv_transport::wire::auth::Credentials;
use nkv_transport::wire::{Address, Net, within};
use std::collections::BTreeSet;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Pause between two rounds of questions, and how much longer it may be; ranks must not ask in
/// step. One more millisecond for each rank of the world, so that all of them together ask no more.
const ROUND_MS: u64 = 60;
const ROUND_SPREAD_MS: u64 = 40;
/// A rank that does not answer within this time is counted as gone for this round.
const ANSWER_LIMIT: Duration = Duration::from_millis(300);
/// Ranks that are asked at once, at most.
const ASKED_AT_ONCE: usize = 64;
/// Rounds that a rank leaves to those below it before it stands itself: they may be unable to reach
/// the others.
const LEFT_TO_LOWER: u32 = 6;
/// How long a new master may take to be joined by a quorum.
pub(crate) const FORMING_MS: u64 = 3_000;
/// How often a master calls at addresses where a rank may have been started that knows nobody.
const CALL_MS: u64 = 400;

/// How often a node that uses etcd writes there where it is.
const PUBLISH_MS: u64 = 15_000;

/// How long a rank obeys no other master after it has heard from its own: that one's lease, and an
/// eighth of it, because clocks may run at different rates.
pub(crate) fn promise_ms(lease_ms: u64) -> u64 {
    lease_ms + lease_ms / 8
}

/// What makes a node the master, and ends that.
pub(crate) trait StartMaster: Send + Sync {
    /// Begins as master, with a term of this number.
    fn begin(&self, number: u64) -> nkv_transport::wire::BoxFuture<'_, Result<()>>;
    /// Ends it: links and connections of clients are closed, the index is dropped.
    fn end(&self);
}

/// Who decides between ranks that stand at once.
#[derive(Debug, Clone)]
pub(crate) enum Arbiter {
    /// The other ranks.
    Votes,
    /// A key in etcd.
    Etcd(Arc<Etcd>),
}

/// The task of a node that takes part in elections.
pub(crate) struct Election {
    pub voter: Arc<Voter>,
    pub master: Arc<CurrentMaster>,
    pub starter: Box<dyn StartMaster>,
    pub arbiter: Arbiter,
    pub net: Arc<dyn Net>,
    pub credentials: Credentials,
    pub clock: Arc<dyn Clock>,
    pub random: Arc<dyn Random>,
    /// Control addresses from the configuration: that of rank 0, and others.
    pub configured: Vec<Address>,
    /// The node's own handle, whose view names all ranks.
    pub handle: Weak<Shared>,
    /// Limits the log lines about etcd.
    pub lines: LogLines,
}

impl Election {
    /// Runs until the node closes.
    pub(crate) async fn run(self) {
        let (mut rounds, mut called_ms, mut obeyed_ms) = (0, 0, self.clock.now_ms());
        let mut published_ms = None;
        loop {
            let now = self.clock.now_ms();
            if published_ms.is_none_or(|at| now >= at + PUBLISH_MS) {
                let (rank, control) = (self.voter.rank(), self.voter.control());
                let done = self.etcd(move |etcd| etcd.publish(rank, &control)).await;
                published_ms = done.map(|()| now).or(published_ms);
            }
            match self.master.here() {
                Some(here) => {
                    rounds = 0;
                    if here.members.is_in_office(now, FORMING_MS) {
                        obeyed_ms = now;
                        if now >= called_ms + CALL_MS {
                            called_ms = now;
                            self.call_the_absent(&here).await;
                            self.give_way().await;
                        }
                    } else if now >= obeyed_ms + self.voter.promise_ms() {
                        tracing::warn!("no quorum obeys this master any more: it ends");
                        self.starter.end();
                    }
                }
                None if self.voter.is_free() => {
                    rounds += 1;
                    if self.round(rounds).await || rounds > LEFT_TO_LOWER {
                        rounds = 0;
                    }
                    obeyed_ms = self.clock.now_ms();
                }
                None => rounds = 0,
            }
            let spread = self.random.u64() % ROUND_SPREAD_MS;
            let pause = ROUND_MS + spread + u64::from(self.voter.world_size());
            tokio::time::sleep(Duration::from_millis(pause)).await;
        }
    }

    /// One round of questions; true if it found a master, or made one.
    async fn round(&self, rounds: u32) -> bool {
        for (rank, at) in self.etcd(Etcd::ranks).await.unwrap_or_default() {
            self.voter.knows_too(rank, &at);
        }
        let answers = self.ask(false).await;
        let own = self.voter.standing();
        // Also one of a lower term than this rank obeyed: it rises above that when this rank joins,
        // or has a quorum and refuses it.
        let highest = answers.iter().filter_map(|a| a.master.clone()).max_by_key(|(term, _)| *term);
        if let Some((_, at)) = highest.filter(|_| self.voter.is_free()) {
            self.master.set(MasterPath::Remote([at].into()));
            return true;
        }
        let free: Vec<&Standing> = answers.iter().filter(|a| a.free).collect();
        let first = free.iter().all(|a| a.rank > own.rank);
        if !self.is_quorum_with(free.iter().map(|a| a.rank)) || !(first || rounds > LEFT_TO_LOWER) {
            return false;
        }
        let obeyed = match &self.arbiter {
            Arbiter::Votes => self.voted().await,
            Arbiter::Etcd(_) => {
                let obeyed = free.iter().map(|a| a.obeyed).fold(own.obeyed, Term::max);
                self.taken().await.then_some(obeyed)
            }
        };
        let next = obeyed.and_then(|term| term.number.checked_add(1));
        let Some(number) = next.filter(|_| self.voter.is_free()) else {
            return false;
        };
        tracing::info!(term = number, "elected master");
        if let Err(error) = self.starter.begin(number).await {
            tracing::error!(%error, "elected, but the master did not start");
            return false;
        }
        true
    }

    /// Asks for votes; the highest term that the voters obeyed, if they are a quorum.
    async fn voted(&self) -> Option<Term> {
        let own = self.voter.standing();
        if !self.voter.vote_for(own.rank) {
            return None;
        }
        let votes: Vec<Standing> = self.ask(true).await.into_iter().filter(|a| a.granted).collect();
        let obeyed = votes.iter().map(|a| a.obeyed).fold(own.obeyed, Term::max);
        self.is_quorum_with(votes.iter().map(|a| a.rank)).then_some(obeyed)
    }

    /// Takes the key in etcd; false if another rank was first, or etcd does not answer.
    async fn taken(&self) -> bool {
        let (rank, control) = (self.voter.rank(), self.voter.control());
        let take = move |etcd: &Etcd| {
            let revision = etcd.holder()?.map_or(0, |holder| holder.revision);
            etcd.take(revision, rank, &control)
        };
        self.etcd(take).await.unwrap_or(false)
    }

    /// Ends this master if another rank holds the key in etcd. Without etcd it goes on: whether it
    /// may serve depends on the ranks alone.
    async fn give_way(&self) {
        let Some(Some(holder)) = self.etcd(Etcd::holder).await else { return };
        if holder.rank != self.voter.rank() {
            tracing::warn!(rank = holder.rank, "another rank took over: this master ends");
            self.starter.end();
        }
    }

    /// Asks etcd, beside the event loop; None without etcd, or an answer.
    async fn etcd<T: Send + 'static>(
        &self,
        ask: impl FnOnce(&Etcd) -> Result<T> + Send + 'static,
    ) -> Option<T> {
        let Arbiter::Etcd(etcd) = &self.arbiter else { return None };
        let etcd = etcd.clone();
        match tokio::task::spawn_blocking(move || ask(&etcd)).await {
            Ok(Ok(answer)) => Some(answer),
            Ok(Err(error)) => {
                if let Some(before) = self.lines.next(self.clock.now_ms()) {
                    tracing::warn!(%error, before, "etcd does not answer");
                }
                None
            }
            Err(_) => None,
        }
    }

    fn is_quorum_with(&self, others: impl Iterator<Item = u32>) -> bool {
        let all: BTreeSet<u32> = others.chain([self.voter.rank()]).collect();
        is_quorum(all.len(), all.contains(&0), self.voter.world_size())
    }

    /// Control addresses of other ranks: of the configuration, and where each was last.
    fn others(&self) -> Vec<Address> {
        if let Some(handle) = self.handle.upgrade() {
            self.voter.learn(&handle.view());
        }
        let all = self.configured.iter().cloned().chain(self.voter.others());
        let mut seen = BTreeSet::new();
        all.filter(|at| *at != self.voter.control() && seen.insert(at.to_string())).collect()
    }

    /// Asks every other rank; one answer for each rank that answers.
    async fn ask(&self, stands: bool) -> Vec<Standing> {
        let others = self.others();
        let mut answers: Vec<Standing> = Vec::new();
        for some in others.chunks(ASKED_AT_ONCE) {
            let asked = some.iter().map(|at| self.ask_one(at, stands));
            answers.extend(join_all(asked).await.into_iter().flatten());
        }
        let mut seen = BTreeSet::from([self.voter.rank()]);
        answers.retain(|a| a.rank < self.voter.world_size() && seen.insert(a.rank));
        answers
    }

    async fn ask_one(&self, at: &Address, stands: bool) -> Option<Standing> {
        let ballot = self.voter.ballot(stands);
        let asked = hello(&*self.net, at, &self.credentials, Purpose::Elect(ballot));
        let answer = match within(ANSWER_LIMIT, asked).await {
            Ok(Ok((_, Welcome::Elect(standing)))) => standing.check().ok().map(|()| standing),
            _ => None,
        };
        self.voter.answered(at, answer.is_some());
        let standing = answer?;
        standing.others.iter().for_each(|(rank, at)| self.voter.knows_too(*rank, at));
        Some(standing)
    }

    /// Ranks that were started again may know nobody: they learn of this node by its question.
    async fn call_the_absent(&self, here: &LocalMaster) {
        let view = here.members.view();
        let is_member = |at: &Address| view.nodes().any(|(info, _)| info.control == *at);
        let absent: Vec<Address> = self.others().into_iter().filter(|at| !is_member(at)).collect();
        let some = absent.iter().take(ASKED_AT_ONCE);
        join_all(some.map(|at| self.ask_one(at, false))).await;
    }
}
