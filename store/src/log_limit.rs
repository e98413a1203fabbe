//! Limits log lines about conditions that last: the first line of each kind is due at once, further
//! ones once a minute. It logs nothing itself.

use std::collections::BTreeMap;

/// Shortest time between two lines of one kind.
const PAUSE_MS: u64 = 60_000;
/// Most kinds remembered; beyond it all are forgotten, and may be logged again.
const MAX_KINDS: usize = 1_024;

/// When each kind was logged last.
#[derive(Debug)]
pub struct LogLimit<K>(BTreeMap<K, u64>);

impl<K> Default for LogLimit<K> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<K: Ord> LogLimit<K> {
    /// Whether a line of this kind is due; then it counts as written.
    pub fn is_due(&mut self, kind: K, now_ms: u64) -> bool {
        if self.0.get(&kind).is_some_and(|at| now_ms < at + PAUSE_MS) {
            return false;
        }
        if self.0.len() >= MAX_KINDS {
            self.0.clear();
        }
        self.0.insert(kind, now_ms);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::{LogLimit, MAX_KINDS, PAUSE_MS};

    #[test]
    fn each_kind_is_logged_at_once_and_then_once_a_minute_and_few_are_kept() {
        let mut limit = LogLimit::default();
        let lines = (0..2 * PAUSE_MS).step_by(500).filter(|now| limit.is_due(1, *now)).count();
        assert_eq!(lines, 2);
        assert!(limit.is_due(2, 0));
        assert!((3..5_000).all(|kind| limit.is_due(kind, 0)));
        assert!(limit.0.len() <= MAX_KINDS);
    }
}
