//! A caller's buffer for put and get: private memory that is already faulted in, in huge pages
//! where the kernel provides them. In a fresh heap allocation page faults cost 9 to 34 times as
//! much as the copy, and 4 KiB pages cost a tenth or more of a large copy in address translation.

use crate::error::StoreError;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// Size and alignment of a huge page on x86-64 and aarch64 with 4 KiB pages.
const HUGE_PAGE: usize = 2 << 20;

/// `len` zeroed bytes, page aligned, faulted in. Reuse it: allocating one is the slow part.
#[derive(Debug)]
pub struct Buffer {
    map: NonNull<u8>,
    map_len: usize,
    start: usize,
    len: usize,
}

// SAFETY: the mapping is private to this value, like a Box<[u8]>.
unsafe impl Send for Buffer {}
// SAFETY: as above; shared access is read-only.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Maps and faults in `len` bytes.
    pub fn new(len: usize) -> Result<Self, StoreError> {
        use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};
        let huge = len >= HUGE_PAGE;
        let map_len = if huge { len + HUGE_PAGE } else { len.max(1) };
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let p =
            unsafe { mmap_anonymous(std::ptr::null_mut(), map_len, protection, MapFlags::PRIVATE) }
                .map_err(|e| StoreError::os("mmap", format!("a buffer of {len} bytes"), e))?;
        let map = NonNull::new(p.cast::<u8>())
            .ok_or_else(|| StoreError::BadSegment("mmap returned a null address".to_string()))?;
        let start = if huge { map.as_ptr().align_offset(HUGE_PAGE) } else { 0 };
        let mut buffer = Self { map, map_len, start, len };
        if huge {
            // SAFETY: inside the mapping just made. Advice only: refused, the pages stay small.
            let _ = unsafe { madvise(buffer.as_mut_ptr().cast(), len, Advice::LinuxHugepage) };
        }
        buffer.fill(0);
        Ok(buffer)
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: start + len <= map_len, mapped until Drop, and nobody else has the address.
        unsafe { std::slice::from_raw_parts(self.map.as_ptr().add(self.start), self.len) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `self` is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.map.as_ptr().add(self.start), self.len) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: mapped in `new` with this length; no borrow outlives `self`.
        let r = unsafe { rustix::mm::munmap(self.map.as_ptr().cast(), self.map_len) };
        debug_assert!(r.is_ok(), "munmap of our own mapping failed");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_of_any_length_is_zero_writable_and_page_aligned() {
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
