//! Gets of one size: of one object again and again (warm), of a ring in order (cold), of a ring
//! with a stride, and of one object while another process puts. Each recorded get has a copy beside
//! it.

use super::ring::{RingCopy, stride};
use super::{SMALL, by_log, producers, row};
use crate::content::Verdict;
use crate::flags::Flags;
use crate::latency::OpTimes;
use crate::report::Report;
use crate::stop::Stop;
use crate::stopwatch::{Deadline, timed};
use crate::tally::ErrorTally;
use nkv::{Blocking, ErrorKind};
use std::time::Duration;

/// Time for one row, and the fewest gets of a row.
const ROW: Duration = Duration::from_millis(600);
const FEWEST: u64 = 60;
/// Objects of one put or remove of many.
const BATCH: usize = 256;
const BATCH_BYTES: usize = 64 << 20;

/// Rows of one size.
///
/// # Errors
/// If the ring cannot be put, or a producer cannot be started.
pub(super) fn measure(
    handle: &Blocking,
    walk: &mut RingCopy,
    size: usize,
    (flags, stop): (&Flags, &Stop),
    report: &mut Report,
) -> anyhow::Result<()> {
    let keys = put_ring(handle, walk, size)?;
    let n = keys.len();
    let mut gets = Gets { handle, walk, size, keys: &keys, tally: ErrorTally::default() };
    gets.compare_all();
    row(report, gets.run("get warm", |_| 0, stop));
    row(report, gets.run("get cold", |step| step % n, stop));
    if size == SMALL {
        let stride = stride(n);
        row(report, gets.run("get jumping", |step| step % n * stride % n, stop));
        let mut loaded = None;
        let work = || loaded = Some(gets.run("get under load", |_| 0, stop));
        let beside = producers::rates(flags, 1, stop, work, report);
        report.tally.merge(std::mem::take(&mut gets.tally));
        beside?;
        loaded.into_iter().for_each(|times| row(report, times));
    }
    report.tally.merge(gets.tally);
    let names: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
    for names in names.chunks(BATCH) {
        for (key, outcome) in names.iter().zip(handle.remove_many(names)) {
            // An absent key was evicted: a producer that finds the log full fills the heap.
            if let Err(error) = outcome
                && error.kind() != ErrorKind::NotFound
            {
                report.tally.failed("remove", key, &error);
            }
        }
    }
    Ok(())
}

/// Puts a ring of objects by plans, so that none is evicted during the measurement.
fn put_ring(handle: &Blocking, walk: &RingCopy, size: usize) -> anyhow::Result<Vec<Vec<u8>>> {
    let run_id = nkv_store::random_u64();
    let name = |i| format!("budgets/{run_id:016x}/{size}/{i}").into_bytes();
    let keys: Vec<Vec<u8>> = (0..walk.objects(size)).map(name).collect();
    for first in (0..keys.len()).step_by(batch(size)) {
        let keys = &keys[first..keys.len().min(first + batch(size))];
        let items: Vec<(&[u8], &[u8])> = keys
            .iter()
            .enumerate()
            .map(|(i, key)| (key.as_slice(), walk.value(size, first + i)))
            .collect();
        if let Some(error) =
            handle.put_many(&items, &by_log(false)).into_iter().find_map(Result::err)
        {
            let n = walk.objects(size);
            let why = format!("a ring of {n} objects of {size} bytes cannot be put");
            return Err(anyhow::Error::new(error).context(why));
        }
    }
    Ok(keys)
}

fn batch(size: usize) -> usize {
    (BATCH_BYTES / size).clamp(1, BATCH)
}

struct Gets<'a> {
    handle: &'a Blocking,
    walk: &'a mut RingCopy,
    size: usize,
    keys: &'a [Vec<u8>],
    tally: ErrorTally,
}

impl Gets<'_> {
    fn get(&mut self, index: usize) -> Option<u64> {
        let (key, dst) = (&self.keys[index], &mut self.walk.target[..self.size]);
        let (outcome, ns) = timed(|| self.handle.get_into(key, dst));
        match outcome {
            Ok(_) => Some(ns),
            Err(error) => {
                self.tally.failed("get", key, &error);
                None
            }
        }
    }

    /// Compares every byte of every object before anything is timed; this also touches every page.
    fn compare_all(&mut self) {
        for index in 0..self.keys.len() {
            if self.get(index).is_some() {
                let right = self.walk.value(self.size, index);
                let verdict = Verdict::of(&self.walk.target[..self.size], right);
                self.tally.compared(&self.keys[index], verdict);
            }
        }
    }

    /// Times gets and copies alternately. The second of a pair finds the caller's buffer warmer, so
    /// they also alternate in going first.
    fn run(&mut self, op: &'static str, place: impl Fn(usize) -> usize, stop: &Stop) -> OpTimes {
        let mut times = OpTimes::new(op, self.size as u64);
        let deadline = Deadline::after(ROW);
        let mut step = 0;
        while !stop.asked() && (times.count() < FEWEST || !deadline.passed()) {
            let index = place(step);
            let copy_first = step % 2 == 1;
            if copy_first {
                times.record_memcpy(self.walk.copy_out(self.size, index));
            }
            match self.get(index) {
                Some(ns) => times.record(ns),
                None => break,
            }
            if !copy_first {
                times.record_memcpy(self.walk.copy_out(self.size, index));
            }
            step += 1;
        }
        times
    }
}
