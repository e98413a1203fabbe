//! What the threads of one agent share: the segment, who decides on tokens, limits, counters, and
//! the connections that are open.

use super::broken::Broken;
use super::frame::{
    MAX_OPS, MAX_REQUEST_BYTES, Status, TCP_VERSION, WELCOME_MAGIC, Welcome, message,
};
use super::line::{Interrupt, Line};
use crate::access::Access;
use crate::mapped::Mapped;
use crate::wire::auth::Guard;
use hashbrown::HashMap;
use nkv_store::clock::{BootClock, Clock};
use nkv_store::log_lines::LogLines;
use nkv_store::reader::Reader;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use zerocopy::IntoBytes;

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
pub(super) struct AgentState {
    pub segment: Mapped,
    /// Makes the lookups; None for memory that is no segment, or whose index it cannot access.
    pub reader: Option<Reader>,
    pub incarnation: u64,
    pub job: String,
    pub access: Arc<dyn Access>,
    pub guard: Option<Arc<Guard>>,
    pub limits: AgentLimits,
    pub counters: Arc<TcpCounters>,
    pub stopping: AtomicBool,
    // For events that unauthenticated peers can repeat at will.
    pub lines: LogLines,
    pub connections: Mutex<HashMap<u64, Open>>,
    // The number of the latest connection.
    pub last: AtomicU64,
}

/// One connection, served by its thread.
#[derive(Debug)]
pub(super) struct Open {
    pub interrupt: Arc<Interrupt>,
    pub thread: JoinHandle<()>,
}

impl AgentState {
    pub(super) fn open(&self) -> MutexGuard<'_, HashMap<u64, Open>> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends the answer to a hello.
    pub(super) fn send_welcome(
        &self,
        line: &mut Line,
        status: Status,
        why: &str,
    ) -> Result<(), Broken> {
        let why = message(why);
        let head = Welcome {
            magic: WELCOME_MAGIC.into(),
            version: TCP_VERSION.into(),
            status: (status as u32).into(),
            incarnation: self.incarnation.into(),
            segment_len: self.segment.len().into(),
            max_request_bytes: self.limits.max_request_bytes.into(),
            message_len: (why.len() as u32).into(),
            max_ops: (MAX_OPS as u32).into(),
        };
        line.send_head(head.as_bytes(), why)
    }

    pub(super) fn log_rejected(&self, from: &str, why: &str) {
        if let Some(before) = self.lines.next(BootClock.now_ms()) {
            tracing::warn!(%from, %why, before, "refused a data connection");
        }
    }
}
