//! A deadline for a whole step between the two ends. The stall limit alone could be extended
//! without end by single bytes; a deadline cannot.

use nkv_store::clock::{BootClock, Clock};

/// Lowest accepted rate in bytes per millisecond (1 MiB/s), averaged over a request. A peer below
/// it is dropped; it is far below the rate of any supported network.
const MIN_BYTES_PER_MS: u64 = 1 << 10;

/// A point in time, and the limit from which it was computed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Deadline {
    until_ns: u64,
    pub limit_ms: u64,
}

impl Deadline {
    /// For a connection between requests.
    pub(super) const NEVER: Deadline = Deadline { until_ns: u64::MAX, limit_ms: u64::MAX };

    /// `limit_ms` milliseconds from now.
    pub(super) fn after_ms(limit_ms: u64) -> Self {
        let until_ns = BootClock.now_ns().saturating_add(limit_ms.saturating_mul(1_000_000));
        Self { until_ns, limit_ms }
    }

    /// The time for `bytes` at the lowest accepted rate, plus one stall limit.
    pub(super) fn for_bytes(stall_ms: u64, bytes: u64) -> Self {
        Self::after_ms(stall_ms.saturating_add(bytes / MIN_BYTES_PER_MS))
    }

    /// The earlier of this and `limit_ms` milliseconds from now.
    pub(super) fn within_ms(self, limit_ms: u64) -> Self {
        let other = Self::after_ms(limit_ms);
        if other.until_ns < self.until_ns { other } else { self }
    }

    /// Nanoseconds that are left; 0 once it has passed.
    pub(super) fn left_ns(&self) -> u64 {
        self.until_ns.saturating_sub(BootClock.now_ns())
    }

    /// True once it has passed.
    pub(super) fn is_over(&self) -> bool {
        self.until_ns != u64::MAX && self.left_ns() == 0
    }
}
