//! The layout of a segment: computed once by its owner, kept in its control block, and told to
//! whoever uses it. Arithmetic only: it reads no memory.

use crate::arena::ArenaUnit;
use crate::device_log::{LogLayout, MIN_LOG_UNITS};
use crate::error::StoreError;
use crate::layout::{
    AtomicDomain, CTL_BYTES, HEADER_BYTES, NOWHERE, PAYLOAD_ALIGN, REGIONS, Region, RegionKind,
};
use crate::{index, pins};
use serde::{Deserialize, Serialize};

/// Most payload bytes, arena and log together: 8 TiB, so that every 4 KiB unit and every slot has a
/// 31-bit number.
pub const MAX_ARENA_BYTES: u64 = 1 << 43;
/// Most header slots: one per unit of payload, which has at least 4 KiB.
pub const MAX_SLOTS: u32 = (MAX_ARENA_BYTES / PAYLOAD_ALIGN) as u32;
/// Longest quarantine that a segment may have.
pub const MAX_QUARANTINE_MS: u32 = 60_000;

/// Where everything lies in a segment, and the two numbers that all its users go by. Offsets and
/// lengths in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SegmentLayout {
    /// Length of the segment.
    pub segment_bytes: u64,
    /// Header slots.
    pub slots: u32,
    /// The first `log_slots` slots are the device log's, the rest the arena's.
    pub log_slots: u32,
    /// Offset of slot 0.
    pub header_base: u64,
    /// Buckets of the one-sided index; length 0 if there is none.
    pub index: Region,
    /// Pin tables; length 0 if there are none.
    pub pins: Region,
    /// Payloads of the device log; length 0 if there is none.
    pub log: Region,
    /// Payloads of the arena.
    pub arena: Region,
    /// Unit of their extents.
    pub arena_unit: ArenaUnit,
    /// Quarantine in milliseconds [I8].
    pub quarantine_ms: u32,
    /// Which device executes the atomic operations on claims in the device log [I1].
    pub atomic_domain: AtomicDomain,
}

impl SegmentLayout {
    /// Checks every number from which an address or an amount of memory is computed, as a control
    /// block or another process states them: sizes are possible, and all regions lie inside the
    /// segment and do not overlap. A caller that did not lay out the segment must call it first.
    pub fn check(&self) -> Result<(), StoreError> {
        let regions = self.parts()?;
        for (i, r) in regions.iter().enumerate() {
            let payload = i == RegionKind::Log as usize || i == RegionKind::Arena as usize;
            let unit = if payload { PAYLOAD_ALIGN } else { HEADER_BYTES };
            let inside = r.offset.checked_add(r.len).is_some_and(|end| end <= self.segment_bytes);
            if !inside || !r.offset.is_multiple_of(unit) || !r.len.is_multiple_of(unit) {
                return Err(StoreError::BadSegment(format!(
                    "region {i} ({r:?}) is misaligned or outside the segment"
                )));
            }
            for (j, s) in regions.iter().enumerate().take(i) {
                let empty = r.len == 0 || s.len == 0;
                // The sum cannot overflow: `s` was found inside the segment before `r` is checked.
                if !empty && r.offset < s.offset + s.len && s.offset < r.offset + r.len {
                    return Err(StoreError::BadSegment(format!("regions {j} and {i} overlap")));
                }
            }
        }
        // Neither sum overflows: both lie inside the segment and do not overlap.
        let payloads = self.arena.len + self.log.len;
        if self.arena.len == 0 || payloads > MAX_ARENA_BYTES {
            return Err(StoreError::BadSegment(format!(
                "its arena has {} bytes, its log {}, of at most {MAX_ARENA_BYTES}",
                self.arena.len, self.log.len
            )));
        }
        let unit = self.arena_unit.bytes();
        if !self.arena.offset.is_multiple_of(unit) || !self.arena.len.is_multiple_of(unit) {
            return Err(StoreError::BadSegment(format!(
                "its arena ({:?}) is not made of whole units of {unit} bytes",
                self.arena
            )));
        }
        // The log lies just before the arena, in whole units.
        let log_units = self.log.len / PAYLOAD_ALIGN;
        let adjacent = self.log.len == 0 || self.log.offset + self.log.len == self.arena.offset;
        let logged = u64::from(self.log_slots) == log_units
            && self.log.len.is_multiple_of(PAYLOAD_ALIGN)
            && self.log_slots < self.slots
            && adjacent;
        if !logged || self.slots > MAX_SLOTS || (1..MIN_LOG_UNITS).contains(&log_units) {
            return Err(StoreError::BadSegment(format!(
                "it has {} slots of at most {MAX_SLOTS}, {} of them its log's, which has \
                 {log_units} units",
                self.slots, self.log_slots
            )));
        }
        if !pins::fits(&self.pins) {
            return Err(StoreError::BadSegment(format!("its pins have {} bytes", self.pins.len)));
        }
        if !index::fits(&self.index) {
            return Err(StoreError::BadSegment(format!("its index has {} bytes", self.index.len)));
        }
        if !(1..=MAX_QUARANTINE_MS).contains(&self.quarantine_ms) {
            return Err(StoreError::BadSegment(format!(
                "a quarantine of {} ms",
                self.quarantine_ms
            )));
        }
        Ok(())
    }

    /// All regions, and the page of the claim word if it lies among the payloads.
    fn parts(&self) -> Result<Vec<Region>, StoreError> {
        let mut parts = self.regions().to_vec();
        if self.claims_by_gpu() {
            let offset = self.log.offset.checked_sub(PAYLOAD_ALIGN).ok_or_else(|| {
                let text = "its log has no page before it for the claim word".to_string();
                StoreError::BadSegment(text)
            })?;
            parts.push(Region { offset, len: PAYLOAD_ALIGN });
        }
        Ok(parts)
    }

    /// The region table that belongs in its control block.
    pub(crate) fn regions(&self) -> [Region; REGIONS] {
        let headers =
            Region { offset: self.header_base, len: u64::from(self.slots) * HEADER_BYTES };
        let mut regions = [Region::default(); REGIONS];
        for (kind, region) in [
            (RegionKind::Ctl, Region { offset: 0, len: CTL_BYTES }),
            (RegionKind::Headers, headers),
            (RegionKind::Index, self.index),
            (RegionKind::Pins, self.pins),
            (RegionKind::Log, self.log),
            (RegionKind::Arena, self.arena),
        ] {
            regions[kind as usize] = region;
        }
        regions
    }

    /// Segment offset of a slot's header. A slot that does not exist gives [`NOWHERE`], which every
    /// memory refuses: the number may come from another process.
    pub fn header_off(&self, slot: u32) -> u64 {
        if slot >= self.slots {
            return NOWHERE;
        }
        self.header_base + u64::from(slot) * HEADER_BYTES
    }

    /// The device log, if there is one.
    pub fn device_log(&self) -> Option<LogLayout> {
        let log = self.log;
        // Checked when the segment was opened, so an error means an absent log.
        let made = LogLayout::new(log.offset, log.len, PAYLOAD_ALIGN, self.header_base).ok()?;
        let word = self.claims_by_gpu().then(|| log.offset.checked_sub(PAYLOAD_ALIGN)).flatten();
        Some(word.map_or(made, |word| made.with_claim_word(word)))
    }

    /// The slots of the managed arena.
    pub fn managed_slots(&self) -> std::ops::Range<u32> {
        self.log_slots..self.slots
    }

    /// Bytes of the extent of an object in the arena.
    pub fn placed_bytes(&self, bytes: u64) -> u64 {
        self.arena_unit.placed_bytes(bytes, self.arena.len)
    }

    /// Region of all payloads: the log, followed by the arena.
    pub fn payloads(&self) -> Region {
        let log = self.log.len;
        Region { offset: self.arena.offset - log, len: log + self.arena.len }
    }

    /// What lies in the memory of the GPU, if payloads do: they, and the page of the claim word
    /// before them if kernels claim.
    pub fn device_part(&self) -> Region {
        let Region { offset, len } = self.payloads();
        // Checked: the page lies in the segment.
        let page = u64::from(self.claims_by_gpu()) * PAYLOAD_ALIGN;
        Region { offset: offset.saturating_sub(page), len: len + page }
    }

    /// Whether kernels alone claim in the device log, by a word in the memory of their GPU [I1].
    pub fn claims_by_gpu(&self) -> bool {
        self.atomic_domain == AtomicDomain::Gpu && self.log.len > 0
    }

    /// Whether an RDMA device alone counts the claims in the device log [I1].
    pub fn claims_by_nic(&self) -> bool {
        self.atomic_domain == AtomicDomain::Nic
    }

    /// Quarantine in nanoseconds.
    pub fn quarantine_ns(&self) -> u64 {
        u64::from(self.quarantine_ms) * 1_000_000
    }
}
