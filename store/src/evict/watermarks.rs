//! When eviction starts and where it stops. Pure arithmetic over used and capacity.

use crate::error::StoreError;

/// Eviction starts above `hi` percent of the capacity and stops at `lo` percent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Watermarks {
    /// Percent, 1 to 100.
    pub hi: u32,
    /// Percent, at most `hi`.
    pub lo: u32,
}

impl Default for Watermarks {
    fn default() -> Self {
        Self { hi: 95, lo: 85 }
    }
}

impl Watermarks {
    /// Checks 0 < lo <= hi <= 100.
    pub fn validate(&self) -> Result<(), StoreError> {
        if self.lo == 0 || self.lo > self.hi || self.hi > 100 {
            return Err(StoreError::InvalidConfig(format!(
                "watermarks {self} cannot work: give HI/LO in percent with 0 < LO <= HI <= 100, \
                 e.g. 95/85"
            )));
        }
        Ok(())
    }

    /// True if eviction must start. At `hi` = 100 never: only a full arena then evicts.
    pub fn above_hi(&self, used: u64, capacity: u64) -> bool {
        u128::from(used) * 100 > u128::from(capacity) * u128::from(self.hi)
    }

    /// Bytes at which eviction stops.
    pub fn target_bytes(&self, capacity: u64) -> u64 {
        (u128::from(capacity) * u128::from(self.lo) / 100) as u64
    }
}

impl std::fmt::Display for Watermarks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.hi, self.lo)
    }
}

impl std::str::FromStr for Watermarks {
    type Err = StoreError;

    /// Reads "HI/LO" in percent and validates it.
    fn from_str(text: &str) -> Result<Self, StoreError> {
        let parsed = text.split_once('/').and_then(|(hi, lo)| {
            Some(Watermarks { hi: hi.trim().parse().ok()?, lo: lo.trim().parse().ok()? })
        });
        let Some(marks) = parsed else {
            return Err(StoreError::InvalidConfig(format!(
                "\"{}\" is not a pair of watermarks: give HI/LO in percent, e.g. 95/85",
                text.escape_debug()
            )));
        };
        marks.validate()?;
        Ok(marks)
    }
}
