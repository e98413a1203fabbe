//! Refused connections: always counted, and logged within a limit, so that a peer that keeps trying
//! cannot fill the disk.

use nkv_store::clock::{BootClock, Clock};
use nkv_store::log_lines::LogLines;
use std::fmt::Display;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counter and log of one listener.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    count: AtomicU64,
    lines: LogLines,
}

impl Refusals {
    pub(super) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    pub(super) fn add(&self, from: &str, why: &dyn Display) {
        self.count.fetch_add(1, Ordering::Relaxed);
        match self.lines.next(BootClock.now_ms()) {
            Some(0) => tracing::warn!(%from, %why, "refused a connection"),
            Some(before) => {
                tracing::warn!(%from, %why, before, "refused a connection, and others before it");
            }
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn i20_a_flood_of_refusals_is_counted_one_by_one() {
        let refusals = Refusals::default();
        (0..100).for_each(|_| refusals.add("a test", &"a reason"));
        assert_eq!(refusals.count(), 100);
    }
}
