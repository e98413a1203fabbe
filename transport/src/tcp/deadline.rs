//! By when something between the two ends must be done, in total. The stall limit alone can be
//! stretched without end by a byte now and then; this cannot.

use nkv_store::clock::{BootClock, Clock};

/// A peer that moves less than this per millisecond (1 MiB/s), averaged over a request, is no peer
/// to wait for: far below any network that this is for.
const MIN_BYTES_PER_MS: u64 = 1 << 10;

/// A moment, and how long it was ahead when it was set.
#[derive(Debug, Clone, Copy)]
pub(super) struct Deadline {
    until_ns: u64,
    pub limit_ms: u64,
}

impl Deadline {
    /// For a connection between requests.
    pub(super) const NEVER: Deadline = Deadline { until_ns: u64::MAX, limit_ms: u64::MAX };

    /// So many milliseconds from now.
    pub(super) fn after_ms(limit_ms: u64) -> Self {
        let until_ns = BootClock.now_ns().saturating_add(limit_ms.saturating_mul(1_000_000));
        Self { until_ns, limit_ms }
    }

    /// What `bytes` take at the lowest rate allowed, on top of one stall.
    pub(super) fn for_bytes(stall_ms: u64, bytes: u64) -> Self {
        Self::after_ms(stall_ms.saturating_add(bytes / MIN_BYTES_PER_MS))
    }

    /// The earlier of this and so many milliseconds from now.
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
