//! The client: posts a batch as one or more requests over one connection, with payloads copied
//! directly between the caller's memory and the socket. It retries nothing: the caller decides
//! whether a failed batch may be repeated.

use super::batch::{Cursor, Outgoing, payload_len};
use super::broken::Broken;
use super::deadline::Deadline;
use super::frame::{DESC_BYTES, MAX_MESSAGE_BYTES, RESPONSE_MAGIC, Response, Status};
use super::line::Line;
use super::options::TcpOptions;
use super::pool::{Conn, Lease, Pool};
use super::tags::has_tag;
use crate::error::TransportError;
use crate::verbs::{Alive, Append, Find, Kind, Op, Post, PostObserver, Verbs, check_batch};
use nkv_store::device_log::ControlLine;
use nkv_store::fork::ProcessMark;
use nkv_store::op::through_host;
use std::sync::Arc;
use zerocopy::IntoBytes;
use zerocopy::little_endian::U64;

/// Verbs over a segment that a [`super::TcpAgent`] serves.
#[derive(Debug)]
pub struct TcpVerbs {
    pub(super) pool: Arc<Pool>,
    segment_len: u64,
    made: ProcessMark,
}

impl TcpVerbs {
    /// Connects to the agent of this `incarnation` of this `job` at `host:port`.
    ///
    /// `Disconnected` if nothing listens there, or an agent of another incarnation or job.
    /// `Timeout` if the agent is full. `Unauthenticated` if the two ends share no secret.
    /// `Protocol` if it is not an agent of this version. Blocks up to `connect_ms`, plus the name
    /// resolution.
    pub fn connect(
        addr: &str,
        incarnation: u64,
        job: &str,
        opts: TcpOptions,
    ) -> Result<Self, TransportError> {
        let pool = Arc::new(Pool::new(addr, incarnation, job, opts)?);
        // Weak: clones of the flag may outlive the handle.
        let weak = Arc::downgrade(&pool);
        pool.alive.on_death(move || {
            if let Some(pool) = weak.upgrade() {
                pool.interrupt();
            }
        });
        let segment_len = pool.lease(Deadline::NEVER)?.conn()?.segment_len;
        Ok(Self { pool, segment_len, made: ProcessMark::here() })
    }

    /// The flag by which others report that the owner is gone; posts in flight then end at once.
    pub fn alive(&self) -> Alive {
        self.pool.alive.clone()
    }

    fn run(&self, token: u64, ops: &mut [Op<'_>]) -> Result<(), TransportError> {
        let deadline = Deadline::for_bytes(self.pool.opts.stall_ms, bytes_of(ops));
        let mut lease = self.pool.lease(deadline)?;
        let by = &self.pool.opts.stripes;
        match ops.iter().map(|op| op.stripes(by)).max() {
            None | Some(1) => self.chain(&mut lease, token, ops, deadline),
            Some(n) => {
                let more = self.pool.lease_more(n - 1, deadline);
                let lanes = std::iter::once(lease).chain(more).collect();
                self.striped(lanes, token, ops, deadline)
            }
        }
    }

    /// Posts a batch over one connection, which is afterwards in step again, or never used again.
    pub(super) fn chain(
        &self,
        lease: &mut Lease<'_>,
        token: u64,
        ops: &mut [Op<'_>],
        deadline: Deadline,
    ) -> Result<(), TransportError> {
        let mut cursor = Cursor::default();
        // The agent closes the connection if a fence of another plan interrupted it.
        let closed = format_args!("{} closed the connection", self.pool.target);
        let mut in_step = std::mem::take(&mut lease.in_step);
        let conn = lease.conn()?;
        conn.line.limits.deadline = deadline;
        loop {
            let id = conn.next_id;
            if !conn.out.next(ops, &mut cursor, conn.limits, id, token) {
                break;
            }
            if !in_step {
                return Err(TransportError::Disconnected(closed.to_string()));
            }
            let (outcome, closing) = self.ask(conn, id, ops)?;
            in_step = !closing;
            if let Err(refused) = outcome {
                // With a complete answer: the connection is in step.
                lease.in_step = in_step;
                return Err(refused);
            }
        }
        lease.in_step = in_step;
        Ok(())
    }

    /// Sends the request that was built, and takes its answer: its outcome, and whether the agent
    /// closes the connection after it.
    pub(super) fn ask(
        &self,
        conn: &mut Conn,
        id: u64,
        ops: &mut [Op<'_>],
    ) -> Result<(Result<(), TransportError>, bool), TransportError> {
        conn.next_id += 1;
        conn.out.sign(&mut conn.line, ops);
        let sent = send(&conn.line, &conn.out, ops);
        self.answer(&mut conn.line, &conn.out, id, ops, sent)
    }

    /// Reads the response to a request, and its results and payloads. Returns the request's
    /// outcome, and whether the agent closes the connection after it.
    pub(super) fn answer(
        &self,
        line: &mut Line,
        request: &Outgoing,
        id: u64,
        ops: &mut [Op<'_>],
        sent: Result<(), Broken>,
    ) -> Result<(Result<(), TransportError>, bool), TransportError> {
        let lost = |e| self.pool.lost(e);
        let head: Response = match sent {
            Err(stuck @ (Broken::Stalled(_) | Broken::Late(_))) => Err(stuck),
            // An agent that must fence this client answers before it has read everything, and
            // closes. Its answer explains more than the broken pipe.
            sent => line.take_struct().map_err(|e| sent.err().unwrap_or(e)),
        }
        .map_err(lost)?;
        let closing = head.closing.get() != 0;
        let garbled =
            |why: &str| Err(TransportError::Protocol(format!("{}: {why}", self.pool.target)));
        if head.magic.get() != RESPONSE_MAGIC || head.id.get() != id {
            return garbled("an answer with another request id");
        }
        let status = Status::from_wire(head.status.get());
        if status != Some(Status::Ok) {
            let len = head.message_len.get() as usize;
            if len > MAX_MESSAGE_BYTES {
                return garbled("a message above the length limit");
            }
            let mut text = vec![0; len];
            line.take(&mut text).map_err(lost)?;
            line.check_tag(&[head.as_bytes(), &text]).map_err(lost)?;
            let text = String::from_utf8_lossy(&text).into_owned();
            let error = match status {
                Some(Status::Refused) => TransportError::Refused(text),
                Some(Status::OutOfBounds) => TransportError::OutOfBounds(text),
                _ => TransportError::Protocol(format!("{}: {text}", self.pool.target)),
            };
            return Ok((Err(error), closing));
        }
        let due = (request.results as u32, request.read_bytes);
        if (head.n_results.get(), head.read_bytes.get()) != due {
            return garbled("an answer of unexpected length");
        }
        receive(line, &head, request, ops).map_err(lost)?;
        Ok((Ok(()), closing))
    }
}

/// The error of a batch in flight, or still to be sent, behind one that failed with this error.
pub(super) fn lost_with(error: &TransportError) -> TransportError {
    match error {
        TransportError::Timeout(text) => TransportError::Timeout(text.clone()),
        other => TransportError::Disconnected(other.to_string()),
    }
}

/// Payload bytes of a batch in both directions.
pub(super) fn bytes_of(ops: &[Op<'_>]) -> u64 {
    ops.iter().map(|op| (DESC_BYTES + payload_len(op).unwrap_or(0)) as u64).sum()
}

/// Sends header, descriptors and payloads in as few system calls as possible.
pub(super) fn send(line: &Line, request: &Outgoing, ops: &[Op<'_>]) -> Result<(), Broken> {
    let mut small = request.small.as_slice();
    let payloads = request.pieces.iter().filter_map(|p| p.written(ops)).map(|payload| {
        let tagged = payload.len() + line.tags.len_behind(payload.len());
        if has_tag(payload.len()) { small.split_off(..tagged).unwrap_or_default() } else { payload }
    });
    line.send(std::iter::once(request.head.as_slice()).chain(payloads))
}

/// Receives the results of the atomics, then the payloads of the reads.
fn receive(
    line: &mut Line,
    head: &Response,
    request: &Outgoing,
    ops: &mut [Op<'_>],
) -> Result<(), Broken> {
    let mut results = vec![U64::ZERO; request.results];
    line.take(results.as_mut_bytes())?;
    line.check_tag(&[head.as_bytes(), results.as_bytes()])?;
    let mut results = results.into_iter();
    for p in &request.pieces {
        if let Some(Op::FetchAdd { old, .. } | Op::CompareSwap { old, .. }) = ops.get_mut(p.op)
            && let Some(found) = results.next()
        {
            *old = found.get();
        }
    }
    for p in &request.pieces {
        if let Some(Op::Read { dst, .. }) = ops.get_mut(p.op)
            && let Some(part) = dst.get_mut(p.from..p.from + p.len)
        {
            line.take_payload(part)?;
        }
    }
    Ok(())
}

impl Verbs for TcpVerbs {
    fn kind(&self) -> Kind {
        Kind::Tcp
    }

    fn post(&self, token: u64, ops: &mut [Op<'_>]) -> Result<(), TransportError> {
        let pool = &self.pool;
        pool.alive.check(&pool.target)?;
        check_batch(ops, token, self.segment_len)?;
        if !ops.is_empty() {
            through_host(ops, |ops| self.run(token, ops))?;
        }
        pool.alive.check(&pool.target)
    }

    fn post_many(
        &self,
        posts: &mut [Post<'_, '_>],
        observer: &mut dyn PostObserver,
    ) -> Vec<Result<(), TransportError>> {
        let mut done: Vec<_> = posts.iter().map(|_| None).collect();
        if posts.len() > 1 {
            // Repeat over another connection if an answer closed the previous one.
            while self.is_alive() && self.pipeline(posts, observer, &mut done) {}
        }
        let (mut done, mut stuck) = (done.into_iter(), None);
        let one = |(i, p): (usize, &mut Post<'_, '_>)| match (done.next().flatten(), &stuck) {
            (Some(Ok(())), _) => self.pool.alive.check(&self.pool.target),
            (Some(Err(error)), _) => Err(error),
            (None, Some(error)) => Err(lost_with(error)),
            (None, None) => self.post_observed(i, p, observer).inspect_err(|error| {
                // Only one of the batches waits for a peer that does not answer, not each of them.
                if matches!(error, TransportError::Timeout(_)) {
                    stuck = Some(lost_with(error));
                }
            }),
        };
        posts.iter_mut().enumerate().map(one).collect()
    }

    fn find(&self, finds: &mut [Find<'_>]) -> Option<Result<(), TransportError>> {
        self.find_all(finds)
    }

    fn append(
        &self,
        token: u64,
        appends: &mut [Append<'_>],
        line: &mut ControlLine,
    ) -> Option<Result<(), TransportError>> {
        self.append_all(token, appends, line)
    }

    fn cuts(&self, bytes: u64) -> bool {
        self.pool.opts.stripes.of(bytes) > 1
    }

    fn trim(&self) {
        self.pool.trim();
    }

    fn reads_in_order(&self) -> bool {
        true
    }

    fn is_alive(&self) -> bool {
        self.pool.alive.is_alive()
    }

    fn segment_len(&self) -> u64 {
        self.segment_len
    }
}

impl Drop for TcpVerbs {
    fn drop(&mut self) {
        // A clone of the flag must not keep sockets open. In a forked child the sockets are the
        // parent's.
        if self.made.is_here() {
            self.pool.close_idle();
        }
    }
}
