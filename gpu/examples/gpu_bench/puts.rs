//! Puts by `nkv_log_put` into a log in VRAM. This program acts as an owner that has always made
//! room: the limit is never reached.

use crate::gather::{Plain, seconds_each};
use crate::segment::Headers;
use crate::{Bench, Done};
use cudarc::driver::sys;
use nkv_gpu::kernels::{
    LaunchOptions, LaunchStream, LogAddresses, LogPutObject, LogPutStatus, Span,
};
use nkv_gpu::vram::{DeviceRange, Vram, VramMemory};
use nkv_store::Memory;
use nkv_store::layout::HEADER_BYTES;
use std::sync::Arc;

const UNIT: u64 = 4096;

fn case(bench: &Bench, log_bytes: u64, bytes: u64, count: u64, times: u64) -> Done {
    // The claim word has the first page, as in a segment.
    let log_vram = Arc::new(Vram::allocate(&bench.device, UNIT + log_bytes)?);
    let source = Arc::new(Vram::allocate(&bench.device, bytes * count)?);
    let slots = log_bytes / UNIT;
    // A slot more, for the limit.
    let headers = Headers::new(bench, slots + 1)?;
    headers.memory.store(slots * HEADER_BYTES, log_bytes << 20)?;
    let words = VramMemory::new(log_vram.clone())?;
    words.store(0, 0)?;
    let log = LogAddresses {
        bump: log_vram.address(),
        limit: headers.address(slots),
        headers: headers.address(0),
        payload: log_vram.address() + UNIT,
        offset: UNIT,
        log_bytes,
    };
    let object = |n: u64| LogPutObject {
        src: source.address() + n * bytes,
        bytes,
        claim_bytes: bytes.next_multiple_of(UNIT),
        key_hash: n,
        key_check: !n,
        n_pages: 1,
        page_size: bytes as u32,
    };
    let objects: Vec<_> = (0..count).map(object).collect();
    let (stream, read) = (LaunchStream::own(&bench.device)?, [Span::of(&*source)]);
    let put = |_| -> Done {
        let options = LaunchOptions::default();
        // SAFETY: all of it is mapped until the launch was waited for; no one else claims.
        let launch =
            unsafe { bench.kernels.log_put(&stream, options, &log, 1000, &objects, &read)? };
        let outcomes = launch.wait()?;
        let stored = outcomes.iter().filter(|o| o.status == LogPutStatus::Stored).count();
        // One that crosses the log's end four times is possible, and no error.
        if (stored as u64) < count / 2 {
            return Err(format!("{stored} of {count} objects are stored").into());
        }
        Ok(())
    };
    let ours = seconds_each(times, put, || Ok(()))?;
    let plain = Plain::new()?;
    let copy = |_| -> Done {
        let (to, from, len) = (log_vram.address() + UNIT, source.address(), bytes * count);
        // SAFETY: both are mapped until the stream was waited for.
        unsafe { sys::cuMemcpyDtoDAsync_v2(to, from, len as usize, plain.0).result()? };
        Ok(())
    };
    let whole = seconds_each(times, copy, || plain.wait())?;
    let size = bytes >> 10;
    let name = format!("nkv_log_put, {count} objects of {size} KiB a launch");
    bench.lines.figure(&name, "puts/s", count as f64 / ours, None);
    let rate = |seconds: f64| (bytes * count) as f64 / 1e9 / seconds;
    let against = Some(("one cuMemcpyDtoDAsync", rate(whole)));
    bench.lines.figure(&name, "GB/s", rate(ours), against);
    Ok(())
}

/// A few puts.
pub fn some(bench: &Bench) -> Done {
    case(bench, 64 * UNIT, UNIT, 8, 2)
}

/// See the file's first paragraph.
pub fn puts(bench: &Bench) -> Done {
    let log = bench.either(1 << 30, 1 << 20);
    for (bytes, count) in
        bench.either([(4 << 10, 4096), (512 << 10, 512)], [(4 << 10, 16), (64 << 10, 4)])
    {
        case(bench, log, bytes, count, bench.either(20, 2))?;
    }
    // One at a time: the time of a put.
    case(bench, log, 4 << 10, 1, bench.either(2_000, 5))
}
