//! Allocates the payload extents of a segment's arena. Pure bookkeeping of the party that places
//! payloads (the master): it touches no memory of the segment and uses neither keys nor epochs.
//!
//! Sizes are rounded up to bins (8 per power of two), so that the range of one object fits a
//! similar one later: 90 to 98% utilisation under random eviction, against 78% unrounded. The price
//! is at most 1/8 of an object. An object takes the shortest free range in which it fits.
//!
//! Limits: an object whose rounded size exceeds the capacity takes the whole arena and needs it
//! empty. A free range serves objects up to the bin below its size (at most 1/8 smaller), so
//! `largest_hole` reports that bin.

mod free_ranges;
mod packed;
mod unit;

pub use packed::PackedExtent;
pub use unit::ArenaUnit;

use crate::error::StoreError;
use crate::layout::{PAYLOAD_ALIGN, Region};
use free_ranges::FreeRanges;
use serde::{Deserialize, Serialize};

/// Position of a payload: segment offset and length, multiples of 4 KiB as the arena places it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Extent {
    /// Segment offset of the first byte.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
}

impl Extent {
    /// One past the last byte.
    pub fn end(&self) -> u64 {
        self.offset.saturating_add(self.len)
    }

    /// True if it lies wholly inside the region, on 4 KiB units.
    pub fn within(&self, region: &Region) -> bool {
        self.len > 0
            && self.offset.is_multiple_of(PAYLOAD_ALIGN)
            && self.len.is_multiple_of(PAYLOAD_ALIGN)
            && region.covers(self.offset, self.len)
    }
}

/// The placement of one segment's managed payloads. It takes one bit of memory for an extent, and
/// some 40 bytes for a free range between two.
pub struct Arena {
    region: Region,
    unit: ArenaUnit,
    units: u32,
    max_extents: u32,
    extents: u32,
    used_units: u64,
    free: FreeRanges,
}

impl std::fmt::Debug for Arena {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Arena")
            .field("region", &self.region)
            .field("used_bytes", &self.used_bytes())
            .field("extents", &self.extents())
            .finish()
    }
}

impl Arena {
    /// An empty arena over a region (whole units, as `Heap::open` checked it) that holds at most
    /// `max_extents` extents at a time.
    pub fn new(region: Region, unit: ArenaUnit, max_extents: u32) -> Arena {
        let units = u32::try_from(region.len / unit.bytes()).unwrap_or(u32::MAX);
        // An extent has at least one unit, so there are never more extents than units.
        let max_extents = max_extents.min(units);
        let free = FreeRanges::new(units);
        Arena { region, unit, units, max_extents, extents: 0, used_units: 0, free }
    }

    /// Bytes that an object of `bytes` takes in this arena.
    pub fn placed_bytes(&self, bytes: u64) -> u64 {
        self.unit.placed_bytes(bytes, self.capacity())
    }

    /// Allocates an extent for `bytes`. `ArenaFull` changes nothing and has the largest size.
    pub fn alloc(&mut self, bytes: u64) -> Result<Extent, StoreError> {
        let asked = self.placed_bytes(bytes);
        let room = self.extents < self.max_extents;
        let units = u32::try_from(asked / self.unit.bytes()).ok().filter(|_| room);
        let Some((first, units)) = units.and_then(|units| Some((self.free.take(units)?, units)))
        else {
            return Err(self.full(asked));
        };
        Ok(self.count(first, units))
    }

    /// Frees an extent. Refuses an extent that was not allocated here or has another length.
    pub fn free(&mut self, extent: Extent) -> Result<(), StoreError> {
        let (unit, units) = (self.unit_of(&extent), u32::try_from(extent.len / self.unit.bytes()));
        if let (Some(unit), Ok(units)) = (unit, units)
            && self.free.give_back(unit, units)
        {
            self.extents -= 1;
            self.used_units -= u64::from(units);
            return Ok(());
        }
        Err(StoreError::OutOfBounds {
            what: "free of an extent that is not placed",
            offset: extent.offset,
            len: extent.len,
            segment_len: self.region.offset + self.region.len,
        })
    }

    /// Bytes in extents.
    pub fn used_bytes(&self) -> u64 {
        self.used_units * self.unit.bytes()
    }

    /// Bytes that can be placed in all.
    pub fn capacity(&self) -> u64 {
        u64::from(self.units) * self.unit.bytes()
    }

    /// Bytes outside every extent.
    pub fn free_bytes(&self) -> u64 {
        self.capacity() - self.used_bytes()
    }

    /// Extents placed.
    pub fn extents(&self) -> u32 {
        self.extents
    }

    /// The largest object that can be placed now, in bytes: that of the largest free range, 0 if
    /// there is none or no extent is left.
    pub fn largest_hole(&self) -> u64 {
        if self.extents >= self.max_extents {
            return 0;
        }
        match self.free.longest() {
            all if all == self.units => self.capacity(),
            longest => u64::from(bin_down(longest)) * self.unit.bytes(),
        }
    }

    /// An arena in which exactly these extents are allocated, as owners reported them. Refuses
    /// extents that lie outside, overlap, or have a length that [`Arena::alloc`] never returns.
    pub fn rebuild(
        region: Region,
        unit: ArenaUnit,
        max_extents: u32,
        extents: &[Extent],
    ) -> Result<Arena, StoreError> {
        let mut arena = Arena::new(region, unit, max_extents);
        if extents.len() > arena.max_extents as usize {
            let asked = extents.iter().fold(0u64, |sum, e| sum.saturating_add(e.len));
            return Err(arena.full(asked));
        }
        for extent in extents {
            arena.take_at(*extent)?;
        }
        Ok(arena)
    }

    /// Allocates exactly this extent. Refuses one that lies outside, overlaps another one, or has a
    /// length that [`Arena::alloc`] never returns: nothing is changed then.
    pub fn take_at(&mut self, extent: Extent) -> Result<(), StoreError> {
        let bad = |why: &str| {
            StoreError::BadSegment(format!(
                "extent at {} of {} bytes {why}",
                extent.offset, extent.len
            ))
        };
        let units = u32::try_from(extent.len / self.unit.bytes()).ok();
        let (Some(first), Some(units)) = (self.unit_of(&extent), units) else {
            return Err(bad("lies outside the arena or off its units"));
        };
        if bin_up(u64::from(units)) != u64::from(units) && units != self.units {
            return Err(bad("has a length that is never placed"));
        }
        if self.extents >= self.max_extents {
            return Err(bad("is one more than there may be"));
        }
        if !self.free.take_at(first, units) {
            return Err(bad("overlaps another one"));
        }
        self.count(first, units);
        Ok(())
    }

    /// The first unit of an extent; None if it lies outside the arena or off its units.
    fn unit_of(&self, extent: &Extent) -> Option<u32> {
        let (at, unit) = (extent.offset.checked_sub(self.region.offset)?, self.unit.bytes());
        let whole = at.is_multiple_of(unit) && extent.len.is_multiple_of(unit);
        u32::try_from(at / unit).ok().filter(|_| whole && extent.within(&self.region))
    }

    fn count(&mut self, first: u32, units: u32) -> Extent {
        self.extents += 1;
        self.used_units += u64::from(units);
        let offset = self.region.offset + u64::from(first) * self.unit.bytes();
        Extent { offset, len: u64::from(units) * self.unit.bytes() }
    }

    fn full(&self, asked: u64) -> StoreError {
        StoreError::ArenaFull { asked, free: self.free_bytes(), largest_hole: self.largest_hole() }
    }
}

/// Smallest bin of at least `units`: numbers whose binary digits below the top four are zero.
fn bin_up(units: u64) -> u64 {
    let unit = bin_step(units);
    units.checked_next_multiple_of(unit).unwrap_or(u64::MAX)
}

/// Largest bin of at most `units`.
fn bin_down(units: u32) -> u32 {
    units - units % bin_step(u64::from(units)) as u32
}

/// Distance between bins at this size: 8 bins per power of two (3-bit mantissa).
fn bin_step(units: u64) -> u64 {
    1 << (64 - units.leading_zeros()).saturating_sub(4)
}

#[cfg(test)]
mod tests;
