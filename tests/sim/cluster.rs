//! The simulated cluster: its processes, and how each is started, killed and started again, as a
//! launcher does with real ones. They run the real program: `Node::start_in` and
//! `Client::connect_in`, each in the environment of its own process.

mod clients;
mod ranks;

pub use ranks::Actor;

use crate::coverage::Coverage;
use crate::dice::{Dice, SimRandom};
use crate::ledger::{Ledger, Roster};
use crate::machine::Machines;
use crate::net::{Net, SimNet};
use crate::plan::Plan;
use crate::process::{Pid, Process};
use crate::time::HostClock;
use crate::trace::Trace;
use crate::workload::counters_of;
use nkv::message::{MasterCounters, OwnerGauges, RankState, Term};
use nkv::{Environment, Node};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, mpsc};

/// Pause between checks of members and joined ranks. A broken link is down for longer.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Purposes of streams of choices.
const NET: u64 = 2;
const MACHINES: u64 = 3;
const PROCESSES: u64 = 4;

/// A rank, and its present process if there is one.
#[derive(Default)]
struct Rank {
    process: Option<Rc<Process>>,
    node: Option<Rc<Node>>,
    leave: Rc<Notify>,
}

/// Requests that a process cannot carry out on itself.
#[derive(Debug, Clone, Copy)]
enum ProcessJob {
    /// This rank's process has come to its end.
    RankEnded(usize, Pid),
    /// This client program's process has come to its end.
    ClientEnded(usize, Pid),
}

/// A client program.
struct ClientProgram {
    host: usize,
    process: Option<Rc<Process>>,
}

/// See the file's first paragraph.
pub struct Cluster {
    pub plan: Plan,
    pub trace: Trace,
    pub net: Net,
    pub machines: Machines,
    pub ledger: Arc<Ledger>,
    pub coverage: RefCell<Coverage>,
    /// Puts of striped objects: key and length of each.
    pub striped: RefCell<Vec<(usize, usize)>>,
    /// Calls that clients have ended.
    pub ops: Cell<u64>,
    /// Clients begin no call any more.
    pub closing: Cell<bool>,
    /// Calls in flight.
    pub calls: Cell<u64>,
    clocks: Vec<Arc<HostClock>>,
    dice: RefCell<Dice>,
    next_pid: Cell<Pid>,
    ranks: RefCell<Vec<Rank>>,
    clients: RefCell<Vec<ClientProgram>>,
    // Since when each incarnation has been joined without interruption, as far as it was checked.
    joined: RefCell<BTreeMap<u64, u64>>,
    members: RefCell<BTreeSet<u64>>,
    // The same for links as the master sees them.
    linked: RefCell<BTreeMap<u64, u64>>,
    // Former members of this term.
    past: RefCell<(Term, BTreeSet<u64>)>,
    // Counters of masters at the last check, by term.
    masters: RefCell<BTreeMap<(Term, &'static str), u64>>,
    terms: RefCell<BTreeSet<Term>>,
    // The rank that served last as master.
    served: Cell<Option<(usize, Term)>>,
    jobs: mpsc::UnboundedSender<ProcessJob>,
}

impl Cluster {
    /// A cluster in which nothing runs yet. Call inside the run's `LocalSet`.
    pub fn new(plan: Plan, trace: Trace) -> Rc<Self> {
        let (jobs, todo) = mpsc::unbounded_channel();
        let seed = plan.seed;
        let net = Net::new(plan.hosts, plan.network, Dice::new(seed, NET), trace.clone());
        let ledger = Arc::new(Ledger::new(&plan.keys(), plan.stripes, trace.clone()));
        let dice = Dice::new(seed, MACHINES);
        let machines =
            Machines::new(net.clone(), ledger.clone(), plan.hiccups, plan.wire_profile, dice);
        let clock = |(offset, rate): &(u64, u64)| Arc::new(HostClock::new(*offset, *rate));
        let client = |host: &usize| ClientProgram { host: *host, process: None };
        let cluster = Rc::new(Self {
            clocks: plan.clocks.iter().map(clock).collect(),
            ranks: RefCell::new(plan.ranks.iter().map(|_| Rank::default()).collect()),
            clients: RefCell::new(plan.clients.iter().map(client).collect()),
            dice: RefCell::new(Dice::new(seed, PROCESSES)),
            net,
            machines,
            ledger,
            plan,
            trace,
            coverage: RefCell::default(),
            striped: RefCell::default(),
            ops: Cell::new(0),
            closing: Cell::new(false),
            calls: Cell::new(0),
            next_pid: Cell::new(1),
            joined: RefCell::default(),
            members: RefCell::default(),
            linked: RefCell::default(),
            past: RefCell::default(),
            masters: RefCell::default(),
            terms: RefCell::default(),
            served: Cell::default(),
            jobs,
        });
        tokio::task::spawn_local(cluster.clone().run_errands(todo));
        cluster
    }

    async fn run_errands(self: Rc<Self>, mut todo: mpsc::UnboundedReceiver<ProcessJob>) {
        while let Some(job) = todo.recv().await {
            match job {
                ProcessJob::RankEnded(rank, pid) => self.rank_ended(rank, pid),
                ProcessJob::ClientEnded(client, pid) => self.client_ended(client, pid),
            }
        }
    }

    /// Starts all processes, and the task that restarts them.
    pub fn start(self: &Rc<Self>) {
        tokio::task::spawn_local(self.net.delivery());
        for rank in 0..self.plan.ranks.len() {
            self.start_rank(rank);
        }
        for client in 0..self.plan.clients.len() {
            self.start_client(client);
        }
        let cluster = self.clone();
        tokio::task::spawn_local(async move {
            loop {
                cluster.check_members();
                tokio::time::sleep(POLL_INTERVAL).await;
            }
        });
    }

    /// A stream of choices of its own.
    pub fn fork(&self) -> Dice {
        self.dice.borrow_mut().fork()
    }

    pub fn process_on(&self, host: usize) -> Rc<Process> {
        let pid = self.next_pid.replace(self.next_pid.get() + 1);
        Process::start(pid, host, self.clocks[host].clone())
    }

    pub fn environment(&self, process: &Process, master: bool) -> Environment {
        let (pid, host) = (process.pid, process.host);
        let net = SimNet { net: self.net.clone(), pid, host, life: process.life.clone() };
        let random = SimRandom::new(self.fork());
        let machine = self.machines.of(pid, host, master);
        Environment::simulated(
            process.clock.clone(),
            Arc::new(net),
            Arc::new(random),
            Arc::new(machine),
        )
    }

    /// Kills a process. `lossy`: what it sent and nobody read is lost with it.
    fn kill(&self, process: &Process, lossy: bool) {
        self.net.is_dying(process.pid, lossy);
        process.kill();
        self.net.is_dead();
        self.ledger.process_died(process.pid);
    }

    /// Runs something on the node of a rank that is up.
    pub fn with_node<T>(&self, rank: usize, run: impl FnOnce(&Node) -> T) -> Option<T> {
        let node = self.ranks.borrow()[rank].node.clone();
        node.as_deref().map(run)
    }

    /// Notes who is a member and who is joined.
    fn check_members(&self) {
        self.note_masters();
        if let Some(view) = self.master().and_then(|r| self.with_node(r, Node::membership)?) {
            let up = view.ranks.iter().filter(|(_, state)| *state != RankState::Suspect);
            let up: BTreeSet<u64> = up.map(|(info, _)| info.incarnation).collect();
            let another = self.past.borrow().0 != view.term;
            self.linked.borrow_mut().retain(|i, _| !another && up.contains(i));
            for incarnation in up {
                let mut linked = self.linked.borrow_mut();
                linked.entry(incarnation).or_insert_with(|| self.ledger.moment());
            }
            let members = view.ranks.iter().map(|(info, _)| info.incarnation).collect();
            self.nobody_comes_back(view.term, &members);
            if view.settled {
                self.ledger.goes_on_with(&members);
            }
            *self.members.borrow_mut() = members;
        } else {
            // A leaving master may still answer, but its members cannot be read then.
            self.members.borrow_mut().clear();
            self.linked.borrow_mut().clear();
        }
        let joined: Vec<u64> = (0..self.plan.ranks.len())
            .filter_map(|r| self.with_node(r, Node::joined))
            .flatten()
            .collect();
        let mut since = self.joined.borrow_mut();
        since.retain(|incarnation, _| joined.contains(incarnation));
        for incarnation in joined {
            since.entry(incarnation).or_insert_with(|| self.ledger.moment());
        }
    }

    /// The rank whose master serves; while none does, the one of the highest term, not below the
    /// last that served, that has a quorum of links as far as it knows.
    pub fn master(&self) -> Option<usize> {
        let all = 0..self.plan.ranks.len();
        let serves = |r: &usize| self.with_node(*r, Node::serves_as_master) == Some(true);
        let of = |r: usize| {
            let view = self.with_node(r, Node::membership)??;
            let up = view.nodes().filter(|(_, state)| *state != RankState::Suspect);
            let up: Vec<u32> = up.map(|(info, _)| info.rank).collect();
            let (twice, n) = (up.len() * 2, self.plan.ranks.len());
            let enough = twice > n || (twice == n && up.contains(&0));
            let later = self.served.get().is_none_or(|(_, term)| term <= view.term);
            (!self.plan.elects || enough && later).then_some((view.term, r))
        };
        let linked = || all.clone().filter_map(of).max().map(|(_, r)| r);
        all.clone().find(serves).or_else(linked)
    }

    /// Counts the masters, and checks that no two serve [I24].
    fn note_masters(&self) {
        let mut serving = Vec::new();
        for rank in 0..self.plan.ranks.len() {
            let Some(Some(view)) = self.with_node(rank, Node::membership) else { continue };
            self.ledger.master_began(view.term.master);
            if self.with_node(rank, Node::serves_as_master) == Some(true) {
                serving.push((rank, view.term));
            }
        }
        if let [(rank, term)] = serving[..]
            && self.served.replace(Some((rank, term))).is_some_and(|(before, _)| before != rank)
        {
            self.coverage.borrow_mut().count("take-overs");
        }
        if serving.len() > 1 {
            self.ledger.wrong(format!("[I24] two masters serve: {serving:?}"));
        }
    }

    /// Within a term, an incarnation that ceased to be a member never becomes one again [I17].
    fn nobody_comes_back(&self, term: Term, members: &BTreeSet<u64>) {
        let mut past = self.past.borrow_mut();
        if past.0 != term {
            *past = (term, BTreeSet::new());
        } else {
            past.1.extend(self.members.borrow().difference(members));
        }
        if let Some(back) = past.1.intersection(members).next() {
            self.ledger
                .wrong(format!("[I17] {back:016x} was no member any more, and is one again"));
        }
    }

    /// Members now, and which of them have been joined since before `since`.
    pub fn roster(&self, since: u64) -> Roster {
        self.check_members();
        let joined = self.joined.borrow();
        let long = joined.iter().filter(|(_, from)| **from < since).map(|(i, _)| *i);
        let linked = self.linked.borrow();
        let asked = linked.iter().filter(|(_, from)| **from < since).map(|(i, _)| *i);
        Roster {
            members: self.members.borrow().clone(),
            linked: linked.keys().copied().collect(),
            joined: long.collect(),
            asked: asked.collect(),
        }
    }

    /// An owner's figures as they are now.
    pub fn gauges(&self, rank: usize, segment: u32) -> Option<OwnerGauges> {
        let of = |node: &Node| {
            let status = node.status();
            if segment == 0 {
                return Some(status.owner);
            }
            status.segments.iter().find(|s| s.segment == segment).map(|s| s.owner)
        };
        self.with_node(rank, of).flatten()
    }

    /// Adds the increase of a master's counters since the last call.
    pub fn note_master(&self, term: Term, counters: &MasterCounters) {
        let mut seen = self.masters.borrow_mut();
        for (what, n) in counters_of(counters) {
            let before = seen.insert((term, what), n).unwrap_or_default();
            self.coverage.borrow_mut().add(what, n.saturating_sub(before));
        }
        drop(seen);
        let mut terms = self.terms.borrow_mut();
        if terms.insert(term) {
            self.coverage.borrow_mut().count("terms");
            if term.number > 1 {
                self.coverage.borrow_mut().count("terms that rose");
            }
        }
    }

    /// At the end: what nodes that live on have counted.
    pub fn note_ends(&self) {
        for rank in 0..self.plan.ranks.len() {
            self.with_node(rank, |node| self.coverage.borrow_mut().of_node(&node.status()));
        }
        for (word, n) in self.ledger.excused() {
            self.coverage.borrow_mut().add(&format!("excused: {word}"), n);
        }
    }

    /// A read that began then returned these bytes, taken from these incarnations.
    pub fn check_bytes(&self, key: usize, began: u64, bytes: &[u8], read_from: &[u64]) {
        self.check_members();
        self.ledger.check_bytes((key, began), bytes, read_from, &self.members.borrow());
    }

    /// Counts a call that ended.
    pub fn count_op(&self) {
        self.ops.set(self.ops.get() + 1);
    }
}
