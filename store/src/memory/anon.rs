//! Anonymous memory: of this process, and of one caller alone.

use super::{Export, HUGE_PAGE, HostRegion, Memory, host_memory};
use crate::error::StoreError;
use std::ptr::NonNull;

/// A private anonymous mapping: zero bytes, page aligned.
#[derive(Debug)]
pub(crate) struct AnonMap {
    mapped: NonNull<u8>,
    mapped_len: usize,
    base: NonNull<u8>,
}

// SAFETY: the mapping is private to this value, like a Box<[u8]>.
unsafe impl Send for AnonMap {}
// SAFETY: as above; access is in the hands of the value that it is part of.
unsafe impl Sync for AnonMap {}

impl AnonMap {
    /// Maps `len` bytes, at least 1.
    pub(crate) fn new(len: usize) -> Result<Self, StoreError> {
        use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
        let (len, protection) = (len.max(1), ProtFlags::READ | ProtFlags::WRITE);
        // SAFETY: a fresh private mapping at an address of the kernel's choice.
        let at =
            unsafe { mmap_anonymous(std::ptr::null_mut(), len, protection, MapFlags::PRIVATE) }
                .map_err(|e| StoreError::os("mmap", format!("{len} anonymous bytes"), e))?;
        let mapped = NonNull::new(at.cast())
            .ok_or_else(|| StoreError::BadSegment("mmap returned a null address".to_string()))?;
        Ok(Self { mapped, mapped_len: len, base: mapped })
    }

    /// Maps `len` bytes, in huge pages where the kernel provides them and one is filled.
    pub(crate) fn huge(len: usize) -> Result<Self, StoreError> {
        use rustix::mm::{Advice, madvise};
        let huge = HUGE_PAGE as usize;
        if len < huge {
            return Self::new(len);
        }
        let mut map = Self::new(len + huge)?;
        let start = map.mapped.as_ptr().align_offset(huge);
        // SAFETY: a huge page begins at most HUGE_PAGE - 1 bytes into what was mapped.
        map.base = unsafe { map.mapped.add(start) };
        // SAFETY: inside the mapping just made. Advice only: refused, the pages stay small.
        let _ = unsafe { madvise(map.base.as_ptr().cast(), len, Advice::LinuxHugepage) };
        Ok(map)
    }

    /// First byte; mapped until the value is dropped.
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }
}

impl Drop for AnonMap {
    fn drop(&mut self) {
        // SAFETY: mapped in `new` with this length; no access can follow, `self` is gone.
        let r = unsafe { rustix::mm::munmap(self.mapped.as_ptr().cast(), self.mapped_len) };
        debug_assert!(r.is_ok(), "munmap of our own mapping failed");
    }
}

/// Anonymous memory of this process only: for tests, models and simulation.
#[derive(Debug)]
pub struct AnonMemory {
    pub(super) region: HostRegion,
    _map: AnonMap,
}

impl AnonMemory {
    /// Maps `len` zero bytes (page aligned).
    pub fn new(len: u64) -> Result<Self, StoreError> {
        Self::of(AnonMap::new(len as usize)?, len)
    }

    /// The same, in huge pages where the kernel provides them: a disk reads into these faster.
    pub fn huge(len: u64) -> Result<Self, StoreError> {
        Self::of(AnonMap::huge(len as usize)?, len)
    }

    fn of(map: AnonMap, len: u64) -> Result<Self, StoreError> {
        // SAFETY: the mapping is page aligned, `len` long, and unmapped only with `_map`.
        let region = unsafe { HostRegion::new(map.base(), len) };
        Ok(Self { region, _map: map })
    }

    /// The first `len` bytes, at most all; while they are borrowed nobody writes there.
    pub fn bytes(&mut self, len: usize) -> &[u8] {
        let len = len.min(self.region.len() as usize);
        // SAFETY: so many bytes are mapped until Drop, and `self`, through which alone they are
        // written, is borrowed mutably.
        unsafe { std::slice::from_raw_parts(self.region.base().as_ptr(), len) }
    }
}

host_memory!(AnonMemory, |_| Export::Private);

/// Anonymous memory that one caller has for itself, as a buffer for a disk.
#[derive(Debug)]
pub struct OwnMemory<'a>(&'a AnonMemory);

impl<'a> OwnMemory<'a> {
    /// Nobody else has it meanwhile.
    pub fn of(memory: &'a mut AnonMemory) -> Self {
        Self(memory)
    }
}

impl Memory for OwnMemory<'_> {
    fn len(&self) -> u64 {
        self.0.len()
    }
    fn export(&self) -> Export {
        self.0.export()
    }
    fn host_base(&self) -> Option<NonNull<u8>> {
        self.0.host_base()
    }
    fn read(&self, offset: u64, dst: &mut [u8]) -> Result<(), StoreError> {
        self.0.read(offset, dst)
    }
    fn write(&self, offset: u64, src: &[u8]) -> Result<(), StoreError> {
        self.0.write(offset, src)
    }
    fn load(&self, offset: u64) -> Result<u64, StoreError> {
        self.0.load(offset)
    }
    fn store(&self, offset: u64, value: u64) -> Result<(), StoreError> {
        self.0.store(offset, value)
    }
    fn compare_swap(&self, offset: u64, expect: u64, new: u64) -> Result<u64, StoreError> {
        self.0.compare_swap(offset, expect, new)
    }
    fn fetch_add(&self, offset: u64, add: u64) -> Result<u64, StoreError> {
        self.0.fetch_add(offset, add)
    }
    unsafe fn unshared(&self, offset: u64, len: u64) -> Option<&[u8]> {
        let end = offset.checked_add(len)?;
        if end > self.len() {
            return None;
        }
        // SAFETY: within the mapping, which lives as long as `self`; the memory is borrowed mutably
        // by this value, and its only user writes nothing there, as the caller says.
        unsafe {
            let start = self.0.region.base().add(offset as usize);
            Some(std::slice::from_raw_parts(start.as_ptr(), len as usize))
        }
    }
}
