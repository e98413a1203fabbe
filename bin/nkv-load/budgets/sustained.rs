//! Puts and gets of 1 MiB and more over sockets: one at a time, and several in one call, for a
//! comparison with the stream of bytes of iperf3. The rate that counts is bytes per time spent.

use super::LARGE;
use crate::content::Verdict;
use crate::latency::OpTimes;
use crate::memcpy::faulted;
use crate::report::Report;
use crate::status::ended;
use crate::stop::Stop;
use crate::stopwatch::{Deadline, timed};
use anyhow::Context;
use nkv::{Blocking, PutOptions};
use nkv_programs::exit;
use nkv_programs::sizes::show_bytes;
use std::time::Duration;

/// Bytes of one batch.
const BATCH_BYTES: usize = 64 << 20;
/// Batches put one after the other, then read one after the other, without a pause: after one of 50
/// ms a bare loop of sends and receives moves a third of what it moved before. At most this share
/// of the heap.
const BATCHES: usize = 16;
const SHARE_OF_HEAP: u64 = 2;
/// The first batches follow a pause, and are not counted.
const FIRST: usize = 2;
const FEWEST: usize = 4;
/// More than twice the default quarantine.
const SETTLE: Duration = Duration::from_millis(150);

/// Rows of every size.
///
/// # Errors
/// If a put or a get fails, or the heap is too small.
pub(super) fn measure(handle: &Blocking, stop: &Stop, report: &mut Report) -> anyhow::Result<()> {
    // The last batch has other bytes than the earlier ones, so a read of stale bytes would be
    // found.
    let sources = [0, 1].map(|of| {
        let mut bytes = faulted(BATCH_BYTES);
        crate::content::Stream::of(b"sustained", of).fill(&mut bytes);
        bytes
    });
    let mut target = faulted(BATCH_BYTES);
    let batches = room(handle)?;
    let run_id = nkv_store::random_u64();
    for size in LARGE {
        for ops in [["put", "get"], ["put batch", "get batch"]] {
            let mut rows = ops.map(|op| OpTimes::new(op, size as u64));
            let name = |i: usize| format!("budgets/{run_id:016x}/{size}/{}/{i}", ops[0]);
            let names: Vec<_> = (0..batches * (BATCH_BYTES / size)).map(name).collect();
            let names: Vec<&[u8]> = names.iter().map(String::as_bytes).collect();
            let single = ops[0] == "put";
            let of = |i: usize| &sources[usize::from(i + 1 == batches)];
            for (i, keys) in names.chunks(BATCH_BYTES / size).enumerate() {
                put(handle, (keys, of(i)), single, (i >= FIRST).then_some(&mut rows[0]))?;
                if stop.asked() {
                    return Ok(());
                }
            }
            for (i, keys) in names.chunks(BATCH_BYTES / size).enumerate() {
                get(handle, (keys, &mut target), single, &mut rows[1])?;
                if i == 0 || i + 1 == batches {
                    report.tally.compared(keys[0], Verdict::of(&target, of(i)));
                }
                if stop.asked() {
                    return Ok(());
                }
            }
            rows.into_iter().for_each(|times| report.measured(times));
            if let Some(error) = handle.remove_many(&names).into_iter().find_map(Result::err) {
                return Err(anyhow::Error::new(error).context("remove"));
            }
            Deadline::after(SETTLE).sleep(stop);
            if stop.asked() {
                return Ok(());
            }
        }
    }
    Ok(())
}

/// How many batches fit in the heap at once.
fn room(handle: &Blocking) -> anyhow::Result<usize> {
    let view = handle.membership()?;
    let (info, _) = view.ranks.first().context("the cluster has no ranks")?;
    let fit = (info.layout.arena.len / SHARE_OF_HEAP) as usize / BATCH_BYTES;
    if fit < FEWEST {
        let why = format!(
            "the node leaves {} to plans: these rows need {}, so start it with --heap-bytes of \
             --log-bytes and that",
            show_bytes(info.layout.arena.len),
            show_bytes((FEWEST * BATCH_BYTES) as u64 * SHARE_OF_HEAP)
        );
        return Err(ended(exit::NO_ROOM, why));
    }
    Ok(fit.min(BATCHES))
}

/// Puts a batch, one object at a time or all in one call.
pub(super) fn put(
    handle: &Blocking,
    (keys, source): (&[&[u8]], &[u8]),
    single: bool,
    mut times: Option<&mut OpTimes>,
) -> anyhow::Result<()> {
    let opts = PutOptions::default();
    let values = source.chunks_exact(source.len() / keys.len());
    let items: Vec<(&[u8], &[u8])> = keys.iter().copied().zip(values).collect();
    for items in items.chunks(if single { 1 } else { keys.len() }) {
        let (outcome, ns) = timed(|| match items {
            [(key, value)] if single => handle.put(key, value, &opts),
            _ => handle.put_many(items, &opts).into_iter().collect(),
        });
        outcome?;
        times.iter_mut().for_each(|t| t.record_batch(ns, items.len() as u64));
    }
    Ok(())
}

/// Reads a batch the same way.
pub(super) fn get(
    handle: &Blocking,
    (keys, target): (&[&[u8]], &mut [u8]),
    single: bool,
    times: &mut OpTimes,
) -> anyhow::Result<()> {
    let size = target.len() / keys.len();
    let mut wanted: Vec<(&[u8], &mut [u8])> =
        keys.iter().copied().zip(target.chunks_exact_mut(size)).collect();
    for wanted in wanted.chunks_mut(if single { 1 } else { keys.len() }) {
        let items = wanted.len() as u64;
        let (outcome, ns) = timed(|| match wanted {
            [(key, dst)] if single => handle.get_into(key, dst).map(|_| ()),
            _ => handle.get_many_into(wanted).into_iter().try_for_each(|read| read.map(|_| ())),
        });
        outcome?;
        times.record_batch(ns, items);
    }
    Ok(())
}
