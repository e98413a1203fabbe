//! The unit of an arena, and what objects take in such units.

use super::bin_up;
use crate::error::StoreError;
use crate::layout::PAYLOAD_ALIGN;
use crate::memory::HUGE_PAGE;
use serde::{Deserialize, Serialize};

/// Extents of an arena begin at multiples of this many bytes of its segment, and are whole
/// multiples long: a power of two, 4 KiB (the default) to 2 MiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub struct ArenaUnit(u32);

impl ArenaUnit {
    /// # Errors
    /// If it is none.
    pub fn of_bytes(bytes: u64) -> Result<Self, StoreError> {
        if (PAYLOAD_ALIGN..=HUGE_PAGE).contains(&bytes) && bytes.is_power_of_two() {
            return Ok(Self(bytes as u32));
        }
        Err(StoreError::InvalidConfig(format!(
            "objects cannot begin at multiples of {bytes} bytes: give a power of two, \
             {PAYLOAD_ALIGN} to {HUGE_PAGE}"
        )))
    }

    /// In bytes.
    pub fn bytes(self) -> u64 {
        self.0.into()
    }

    /// Bytes that an object takes in an arena of `capacity` bytes: whole units, rounded up to a
    /// bin, or the whole arena if the object fits there and its bin does not. An empty one takes a
    /// unit.
    pub fn placed_bytes(self, bytes: u64, capacity: u64) -> u64 {
        let units = bin_up(bytes.div_ceil(self.bytes()).max(1));
        let rounded = units.saturating_mul(self.bytes());
        if rounded > capacity && bytes <= capacity { capacity } else { rounded }
    }
}

impl Default for ArenaUnit {
    fn default() -> Self {
        Self(PAYLOAD_ALIGN as u32)
    }
}

/// In bytes.
impl std::fmt::Display for ArenaUnit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl From<ArenaUnit> for u32 {
    fn from(unit: ArenaUnit) -> Self {
        unit.0
    }
}

impl TryFrom<u32> for ArenaUnit {
    type Error = StoreError;

    fn try_from(bytes: u32) -> Result<Self, StoreError> {
        Self::of_bytes(bytes.into())
    }
}
