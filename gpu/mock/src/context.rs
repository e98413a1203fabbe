//! Devices, their attributes, and contexts, of which each thread has a stack.

use crate::calls::{driver_calls, give, initialise};
use crate::state::{report_at_exit, state};
use crate::{Outcome, code, settings};
use std::cell::RefCell;
use std::ffi::{c_char, c_int, c_uint};

/// Bytes of VRAM of every device.
pub const MEMORY: usize = 80 << 30;
/// A device's context is this number and the device's.
const CONTEXT: u64 = 0x1000;

thread_local! {
    static STACK: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

/// An error unless this thread has a context that is retained.
pub fn check_current() -> Outcome {
    let current = STACK.with_borrow(|stack| stack.last().copied().unwrap_or(0));
    match (current, state().contexts) {
        (0, _) => Err(code::INVALID_CONTEXT),
        (_, 0) => Err(code::CONTEXT_IS_DESTROYED),
        _ => Ok(()),
    }
}

fn devices() -> c_int {
    settings::number("MOCK_CUDA_DEVICES", 1)
}

/// An H100's, but that the host flushes RDMA writes.
fn attribute(number: u32) -> i32 {
    settings::attribute(number).unwrap_or(match number {
        16 => 132,
        75 => 9,
        // Memory pools, 115, are not built.
        76 | 86 | 115 => 0,
        117 => 1,
        118 => 100,
        _ => 1,
    })
}

fn error_name(error: c_uint) -> Option<&'static std::ffi::CStr> {
    Some(match error {
        0 => c"CUDA_SUCCESS",
        1 => c"CUDA_ERROR_INVALID_VALUE",
        2 => c"CUDA_ERROR_OUT_OF_MEMORY",
        3 => c"CUDA_ERROR_NOT_INITIALIZED",
        100 => c"CUDA_ERROR_NO_DEVICE",
        101 => c"CUDA_ERROR_INVALID_DEVICE",
        201 => c"CUDA_ERROR_INVALID_CONTEXT",
        218 => c"CUDA_ERROR_INVALID_PTX",
        304 => c"CUDA_ERROR_OPERATING_SYSTEM",
        400 => c"CUDA_ERROR_INVALID_HANDLE",
        500 => c"CUDA_ERROR_NOT_FOUND",
        600 => c"CUDA_ERROR_NOT_READY",
        700 => c"CUDA_ERROR_ILLEGAL_ADDRESS",
        709 => c"CUDA_ERROR_CONTEXT_IS_DESTROYED",
        719 => c"CUDA_ERROR_LAUNCH_FAILED",
        801 => c"CUDA_ERROR_NOT_SUPPORTED",
        803 => c"CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
        999 => c"CUDA_ERROR_UNKNOWN",
        _ => return None,
    })
}

driver_calls! {
    Nothing cuInit(flags: c_uint) {
        if flags != 0 {
            return Err(code::INVALID_VALUE);
        }
        report_at_exit();
        initialise();
        Ok(())
    }
    Nothing cuDriverGetVersion(version: *mut c_int) {
        give(version, settings::number("MOCK_CUDA_VERSION", 13_000))
    }
    Nothing cuGetErrorName(error: c_uint, name: *mut *const c_char) {
        let found = error_name(error);
        give(name, found.map_or(std::ptr::null(), |name| name.as_ptr()))?;
        found.map(drop).ok_or(code::INVALID_VALUE)
    }
    Nothing cuGetErrorString(error: c_uint, text: *mut *const c_char) {
        give(text, error_name(error).unwrap_or(c"an unknown error").as_ptr())
    }
    Init cuDeviceGetCount(count: *mut c_int) { give(count, devices()) }
    Init cuDeviceGet(device: *mut c_int, ordinal: c_int) {
        if !(0..devices()).contains(&ordinal) {
            return Err(code::INVALID_DEVICE);
        }
        give(device, ordinal)
    }
    Init cuDeviceGetName(name: *mut c_char, len: c_int, _device: c_int) {
        let text = c"mock GPU".to_bytes_with_nul();
        if (len as usize) < text.len() {
            return Err(code::INVALID_VALUE);
        }
        // SAFETY: the caller passes `len` bytes.
        unsafe { name.copy_from_nonoverlapping(text.as_ptr().cast(), text.len()) };
        Ok(())
    }
    Init cuDeviceGetUuid_v2(uuid: *mut [u8; 16], device: c_int) {
        give(uuid, [device as u8 + 1; 16])
    }
    Init cuDeviceTotalMem_v2(bytes: *mut usize, _device: c_int) { give(bytes, MEMORY) }
    Init cuDeviceGetAttribute(value: *mut c_int, number: c_uint, _device: c_int) {
        give(value, attribute(number))
    }
    Init cuDevicePrimaryCtxRetain(context: *mut u64, device: c_int) {
        give(context, CONTEXT + device as u64)?;
        state().contexts += 1;
        Ok(())
    }
    Init cuDevicePrimaryCtxRelease_v2(_device: c_int) {
        let mut state = state();
        state.contexts = state.contexts.checked_sub(1).ok_or(code::INVALID_CONTEXT)?;
        Ok(())
    }
    Init cuDevicePrimaryCtxGetState(_device: c_int, flags: *mut c_uint, active: *mut c_int) {
        give(flags, 0)?;
        give(active, c_int::from(state().contexts > 0))
    }
    Init cuCtxGetCurrent(context: *mut u64) {
        give(context, STACK.with_borrow(|stack| stack.last().copied().unwrap_or(0)))
    }
    Init cuCtxSetCurrent(context: u64) {
        STACK.with_borrow_mut(|stack| {
            stack.pop();
            stack.push(context);
        });
        Ok(())
    }
    Init cuCtxPushCurrent_v2(context: u64) {
        if context < CONTEXT {
            return Err(code::INVALID_CONTEXT);
        }
        STACK.with_borrow_mut(|stack| stack.push(context));
        Ok(())
    }
    Init cuCtxPopCurrent_v2(context: *mut u64) {
        give(context, STACK.with_borrow_mut(Vec::pop).ok_or(code::INVALID_CONTEXT)?)
    }
}
