//! The run without an argument: three ranks in this process. A producer at one rank pushes objects
//! of many sizes into the memory of the rank that will decode them, which reads and compares every
//! byte. This run does not depend on the transport.

use crate::connection::with_embedded;
use crate::content::Stream;
use crate::corrupt;
use crate::flags::Flags;
use crate::latency::OpTimes;
use crate::memcpy::{MemcpyBaseline, copy_and_operation, faulted};
use crate::report::Report;
use crate::stop::Stop;
use crate::stopwatch::{Deadline, timed};
use crate::tally::ErrorTally;
use anyhow::Context;
use indicatif::MultiProgress;
use nkv::{Blocking, Cluster, Error, NodeConfig, PutOptions};
use nkv_programs::progress;
use nkv_programs::sizes::show_bytes;
use nkv_store::Buffer;
use tokio::runtime::Runtime;

/// Ranks of the cluster.
const RANKS: u32 = 3;
/// Rank whose worker produces.
const PREFILL_RANK: u32 = 0;
/// Rank that owns the objects and reads them.
const DECODE_RANK: u32 = 2;
/// Sizes of the objects in bytes.
const SIZES: [usize; 7] = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20];
/// Bytes of one size that are alive at once.
const PASS_BYTES: usize = 32 << 20;
/// Most objects of one size that are alive at once.
const PASS_OBJECTS: usize = 256;
/// Payload bytes of each rank: one pass of every size (149 MiB) stays below the upper watermark, so
/// that no pass waits for the quarantine of the one before, and nothing is evicted.
const HEAP_BYTES: u64 = 176 << 20;
/// The size whose first object is damaged on request.
const CORRUPTED_SIZE: usize = 64 << 10;

/// Runs until the time is over, each size at least once.
///
/// # Errors
/// If the cluster cannot be started.
pub(crate) fn run(flags: &Flags, rt: &Runtime, stop: &Stop) -> anyhow::Result<Report> {
    let config = NodeConfig { heap_bytes: HEAP_BYTES, ..NodeConfig::default() };
    with_embedded(rt, RANKS, config, |cluster| load(flags, cluster, stop))
}

fn load(flags: &Flags, cluster: &Cluster, stop: &Stop) -> anyhow::Result<Report> {
    let decode_rank = cluster.node(DECODE_RANK);
    let mut run = Run {
        producer: cluster.node(PREFILL_RANK).client().blocking()?,
        decoder: decode_rank.client().blocking()?,
        segment: decode_rank.info().memory.name().unwrap_or_default().to_string(),
        corrupt: flags.inject_corruption,
        tally: ErrorTally::default(),
        buffer: faulted(SIZES.into_iter().max().unwrap_or(0)),
    };
    let mut sizes = SIZES.map(OneSize::new);
    let deadline = Deadline::after(flags.run_length());
    let bars = MultiProgress::new();
    let time = bars.add(progress::time(deadline.length_ms()));
    let objects =
        bars.add(progress::bar(sizes.iter().map(|s| s.keys.len() as u64).sum(), "objects"));
    let mut pass = 0;
    'run: loop {
        objects.set_position(0);
        objects.set_message(format!("pass {}", pass + 1));
        for size in &mut sizes {
            if stop.asked() || (pass > 0 && deadline.passed()) {
                break 'run;
            }
            size.pass(pass, &mut run)?;
            time.set_position(deadline.elapsed_ms());
            objects.inc(size.keys.len() as u64);
        }
        pass += 1;
    }
    bars.clear()?;
    run.producer.close();
    run.decoder.close();
    let damaged = flags.inject_corruption && !run.corrupt;
    Ok(Report { damaged, ..report(sizes, run.tally) })
}

fn report(sizes: [OneSize; SIZES.len()], tally: ErrorTally) -> Report {
    let mut report = Report {
        blocks: sizes.iter().map(|s| s.asked).sum(),
        hit_blocks: sizes.iter().map(|s| s.gets.count()).sum(),
        tally,
        facts: vec![
            ("ranks", format!("{RANKS}, embedded in the generator's process")),
            ("heap of a rank", show_bytes(HEAP_BYTES)),
            (
                "producer and owner",
                format!("rank {PREFILL_RANK} into the memory of rank {DECODE_RANK}"),
            ),
        ],
        ..Report::default()
    };
    let (puts, gets): (Vec<_>, Vec<_>) = sizes.into_iter().map(|s| (s.puts, s.gets)).unzip();
    puts.into_iter().chain(gets).for_each(|times| report.measured(times));
    report
}

/// State that all sizes share.
struct Run {
    producer: Blocking,
    decoder: Blocking,
    /// Name of the decode rank's segment.
    segment: String,
    /// Whether a byte is still to be flipped.
    corrupt: bool,
    tally: ErrorTally,
    buffer: Buffer,
}

/// The objects of one size. The same keys are used in every pass, with another version each time.
struct OneSize {
    size: usize,
    keys: Vec<Vec<u8>>,
    baseline: MemcpyBaseline,
    puts: OpTimes,
    gets: OpTimes,
    asked: u64,
}

impl OneSize {
    fn new(size: usize) -> Self {
        let objects = (PASS_BYTES / size).clamp(1, PASS_OBJECTS);
        Self {
            size,
            keys: (0..objects).map(|i| format!("load/{size}/{i}").into_bytes()).collect(),
            baseline: MemcpyBaseline::new(size, objects),
            puts: OpTimes::new("put", size as u64),
            gets: OpTimes::new("get", size as u64),
            asked: 0,
        }
    }

    /// Puts every object, reads and compares every object, removes them.
    fn pass(&mut self, version: u64, run: &mut Run) -> anyhow::Result<()> {
        for index in 0..self.keys.len() {
            self.put(index, version, run);
        }
        self.check_place(run);
        if run.corrupt && self.size == CORRUPTED_SIZE {
            let location = run.decoder.get_location(&self.keys[0])?;
            let meta = location.in_memory().context("the object is not in memory")?;
            corrupt::flip_one_byte(&run.segment, meta)?;
            run.corrupt = false;
        }
        for index in 0..self.keys.len() {
            self.get(index, version, run);
        }
        run.tally.remove(&run.producer, &self.keys, false);
        Ok(())
    }

    fn put(&mut self, index: usize, version: u64, run: &mut Run) {
        let key = &self.keys[index];
        let value = &mut run.buffer[..self.size];
        Stream::of(key, version).fill(value);
        let opts = PutOptions::default().preferred_rank(DECODE_RANK);
        for copies in copy_and_operation(index) {
            if copies {
                self.puts.record_memcpy(self.baseline.copy_in(index, value));
                continue;
            }
            let (outcome, ns) = timed(|| run.producer.put(key, value, &opts));
            match outcome {
                Ok(()) => self.puts.record(ns),
                Err(error) => run.tally.failed("put", key, &error),
            }
        }
    }

    fn get(&mut self, index: usize, version: u64, run: &mut Run) {
        let key = &self.keys[index];
        let dst = &mut run.buffer[..self.size];
        for copies in copy_and_operation(index) {
            if copies {
                self.gets.record_memcpy(self.baseline.copy_out(index, dst));
                continue;
            }
            self.asked += 1;
            let (outcome, ns) = timed(|| run.decoder.get_into(key, dst));
            match outcome {
                Ok(read) => {
                    self.gets.record(ns);
                    run.tally.compared(key, Stream::of(key, version).verify(dst, read, self.size));
                }
                Err(error) => run.tally.failed("get", key, &error),
            }
        }
    }

    /// Checks that the object is on the decode rank, which the put named; elsewhere is a failure.
    fn check_place(&self, run: &mut Run) {
        let key = &self.keys[0];
        match run.decoder.get_location(key) {
            Ok(location) if location.rank() == DECODE_RANK => {}
            Ok(location) => {
                let rank = location.rank();
                let text = format!("lies on rank {rank}, not on rank {DECODE_RANK}");
                run.tally.failed("place", key, &Error::internal(text));
            }
            Err(error) => run.tally.failed("get_location", key, &error),
        }
    }
}
