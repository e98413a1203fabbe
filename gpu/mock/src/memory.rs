//! VRAM: memory by handle, ranges of addresses, and what is mapped where.

use crate::calls::{driver_calls, give};
use crate::context::MEMORY;
use crate::state::{Handle, Kind, Range, next_number, state};
use crate::{Outcome, code};
use std::ffi::{c_int, c_uint, c_ulonglong, c_void};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};

/// Memory is allocated and mapped in multiples of this.
const GRANULARITY: usize = 2 << 20;
/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`.
const FD_KIND: c_int = 1;

/// `CUmemLocation`.
#[repr(C)]
pub struct Location {
    kind: c_uint,
    id: c_int,
}

/// `CUmemAllocationProp`.
#[repr(C)]
pub struct Properties {
    kind: c_uint,
    handles: c_int,
    location: Location,
    _windows: *mut c_void,
    _compression: u8,
    rdma: u8,
    _usage: u16,
    _reserved: [u8; 4],
}

/// `CUmemAccessDesc`.
#[repr(C)]
pub struct AccessOf {
    location: Location,
    flags: c_uint,
}

/// Memory of as many zero bytes.
pub fn memfd(bytes: usize) -> Result<OwnedFd, u32> {
    // SAFETY: the name is a C string; the result is checked.
    let fd = unsafe { libc::memfd_create(c"mock-vram".as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(code::OPERATING_SYSTEM);
    }
    // SAFETY: made above.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: a call on that descriptor.
    let sized = unsafe { libc::ftruncate(fd.as_raw_fd(), bytes as i64) };
    if sized == 0 { Ok(fd) } else { Err(code::OUT_OF_MEMORY) }
}

/// Bytes of a descriptor's file.
pub fn len_of(fd: &OwnedFd) -> Result<usize, u32> {
    // SAFETY: a zeroed `stat` is a valid one, and the call fills it.
    let stat = unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        (libc::fstat(fd.as_raw_fd(), &mut stat) == 0).then_some(stat)
    };
    stat.map(|stat| stat.st_size as usize).ok_or(code::INVALID_VALUE)
}

/// Maps a file, or no memory at all, at an address or where there is room.
pub fn map(at: u64, bytes: usize, protection: c_int, fd: Option<&OwnedFd>) -> Result<u64, u32> {
    let flags = match fd {
        Some(_) => libc::MAP_SHARED,
        None => libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
    } | if at == 0 { 0 } else { libc::MAP_FIXED };
    let fd = fd.map_or(-1, AsRawFd::as_raw_fd);
    // SAFETY: a fixed address is one of a reservation of this library.
    let mapped = unsafe { libc::mmap(at as *mut c_void, bytes, protection, flags, fd, 0) };
    if mapped == libc::MAP_FAILED { Err(code::OUT_OF_MEMORY) } else { Ok(mapped as u64) }
}

/// Gives addresses back.
pub fn unmap(at: u64, bytes: usize) {
    // SAFETY: a whole range of this library's, which its caller gives up.
    unsafe { libc::munmap(at as *mut c_void, bytes) };
}

fn whole_units(bytes: usize) -> Outcome {
    let whole = bytes > 0 && bytes.is_multiple_of(GRANULARITY);
    if whole { Ok(()) } else { Err(code::INVALID_VALUE) }
}

fn check_properties(of: *const Properties) -> Outcome {
    // SAFETY: the caller passes a valid pointer or null.
    let of = unsafe { of.as_ref() }.ok_or(code::INVALID_VALUE)?;
    let pinned_on_device = (of.kind, of.location.kind) == (1, 1) && of.location.id >= 0;
    let known = pinned_on_device && of.handles == FD_KIND && of.rdma <= 1;
    if known { Ok(()) } else { Err(code::INVALID_VALUE) }
}

/// A reservation that begins at this address and has this length.
fn reservation(range: Option<&mut Range>, bytes: usize) -> Result<&mut Kind, u32> {
    let range = range.filter(|range| range.bytes == bytes).ok_or(code::INVALID_VALUE)?;
    Ok(&mut range.kind)
}

fn duplicate(fd: &OwnedFd) -> Result<OwnedFd, u32> {
    fd.try_clone().map_err(|_| code::OPERATING_SYSTEM)
}

driver_calls! {
    Context cuMemGetAllocationGranularity(into: *mut usize, of: *const Properties, _f: c_uint) {
        check_properties(of)?;
        give(into, GRANULARITY)
    }
    Context cuMemCreate(into: *mut u64, bytes: usize, of: *const Properties, flags: c_ulonglong) {
        whole_units(bytes)?;
        check_properties(of)?;
        if flags != 0 {
            return Err(code::INVALID_VALUE);
        }
        let mut state = state();
        let used: usize = state.handles.values().map(|handle| handle.bytes).sum();
        if used.saturating_add(bytes) > MEMORY {
            return Err(code::OUT_OF_MEMORY);
        }
        let number = next_number();
        give(into, number)?;
        state.handles.insert(number, Handle { fd: memfd(bytes)?, bytes });
        Ok(())
    }
    Context cuMemExportToShareableHandle(
        into: *mut c_int, handle: u64, kind: c_int, _flags: c_ulonglong
    ) {
        if kind != FD_KIND {
            return Err(code::NOT_SUPPORTED);
        }
        let state = state();
        let handle = state.handles.get(&handle).ok_or(code::INVALID_VALUE)?;
        give(into, duplicate(&handle.fd)?.into_raw_fd())
    }
    Context cuMemImportFromShareableHandle(into: *mut u64, value: *mut c_void, kind: c_int) {
        let fd = value as usize as c_int;
        if kind != FD_KIND || fd < 0 {
            return Err(code::INVALID_VALUE);
        }
        // SAFETY: the caller passes an open descriptor, which it keeps.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        let fd = fd.try_clone_to_owned().map_err(|_| code::INVALID_VALUE)?;
        let bytes = len_of(&fd)?;
        whole_units(bytes)?;
        let number = next_number();
        give(into, number)?;
        state().handles.insert(number, Handle { fd, bytes });
        Ok(())
    }
    Context cuMemRelease(handle: u64) {
        state().handles.remove(&handle).map(drop).ok_or(code::INVALID_VALUE)
    }
    Context cuMemAddressReserve(
        into: *mut u64, bytes: usize, _alignment: usize, _wanted: u64, _flags: c_ulonglong
    ) {
        whole_units(bytes)?;
        let address = map(0, bytes, libc::PROT_NONE, None)?;
        give(into, address)?;
        let kind = Kind::Reserved { mapped: None, accessible: false };
        state().ranges.insert(address, Range { bytes, kind });
        Ok(())
    }
    Context cuMemAddressFree(address: u64, bytes: usize) {
        let mut state = state();
        match reservation(state.ranges.get_mut(&address), bytes)? {
            Kind::Reserved { mapped: None, .. } => {}
            _ => return Err(code::INVALID_VALUE),
        }
        state.ranges.remove(&address);
        unmap(address, bytes);
        Ok(())
    }
    Context cuMemMap(
        address: u64, bytes: usize, offset: usize, handle: u64, _flags: c_ulonglong
    ) {
        let mut state = state();
        let of = state.handles.get(&handle).ok_or(code::INVALID_VALUE)?;
        let (fd, len) = (duplicate(&of.fd)?, of.bytes);
        let kind = reservation(state.ranges.get_mut(&address), bytes)?;
        let (Kind::Reserved { mapped, .. }, true) = (kind, offset == 0 && bytes <= len) else {
            return Err(code::INVALID_VALUE);
        };
        if mapped.is_some() {
            return Err(code::INVALID_VALUE);
        }
        map(address, bytes, libc::PROT_NONE, Some(&fd))?;
        *mapped = Some(fd);
        Ok(())
    }
    Context cuMemSetAccess(address: u64, bytes: usize, to: *const AccessOf, count: usize) {
        // SAFETY: the caller passes a valid pointer or null.
        let to = unsafe { to.as_ref() }.ok_or(code::INVALID_VALUE)?;
        let mut state = state();
        let kind = reservation(state.ranges.get_mut(&address), bytes)?;
        let read_write = (count, to.location.kind, to.flags) == (1, 1, 3);
        let (Kind::Reserved { mapped: Some(_), accessible }, true) = (kind, read_write) else {
            return Err(code::INVALID_VALUE);
        };
        let allowed = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a range of this library's.
        if unsafe { libc::mprotect(address as *mut c_void, bytes, allowed) } != 0 {
            return Err(code::OPERATING_SYSTEM);
        }
        *accessible = true;
        Ok(())
    }
    Context cuMemUnmap(address: u64, bytes: usize) {
        let mut state = state();
        let kind = reservation(state.ranges.get_mut(&address), bytes)?;
        let Kind::Reserved { mapped: mapped @ Some(_), accessible } = kind else {
            return Err(code::INVALID_VALUE);
        };
        map(address, bytes, libc::PROT_NONE, None)?;
        (*mapped, *accessible) = (None, false);
        Ok(())
    }
    Context cuMemGetHandleForAddressRange(
        into: *mut c_int, address: u64, bytes: usize, kind: c_int, _flags: c_ulonglong
    ) {
        let state = state();
        let (start, range) = state.range_of(address)?;
        let (Kind::Reserved { mapped: Some(fd), .. }, FD_KIND) = (&range.kind, kind) else {
            return Err(code::INVALID_VALUE);
        };
        if start != address || bytes > range.bytes || !bytes.is_multiple_of(4096) {
            return Err(code::INVALID_VALUE);
        }
        give(into, duplicate(fd)?.into_raw_fd())
    }
}
