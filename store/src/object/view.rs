//! Read access to the slot table: the words of one slot, reports for the master. It
//! changes nothing.

use super::slots::Slots;
use super::transition::State;
use super::{LiveSlot, ObjectDesc, key_of, live_slot, read_header, ready};
use crate::arena::Extent;
use crate::heap::FIRST_EPOCH;
use crate::key::KeyId;
use crate::layout::ObjHeader;
use crate::retention::Retention;

/// One slot as reported to the master.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotReport {
    /// Header slot.
    pub slot: u32,
    /// Epoch the slot is at.
    pub epoch: u32,
    /// What it holds.
    pub kind: SlotKind,
    /// Its extent; `None` for a free slot, and if a scan could not determine it.
    pub extent: Option<Extent>,
}

/// What a reported slot holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlotKind {
    /// Armed and available to a plan.
    Free,
    /// An open plan.
    Open,
    /// A committed object.
    Live {
        /// Identity of its key.
        key: KeyId,
        /// As its header describes it, in the extent that was reserved for it.
        object: ObjectDesc,
        /// What its put asked of the evictor.
        retention: Retention,
    },
    /// Retired, or out of epochs: it becomes free only by `Freed`.
    Held,
}

impl Slots {
    /// True if the producer has published, and the slot is neither retired nor past that epoch
    /// [I11].
    pub fn is_published(&self, slot: u32, epoch: u32) -> bool {
        let state = self.state_at(slot, epoch);
        matches!(state, Some(State::Free | State::Open(_) | State::Live(_)))
            && self.header(slot).publish == ready(epoch)
    }

    /// A snapshot of a slot's header; all zeros (epoch 0, never served) if it cannot be read.
    pub fn header(&self, slot: u32) -> ObjHeader {
        read_header(self.heap(), slot).unwrap_or_default()
    }

    /// The live object of a slot at that epoch, in the extent that was reserved for it.
    pub fn live_object(&self, slot: u32, epoch: u32) -> Option<(KeyId, ObjectDesc)> {
        let Some(State::Live(packed)) = self.state_at(slot, epoch) else { return None };
        let (h, extent) = (self.header(slot), packed.extent(&self.heap().layout().arena));
        Some((key_of(&h), ObjectDesc { extent, ..ObjectDesc::of_header(&h) }))
    }

    /// Every slot that is not free at its first epoch. The master assumes that state for slots that
    /// are not reported, so the report of a new segment is short. Walks all slots.
    pub fn report(&self) -> impl Iterator<Item = SlotReport> + '_ {
        let arena = self.heap().layout().arena;
        self.all().filter_map(move |(slot, at)| {
            let kind = match at.state {
                State::Free if at.epoch == FIRST_EPOCH => return None,
                State::Free => SlotKind::Free,
                State::Open(_) => SlotKind::Open,
                State::Live(_) => {
                    let (key, object) = self.live_object(slot, at.epoch)?;
                    let retention = Retention::of_word(self.header(slot).owner);
                    SlotKind::Live { key, object, retention }
                }
                State::Fencing(_) | State::Quarantined(_) | State::Spent => SlotKind::Held,
            };
            let extent = at.state.extent().map(|p| p.extent(&arena)).filter(|e| e.len > 0);
            Some(SlotReport { slot, epoch: at.epoch, kind, extent })
        })
    }

    /// Every allocated extent: slot, epoch, extent, and whether it is a live object that may be
    /// evicted: `may` is asked about each that is not usual. Extents that a scan could not
    /// determine are left out. Walks all slots.
    pub fn extents<'a>(
        &'a self,
        may: impl Fn(&LiveSlot) -> bool + 'a,
    ) -> impl Iterator<Item = (u32, u32, Extent, bool)> + 'a {
        let arena = self.heap().layout().arena;
        self.all().filter_map(move |(slot, at)| {
            let extent = at.state.extent()?.extent(&arena);
            let usual = |o: &LiveSlot| o.retention.is_usual() || may(o);
            let live = matches!(at.state, State::Live(_));
            let evictable = live && live_slot(self.heap(), slot).is_none_or(|o| usual(&o));
            (extent.len > 0).then_some((slot, at.epoch, extent, evictable))
        })
    }

    /// Slots whose producer must still be fenced: slot and epoch. After a scan the owner restarts
    /// those fences. Walks all slots.
    pub fn fencing(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        self.all().filter_map(|(slot, at)| {
            matches!(at.state, State::Fencing(_)).then_some((slot, at.epoch))
        })
    }
}
