//! Lifecycle of the agent: it listens beside a segment, and joins every thread when it ends. It
//! neither checks tokens nor parses requests.

use super::accept::Acceptor;
use super::agent_state::{AgentLimits, AgentState, Open, TcpCounters};
use super::line::listen;
use crate::access::Access;
use crate::error::TransportError;
use crate::mapped::Mapped;
use crate::wire::auth::Guard;
use nkv_store::Memory;
use nkv_store::fork::ProcessMark;
use nkv_store::heap::Heap;
use nkv_store::log_lines::LogLines;
use nkv_store::reader::Reader;
use nkv_store::threads::spawn_named;
use socket2::Socket;
use std::net::{Shutdown, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

/// Backlog: connections that may wait to be accepted.
const BACKLOG: i32 = 256;

/// A running agent; stops when dropped.
#[derive(Debug)]
pub struct TcpAgent {
    shared: Arc<AgentState>,
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
        let shared = Arc::new(AgentState {
            reader: Heap::open(segment.clone()).ok().as_ref().and_then(Reader::of),
            segment: Mapped::new(segment),
            incarnation,
            job: job.to_string(),
            access,
            guard,
            limits,
            counters: Arc::default(),
            stopping: AtomicBool::new(false),
            lines: LogLines::default(),
            connections: Mutex::default(),
            last: AtomicU64::new(0),
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
