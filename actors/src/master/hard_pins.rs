//! How much of a heap hard pins may have, of what the master has granted and its owner has not
//! retired; and how much must be free for an extra replica.

use super::Master;
use super::allocator::Need;
use crate::error::{Error, Result};
use crate::message::SegmentId;
use nkv_store::Retention;

/// This part of a heap: the rest is for objects that can be evicted.
const MOST_PART: u64 = 2;
/// An extra replica is placed where a 20th of the heap is free, and more than it needs: in a heap
/// that is kept full it would be the first to be evicted, at once.
const FREE_FOR_EXTRAS_PART: u64 = 20;

impl Master {
    /// Whether an object may be kept in a segment as its put asks.
    pub(super) fn may_retain(
        &self,
        segment_id: SegmentId,
        bytes: u64,
        retention: Retention,
    ) -> bool {
        match retention {
            Retention::HardPin => {}
            Retention::Extra => return self.has_free_for_extra(segment_id, bytes),
            _ => return true,
        }
        let (has, adds, most) = self.hard_pins(segment_id, bytes);
        has.saturating_add(adds) <= most
    }

    fn has_free_for_extra(&self, segment_id: SegmentId, bytes: u64) -> bool {
        self.allocators.get(&segment_id).is_some_and(|b| {
            b.arena.free_bytes() >= bytes.max(b.arena.capacity() / FREE_FOR_EXTRAS_PART)
        })
    }

    /// Where an open waits for room: the segment of these ranks that may take most hard pins.
    ///
    /// # Errors
    /// `OutOfMemory` if no segment of these ranks can take a hard pin of so many bytes.
    pub(super) fn check_hard_pins(&self, ranks: &[u32], need: Need) -> Result<Option<SegmentId>> {
        let bytes = need.bytes;
        let segments = || ranks.iter().flat_map(|rank| self.segments_of(*rank, need));
        let free = |id: SegmentId| {
            let (has, _, most) = self.hard_pins(id, bytes);
            most.saturating_sub(has)
        };
        let Some(best) = segments().max_by_key(|id| free(*id)) else { return Ok(None) };
        let (has, adds, most) = self.hard_pins(best, bytes);
        if free(best) >= adds {
            return Ok(Some(best));
        }
        Err(Error::out_of_memory(format!(
            "hard pins have {has} of the {most} bytes that they may have on {best}, and this one \
             is of {bytes}: remove some, use a soft pin, or give plans more memory by a lower \
             --log-bytes or a larger --heap-bytes"
        ))
        .at_rank(best.rank))
    }

    /// Bytes of hard pins in a segment, how many an object would add, and how many they may be.
    fn hard_pins(&self, segment_id: SegmentId, bytes: u64) -> (u64, u64, u64) {
        let Some(allocator) = self.allocators.get(&segment_id) else { return (0, bytes, 0) };
        let (has, adds) = allocator.hard_pins(bytes);
        (has, adds, allocator.info.layout.arena.len / MOST_PART)
    }
}
