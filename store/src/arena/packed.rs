//! An extent in half the bytes, for tables with one per slot.

use super::Extent;
use crate::layout::{PAYLOAD_ALIGN, Region};

/// An extent in 4 KiB units of the arena; half the size of an [`Extent`], since there is one per
/// slot. 0 units: the extent is unknown (after a scan), only the allocator has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PackedExtent {
    pub(crate) first: u32,
    pub(crate) units: u32,
}

impl PackedExtent {
    /// Not known.
    pub const UNKNOWN: PackedExtent = PackedExtent { first: 0, units: 0 };

    /// None unless it lies wholly inside the arena, on its units.
    pub fn of(extent: Extent, arena: &Region) -> Option<PackedExtent> {
        if !extent.within(arena) {
            return None;
        }
        let first = u32::try_from((extent.offset - arena.offset) / PAYLOAD_ALIGN).ok()?;
        let units = u32::try_from(extent.len / PAYLOAD_ALIGN).ok()?;
        Some(PackedExtent { first, units })
    }

    /// Its length.
    pub fn bytes(self) -> u64 {
        u64::from(self.units) * PAYLOAD_ALIGN
    }

    /// Length 0 at offset 0 if unknown.
    pub fn extent(self, arena: &Region) -> Extent {
        if self.units == 0 {
            return Extent { offset: 0, len: 0 };
        }
        let offset = arena.offset + u64::from(self.first) * PAYLOAD_ALIGN;
        Extent { offset, len: self.bytes() }
    }
}
