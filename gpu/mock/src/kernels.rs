//! Modules and launches: the text of PTX runs on the processor, in the thread of its stream.

use crate::calls::{driver_calls, give};
use crate::state::{next_number, state};
use crate::stream::stream;
use crate::{Outcome, code, settings};
use nkv_ptx::{Kernel, Launch, Module};
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A kernel of a loaded module.
#[derive(Clone)]
pub struct Function {
    module: Arc<Module>,
    of: u64,
    name: String,
    /// Most dynamic shared memory of a launch.
    shared_bytes: c_uint,
}

/// `CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES`.
const MAX_DYNAMIC_SHARED: c_int = 8;
/// Shared memory of a block without that attribute, and with it, of an H100.
const USUAL_SHARED: c_uint = 48 << 10;
const MOST_SHARED: c_int = 227 << 10;
/// Most threads of a block, by the bounds that the kernels were compiled with.
const MOST_THREADS: c_uint = 512;

impl Function {
    fn kernel(&self) -> Result<&Kernel, u32> {
        self.module.kernel(&self.name).ok_or(code::NOT_FOUND)
    }
}

/// The values that the caller's pointers lead to, one for each parameter.
///
/// # Safety
/// There are as many pointers as parameters, each to as many bytes as the parameter has.
unsafe fn arguments(kernel: &Kernel, values: *const *const u8) -> Vec<u64> {
    let of = kernel.params().iter().enumerate();
    of.map(|(at, parameter)| {
        let mut word = [0; 8];
        let width = usize::from(parameter.width).min(8);
        // SAFETY: by this function's contract.
        unsafe { word.as_mut_ptr().copy_from_nonoverlapping(*values.add(at), width) };
        u64::from_le_bytes(word)
    })
    .collect()
}

/// Each launch has a schedule of its own.
fn next_seed() -> u64 {
    static LAUNCHES: AtomicU64 = AtomicU64::new(0);
    let seed: u64 = settings::number("MOCK_CUDA_SEED", 1);
    seed.wrapping_mul(1 << 20) + LAUNCHES.fetch_add(1, Ordering::Relaxed) + 1
}

/// Parses a module's text. On an error the reason goes to `log`.
///
/// # Safety
/// `image` is a text that ends with a zero byte.
unsafe fn load(into: *mut u64, image: *const c_char, log: impl FnOnce(&str)) -> Outcome {
    // SAFETY: by this function's contract.
    let text = unsafe { CStr::from_ptr(image) }.to_str().map_err(|_| code::INVALID_IMAGE)?;
    let module = Module::parse(text).map_err(|e| {
        log(&e.to_string());
        code::INVALID_PTX
    })?;
    let number = next_number();
    give(into, number)?;
    state().modules.insert(number, Arc::new(module));
    Ok(())
}

/// Options of `cuModuleLoadDataEx`: the address of a buffer for errors, and its length.
const ERROR_LOG: c_uint = 5;
const ERROR_LOG_BYTES: c_uint = 6;

driver_calls! {
    Context cuModuleLoadData(into: *mut u64, image: *const c_char) {
        // SAFETY: the caller's contract with the real call is the same.
        unsafe { load(into, image, |e| eprintln!("mock CUDA: {e}")) }
    }
    Context cuModuleLoadDataEx(
        into: *mut u64, image: *const c_char, count: c_uint, options: *const c_uint,
        values: *mut usize
    ) {
        let (mut buffer, mut bytes) = (0, None);
        for at in 0..count as usize {
            // SAFETY: the caller passes two lists of `count` elements.
            match unsafe { (*options.add(at), *values.add(at)) } {
                (ERROR_LOG, address) => buffer = address,
                (ERROR_LOG_BYTES, room) => bytes = Some((at, room)),
                _ => return Err(code::INVALID_VALUE),
            }
        }
        // SAFETY: the caller's contract with the real call is the same.
        unsafe {
            load(into, image, |text| {
                let Some((at, room)) = bytes.filter(|(_, room)| buffer != 0 && *room > 0) else {
                    return;
                };
                let n = text.len().min(room - 1);
                (buffer as *mut u8).copy_from_nonoverlapping(text.as_ptr(), n);
                (buffer as *mut u8).add(n).write(0);
                *values.add(at) = n + 1;
            })
        }
    }
    Context cuFuncSetAttribute(function: u64, attribute: c_int, value: c_int) {
        let mut state = state();
        let function = state.functions.get_mut(&function).ok_or(code::INVALID_HANDLE)?;
        if attribute != MAX_DYNAMIC_SHARED || !(0..=MOST_SHARED).contains(&value) {
            return Err(code::INVALID_VALUE);
        }
        function.shared_bytes = value as c_uint;
        Ok(())
    }
    Context cuModuleUnload(module: u64) {
        let mut state = state();
        state.modules.remove(&module).ok_or(code::INVALID_HANDLE)?;
        state.functions.retain(|_, function| function.of != module);
        Ok(())
    }
    Context cuModuleGetFunction(into: *mut u64, of: u64, name: *const c_char) {
        // SAFETY: the caller passes a C string.
        let name = unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned();
        let mut state = state();
        let module = state.modules.get(&of).ok_or(code::INVALID_HANDLE)?.clone();
        let function = Function { module, of, name, shared_bytes: USUAL_SHARED };
        function.kernel()?;
        let number = next_number();
        give(into, number)?;
        state.functions.insert(number, function);
        Ok(())
    }
    Context cuLaunchKernel(
        function: u64, grid: c_uint, grid_y: c_uint, grid_z: c_uint, block: c_uint,
        block_y: c_uint, block_z: c_uint, shared_bytes: c_uint, handle: u64,
        values: *const *const u8, extra: *const *const c_void
    ) {
        let flat = [grid_y, grid_z, block_y, block_z] == [1; 4];
        if !flat || !extra.is_null() {
            return Err(code::NOT_SUPPORTED);
        }
        let function = state().functions.get(&function).ok_or(code::INVALID_HANDLE)?.clone();
        let kernel = function.kernel()?;
        let threads = (1..=MOST_THREADS).contains(&block);
        if grid == 0 || !threads || shared_bytes > function.shared_bytes {
            return Err(code::INVALID_VALUE);
        }
        if values.is_null() && !kernel.params().is_empty() {
            return Err(code::INVALID_VALUE);
        }
        // SAFETY: the caller's contract with the real call is the same.
        let args = unsafe { arguments(kernel, values) };
        let seed = next_seed();
        let launch = Launch { grid, block, args, seed, shared_bytes, ..Launch::default() };
        stream(handle)?.push_fallible(move || {
            let kernel = function.kernel()?;
            // SAFETY: addresses are the caller's to get right, as on a GPU.
            let ran = unsafe { nkv_ptx::run(kernel, &launch) };
            ran.map(drop).map_err(|e| {
                eprintln!("mock CUDA: {}: {e}", function.name);
                code::LAUNCH_FAILED
            })
        })
    }
}
