//! `--bench`: one client, one operation at a time, from 4 KiB to 16 MiB, each beside a plain copy
//! in the same loop. Puts make new keys; gets read those into one reused buffer. It removes its
//! objects, and uses at most half of the smallest device log, or of what a rank leaves to plans.

use crate::connection::{heap_takes, part_for, remote, with_embedded};
use crate::content::Stream;
use crate::flags::Flags;
use crate::latency::OpTimes;
use crate::memcpy::{MemcpyBaseline, faulted};
use crate::report::Report;
use crate::stop::Stop;
use crate::stopwatch::{Deadline, timed};
use crate::tally::ErrorTally;
use nkv::{Blocking, Bytes, NodeConfig, PutOptions};
use nkv_programs::progress;
use nkv_programs::sizes::show_bytes;
use nkv_store::Buffer;
use std::time::Duration;
use tokio::runtime::Runtime;

/// Sizes in bytes, each with the operations wanted of it.
const SIZES: [(usize, usize); 6] = [
    (4 << 10, 4000),
    (64 << 10, 2000),
    (256 << 10, 1000),
    (1 << 20, 400),
    (4 << 20, 100),
    (16 << 20, 32),
];
/// Longest time for one size; six of them stay below 12 s with start and end.
const SIZE_TIME: Duration = Duration::from_millis(1500);
/// Most bytes of objects that are alive at once.
const LIVE_BYTES: u64 = 64 << 20;
/// Payload bytes of the embedded node.
const HEAP_BYTES: u64 = 256 << 20;
/// Bytes of its device log, where that is measured.
const LOG_BYTES: u64 = 256 << 20;
/// Most objects that are alive at once.
const LIVE_OBJECTS: u64 = 500;
/// Added to two quarantines while removed memory becomes free again.
const SETTLE: Duration = Duration::from_millis(10);

/// Measures every size.
///
/// # Errors
/// If no node can be started or reached.
pub(crate) fn run(flags: &Flags, rt: &Runtime, stop: &Stop) -> anyhow::Result<Report> {
    if flags.connect.is_some() {
        return measure(&remote(flags)?, flags, stop);
    }
    let config = NodeConfig {
        heap_bytes: HEAP_BYTES + LOG_BYTES,
        log_bytes: Some(LOG_BYTES),
        device_alloc: !flags.by_plan,
        data_stripes: usize::from(flags.data_stripes),
        get_pool_bytes: flags.get_pool_bytes,
        ..NodeConfig::default()
    };
    let mut report = with_embedded(rt, 1, config, |cluster| {
        measure(&cluster.client().blocking()?, flags, stop)
    })?;
    report.facts.push(("ranks", "1, embedded in the generator's process".to_string()));
    report.facts.push(("heap of a rank", show_bytes(HEAP_BYTES)));
    Ok(report)
}

fn measure(handle: &Blocking, flags: &Flags, stop: &Stop) -> anyhow::Result<Report> {
    let view = handle.membership()?;
    let largest = SIZES.iter().map(|(size, _)| *size as u64).max().unwrap_or(0);
    heap_takes(&view, flags, (largest, "the largest object of --bench"))?;
    let heaps = || view.ranks.iter().map(|(info, _)| info);
    let live_bytes = |size| {
        let parts = heaps().map(|info| part_for(info, flags, size as u64) / 2);
        parts.min().unwrap_or(LIVE_BYTES).min(LIVE_BYTES)
    };
    let quarantine_ms = heaps().map(|i| i.layout.quarantine_ms).max().unwrap_or(0);
    let settle = SETTLE + Duration::from_millis(2 * u64::from(quarantine_ms));
    let bar = progress::bar(SIZES.len() as u64, "sizes");
    let mut report = Report::default();
    let mut rows = (Vec::new(), Vec::new());
    let run_id = nkv_store::random_u64();
    for (size, wanted) in SIZES {
        let mut bench = OneSize::new(handle, flags, run_id, size, live_bytes(size));
        bench.measure(wanted, settle, stop);
        report.blocks += bench.gets.count();
        report.hit_blocks += bench.gets.count();
        report.tally.merge(bench.tally);
        rows.0.push(bench.puts);
        rows.1.push(bench.gets);
        bar.inc(1);
    }
    bar.finish_and_clear();
    handle.close();
    rows.0.into_iter().chain(rows.1).for_each(|times| report.measured(times));
    Ok(report)
}

/// The measurement of one size.
struct OneSize<'a> {
    handle: &'a Blocking,
    flags: &'a Flags,
    run_id: u64,
    size: usize,
    /// Objects alive at once.
    live: usize,
    source: Buffer,
    target: Buffer,
    baseline: MemcpyBaseline,
    puts: OpTimes,
    gets: OpTimes,
    compared: bool,
    tally: ErrorTally,
}

impl<'a> OneSize<'a> {
    fn new(
        handle: &'a Blocking,
        flags: &'a Flags,
        run_id: u64,
        size: usize,
        live_bytes: u64,
    ) -> Self {
        let live = (live_bytes / size as u64).clamp(1, LIVE_OBJECTS) as usize;
        let mut source = faulted(size);
        contents(size).fill(&mut source);
        Self {
            handle,
            flags,
            run_id,
            size,
            live,
            source,
            target: faulted(size),
            baseline: MemcpyBaseline::new(size, live),
            puts: OpTimes::new("put", size as u64),
            gets: OpTimes::new("get", size as u64),
            compared: false,
            tally: ErrorTally::default(),
        }
    }

    /// Rounds of new keys until `wanted` operations are done or the time is over. The first round
    /// is not recorded: it attaches segments, connects and touches memory.
    fn measure(&mut self, wanted: usize, settle: Duration, stop: &Stop) {
        let deadline = Deadline::after(SIZE_TIME);
        let mut round = 0;
        while round < 2 || (self.gets.count() < wanted as u64 && !deadline.passed()) {
            if stop.asked() {
                return;
            }
            let names = 0..self.live.min(wanted);
            let keys: Vec<Vec<u8>> = names
                .map(|i| format!("bench/{:016x}/{}/{round}/{i}", self.run_id, self.size).into())
                .collect();
            self.round(&keys, round > 0);
            Deadline::after(settle).sleep(stop);
            round += 1;
        }
    }

    fn round(&mut self, keys: &[Vec<u8>], recorded: bool) {
        for (index, key) in keys.iter().enumerate() {
            std::thread::sleep(self.flags.pause());
            let (outcome, ns) =
                timed(|| self.handle.put(key, &self.source, &PutOptions::default()));
            let copy_ns = self.baseline.copy_in(index, &self.source);
            match outcome {
                Ok(()) if recorded => {
                    self.puts.record(ns);
                    self.puts.record_memcpy(copy_ns);
                }
                Ok(()) => {}
                Err(error) => self.tally.failed("put", key, &error),
            }
        }
        for (index, key) in keys.iter().enumerate() {
            self.get(index, key, recorded);
        }
        self.tally.remove(self.handle, keys, false);
    }

    fn get(&mut self, index: usize, key: &[u8], recorded: bool) {
        std::thread::sleep(self.flags.pause());
        let mut own: Option<Bytes> = None;
        let (outcome, ns) = timed(|| match self.flags.to_bytes {
            true => self.handle.get(key).map(|bytes| own.insert(bytes).len()),
            false => self.handle.get_into(key, &mut self.target),
        });
        match outcome {
            Ok(read) => {
                if recorded {
                    self.gets.record(ns);
                }
                let found = own.as_deref().unwrap_or(&self.target);
                // Compared once, before the copy overwrites what was read.
                if !self.compared || read != self.size {
                    self.compared = true;
                    let verdict = contents(self.size).verify(found, read, self.size);
                    self.tally.compared(key, verdict);
                }
            }
            Err(error) => self.tally.failed("get", key, &error),
        }
        drop(own);
        let copy_ns = self.baseline.copy_out(index, &mut self.target);
        if recorded {
            self.gets.record_memcpy(copy_ns);
        }
    }
}

/// All objects of one size have the same contents and different keys.
fn contents(size: usize) -> Stream {
    Stream::of(b"bench", size as u64)
}
