//! Puts of one size through the device log, from a cold source, each beside a copy of as many bytes
//! to cold pages; of 4 KiB also with a pause between, and by plans. A row contains only puts that
//! took the path that it names.

use super::ring::RingCopy;
use super::{SMALL, by_log, row};
use crate::latency::OpTimes;
use crate::report::Report;
use crate::stop::Stop;
use crate::stopwatch::{Deadline, timed};
use nkv::{Blocking, ErrorKind};
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

/// Rows of one size.
pub(super) fn measure(
    handle: &Blocking,
    walk: &mut RingCopy,
    size: usize,
    stop: &Stop,
    report: &mut Report,
) {
    let run_id = nkv_store::random_u64();
    let mut puts = Puts { handle, walk, size, run_id, step: 0, report, removed: Vec::new() };
    // Attaches, and touches pages.
    (0..2 * BLOCK).for_each(|_| _ = puts.put(true));
    let times = puts.blocks("put log busy", true, u64::MAX, stop);
    row(puts.report, times);
    if size == SMALL {
        let times = puts.apart("put log isolated", true, ISOLATED, stop);
        row(puts.report, times);
    }
    puts.remove_planned();
}

/// Rows of puts by plans. Measured first: after puts through the log, their keys are still sent to
/// the owner and the master for seconds.
pub(super) fn planned(handle: &Blocking, walk: &mut RingCopy, stop: &Stop, report: &mut Report) {
    let run_id = nkv_store::random_u64();
    let mut puts = Puts { handle, walk, size: SMALL, run_id, step: 0, report, removed: Vec::new() };
    (0..2 * BLOCK).for_each(|_| _ = puts.put(false));
    let times = puts.blocks("put plan busy", false, PLANNED, stop);
    row(puts.report, times);
    let times = puts.apart("put plan idle", false, IDLE, stop);
    row(puts.report, times);
    puts.remove_planned();
}

struct Puts<'a> {
    handle: &'a Blocking,
    walk: &'a mut RingCopy,
    size: usize,
    run_id: u64,
    step: usize,
    report: &'a mut Report,
    removed: Vec<Vec<u8>>,
}

impl Puts<'_> {
    /// Puts once; returns nanoseconds if the put took the wanted path.
    fn put(&mut self, log: bool) -> Option<u64> {
        let key = format!("budgets/{:016x}/{}", self.run_id, self.step).into_bytes();
        let value = self.walk.value(self.size, self.step);
        self.step += 1;
        let (opts, before) = (by_log(log), self.handle.client().write_counters().by_log);
        let (outcome, ns) = timed(|| self.handle.put(&key, value, &opts));
        let went = self.handle.client().write_counters().by_log > before;
        if let Err(error) = outcome {
            self.report.tally.failed("put", &key, &error);
            return None;
        }
        if !went {
            self.removed.push(key);
        }
        (went == log).then_some(ns)
    }

    fn copy(&mut self) -> u64 {
        let ns = self.walk.copy_in(self.size, self.step);
        self.step += 1;
        ns
    }

    /// Times puts back to back, in blocks.
    fn blocks(&mut self, op: &'static str, log: bool, most: u64, stop: &Stop) -> OpTimes {
        let mut times = OpTimes::new(op, self.size as u64);
        let block = (BLOCK_BYTES / self.size).clamp(1, BLOCK);
        let deadline = Deadline::after(ROW);
        while !stop.asked()
            && times.count() < most
            && (!deadline.passed() || times.count() < FEWEST)
        {
            let done: Vec<u64> = (0..block).filter_map(|_| self.put(log)).collect();
            if done.is_empty() && deadline.passed() {
                break;
            }
            done.into_iter().for_each(|ns| times.record(ns));
            (0..block).for_each(|_| times.record_memcpy(self.copy()));
        }
        times
    }

    /// Times puts with a pause before each.
    fn apart(&mut self, op: &'static str, log: bool, pause: Duration, stop: &Stop) -> OpTimes {
        let mut times = OpTimes::new(op, self.size as u64);
        for _ in 0..APART {
            if stop.asked() {
                break;
            }
            Deadline::after(pause).sleep(stop);
            self.put(log).into_iter().for_each(|ns| times.record(ns));
            Deadline::after(pause).sleep(stop);
            times.record_memcpy(self.copy());
        }
        times
    }

    fn remove_planned(&mut self) {
        for keys in self.removed.chunks(256) {
            let names: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
            for (key, outcome) in names.iter().zip(self.handle.remove_many(&names)) {
                // An absent key was evicted: puts that found the log full may fill the heap.
                if let Err(error) = outcome
                    && error.kind() != ErrorKind::NotFound
                {
                    self.report.tally.failed("remove", key, &error);
                }
            }
        }
    }
}
