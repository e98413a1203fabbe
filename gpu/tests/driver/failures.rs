//! Calls that fail.

use crate::start::{Ended, Start};
use crate::task::{self, Done, Tasks};
use nkv_store::Memory;
use std::collections::BTreeMap;

/// See `task`.
pub fn tasks() -> Tasks {
    &[("failed_flush", failed_flush)]
}

/// What gives something back is called by a drop, which has nobody to return an error to: it is
/// still there then, with what depends on it.
const GIVE_BACK: [&str; 14] = [
    "cuCtxPopCurrent_v2",
    "cuDevicePrimaryCtxRelease_v2",
    "cuEventDestroy_v2",
    "cuEventSynchronize",
    "cuIpcCloseMemHandle",
    "cuMemAddressFree",
    "cuMemFreeHost",
    "cuMemFree_v2",
    "cuMemHostUnregister",
    "cuMemRelease",
    "cuMemUnmap",
    "cuModuleUnload",
    "cuStreamDestroy_v2",
    "cuMemGetHandleForAddressRange",
];

/// The name that an error has for the call, without the suffix of its version.
fn shown(symbol: &str) -> &str {
    symbol.trim_end_matches("_v2")
}

pub fn each_call_that_fails_is_a_clear_error_and_nothing_is_left() {
    let good = Start::task("everything").run().good();
    let mut seen = BTreeMap::<&str, u64>::new();
    for symbol in &good.calls {
        let nth = seen.entry(symbol).or_default();
        *nth += 1;
        let failure = format!("{symbol}:{nth}:999");
        let failing = Start::task("everything").env("MOCK_CUDA_FAIL", &failure);
        check(symbol, &failure, &failing.env("MOCK_CUDA_DELAY_US", "20").run());
    }
    assert!(seen.len() > 30, "only {} calls were made: {seen:?}", seen.len());
    println!("{} calls of {} symbols failed in turn", good.calls.len(), seen.len());
}

fn check(symbol: &str, failure: &str, ended: &Ended) {
    let Ended { good, text, left, .. } = ended;
    assert!(!text.contains("panicked"), "{failure}: {text}");
    if *good {
        // A context that cannot be made current can stop a drop, too: of a stream with its event
        // and pinned memory. So can the stream itself.
        let dropping = ["cuCtxPushCurrent_v2", "cuStreamSynchronize"].contains(&symbol);
        assert!(dropping || GIVE_BACK.contains(&symbol), "{failure} was not noticed: {text}");
        assert!(ended.left_in_all() <= 3, "{failure}: {left:?}");
        return;
    }
    assert_eq!(ended.left_in_all(), 0, "{failure} left {left:?}: {text}");
    let error = format!("error: {} failed with CUDA_ERROR_UNKNOWN (999), ", shown(symbol));
    assert!(text.contains(&error), "{failure}: {text}");
}

fn failed_flush() -> Done {
    let memory = task::vram(&task::device()?, 4096)?;
    memory.write(0, b"bytes")?;
    memory.flush();
    for refused in [memory.write(0, b"x"), memory.read(0, &mut [0]), memory.load(8).map(drop)] {
        let refused = refused.unwrap_err().to_string();
        assert!(refused.contains("cuFlushGPUDirectRDMAWrites failed"), "{refused}");
    }
    Ok(())
}

pub fn a_flush_that_fails_stops_every_later_access() {
    let failing = Start::task("failed_flush").env("MOCK_CUDA_ATTRIBUTES", "118=0");
    failing.env("MOCK_CUDA_FAIL", "cuFlushGPUDirectRDMAWrites:999").run().good();
}
