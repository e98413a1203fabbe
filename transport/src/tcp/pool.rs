//! The client's connections to one agent: created on demand, bounded, each used by one post at a
//! time, and all interrupted when the owner is found dead. A connection that failed is never
//! reused.

use super::batch::{Limits, Outgoing};
use super::broken::Broken;
use super::deadline::Deadline;
use super::frame::{
    HELLO_MAGIC, Hello, MAX_JOB_BYTES, MAX_MESSAGE_BYTES, MAX_OPS, Status, TCP_VERSION,
    WELCOME_MAGIC, Welcome,
};
use super::line::{Interrupt, Line, dial};
use super::options::TcpOptions;
use super::tags::Tags;
use crate::error::TransportError;
use crate::verbs::Alive;
use crate::wire::auth::{AuthError, Channel, Credentials, prove_blocking};
use hashbrown::HashMap;
use nkv_store::clock::{BootClock, Clock};
use socket2::Socket;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use zerocopy::IntoBytes;

/// A connection unused for longer is checked before use: the agent may have closed it.
const FRESH_NS: u64 = 1_000_000_000;
/// After a further connection could not be opened, none is opened for this time.
const NO_MORE_NS: u64 = 1_000_000_000;
/// Time limit for opening all further connections of one large post together.
const MORE_MS: u64 = 200;
/// A connection unused for longer is closed when the pool is trimmed, unless it is the last one.
const KEPT_IDLE_NS: u64 = 2_000_000_000;

/// One connection after its handshake, with the scratch buffers of its posts.
#[derive(Debug)]
pub(super) struct Conn {
    pub line: Line,
    pub out: Outgoing,
    pub limits: Limits,
    pub next_id: u64,
    pub segment_len: u64,
    number: u64,
    used_ns: u64,
}

#[derive(Debug, Default)]
struct State {
    idle: Vec<Conn>,
    // Every connection that is open or being opened, by number, for interruption.
    open: HashMap<u64, Option<Arc<Interrupt>>>,
    next_number: u64,
}

/// All connections of one handle.
#[derive(Debug)]
pub(super) struct Pool {
    pub target: String,
    pub alive: Alive,
    pub opts: TcpOptions,
    at: Vec<SocketAddr>,
    incarnation: u64,
    job: String,
    state: Mutex<State>,
    freed: Condvar,
    no_more_until_ns: AtomicU64,
}

/// A connection checked out for one post. It returns to the pool only if it is in step with the
/// agent.
pub(super) struct Lease<'a> {
    pool: &'a Pool,
    conn: Option<Conn>,
    number: u64,
    /// Whether the connection may be used; false during a batch.
    pub in_step: bool,
}

impl Pool {
    /// Resolves the address; does not connect yet.
    pub(super) fn new(
        target: &str,
        incarnation: u64,
        job: &str,
        opts: TcpOptions,
    ) -> Result<Self, TransportError> {
        if job.len() > MAX_JOB_BYTES {
            let n = job.len();
            let why = format!("a job name of {n} bytes; at most {MAX_JOB_BYTES} are allowed");
            return Err(TransportError::Protocol(why));
        }
        let at: Vec<SocketAddr> = target
            .to_socket_addrs()
            .map_err(|e| TransportError::Disconnected(format!("cannot resolve {target:?}: {e}")))?
            .collect();
        Ok(Self {
            target: target.to_string(),
            alive: Alive::new(),
            opts,
            at,
            incarnation,
            job: job.to_string(),
            state: Mutex::default(),
            freed: Condvar::new(),
            no_more_until_ns: AtomicU64::new(0),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Interrupts every post in flight and drops idle connections, because the owner is dead.
    pub(super) fn interrupt(&self) {
        self.state().open.values().flatten().for_each(|open| open.shut());
        self.close_idle();
        self.freed.notify_all();
    }

    /// Closes connections not used lately, except one: all clients share the agent's connections.
    pub(super) fn trim(&self) {
        let old = BootClock.now_ns().saturating_sub(KEPT_IDLE_NS);
        self.close(|idle| idle.partition_point(|c| c.used_ns < old).min(idle.len().max(1) - 1));
    }

    /// Closes idle connections.
    pub(super) fn close_idle(&self) {
        self.close(<[Conn]>::len);
    }

    /// Closes as many idle connections, those first that were used longest ago.
    fn close(&self, count: impl FnOnce(&[Conn]) -> usize) {
        let mut state = self.state();
        let count = count(&state.idle);
        // Connections used last are at the end.
        let closed: Vec<Conn> = state.idle.drain(..count).collect();
        closed.iter().for_each(|c| drop(state.open.remove(&c.number)));
        drop(state);
    }

    /// A connection: an idle one, a new one opened before `within`, or the next one that is
    /// returned within the stall limit.
    pub(super) fn lease(&self, within: Deadline) -> Result<Lease<'_>, TransportError> {
        self.lease_waiting(Duration::from_millis(self.opts.stall_ms), within)
    }

    /// Up to `most` further connections, without waiting for one to be returned: two posts that
    /// each hold one must not wait for each other. After a failure to open one, this and other
    /// posts go without further ones for a second: the agent may be full.
    pub(super) fn lease_more(&self, most: usize, within: Deadline) -> Vec<Lease<'_>> {
        let mut more = Vec::with_capacity(most);
        if BootClock.now_ns() < self.no_more_until_ns.load(Ordering::Relaxed) {
            return more;
        }
        // One limit for all of them, since the post waits for them.
        let within = within.within_ms(MORE_MS);
        while more.len() < most {
            match self.lease_waiting(Duration::ZERO, within) {
                Ok(lease) => more.push(lease),
                Err(error) => {
                    tracing::debug!(%error, "a large copy uses fewer connections");
                    let until = BootClock.now_ns().saturating_add(NO_MORE_NS);
                    self.no_more_until_ns.store(until, Ordering::Relaxed);
                    break;
                }
            }
        }
        more
    }

    fn lease_waiting(
        &self,
        limit: Duration,
        within: Deadline,
    ) -> Result<Lease<'_>, TransportError> {
        let deadline = BootClock.now_ns().saturating_add(limit.as_nanos() as u64);
        let mut state = self.state();
        loop {
            self.alive.check(&self.target)?;
            let now = BootClock.now_ns();
            while let Some(conn) = state.idle.pop() {
                if now.saturating_sub(conn.used_ns) > FRESH_NS && conn.line.is_stale() {
                    state.open.remove(&conn.number);
                    continue;
                }
                let number = conn.number;
                return Ok(Lease { pool: self, conn: Some(conn), number, in_step: true });
            }
            if state.open.len() < self.opts.max_connections {
                let number = state.next_number;
                state.next_number += 1;
                state.open.insert(number, None);
                drop(state);
                let mut lease = Lease { pool: self, conn: None, number, in_step: true };
                lease.conn = Some(self.connect(number, within)?);
                return Ok(lease);
            }
            let left = deadline.saturating_sub(now);
            if left == 0 {
                return Err(TransportError::Timeout(format!(
                    "all {} connections to {} stayed busy for {} ms; raise max_connections",
                    self.opts.max_connections,
                    self.target,
                    limit.as_millis()
                )));
            }
            let waited = self.freed.wait_timeout(state, Duration::from_nanos(left));
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Connects and performs the handshake, all within `connect_ms` and before `within`.
    fn connect(&self, number: u64, within: Deadline) -> Result<Conn, TransportError> {
        let deadline = within.within_ms(self.opts.connect_ms);
        let socket = self.dial(deadline)?;
        let configure = |e| TransportError::io("configure", &self.target, e);
        let hand_ms = (deadline.left_ns() / 1_000_000).max(1);
        let mut line = Line::new(socket, hand_ms).map_err(configure)?;
        line.limits.deadline = deadline;
        self.state().open.insert(number, Some(line.shared.clone()));
        // The owner died meanwhile: the interruption may have missed this socket.
        self.alive.check(&self.target)?;
        if let Some(credentials) = &self.opts.credentials {
            self.authenticate(&mut line, credentials)?;
        }
        let welcome = self.shake_hands(&mut line)?;
        line.set_stall_ms(self.opts.stall_ms).map_err(configure)?;
        line.limits.deadline = Deadline::NEVER;
        let ops = (welcome.max_ops.get() as usize).clamp(1, MAX_OPS);
        let bytes = welcome.max_request_bytes.get().max(1);
        Ok(Conn {
            line,
            out: Outgoing::default(),
            limits: Limits { ops, bytes },
            next_id: 1,
            number,
            segment_len: welcome.segment_len.get(),
            used_ns: BootClock.now_ns(),
        })
    }

    fn dial(&self, deadline: Deadline) -> Result<Socket, TransportError> {
        let mut last = "the name has no address".to_string();
        for at in &self.at {
            let limit = Duration::from_nanos(deadline.left_ns().max(1_000_000));
            match dial(*at, limit) {
                Ok(socket) => return Ok(socket),
                Err(e) => last = e.to_string(),
            }
            if deadline.is_over() {
                break;
            }
        }
        let (target, ms) = (&self.target, deadline.limit_ms);
        Err(TransportError::Disconnected(format!("cannot connect to {target} in {ms} ms: {last}")))
    }

    /// Mutual authentication with the agent by what the job shares [I20].
    fn authenticate(
        &self,
        line: &mut Line,
        credentials: &Credentials,
    ) -> Result<(), TransportError> {
        let means = credentials.on_tcp();
        let means = means.map_err(|e| TransportError::Unauthenticated(e.to_string()))?;
        let random = credentials.random();
        let why = match prove_blocking(line, means, Channel::Data, &self.job, random) {
            Ok(session) => {
                line.tags = Tags(session.tags());
                return Ok(());
            }
            Err(why) => why,
        };
        // Interrupted because the owner was found dead meanwhile?
        self.alive.check(&self.target)?;
        let text = format!("{}: {why}", self.target);
        Err(match why {
            // The peer sent this unauthenticated: it ends this connection and no other.
            AuthError::Job { .. } => TransportError::Disconnected(text),
            AuthError::Busy(_) => TransportError::Timeout(text),
            AuthError::Io(e) if e.kind() == std::io::ErrorKind::TimedOut => {
                TransportError::Timeout(text)
            }
            AuthError::Closed(_) | AuthError::Io(_) => TransportError::Disconnected(text),
            AuthError::Foreign(_) | AuthError::Version { .. } | AuthError::Channel(_) => {
                TransportError::Protocol(text)
            }
            _ => TransportError::Unauthenticated(text),
        })
    }

    fn shake_hands(&self, line: &mut Line) -> Result<Welcome, TransportError> {
        let hello = Hello {
            magic: HELLO_MAGIC.into(),
            version: TCP_VERSION.into(),
            job_len: (self.job.len() as u32).into(),
            incarnation: self.incarnation.into(),
        };
        let sent = line.send_head(hello.as_bytes(), self.job.as_bytes());
        // A full agent answers and closes without reading: read its answer before reporting a send
        // error.
        let welcome: Welcome =
            line.take_struct().map_err(|e| self.lost(sent.err().unwrap_or(e)))?;
        let protocol = |why| Err(TransportError::Protocol(format!("{}: {why}", self.target)));
        if welcome.magic.get() != WELCOME_MAGIC {
            return protocol("the peer is not an nkv tcp agent".to_string());
        }
        if welcome.version.get() != TCP_VERSION {
            let theirs = welcome.version.get();
            return protocol(format!("it speaks version {theirs}, this end {TCP_VERSION}"));
        }
        let len = welcome.message_len.get() as usize;
        if len > MAX_MESSAGE_BYTES {
            return protocol(format!("a message of {len} bytes"));
        }
        let mut text = vec![0; len];
        line.take(&mut text).map_err(|e| self.lost(e))?;
        line.check_tag(&[welcome.as_bytes(), &text]).map_err(|e| self.lost(e))?;
        let text = String::from_utf8_lossy(&text);
        match Status::from_wire(welcome.status.get()) {
            Some(Status::Ok) if welcome.incarnation.get() == self.incarnation => Ok(welcome),
            Some(Status::Ok | Status::Incarnation | Status::Job) => {
                // Whatever listens there now, the intended owner is gone permanently [I17].
                self.alive.mark_dead();
                Err(TransportError::Disconnected(format!(
                    "{} serves another segment: {text}",
                    self.target
                )))
            }
            Some(Status::Busy) => Err(TransportError::Timeout(format!("{}: {text}", self.target))),
            _ => protocol(format!("handshake refused: {text}")),
        }
    }

    /// The error of a verb on a connection that broke.
    pub(super) fn lost(&self, e: Broken) -> TransportError {
        if let Err(dead) = self.alive.check(&self.target) {
            return dead;
        }
        let text = format!("{}: {e}", self.target);
        match e {
            Broken::Closed(_) => TransportError::Disconnected(text),
            Broken::Stalled(_) | Broken::Late(_) => TransportError::Timeout(text),
            Broken::Forged => TransportError::Unauthenticated(text),
            Broken::Io(source) => TransportError::io("tcp", &self.target, source),
        }
    }
}

impl Lease<'_> {
    /// The connection.
    pub(super) fn conn(&mut self) -> Result<&mut Conn, TransportError> {
        // Present from `lease` to drop; still an error instead of a panic.
        self.conn
            .as_mut()
            .ok_or_else(|| TransportError::Protocol("a lease without a connection".to_string()))
    }
}

impl Drop for Lease<'_> {
    fn drop(&mut self) {
        let mut state = self.pool.state();
        match self.conn.take() {
            Some(mut conn) if self.in_step && self.pool.alive.is_alive() => {
                conn.used_ns = BootClock.now_ns();
                state.idle.push(conn);
            }
            _ => drop(state.open.remove(&self.number)),
        }
        drop(state);
        self.pool.freed.notify_one();
    }
}
