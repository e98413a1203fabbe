//! Ranks: a process that starts a node, keeps it until it ends, and is then started again.

use super::{Cluster, ProcessJob};
use crate::process::{Pid, Process};
use crate::workload;
use nkv::{Node, StartError};
use nkv_actors::actor::{ActorAddr, Crash, On, Role};
use std::rc::Rc;
use std::time::Duration;

/// How long a graceful leave waits for open plans.
const DRAIN: Duration = Duration::from_millis(500);
/// Milliseconds until an ended or killed rank is started again.
const RESTART_MS: (u64, u64) = (1, 900);

/// The same, of a thousand, where ranks elect the master: it is gone for longer than they wait.
const LATE_PERMILLE: u64 = 500;
const LATE_MS: (u64, u64) = (900, 6_000);

/// An actor of a node.
#[derive(Debug, Clone, Copy)]
pub enum Actor {
    Master,
    Owner,
    Evictor,
    Producer,
    Poller,
}

impl Cluster {
    /// Starts a rank that has no process.
    pub(super) fn start_rank(self: &Rc<Self>, rank: usize) {
        let process = self.process_on(self.plan.ranks[rank]);
        self.ranks.borrow_mut()[rank].process = Some(process.clone());
        self.trace.note("rank-starts", format!("{rank} as process {}", process.pid));
        let (cluster, home) = (self.clone(), process.clone());
        process.spawn(async move {
            let (why, pid) = (cluster.run_rank(rank, &home).await, home.pid);
            cluster.trace.note("rank-ends", format!("{rank}: {why}"));
            let _ = cluster.jobs.send(ProcessJob::RankEnded(rank, pid));
        });
    }

    async fn run_rank(self: &Rc<Self>, rank: usize, process: &Rc<Process>) -> String {
        let env = self.environment(process, rank == 0 && !self.plan.elects);
        let node = match Node::start_in(env, self.plan.config(rank as u32)).await {
            Ok(node) => Rc::new(node),
            Err(e) => return self.not_started(&e),
        };
        self.joined_as(rank, &node);
        let leave = self.ranks.borrow()[rank].leave.clone();
        let ended = tokio::select! {
            biased;
            ended = node.ended() => Some(format!("{ended:?}")),
            () = leave.notified() => None,
        };
        self.note_end_of(&node);
        self.ranks.borrow_mut()[rank].node = None;
        match (ended, Rc::try_unwrap(node)) {
            (Some(why), _) => why,
            (None, Ok(node)) => {
                let report = node.drain(DRAIN).await;
                node.stop().await;
                format!("it left, with {} plans open", report.plans_left)
            }
            (None, Err(_)) => "somebody holds the node".to_string(),
        }
    }

    fn not_started(&self, e: &StartError) -> String {
        self.coverage.borrow_mut().count("start refused");
        e.to_string()
    }

    fn joined_as(self: &Rc<Self>, rank: usize, node: &Rc<Node>) {
        let incarnation = node.info().incarnation;
        self.trace.note("rank-joined", format!("{rank} as {incarnation:016x}"));
        if let Some(watch) = self.machines.watch(incarnation) {
            watch.owned_by(node.owner().watch());
        }
        for _ in 0..self.plan.own_workers {
            let (client, dice) = (node.client(), self.fork());
            tokio::task::spawn_local(workload::work(self.clone(), client, dice, None));
        }
        self.ranks.borrow_mut()[rank].node = Some(node.clone());
    }

    /// A node's counters are lost with it, so they are read before.
    fn note_end_of(&self, node: &Node) {
        self.coverage.borrow_mut().of_node(&node.status());
    }

    /// The process has ended, or is killed now: another one replaces it after a while.
    pub(super) fn rank_ended(self: &Rc<Self>, rank: usize, pid: Pid) {
        let ours = |p: &Rc<Process>| p.pid == pid;
        if self.ranks.borrow()[rank].process.as_ref().is_some_and(ours) {
            self.end_rank(rank, false);
            self.rank_again(rank);
        }
    }

    fn end_rank(&self, rank: usize, lossy: bool) {
        let (process, node) = {
            let mut ranks = self.ranks.borrow_mut();
            (ranks[rank].process.take(), ranks[rank].node.take())
        };
        if let Some(node) = &node {
            self.note_end_of(node);
        }
        if let Some(process) = process {
            self.kill(&process, lossy);
        }
    }

    fn rank_again(self: &Rc<Self>, rank: usize) {
        let pause = {
            let mut dice = self.dice.borrow_mut();
            let late = self.plan.elects && dice.permille(LATE_PERMILLE);
            let (least, most) = if late { LATE_MS } else { RESTART_MS };
            dice.ms(least, most)
        };
        let cluster = self.clone();
        tokio::task::spawn_local(async move {
            tokio::time::sleep(pause).await;
            if cluster.ranks.borrow()[rank].process.is_none() {
                cluster.start_rank(rank);
            }
        });
    }

    /// SIGKILL. False if there is no process.
    pub fn kill_rank(self: &Rc<Self>, rank: usize, lossy: bool) -> bool {
        if self.ranks.borrow()[rank].process.is_none() {
            return false;
        }
        self.end_rank(rank, lossy);
        self.rank_again(rank);
        true
    }

    /// True if this rank has a process.
    pub fn is_running(&self, rank: usize) -> bool {
        self.ranks.borrow()[rank].process.is_some()
    }

    /// SIGTERM: it drains and leaves. False if there is no node.
    pub fn terminate_rank(&self, rank: usize) -> bool {
        let ranks = self.ranks.borrow();
        if ranks[rank].node.is_some() {
            ranks[rank].leave.notify_one();
        }
        ranks[rank].node.is_some()
    }

    /// SIGSTOP, and SIGCONT after a while. False if there is no process.
    pub fn pause_rank(&self, rank: usize, pause: Duration) -> bool {
        let process = self.ranks.borrow()[rank].process.clone();
        process.is_some_and(|p| pause_process(p, pause))
    }

    /// Makes an actor panic. False if there is none.
    pub fn crash(&self, rank: usize, actor: Actor) -> bool {
        fn crash<R: Role + On<Crash>>(actor: &ActorAddr<R>) -> bool {
            actor.try_send(Crash).is_ok()
        }
        let crashed = self.with_node(rank, |node| match actor {
            Actor::Master => node.master().is_some_and(|master| crash(&master)),
            Actor::Owner => crash(node.owner()),
            Actor::Evictor => crash(node.evictor()),
            Actor::Producer => crash(node.producer()),
            Actor::Poller => node.poller().is_some_and(crash),
        });
        crashed.unwrap_or(false)
    }

    /// True if every rank has a node that is joined, and the master has all their reports.
    pub fn is_whole(&self) -> bool {
        let ready = |r| self.with_node(r, Node::is_ready).unwrap_or(false);
        (0..self.plan.ranks.len()).all(ready)
    }
}

/// Stops a living process for a while.
pub(super) fn pause_process(process: Rc<Process>, pause: Duration) -> bool {
    if !process.is_alive() {
        return false;
    }
    process.stand_still();
    tokio::task::spawn_local(async move {
        tokio::time::sleep(pause).await;
        process.go_on();
    });
    true
}
