//! The trait of every kind of memory (host shared memory here, VRAM in nkv-gpu). Bytes are copied
//! through raw pointers, never borrowed as slices: another process may write them at any moment,
//! and only the header protocol [I7] decides whether a copy is valid.

mod anon;
mod device;
mod split;

use crate::error::StoreError;
use crate::words::Words;
use std::os::fd::RawFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

pub(crate) use anon::AnonMap;
pub use anon::{AnonMemory, OwnMemory};
pub use device::DeviceMemory;
pub(crate) use device::in_pieces;
pub use split::SplitMemory;

/// How another process reaches this memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Export {
    /// Only this process can access it.
    Private,
    /// A segment with a name under /dev/shm, which other processes of this user can map.
    Shm {
        /// Its name below /dev/shm.
        name: String,
    },
    /// Memory of a device, such as VRAM, which other devices can be given access to.
    Device {
        /// Address of the memory for its own device: a device pointer of its driver.
        address: u64,
        /// The memory as a dma-buf, if its driver gives one.
        dma_buf: Option<DmaBuf>,
        /// Every device and processor sees what RDMA devices write here before anything that they
        /// write later, also in other memory.
        writes_ordered: bool,
    },
}

/// Memory of a device as a file that other devices can be given access to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DmaBuf {
    /// Open as long as the memory exists.
    pub fd: RawFd,
    /// Offset in the dma-buf at which the memory begins, a multiple of the host's memory page.
    pub offset: u64,
}

/// One contiguous region: bytes and aligned atomic words, by offset.
///
/// Words are 8 bytes, aligned; every access is one real atomic instruction [I1].
pub trait Memory: Send + Sync + std::fmt::Debug {
    /// Length in bytes.
    fn len(&self) -> u64;
    /// How other processes reach it.
    fn export(&self) -> Export;
    /// The first byte, if the host's CPU can access the memory. Valid for `host_len()` bytes while
    /// `self` lives.
    fn host_base(&self) -> Option<NonNull<u8>>;
    /// How many bytes from the first the host's CPU can access: all, none, or those before a
    /// payload that lies in VRAM.
    fn host_len(&self) -> u64 {
        if self.host_base().is_some() { self.len() } else { 0 }
    }
    /// What lies from `host_len()` on, if it is a memory of its own, such as VRAM.
    fn payload(&self) -> Option<&dyn Memory> {
        None
    }
    /// What the host's CPU can access, for accesses without a call through a trait object.
    ///
    /// # Safety
    /// The region may be used only while `self` lives.
    unsafe fn host(&self) -> Option<HostRegion> {
        // SAFETY: `host_base` is valid for `host_len` bytes while the memory lives, which the
        // caller ensures; mappings are page aligned.
        self.host_base().map(|base| unsafe { HostRegion::new(base, self.host_len()) })
    }
    /// Where `len` bytes at an offset are in the addresses of a device's driver and of its kernels.
    /// None unless they all are in that device.
    fn device_address(&self, _offset: u64, _len: u64) -> Option<u64> {
        None
    }
    /// Copies `dst.len()` bytes out of the memory. Nothing read afterwards is older than what the
    /// writers of these bytes had written before them [I7].
    fn read(&self, offset: u64, dst: &mut [u8]) -> Result<(), StoreError>;
    /// Copies `src` into the memory: not seen before a word stored earlier, and seen whole by
    /// a reader that sees a word stored later [I4].
    fn write(&self, offset: u64, src: &[u8]) -> Result<(), StoreError>;
    /// Loads a word with acquire order.
    fn load(&self, offset: u64) -> Result<u64, StoreError>;
    /// Stores a word with release order.
    fn store(&self, offset: u64, value: u64) -> Result<(), StoreError>;
    /// Compare-and-swap (acquire-release); returns the word found. Swapped iff it equals `expect`.
    fn compare_swap(&self, offset: u64, expect: u64, new: u64) -> Result<u64, StoreError>;
    /// Fetch-and-add (acquire-release); returns the word before.
    fn fetch_add(&self, offset: u64, add: u64) -> Result<u64, StoreError>;
    /// Bytes where they lie. None where others than the caller may write.
    ///
    /// # Safety
    /// The caller writes nothing there while they are borrowed.
    unsafe fn unshared(&self, _offset: u64, _len: u64) -> Option<&[u8]> {
        None
    }
    /// A full fence: every access before it is complete before any access after it.
    fn flush(&self) {
        fence(Ordering::SeqCst);
    }
    /// True for memory of no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Words behind a trait object: each access has the order of the memory's own method, which is the
/// order that `words` asks for or a stronger one.
impl Words for dyn Memory + '_ {
    fn check(&self, what: &'static str, offset: u64, len: u64) -> Result<(), StoreError> {
        StoreError::check_bounds(what, offset, len, self.len())
    }
    fn load_word(&self, offset: u64, _: Ordering) -> Result<u64, StoreError> {
        self.load(offset)
    }
    fn store_word(&self, offset: u64, value: u64, _: Ordering) -> Result<(), StoreError> {
        self.store(offset, value)
    }
    fn swap_word(
        &self,
        offset: u64,
        expect: u64,
        new: u64,
        _: Ordering,
        _: Ordering,
    ) -> Result<u64, StoreError> {
        self.compare_swap(offset, expect, new)
    }
    fn add_word(&self, offset: u64, add: u64, _: Ordering) -> Result<u64, StoreError> {
        self.fetch_add(offset, add)
    }
    fn copy_out(&self, offset: u64, dst: &mut [u8]) -> Result<(), StoreError> {
        self.read(offset, dst)
    }
    fn copy_in(&self, offset: u64, src: &[u8]) -> Result<(), StoreError> {
        self.write(offset, src)
    }
    fn fence(&self, _: Ordering) {
        self.flush();
    }
    fn prefetch(&self, offset: u64, len: u64) {
        // SAFETY: `self` is borrowed meanwhile.
        if let Some(host) = unsafe { self.host() } {
            host.prefetch(offset, len);
        }
    }
}

/// Word and byte access to a range of host memory that a mapping keeps alive.
#[derive(Debug, Clone, Copy)]
pub struct HostRegion {
    base: NonNull<u8>,
    len: u64,
}

// SAFETY: a HostRegion is an address range; every access goes through raw copies or atomics, and
// the protocol's words order them [I4] [I7].
unsafe impl Send for HostRegion {}
// SAFETY: as above.
unsafe impl Sync for HostRegion {}

impl HostRegion {
    /// # Safety
    /// `base` must be 8-byte aligned and valid for reads and writes of `len` bytes for as long as
    /// any method of the value is called.
    pub unsafe fn new(base: NonNull<u8>, len: u64) -> Self {
        Self { base, len }
    }

    /// First byte.
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Length in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// True for a region of no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The address of `len` bytes at `offset`; valid as long as the region is.
    #[inline]
    pub fn at(&self, what: &'static str, offset: u64, len: u64) -> Result<NonNull<u8>, StoreError> {
        StoreError::check_bounds(what, offset, len, self.len)?;
        // SAFETY: offset + len <= self.len, within the range `new` was promised.
        Ok(unsafe { self.base.add(offset as usize) })
    }

    #[inline]
    fn word(&self, offset: u64) -> Result<&AtomicU64, StoreError> {
        let p = self.at("word", offset, 8)?;
        if !offset.is_multiple_of(8) {
            return Err(StoreError::Misaligned { offset });
        }
        // SAFETY: in bounds, aligned (base is), and only ever accessed atomically or under the
        // header protocol [I1].
        Ok(unsafe { AtomicU64::from_ptr(p.as_ptr().cast()) })
    }
}

impl Words for HostRegion {
    #[inline]
    fn check(&self, what: &'static str, offset: u64, len: u64) -> Result<(), StoreError> {
        self.at(what, offset, len).map(drop)
    }

    #[inline]
    fn load_word(&self, offset: u64, order: Ordering) -> Result<u64, StoreError> {
        Ok(self.word(offset)?.load(order))
    }

    #[inline]
    fn store_word(&self, offset: u64, value: u64, order: Ordering) -> Result<(), StoreError> {
        self.word(offset)?.store(value, order);
        Ok(())
    }

    #[inline]
    fn swap_word(
        &self,
        offset: u64,
        expect: u64,
        new: u64,
        done: Ordering,
        failed: Ordering,
    ) -> Result<u64, StoreError> {
        let found = self.word(offset)?.compare_exchange(expect, new, done, failed);
        Ok(found.unwrap_or_else(|found| found))
    }

    #[inline]
    fn add_word(&self, offset: u64, add: u64, order: Ordering) -> Result<u64, StoreError> {
        Ok(self.word(offset)?.fetch_add(add, order))
    }

    fn copy_out(&self, offset: u64, dst: &mut [u8]) -> Result<(), StoreError> {
        let p = self.at("read", offset, dst.len() as u64)?;
        // SAFETY: in bounds; a concurrent writer makes the copy stale, which [I7] detects.
        unsafe { crate::streaming::copy_out(p.as_ptr(), dst.as_mut_ptr(), dst.len()) };
        Ok(())
    }

    fn copy_in(&self, offset: u64, src: &[u8]) -> Result<(), StoreError> {
        let p = self.at("write", offset, src.len() as u64)?;
        // SAFETY: in bounds; only the holder of the plan writes an extent [I10].
        unsafe { crate::streaming::copy_in(src.as_ptr(), p.as_ptr(), src.len()) };
        Ok(())
    }

    #[inline]
    fn fence(&self, order: Ordering) {
        fence(order);
    }

    #[inline]
    fn prefetch(&self, offset: u64, len: u64) {
        if let Ok(at) = self.at("prefetch", offset, len) {
            crate::streaming::prefetch(at.as_ptr(), len as usize);
        }
    }
}

/// Memory that the host's CPU can access, or its part that it can: loads and copies without a call
/// through a trait object.
#[derive(Debug, Clone)]
pub struct HostMemory {
    region: HostRegion,
    memory: Arc<dyn Memory>,
}

impl HostMemory {
    /// None for memory that the CPU cannot access.
    pub fn of(memory: Arc<dyn Memory>) -> Option<Self> {
        // SAFETY: `memory` beside it lives as long.
        Some(Self { region: unsafe { memory.host() }?, memory })
    }

    /// Its words and bytes.
    #[inline]
    pub fn words(&self) -> &HostRegion {
        &self.region
    }

    /// The memory itself.
    pub fn memory(&self) -> &Arc<dyn Memory> {
        &self.memory
    }
}

/// Implements [`Memory`] for a type with a `region: HostRegion` field; `$export` is how other
/// processes reach it.
macro_rules! host_memory {
    ($t:ty, $export:expr) => {
        impl $crate::memory::Memory for $t {
            fn len(&self) -> u64 {
                self.region.len()
            }
            fn export(&self) -> $crate::memory::Export {
                let export: fn(&$t) -> $crate::memory::Export = $export;
                export(self)
            }
            fn host_base(&self) -> Option<std::ptr::NonNull<u8>> {
                Some(self.region.base())
            }
            fn read(&self, offset: u64, dst: &mut [u8]) -> Result<(), $crate::StoreError> {
                $crate::words::read(&self.region, offset, dst)
            }
            fn write(&self, offset: u64, src: &[u8]) -> Result<(), $crate::StoreError> {
                $crate::words::write(&self.region, offset, src)
            }
            fn load(&self, offset: u64) -> Result<u64, $crate::StoreError> {
                $crate::words::load(&self.region, offset)
            }
            fn store(&self, offset: u64, value: u64) -> Result<(), $crate::StoreError> {
                $crate::words::store(&self.region, offset, value)
            }
            fn compare_swap(
                &self,
                at: u64,
                expect: u64,
                new: u64,
            ) -> Result<u64, $crate::StoreError> {
                $crate::words::compare_swap(&self.region, at, expect, new)
            }
            fn fetch_add(&self, offset: u64, add: u64) -> Result<u64, $crate::StoreError> {
                $crate::words::fetch_add(&self.region, offset, add)
            }
        }
    };
}
pub(crate) use host_memory;

/// Size and alignment of a huge page on x86-64 and aarch64 with 4 KiB pages.
pub(crate) const HUGE_PAGE: u64 = 2 << 20;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::words;

    #[test]
    fn accesses_outside_or_misaligned_are_refused() {
        let m = AnonMemory::new(4096).unwrap();
        assert!(matches!(m.write(4090, &[0; 7]), Err(StoreError::OutOfBounds { .. })));
        assert!(matches!(m.read(u64::MAX, &mut [0; 2]), Err(StoreError::OutOfBounds { .. })));
        assert!(matches!(m.load(4), Err(StoreError::Misaligned { .. })));
        m.write(4089, &[1; 7]).unwrap();
    }

    #[test]
    fn words_are_what_was_stored() {
        let m = AnonMemory::new(64).unwrap();
        m.store(8, 7).unwrap();
        assert_eq!(m.fetch_add(8, 3).unwrap(), 7);
        assert_eq!(m.compare_swap(8, 9, 1).unwrap(), 10);
        assert_eq!(m.compare_swap(8, 10, 1).unwrap(), 10);
        assert_eq!(m.load(8).unwrap(), 1);
    }

    #[test]
    fn words_behind_a_trait_object_are_those_of_its_memory() {
        let m: &dyn Memory = &AnonMemory::new(64).unwrap();
        words::store(m, 8, 7).unwrap();
        assert_eq!(words::fetch_add(m, 8, 3).unwrap(), 7);
        assert_eq!(words::compare_swap(m, 8, 9, 1).unwrap(), 10);
        assert_eq!(words::compare_swap(m, 8, 10, 1).unwrap(), 10);
        assert_eq!((words::load(m, 8).unwrap(), m.load(8).unwrap()), (1, 1));
        for bytes in [8, 21] {
            let (written, mut back) = (vec![bytes as u8; bytes], vec![0; bytes]);
            words::write(m, 16, &written).unwrap();
            words::read(m, 16, &mut back).unwrap();
            assert_eq!(back, written);
        }
    }

    #[test]
    fn a_write_that_ends_outside_writes_nothing() {
        let m = AnonMemory::new(64).unwrap();
        let beyond = words::write(&m.region, 56, &[1; 16]).unwrap_err();
        assert!(matches!(beyond, StoreError::OutOfBounds { offset: 56, len: 16, .. }), "{beyond}");
        let beyond = words::write::<dyn Memory>(&m, 56, &[1; 16]).unwrap_err();
        assert!(matches!(beyond, StoreError::OutOfBounds { offset: 56, len: 16, .. }), "{beyond}");
        assert_eq!(m.load(56).unwrap(), 0);
    }
}
