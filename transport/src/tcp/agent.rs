//! Lifecycle of the agent: it listens beside a segment, starts a thread for each authenticated
//! connection, counts, and joins every thread when it ends. It neither checks tokens nor parses
//! requests.

use super::accept::Acceptor;
use super::frame::{MAX_REQUEST_BYTES, Status};
use super::line::{Interrupt, Line, listen};
use super::reply::send_welcome;
use super::serve::{Connection, End};
use crate::access::Access;
use crate::error::TransportError;
use crate::mapped::Mapped;
use crate::wire::auth::Guard;
use hashbrown::HashMap;
use nkv_store::Memory;
use nkv_store::clock::{BootClock, Clock};
use nkv_store::fork::ProcessMark;
use nkv_store::log_lines::LogLines;
use nkv_store::threads::spawn_named;
use socket2::Socket;
use std::net::{Shutdown, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// Backlog: connections that may wait to be accepted.
const BACKLOG: i32 = 256;

/// Bounds of one agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentLimits {
    /// Most authenticated connections at a time, each with a thread; further ones are turned away
    /// with a message. A separate limit applies to unauthenticated ones.
    pub max_connections: usize,
    /// A connection without a request for this many milliseconds is closed.
    pub idle_ms: u64,
    /// Milliseconds within which a peer must complete the handshake, and again within which it must
    /// send its hello; else it is turned away.
    pub hello_ms: u64,
    /// A peer without progress for this many milliseconds within a request is dropped. So is one
    /// that takes longer than this for a request's header, or than this plus 1 s per MiB for its
    /// payload or its answer.
    pub stall_ms: u64,
    /// Most payload bytes of one request in each direction. Clients receive the value and split.
    pub max_request_bytes: u64,
}

impl Default for AgentLimits {
    fn default() -> Self {
        Self {
            max_connections: 256,
            idle_ms: 300_000,
            hello_ms: 2_000,
            stall_ms: 5_000,
            max_request_bytes: MAX_REQUEST_BYTES,
        }
    }
}

/// Counters of an agent. Monotonic, except for `connections` and `unauthenticated`.
#[derive(Debug, Default)]
pub struct TcpCounters {
    /// Payload bytes written by completed requests.
    pub bytes_in: AtomicU64,
    /// Payload bytes read.
    pub bytes_out: AtomicU64,
    /// Requests parsed.
    pub requests: AtomicU64,
    /// Requests refused: token, grant, bounds, fence.
    pub refused: AtomicU64,
    /// Authenticated connections open now.
    pub connections: AtomicU64,
    /// Unauthenticated connections open now.
    pub unauthenticated: AtomicU64,
    /// Connections turned away: limit, job, incarnation, version.
    pub turned_away: AtomicU64,
    /// Connections that the guard refused: no proof, or a wrong one.
    pub auth_refused: AtomicU64,
    /// Connections dropped for a protocol error, a wrong header of a claim, a stall or an error.
    pub dropped: AtomicU64,
}

/// What the connections of one agent share.
#[derive(Debug)]
pub(super) struct Shared {
    pub segment: Mapped,
    pub incarnation: u64,
    pub job: String,
    pub access: Arc<dyn Access>,
    pub guard: Option<Arc<Guard>>,
    pub limits: AgentLimits,
    pub counters: Arc<TcpCounters>,
    pub stopping: AtomicBool,
    // For events that unauthenticated peers can repeat at will.
    pub lines: LogLines,
    open: Mutex<HashMap<u64, Open>>,
    last: AtomicU64,
}

#[derive(Debug)]
struct Open {
    interrupt: Arc<Interrupt>,
    thread: JoinHandle<()>,
}

impl Shared {
    fn open(&self) -> MutexGuard<'_, HashMap<u64, Open>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn has_room(&self) -> bool {
        self.open().len() < self.limits.max_connections
    }

    fn log_rejected(&self, from: &str, why: &str) {
        if let Some(before) = self.lines.next(BootClock.now_ms()) {
            tracing::warn!(%from, %why, before, "refused a data connection");
        }
    }
}

/// A running agent; stops when dropped.
#[derive(Debug)]
pub struct TcpAgent {
    shared: Arc<Shared>,
    local: SocketAddr,
    listener: Arc<Socket>,
    acceptor: Mutex<Option<JoinHandle<()>>>,
    made: ProcessMark,
}

impl TcpAgent {
    /// Serves `segment` at `at` (port 0: any free port) to clients that name this `job` and
    /// `incarnation`; `access` decides on their tokens. Without a `guard` every client that
    /// connects is served: only for tests, never for a node.
    pub fn start(
        at: SocketAddr,
        segment: Arc<dyn Memory>,
        incarnation: u64,
        job: &str,
        access: Arc<dyn Access>,
        guard: Option<Arc<Guard>>,
        limits: AgentLimits,
    ) -> Result<Self, TransportError> {
        let failed = |e| TransportError::io("listen", at.to_string(), e);
        let listener = Arc::new(listen(at, BACKLOG).map_err(failed)?);
        let local = listener.local_addr().map_err(failed)?.as_socket().unwrap_or(at);
        let shared = Arc::new(Shared {
            segment: Mapped::new(segment),
            incarnation,
            job: job.to_string(),
            access,
            guard,
            limits,
            counters: Arc::default(),
            stopping: AtomicBool::new(false),
            lines: LogLines::default(),
            open: Mutex::default(),
            last: AtomicU64::new(1),
        });
        let acceptor = Acceptor::new(shared.clone(), listener.clone()).map_err(failed)?;
        let acceptor = Mutex::new(Some(spawn_named("nkv-tcp-accept", move || acceptor.run())?));
        Ok(Self { shared, local, listener, acceptor, made: ProcessMark::here() })
    }

    /// The address on which it actually listens.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// The counters of this agent.
    pub fn counters(&self) -> Arc<TcpCounters> {
        self.shared.counters.clone()
    }

    /// Stops listening, shuts every connection down and joins their threads. No byte is written
    /// afterwards. Idempotent. Does nothing in a child made by fork, which has no copy of the
    /// threads and must not shut down the parent's sockets.
    pub fn stop(&self) {
        if !self.made.is_here() {
            return;
        }
        self.shared.stopping.store(true, Ordering::SeqCst);
        // On Linux this wakes a thread that waits for the listener.
        let _ = self.listener.shutdown(Shutdown::Both);
        let acceptor = self.acceptor.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = acceptor {
            let _ = thread.join();
        }
        let open: Vec<Open> = self.shared.open().drain().map(|(_, o)| o).collect();
        open.iter().for_each(|o| o.interrupt.shut());
        for o in open {
            let _ = o.thread.join();
        }
    }
}

impl Drop for TcpAgent {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Answers that all connections are in use, and closes.
pub(super) fn turn_away(shared: &Shared, line: &mut Line, from: &str) {
    shared.counters.turned_away.fetch_add(1, Ordering::Relaxed);
    let max = shared.limits.max_connections;
    let why = format!("all {max} data connections of this agent are in use; try again later");
    shared.log_rejected(from, &why);
    // A few bytes into an empty socket buffer: this does not block the accepting thread.
    let _ = match &shared.guard {
        Some(guard) if !line.has_tags() => line.send(&guard.busy(&why)),
        _ => send_welcome(line, shared, Status::Busy, &why),
    };
    line.finish_sending();
}

/// Starts a thread for an authenticated connection.
pub(super) fn hand_over(
    shared: &Arc<Shared>,
    mut line: Line,
    from: &str,
) -> Result<(), TransportError> {
    // Held until the thread is in the table, from which it removes itself when it ends.
    let mut open = shared.open();
    if open.len() >= shared.limits.max_connections {
        drop(open);
        turn_away(shared, &mut line, from);
        return Ok(());
    }
    let id = shared.last.fetch_add(1, Ordering::Relaxed);
    let interrupt = line.shared().clone();
    let (shared2, from) = (shared.clone(), from.to_string());
    let thread = spawn_named(&format!("nkv-tcp-{id}"), move || {
        shared2.counters.connections.fetch_add(1, Ordering::Relaxed);
        let ended = serve(&shared2, line);
        shared2.counters.connections.fetch_sub(1, Ordering::Relaxed);
        report(&shared2, &from, &ended);
        // Dropping the thread's own handle detaches it; `stop` may have taken the handle already.
        let own = shared2.open().remove(&id);
        drop(own);
    })?;
    open.insert(id, Open { interrupt, thread });
    Ok(())
}

fn serve(shared: &Shared, line: Line) -> End {
    let interrupt = line.shared().clone();
    let mut connection = Connection::new(shared, line);
    // A panic here is a defect of nkv; it must not leave the connection in the table.
    let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| connection.serve()));
    let ended = ended.unwrap_or_else(|_| End::Broken("a panic in the agent".to_string()));
    interrupt.shut();
    ended
}

fn report(shared: &Shared, from: &str, ended: &End) {
    if shared.stopping.load(Ordering::SeqCst) {
        return;
    }
    let counters = &shared.counters;
    match ended {
        End::Left => tracing::debug!(%from, "data connection ended"),
        End::Fenced => tracing::info!(%from, "data connection cut by a fence"),
        End::TurnedAway(why) => {
            counters.turned_away.fetch_add(1, Ordering::Relaxed);
            shared.log_rejected(from, why);
        }
        End::Forged => {
            counters.auth_refused.fetch_add(1, Ordering::Relaxed);
            if let Some(guard) = &shared.guard {
                guard.refuse(from, "a message with a wrong tag");
            }
        }
        End::Garbage(why) | End::Unfit(why) | End::Broken(why) => {
            counters.dropped.fetch_add(1, Ordering::Relaxed);
            if let Some(before) = shared.lines.next(BootClock.now_ms()) {
                tracing::warn!(%from, %why, before, "dropped a data connection");
            }
        }
    }
}
