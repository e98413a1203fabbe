//! Two-segment LRU that knows the last blocks of batches. A batch holds the blocks of a prompt, and
//! its last block is often incomplete: the next turn of the conversation does not read it again.
//! Where this is so, last blocks go before all others.

use super::Policy;
use super::list::SlotList;
use super::lru2::Lru2;

/// Percent of the bytes held that the protected segment may have: docs/notes/0052.
const PROTECTED_PERCENT: u128 = 20;
/// One of so many last blocks is kept as any other block, to learn how many are read.
const SAMPLED: u32 = 8;
/// Sampled last blocks, before which nothing is known.
const FEWEST_SAMPLES: u32 = 32;
/// Blocks of a kind that are counted: then both its counts are halved.
const MOST_COUNTED: [u32; 2] = [8192, 1024];
/// Last blocks go first while their part that is read, times this, is less than that of others.
const FEW: u64 = 2;

/// Which counts of [`Prefix`] an object is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Counted {
    No,
    Other,
    Last,
}

/// Objects of one kind, and how many of them were read.
#[derive(Debug, Clone, Copy, Default)]
struct Reads {
    admitted: u32,
    read: u32,
}

impl Reads {
    fn admit(&mut self, most: u32) {
        self.admitted += 1;
        if self.admitted > most {
            (self.admitted, self.read) = (self.admitted / 2, self.read / 2);
        }
    }
}

/// See the file's first paragraph.
#[derive(Debug)]
pub(super) struct Prefix {
    kept: Lru2,
    /// Last blocks that go first; a read moves them.
    last: SlotList,
    slots: u32,
    /// Per slot: the counts in which its object waits to be read.
    counted: Vec<Counted>,
    others: Reads,
    lasts: Reads,
    seen: u32,
}

impl Prefix {
    /// For slots below `slots`.
    pub(super) fn new(slots: u32) -> Self {
        Self {
            kept: Lru2::new(slots, PROTECTED_PERCENT),
            last: SlotList::new(slots),
            slots,
            counted: Vec::new(),
            others: Reads::default(),
            lasts: Reads::default(),
            seen: 0,
        }
    }

    fn few_are_read(&self) -> bool {
        let product = |a: u32, b: u32| u64::from(a) * u64::from(b);
        let lasts = product(self.lasts.read, self.others.admitted);
        self.lasts.admitted >= FEWEST_SAMPLES
            && lasts * FEW < product(self.others.read, self.lasts.admitted)
    }

    /// Counts a new object, which replaces one of an older epoch; false if it is not new.
    fn is_new(&mut self, slot: u32, epoch: u32, counted: Counted) -> bool {
        let held = self.epoch_of(slot);
        if slot >= self.slots || held.is_some_and(|held| held >= epoch) {
            return false;
        }
        if let Some(held) = held {
            self.forget(slot, held);
        }
        self.count(slot, counted);
        true
    }

    fn count(&mut self, slot: u32, counted: Counted) {
        let at = slot as usize;
        if at >= self.counted.len() {
            self.counted.resize(at + 1, Counted::No);
        }
        self.counted[at] = counted;
        match counted {
            Counted::No => {}
            Counted::Other => self.others.admit(MOST_COUNTED[0]),
            Counted::Last => self.lasts.admit(MOST_COUNTED[1]),
        }
    }

    fn was_read(&mut self, slot: u32) {
        let Some(counted) = self.counted.get_mut(slot as usize) else { return };
        match std::mem::replace(counted, Counted::No) {
            Counted::No => {}
            Counted::Other => self.others.read += 1,
            Counted::Last => self.lasts.read += 1,
        }
    }
}

impl Policy for Prefix {
    fn admit(&mut self, slot: u32, epoch: u32, bytes: u64) {
        if self.is_new(slot, epoch, Counted::Other) {
            self.kept.admit(slot, epoch, bytes);
        }
    }

    fn admit_last(&mut self, slot: u32, epoch: u32, bytes: u64) {
        let seen = self.seen.wrapping_add(1);
        let sampled = seen.is_multiple_of(SAMPLED);
        if !self.is_new(slot, epoch, if sampled { Counted::Last } else { Counted::No }) {
            return;
        }
        self.seen = seen;
        match !sampled && self.few_are_read() {
            true => self.last.push(slot, epoch, bytes),
            false => self.kept.admit(slot, epoch, bytes),
        }
    }

    fn admit_oldest(&mut self, slot: u32, epoch: u32, bytes: u64) {
        if self.epoch_of(slot).is_none() && slot < self.slots {
            self.count(slot, Counted::No);
            self.kept.admit_oldest(slot, epoch, bytes);
        }
    }

    fn epoch_of(&self, slot: u32) -> Option<u32> {
        self.kept.epoch_of(slot).or_else(|| self.last.epoch_of(slot))
    }

    fn touch(&mut self, slot: u32, epoch: u32) {
        if self.epoch_of(slot) != Some(epoch) {
            return;
        }
        self.was_read(slot);
        if let Some(bytes) = self.last.remove(slot, epoch) {
            self.kept.admit(slot, epoch, bytes);
        }
        self.kept.touch(slot, epoch);
    }

    fn forget(&mut self, slot: u32, epoch: u32) {
        if self.last.remove(slot, epoch).is_none() {
            self.kept.forget(slot, epoch);
        }
    }

    fn victim(&mut self) -> Option<(u32, u32, u64)> {
        self.last.pop().or_else(|| self.kept.victim())
    }

    fn len(&self) -> usize {
        self.last.len() + self.kept.len()
    }

    fn bytes(&self) -> u64 {
        self.last.bytes() + self.kept.bytes()
    }
}
