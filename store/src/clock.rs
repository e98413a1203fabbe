//! The clock interface. Code that waits or measures a duration reads a [`Clock`], so that a
//! simulation can control time. Real time is CLOCK_BOOTTIME: it counts suspension, as quarantine
//! must [I8].

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Nanoseconds since an arbitrary start, never going back.
pub trait Clock: Send + Sync + std::fmt::Debug {
    /// Now, in nanoseconds.
    fn now_ns(&self) -> u64;

    /// Now, in milliseconds.
    fn now_ms(&self) -> u64 {
        self.now_ns() / 1_000_000
    }
}

/// CLOCK_BOOTTIME: the same for every process of a host.
#[derive(Debug, Clone, Copy, Default)]
pub struct BootClock;

impl Clock for BootClock {
    fn now_ns(&self) -> u64 {
        let t = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
    }
}

/// A clock that advances only by [`ManualClock::advance_ms`]: for tests and models.
#[derive(Debug, Clone, Default)]
pub struct ManualClock(Arc<AtomicU64>);

impl ManualClock {
    /// Moves time forward.
    pub fn advance_ms(&self, ms: u64) {
        self.0.fetch_add(ms * 1_000_000, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now_ns(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn real_time_is_that_of_the_system_and_manual_time_only_what_it_was_moved_by() {
        let boot = || {
            let t = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
            Duration::new(t.tv_sec.cast_unsigned(), t.tv_nsec.try_into().unwrap())
        };
        let (before, now, after) = (boot(), BootClock.now_ns(), boot());
        assert!((before.as_nanos()..=after.as_nanos()).contains(&now.into()), "{before:?} {now}");
        let clock = ManualClock::default();
        assert_eq!(clock.now_ns(), 0);
        clock.advance_ms(1_999);
        assert_eq!((clock.now_ns(), clock.now_ms()), (1_999_000_000, 1_999));
    }
}
