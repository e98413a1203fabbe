//! Time in a simulation: tokio's paused clock, seen by each host through a clock with its own
//! offset that runs a little faster or slower. Like CLOCK_BOOTTIME it never goes back, and it
//! advances while a host is stopped.

use nkv_store::clock::Clock;
use tokio::time::Instant;

/// The clock of one host.
#[derive(Debug)]
pub struct HostClock {
    began: Instant,
    offset_ns: u64,
    // Parts per million by which it is fast; below a million it is slow.
    rate_ppm: u64,
}

impl HostClock {
    /// A clock that shows `offset_ns` now and runs at `rate_ppm` millionths of true time.
    pub fn new(offset_ns: u64, rate_ppm: u64) -> Self {
        Self { began: Instant::now(), offset_ns, rate_ppm }
    }
}

impl Clock for HostClock {
    fn now_ns(&self) -> u64 {
        let true_ns = self.began.elapsed().as_nanos() as u64;
        self.offset_ns + (u128::from(true_ns) * u128::from(self.rate_ppm) / 1_000_000) as u64
    }
}
