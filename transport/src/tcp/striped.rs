//! Large reads and writes over several connections at a time. The verbs of a batch stay strictly in
//! order: each large one is cut into stripes, and no later verb is sent before every stripe was
//! answered. So READY follows the last byte of all stripes [I4], and a reader's second header read
//! comes after it [I7]. [`nkv_store::Stripes`] decides how many stripes there are.
//!
//! A stripe is a normal request: its bytes are written under its plan's permit, counted by the
//! plan's gate, so a fence covers all stripes [I10]. The agent answers once they are in memory and
//! the permit is dropped. If a stripe fails, the batch fails; the other stripes are completed
//! first, so that none is in flight when the call has ended.

use super::client::TcpVerbs;
use super::deadline::Deadline;
use super::pool::Lease;
use crate::error::TransportError;
use crate::verbs::Op;
use nkv_store::threads::side_by_side;

impl TcpVerbs {
    /// Posts a batch with large verbs: these over all of `lanes`, the others over the first lane.
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
            let more: Vec<_> = more.iter_mut().filter(|l| l.in_step).take(n - 1).collect();
            // Everything is executed when this returns.
            side_by_side("nkv-stripe", large.cut(more.len() + 1), first, more, |lane, stripe| {
                // Each connection flushes its own writes before its answer [I4].
                self.chain(lane, token, &mut [stripe, Op::Flush], deadline)
            })?;
            rest = tail;
        }
        Ok(())
    }
}
