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
use crate::message::is_quorum;
use crate::message::{Purpose, RankInfo, RankState, Standing, Term, Welcome};
use futures_util::future::join_all;
use nkv_store::clock::Clock;
use nkv_store::log_limit::LogLimit;
use nkv_store::random::Random;
use nkv_transport::wire::auth::Credentials;
use nkv_transport::wire::{Address, Net, within};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError, Weak};
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
pub(crate) const FORMING_MS: u64 = 2_000;
/// How often a master calls at addresses where a rank may have been started that knows nobody.
const CALL_MS: u64 = 400;

/// How often a node that uses etcd writes there where it is, and how often it looks there while it
/// has no master.
const PUBLISH_MS: u64 = 15_000;
const ETCD_PAUSE: Duration = Duration::from_millis(300);

/// How long a rank obeys no other master after it has heard from its own: that one's lease, and an
/// eighth of it, because clocks may run at different rates.
pub(crate) fn promise_ms(lease_ms: u64) -> u64 {
    lease_ms + lease_ms / 8
}

/// What makes a node the master, and ends that.
pub(crate) trait StartMaster: Send + Sync {
    /// Begins as master, with a term of this number; these ranks are known to be alive.
    fn begin(
        &self,
        number: u64,
        alive: BTreeSet<u32>,
    ) -> nkv_transport::wire::BoxFuture<'_, Result<()>>;
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
    /// Limits the log lines of questions, by what they are about.
    pub lines: Mutex<LogLimit<String>>,
}

impl Election {
    /// Runs until the node closes.
    pub(crate) async fn run(self) {
        let (mut rounds, mut called_ms, mut quorum_ms) = (0, 0, 0);
        loop {
            let now = self.clock.now_ms();
            match self.master.here() {
                Some(here) => {
                    rounds = 0;
                    if here.members.has_quorum(now) {
                        quorum_ms = now;
                    }
                    let until = quorum_ms + self.voter.promise_ms();
                    if now >= until && !here.members.is_in_office(now, FORMING_MS) {
                        self.end(&here, "no quorum obeys this master any more: it ends");
                    } else if now >= called_ms + CALL_MS {
                        called_ms = now;
                        self.call_others(&here).await;
                    }
                }
                None if self.voter.is_free() => {
                    rounds += 1;
                    if self.round(rounds).await || rounds > LEFT_TO_LOWER {
                        rounds = 0;
                    }
                    quorum_ms = 0;
                }
                None => rounds = 0,
            }
            let spread = self.random.u64() % ROUND_SPREAD_MS;
            let pause = ROUND_MS + spread + u64::from(self.voter.world_size());
            tokio::time::sleep(Duration::from_millis(pause)).await;
        }
    }

    fn end(&self, here: &LocalMaster, why: &str) {
        tracing::warn!("{why}");
        self.starter.end();
        self.voter.release(here.members.term().master);
    }

    /// One round of questions; true if it found a master, or made one.
    async fn round(&self, rounds: u32) -> bool {
        // Who did not answer the last time is asked in every fourth round: each costs its limit.
        let others = self.others(rounds % 4 == 1);
        let answers = self.ask(&others, false).await;
        let own = self.voter.standing();
        let named = answers.iter().filter_map(|(_, a)| a.master.clone());
        // Also one of a lower term than this rank obeyed: it rises above that when this rank joins,
        // or has a quorum and refuses it.
        let highest = named.max_by_key(|(term, _)| *term);
        if let Some((_, at)) = highest.filter(|_| self.voter.is_free()) {
            self.master.set(MasterPath::Remote([at].into()));
            return true;
        }
        let free = || answers.iter().map(|(_, a)| a).filter(|a| a.free);
        if !self.is_quorum_with(free().map(|a| a.rank)) {
            let (n, world) = (1 + free().count(), own.world_size);
            let text = format!(
                "{n} of {world} ranks have none, and elect one when they are more than half, or \
                 half with rank 0: start the others"
            );
            if rounds > LEFT_TO_LOWER {
                self.warn("few", &text);
            }
            return false;
        }
        let first = free().all(|a| a.rank > own.rank);
        if !first && rounds <= LEFT_TO_LOWER {
            return false;
        }
        let obeyed = match &self.arbiter {
            Arbiter::Votes => {
                let there: Vec<Address> = answers.iter().map(|(at, _)| at.clone()).collect();
                self.voted(&there).await
            }
            Arbiter::Etcd(etcd) => {
                let obeyed = free().map(|a| a.obeyed).fold(own.obeyed, Term::max);
                self.taken(etcd).await.then_some(obeyed)
            }
        };
        let next = obeyed.and_then(|term| term.number.checked_add(1));
        let Some(number) = next.filter(|_| self.voter.is_free()) else {
            return false;
        };
        tracing::info!(term = number, "elected master");
        let expected = answers.iter().map(|(_, a)| a.rank).chain([own.rank]).collect();
        if let Err(error) = self.starter.begin(number, expected).await {
            tracing::error!(%error, "elected, but the master did not start");
            return false;
        }
        true
    }

    /// Asks for votes; the highest term that the voters obeyed, if they are a quorum.
    async fn voted(&self, others: &[Address]) -> Option<Term> {
        let own = self.voter.standing();
        if !self.voter.vote_for(own.rank) {
            return None;
        }
        let answers = self.ask(others, true).await;
        let votes = || answers.iter().map(|(_, a)| a).filter(|a| a.granted);
        let obeyed = votes().map(|a| a.obeyed).fold(own.obeyed, Term::max);
        // A lower rank may have asked meanwhile: then this one voted for it, and so did others.
        let elected = self.is_quorum_with(votes().map(|a| a.rank)) && self.voter.stands();
        elected.then_some(obeyed)
    }

    /// Takes the key in etcd; false if another rank was first, or etcd does not answer.
    async fn taken(&self, etcd: &Arc<Etcd>) -> bool {
        let (etcd, rank, control) = (etcd.clone(), self.voter.rank(), self.voter.control());
        let take = move || etcd.take(etcd.revision()?, rank, &control);
        match tokio::task::spawn_blocking(take).await {
            Ok(Ok(taken)) => taken,
            Ok(Err(error)) => {
                self.warn("etcd", &error.to_string());
                false
            }
            Err(_) => false,
        }
    }

    /// Logs what hinders, at once and then once a minute.
    fn warn(&self, about: &str, what: &str) {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.is_due(about.to_string(), self.clock.now_ms()) {
            tracing::warn!("looking for the master: {what}");
        }
    }

    fn is_quorum_with(&self, others: impl Iterator<Item = u32>) -> bool {
        let all: BTreeSet<u32> = others.chain([self.voter.rank()]).collect();
        is_quorum(all.len(), all.contains(&0), self.voter.world_size())
    }

    /// Control addresses of other ranks: of the configuration, and where each was last; without
    /// `silent` only where somebody answered the last time, or nobody was asked yet.
    fn others(&self, silent: bool) -> Vec<Address> {
        if let Some(handle) = self.handle.upgrade() {
            self.voter.learn(&handle.view());
        }
        let configured = self.configured.iter().cloned();
        let all = configured.chain(self.voter.others()).filter(|at| *at != self.voter.control());
        let mut seen = BTreeSet::new();
        let wanted = |at: &Address| silent || !self.voter.unanswered(at);
        all.filter(|at| wanted(at) && seen.insert(at.to_string())).collect()
    }

    /// Asks other ranks; one answer for each rank that answers, with where it is.
    async fn ask(&self, others: &[Address], stands: bool) -> Vec<(Address, Standing)> {
        let mut answers: Vec<(Address, Standing)> = Vec::new();
        for some in others.chunks(ASKED_AT_ONCE) {
            let asked = some.iter().map(|at| self.ask_one(at, stands));
            let answered = some.iter().cloned().zip(join_all(asked).await);
            answers.extend(answered.filter_map(|(at, answer)| answer.map(|a| (at, a))));
        }
        let world = self.voter.world_size();
        let mut seen = BTreeSet::from([self.voter.rank()]);
        answers.retain(|(_, a)| a.world_size == world && a.rank < world && seen.insert(a.rank));
        answers
    }

    async fn ask_one(&self, at: &Address, stands: bool) -> Option<Standing> {
        let ballot = self.voter.ballot(stands);
        let asked = hello(&*self.net, at, &self.credentials, Purpose::Elect(ballot));
        let answer = match within(ANSWER_LIMIT, asked).await {
            Ok(Ok((_, Welcome::Elect(standing)))) => standing.check().ok().map(|()| standing),
            Ok(Ok((_, Welcome::Refused { why }))) => {
                self.warn(&at.to_string(), &format!("{at} refused: {why}"));
                None
            }
            _ => None,
        };
        self.voter.answered(at, answer.is_some());
        let standing = answer?;
        if standing.world_size != self.voter.world_size() {
            let (theirs, ours) = (standing.world_size, self.voter.world_size());
            let text = format!("{at} has world size {theirs}, and this rank {ours}");
            self.warn(&at.to_string(), &text);
            return None;
        }
        standing.others.iter().for_each(|(rank, at)| self.voter.knows_too(*rank, at));
        Some(standing)
    }

    /// A master calls ranks that are not linked: those that were started again may know nobody, and
    /// learn of this node by its question. Without a quorum it asks all, and ends if one of them
    /// names a later master.
    async fn call_others(&self, here: &LocalMaster) {
        let (view, served) = (here.members.view(), here.members.has_quorum(self.clock.now_ms()));
        let up = |(info, state): &&(RankInfo, RankState), at: &Address| {
            info.control == *at && *state != RankState::Suspect
        };
        let linked = |at: &Address| view.nodes().any(|node| up(&node, at));
        let absent = self.others(true).into_iter().filter(|at| !(served && linked(at)));
        let answers = self.ask(&absent.take(ASKED_AT_ONCE).collect::<Vec<_>>(), false).await;
        let own = here.members.term();
        let later = |a: &Standing| {
            let term = a.master.as_ref().map(|(term, _)| *term);
            term.is_some_and(|term| term > own && term.master != own.master)
        };
        if !served && answers.iter().any(|(_, a)| later(a)) {
            self.end(here, "another rank is master: this one ends");
        }
    }
}

/// Writes where a node is to etcd, and reads where the others are, until the node closes: often
/// while it has no master. In a task of its own, since etcd may be slow or gone.
pub(crate) async fn keep_in_etcd(etcd: Arc<Etcd>, voter: Arc<Voter>, clock: Arc<dyn Clock>) {
    let mut lines = LogLimit::default();
    let mut published_ms = None;
    loop {
        let now = clock.now_ms();
        let due = published_ms.is_none_or(|at| now >= at + PUBLISH_MS);
        if due || voter.is_free() {
            let (etcd, rank, control) = (etcd.clone(), voter.rank(), voter.control());
            let work = move || {
                if due {
                    etcd.publish(rank, &control)?;
                }
                etcd.ranks()
            };
            match tokio::task::spawn_blocking(work).await {
                Ok(Ok(ranks)) => {
                    published_ms = if due { Some(now) } else { published_ms };
                    ranks.iter().for_each(|(rank, at)| voter.knows_too(*rank, at));
                }
                Ok(Err(error)) => {
                    if lines.is_due((), now) {
                        tracing::warn!(
                            %error,
                            "etcd does not answer: this job goes on, but can elect no other master"
                        );
                    }
                }
                Err(_) => {}
            }
        }
        tokio::time::sleep(ETCD_PAUSE).await;
    }
}
