//! Time in this program: differences of one clock, in nanoseconds, and deadlines that bound a run.
//! Sleeps are cut into short slices, so that an interrupt is noticed.

use crate::stop::Stop;
use nkv_store::clock::{BootClock, Clock};
use std::time::Duration;

/// Longest sleep between two checks of the stop flag.
const SLICE: Duration = Duration::from_millis(20);

/// Now, in nanoseconds of a clock that never goes back.
pub(crate) fn now_ns() -> u64 {
    BootClock.now_ns()
}

/// Runs `work`; returns its result and the nanoseconds it took.
pub(crate) fn timed<T>(work: impl FnOnce() -> T) -> (T, u64) {
    let start = now_ns();
    let result = work();
    (result, now_ns().saturating_sub(start))
}

/// A deadline.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Deadline {
    start_ns: u64,
    length_ns: u64,
}

impl Deadline {
    /// The deadline `length` from now.
    pub(crate) fn after(length: Duration) -> Self {
        let length_ns = u64::try_from(length.as_nanos()).unwrap_or(u64::MAX);
        Self { start_ns: now_ns(), length_ns }
    }

    /// Whether it has passed.
    pub(crate) fn passed(self) -> bool {
        now_ns().saturating_sub(self.start_ns) >= self.length_ns
    }

    /// Milliseconds from its creation to the deadline.
    pub(crate) fn length_ms(self) -> u64 {
        self.length_ns / 1_000_000
    }

    /// Milliseconds since its creation, at most its length.
    pub(crate) fn elapsed_ms(self) -> u64 {
        now_ns().saturating_sub(self.start_ns).min(self.length_ns) / 1_000_000
    }

    /// Sleeps until it has passed, or until `stop` is asked for.
    pub(crate) fn sleep(self, stop: &Stop) {
        while !stop.asked() {
            let passed = now_ns().saturating_sub(self.start_ns);
            if passed >= self.length_ns {
                return;
            }
            std::thread::sleep(Duration::from_nanos(self.length_ns - passed).min(SLICE));
        }
    }
}
