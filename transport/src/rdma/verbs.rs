//! [`Verbs`] over queue pairs. A batch uses the first pair, in order. Long runs in it are spread
//! over all pairs ([`super::in_flight`]), and nothing after a run is sent before its last byte has
//! arrived. Whole batches of one call use the pair with the fewest batches in flight.

use super::batch::{Batch, DIRECT_BYTES, Path, SPACING, limit_ns};
use super::in_flight::{BatchDone, InFlightBatches, is_settled, long_run, spread};
use super::lane::{CHAIN, RdmaCounters};
use super::staging::{BUFFER_BYTES, Lease};
use crate::error::TransportError;
use crate::verbs::{Alive, Kind, Op, Post, PostObserver, Verbs, check_batch};
use nkv_store::op::through_host;
use std::sync::Arc;

/// Batches of one call in flight at once: each holds a buffer.
const BATCHES: usize = 8;

/// A segment of another process, accessed through the devices of both.
#[derive(Debug)]
pub struct RdmaVerbs {
    // At least one. Words with several writers use only the first [I1].
    paths: Vec<Arc<Path>>,
    segment_len: u64,
    alive: Alive,
    counters: Arc<RdmaCounters>,
}

impl RdmaVerbs {
    pub(super) fn new(
        paths: Vec<Arc<Path>>,
        segment_len: u64,
        alive: Alive,
        counters: Arc<RdmaCounters>,
    ) -> Self {
        for path in &paths {
            // A post to a dead owner ends at once, without waiting for the device's retries.
            let path = Arc::downgrade(path);
            alive.on_death(move || {
                if let Some(path) = path.upgrade() {
                    path.lane.break_off("the owner of the segment is gone");
                }
            });
        }
        Self { paths, segment_len, alive, counters }
    }

    /// The counters of its pairs.
    pub fn counters(&self) -> &RdmaCounters {
        &self.counters
    }

    fn check(&self, token: u64, ops: &[Op<'_>]) -> Result<(), TransportError> {
        self.alive.check(&"the remote segment")?;
        check_batch(ops, token, self.segment_len)
    }

    /// A pair that failed is not reconnected: a client that needs the segment attaches again. The
    /// flag is set before a gate is left: data that was sent may still arrive, so no later step may
    /// rely on its absence [I10].
    fn ended<T>(&self, ended: Result<T, TransportError>) -> Result<T, TransportError> {
        ended.inspect_err(|_| self.alive.mark_dead())
    }
}

impl Verbs for RdmaVerbs {
    fn kind(&self) -> Kind {
        Kind::Rdma
    }

    fn post(&self, token: u64, ops: &mut [Op<'_>]) -> Result<(), TransportError> {
        self.check(token, ops)?;
        self.in_order(None, ops)?;
        // Meanwhile the owner may have died, and its memory may be reused or stale.
        self.alive.check(&"the remote segment")
    }

    fn post_many(
        &self,
        posts: &mut [Post<'_, '_>],
        observer: &mut dyn PostObserver,
    ) -> Vec<Result<(), TransportError>> {
        let mut results: Vec<Result<(), TransportError>> = posts.iter().map(|_| Ok(())).collect();
        let mut flight = InFlightBatches::new(&self.paths);
        for (i, post) in posts.iter_mut().enumerate() {
            let mut landed = |l: BatchDone| self.over(l, &mut results, observer);
            // A batch that needs several buffers is posted alone: a batch that holds a buffer never
            // waits for one.
            let alone = !self.takes_one_buffer(post.ops);
            let most = if alone { 1 } else { BATCHES };
            while flight.len() >= most {
                flight.land().into_iter().for_each(&mut landed);
            }
            // Counting atomics must be executed by one device [I1].
            let counts = post.ops.iter().any(|op| matches!(op, Op::FetchAdd { .. }));
            let by = if alone || counts { 0 } else { flight.idlest(&mut landed) };
            let until_ns = limit_ns(bytes(post.ops));
            let lease = flight.lease(by, until_ns, &mut landed);
            let left = lease.and_then(|lease| {
                self.check(post.token, post.ops)?;
                observer.on_submit(i).map(|()| lease)
            });
            let lease = match left {
                Ok(lease) => lease,
                Err(e) => {
                    results[i] = Err(e);
                    continue;
                }
            };
            let sent = match alone {
                true => self.in_order(Some(lease), post.ops),
                false => self.ended(flight.send((i, by), lease, post.ops, until_ns)),
            };
            if alone || sent.is_err() {
                results[i] = sent.and_then(|()| self.alive.check(&"the remote segment"));
                observer.on_complete(i);
            }
        }
        while let Some(l) = flight.land() {
            self.over(l, &mut results, observer);
        }
        results
    }

    fn is_alive(&self) -> bool {
        self.alive.is_alive()
    }

    fn segment_len(&self) -> u64 {
        self.segment_len
    }

    fn devices(&self) -> Vec<String> {
        self.paths.iter().map(|path| path.staging.device().to_string()).collect()
    }
}

impl RdmaVerbs {
    /// A batch that is complete.
    fn over(
        &self,
        (i, ended): BatchDone,
        results: &mut [Result<(), TransportError>],
        observer: &mut dyn PostObserver,
    ) {
        results[i] = self.ended(ended).and_then(|()| self.alive.check(&"the remote segment"));
        observer.on_complete(i);
    }

    /// A batch over the first pair, starting with this buffer; long runs over all pairs.
    fn in_order(&self, lease: Option<Lease>, ops: &mut [Op<'_>]) -> Result<(), TransportError> {
        let until_ns = limit_ns(bytes(ops));
        let mut batch = Batch::new(&self.paths[0], lease, until_ns);
        let done = through_host(ops, |ops| self.runs(&mut batch, ops, until_ns));
        // Before its buffers can be reused: an error destroys the pair to which they were given.
        drop(batch);
        self.ended(done)
    }

    fn runs(
        &self,
        batch: &mut Batch<'_>,
        mut ops: &mut [Op<'_>],
        until_ns: u64,
    ) -> Result<(), TransportError> {
        loop {
            let run = if self.paths.len() > 1 { long_run(ops) } else { None };
            let run = run.unwrap_or(ops.len()..ops.len());
            let (chain, rest) = ops.split_at_mut(run.start);
            chain.iter_mut().try_for_each(|op| batch.add(op))?;
            if run.is_empty() {
                return batch.finish();
            }
            // What this pair has sent, also in an earlier post, must be in memory before another
            // device begins: the WRITING state, or bytes that are read or overwritten now [I4].
            if !is_settled(chain) {
                batch.add(&mut Op::Flush)?;
            }
            batch.finish()?;
            let (run, rest) = rest.split_at_mut(run.len());
            spread(&self.paths, run, until_ns)?;
            ops = rest;
        }
    }

    /// Whether a batch needs no second buffer, even if every operation crosses a range end, and is
    /// neither to be spread nor to go through host memory.
    fn takes_one_buffer(&self, ops: &[Op<'_>]) -> bool {
        let direct = |op: &Op<'_>| match op {
            Op::Write { src, .. } => self.paths[0].known(src.as_ptr(), src.len()).is_some(),
            Op::Read { dst, .. } => self.paths[0].known(dst.as_ptr(), dst.len()).is_some(),
            _ => false,
        };
        // For a flush that is added.
        let (mut staged, mut unstaged, mut requests) = (2 * SPACING, 0, 2);
        for op in ops {
            let len = op.range().1 as usize;
            let whole = if direct(op) { &mut unstaged } else { &mut staged };
            *whole += len;
            staged += 2 * SPACING;
            requests += 2 + len / BUFFER_BYTES;
        }
        let whole = self.paths.len() == 1 || long_run(ops).is_none();
        let whole = whole && !ops.iter().any(Op::has_device_buffer);
        whole && requests < CHAIN && staged <= BUFFER_BYTES && unstaged <= DIRECT_BYTES
    }
}

fn bytes(ops: &[Op<'_>]) -> u64 {
    ops.iter().map(|op| op.range().1).sum()
}
