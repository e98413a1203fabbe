//! A caller's buffer for put and get: private memory that is already faulted in, in huge pages
//! where the kernel provides them. In a fresh heap allocation page faults cost 9 to 34 times as
//! much as the copy, and 4 KiB pages cost a tenth or more of a large copy in address translation.

use crate::error::StoreError;
use crate::memory::AnonMap;
use std::ops::{Deref, DerefMut};

/// `len` zeroed bytes, page aligned, faulted in. Reuse it: allocating one is the slow part.
#[derive(Debug)]
pub struct Buffer {
    map: AnonMap,
    len: usize,
}

impl Buffer {
    /// Maps and faults in `len` bytes.
    pub fn new(len: usize) -> Result<Self, StoreError> {
        let mut buffer = Self { map: AnonMap::huge(len)?, len };
        buffer.fill(0);
        Ok(buffer)
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: so many bytes are mapped from its base on, and nobody else has its address.
        unsafe { std::slice::from_raw_parts(self.map.base().as_ptr(), self.len) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `self` is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.map.base().as_ptr(), self.len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_of_any_length_is_zero_writable_and_page_aligned() {
        const HUGE_PAGE: usize = crate::memory::HUGE_PAGE as usize;
        let lengths = [0, 1, 4096, HUGE_PAGE - 1, HUGE_PAGE, HUGE_PAGE + 1, 5 << 20];
        for len in lengths {
            let mut b = Buffer::new(len).unwrap();
            assert_eq!(b.len(), len);
            assert!(b.iter().all(|x| *x == 0));
            assert_eq!(b.as_ptr() as usize % 4096, 0);
            if let Some(last) = b.last_mut() {
                *last = 7;
            }
            b.iter_mut().for_each(|x| *x = 1);
        }
    }
}
