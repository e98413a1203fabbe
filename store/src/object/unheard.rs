//! Slots that are free in the owner's table but written to in memory: a producer wrote there for a
//! plan whose grant the owner never received. Finds and retires them.

use super::read_header;
use super::scan::claimed;
use super::slots::Slots;
use super::transition::{Event, State};
use crate::arena::{Extent, PackedExtent};
use crate::error::StoreError;
use crate::layout::{epoch_of, low, state};

impl Slots {
    /// Slot, epoch and the extent that the header states (none if it is not valid). Walks all slots
    /// and reads the header of every free one. Call it only while no producer can be writing.
    pub fn written_but_free(&self) -> Vec<(u32, u32, Option<Extent>)> {
        let layout = *self.heap().layout();
        let free = self.all().filter(|(_, at)| at.state == State::Free);
        free.filter_map(|(slot, at)| {
            let header = read_header(self.heap(), slot).ok()?;
            let armed = low(header.publish) == state::RESERVED;
            if armed || epoch_of(header.publish) != at.epoch {
                return None;
            }
            Some((slot, at.epoch, claimed(&header, &layout).map(|p| p.extent(&layout.arena))))
        })
        .collect()
    }

    /// Retires one of them: clears LIVE, and quarantine begins at `now_ns`. `claimed` is held
    /// meanwhile; `None` if the header states no valid extent. Call it only while no producer can
    /// be writing there.
    pub fn retire_unheard(
        &mut self,
        slot: u32,
        epoch: u32,
        claimed: Option<Extent>,
        now_ns: u64,
    ) -> Result<(), StoreError> {
        let arena = self.heap().layout().arena;
        let extent =
            claimed.and_then(|e| PackedExtent::of(e, &arena)).unwrap_or(PackedExtent::UNKNOWN);
        // Decides first: a slot that was given to a plan keeps its LIVE.
        self.step(slot, epoch, Event::Unheard(extent), "retire of a slot without a known plan")?;
        self.clear_live(slot, epoch)?;
        self.heap().memory().flush();
        self.begin_quarantine(slot, epoch, now_ns);
        Ok(())
    }
}
