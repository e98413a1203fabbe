//! Puts of one size through the device log, from a cold source, each beside a copy of as many bytes
//! to cold pages; of 4 KiB also with a pause between, and by plans. A row contains only puts that
//! took the path that it names.

use super::SMALL;
use super::ring::RingCopy;
use crate::latency::OpTimes;
use crate::report::Report;
use crate::stop::Stop;
use crate::stopwatch::{Deadline, timed};
use nkv::{Blocking, PutOptions};
use std::time::Duration;

/// Time for one row, and the fewest puts of a row.
const ROW: Duration = Duration::from_millis(800);
const FEWEST: u64 = 40;
/// Puts in a row before as many copies: a copy between two puts would warm the caches.
const BLOCK: usize = 32;
/// Most bytes of one block.
const BLOCK_BYTES: usize = 16 << 20;
/// Pause between two isolated puts, and between two of which every poller is asleep again.
const ISOLATED: Duration = Duration::from_millis(1);
const IDLE: Duration = Duration::from_millis(5);
/// Puts of a row with pauses.
const APART: u64 = 200;
/// Puts by plans, removed afterwards.
const PLANNED: u64 = 4000;

/// Rows of one size, by the log or by plans. Those by plans are measured first: after puts through
/// the log, their keys are still sent to the owner and the master for seconds.
pub(super) fn measure(
    handle: &Blocking,
    walk: &mut RingCopy,
    (size, log): (usize, bool),
    stop: &Stop,
    report: &mut Report,
) {
    let run_id = nkv_store::random_u64();
    let mut puts = Puts { handle, walk, size, log, run_id, step: 0, report, removed: Vec::new() };
    // Attaches, and touches pages.
    (0..2 * BLOCK).for_each(|_| _ = puts.put());
    let (busy, most, apart, pause) = match log {
        true => ("put log busy", u64::MAX, "put log isolated", ISOLATED),
        false => ("put plan busy", PLANNED, "put plan idle", IDLE),
    };
    let times = puts.blocks(busy, most, stop);
    puts.report.measured(times);
    if size == SMALL {
        let times = puts.apart(apart, pause, stop);
        puts.report.measured(times);
    }
    // Puts that found the log full may fill the heap.
    puts.report.tally.remove(handle, &puts.removed, true);
}

struct Puts<'a> {
    handle: &'a Blocking,
    walk: &'a mut RingCopy,
    size: usize,
    /// The wanted path.
    log: bool,
    run_id: u64,
    step: usize,
    report: &'a mut Report,
    /// Those to remove in the end: only they took a plan.
    removed: Vec<Vec<u8>>,
}

impl Puts<'_> {
    /// Puts once; returns nanoseconds if the put took the wanted path.
    fn put(&mut self) -> Option<u64> {
        let key = format!("budgets/{:016x}/{}", self.run_id, self.step).into_bytes();
        let value = self.walk.value(self.size, self.step);
        self.step += 1;
        let opts = PutOptions::default().device_alloc(self.log);
        let before = self.handle.client().write_counters().by_log;
        let (outcome, ns) = timed(|| self.handle.put(&key, value, &opts));
        let went = self.handle.client().write_counters().by_log > before;
        if let Err(error) = outcome {
            self.report.tally.failed("put", &key, &error);
            return None;
        }
        if !went {
            self.removed.push(key);
        }
        (went == self.log).then_some(ns)
    }

    fn copy(&mut self) -> u64 {
        let ns = self.walk.copy_in(self.size, self.step);
        self.step += 1;
        ns
    }

    /// Times puts back to back, in blocks.
    fn blocks(&mut self, op: &'static str, most: u64, stop: &Stop) -> OpTimes {
        let mut times = OpTimes::new(op, self.size as u64);
        let block = (BLOCK_BYTES / self.size).clamp(1, BLOCK);
        let deadline = Deadline::after(ROW);
        while !stop.asked()
            && times.count() < most
            && (!deadline.passed() || times.count() < FEWEST)
        {
            let done: Vec<u64> = (0..block).filter_map(|_| self.put()).collect();
            if done.is_empty() && deadline.passed() {
                break;
            }
            done.into_iter().for_each(|ns| times.record(ns));
            (0..block).for_each(|_| times.record_memcpy(self.copy()));
        }
        times
    }

    /// Times puts with a pause before each.
    fn apart(&mut self, op: &'static str, pause: Duration, stop: &Stop) -> OpTimes {
        let mut times = OpTimes::new(op, self.size as u64);
        for _ in 0..APART {
            if stop.asked() {
                break;
            }
            Deadline::after(pause).sleep(stop);
            self.put().into_iter().for_each(|ns| times.record(ns));
            Deadline::after(pause).sleep(stop);
            times.record_memcpy(self.copy());
        }
        times
    }
}
