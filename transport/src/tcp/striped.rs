//! Large reads and writes over several connections at a time. A batch stays what it is, verbs
//! strictly in order: each large one is cut into stripes, and nothing that stands behind it is sent
//! before every stripe was answered. So READY follows the last byte of all of them [I4], and a
//! reader's second look comes after it [I7]. Decides nothing about how many; see
//! [`nkv_store::Stripes`].
//!
//! A stripe is a request like any other: its bytes are placed under its plan's permit, counted by
//! the plan's gate, so a fence covers all stripes [I10], and the agent answers once they are in
//! memory and the permit is given back. A stripe that fails fails the batch; the others are done to
//! their end first, so that none of them is on its way when the call has ended.

use super::client::TcpVerbs;
use super::deadline::Deadline;
use super::pool::Lease;
use crate::error::TransportError;
use crate::verbs::Op;
use nkv_store::threads::side_by_side;

impl TcpVerbs {
    /// A batch with large verbs: these over all of `lanes`, the rest over the first of them.
    pub(super) fn striped(
        &self,
        mut lanes: Vec<Lease<'_>>,
        token: u64,
        ops: &mut [Op<'_>],
        deadline: Deadline,
    ) -> Result<(), TransportError> {
        let by = &self.pool.opts.stripes;
        let mut rest = ops;
        while let Some((first, more)) = lanes.split_first_mut() {
            let small = rest.iter().position(|op| op.stripes(by) > 1).unwrap_or(rest.len());
            let (chain, tail) = rest.split_at_mut(small);
            self.chain(first, token, chain, deadline)?;
            let Some((large, tail)) = tail.split_first_mut() else {
                break;
            };
            let n = large.stripes(by);
            let more: Vec<_> = more.iter_mut().filter(|l| l.is_in_step()).take(n - 1).collect();
            // All of it has happened when this returns.
            side_by_side("nkv-stripe", large.cut(more.len() + 1), first, more, |lane, stripe| {
                // Each connection flushes for itself, and its answer says so [I4].
                self.chain(lane, token, &mut [stripe, Op::Flush], deadline)
            })?;
            rest = tail;
        }
        Ok(())
    }
}
