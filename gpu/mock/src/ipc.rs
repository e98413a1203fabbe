//! Memory of `cuMemAlloc`, and the older calls by which another process maps it. A handle names the
//! process and its descriptor, which the other opens below /proc.

use crate::calls::{driver_calls, give};
use crate::code;
use crate::memory::{len_of, map, memfd, unmap};
use crate::state::{Kind, Range, state};
use std::collections::btree_map::Entry;
use std::ffi::c_uint;
use std::os::fd::{AsRawFd, OwnedFd};

/// How a handle begins.
const MAGIC: [u8; 8] = *b"mock-ipc";

/// `CU_MEMORYTYPE_HOST` and `CU_MEMORYTYPE_DEVICE`.
const HOST_MEMORY: u32 = 1;
const DEVICE_MEMORY: u32 = 2;

/// `CUipcMemHandle`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Handle {
    bytes: [u8; 64],
}

impl Handle {
    fn new(fd: &OwnedFd) -> Self {
        let mut bytes = [0; 64];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&std::process::id().to_ne_bytes());
        bytes[12..16].copy_from_slice(&(fd.as_raw_fd() as u32).to_ne_bytes());
        Self { bytes }
    }

    /// The process and its descriptor.
    fn parse(&self) -> Result<(u32, u32), u32> {
        let word = |at: usize| {
            let mut word = [0; 4];
            word.copy_from_slice(&self.bytes[at..at + 4]);
            u32::from_ne_bytes(word)
        };
        let known = self.bytes[..8] == MAGIC;
        if known { Ok((word(8), word(12))) } else { Err(code::INVALID_VALUE) }
    }
}

const READ_WRITE: i32 = libc::PROT_READ | libc::PROT_WRITE;

driver_calls! {
    Context cuMemAlloc_v2(into: *mut u64, bytes: usize) {
        if bytes == 0 {
            return Err(code::INVALID_VALUE);
        }
        let bytes = bytes.next_multiple_of(512);
        let fd = memfd(bytes)?;
        let address = map(0, bytes, READ_WRITE, Some(&fd))?;
        give(into, address)?;
        state().ranges.insert(address, Range { bytes, kind: Kind::Allocated { fd } });
        Ok(())
    }
    Context cuMemFree_v2(address: u64) {
        let mut state = state();
        let Entry::Occupied(entry) = state.ranges.entry(address) else {
            return Err(code::INVALID_VALUE);
        };
        if !matches!(entry.get().kind, Kind::Allocated { .. }) {
            return Err(code::INVALID_VALUE);
        }
        unmap(address, entry.remove().bytes);
        Ok(())
    }
    Context cuMemGetAddressRange_v2(base: *mut u64, bytes: *mut usize, address: u64) {
        let state = state();
        let (start, range) = state.range_of(address)?;
        give(base, start)?;
        give(bytes, range.bytes)
    }
    Context cuPointerGetAttribute(into: *mut u32, attribute: c_uint, address: u64) {
        let state = state();
        let kind = match state.range_of(address) {
            Ok(_) => DEVICE_MEMORY,
            Err(_) => state.check_device(address, 1).map(|()| HOST_MEMORY)?,
        };
        match attribute {
            2 => give(into, kind),
            // The one device.
            9 => give(into, 0),
            _ => Err(code::INVALID_VALUE),
        }
    }
    Context cuIpcGetMemHandle(into: *mut Handle, address: u64) {
        match &state().range_of(address)?.1.kind {
            Kind::Allocated { fd } => give(into, Handle::new(fd)),
            // As the real call: memory by handle has descriptors instead.
            Kind::Reserved { .. } | Kind::Opened => Err(code::INVALID_VALUE),
        }
    }
    Context cuIpcOpenMemHandle_v2(into: *mut u64, handle: Handle, flags: c_uint) {
        let (pid, fd) = handle.parse()?;
        if pid == std::process::id() {
            return Err(code::INVALID_CONTEXT);
        }
        if flags != 1 {
            return Err(code::INVALID_VALUE);
        }
        let path = format!("/proc/{pid}/fd/{fd}");
        let opened = std::fs::File::options().read(true).write(true).open(path);
        let fd = OwnedFd::from(opened.map_err(|_| code::INVALID_VALUE)?);
        let bytes = len_of(&fd)?;
        let address = map(0, bytes, READ_WRITE, Some(&fd))?;
        give(into, address)?;
        state().ranges.insert(address, Range { bytes, kind: Kind::Opened });
        Ok(())
    }
    Context cuIpcCloseMemHandle(address: u64) {
        let mut state = state();
        let Entry::Occupied(entry) = state.ranges.entry(address) else {
            return Err(code::INVALID_VALUE);
        };
        if !matches!(entry.get().kind, Kind::Opened) {
            return Err(code::INVALID_VALUE);
        }
        unmap(address, entry.remove().bytes);
        Ok(())
    }
}
