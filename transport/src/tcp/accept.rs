//! The agent's listener: one thread accepts connections and executes the handshakes of all
//! unauthenticated ones. An unauthenticated connection has no thread. Their number is bounded, and
//! when a new one arrives at the limit, one of them is closed [I20]: see [`next_to_evict`]. The
//! thread never blocks on a peer.

use super::agent_state::AgentState;
use super::connections::{hand_over, turn_away};
use super::deadline::Deadline;
use super::line::{Line, is_exhausted};
use super::tags::Tags;
use crate::error::TransportError;
use crate::wire::auth::{
    AuthError, Guard, HandshakeStep, OPENING_BYTES, ServerHandshake, next_to_evict,
};
use nkv_store::clock::{BootClock, Clock};
use rustix::event::{Timespec, epoll};
use socket2::Socket;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Most unauthenticated connections. With one more, one of them is closed.
pub(super) const MAX_UNAUTHENTICATED: usize = 256;
/// Pause after a failed accept (too many open files), so that it is not tried in a tight loop.
const ACCEPT_PAUSE_NS: u64 = 50_000_000;
/// Connections accepted in a row before handshakes in progress are served again.
const ACCEPTS: usize = 64;
/// Events returned by one call.
const EVENTS: usize = 256;
/// Number of the listener among events; connections are numbered from 1.
const LISTENER: u64 = 0;

/// An unauthenticated connection.
struct UnauthenticatedConn {
    line: Line,
    entrance: ServerHandshake,
    from: String,
    deadline: Deadline,
}

/// State of the accepting thread.
pub(super) struct Acceptor {
    shared: Arc<AgentState>,
    listener: Arc<Socket>,
    epoll: OwnedFd,
    // By number, hence by age; all have the same time limit.
    unauthenticated: BTreeMap<u64, UnauthenticatedConn>,
    last: u64,
    // The listener is not polled until then.
    paused_until_ns: Option<u64>,
}

impl Acceptor {
    pub(super) fn new(shared: Arc<AgentState>, listener: Arc<Socket>) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let data = epoll::EventData::new_u64(LISTENER);
        epoll::add(&epoll, &*listener, data, epoll::EventFlags::IN)?;
        let unauthenticated = BTreeMap::new();
        Ok(Self { shared, listener, epoll, unauthenticated, last: LISTENER, paused_until_ns: None })
    }

    /// Runs until the agent stops, which shuts the listener down.
    pub(super) fn run(mut self) {
        let mut events = Vec::with_capacity(EVENTS);
        while !self.shared.stopping.load(Ordering::SeqCst) {
            events.clear();
            let limit = self.limit();
            let buffer = rustix::buffer::spare_capacity(&mut events);
            match epoll::wait(&self.epoll, buffer, limit.as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => {
                    tracing::error!(%error, "the agent accepts no more connections");
                    return;
                }
            }
            for event in &events {
                match event.data.u64() {
                    LISTENER => self.accept_some(),
                    number => self.hear(number),
                }
            }
            self.close_late();
            self.resume();
        }
    }

    /// Longest wait: until the oldest handshake is late, or a pause is over.
    fn limit(&self) -> Option<Timespec> {
        let oldest = self.unauthenticated.first_key_value().map(|(_, s)| s.deadline.left_ns());
        let now = BootClock.now_ns();
        let pause = self.paused_until_ns.map(|until| until.saturating_sub(now));
        let left = oldest.into_iter().chain(pause).min()?;
        // Rounded up, so that the wait does not end too early repeatedly.
        Timespec::try_from(Duration::from_nanos(left.saturating_add(1_000_000))).ok()
    }

    fn accept_some(&mut self) {
        let mut left = ACCEPTS;
        while left > 0 {
            left -= 1;
            match self.listener.accept() {
                Ok((socket, from)) => {
                    let from = from.as_socket().map_or_else(String::new, |a| a.to_string());
                    if let Err(error) = self.admit(socket, &from) {
                        tracing::debug!(%from, %error, "a data connection could not be served");
                    }
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(_) if self.shared.stopping.load(Ordering::SeqCst) => return,
                // An unauthenticated connection has no more right to a descriptor than the next
                // one; but what has arrived on the next one is read before it is closed in turn.
                Err(e) if is_exhausted(&e) && self.close_one() => left = left.min(1),
                Err(error) => return self.pause(&error),
            }
        }
    }

    fn pause(&mut self, error: &io::Error) {
        if let Some(before) = self.shared.lines.next(BootClock.now_ms()) {
            tracing::warn!(%error, before, "accept failed");
        }
        self.hear_listener(epoll::EventFlags::empty());
        self.paused_until_ns = Some(BootClock.now_ns() + ACCEPT_PAUSE_NS);
    }

    fn resume(&mut self) {
        if self.paused_until_ns.is_some_and(|until| until <= BootClock.now_ns()) {
            self.paused_until_ns = None;
            self.hear_listener(epoll::EventFlags::IN);
        }
    }

    fn hear_listener(&self, what: epoll::EventFlags) {
        let data = epoll::EventData::new_u64(LISTENER);
        if let Err(error) = epoll::modify(&self.epoll, &*self.listener, data, what) {
            tracing::error!(%error, "the agent's listener cannot be waited for");
        }
    }

    fn admit(&mut self, socket: Socket, from: &str) -> Result<(), TransportError> {
        let failed = |e| TransportError::io("configure", from, e);
        let shared = self.shared.clone();
        let mut line = Line::new(socket, shared.limits.stall_ms).map_err(failed)?;
        if shared.open().len() >= shared.limits.max_connections {
            turn_away(&shared, &mut line, from);
            return Ok(());
        }
        let Some(guard) = &shared.guard else {
            return hand_over(&shared, line, from);
        };
        let entrance = match guard.entrance() {
            Ok(entrance) => entrance,
            Err(why) => {
                self.refused(guard, from, &why);
                return Ok(());
            }
        };
        if self.unauthenticated.len() >= MAX_UNAUTHENTICATED {
            self.close_one();
        }
        self.last += 1;
        let data = epoll::EventData::new_u64(self.last);
        let what = epoll::EventFlags::IN | epoll::EventFlags::RDHUP | epoll::EventFlags::ET;
        epoll::add(&self.epoll, line.fd(), data, what).map_err(|e| failed(e.into()))?;
        let deadline = Deadline::after_ms(shared.limits.hello_ms);
        let from = from.to_string();
        self.unauthenticated
            .insert(self.last, UnauthenticatedConn { line, entrance, from, deadline });
        shared.counters.unauthenticated.store(self.unauthenticated.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    /// Closes one unauthenticated connection; true if there was one.
    fn close_one(&mut self) -> bool {
        let shown =
            self.unauthenticated.iter().map(|(number, s)| (*number, s.entrance.has_shown()));
        let Some(conn) = next_to_evict(shown).and_then(|n| self.unauthenticated.remove(&n)) else {
            return false;
        };
        self.over(conn, Err(AuthError::Crowded));
        true
    }

    fn close_late(&mut self) {
        let limit_ms = self.shared.limits.hello_ms;
        while self.unauthenticated.first_key_value().is_some_and(|(_, s)| s.deadline.is_over()) {
            if let Some((_, conn)) = self.unauthenticated.pop_first() {
                self.over(conn, Err(AuthError::Late(limit_ms)));
            }
        }
    }

    /// Processes what has arrived of one handshake.
    fn hear(&mut self, number: u64) {
        let Some(mut conn) = self.unauthenticated.remove(&number) else { return };
        match conn.go_on().transpose() {
            None => drop(self.unauthenticated.insert(number, conn)),
            Some(outcome) => self.over(conn, outcome),
        }
    }

    fn over(&self, conn: UnauthenticatedConn, outcome: Result<Tags, AuthError>) {
        let UnauthenticatedConn { mut line, from, .. } = conn;
        let shared = &self.shared;
        shared.counters.unauthenticated.store(self.unauthenticated.len() as u64, Ordering::Relaxed);
        let Some(guard) = &shared.guard else { return };
        // Removed explicitly: a forked child may have a copy of its descriptor. From here on its
        // thread reads it.
        let _ = epoll::delete(&self.epoll, line.fd());
        match outcome {
            Ok(tags) => {
                line.tags = tags;
                if let Err(error) = hand_over(shared, line, &from)
                    && let Some(before) = shared.lines.next(BootClock.now_ms())
                {
                    tracing::warn!(%from, %error, before, "a data connection could not be served");
                }
            }
            Err(why) => {
                line.finish_sending();
                self.refused(guard, &from, &why);
            }
        }
    }

    fn refused(&self, guard: &Guard, from: &str, why: &AuthError) {
        if guard.note(from, why) {
            self.shared.counters.auth_refused.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl UnauthenticatedConn {
    /// Continues the handshake as far as possible without waiting; none while it is not over.
    fn go_on(&mut self) -> Result<Option<Tags>, AuthError> {
        let mut bytes = [0; OPENING_BYTES];
        loop {
            let wants = self.entrance.wants();
            let n = match self.line.receive_now(&mut bytes[..wants]).map_err(AuthError::Io)? {
                None => return Ok(None),
                Some(0) => return Err(AuthError::Closed(self.entrance.got())),
                Some(n) => n,
            };
            match self.entrance.take(&bytes[..n]) {
                HandshakeStep::More => {}
                HandshakeStep::Send(answer) => {
                    self.line.send_now(&answer).map_err(AuthError::Io)?;
                }
                HandshakeStep::Over(answer, outcome) => {
                    let sent = answer.map_or(Ok(()), |answer| self.line.send_now(&answer));
                    let session = outcome?;
                    return sent.map_err(AuthError::Io).map(|()| Some(Tags(session.tags())));
                }
            }
        }
    }
}
