//! One mapping of one file, and the descriptor of that file. The only place that maps and unmaps
//! shared memory.

use super::pages::HUGE_PAGE;
use crate::error::StoreError;
use crate::fork::ProcessMark;
use crate::memory::HostRegion;
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::ffi::c_void;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

/// Step of the fallback that touches pages one by one.
const PAGE: usize = 4096;
/// Bytes that one call converts to huge pages: in each call the kernel synchronises all processors.
pub(super) const BATCH: u64 = 32 * HUGE_PAGE;
/// Huge pages that the kernel may refuse in a row before no more are requested: for each refusal
/// the kernel searches its memory.
const MAX_REFUSED: u32 = 16;

/// A mapped file. The descriptor stays open as long as the mapping: a segment's name links to it.
#[derive(Debug)]
pub(super) struct Mapping {
    region: HostRegion,
    fd: OwnedFd,
    /// Bytes that [`Mapping::prefault_huge`] got in huge pages.
    huge: AtomicU64,
    /// Process that mapped it: a forked child has the value but not the mapping.
    made: ProcessMark,
}

impl Mapping {
    /// Maps the first `bytes` of a file, shared, readable and writable, but not in forked children:
    /// a late writer in a child could not be fenced [I10].
    pub(super) fn of(fd: OwnedFd, bytes: u64, path: &Path) -> Result<Mapping, StoreError> {
        let shown = || format!("{} ({bytes} bytes)", path.display());
        let len = usize::try_from(bytes)
            .ok()
            .filter(|&len| len > 0)
            .ok_or_else(|| StoreError::BadSegment(format!("cannot map {}", shown())))?;
        let at = map_shared(&fd, len).map_err(|e| StoreError::os("mmap", shown(), e))?;
        let base = NonNull::new(at.cast::<u8>())
            .ok_or_else(|| StoreError::BadSegment(format!("mmap of {} at address 0", shown())))?;
        // SAFETY: page aligned and `bytes` long; unmapped only when this value is dropped, and
        // every user of the region holds the Arc that owns it.
        let region = unsafe { HostRegion::new(base, bytes) };
        let mapping = Mapping { region, fd, huge: AtomicU64::new(0), made: ProcessMark::here() };
        mapping.advise(Advice::LinuxDontFork).map_err(|e| StoreError::os("madvise", shown(), e))?;
        if bytes >= HUGE_PAGE {
            // Before the first page is allocated. If it is not allowed, or unknown to the kernel,
            // the pages stay small.
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

    /// Bytes in huge pages, as far as this process requested them one by one.
    pub(super) fn huge_bytes(&self) -> u64 {
        self.huge.load(Ordering::Relaxed)
    }

    /// Allocates every page now, for writing: huge pages as far as the kernel has any, at once and
    /// for every process that maps the file. Returns the kernel's last error about huge pages, if
    /// any.
    pub(super) fn prefault_huge(&self, path: &Path) -> Result<Option<io::Error>, StoreError> {
        let refused = self.take_huge_pages();
        self.prefault(path)?;
        Ok(refused)
    }

    fn take_huge_pages(&self) -> Option<io::Error> {
        let end = self.region.len() / HUGE_PAGE * HUGE_PAGE;
        let (mut refused, mut last) = (0, None);
        for from in (0..end).step_by(BATCH as usize) {
            let to = end.min(from + BATCH);
            if self.take_huge(from..to).is_ok() {
                refused = 0;
                continue;
            }
            // One by one, to find out which of them fails.
            for at in (from..to).step_by(HUGE_PAGE as usize) {
                match self.take_huge(at..at + HUGE_PAGE) {
                    Ok(()) => refused = 0,
                    Err(e) => {
                        last = Some(e);
                        refused += 1;
                    }
                }
                if refused == MAX_REFUSED {
                    return last;
                }
            }
        }
        last
    }

    /// This call does not depend on the machine's setting for shared memory (Linux 6.1).
    fn take_huge(&self, range: Range<u64>) -> io::Result<()> {
        let address = |at: u64| self.region.base().as_ptr().wrapping_add(at as usize).cast();
        // The kernel refuses a huge page of which no small page exists. Uses a call: touching could
        // be SIGBUS.
        for at in range.clone().step_by(HUGE_PAGE as usize) {
            // SAFETY: a page of this mapping; populating changes no byte of it.
            unsafe { rustix::mm::madvise(address(at), PAGE, Advice::LinuxPopulateWrite) }?;
        }
        let (first, bytes): (*mut c_void, _) = (address(range.start), range.end - range.start);
        // SAFETY: inside the mapping; the kernel moves the bytes to other memory, and whoever
        // touches them meanwhile waits: no byte and no word changes [I1].
        match unsafe { libc::madvise(first, bytes as usize, libc::MADV_COLLAPSE) } {
            0 => {
                self.huge.fetch_add(bytes, Ordering::Relaxed);
                Ok(())
            }
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Allocates every page now, for writing.
    pub(super) fn prefault(&self, path: &Path) -> Result<(), StoreError> {
        let bytes = self.region.len();
        let done = match self.advise(Advice::LinuxPopulateWrite) {
            // Kernels before 5.14 do not know the advice.
            Err(Errno::INVAL) => self.touch_pages(),
            done => done,
        };
        match done {
            Ok(()) => Ok(()),
            Err(Errno::NOMEM | Errno::FAULT | Errno::NOSPC) => {
                Err(super::limits::not_enough(bytes, "memory ran out while allocating its pages"))
            }
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
        // Reserves the file's pages first: touching a page that cannot be allocated would be
        // SIGBUS.
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

/// Maps the file's first `len` bytes, shared. From one huge page on, the address is a multiple of
/// the huge page size, else the kernel could not map huge pages.
fn map_shared(fd: &OwnedFd, len: usize) -> Result<*mut c_void, Errno> {
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    let map = |at: *mut c_void, flags: MapFlags| {
        // SAFETY: a new mapping, at an address of the kernel's choice or over addresses that were
        // reserved for it; it aliases no Rust object. The bytes of a file that others may map are
        // reached only through HostRegion [I7]; those of one that nobody else ever gets are its
        // owner's alone (`AnonPages`).
        unsafe { rustix::mm::mmap(at, len, protection, flags, fd, 0) }
    };
    let huge = HUGE_PAGE as usize;
    if len < huge {
        return map(std::ptr::null_mut(), MapFlags::SHARED);
    }
    let mapped = len.checked_next_multiple_of(PAGE).ok_or(Errno::NOMEM)?;
    let reserved = mapped.checked_add(huge).ok_or(Errno::NOMEM)?;
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: fresh addresses of the kernel's choice, which nothing may be read from or written to.
    let first = unsafe {
        rustix::mm::mmap_anonymous(std::ptr::null_mut(), reserved, ProtFlags::empty(), flags)
    }?;
    let before = first.addr().wrapping_neg() % huge;
    let at = first.wrapping_byte_add(before);
    let release = |from: *mut c_void, len: usize| {
        if len > 0 {
            // SAFETY: of the addresses reserved above, those that no mapping of ours lies at.
            let released = unsafe { rustix::mm::munmap(from, len) };
            debug_assert!(released.is_ok(), "munmap of reserved addresses failed");
        }
    };
    let done = map(at, MapFlags::SHARED | MapFlags::FIXED);
    if done.is_err() {
        release(first, reserved);
        return done;
    }
    release(first, before);
    release(at.wrapping_byte_add(mapped), huge - before);
    done
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // In a forked child this range is not mapped, or something else is.
        if !self.made_here() {
            return;
        }
        let (base, len) = self.range();
        // SAFETY: mapped in `of` with this length; every handle held the Arc that ends here.
        let r = unsafe { rustix::mm::munmap(base, len) };
        debug_assert!(r.is_ok(), "munmap of our own mapping failed");
    }
}
