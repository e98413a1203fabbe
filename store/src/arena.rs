//! Allocates the payload extents of a segment's arena. Pure bookkeeping of the party that places
//! payloads (the master): it touches no memory of the segment and uses neither keys nor epochs.
//!
//! Sizes are rounded up to the bins of the allocator (8 per power of two), so that the range of
//! one object fits a similar one later: 90 to 98% utilisation under random eviction, against 78%
//! unrounded. The price is at most 1/8 of an object.
//!
//! Limits: an object whose rounded size exceeds the capacity takes the whole arena and needs it
//! empty. A free range serves only objects up to the bin below its size (at most 1/8 smaller), so
//! `largest_hole` reports that bin.

mod packed;

pub use packed::PackedExtent;

use crate::error::StoreError;
use crate::layout::{PAYLOAD_ALIGN, Region};
use hashbrown::HashTable;
use offset_allocator::{Allocation, Allocator};
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

/// Most units an arena has; the allocator counts them in 32 bits.
const MAX_UNITS: u64 = u32::MAX as u64 - 4096;
/// Extents for which a new arena allocates nodes (8 MiB of nodes). An arena that needs more doubles
/// its nodes, so memory grows with the extents in use and not with the size that a segment states.
const FIRST_EXTENTS: u32 = 1 << 17;
/// Allocator nodes beyond the two that each extent can need (itself and the free range after it):
/// the first free range, the reserve that is never allocated, and the fillers of a rebuild that
/// an exact fit splits into bins.
const SPARE_NODES: u32 = 64;

/// The placement of one segment's managed payloads.
pub struct Arena {
    region: Region,
    units: u32,
    max_extents: u32,
    /// Extents for which nodes are allocated now; at most `max_extents`.
    room: u32,
    used_units: u64,
    /// One object, larger than the largest bin below the capacity, takes the whole arena.
    whole: bool,
    allocator: Allocator,
    /// Live allocations, hashed by their first unit.
    taken: HashTable<Allocation>,
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
    /// An empty arena over a region (4 KiB aligned, as `Heap::open` checked it) that holds at most
    /// `max_extents` extents at a time. Takes 64 bytes of memory per extent it has nodes for:
    /// 131,072 extents at first, doubled whenever they are used up.
    pub fn new(region: Region, max_extents: u32) -> Arena {
        Arena::with_room(region, max_extents, FIRST_EXTENTS)
    }

    fn with_room(region: Region, max_extents: u32, room: u32) -> Arena {
        let units = (region.len / PAYLOAD_ALIGN).min(MAX_UNITS) as u32;
        // An extent has at least one unit, so there are never more extents than units.
        let max_extents = max_extents.min(units);
        let room = room.min(max_extents);
        let nodes = room.saturating_mul(2).min(units).saturating_add(SPARE_NODES);
        Arena {
            region,
            units,
            max_extents,
            room,
            used_units: 0,
            whole: false,
            allocator: Allocator::with_max_allocs(units, nodes),
            taken: HashTable::new(),
        }
    }

    /// Bytes that an object of `bytes` takes: whole 4 KiB units, rounded up to the allocator's bin.
    /// An empty object takes one unit. Near the capacity see [`Arena::placed_bytes`].
    pub fn rounded(bytes: u64) -> u64 {
        bin_up(bytes.div_ceil(PAYLOAD_ALIGN).max(1)).saturating_mul(PAYLOAD_ALIGN)
    }

    /// [`Arena::rounded`], but at most `capacity` if the object itself fits in an arena of that
    /// many bytes: the length of its extent.
    pub fn rounded_within(bytes: u64, capacity: u64) -> u64 {
        let rounded = Arena::rounded(bytes);
        if rounded > capacity && bytes <= capacity { capacity } else { rounded }
    }

    /// Bytes that an object of `bytes` takes in this arena.
    pub fn placed_bytes(&self, bytes: u64) -> u64 {
        Arena::rounded_within(bytes, self.capacity())
    }

    /// Allocates an extent for `bytes`. `ArenaFull` changes nothing and has the largest size.
    pub fn alloc(&mut self, bytes: u64) -> Result<Extent, StoreError> {
        let asked = self.placed_bytes(bytes);
        let units = asked / PAYLOAD_ALIGN;
        if self.whole || units > u64::from(self.units) || self.extents() >= self.max_extents {
            return Err(self.full(asked));
        }
        if bin_up(units) != units {
            return self.alloc_whole(asked);
        }
        if self.extents() >= self.room {
            self.grow()?;
        }
        let allocation = self.allocator.allocate(units as u32);
        allocation.map(|found| self.take(found)).ok_or_else(|| self.full(asked))
    }

    /// Frees an extent. Refuses an extent that was not allocated here or has another length.
    pub fn free(&mut self, extent: Extent) -> Result<(), StoreError> {
        if self.whole && extent == self.everything() {
            self.whole = false;
            self.used_units = 0;
            return Ok(());
        }
        let refused = StoreError::OutOfBounds {
            what: "free of an extent that is not placed",
            offset: extent.offset,
            len: extent.len,
            segment_len: self.region.offset + self.region.len,
        };
        if !extent.within(&self.region) {
            return Err(refused);
        }
        let unit = ((extent.offset - self.region.offset) / PAYLOAD_ALIGN) as u32;
        let allocator = &self.allocator;
        let same = |a: &Allocation| {
            a.offset == unit
                && u64::from(allocator.allocation_size(*a)) * PAYLOAD_ALIGN == extent.len
        };
        let Ok(entry) = self.taken.find_entry(hash(unit), same) else {
            return Err(refused);
        };
        let (allocation, _) = entry.remove();
        self.used_units -= extent.len / PAYLOAD_ALIGN;
        self.allocator.free(allocation);
        Ok(())
    }

    /// Bytes in extents.
    pub fn used_bytes(&self) -> u64 {
        self.used_units * PAYLOAD_ALIGN
    }

    /// Bytes that can be placed in all.
    pub fn capacity(&self) -> u64 {
        u64::from(self.units) * PAYLOAD_ALIGN
    }

    /// Bytes outside every extent.
    pub fn free_bytes(&self) -> u64 {
        self.capacity() - self.used_bytes()
    }

    /// Extents placed.
    pub fn extents(&self) -> u32 {
        self.taken.len() as u32 + u32::from(self.whole)
    }

    /// The largest object that can be placed now, in bytes: that of the largest free range, 0 if
    /// there is none or no extent is left.
    pub fn largest_hole(&self) -> u64 {
        if self.whole || self.extents() >= self.max_extents {
            return 0;
        }
        if self.used_units == 0 {
            return self.capacity();
        }
        u64::from(self.allocator.storage_report().largest_free_region) * PAYLOAD_ALIGN
    }

    /// An arena in which exactly these extents are allocated, as owners reported them. Refuses
    /// extents that lie outside, overlap, or have a length that [`Arena::alloc`] never returns.
    pub fn rebuild(
        region: Region,
        max_extents: u32,
        extents: &[Extent],
    ) -> Result<Arena, StoreError> {
        let n = u32::try_from(extents.len()).unwrap_or(u32::MAX);
        let room = n.saturating_add(1).max(FIRST_EXTENTS);
        Arena::rebuild_with_room(region, max_extents, room, extents)
    }

    fn rebuild_with_room(
        region: Region,
        max_extents: u32,
        room: u32,
        extents: &[Extent],
    ) -> Result<Arena, StoreError> {
        let mut arena = Arena::with_room(region, max_extents, room);
        if let [only] = extents
            && *only == arena.everything()
            && arena.placed_bytes(only.len) != Arena::rounded(only.len)
        {
            arena.alloc_whole(only.len)?;
            return Ok(arena);
        }
        if extents.len() > arena.max_extents as usize {
            let asked = extents.iter().fold(0u64, |sum, e| sum.saturating_add(e.len));
            return Err(arena.full(asked));
        }
        let mut sorted = extents.to_vec();
        sorted.sort_unstable_by_key(|e| e.offset);
        arena.place_in_order(&sorted)?;
        Ok(arena)
    }

    /// The same extents, with nodes for twice as many.
    fn grow(&mut self) -> Result<(), StoreError> {
        let extents: Vec<Extent> = self.taken.iter().map(|a| self.extent_of(*a)).collect();
        let room = self.room.saturating_mul(2);
        *self = Arena::rebuild_with_room(self.region, self.max_extents, room, &extents)?;
        Ok(())
    }

    /// A fresh allocator serves all allocations from the one free range at the end, so they follow
    /// each other by address. The space between the extents is therefore allocated as fillers,
    /// which are freed at the end.
    fn place_in_order(&mut self, sorted: &[Extent]) -> Result<(), StoreError> {
        let mut fillers = Vec::new();
        let mut next = 0u32;
        for extent in sorted {
            let bad = |why: &str| {
                StoreError::BadSegment(format!(
                    "extent at {} of {} bytes {why}",
                    extent.offset, extent.len
                ))
            };
            if !extent.within(&self.region) {
                return Err(bad("lies outside the arena or off its units"));
            }
            let first = ((extent.offset - self.region.offset) / PAYLOAD_ALIGN) as u32;
            let units = (extent.len / PAYLOAD_ALIGN) as u32;
            if first < next {
                return Err(bad("overlaps the one before it"));
            }
            if bin_up(u64::from(units)) != u64::from(units) {
                return Err(bad("has a length that is never placed"));
            }
            while next < first {
                // In one piece where the bin of the hole at the end allows, else the largest bin.
                let gap = first - next;
                let filler = self.allocator.allocate(gap);
                let filler = filler.or_else(|| self.allocator.allocate(bin_down(gap)));
                let filler = filler.ok_or_else(|| bad("cannot be reached"))?;
                next += self.allocator.allocation_size(filler);
                fillers.push(filler);
            }
            match self.allocator.allocate(units) {
                Some(allocation) if allocation.offset == first => self.take(allocation),
                _ => return Err(bad("cannot be placed again")),
            };
            next = first + units;
        }
        for filler in fillers {
            self.allocator.free(filler);
        }
        Ok(())
    }

    fn alloc_whole(&mut self, asked: u64) -> Result<Extent, StoreError> {
        if self.used_units > 0 {
            return Err(self.full(asked));
        }
        self.whole = true;
        self.used_units = u64::from(self.units);
        Ok(self.everything())
    }

    fn take(&mut self, allocation: Allocation) -> Extent {
        let extent = self.extent_of(allocation);
        self.used_units += extent.len / PAYLOAD_ALIGN;
        self.taken.insert_unique(hash(allocation.offset), allocation, |a| hash(a.offset));
        extent
    }

    fn extent_of(&self, allocation: Allocation) -> Extent {
        Extent {
            offset: self.region.offset + u64::from(allocation.offset) * PAYLOAD_ALIGN,
            len: u64::from(self.allocator.allocation_size(allocation)) * PAYLOAD_ALIGN,
        }
    }

    fn everything(&self) -> Extent {
        Extent { offset: self.region.offset, len: self.capacity() }
    }

    fn full(&self, asked: u64) -> StoreError {
        StoreError::ArenaFull { asked, free: self.free_bytes(), largest_hole: self.largest_hole() }
    }
}

/// Spreads unit numbers over the table: multiplication by 2^64 / golden ratio, folded because the
/// table takes its index from the low bits and units are often multiples of one another.
fn hash(unit: u32) -> u64 {
    let h = u64::from(unit).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    h ^ h >> 32
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
