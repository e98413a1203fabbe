//! Several batches over one connection, each sent before the answer to the one before it has come: the
//! agent takes in the next payload while its answer is on the way. Only batches of one request that
//! bring back no more than words, so that neither end waits to send while the other does. Whatever is
//! left undone here, the caller posts one by one.

use super::batch::{Cursor, Limits, Outgoing};
use super::client::{Answer, TcpVerbs, bytes_of, send};
use super::deadline::Deadline;
use super::line::Broken;
use super::pool::{Conn, Lease};
use crate::error::TransportError;
use crate::verbs::{Op, Post, check_batch};
use std::collections::VecDeque;

/// Requests sent and not answered.
const AHEAD: usize = 2;

/// What became of each batch; None for one that did not happen, and may be posted.
pub(super) type Outcomes = Vec<Option<Result<(), TransportError>>>;

/// A request on its way.
struct Flying {
    batch: usize,
    id: u64,
    out: Outgoing,
}

impl TcpVerbs {
    /// As many of the batches as go together.
    pub(super) fn pipeline(&self, posts: &mut [Post<'_, '_>]) -> Outcomes {
        let mut outcomes: Outcomes = posts.iter().map(|_| None).collect();
        let flown = self
            .pool
            .lease(Deadline::for_bytes(self.pool.opts.stall_ms, 0))
            .and_then(|mut lease| self.fly(&mut lease, posts, &mut outcomes));
        if let Err(error) = flown
            && (matches!(error, TransportError::Timeout(_)) || outcomes.iter().all(Option::is_none))
        {
            // Those that never left would wait as long again, each of them, for a peer that is stuck or
            // cannot be reached.
            let undone = outcomes.iter_mut().filter(|o| o.is_none());
            undone.for_each(|o| *o = Some(Err(lost_with(&error))));
        }
        outcomes
    }

    /// Sends ahead and takes the answers, in order. An error ends the connection; whoever was on its way
    /// has it, too.
    fn fly(
        &self,
        lease: &mut Lease<'_>,
        posts: &mut [Post<'_, '_>],
        outcomes: &mut Outcomes,
    ) -> Result<(), TransportError> {
        let mut in_step = lease.begin();
        let conn = lease.conn()?;
        let alone: Vec<bool> = posts.iter().map(|p| self.fits(p, conn.limits)).collect();
        let mut next = (0..posts.len()).filter(|i| alone[*i]);
        let (mut flying, mut broken) = (VecDeque::<Flying>::with_capacity(AHEAD), None);
        loop {
            while in_step
                && broken.is_none()
                && flying.len() < AHEAD
                && let Some(batch) = next.next()
            {
                // Each has the time that a post of its own would have, and what is before it.
                let bytes =
                    flying.iter().map(|f| f.batch).chain([batch]).map(|i| bytes_of(posts[i].ops));
                conn.line.set_deadline(Deadline::for_bytes(self.pool.opts.stall_ms, bytes.sum()));
                let (request, sent) = self.take_off(conn, batch, &posts[batch]);
                broken = sent.err();
                flying.push_back(request);
            }
            let Some(Flying { batch, id, out }) = flying.pop_front() else { break };
            // A send that broke off was the last one's: the answers before it are still to come.
            let sent = if flying.is_empty() { broken.take().map_or(Ok(()), Err) } else { Ok(()) };
            let failed = sent.is_err();
            let limit = Deadline::for_bytes(self.pool.opts.stall_ms, bytes_of(posts[batch].ops));
            conn.line.set_deadline(limit);
            let (outcome, closing) =
                match self.answer(&mut conn.line, &out, id, posts[batch].ops, sent) {
                    Ok(Answer::Done { closing }) => (Ok(()), closing),
                    Ok(Answer::Denied { error, closing }) => (Err(error), closing),
                    Err(error) => {
                        for other in flying {
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
                // The agent has closed and looked at nothing behind that answer.
                return Ok(());
            }
        }
        lease.end(in_step);
        Ok(())
    }

    fn take_off(
        &self,
        conn: &mut Conn,
        batch: usize,
        post: &Post<'_, '_>,
    ) -> (Flying, Result<(), Broken>) {
        let (id, mut out) = (conn.next_id, Outgoing::default());
        conn.next_id += 1;
        out.next(post.ops, &mut Cursor::default(), conn.limits, id, post.token);
        let sent = send(&conn.line, &out, post.ops);
        (Flying { batch, id, out }, sent)
    }

    /// Whether a batch is one request, and may be answered while others are sent.
    fn fits(&self, post: &Post<'_, '_>, limits: Limits) -> bool {
        let by = &self.pool.opts.stripes;
        let plain = |op: &Op<'_>| !matches!(op, Op::Read { .. }) && op.stripes(by) <= 1;
        !post.ops.is_empty()
            && post.ops.len() <= limits.ops
            && bytes_of(post.ops) <= limits.bytes
            && post.ops.iter().all(plain)
            && check_batch(post.ops, post.token, self.len()).is_ok()
    }
}

/// The same for a batch that was on its way, or was to go, behind one that met this.
pub(super) fn lost_with(error: &TransportError) -> TransportError {
    match error {
        TransportError::Timeout(text) => TransportError::Timeout(text.clone()),
        other => TransportError::Disconnected(other.to_string()),
    }
}
