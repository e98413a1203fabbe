//! Evicts the oldest first, used or not: the cheapest policy, and the order that the device log has
//! by design.

use super::Policy;
use super::list::SlotList;

/// First in, first out.
#[derive(Debug)]
pub struct Fifo(SlotList);

impl Fifo {
    /// For slots below `slots`.
    pub fn new(slots: u32) -> Self {
        Self(SlotList::new(slots))
    }
}

impl Policy for Fifo {
    fn admit(&mut self, slot: u32, epoch: u32, bytes: u64) {
        self.0.push(slot, epoch, bytes);
    }

    fn admit_oldest(&mut self, slot: u32, epoch: u32, bytes: u64) {
        self.0.push_oldest(slot, epoch, bytes);
    }

    fn epoch_of(&self, slot: u32) -> Option<u32> {
        self.0.epoch_of(slot)
    }

    fn touch(&mut self, _slot: u32, _epoch: u32) {}

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
