//! `--budgets`: measures the operations that have budgets, by one client of a running node, each
//! row beside plain copies of the same bytes. Copies walk memory as the operation does: as many
//! bytes, in pages of the same kind, in the same order. `scripts/bench`, not this program, compares
//! the rows with the limits.

mod batches;
mod gets;
mod producers;
mod puts;
mod ring;
mod sustained;

use crate::connection::remote;
use crate::flags::{Flags, LoadTransport};
use crate::report::Report;
use crate::status::ended;
use crate::stop::Stop;
use anyhow::{Context, bail};
use nkv::Blocking;
use nkv_programs::exit;
use nkv_programs::progress;
use nkv_programs::sizes::show_bytes;
use ring::RingCopy;

/// Sizes in bytes.
const SIZES: [usize; 6] = [4 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20];
/// The size whose latency counts.
const SMALL: usize = SIZES[0];
/// The sizes of the rows over tcp.
const LARGE: [usize; 3] = [1 << 20, 4 << 20, 16 << 20];
/// Where Linux shows the sizes of the first core's caches.
const CACHES: &str = "/sys/devices/system/cpu/cpu0/cache";

/// Measures every row.
///
/// # Errors
/// If the node cannot be reached, has too little memory for the ring, or no device log.
pub(crate) fn run(flags: &Flags, stop: &Stop, report: &mut Report) -> anyhow::Result<()> {
    let handle = remote(flags)?;
    if flags.transport == LoadTransport::Tcp {
        sustained::measure(&handle, stop, report)?;
        handle.close();
        return Ok(());
    }
    let ring_bytes = room(&handle, flags.ring())?;
    let mut walk = RingCopy::new(ring_bytes)?;
    let bar = progress::bar(2 * SIZES.len() as u64 + 2, "rows");
    puts::measure(&handle, &mut walk, (SMALL, false), stop, report);
    bar.inc(1);
    for size in SIZES {
        gets::measure(&handle, &mut walk, size, (flags, stop), report)?;
        bar.inc(1);
    }
    for size in SIZES {
        puts::measure(&handle, &mut walk, (size, true), stop, report);
        bar.inc(1);
    }
    drop(walk);
    batches::measure(&handle, stop, report)?;
    for processes in [1, 2] {
        let rates = producers::rates(flags, processes, stop, || {}, report)?;
        report.rates.extend(rates);
    }
    bar.inc(1);
    bar.finish_and_clear();
    report.facts.push(("ring", show_bytes(ring_bytes as u64)));
    handle.close();
    Ok(())
}

/// The ring in bytes: an error if it does not fit beside other objects, a warning if it fits a
/// cache.
fn room(handle: &Blocking, ring: u64) -> anyhow::Result<usize> {
    let view = handle.membership()?;
    let (info, _) = view.ranks.first().context("the cluster has no ranks")?;
    if view.ranks.len() > 1 {
        bail!("{} ranks: these rows are of a node of one rank", view.ranks.len());
    }
    if info.layout.log_slots == 0 {
        let why =
            "the node has no device log: start it with --log-bytes 1GiB, as part of --heap-bytes";
        return Err(ended(exit::NO_ROOM, why));
    }
    if ring > info.layout.arena.len / 2 {
        let (ring, heap) = (show_bytes(ring), show_bytes(info.layout.arena.len));
        let why = format!(
            "a ring of {ring}, and the node leaves {heap} to plans: start it with --heap-bytes of \
             --log-bytes and twice the ring"
        );
        return Err(ended(exit::NO_ROOM, why));
    }
    if let Some(cache) = last_level_cache()
        && cache >= ring
    {
        let (ring, cache) = (show_bytes(ring), show_bytes(cache));
        eprintln!("nkv-load: a ring of {ring} fits the cache of {cache}: cold rows are not cold");
    }
    let ring = usize::try_from(ring).context("--ring-bytes")?;
    let largest = SIZES[SIZES.len() - 1];
    if ring < largest {
        bail!("--ring-bytes: {ring} bytes hold no object of {largest}");
    }
    Ok(ring)
}

/// Bytes of the largest cache that Linux reports.
fn last_level_cache() -> Option<u64> {
    let size = |index| std::fs::read_to_string(format!("{CACHES}/index{index}/size")).ok();
    let kib = |text: String| text.trim().strip_suffix('K')?.parse::<u64>().ok();
    (0..8).map_while(size).filter_map(kib).max().map(|kib| kib << 10)
}
