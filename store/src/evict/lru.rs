//! One list in order of age. By use, it evicts the least recently used first: the default policy,
//! within 2% of the best simple ones on published prefix traces. Else it evicts the oldest first,
//! used or not: the cheapest policy, and the order that the device log has by design.

use super::Policy;
use super::list::SlotList;

/// Least recently used first (LRU), or first in, first out (FIFO).
#[derive(Debug)]
pub(super) struct ByAge {
    list: SlotList,
    /// Whether a use makes an object the newest.
    by_use: bool,
}

impl ByAge {
    /// For slots below `slots`.
    pub(super) fn new(slots: u32, by_use: bool) -> Self {
        Self { list: SlotList::new(slots), by_use }
    }
}

impl Policy for ByAge {
    fn admit(&mut self, slot: u32, epoch: u32, bytes: u64) {
        self.list.push(slot, epoch, bytes);
    }

    fn admit_oldest(&mut self, slot: u32, epoch: u32, bytes: u64) {
        self.list.push_oldest(slot, epoch, bytes);
    }

    fn epoch_of(&self, slot: u32) -> Option<u32> {
        self.list.epoch_of(slot)
    }

    fn touch(&mut self, slot: u32, epoch: u32) {
        if self.by_use {
            self.list.renew(slot, epoch);
        }
    }

    fn forget(&mut self, slot: u32, epoch: u32) {
        self.list.remove(slot, epoch);
    }

    fn victim(&mut self) -> Option<(u32, u32, u64)> {
        self.list.pop()
    }

    fn len(&self) -> usize {
        self.list.len()
    }

    fn bytes(&self) -> u64 {
        self.list.bytes()
    }
}
