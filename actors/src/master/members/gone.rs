//! The incarnations that may not join again [I17]: a bounded number, the latest.

use hashbrown::HashSet;
use std::collections::VecDeque;

/// Incarnations that are remembered. One is forgotten only after so many others have gone since.
const MAX_GONE: usize = 65_536;

/// See the file's first paragraph.
#[derive(Debug, Default)]
pub struct Gone {
    known: HashSet<u64>,
    in_order: VecDeque<u64>,
}

impl Gone {
    /// Remembers an incarnation; beyond [`MAX_GONE`] it forgets the one that has been gone longest.
    pub(super) fn insert(&mut self, incarnation: u64) {
        if !self.known.insert(incarnation) {
            return;
        }
        self.in_order.push_back(incarnation);
        if self.in_order.len() > MAX_GONE
            && let Some(oldest) = self.in_order.pop_front()
        {
            self.known.remove(&oldest);
        }
    }

    /// True for an incarnation that is gone.
    pub fn contains(&self, incarnation: u64) -> bool {
        self.known.contains(&incarnation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn i17_of_more_incarnations_than_are_remembered_the_latest_stay_gone() {
        let mut gone = Gone::default();
        let many = MAX_GONE as u64 + 10;
        (0..many).chain(0..many).for_each(|incarnation| {
            gone.insert(incarnation);
            assert!(gone.contains(incarnation));
        });
        assert_eq!(gone.in_order.len(), MAX_GONE);
        assert_eq!(gone.known.len(), MAX_GONE);
        assert!((10..many).all(|incarnation| gone.contains(incarnation)));
    }
}
