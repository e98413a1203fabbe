//! The batches of one call that are in flight at the same time, each with one buffer, on the pair
//! with the fewest batches. Also spreads long runs of writes or reads over the pairs, in shares.

use super::batch::{Batch, FLYING, Path, SMALLEST_PIECE};
use super::staging::Lease;
use crate::error::TransportError;
use crate::verbs::Op;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Shortest run in bytes that is spread: spreading waits for everything before the run, and
/// everything after it waits for the run.
pub(super) const SPREAD_FROM: u64 = 1 << 20;
/// Bytes of one share: large enough for a doorbell of its own, small enough that a faster device
/// takes more shares.
const SHARE: usize = 256 << 10;

struct InFlightRequest<'a> {
    index: usize,
    by: usize,
    batch: Batch<'a>,
}

/// The batches of one call in flight.
pub(super) struct InFlightBatches<'a> {
    paths: &'a [Arc<Path>],
    // In the order in which they were sent.
    flying: VecDeque<InFlightRequest<'a>>,
    // Next path among those with equal load.
    turn: usize,
}

/// A completed batch: its index, and its result.
pub(super) type BatchDone = (usize, Result<(), TransportError>);

impl<'a> InFlightBatches<'a> {
    pub(super) fn new(paths: &'a [Arc<Path>]) -> Self {
        Self { paths, flying: VecDeque::new(), turn: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.flying.len()
    }

    /// The path with the fewest batches in flight; equal ones take turns. Completed batches are
    /// first passed to `landed`.
    pub(super) fn idlest(&mut self, mut landed: impl FnMut(BatchDone)) -> usize {
        while let Some(at) = self.flying.iter().position(|f| f.batch.is_over()) {
            self.flying.remove(at).map(finish).into_iter().for_each(&mut landed);
        }
        let load = |by: &usize| self.flying.iter().filter(|f| f.by == *by).count();
        let n = self.paths.len();
        let by = (0..n).map(|i| (self.turn + i) % n).min_by_key(load).unwrap_or(0);
        self.turn = (by + 1) % n;
        by
    }

    /// A buffer of that path. A caller that holds a buffer never waits for another: batches in
    /// flight are completed first.
    pub(super) fn lease(
        &mut self,
        by: usize,
        until_ns: u64,
        mut landed: impl FnMut(BatchDone),
    ) -> Result<Lease, TransportError> {
        loop {
            if let Some(lease) = self.paths[by].staging.try_take()? {
                return Ok(lease);
            }
            match self.land() {
                Some(ended) => landed(ended),
                None => return self.paths[by].staging.take(until_ns),
            }
        }
    }

    /// Sends a batch over that path, with that buffer. On any path except the first it ends only
    /// when its bytes are in memory, since the next post may use the first path.
    pub(super) fn send(
        &mut self,
        (index, by): (usize, usize),
        lease: Lease,
        ops: &mut [Op<'_>],
        until_ns: u64,
    ) -> Result<(), TransportError> {
        let path = &self.paths[by];
        let mut batch = Batch::new(path, Some(lease), until_ns);
        ops.iter_mut().try_for_each(|op| batch.add(op))?;
        if by > 0 {
            path.lane.counters.spread.fetch_add(1, Ordering::Relaxed);
            if leaves_writes(ops) {
                batch.add(&mut Op::Flush)?;
            }
        }
        batch.send()?;
        self.flying.push_back(InFlightRequest { index, by, batch });
        Ok(())
    }

    /// Waits for the oldest batch.
    pub(super) fn land(&mut self) -> Option<BatchDone> {
        self.flying.pop_front().map(finish)
    }
}

fn finish(mut flying: InFlightRequest<'_>) -> BatchDone {
    (flying.index, flying.batch.finish())
}

/// Whether its answer proves that everything sent before has arrived in memory, as that of an
/// atomic does in one memory. Where payload is in another one, a compare-and-swap follows a read of
/// payload, and a fetch-and-add does not. (The answer to a read of payload does not, since it may
/// be executed out of order [I5].)
fn settles(op: &Op<'_>) -> bool {
    matches!(op, Op::CompareSwap { .. } | Op::Flush)
}

/// Whether no write of their pair is on its way to memory once these are answered.
pub(super) fn is_settled(ops: &[Op<'_>]) -> bool {
    ops.last().is_some_and(settles)
}

/// Whether some of these may still be on their way to memory when all of them are answered.
fn leaves_writes(ops: &[Op<'_>]) -> bool {
    ops.iter().rev().take_while(|op| !settles(op)).any(Op::changes)
}

/// The first run of writes, or of reads, that is long enough to be spread.
pub(super) fn long_run(ops: &[Op<'_>]) -> Option<Range<usize>> {
    let spreads = |op: &Op<'_>| {
        let whole = matches!(op, Op::Read { .. } | Op::Write { .. });
        whole && op.range().1 >= SMALLEST_PIECE as u64
    };
    let mut begin = 0;
    while begin < ops.len() {
        let run = ops[begin..].iter();
        let alike = |op: &&Op<'_>| spreads(op) && op.changes() == ops[begin].changes();
        let run: Vec<u64> = run.take_while(alike).map(|op| op.range().1).collect();
        if run.iter().sum::<u64>() >= SPREAD_FROM {
            return Some(begin..begin + run.len());
        }
        begin += run.len().max(1);
    }
    None
}

/// Executes a run over all paths, in shares. Every share has arrived in memory when this returns.
pub(super) fn spread(
    paths: &[Arc<Path>],
    run: &mut [Op<'_>],
    until_ns: u64,
) -> Result<(), TransportError> {
    let mut flight = InFlightBatches::new(paths);
    let mut failed = None;
    let note = |failed: &mut Option<TransportError>, ended: BatchDone| {
        let first = failed.take();
        *failed = first.or(ended.1.err());
    };
    for (i, mut share) in shares(run).into_iter().enumerate() {
        while flight.len() >= FLYING * paths.len() {
            flight.land().into_iter().for_each(|ended| note(&mut failed, ended));
        }
        let by = flight.idlest(|ended| note(&mut failed, ended));
        let lease = flight.lease(by, until_ns, |ended| note(&mut failed, ended))?;
        if let Some(failed) = failed {
            return Err(failed);
        }
        flight.send((i, by), lease, &mut share, until_ns)?;
    }
    while let Some(ended) = flight.land() {
        note(&mut failed, ended);
    }
    failed.map_or(Ok(()), Err)
}

/// Cuts a run, in order, into shares of at most [`SHARE`] bytes.
fn shares<'a>(run: &'a mut [Op<'_>]) -> Vec<Vec<Op<'a>>> {
    let (mut shares, mut share, mut left) = (Vec::new(), Vec::new(), SHARE);
    for op in run {
        let mut rest = match op {
            Op::Read { offset, dst } => Op::Read { offset: *offset, dst },
            Op::Write { offset, src } => Op::Write { offset: *offset, src },
            _ => continue,
        };
        while rest.range().1 > 0 {
            if left == 0 {
                shares.push(std::mem::take(&mut share));
                left = SHARE;
            }
            let (now, later) = split(rest, left);
            left -= now.range().1 as usize;
            share.push(now);
            let Some(later) = later else { break };
            rest = later;
        }
    }
    if !share.is_empty() {
        shares.push(share);
    }
    shares
}

/// The first `len` bytes of a read or a write, and the rest of it.
fn split(op: Op<'_>, len: usize) -> (Op<'_>, Option<Op<'_>>) {
    match op {
        Op::Read { offset, dst } if dst.len() > len => {
            let (now, later) = dst.split_at_mut(len);
            let later = Op::Read { offset: offset + len as u64, dst: later };
            (Op::Read { offset, dst: now }, Some(later))
        }
        Op::Write { offset, src } if src.len() > len => {
            let (now, later) = src.split_at(len);
            let later = Op::Write { offset: offset + len as u64, src: later };
            (Op::Write { offset, src: now }, Some(later))
        }
        whole => (whole, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(offset: u64, src: &[u8]) -> Op<'_> {
        Op::Write { offset, src }
    }

    #[test]
    fn a_run_is_of_one_kind_and_of_large_pieces_and_long_enough() {
        let (page, small) = (vec![0; SPREAD_FROM as usize / 4], [0; 64]);
        let mut read = page.clone();
        let word = || Op::Store { offset: 0, value: 1 };
        let pages = |n: u64| (0..n).map(|i| write(i, &page));
        let mut put = vec![write(0, &small), word()];
        put.extend(pages(3));
        assert_eq!(long_run(&put), None, "three quarters of what it takes");
        put.extend(pages(2));
        put.push(word());
        assert_eq!(long_run(&put), Some(2..7));
        assert_eq!(long_run(&put[7..]), None);
        let mut mixed: Vec<Op<'_>> = pages(3).collect();
        mixed.push(Op::Read { offset: 0, dst: &mut read });
        mixed.extend(pages(4));
        assert_eq!(long_run(&mixed), Some(4..8), "not over a read");
        let many = vec![0; SMALLEST_PIECE - 1];
        let small: Vec<Op<'_>> = (0..1000).map(|i| write(i, &many)).collect();
        assert_eq!(long_run(&small), None, "too small to be worth a request each");
        assert_eq!(long_run(&[]), None);
    }

    #[test]
    fn shares_are_the_run_cut_anew_in_order_and_once() {
        let from: Vec<u8> = (0..3 * SHARE + 77).map(|i| (i / 7) as u8).collect();
        let cuts = [0, 5_000, 5_000, 9_001, SHARE + 10_000, 3 * SHARE, from.len()];
        let mut run: Vec<Op<'_>> =
            cuts.windows(2).map(|w| write(w[0] as u64, &from[w[0]..w[1]])).collect();
        let cut = shares(&mut run);
        assert_eq!(cut.len(), 4);
        let (mut at, mut sizes) = (0, Vec::new());
        for share in &cut {
            sizes.push(share.iter().map(|op| op.range().1 as usize).sum::<usize>());
            for op in share {
                let Op::Write { offset, src } = op else { panic!("{op:?}") };
                assert_eq!(*offset, at as u64);
                assert!(!src.is_empty() && *src == &from[at..at + src.len()]);
                at += src.len();
            }
        }
        assert_eq!((at, sizes), (from.len(), vec![SHARE, SHARE, SHARE, 77]));
        let mut into = vec![0u8; SHARE + 1];
        let mut run = [Op::Read { offset: 8, dst: &mut into }];
        let mut cut = shares(&mut run);
        assert_eq!(cut[1][0].range(), (8 + SHARE as u64, 1));
        for op in cut.iter_mut().flatten() {
            let Op::Read { dst, .. } = op else { panic!("{op:?}") };
            dst.fill(9);
        }
        assert!(into.iter().all(|b| *b == 9));
    }
}
