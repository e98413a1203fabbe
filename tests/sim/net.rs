//! The simulated network behind the program's own `Net` seam: connections between processes of
//! hosts, each part of a stream with a delay of its own, paths that are cut one way or both, and
//! connections that die with frames in flight. A connection is a tcp connection: in order, and once
//! its path is cut for longer than the kernel waits, dead at both ends. Paths within a host (unix
//! sockets, shared memory) are neither slow nor cut.
//!
//! Why not turmoil 0.7, which has hosts, paths and virtual time as well: a segment that it drops is
//! lost while its connection lives on, so that neither end ever learns of it, but the program
//! relies on tcp to deliver or to break; its hosts cannot be stopped; and each of its hosts costs a
//! turn of a runtime every millisecond, 240 ms for 30 idle seconds of 6 hosts, where one paused
//! runtime needs 2. The one-sided verbs would have had to go around it in any case, by the same
//! paths.

mod frames;
mod pipe;
mod stream;

pub use stream::{SimNet, ip_of};

use crate::dice::Dice;
use crate::process::{Liveness, Pid};
use crate::trace::Trace;
use frames::FrameTracer;
use pipe::Pipe;
use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::io::ErrorKind;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use stream::SimStream;
use tokio::time::{Instant, Sleep};

/// The kernel's timeouts, as transport/src/half_open.rs sets them: for unacknowledged bytes, and
/// for a silent peer.
const UNACKNOWLEDGED: Duration = Duration::from_secs(15);
const SILENT: Duration = Duration::from_secs(20);
/// Longest pause before tcp sends again once a path is whole.
const RESEND_MS: u64 = 200;

pub type ConnId = u64;

/// Delays of a network.
#[derive(Debug, Clone, Copy)]
pub struct NetworkProfile {
    /// Usual delay of a part of a stream between hosts, in milliseconds.
    pub delay_ms: (u64, u64),
    /// How many of a thousand parts take longer, and how long.
    pub slow_permille: u64,
    pub slow_ms: (u64, u64),
}

/// One end of a connection.
#[derive(Debug)]
struct End {
    host: usize,
    open: bool,
}

#[derive(Debug)]
struct Conn {
    // `pipes[i]` is what end `i` sends.
    ends: [End; 2],
    pipes: [Pipe; 2],
}

/// Where one listens: a host, and a port or a socket's path.
pub type ListenAddress = (usize, String);

/// A connection that waits to be accepted, and the process at its other end where it is known.
type Dialled = (SimStream, Option<(Pid, Arc<Liveness>)>);

#[derive(Debug, Default)]
struct Waiting {
    pid: Pid,
    queue: VecDeque<Dialled>,
    waker: Option<Waker>,
}

#[derive(Debug)]
struct State {
    dice: Dice,
    network: NetworkProfile,
    // `cut[a][b]`: nothing goes from host a to host b.
    cut: Vec<Vec<bool>>,
    // Grows with every change of a path, so that an old deadline is known as such.
    cuts: Vec<Vec<u64>>,
    conns: BTreeMap<ConnId, Conn>,
    listeners: BTreeMap<ListenAddress, Waiting>,
    next_conn: ConnId,
    next_port: u16,
    due: BTreeMap<(Instant, u64), Due>,
    next_due: u64,
    delivery: Option<Waker>,
    // A process that is being killed, and whether the bytes that it had sent are lost.
    dying: Option<(Pid, bool)>,
}

#[derive(Debug, Clone, Copy)]
enum Due {
    /// Something arrives.
    Arrival(ConnId, usize),
    /// A path has been cut since that change: its connections die.
    PathTimeout { a: usize, b: usize, cut: u64, idle_too: bool },
}

/// See the file's first paragraph. Clones are the same network.
#[derive(Debug, Clone)]
pub struct Net {
    state: Arc<Mutex<State>>,
    tracer: Arc<Mutex<FrameTracer>>,
    trace: Trace,
}

impl Net {
    pub fn new(hosts: usize, network: NetworkProfile, dice: Dice, trace: Trace) -> Self {
        let state = State {
            dice,
            network,
            cut: vec![vec![false; hosts]; hosts],
            cuts: vec![vec![0; hosts]; hosts],
            conns: BTreeMap::new(),
            listeners: BTreeMap::new(),
            next_conn: 0,
            next_port: 20_000,
            due: BTreeMap::new(),
            next_due: 0,
            delivery: None,
            dying: None,
        };
        Self { state: Arc::new(Mutex::new(state)), tracer: Arc::default(), trace }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets arrive what is due; runs as long as the simulation.
    pub fn delivery(&self) -> Delivery {
        Delivery { net: self.clone(), sleep: Box::pin(tokio::time::sleep(Duration::ZERO)) }
    }

    /// True if something sent from one host reaches the other.
    pub fn is_open(&self, from: usize, to: usize) -> bool {
        from == to || !self.lock().cut[from][to]
    }

    /// A delay as one part of a stream has it.
    pub fn delay(&self, from: usize, to: usize) -> Duration {
        self.lock().delay(from, to)
    }

    /// No byte goes from one host to the other until [`Net::mend`].
    pub fn cut(&self, from: usize, to: usize) {
        if from == to {
            return;
        }
        let mut state = self.lock();
        if std::mem::replace(&mut state.cut[from][to], true) {
            return;
        }
        state.cuts[from][to] += 1;
        let (cut, now) = (state.cuts[from][to], Instant::now());
        for (after, idle_too) in [(UNACKNOWLEDGED, false), (SILENT, true)] {
            let due = Due::PathTimeout { a: from, b: to, cut, idle_too };
            state.schedule(now + after, due);
        }
    }

    /// The path is whole again; what waits is sent again in a while.
    pub fn mend(&self, from: usize, to: usize) {
        let mut state = self.lock();
        if !std::mem::replace(&mut state.cut[from][to], false) {
            return;
        }
        state.cuts[from][to] += 1;
        let now = Instant::now();
        let ids: Vec<_> = state.conns.keys().copied().collect();
        for id in ids {
            for side in [0, 1] {
                let resend = state.dice.ms(0, RESEND_MS);
                let Some(conn) = state.conns.get_mut(&id) else { continue };
                if conn.path(side) != (from, to) {
                    continue;
                }
                let pipe = &mut conn.pipes[side];
                pipe.unacknowledged = false;
                pipe.resume(now + resend);
                if let Some(due) = pipe.next_due() {
                    state.schedule(due, Due::Arrival(id, side));
                }
            }
        }
    }

    /// A connection between two hosts dies, with what is in flight. False if there is none.
    pub fn break_one(&self, dice: &mut Dice) -> bool {
        let mut state = self.lock();
        let far = |c: &Conn| c.ends[0].host != c.ends[1].host && c.ends.iter().any(|e| e.open);
        let ids: Vec<_> = state.conns.iter().filter(|(_, c)| far(c)).map(|(id, _)| *id).collect();
        if ids.is_empty() {
            return false;
        }
        let id = *dice.pick(&ids);
        state.break_conn(id, ErrorKind::ConnectionReset);
        self.trace.note("conn-broken", id);
        true
    }

    /// From here until [`Net::is_dead`] this process is being killed: with `lossy`, what it sent
    /// and nobody read yet is lost.
    pub fn is_dying(&self, pid: Pid, lossy: bool) {
        let mut state = self.lock();
        state.dying = Some((pid, lossy));
        let its: Vec<_> =
            state.listeners.extract_if(.., |_, listener| listener.pid == pid).collect();
        drop(state);
        // Drops connections that were not accepted: outside the lock.
        drop(its);
    }

    /// It is dead.
    pub fn is_dead(&self) {
        self.lock().dying = None;
    }

    fn arrivals(&self, conn: ConnId, side: usize) {
        let mut state = self.lock();
        let now = Instant::now();
        let Some((bytes, ended)) = state.arrive(conn, side, now) else { return };
        drop(state);
        self.trace_bytes(conn, side, &bytes, ended);
    }

    fn trace_bytes(&self, conn: ConnId, side: usize, bytes: &[u8], ended: bool) {
        if bytes.is_empty() && !ended {
            return;
        }
        let describe = || {
            let frames = self.tracer.lock().unwrap().arrived(conn, side, bytes);
            let end = if ended { ", and the end" } else { "" };
            format!("{conn}.{side}: {} bytes{end} {}", bytes.len(), frames.join(" | "))
        };
        self.trace.event("net", (conn, side, bytes, ended), describe);
    }

    /// Handles everything that is due; returns when there is more.
    fn turn(&self) -> Option<Instant> {
        loop {
            let next = {
                let mut state = self.lock();
                let (&(at, number), _) = state.due.first_key_value()?;
                if at > Instant::now() {
                    return Some(at);
                }
                state.due.remove(&(at, number))?
            };
            match next {
                Due::Arrival(conn, side) => self.arrivals(conn, side),
                Due::PathTimeout { a, b, cut, idle_too } => {
                    let dead = self.lock().timed_out((a, b, cut), idle_too);
                    for id in dead {
                        self.trace.note("conn-timed-out", id);
                    }
                }
            }
        }
    }
}

impl Conn {
    /// From which host to which a side sends.
    fn path(&self, side: usize) -> (usize, usize) {
        (self.ends[side].host, self.ends[1 - side].host)
    }
}

impl State {
    fn delay(&mut self, from: usize, to: usize) -> Duration {
        if from == to {
            return Duration::ZERO;
        }
        let NetworkProfile { delay_ms, slow_permille, slow_ms } = self.network;
        let (low, high) = if self.dice.permille(slow_permille) { slow_ms } else { delay_ms };
        self.dice.ms(low, high)
    }

    fn is_open(&self, (from, to): (usize, usize)) -> bool {
        !self.cut[from][to]
    }

    fn schedule(&mut self, at: Instant, due: Due) {
        let first = self.due.first_key_value().map(|((first, _), _)| *first);
        self.next_due += 1;
        self.due.insert((at, self.next_due), due);
        if first.is_none_or(|first| at < first)
            && let Some(delivery) = self.delivery.take()
        {
            delivery.wake();
        }
    }

    fn arrive(&mut self, id: ConnId, side: usize, now: Instant) -> Option<(Vec<u8>, bool)> {
        let conn = self.conns.get_mut(&id)?;
        let path = conn.path(side);
        if self.cut[path.0][path.1] {
            // Held: `mend` sends it again.
            return None;
        }
        let back_cut = self.cut[path.1][path.0];
        let conn = self.conns.get_mut(&id)?;
        let pipe = &mut conn.pipes[side];
        pipe.unacknowledged |= back_cut && !pipe.is_idle();
        let arrived = pipe.arrive(now);
        if let Some(due) = pipe.next_due() {
            self.schedule(due, Due::Arrival(id, side));
        }
        self.end_of(id, side, arrived.1);
        self.forget_if_over(id);
        Some(arrived)
    }

    /// The peer has read the end of what `side` sends: that side has closed, so writes to it fail.
    fn end_of(&mut self, id: ConnId, side: usize, ended: bool) {
        if ended && let Some(conn) = self.conns.get_mut(&id) {
            conn.pipes[1 - side].lose_flight();
            conn.pipes[1 - side].fail(ErrorKind::BrokenPipe);
        }
    }

    fn forget_if_over(&mut self, id: ConnId) {
        let over = |c: &Conn| c.ends.iter().all(|e| !e.open);
        if self.conns.get(&id).is_some_and(over) {
            self.conns.remove(&id);
        }
    }

    fn break_conn(&mut self, id: ConnId, why: ErrorKind) {
        if let Some(conn) = self.conns.get_mut(&id) {
            for pipe in &mut conn.pipes {
                pipe.lose_flight();
                pipe.fail(why);
            }
        }
    }

    fn timed_out(&mut self, (a, b, cut): (usize, usize, u64), idle_too: bool) -> Vec<ConnId> {
        if self.cuts[a][b] != cut {
            return Vec::new();
        }
        let tried = |pipe: &Pipe| pipe.unacknowledged || !pipe.is_idle();
        let dead = |c: &Conn| {
            let between = c.path(0) == (a, b) || c.path(1) == (a, b);
            between && (idle_too || c.pipes.iter().any(tried))
        };
        let ids: Vec<_> = self.conns.iter().filter(|(_, c)| dead(c)).map(|(id, _)| *id).collect();
        for id in &ids {
            self.break_conn(*id, ErrorKind::TimedOut);
        }
        ids
    }
}

/// The task that moves what is in flight.
pub struct Delivery {
    net: Net,
    sleep: Pin<Box<Sleep>>,
}

impl Future for Delivery {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            let next = self.net.turn();
            self.net.lock().delivery = Some(cx.waker().clone());
            let Some(next) = next else { return Poll::Pending };
            self.sleep.as_mut().reset(next);
            if self.sleep.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
        }
    }
}
