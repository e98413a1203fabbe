//! The agent's end of the wire, a task in the owner's process: it dies, and is stopped, with it. It
//! admits a batch by the program's grants, writes it as it arrives, and ends when its connection is
//! cut.

use super::{Answer, Batch, Result1, Sent, Wire};
use crate::net::Net;
use nkv_actors::machine::{AgentConfig, DataAgent};
use nkv_store::device_log::LogLayout;
use nkv_store::heap::Heap;
use nkv_store::{Memory, StoreError};
use nkv_transport::TcpCounters;
use nkv_transport::access::{Cut, Intent, Permit, SEEN_BYTES};
use nkv_transport::grants::{Admitted, Grants, TOKEN_WAIT};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, sleep, timeout};

/// Pause between checks for a token that is not known yet, or for bytes on a cut path.
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Writes longer than this arrive in parts.
const PART_BYTES: usize = 64;

/// Where clients find an agent.
#[derive(Debug, Clone)]
pub struct AgentEndpoint {
    pub host: usize,
    pub incarnation: u64,
    pub len: u64,
    /// The log of its segment.
    pub log: Option<LogLayout>,
    batches: mpsc::UnboundedSender<Batch>,
    stopped: Arc<AtomicBool>,
}

impl AgentEndpoint {
    /// False if there is no agent.
    pub(super) fn send(&self, batch: Batch) -> bool {
        self.is_served() && self.batches.send(batch).is_ok()
    }

    pub fn is_served(&self) -> bool {
        !self.stopped.load(Ordering::SeqCst) && !self.batches.is_closed()
    }
}

/// See the file's first paragraph.
#[derive(Debug)]
pub struct SimAgent {
    at: SocketAddr,
    counters: Arc<TcpCounters>,
    stopped: Arc<AtomicBool>,
}

impl DataAgent for SimAgent {
    fn local_addr(&self) -> SocketAddr {
        self.at
    }

    fn counters(&self) -> Arc<TcpCounters> {
        self.counters.clone()
    }

    fn stop(&self) {
        self.stopped.store(true, Ordering::SeqCst);
    }
}

/// What the batches of one agent share.
struct Agent {
    host: usize,
    memory: Arc<dyn Memory>,
    grants: Arc<Grants>,
    net: Net,
    wire: Wire,
    stopped: Arc<AtomicBool>,
    counters: Arc<TcpCounters>,
}

/// The connection of one batch, as a fence cuts it.
#[derive(Debug, Default)]
struct Line {
    cut: AtomicBool,
    cut_signal: Notify,
}

impl Cut for Line {
    fn cut(&self) {
        self.cut.store(true, Ordering::SeqCst);
        self.cut_signal.notify_one();
    }
}

/// Why a batch was not placed to its end.
enum Short {
    Refused(String),
    // The client gets no answer.
    Over,
}

impl SimAgent {
    /// Serves on the tasks of the process that calls.
    pub fn start(
        at: SocketAddr,
        host: usize,
        what: AgentConfig,
        net: &Net,
        wire: Wire,
    ) -> (Self, AgentEndpoint) {
        let (batches, mut incoming) = mpsc::unbounded_channel::<Batch>();
        let stopped = Arc::new(AtomicBool::new(false));
        let counters = Arc::new(TcpCounters::default());
        let endpoint = AgentEndpoint {
            host,
            incarnation: what.incarnation,
            len: what.memory.len(),
            log: Heap::open(what.memory.clone()).ok().and_then(|h| h.layout().device_log()),
            batches,
            stopped: stopped.clone(),
        };
        let agent = Arc::new(Agent {
            host,
            memory: what.memory,
            grants: what.grants,
            net: net.clone(),
            wire,
            stopped: stopped.clone(),
            counters: counters.clone(),
        });
        tokio::task::spawn_local(async move {
            while let Some(batch) = incoming.recv().await {
                let agent = agent.clone();
                tokio::task::spawn_local(async move { agent.serve(batch).await });
            }
        });
        (Self { at, counters, stopped }, endpoint)
    }
}

impl Agent {
    async fn serve(&self, mut batch: Batch) {
        count(&self.counters.requests, 1);
        let answer: Answer = match self.place(&mut batch).await {
            Ok(results) => Ok(results),
            Err(Short::Refused(why)) => {
                count(&self.counters.refused, 1);
                Err(why)
            }
            Err(Short::Over) => return count(&self.counters.dropped, 1),
        };
        sleep(self.net.delay(self.host, batch.from)).await;
        let deadline = Instant::now() + self.wire.wire_profile.agent_stall;
        while !self.net.is_open(self.host, batch.from) && Instant::now() < deadline {
            sleep(POLL_INTERVAL).await;
        }
        // Its client may have given up.
        let _ = batch.answer.send(answer);
    }

    /// Places a batch in order, each part when it arrives.
    async fn place(&self, batch: &mut Batch) -> Result<Vec<Result1>, Short> {
        let changing = batch.ops.iter().rposition(Sent::changes);
        let line = Arc::new(Line::default());
        let mut permit = match changing {
            Some(_) => Some(self.admit(batch.token, &line).await?),
            None => None,
        };
        if let Some(permit) = &permit {
            for intent in batch.ops.iter().filter_map(intent_of) {
                permit.check(&intent).map_err(Short::Refused)?;
            }
        }
        let mut results = Vec::with_capacity(batch.ops.len());
        for (i, op) in std::mem::take(&mut batch.ops).into_iter().enumerate() {
            self.arrival(batch, permit.as_ref(), &line).await?;
            results.push(self.run(batch, op, permit.as_ref(), &line).await?);
            if changing == Some(i) {
                // Released before the answer, so that a client that does not read delays no fence.
                permit = None;
            }
        }
        Ok(results)
    }

    async fn admit(&self, token: u64, line: &Arc<Line>) -> Result<Admitted, Short> {
        let deadline = Instant::now() + TOKEN_WAIT;
        let cut: Arc<dyn Cut> = line.clone();
        loop {
            match self.grants.enter(token, Duration::ZERO, &cut) {
                Ok(permit) => return Ok(permit),
                Err(why) if !why.contains("no open plan") => return Err(Short::Refused(why)),
                Err(why) if Instant::now() >= deadline => return Err(Short::Refused(why)),
                Err(_) => sleep(POLL_INTERVAL).await,
            }
        }
    }

    /// Waits for the next part of a batch.
    async fn arrival(
        &self,
        batch: &Batch,
        permit: Option<&Admitted>,
        line: &Line,
    ) -> Result<(), Short> {
        let gap = {
            let (mut dice, wire_profile) = (self.wire.dice(), self.wire.wire_profile);
            let (low, high) = wire_profile.gap_ms;
            let late = !self.wire.is_kind() && dice.permille(wire_profile.gap_permille);
            late.then(|| dice.ms(low, high))
        };
        let deadline = Instant::now() + self.wire.wire_profile.agent_stall;
        let mut pause = gap;
        loop {
            if let Some(pause) = pause {
                // A fence cuts the connection, and with it this wait.
                let _ = timeout(pause, line.cut_signal.notified()).await;
            }
            if permit.is_some_and(Permit::is_revoked) {
                return Err(Short::Refused("the plan was ended while it was written".to_string()));
            }
            let cut = line.cut.load(Ordering::SeqCst);
            if cut || self.stopped.load(Ordering::SeqCst) || Instant::now() >= deadline {
                return Err(Short::Over);
            }
            if batch.answer.is_closed() && batch.ends_with_client {
                return Err(Short::Over);
            }
            if self.net.is_open(batch.from, self.host) {
                return Ok(());
            }
            pause = Some(POLL_INTERVAL);
        }
    }

    async fn run(
        &self,
        batch: &Batch,
        op: Sent,
        permit: Option<&Admitted>,
        line: &Line,
    ) -> Result<Result1, Short> {
        let failed = |e: StoreError| Short::Refused(e.to_string());
        let (memory, intent) = (&self.memory, intent_of(&op));
        if let Some((permit, intent)) = permit.zip(intent.as_ref()) {
            let seen = match &op {
                Sent::Write { bytes, .. } if bytes.len() <= SEEN_BYTES => &bytes[..],
                _ => &[],
            };
            permit.starts(intent, seen).map_err(Short::Refused)?;
        }
        let result = match op {
            Sent::Read { offset, len } => {
                let mut bytes = vec![0; len];
                memory.read(offset, &mut bytes).map_err(failed)?;
                count(&self.counters.bytes_out, len as u64);
                Result1::Bytes(bytes)
            }
            Sent::Write { offset, bytes } => {
                let middle = if bytes.len() > PART_BYTES { bytes.len() / 2 } else { 0 };
                let (early, late) = bytes.split_at(middle);
                if !early.is_empty() {
                    memory.write(offset, early).map_err(failed)?;
                    self.arrival(batch, permit, line).await?;
                }
                memory.write(offset + middle as u64, late).map_err(failed)?;
                count(&self.counters.bytes_in, bytes.len() as u64);
                Result1::Nothing
            }
            Sent::Store { offset, value } => {
                memory.store(offset, value).map_err(failed)?;
                Result1::Nothing
            }
            Sent::FetchAdd { offset, add } => {
                Result1::Word(memory.fetch_add(offset, add).map_err(failed)?)
            }
            Sent::CompareSwap { offset, expect, new } => {
                Result1::Word(memory.compare_swap(offset, expect, new).map_err(failed)?)
            }
            Sent::Flush => {
                memory.flush();
                Result1::Nothing
            }
        };
        if let Some((permit, intent)) = permit.zip(intent.as_ref()) {
            let found = if let Result1::Word(word) = result { word } else { 0 };
            permit.done(intent, found);
        }
        Ok(result)
    }
}

fn intent_of(op: &Sent) -> Option<Intent> {
    match op {
        Sent::Write { offset, bytes } => {
            Some(Intent::Write { offset: *offset, len: bytes.len() as u64 })
        }
        Sent::Store { offset, value } => Some(Intent::Store { offset: *offset, value: *value }),
        Sent::FetchAdd { offset, add, .. } => Some(Intent::FetchAdd { offset: *offset, add: *add }),
        Sent::CompareSwap { offset, expect, new } => {
            Some(Intent::CompareSwap { offset: *offset, expect: *expect, new: *new })
        }
        Sent::Read { .. } | Sent::Flush => None,
    }
}

fn count(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}
