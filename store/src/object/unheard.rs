//! Slots that are free in their owner's table but written to in memory: a producer wrote there for
//! a plan whose grant the owner never heard of. They are found, and retired.

use super::read_header;
use super::scan::claimed;
use super::slots::Slots;
use super::transition::{Event, PackedExtent, State};
use crate::arena::Extent;
use crate::error::StoreError;
use crate::layout::{epoch_of, low, state};

impl Slots {
    /// Slot, epoch and the extent that the header claims (none if it makes no sense). Walks all
    /// slots and reads the header of every free one. Of use only while nobody can be writing.
    pub fn written_but_free(&self) -> Vec<(u32, u32, Option<Extent>)> {
        let arena = self.heap().geometry().arena;
        let free = self.all().filter(|(_, at)| at.state == State::Free);
        free.filter_map(|(slot, at)| {
            let header = read_header(self.heap(), slot).ok()?;
            let armed = low(header.publish) == state::RESERVED;
            if armed || epoch_of(header.publish) != at.epoch {
                return None;
            }
            Some((slot, at.epoch, claimed(&header, &arena).map(|p| p.extent(&arena))))
        })
        .collect()
    }

    /// Retires one of them: LIVE goes, and quarantine begins at `now_ns`. `claimed` is held
    /// meanwhile; none where the header's claim is of no use. Only while nobody can be writing
    /// there.
    pub fn retire_unheard(
        &mut self,
        slot: u32,
        epoch: u32,
        claimed: Option<Extent>,
        now_ns: u64,
    ) -> Result<(), StoreError> {
        let arena = self.heap().geometry().arena;
        let extent =
            claimed.and_then(|e| PackedExtent::of(e, &arena)).unwrap_or(PackedExtent::UNKNOWN);
        // The decision first: a slot that is given to somebody keeps its LIVE.
        self.step(slot, epoch, Event::Unheard(extent), "retire of what no plan was heard of")?;
        self.clear_live(slot, epoch)?;
        self.heap().memory().flush();
        self.begin_quarantine(slot, epoch, now_ns);
        Ok(())
    }
}
