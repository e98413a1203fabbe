//! Objects that are to be removed some time after their first read. The policy has them, too: until
//! they are read they are evicted in their turn.

use super::Candidate;
use crate::retention::Retention;
use hashbrown::HashMap;
use std::collections::BTreeSet;

/// A removal that was asked for is asked for again after so long: the message may be lost.
const AGAIN_MS: u64 = 2_000;

#[derive(Debug)]
struct Held {
    epoch: u32,
    ttl_ms: u64,
    /// When it is removed; None: it was not read yet.
    due_ms: Option<u64>,
}

/// See the file's first paragraph.
#[derive(Debug, Default)]
pub(super) struct UntilRead {
    held: HashMap<u32, Held>,
    /// No two have one slot.
    due: BTreeSet<(u64, u32)>,
}

impl UntilRead {
    /// A new object, which was last read at `read_ms` if it was read.
    pub(super) fn admit(&mut self, c: &Candidate, read_ms: Option<u64>) {
        let Retention::UntilRead(ttl) = c.retention else { return };
        // What is known of a first read stays.
        if self.holds(c.slot, c.epoch) {
            return read_ms.into_iter().for_each(|ms| self.read(c.slot, c.epoch, ms));
        }
        self.forget_slot(c.slot);
        let ttl_ms = ttl.as_millis() as u64;
        self.held.insert(c.slot, Held { epoch: c.epoch, ttl_ms, due_ms: None });
        read_ms.into_iter().for_each(|read_ms| self.read(c.slot, c.epoch, read_ms));
    }

    /// It was read.
    pub(super) fn read(&mut self, slot: u32, epoch: u32, now_ms: u64) {
        if let Some(held) = self.held.get_mut(&slot)
            && (held.epoch, held.due_ms) == (epoch, None)
        {
            let due_ms = now_ms.saturating_add(held.ttl_ms);
            held.due_ms = Some(due_ms);
            self.due.insert((due_ms, slot));
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    pub(super) fn holds(&self, slot: u32, epoch: u32) -> bool {
        self.held.get(&slot).is_some_and(|held| held.epoch == epoch)
    }

    /// It is gone.
    pub(super) fn forget(&mut self, slot: u32, epoch: u32) {
        if self.holds(slot, epoch) {
            self.forget_slot(slot);
        }
    }

    /// Those whose time has come, at most so many. One that is not forgotten is among them again
    /// after a while.
    pub(super) fn take_due(&mut self, now_ms: u64, most: usize) -> Vec<(u32, u32)> {
        let mut taken = Vec::new();
        while taken.len() < most
            && let Some(&(due_ms, slot)) = self.due.first()
            && due_ms <= now_ms
        {
            self.due.pop_first();
            let Some(held) = self.held.get_mut(&slot) else { continue };
            held.due_ms = Some(now_ms + AGAIN_MS);
            self.due.insert((now_ms + AGAIN_MS, slot));
            taken.push((slot, held.epoch));
        }
        taken
    }

    fn forget_slot(&mut self, slot: u32) {
        if let Some(due_ms) = self.held.remove(&slot).and_then(|held| held.due_ms) {
            self.due.remove(&(due_ms, slot));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn candidate(slot: u32, epoch: u32) -> Candidate {
        let retention = Retention::UntilRead(Duration::from_secs(3));
        Candidate { slot, epoch, bytes: 100, retention }
    }

    #[test]
    fn an_object_is_due_some_time_after_its_first_read_and_again_until_it_is_gone() {
        let mut held = UntilRead::default();
        held.admit(&candidate(0, 1), None);
        held.admit(&candidate(1, 1), None);
        held.admit(&Candidate { retention: Retention::Usual, ..candidate(2, 1) }, Some(0));
        assert_eq!(held.take_due(u64::MAX, 9), [], "none was read");
        held.read(1, 1, 1_000);
        held.read(1, 1, 2_000);
        held.read(0, 2, 1_000);
        assert_eq!(held.take_due(3_999, 9), []);
        assert_eq!(held.take_due(4_000, 9), [(1, 1)], "after the first read, of this epoch");
        assert_eq!(held.take_due(5_999, 9), []);
        assert_eq!(held.take_due(6_000, 9), [(1, 1)], "nothing was heard of it");
        held.forget(1, 2);
        assert_eq!(held.take_due(8_000, 9), [(1, 1)]);
        held.forget(1, 1);
        assert_eq!(
            (held.take_due(u64::MAX / 2, 9), held.held.len(), held.due.len()),
            (vec![], 1, 0)
        );
    }

    #[test]
    fn a_new_object_of_a_slot_begins_anew_and_one_that_was_read_before_is_due() {
        let mut held = UntilRead::default();
        held.admit(&candidate(0, 1), Some(0));
        held.admit(&candidate(1, 1), Some(1_000));
        held.admit(&candidate(2, 1), Some(500));
        held.admit(&candidate(0, 2), None);
        assert_eq!(held.take_due(9_000, 1), [(2, 1)], "as many as are wanted, the earliest first");
        assert_eq!(held.take_due(9_000, 9), [(1, 1)]);
        held.read(0, 2, 9_000);
        assert_eq!(held.take_due(12_000, 9), [(1, 1), (2, 1), (0, 2)]);
    }
}
