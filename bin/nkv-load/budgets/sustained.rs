//! Puts and gets of 1 MiB and more over sockets: one at a time, and several in one call, as a stream of
//! bytes goes that is held against iperf3. The rate that counts is bytes per time spent.

use super::{LARGE, row};
use crate::content::Verdict;
use crate::latency::OpTimes;
use crate::memcpy::faulted;
use crate::report::Report;
use crate::stop::Stop;
use crate::stopwatch::{Deadline, timed};
use anyhow::bail;
use nkv::Blocking;
use nkv::message::PutOptions;
use nkv::store::Buffer;
use std::time::Duration;

/// Bytes of one batch.
const BATCH_BYTES: usize = 64 << 20;
/// Time for the rows of one size, and the fewest batches of each.
const SIZE_TIME: Duration = Duration::from_millis(3000);
const FEWEST: usize = 4;
/// Twice the quarantine that a node has by default, and some more.
const SETTLE: Duration = Duration::from_millis(150);

/// Rows of every size.
///
/// # Errors
/// If something cannot be put or read.
pub(super) fn measure(handle: &Blocking, stop: &Stop, report: &mut Report) -> anyhow::Result<()> {
    let source: Buffer = {
        let mut bytes = faulted(BATCH_BYTES);
        crate::content::Stream::of(b"sustained", 0).fill(&mut bytes);
        bytes
    };
    let mut target = faulted(BATCH_BYTES);
    let run_id = nkv_store::random_u64();
    for size in LARGE {
        let bytes = size as u64;
        let mut rows = ["put", "put batch", "get", "get batch"].map(|op| OpTimes::new(op, bytes));
        let deadline = Deadline::after(SIZE_TIME);
        let mut round = 0;
        while !stop.asked() && (round <= FEWEST || !deadline.passed()) {
            let name = |i| format!("budgets/{run_id:016x}/{size}/{round}/{i}").into_bytes();
            let keys: Vec<Vec<u8>> = (0..BATCH_BYTES / size).map(name).collect();
            target.fill(0);
            let times = (round > 0).then_some(&mut rows);
            one_round(handle, &keys, (&source, &mut target), round % 2 == 0, times)?;
            if round == 0 {
                report.tally.compared(&keys[0], Verdict::of(&target, &source));
            }
            let names: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
            if let Some(error) = handle.remove_many(&names).into_iter().find_map(Result::err) {
                bail!("remove: {error}");
            }
            Deadline::after(SETTLE).sleep(stop);
            round += 1;
        }
        rows.into_iter().for_each(|times| row(report, times));
    }
    Ok(())
}

/// Puts all, one by one or in one call, and reads all the same way.
fn one_round(
    handle: &Blocking,
    keys: &[Vec<u8>],
    (source, target): (&[u8], &mut [u8]),
    single: bool,
    mut rows: Option<&mut [OpTimes; 4]>,
) -> anyhow::Result<()> {
    let (opts, size) = (PutOptions::default(), source.len() / keys.len());
    let mut record = |row: usize, ns, items| {
        if let Some(rows) = &mut rows {
            rows[row].record_batch(ns, items);
        }
    };
    let values = source.chunks_exact(size);
    if single {
        for (key, value) in keys.iter().zip(values) {
            let (outcome, ns) = timed(|| handle.put(key, value, &opts));
            outcome?;
            record(0, ns, 1);
        }
        for (key, dst) in keys.iter().zip(target.chunks_exact_mut(size)) {
            let (outcome, ns) = timed(|| handle.get_into(key, dst));
            outcome?;
            record(2, ns, 1);
        }
        return Ok(());
    }
    let items: Vec<(&[u8], &[u8])> = keys.iter().map(Vec::as_slice).zip(values).collect();
    let (outcome, ns) = timed(|| handle.put_many(&items, &opts));
    outcome.into_iter().collect::<Result<Vec<_>, _>>()?;
    record(1, ns, keys.len() as u64);
    let mut wanted: Vec<(&[u8], &mut [u8])> =
        keys.iter().map(Vec::as_slice).zip(target.chunks_exact_mut(size)).collect();
    let (outcome, ns) = timed(|| handle.get_many_into(&mut wanted));
    outcome.into_iter().collect::<Result<Vec<_>, _>>()?;
    record(3, ns, keys.len() as u64);
    Ok(())
}
