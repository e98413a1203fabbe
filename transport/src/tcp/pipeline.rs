//! Several batches over one connection, each sent before the answer to the previous one has
//! arrived: the agent receives the next payload while its answer is on the way. Only batches that
//! are one request and return only words, so that the two ends never block on sending to each
//! other. The caller posts all remaining batches one by one.

use super::batch::{Cursor, Limits, Outgoing};
use super::broken::Broken;
use super::client::{TcpVerbs, bytes_of, lost_with, send};
use super::deadline::Deadline;
use super::pool::{Conn, Lease};
use crate::error::TransportError;
use crate::verbs::{Op, Post, PostObserver, Verbs, check_batch};
use std::collections::VecDeque;

/// Bytes of requests sent and not answered: more than the sockets hold, so that the agent never
/// waits for the next one, but not much more, since a fence waits for them. A larger request is
/// sent alone.
const AHEAD_BYTES: u64 = 8 << 20;
const AHEAD: usize = 16;

/// Result of each batch; None if it did not happen and may be posted.
pub(super) type Outcomes = Vec<Option<Result<(), TransportError>>>;

/// A request that was sent and not answered.
struct InFlightRequest {
    batch: usize,
    id: u64,
    out: Outgoing,
}

impl TcpVerbs {
    /// Sends as many of the batches without an outcome as possible. False if none got one.
    pub(super) fn pipeline(
        &self,
        posts: &mut [Post<'_, '_>],
        observer: &mut dyn PostObserver,
        outcomes: &mut Outcomes,
    ) -> bool {
        let left = |outcomes: &Outcomes| outcomes.iter().filter(|o| o.is_none()).count();
        let before = left(outcomes);
        if before == 0 {
            return false;
        }
        let flown = self.pool.lease(Deadline::for_bytes(self.pool.opts.stall_ms, 0)).and_then(
            |mut lease| {
                let mut flying = VecDeque::with_capacity(AHEAD);
                let flown = self.fly(&mut lease, posts, outcomes, (&mut flying, observer));
                // Their answers will not be read any more.
                flying.iter().for_each(|f| observer.on_complete(f.batch));
                flown
            },
        );
        if let Err(error) = flown
            && (matches!(error, TransportError::Timeout(_)) || left(outcomes) == before)
        {
            // Batches that were never sent would each wait as long again for a peer that is stuck
            // or unreachable.
            let undone = outcomes.iter_mut().filter(|o| o.is_none());
            undone.for_each(|o| *o = Some(Err(lost_with(&error))));
        }
        left(outcomes) < before
    }

    /// Sends requests ahead and reads the answers in order. An error ends the connection and is
    /// also the result of every batch in flight.
    fn fly(
        &self,
        lease: &mut Lease<'_>,
        posts: &mut [Post<'_, '_>],
        outcomes: &mut Outcomes,
        (flying, observer): (&mut VecDeque<InFlightRequest>, &mut dyn PostObserver),
    ) -> Result<(), TransportError> {
        let mut in_step = std::mem::take(&mut lease.in_step);
        let conn = lease.conn()?;
        let fits = |(p, o): (&Post<'_, '_>, &Option<_>)| o.is_none() && self.fits(p, conn.limits);
        let alone: Vec<bool> = posts.iter().zip(&*outcomes).map(fits).collect();
        let mut next = (0..posts.len()).filter(|i| alone[*i]).peekable();
        let mut broken = None;
        loop {
            while in_step
                && broken.is_none()
                && flying.len() < AHEAD
                && let Some(&batch) = next.peek()
            {
                let before: u64 = flying.iter().map(|f| bytes_of(posts[f.batch].ops)).sum();
                let bytes = before + bytes_of(posts[batch].ops);
                if before > 0 && bytes > AHEAD_BYTES {
                    break;
                }
                next.next();
                if let Err(refused) = observer.on_submit(batch) {
                    outcomes[batch] = Some(Err(refused));
                    continue;
                }
                // Each has the time of a post of its own, plus that of the requests before it.
                conn.line.limits.deadline = Deadline::for_bytes(self.pool.opts.stall_ms, bytes);
                let (request, sent) = self.take_off(conn, batch, &posts[batch]);
                broken = sent.err();
                flying.push_back(request);
            }
            let Some(InFlightRequest { batch, id, out }) = flying.pop_front() else { break };
            // If a send failed, it was the last one: the answers before it can still arrive, unless
            // the agent is stuck.
            let stuck = matches!(broken, Some(Broken::Stalled(_) | Broken::Late(_)));
            let last = flying.is_empty() || stuck;
            let sent = if last { broken.take().map_or(Ok(()), Err) } else { Ok(()) };
            let failed = sent.is_err();
            conn.line.limits.deadline =
                Deadline::for_bytes(self.pool.opts.stall_ms, bytes_of(posts[batch].ops));
            let answer = self.answer(&mut conn.line, &out, id, posts[batch].ops, sent);
            observer.on_complete(batch);
            let (outcome, closing) = match answer {
                Ok(answer) => answer,
                Err(error) => {
                    for other in flying.iter() {
                        outcomes[other.batch] = Some(Err(lost_with(&error)));
                    }
                    let again = lost_with(&error);
                    outcomes[batch] = Some(Err(error));
                    return Err(again);
                }
            };
            outcomes[batch] = Some(outcome);
            in_step = !closing && !failed;
            if !in_step {
                // The agent has closed and processed nothing after the request of that answer.
                return Ok(());
            }
        }
        lease.in_step = in_step;
        Ok(())
    }

    fn take_off(
        &self,
        conn: &mut Conn,
        batch: usize,
        post: &Post<'_, '_>,
    ) -> (InFlightRequest, Result<(), Broken>) {
        let (id, mut out) = (conn.next_id, Outgoing::default());
        conn.next_id += 1;
        out.next(post.ops, &mut Cursor::default(), conn.limits, id, post.token);
        out.sign(&mut conn.line, post.ops);
        let sent = send(&conn.line, &out, post.ops);
        (InFlightRequest { batch, id, out }, sent)
    }

    /// Whether a batch is one request that may be answered while others are sent.
    fn fits(&self, post: &Post<'_, '_>, limits: Limits) -> bool {
        let by = &self.pool.opts.stripes;
        let plain = |op: &Op<'_>| {
            !matches!(op, Op::Read { .. }) && !op.has_device_buffer() && op.stripes(by) <= 1
        };
        !post.ops.is_empty()
            && post.ops.len() <= limits.ops
            && bytes_of(post.ops) <= limits.bytes
            && post.ops.iter().all(plain)
            && check_batch(post.ops, post.token, self.segment_len()).is_ok()
    }
}
