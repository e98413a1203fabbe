//! Allocates slots, with their epochs, and extents of one segment's heap. A slot is taken until the
//! owner sends `Freed` with the same epoch [I11].

use super::slab::Number;
use crate::message::{Medium, OpenItem, RankInfo, SlotRef};
use crate::slot_map::SlotMap;
use hashbrown::HashMap;
use nkv_store::Retention;
use nkv_store::StoreError;
use nkv_store::arena::{Arena, Extent, PackedExtent};
use nkv_store::heap::FIRST_EPOCH;

/// What an object, or one replica of it, needs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Need {
    pub bytes: u64,
    pub medium: Medium,
}

impl Need {
    /// In any memory.
    pub(super) fn of_bytes(bytes: u64) -> Self {
        Self { bytes, medium: Medium::Any }
    }

    /// Of the first replica of what is opened.
    pub(super) fn of(open: &OpenItem) -> Self {
        Self { bytes: open.bytes_total, medium: open.medium }
    }
}

/// A taken slot.
#[derive(Debug, Clone, Copy)]
pub(super) struct Taken {
    epoch: u32,
    extent: PackedExtent,
}

/// The listed object of a slot.
#[derive(Debug, Clone, Copy)]
struct Listed {
    epoch: u32,
    number: Number,
}

/// See the file's first paragraph.
pub(super) struct SegmentAllocator {
    pub info: RankInfo,
    pub arena: Arena,
    taken: SlotMap<Taken>,
    // Objects in the index, of heap and log. That of a slot may be another one by now.
    listed: SlotMap<Listed>,
    // Whether any object was ever listed here: else no entry can have a place here.
    pub has_listed: bool,
    // Set after the last part of a report; until then nothing is placed here.
    pub reported: bool,
    pub report: Vec<crate::message::SlotEntry>,
    pub report_number: u64,
    pub report_asked_ms: u64,
    // When the owner was last asked to make room, and how often without success.
    pub room_asked_ms: u64,
    pub room_attempt: u32,
    free: Vec<u32>,
    // Slots from here on that are neither in `taken` nor in `epochs` were never used: they are at
    // their first epoch.
    untouched: u32,
    // Epochs and bytes of taken slots whose objects have a hard pin, and the bytes of all.
    hard: HashMap<u32, (u32, u64)>,
    hard_bytes: u64,
    // Next epochs of used slots that are free; 0 if a slot has used up its epochs [I3].
    epochs: HashMap<u32, u32>,
}

/// Number of slots that the master allocates: all but those of the log.
fn managed(info: &RankInfo) -> u32 {
    info.layout.slots.saturating_sub(info.layout.log_slots)
}

/// The arena of a segment with these extents taken. An error if they overlap or lie outside it.
pub(super) fn arena_of(info: &RankInfo, taken: &[Extent]) -> Result<Arena, StoreError> {
    Arena::rebuild(info.layout.arena, info.layout.arena_unit, managed(info), taken)
}

impl Taken {
    /// `extent` of length 0: not known, as of a slot whose owner does not know it either.
    pub(super) fn new(epoch: u32, extent: Extent, info: &RankInfo) -> Self {
        let extent = PackedExtent::of(extent, &info.layout.arena);
        Self { epoch, extent: extent.unwrap_or(PackedExtent::UNKNOWN) }
    }
}

impl SegmentAllocator {
    pub(super) fn new(info: RankInfo) -> Self {
        Self {
            arena: Arena::new(info.layout.arena, info.layout.arena_unit, managed(&info)),
            untouched: info.layout.log_slots,
            taken: SlotMap::new(info.layout.slots),
            listed: SlotMap::new(info.layout.slots),
            has_listed: false,
            info,
            reported: false,
            report: Vec::new(),
            report_number: 0,
            report_asked_ms: 0,
            room_asked_ms: 0,
            room_attempt: 0,
            free: Vec::new(),
            hard: HashMap::new(),
            hard_bytes: 0,
            epochs: HashMap::new(),
        }
    }

    /// Rebuilds from the taken slots with their arena, and from the epochs of used slots that are
    /// free.
    pub(super) fn rebuild(
        info: RankInfo,
        arena: Arena,
        taken: impl IntoIterator<Item = (u32, Taken)>,
        free_epochs: HashMap<u32, u32>,
    ) -> Self {
        let mut base = Self::new(info);
        taken.into_iter().for_each(|(slot, taken)| base.taken.insert(slot, taken));
        // Only used slots; `take` finds those that were never used by counting up `untouched`.
        let mut free: Vec<u32> = free_epochs.keys().copied().collect();
        free.retain(|slot| !base.taken.contains(*slot));
        free.sort_unstable_by_key(|slot| std::cmp::Reverse(*slot));
        Self { arena, free, epochs: free_epochs, reported: true, ..base }
    }

    /// Whether it has reported, and can hold an object, now or once it has room.
    pub(super) fn takes(&self, need: Need) -> bool {
        let most = self.info.layout.arena.len;
        self.reported && most > 0 && need.bytes <= most && need.medium.takes(&self.info.memory)
    }

    /// The object of a taken slot has a hard pin, until it is retired.
    pub(super) fn pin(&mut self, slot: u32, epoch: u32, bytes: u64) {
        let (_, before) = self.hard.insert(slot, (epoch, bytes)).unwrap_or_default();
        self.hard_bytes = self.hard_bytes - before + bytes;
    }

    /// An object, or a plan, of a slot is over.
    pub(super) fn unpin(&mut self, slot: u32, epoch: u32) {
        if let Some((_, bytes)) = self.hard.get(&slot).copied().filter(|(of, _)| *of == epoch) {
            self.hard.remove(&slot);
            self.hard_bytes -= bytes;
        }
    }

    /// Bytes with hard pins, and how many an object of that size would add.
    pub(super) fn hard_pins(&self, bytes: u64) -> (u64, u64) {
        (self.hard_bytes, self.info.layout.placed_bytes(bytes))
    }

    /// Takes a slot and an extent for `bytes`. `ArenaFull` if there is no slot or no extent.
    pub(super) fn take(
        &mut self,
        bytes: u64,
        retention: Retention,
    ) -> Result<(SlotRef, Extent), StoreError> {
        while self.taken.contains(self.untouched) || self.epochs.contains_key(&self.untouched) {
            self.untouched += 1;
        }
        if self.free.is_empty() && self.untouched >= self.info.layout.slots {
            return Err(StoreError::ArenaFull {
                asked: bytes,
                free: self.arena.free_bytes(),
                largest_hole: 0,
            });
        }
        let extent = self.arena.alloc(bytes)?;
        let slot = self.free.pop().unwrap_or_else(|| {
            self.untouched += 1;
            self.untouched - 1
        });
        let epoch = self.epochs.remove(&slot).unwrap_or(FIRST_EPOCH);
        self.taken.insert(slot, Taken::new(epoch, extent, &self.info));
        if retention == Retention::HardPin {
            self.pin(slot, epoch, extent.len);
        }
        Ok((SlotRef { incarnation: self.info.incarnation, slot, epoch }, extent))
    }

    /// Applies a `Freed`: true if the slot was taken at exactly that epoch.
    pub(super) fn give_back(&mut self, slot: u32, epoch: u32) -> bool {
        let Some(taken) = self.taken.remove_if(slot, |t| t.epoch == epoch) else { return false };
        if let Err(error) = self.arena.free(taken.extent.extent(&self.info.layout.arena)) {
            tracing::error!(%error, slot, "the arena does not have the extent of a taken slot");
        }
        self.unpin(slot, epoch);
        let next = epoch.checked_add(1);
        self.epochs.insert(slot, next.unwrap_or(0));
        if next.is_some() {
            self.free.push(slot);
        }
        true
    }

    /// The number of the object that is listed in a slot at an epoch.
    pub(super) fn listed(&self, slot: u32, epoch: u32) -> Option<Number> {
        self.listed.get(slot).filter(|listed| listed.epoch == epoch).map(|listed| listed.number)
    }

    /// An object of a slot was listed.
    pub(super) fn list(&mut self, slot: u32, epoch: u32, number: Number) {
        self.has_listed = true;
        self.listed.insert(slot, Listed { epoch, number });
    }

    /// A listed object is retired.
    pub(super) fn forget_listed(&mut self, slot: u32, epoch: u32) {
        self.listed.remove_if(slot, |listed| listed.epoch == epoch);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::master::tests::bench;

    fn info(arena_bytes: u64) -> RankInfo {
        let slots = (arena_bytes / 4096) as u32;
        let mut info = bench::info(0, 9, 1);
        (info.layout.slots, info.layout.arena.len) = (slots, arena_bytes);
        info
    }

    #[test]
    fn i11_a_freed_of_another_epoch_frees_nothing() {
        let mut b = SegmentAllocator::new(info(16 * 4096));
        let (at, _) = b.take(4096, Retention::Usual).unwrap();
        assert!(!b.give_back(at.slot, at.epoch + 1));
        assert!(b.give_back(at.slot, at.epoch));
        assert!(!b.give_back(at.slot, at.epoch), "a duplicate is ignored");
        let (again, _) = b.take(4096, Retention::Usual).unwrap();
        assert_eq!((again.slot, again.epoch), (at.slot, at.epoch + 1), "[I3] the epoch moved on");
    }

    #[test]
    fn a_rebuilt_allocator_hands_out_only_what_is_free() {
        let mut b = SegmentAllocator::new(info(4 * 4096));
        let all: Vec<_> = (0..4).map(|_| b.take(4096, Retention::Usual).unwrap()).collect();
        assert!(b.take(1, Retention::Usual).is_err());
        let gone = all[2];
        let kept = all.iter().filter(|taken| **taken != gone);
        let taken =
            kept.clone().map(|(at, extent)| (at.slot, Taken::new(at.epoch, *extent, &b.info)));
        let epochs = HashMap::from_iter([(gone.0.slot, 5)]);
        let extents: Vec<_> = kept.clone().map(|(_, extent)| *extent).collect();
        let arena = arena_of(&info(4 * 4096), &extents).unwrap();
        let mut r = SegmentAllocator::rebuild(info(4 * 4096), arena, taken, epochs);
        let (at, extent) = r.take(4096, Retention::Usual).unwrap();
        assert_eq!((at.slot, at.epoch, extent), (gone.0.slot, 5, gone.1));
        assert!(r.take(1, Retention::Usual).is_err());
    }
}
