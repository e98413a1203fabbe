//! Queries about one slot, and the live objects of a heap for an actor that starts without state.

use super::slots::Slots;
use super::transition::State;
use super::{read_header, ready};
use crate::heap::Heap;
use crate::layout::{epoch_of, is_live};
use crate::retention::Retention;

/// A live object, read from its header alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LiveSlot {
    /// Header slot.
    pub slot: u32,
    /// Its epoch.
    pub epoch: u32,
    /// Logical bytes.
    pub bytes_total: u64,
    /// Last recorded access, in milliseconds of CLOCK_BOOTTIME.
    pub last_access_ms: u64,
    /// What its put asked for.
    pub retention: Retention,
}

/// The object of a heap slot whose header is READY and LIVE at one epoch. An open plan that is
/// READY but not committed looks the same: a caller that acts on this must check the slot table.
pub fn live_slot(heap: &Heap, slot: u32) -> Option<LiveSlot> {
    let h = read_header(heap, slot).ok()?;
    let epoch = epoch_of(h.owner);
    let live = is_live(h.owner, epoch) && h.publish == ready(epoch);
    live.then_some(LiveSlot {
        slot,
        epoch,
        bytes_total: h.bytes_total,
        last_access_ms: h.last_access,
        retention: Retention::of_word(h.owner),
    })
}

/// The live objects of all heap slots.
pub fn live_slots(heap: &Heap) -> impl Iterator<Item = LiveSlot> + '_ {
    heap.layout().managed_slots().filter_map(|slot| live_slot(heap, slot))
}

impl Slots {
    /// True if the slot holds a committed object at that epoch.
    pub fn is_live(&self, slot: u32, epoch: u32) -> bool {
        matches!(self.state_at(slot, epoch), Some(State::Live(_)))
    }

    /// True if the slot holds an open plan at that epoch.
    pub fn is_open(&self, slot: u32, epoch: u32) -> bool {
        matches!(self.state_at(slot, epoch), Some(State::Open(_)))
    }
}
