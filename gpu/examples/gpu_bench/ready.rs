//! How long after READY a kernel that waits for it has ended: two streams in one process, since two
//! processes share a GPU by turns.

use crate::segment::{Headers, Pages};
use crate::{Bench, Done};
use nkv_gpu::kernels::{LaunchOptions, LaunchStream, Reach, ScatterResult, Span};
use nkv_gpu::vram::{DeviceRange, Vram};
use nkv_store::Memory;
use nkv_store::clock::{BootClock, Clock};
use nkv_store::layout::PUBLISH_OFF;
use std::sync::Arc;

/// See the file's first paragraph. The reader copies one page of 4 KiB; the processor sees READY
/// as it polls the header.
pub fn ready(bench: &Bench) -> Done {
    let (page, rounds) = (4096, bench.either(5_000, 20));
    let (source, target) = (Pages::new(bench, 1, page)?, Pages::new(bench, 1, page)?);
    let object = Arc::new(Vram::allocate(&bench.device, page)?);
    let headers = Headers::new(bench, 1)?;
    let streams = [LaunchStream::own(&bench.device)?, LaunchStream::own(&bench.device)?];
    let options = LaunchOptions { multiprocessors: Some(1), threads: None };
    let (from, middle, to) = ([source.span()], [Span::of(&*object)], [target.span()]);
    let (out, into) = (Reach { read: &from, write: &middle }, Reach { read: &middle, write: &to });
    let (gather, scatter) = (source.gather(object.address())?, target.scatter(object.address())?);
    let mut times = Vec::new();
    for epoch in 1..=rounds {
        headers.arm(0, epoch, page)?;
        let (wanted, publish) = (headers.wanted(0, epoch, page), headers.publish(0, epoch));
        // SAFETY: all of it is mapped until both launches were waited for.
        let (reads, writes) = unsafe {
            let kernels = &bench.kernels;
            let reads = kernels.wait_scatter(&streams[0], options, wanted, &scatter, &into)?;
            let publish = kernels.gather_publish(&streams[1], options, publish, &gather, &out)?;
            (reads, publish)
        };
        let limit = BootClock.now_ns() + 10_000_000_000;
        let mut seen = None;
        let ended = loop {
            let now = BootClock.now_ns();
            if seen.is_none() && headers.memory.load(PUBLISH_OFF)? == publish.ready {
                seen = Some(now);
            }
            if seen.is_some() && reads.is_done()? {
                break BootClock.now_ns();
            }
            if now > limit {
                return Err("READY did not come within 10 s".into());
            }
        };
        times.push(ended - seen.unwrap_or(ended));
        if reads.wait()? != ScatterResult::Valid || writes.wait()? != publish.expect {
            return Err("a round without a result".into());
        }
    }
    times.sort_unstable();
    let at = |part: f64| times[((times.len() - 1) as f64 * part) as usize] as f64 / 1e3;
    for (name, part) in [("p50", 0.5), ("p99", 0.99)] {
        let name = format!("from READY at the processor to the reader's end, {name}");
        bench.lines.figure(&name, "us", at(part), None);
    }
    Ok(())
}
