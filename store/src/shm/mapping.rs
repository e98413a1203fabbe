//! One mapping of one file, and the descriptor that keeps its lock. The only place that maps and
//! unmaps shared memory.

use super::pages::HUGE_PAGE;
use crate::error::StoreError;
use crate::fork::MadeIn;
use crate::memory::HostRegion;
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::ffi::c_void;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

/// Step of the fallback that touches pages one by one.
const PAGE: usize = 4096;

/// A mapped file. The descriptor stays open as long as the mapping: in the process that made the
/// segment it carries the lock.
#[derive(Debug)]
pub(super) struct Mapping {
    region: HostRegion,
    fd: OwnedFd,
    /// A forked child has the value but not the mapping.
    made: MadeIn,
}

impl Mapping {
    /// Maps the first `bytes` of a file, shared, readable and writable, and not for forked children:
    /// a late writer in one could not be fenced [I10].
    pub(super) fn of(fd: OwnedFd, bytes: u64, path: &Path) -> Result<Mapping, StoreError> {
        let shown = || format!("{} ({bytes} bytes)", path.display());
        let len = usize::try_from(bytes)
            .ok()
            .filter(|&len| len > 0)
            .ok_or_else(|| StoreError::BadSegment(format!("cannot map {}", shown())))?;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice; it aliases no Rust object. The bytes
        // of a file that others may map are reached only through HostRegion [I7]; those of one that nobody
        // else ever gets are its owner's alone (`UnnamedMemory`).
        let at = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), len, protection, MapFlags::SHARED, &fd, 0)
        }
        .map_err(|e| StoreError::os("mmap", shown(), e))?;
        let base = NonNull::new(at.cast::<u8>())
            .ok_or_else(|| StoreError::BadSegment(format!("mmap of {} at address 0", shown())))?;
        // SAFETY: page aligned and `bytes` long; unmapped only when this value is dropped, and every
        // user of the region holds the Arc that owns it.
        let region = unsafe { HostRegion::new(base, bytes) };
        let mapping = Mapping { region, fd, made: MadeIn::here() };
        mapping.advise(Advice::LinuxDontFork).map_err(|e| StoreError::os("madvise", shown(), e))?;
        if bytes >= HUGE_PAGE {
            // Before the first page is taken. Not allowed, or unknown to the kernel, they stay small.
            let _ = mapping.advise(Advice::LinuxHugepage);
        }
        Ok(mapping)
    }

    pub(super) fn region(&self) -> HostRegion {
        self.region
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// True in the process that mapped it, false in its forked children.
    pub(super) fn made_here(&self) -> bool {
        self.made.is_here()
    }

    /// Takes every page now, for writing.
    pub(super) fn prefault(&self, path: &Path) -> Result<(), StoreError> {
        let bytes = self.region.len();
        let done = match self.advise(Advice::LinuxPopulateWrite) {
            // Kernels before 5.14 do not know the advice.
            Err(Errno::INVAL) => self.touch_pages(),
            done => done,
        };
        match done {
            Ok(()) => Ok(()),
            Err(Errno::NOMEM | Errno::FAULT | Errno::NOSPC) => Err(super::limits::not_enough(
                path.parent().unwrap_or(path),
                bytes,
                "memory ran out while its pages were taken",
            )),
            Err(e) => {
                Err(StoreError::os("madvise(MADV_POPULATE_WRITE)", path.display().to_string(), e))
            }
        }
    }

    fn advise(&self, advice: Advice) -> Result<(), Errno> {
        let (base, len) = self.range();
        // SAFETY: the range is this mapping; no advice changes its contents or moves it.
        unsafe { rustix::mm::madvise(base, len, advice) }
    }

    fn touch_pages(&self) -> Result<(), Errno> {
        // Reserves the file's pages first: touching what cannot be had would be SIGBUS.
        rustix::fs::fallocate(&self.fd, rustix::fs::FallocateFlags::empty(), 0, self.region.len())?;
        for at in (0..self.region.len() as usize / 8 * 8).step_by(PAGE) {
            // SAFETY: inside the mapping and page aligned; adding nothing changes no byte [I1].
            let word = unsafe { AtomicU64::from_ptr(self.region.base().as_ptr().add(at).cast()) };
            word.fetch_or(0, Ordering::Relaxed);
        }
        Ok(())
    }

    fn range(&self) -> (*mut c_void, usize) {
        (self.region.base().as_ptr().cast(), self.region.len() as usize)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // In a forked child nothing is mapped here, or something else is.
        if !self.made_here() {
            return;
        }
        let (base, len) = self.range();
        // SAFETY: mapped in `of` with this length; every handle held the Arc that ends here.
        let r = unsafe { rustix::mm::munmap(base, len) };
        debug_assert!(r.is_ok(), "munmap of our own mapping failed");
    }
}
