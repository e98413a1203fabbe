//! The position of a segment's log, and how a position in the log determines bytes, slot and epoch.
//! Arithmetic only: it reads no memory.

use super::BUMP_PTR_OFF;
use crate::error::StoreError;
use crate::layout::NOWHERE;
use crate::layout::{HEADER_BYTES, Region};

/// Most units of a log: every slot has a 31-bit number.
pub const MAX_LOG_UNITS: u64 = 1 << 31;
/// Fewest units of a log: the largest claim is a quarter of it.
pub const MIN_LOG_UNITS: u64 = 4;

/// The layout of a log, checked. A *position* is a byte count since the log was formatted; it
/// never decreases. Position p uses header slot (p mod L)/U at epoch p div L + 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogLayout {
    log_base: u64,
    log_bytes: u64,
    unit: u64,
    header_base: u64,
    claim_word: u64,
}

impl LogLayout {
    /// A log of `log_bytes` (L) bytes at segment offset `log_base`, in units of `unit` (U) bytes,
    /// whose headers are the slots from segment offset `header_base` on. `InvalidConfig` unless U
    /// is a multiple of 64, L is 4 to 2^31 units, and no offset overflows. The caller checks that
    /// the regions lie in the segment and do not overlap.
    pub fn new(
        log_base: u64,
        log_bytes: u64,
        unit: u64,
        header_base: u64,
    ) -> Result<LogLayout, StoreError> {
        let refuse = |text: String| Err(StoreError::InvalidConfig(text));
        if unit == 0 || !unit.is_multiple_of(HEADER_BYTES) {
            return refuse(format!(
                "a log in units of {unit} bytes cannot be made: give a multiple of {HEADER_BYTES}"
            ));
        }
        let units = log_bytes / unit;
        if !log_bytes.is_multiple_of(unit) || !(MIN_LOG_UNITS..=MAX_LOG_UNITS).contains(&units) {
            return refuse(format!(
                "a log of {log_bytes} bytes in units of {unit} cannot be made: give \
                 {MIN_LOG_UNITS} to {MAX_LOG_UNITS} whole units"
            ));
        }
        let aligned = |offset: u64| offset.is_multiple_of(HEADER_BYTES);
        let headers = header_base.checked_add(units * HEADER_BYTES);
        let payloads = log_base.checked_add(log_bytes);
        if !aligned(log_base) || !aligned(header_base) || headers.is_none() || payloads.is_none() {
            return refuse(format!(
                "a log at offset {log_base} with headers at {header_base} cannot be addressed: \
                 give multiples of {HEADER_BYTES} inside the segment"
            ));
        }
        Ok(LogLayout { log_base, log_bytes, unit, header_base, claim_word: BUMP_PTR_OFF })
    }

    /// The same log, with the word of claimed bytes at another segment offset than `bump_ptr`.
    #[must_use]
    pub fn with_claim_word(self, offset: u64) -> LogLayout {
        LogLayout { claim_word: offset, ..self }
    }

    /// Segment offset of the word of claimed bytes.
    #[inline]
    pub fn claim_word(&self) -> u64 {
        self.claim_word
    }

    /// Whether processors and devices of hosts claim by `bump_ptr`, and not kernels by another
    /// word.
    pub fn claims_by_hosts(&self) -> bool {
        self.claim_word == BUMP_PTR_OFF
    }

    /// Length in bytes (L).
    pub fn log_bytes(&self) -> u64 {
        self.log_bytes
    }

    /// Bytes of one unit (U).
    pub fn unit(&self) -> u64 {
        self.unit
    }

    /// Header slots, one per unit: [0, slots) of the segment's header arena are the log's.
    pub fn slots(&self) -> u32 {
        (self.log_bytes / self.unit) as u32
    }

    /// The region of the payloads, which a reader validates against [I2].
    pub fn region(&self) -> Region {
        Region { offset: self.log_base, len: self.log_bytes }
    }

    /// Header of any slot of the segment, log or heap.
    pub(super) fn any_header_off(&self, slot: u32) -> u64 {
        self.header_base + u64::from(slot) * HEADER_BYTES
    }

    /// Header slot of a position.
    #[inline]
    pub fn slot(&self, p: u64) -> u32 {
        (p % self.log_bytes / self.unit) as u32
    }

    /// Epoch of a position; `None` above the last epoch [I3].
    #[inline]
    pub fn epoch(&self, p: u64) -> Option<u32> {
        u32::try_from(p / self.log_bytes).ok()?.checked_add(1)
    }

    /// The first position without an epoch: no position from here on is ever claimable.
    pub fn end(&self) -> u64 {
        u64::from(u32::MAX).saturating_mul(self.log_bytes)
    }

    /// The position of a slot at an epoch.
    pub fn position(&self, slot: u32, epoch: u32) -> Option<u64> {
        let lap = u64::from(epoch.checked_sub(1)?);
        let inside = (slot < self.slots()).then(|| u64::from(slot) * self.unit)?;
        lap.checked_mul(self.log_bytes)?.checked_add(inside)
    }

    /// Segment offset of a position's payload.
    #[inline]
    pub fn payload_off(&self, p: u64) -> u64 {
        self.log_base + p % self.log_bytes
    }

    /// Segment offset of a slot's header. For a slot outside the log it is [`NOWHERE`], which every
    /// memory refuses.
    #[inline]
    pub fn header_off(&self, slot: u32) -> u64 {
        if slot >= self.slots() {
            return NOWHERE;
        }
        self.header_base + u64::from(slot) * HEADER_BYTES
    }

    /// Largest claim in bytes: a quarter of the log, in whole units.
    pub fn max_claim(&self) -> u64 {
        let quarter = self.log_bytes / 4;
        quarter - quarter % self.unit
    }

    /// Bytes that an object of so many logical bytes claims: rounded up to units, at least one
    /// unit. `None` above [`LogLayout::max_claim`]. The owner computes the same value from the
    /// header.
    #[inline]
    pub fn claim_bytes(&self, bytes_total: u64) -> Option<u64> {
        if bytes_total > self.max_claim() {
            return None;
        }
        Some(bytes_total.max(1).next_multiple_of(self.unit))
    }

    /// True if a claim of `n` bytes at `p` crosses the end of the log: it is skipped.
    #[inline]
    pub fn wraps(&self, p: u64, n: u64) -> bool {
        p % self.log_bytes + n > self.log_bytes
    }

    /// True if `n` bytes at `p` can be a claim: whole units, at most a quarter of the log, no
    /// overflow.
    pub fn is_claim(&self, p: u64, n: u64) -> bool {
        let whole = p.is_multiple_of(self.unit) && n.is_multiple_of(self.unit);
        whole && (self.unit..=self.max_claim()).contains(&n) && p.checked_add(n).is_some()
    }
}
