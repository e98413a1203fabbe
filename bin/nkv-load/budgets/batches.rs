//! Batches of 128 objects of 256 KiB in one call: what other clients, as the one in Python, are
//! compared with.

use super::sustained;
use crate::content::Verdict;
use crate::latency::OpTimes;
use crate::memcpy::faulted;
use crate::report::Report;
use crate::stop::Stop;
use anyhow::Context;
use nkv::Blocking;

const OBJECTS: usize = 128;
const BYTES: usize = 256 << 10;
/// Put one after the other and then read, as `scripts/peers/nkv_python.py` does; the first is not
/// counted. Fewer, of fewer objects, where a quarter of the log has no room for them.
const BATCHES: usize = 24;
const SHARE_OF_LOG: u64 = 4;

/// Two rows.
///
/// # Errors
/// If a put, a get or a remove fails.
pub(super) fn measure(handle: &Blocking, stop: &Stop, report: &mut Report) -> anyhow::Result<()> {
    let room = room(handle)?;
    let objects = (room / BYTES).clamp(1, OBJECTS);
    let batches = (room / (objects * BYTES)).clamp(2, BATCHES);
    let mut source = faulted(objects * BYTES);
    crate::content::Stream::of(b"batches", 0).fill(&mut source);
    let mut target = faulted(objects * BYTES);
    let run_id = nkv_store::random_u64();
    let name = |i: usize| format!("batches/{run_id:016x}/{i}");
    let names: Vec<_> = (0..batches * objects).map(name).collect();
    let names: Vec<&[u8]> = names.iter().map(String::as_bytes).collect();
    let mut rows = ["put batch", "get batch"].map(|op| OpTimes::new(op, BYTES as u64));
    for (i, keys) in names.chunks(objects).enumerate() {
        sustained::put(handle, (keys, &source), false, (i > 0).then_some(&mut rows[0]))?;
        if stop.asked() {
            return Ok(());
        }
    }
    for (i, keys) in names.chunks(objects).enumerate() {
        sustained::get(handle, (keys, &mut target), false, &mut rows[1])?;
        if i == 0 {
            report.tally.compared(keys[0], Verdict::of(&target, &source));
        }
        if stop.asked() {
            return Ok(());
        }
    }
    rows.into_iter().for_each(|times| report.measured(times));
    handle
        .remove_many(&names)
        .into_iter()
        .find_map(Result::err)
        .map_or(Ok(()), Err)
        .context("remove")
}

/// Bytes of the log that all batches together may take.
fn room(handle: &Blocking) -> anyhow::Result<usize> {
    let view = handle.membership()?;
    let (info, _) = view.ranks.first().context("the cluster has no ranks")?;
    Ok(usize::try_from(info.layout.log.len / SHARE_OF_LOG)?)
}
