//! Pinned host memory, and host memory that is registered.

use crate::calls::{driver_calls, give};
use crate::code;
use crate::memory::{map, unmap};
use crate::state::state;
use std::ffi::{c_uint, c_void};

/// All flags that exist of the registration.
const KNOWN_FLAGS: c_uint = 0xf;
/// Registered memory can be accessed by kernels.
const DEVICE_MAP: c_uint = 0x2;

driver_calls! {
    Context cuMemAllocHost_v2(into: *mut *mut c_void, bytes: usize) {
        if bytes == 0 {
            return Err(code::INVALID_VALUE);
        }
        let address = map(0, bytes, libc::PROT_READ | libc::PROT_WRITE, None)?;
        give(into, address as *mut c_void)?;
        state().pinned.insert(address, bytes);
        Ok(())
    }
    Context cuMemFreeHost(base: *mut c_void) {
        let bytes = state().pinned.remove(&(base as u64)).ok_or(code::INVALID_VALUE)?;
        unmap(base as u64, bytes);
        Ok(())
    }
    Context cuMemHostRegister_v2(base: *mut c_void, bytes: usize, flags: c_uint) {
        if base.is_null() || bytes == 0 || flags & !KNOWN_FLAGS != 0 || flags & DEVICE_MAP == 0 {
            return Err(code::INVALID_VALUE);
        }
        let mut state = state();
        let (start, end) = (base as u64, base as u64 + bytes as u64);
        let mut others = state.registered.iter();
        if others.any(|(other, len)| *other < end && start < other + *len as u64) {
            return Err(code::ALREADY_REGISTERED);
        }
        state.registered.insert(start, bytes);
        Ok(())
    }
    Context cuMemHostUnregister(base: *mut c_void) {
        state().registered.remove(&(base as u64)).map(drop).ok_or(code::NOT_REGISTERED)
    }
    Context cuMemHostGetDevicePointer_v2(into: *mut u64, base: *mut c_void, _flags: c_uint) {
        state().check_device(base as u64, 1)?;
        give(into, base as u64)
    }
}
