//! Private memory in pages of the same kind as a segment's: a benchmark compares accesses to a
//! segment with accesses to it, which is valid only with the same kind of pages.

use super::mapping::Mapping;
use super::{limits, sealed};
use crate::error::StoreError;
use std::ops::{Deref, DerefMut};
use std::path::Path;

/// Name of the file in /proc.
const SHOWN: &str = "nkv-unnamed";

/// `len` zeroed bytes, with every memory page allocated.
#[derive(Debug)]
pub struct AnonPages(Mapping);

// SAFETY: nobody else maps the file, and the value is the mapping's only user, like a Box<[u8]>.
unsafe impl Send for AnonPages {}
// SAFETY: as above; shared access is read-only.
unsafe impl Sync for AnonPages {}

impl AnonPages {
    /// Maps and faults in `len` bytes, at least 1.
    pub fn new(len: usize) -> Result<Self, StoreError> {
        let bytes = len.max(1) as u64;
        limits::check_room(bytes)?;
        let mapping = Mapping::of(sealed::make(SHOWN, bytes)?, bytes, Path::new(SHOWN))?;
        mapping.prefault_huge(Path::new(SHOWN))?;
        Ok(Self(mapping))
    }
}

impl Deref for AnonPages {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let region = self.0.region();
        // SAFETY: that many bytes, mapped until Drop, and nobody else has them.
        unsafe { std::slice::from_raw_parts(region.base().as_ptr(), region.len() as usize) }
    }
}

impl DerefMut for AnonPages {
    fn deref_mut(&mut self) -> &mut [u8] {
        let region = self.0.region();
        // SAFETY: as in `deref`, and `self` is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(region.base().as_ptr(), region.len() as usize) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_zero_writable_and_of_the_length_that_was_asked_for() {
        for len in [1, 4096, (2 << 20) + 1] {
            let mut memory = AnonPages::new(len).unwrap();
            assert_eq!(memory.len(), len);
            assert!(memory.iter().all(|x| *x == 0));
            memory.fill(7);
            assert!(memory.iter().all(|x| *x == 7));
        }
        assert!(matches!(AnonPages::new(1 << 50), Err(StoreError::NotEnoughMemory(_))));
    }
}
