//! Limits the log lines about one event that others can repeat at will: at most [`LINES`] per
//! window, then only a count, so that repeating it cannot fill the disk.

use std::sync::{Mutex, PoisonError};

/// Lines per window; further ones are only counted.
pub const LINES: u64 = 8;
/// Length of a window in milliseconds.
const WINDOW_MS: u64 = 1_000;

/// A rate limiter for one kind of log line.
#[derive(Debug, Default)]
pub struct LogLines(Mutex<Window>);

#[derive(Debug, Default, Clone, Copy)]
struct Window {
    since_ms: u64,
    lines: u64,
    unsaid: u64,
}

impl LogLines {
    /// None if all lines of this window are used. Else the next line may be written, and the number
    /// is how many were suppressed before it.
    pub fn next(&self, now_ms: u64) -> Option<u64> {
        // Holds only numbers, so the content is valid also after a panic.
        let mut window = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if now_ms.saturating_sub(window.since_ms) >= WINDOW_MS {
            *window = Window { since_ms: now_ms, lines: 0, unsaid: window.unsaid };
        }
        if window.lines == LINES {
            window.unsaid += 1;
            return None;
        }
        window.lines += 1;
        Some(std::mem::take(&mut window.unsaid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_a_bounded_number_of_lines_and_a_count() {
        let log = LogLines::default();
        let lines = (0..1_000).filter(|_| log.next(5_000).is_some()).count();
        assert_eq!(lines as u64, LINES);
        assert_eq!(log.next(5_999), None);
        assert_eq!(log.next(6_000), Some(1_000 - LINES + 1));
        assert_eq!(log.next(6_000), Some(0));
    }
}
