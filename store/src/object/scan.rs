//! Rebuilds the slot table after the owner's actor panicked, from the headers, which survive it,
//! and from the plan table kept outside the actor. A slot whose state is uncertain is held, never
//! reused.

use super::read_header;
use super::slots::Slots;
use super::transition::{Slot, State};
use crate::arena::{Extent, PackedExtent};
use crate::heap::Heap;
use crate::layout::{ObjHeader, epoch_of, flag, low, state};
use crate::segment_layout::SegmentLayout;
use std::collections::HashMap;

/// An open plan in the table outside the owner's actor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenSlot {
    /// Header slot.
    pub slot: u32,
    /// Epoch of the plan.
    pub epoch: u32,
    /// Extent of its payload.
    pub extent: Extent,
    /// True if the plan was being ended: its producer must still be fenced.
    pub ending: bool,
}

/// The state of a slot, derived from a header and a plan.
struct Found {
    slot: Slot,
    /// LIVE is still set and must be cleared.
    clear: bool,
    /// A producer wrote here for a plan that the owner has not received: counted.
    unheard: bool,
}

impl Slots {
    /// Rebuilds the table of a segment whose owner lost its state. Plans of another epoch than the
    /// slot's are ignored. Quarantine restarts in full [I8]; call [`Slots::restart_quarantines`]
    /// afterwards. The caller must fence again what [`Slots::fencing`] lists.
    ///
    /// `committed` returns whether the caller knows a (slot, epoch) to be committed: a header alone
    /// does not distinguish a committed object from one that is READY under a plan not received
    /// yet. A slot that is written but neither planned nor committed stays free at its epoch, so
    /// that its plan can open it. The master, which granted that plan, keeps slot and extent
    /// reserved, so no other plan gets them.
    ///
    /// The extent of a live object is computed from its header, by [`SegmentLayout::placed_bytes`].
    /// This is right if the producer wrote as many bytes as its plan asked for. The extent of a
    /// retired slot without a plan may be unknown (length 0 in `Freed`, none in the report).
    pub fn scan(
        heap: Heap,
        open: &[OpenSlot],
        committed: impl Fn(u32, u32) -> bool,
        now_ns: u64,
    ) -> Slots {
        let plans: HashMap<(u32, u32), &OpenSlot> =
            open.iter().map(|plan| ((plan.slot, plan.epoch), plan)).collect();
        let layout = *heap.layout();
        let managed = heap.layout().managed_slots();
        let mut slots = Vec::with_capacity(managed.len());
        let (mut retire, mut held) = (Vec::new(), Vec::new());
        let mut unheard = 0u64;
        for slot in managed {
            let found = match read_header(&heap, slot) {
                Ok(header) => {
                    let plan = plans.get(&(slot, epoch_of(header.owner))).copied();
                    recover(&header, plan, committed(slot, epoch_of(header.owner)), &layout)
                }
                Err(error) => {
                    tracing::error!(slot, %error, "a header cannot be read: its slot is lost");
                    Found::held(u32::MAX, State::Spent)
                }
            };
            if found.clear {
                retire.push((slot, found.slot.epoch));
            }
            if matches!(found.slot.state, State::Quarantined(_)) {
                held.push((slot, found.slot.epoch));
            }
            unheard += u64::from(found.unheard);
            slots.push(found.slot);
        }
        let mut table = Slots::of(slots, heap);
        for (slot, epoch) in retire {
            if let Err(error) = table.clear_live(slot, epoch) {
                tracing::error!(slot, epoch, %error, "cannot retire a slot");
            }
        }
        table.heap().memory().flush();
        table.usage.unheard = unheard;
        if unheard > 0 {
            tracing::warn!(unheard, "slots were written for plans that the owner has not received");
        }
        for (slot, epoch) in held {
            table.begin_quarantine(slot, epoch, now_ns);
        }
        table
    }
}

impl Found {
    fn held(epoch: u32, state: State) -> Found {
        Found { slot: Slot { epoch, state }, clear: false, unheard: false }
    }
}

/// The state of one slot, from its header and the plan of its epoch.
fn recover(
    h: &ObjHeader,
    plan: Option<&OpenSlot>,
    committed: bool,
    layout: &SegmentLayout,
) -> Found {
    let epoch = epoch_of(h.owner);
    let live = low(h.owner) & flag::LIVE != 0;
    let published = epoch_of(h.publish) == epoch && low(h.publish) == state::READY;
    if let Some(plan) = plan {
        let packed = PackedExtent::of(plan.extent, &layout.arena).unwrap_or(PackedExtent::UNKNOWN);
        // A plan that is not marked as ending but has lost LIVE was retired just before the panic:
        // its producer may still write.
        let kept = live && !plan.ending;
        let state = if kept { State::Open(packed) } else { State::Fencing(packed) };
        return Found { clear: live && !kept, ..Found::held(epoch, state) };
    }
    let packed = if published { claimed(h, layout) } else { None };
    if !live {
        return Found::held(epoch, State::Quarantined(packed.unwrap_or(PackedExtent::UNKNOWN)));
    }
    let armed = epoch_of(h.publish) == epoch && low(h.publish) == state::RESERVED;
    match packed {
        Some(packed) if committed => Found::held(epoch, State::Live(packed)),
        _ => Found { unheard: !armed, ..Found::held(epoch, State::Free) },
    }
}

/// The extent of a published object according to its header.
pub(super) fn claimed(h: &ObjHeader, layout: &SegmentLayout) -> Option<PackedExtent> {
    let arena = &layout.arena;
    if !arena.covers(h.payload_base, h.bytes_total) {
        return None;
    }
    // What another process wrote there is no extent of the arena.
    if !(h.payload_base - arena.offset).is_multiple_of(layout.arena_unit.bytes()) {
        return None;
    }
    let len = layout.placed_bytes(h.bytes_total);
    PackedExtent::of(Extent { offset: h.payload_base, len }, arena)
}
