//! Who was turned away: counted always, logged within a budget, so that somebody who knocks all day
//! fills no disk.

use nkv_store::clock::{BootClock, Clock};
use std::fmt::Display;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Lines per window; what is beyond is told as a number.
const LINES: u64 = 8;
/// A window, in milliseconds.
const WINDOW_MS: u64 = 1_000;

/// Counter and log of one door.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    count: AtomicU64,
    window: Mutex<Window>,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Window {
    since_ms: u64,
    lines: u64,
    unsaid: u64,
}

/// What to do about one refusal.
#[derive(Debug, PartialEq, Eq)]
enum Line {
    /// Log it, and that so many before it were not.
    Said { unsaid: u64 },
    /// Only count it.
    Unsaid,
}

impl Window {
    fn next(&mut self, now_ms: u64) -> Line {
        if now_ms.saturating_sub(self.since_ms) >= WINDOW_MS {
            *self = Self { since_ms: now_ms, lines: 0, unsaid: self.unsaid };
        }
        if self.lines == LINES {
            self.unsaid += 1;
            return Line::Unsaid;
        }
        self.lines += 1;
        Line::Said { unsaid: std::mem::take(&mut self.unsaid) }
    }
}

impl Refusals {
    pub(super) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    pub(super) fn add(&self, from: &str, why: &dyn Display) {
        self.count.fetch_add(1, Ordering::Relaxed);
        let line =
            self.window.lock().unwrap_or_else(PoisonError::into_inner).next(BootClock.now_ms());
        match line {
            Line::Said { unsaid: 0 } => tracing::warn!(%from, %why, "refused a connection"),
            Line::Said { unsaid } => {
                tracing::warn!(%from, %why, before = unsaid, "refused a connection, and others before it");
            }
            Line::Unsaid => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn i20_a_flood_of_refusals_is_a_bounded_number_of_lines_and_a_count() {
        let mut window = Window::default();
        let said = |window: &mut Window, now| matches!(window.next(now), Line::Said { .. });
        let lines = (0..1_000).filter(|_| said(&mut window, 5_000)).count();
        assert_eq!(lines as u64, LINES);
        assert_eq!(window.next(5_999), Line::Unsaid);
        assert_eq!(window.next(6_000), Line::Said { unsaid: 1_000 - LINES + 1 });
        assert_eq!(window.next(6_000), Line::Said { unsaid: 0 });
        let refusals = Refusals::default();
        (0..100).for_each(|_| refusals.add("a test", &"a reason"));
        assert_eq!(refusals.count(), 100);
    }
}
