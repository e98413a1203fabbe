//! Slots that are free in their owner's table but written to in memory: a producer wrote there for
//! a plan whose grant the owner never heard of. It changes nothing.

use super::read_header;
use super::scan::claimed;
use super::slots::Slots;
use super::transition::State;
use crate::arena::Extent;
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
}
