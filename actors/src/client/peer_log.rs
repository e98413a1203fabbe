//! The log of one owner as a handle writes to it: its open claims, the last known bump and limit,
//! and the keys and given-up claims that the owner is not told yet. It puts nothing itself.

use crate::client::log_names::{KeyNote, LogNames};
use crate::error::{Error, Result};
use crate::message::Abandoned;
use nkv_store::clock::Clock;
use nkv_store::device_log::{ControlLine, LogLayout, LogPut, OpenClaims};
use nkv_transport::gate::Gate;
use nkv_transport::verbs::{Append, Kind, Op, Verbs};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// After a refusal no put uses the log for this long. The time doubles with every refusal in a row,
/// at most `MOST_DOUBLINGS` times: to 64 s.
const REFUSED_NS: u64 = 1_000_000_000;
/// How long puts do not wait for room after one waited in vain: a hole may keep the log full.
const STUCK_NS: u64 = 500_000_000;
const MOST_DOUBLINGS: u32 = 6;
/// Most given-up claims kept until they are reported. The owner asks about claims that are never
/// reported.
const MAX_GIVEN_UP: usize = 1024;

/// The log of one owner, as a handle writes to it.
#[derive(Debug)]
pub(crate) struct PeerLog {
    pub(super) layout: LogLayout,
    pub(super) open: Arc<OpenClaims>,
    // Sent with every change: the agent identifies the producer of a claim by it.
    pub(super) token: u64,
    // Puts of this handle that are in the middle of a claim. Never closed.
    pub(super) gate: Gate,
    // The highest bump that a put has seen; 0: the next put has to read it.
    pub(super) bump: AtomicU64,
    // The keys that are not reported to the owner yet.
    pub(crate) names: Arc<LogNames>,
    // A whole batch was sent since the last check with `all`.
    pub(super) batch_reported: AtomicBool,
    // Claims given up while they waited, which could not be reported to the owner at once.
    given_up: Mutex<VecDeque<Abandoned>>,
    // Refusals in a row, and until when no put uses this log because of them.
    refusals: AtomicU32,
    refused_until_ns: AtomicU64,
    stuck_until_ns: AtomicU64,
}

impl PeerLog {
    pub(crate) fn new(names: Arc<LogNames>, open: Arc<OpenClaims>, token: u64) -> Self {
        Self {
            layout: *names.layout(),
            open,
            token,
            gate: Gate::new(),
            bump: AtomicU64::new(0),
            names,
            batch_reported: AtomicBool::new(false),
            given_up: Mutex::default(),
            refusals: AtomicU32::new(0),
            refused_until_ns: AtomicU64::new(0),
            stuck_until_ns: AtomicU64::new(0),
        }
    }

    /// Whether the owner's agent refused a claim recently. An agent that has revoked the token
    /// refuses every claim, so the pause doubles with every refusal in a row.
    pub(super) fn is_refused(&self, clock: &dyn Clock) -> bool {
        self.refusals.load(Ordering::Relaxed) > 0
            && clock.now_ns() < self.refused_until_ns.load(Ordering::Relaxed)
    }

    pub(super) fn was_refused(&self, clock: &dyn Clock) {
        let times = self.refusals.fetch_add(1, Ordering::Relaxed).min(MOST_DOUBLINGS);
        self.refused_until_ns.store(clock.now_ns() + (REFUSED_NS << times), Ordering::Relaxed);
    }

    /// Whether a put waited for room in vain a short while ago.
    pub(super) fn is_stuck(&self, clock: &dyn Clock) -> bool {
        clock.now_ns() < self.stuck_until_ns.load(Ordering::Relaxed)
    }

    /// Whether puts are tried here now: hosts claim, and none was refused or found it full lately.
    pub(super) fn takes_puts(&self, clock: &dyn Clock) -> bool {
        self.layout.claims_by_hosts() && !self.is_refused(clock) && !self.is_stuck(clock)
    }

    pub(super) fn was_stuck(&self, clock: &dyn Clock) {
        self.stuck_until_ns.store(clock.now_ns() + STUCK_NS, Ordering::Relaxed);
    }

    pub(super) fn was_served(&self) {
        if self.refusals.load(Ordering::Relaxed) > 0 {
            self.refusals.store(0, Ordering::Relaxed);
        }
    }

    pub(super) fn keep_given_up(&self, abandoned: Abandoned) {
        let mut kept = self.given_up.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() < MAX_GIVEN_UP {
            kept.push_back(abandoned);
        }
    }

    /// Reports given-up claims to the owner, until `send` fails.
    pub(crate) fn report_given_up(&self, send: impl Fn(Abandoned) -> bool) {
        loop {
            let mut kept = self.given_up.lock().unwrap_or_else(PoisonError::into_inner);
            let Some(abandoned) = kept.pop_front() else { return };
            drop(kept);
            if !send(abandoned) {
                return self.keep_given_up(abandoned);
            }
        }
    }

    /// Whether to report now: true with at least `batch` unreported keys, or with a given-up claim.
    /// With `all` any key is enough, unless a whole batch was sent since the last call with `all`:
    /// then the next batch takes the remaining keys along.
    pub(crate) fn should_report_now(&self, batch: usize, all: bool) -> bool {
        let names = self.names.len();
        let steady = all && self.batch_reported.swap(false, Ordering::Relaxed);
        if names >= batch {
            return true;
        }
        (all && names > 0 && !steady)
            || !self.given_up.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    pub(super) fn name(&self, position: u64, name: KeyNote<'_>) {
        self.names.note(position, name);
    }

    /// Takes over the given-up claims that an earlier attachment had not reported yet.
    pub(crate) fn inherit(&self, before: &PeerLog) {
        before.report_given_up(|abandoned| {
            self.keep_given_up(abandoned);
            true
        });
    }

    /// Reads limit and bump.
    pub(super) fn read_control_line(
        &self,
        verbs: &dyn Verbs,
        line: &mut ControlLine,
    ) -> Result<()> {
        verbs.post(0, &mut [line.read()])?;
        self.names.has_read(line.heap_limit());
        Ok(())
    }

    /// The bound to claim with; None without room. Where reading the control line takes as long as
    /// the claim, it is skipped while the last known bump leaves room below the last known limit.
    pub(super) fn room(
        &self,
        verbs: &dyn Verbs,
        put: &LogPut,
        line: &mut ControlLine,
    ) -> Result<Option<u64>> {
        if let Some(known) = self.known_line().filter(|_| waits_for_network(verbs)) {
            *line = known;
            if let Some(bound) = put.room(line) {
                return Ok(Some(bound));
            }
        }
        self.read_control_line(verbs, line)?;
        Ok(put.room(line))
    }

    /// Claims by one fetch-and-add; returns the position of the claim. Over tcp the control line
    /// comes with the answer.
    pub(super) fn claim(
        &self,
        verbs: &dyn Verbs,
        put: &LogPut,
        line: &mut ControlLine,
    ) -> Result<u64> {
        if verbs.kind() == Kind::Tcp {
            let mut ops = [put.fetch_add(), line.read()];
            verbs.post(self.token, &mut ops)?;
            let p = claimed(&ops[0]);
            self.has_read(line);
            return p;
        }
        let mut ops = [put.fetch_add()];
        verbs.post(self.token, &mut ops)?;
        let p = claimed(&ops[0])?;
        if waits_for_network(verbs) {
            self.bump.fetch_max(p.saturating_add(put.claim_bytes()), Ordering::Relaxed);
        }
        Ok(p)
    }

    /// Has the owner's end put objects, and reads limit and bump. None: it cannot.
    pub(super) fn append(
        &self,
        verbs: &dyn Verbs,
        appends: &mut [Append<'_>],
        line: &mut ControlLine,
    ) -> Option<Result<()>> {
        let done = verbs.append(self.token, appends, line)?;
        if done.is_ok() {
            self.has_read(line);
        }
        Some(done.map_err(Error::from))
    }

    fn has_read(&self, line: &ControlLine) {
        self.names.has_read(line.heap_limit());
        self.bump.fetch_max(line.bump_ptr(), Ordering::Relaxed);
    }

    /// Limit and bump as far as they are known. None: they have to be read.
    pub(super) fn known_line(&self) -> Option<ControlLine> {
        let bump = self.bump.load(Ordering::Relaxed);
        (bump > 0).then(|| ControlLine::known(self.names.limit(), bump))
    }
}

fn claimed(op: &Op<'_>) -> Result<u64> {
    match op {
        Op::FetchAdd { old, .. } => Ok(*old),
        _ => Err(no_claim()),
    }
}

fn no_claim() -> Error {
    Error::internal("a claim that is no fetch-and-add")
}

/// Whether each batch takes a round trip over a network.
fn waits_for_network(verbs: &dyn Verbs) -> bool {
    matches!(verbs.kind(), Kind::Tcp | Kind::Rdma)
}
