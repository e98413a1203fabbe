//! `--pour`: one producer that puts objects of 4 KiB into the device log as fast as it can, from
//! the moment at which a line arrives on standard input. It measures the rate, not the latency.

use crate::connection::remote;
use crate::flags::Flags;
use crate::memcpy::faulted;
use crate::report::{Rate, Report};
use crate::stop::Stop;
use crate::stopwatch::{Deadline, now_ns};
use anyhow::Context;
use nkv::PutOptions;
use std::io::Write;

const SIZE: usize = 4 << 10;
/// Bytes of the buffer from which values are taken in turn.
const SOURCE: usize = 16 << 20;
/// Puts between two reads of the clock.
const PUTS: usize = 64;
/// Uncounted first puts if there is no log whose size decides; the first one attaches.
const FIRST: u64 = 256;

/// Puts for the seconds that `--pour` gives.
///
/// # Errors
/// If the node cannot be reached, or standard input ends before a line.
pub(crate) fn run(flags: &Flags, stop: &Stop) -> anyhow::Result<Report> {
    let length = flags.pour.context("--pour SECONDS")?;
    let handle = remote(flags)?;
    let source = faulted(SOURCE);
    let opts = PutOptions::default().device_alloc(true);
    let mut report = Report::default();
    let mut key = [0; 32];
    key[..8].copy_from_slice(&nkv_store::random_u64().to_le_bytes());
    let mut step = 0u64;
    let mut put = |report: &mut Report| {
        key[8..16].copy_from_slice(&step.to_le_bytes());
        let at = step as usize * SIZE % SOURCE;
        step += 1;
        if let Err(error) = handle.put(&key, &source[at..at + SIZE], &opts) {
            report.tally.failed("put", &key, &error);
        }
    };
    // One lap of the log: after it every page is mapped in this process, as in a producer that has
    // run for a while.
    let ranks = handle.membership()?.ranks;
    let lap =
        ranks.iter().filter_map(|(info, _)| info.layout.device_log()).map(|log| log.log_bytes());
    let first = lap.max().map_or(FIRST, |bytes| bytes / SIZE as u64);
    (0..first).for_each(|_| put(&mut report));
    println!("ready");
    std::io::stdout().flush()?;
    let mut line = String::new();
    if std::io::stdin().read_line(&mut line)? == 0 {
        let why = "--pour waits for a line on standard input, and there is none";
        return Err(crate::status::ended(nkv_programs::exit::LOCAL, why));
    }
    let before = handle.client().write_counters();
    let (start, deadline) = (now_ns(), Deadline::after(length));
    while !deadline.passed() && !stop.asked() && report.tally.failed == 0 {
        (0..PUTS).for_each(|_| put(&mut report));
        report.requests += PUTS as u64;
    }
    let seconds = now_ns().saturating_sub(start).max(1) as f64 / 1e9;
    let after = handle.client().write_counters();
    let paths =
        [("put log", after.by_log - before.by_log), ("put plan", after.by_plan - before.by_plan)];
    for (op, count) in paths {
        report.rates.push(Rate { op: op.into(), processes: 1, per_s: count as f64 / seconds });
    }
    handle.close();
    Ok(report)
}
