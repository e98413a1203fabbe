//! Two-segment LRU. A page used only once may never be used again, so it competes only with other
//! such pages; pages used again are protected from them. An object enters probation, and a touch
//! moves it to the protected segment. If that segment is full, its least recently used object
//! becomes the newest one on probation. Victims come from probation first.

use super::Policy;
use super::list::SlotList;

/// Percent of the bytes held that the protected segment may have. Of 20 to 90, the best hit ratio
/// on the conversation trace at a tenth of its blocks; from 50 on it falls below that of plain LRU.
pub(super) const PROTECTED_PERCENT: u128 = 30;

/// Two-segment LRU.
#[derive(Debug)]
pub(super) struct Lru2 {
    /// Used once, or demoted.
    probation: SlotList,
    /// Used again.
    protected: SlotList,
    protected_percent: u128,
}

impl Lru2 {
    /// For slots below `slots`.
    pub(super) fn new(slots: u32, protected_percent: u128) -> Self {
        let (probation, protected) = (SlotList::new(slots), SlotList::new(slots));
        Self { probation, protected, protected_percent }
    }

    /// Demotes the least recently used objects until the protected segment is within its share.
    /// Each object demoted was promoted by a touch before, so a touch costs O(1) on average.
    fn demote_overflow(&mut self) {
        let limit = (u128::from(self.bytes()) * self.protected_percent / 100) as u64;
        while self.protected.bytes() > limit {
            let Some((slot, epoch, bytes)) = self.protected.pop() else { return };
            self.probation.push(slot, epoch, bytes);
        }
    }
}

impl Policy for Lru2 {
    fn admit(&mut self, slot: u32, epoch: u32, bytes: u64) {
        match self.protected.epoch_of(slot) {
            Some(held) if held >= epoch => return,
            Some(held) => {
                self.protected.remove(slot, held);
            }
            None => {}
        }
        self.probation.push(slot, epoch, bytes);
    }

    fn admit_oldest(&mut self, slot: u32, epoch: u32, bytes: u64) {
        if self.protected.epoch_of(slot).is_none() {
            self.probation.push_oldest(slot, epoch, bytes);
        }
    }

    fn epoch_of(&self, slot: u32) -> Option<u32> {
        self.probation.epoch_of(slot).or_else(|| self.protected.epoch_of(slot))
    }

    fn touch(&mut self, slot: u32, epoch: u32) {
        if let Some(bytes) = self.probation.remove(slot, epoch) {
            self.protected.push(slot, epoch, bytes);
        } else if !self.protected.renew(slot, epoch) {
            return;
        }
        self.demote_overflow();
    }

    fn forget(&mut self, slot: u32, epoch: u32) {
        if self.probation.remove(slot, epoch).is_none() {
            self.protected.remove(slot, epoch);
        }
    }

    fn victim(&mut self) -> Option<(u32, u32, u64)> {
        self.probation.pop().or_else(|| self.protected.pop())
    }

    fn len(&self) -> usize {
        self.probation.len() + self.protected.len()
    }

    fn bytes(&self) -> u64 {
        self.probation.bytes() + self.protected.bytes()
    }
}
