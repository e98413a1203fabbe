//! Gets of one size: of one object again and again (warm), of a ring in order (cold), of a ring
//! with a stride, and of one object while another process puts. Each recorded get has a copy beside
//! it.

use super::ring::{RingCopy, stride};
use super::{SMALL, producers};
use crate::content::Verdict;
use crate::flags::Flags;
use crate::latency::OpTimes;
use crate::memcpy::copy_and_operation;
use crate::report::Report;
use crate::stop::Stop;
use crate::stopwatch::{Deadline, timed};
use crate::tally::ErrorTally;
use nkv::{Blocking, PutOptions};
use std::time::Duration;

/// Time for one row, and the fewest gets of a row.
const ROW: Duration = Duration::from_millis(600);
const FEWEST: u64 = 60;
/// Objects of one put of many.
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
    report.measured(gets.run("get warm", |_| 0, stop));
    report.measured(gets.run("get cold", |step| step % n, stop));
    if size == SMALL {
        let stride = stride(n);
        report.measured(gets.run("get jumping", |step| step % n * stride % n, stop));
        let mut loaded = None;
        let work = || loaded = Some(gets.run("get under load", |_| 0, stop));
        let beside = producers::rates(flags, 1, stop, work, report);
        report.tally.merge(std::mem::take(&mut gets.tally));
        beside?;
        loaded.into_iter().for_each(|times| report.measured(times));
    }
    report.tally.merge(gets.tally);
    // A producer that finds the log full fills the heap.
    report.tally.remove(handle, &keys, true);
    Ok(())
}

/// Puts a ring of objects by plans, so that none is evicted during the measurement.
fn put_ring(handle: &Blocking, walk: &RingCopy, size: usize) -> anyhow::Result<Vec<Vec<u8>>> {
    let run_id = nkv_store::random_u64();
    let name = |i| format!("budgets/{run_id:016x}/{size}/{i}").into_bytes();
    let keys: Vec<Vec<u8>> = (0..walk.objects(size)).map(name).collect();
    let values = (0..keys.len()).map(|i| walk.value(size, i));
    let items: Vec<(&[u8], &[u8])> = keys.iter().map(Vec::as_slice).zip(values).collect();
    for items in items.chunks((BATCH_BYTES / size).clamp(1, BATCH)) {
        let opts = PutOptions::default().device_alloc(false);
        if let Some(error) = handle.put_many(items, &opts).into_iter().find_map(Result::err) {
            let why = format!("a ring of {} objects of {size} bytes cannot be put", keys.len());
            return Err(anyhow::Error::new(error).context(why));
        }
    }
    Ok(keys)
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
            for copies in copy_and_operation(step) {
                if copies {
                    times.record_memcpy(self.walk.copy_out(self.size, index));
                } else if let Some(ns) = self.get(index) {
                    times.record(ns);
                } else {
                    return times;
                }
            }
            step += 1;
        }
        times
    }
}
