//! What this program does as a task, and what tasks share.

use crate::start::TASK;
use crate::{conformance, failures, launches, memory, opening, processes, stand_in, tensors};
use cudarc::driver::sys;
use nkv_gpu::driver::{Device, Driver, DriverError};
use nkv_gpu::vram::{DeviceRange, Vram, VramMemory};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;

/// The end of a task: an error's text goes to the error stream.
pub type Done = Result<(), Error>;
/// Any error.
pub type Error = Box<dyn std::error::Error>;

/// Runs the task that the environment names.
pub fn run() -> Option<ExitCode> {
    let name = std::env::var(TASK).ok()?;
    let all = [
        opening::tasks(),
        memory::tasks(),
        failures::tasks(),
        launches::tasks(),
        processes::tasks(),
        stand_in::tasks(),
        conformance::tasks(),
        tensors::tasks(),
    ];
    let (_, body) = all.iter().copied().flatten().find(|(known, _)| *known == name).unwrap();
    Some(match body() {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("error: {e}");
            ExitCode::FAILURE
        }
    })
}

/// Name and body of each task of a module.
pub type Tasks = &'static [(&'static str, fn() -> Done)];

/// This program as another task, with the same library but without what the environment asks of
/// this one; its streams are pipes.
pub fn other(name: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.env(TASK, name).stdin(Stdio::piped()).stdout(Stdio::piped());
    for setting in ["MOCK_CUDA_FAIL", "MOCK_CUDA_LOG", "MOCK_CUDA_LEAKS"] {
        command.env_remove(setting);
    }
    command
}

/// GPU 0.
pub fn device() -> Result<Arc<Device>, DriverError> {
    Device::new(Driver::open()?, 0)
}

/// New VRAM of so many bytes as a memory.
pub fn vram(device: &Arc<Device>, bytes: u64) -> Result<VramMemory, DriverError> {
    VramMemory::new(Arc::new(Vram::allocate(device, bytes)?))
}

/// Bytes that differ from place to place and by seed.
pub fn pattern(seed: u64, bytes: usize) -> Vec<u8> {
    (0..bytes as u64)
        .map(|at| ((at ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8)
        .collect()
}

/// Memory as PyTorch allocates it, with the context current on this thread.
pub struct Tensor(pub u64);

impl Tensor {
    /// The device's context must be retained by the caller as long as this lives.
    pub fn new(bytes: usize) -> Self {
        let mut address = 0;
        let mut context = std::ptr::null_mut();
        // SAFETY: the library has these calls; the pointers live until they return.
        unsafe {
            sys::cuDevicePrimaryCtxRetain(&mut context, 0).result().unwrap();
            sys::cuCtxSetCurrent(context).result().unwrap();
            sys::cuMemAlloc_v2(&mut address, bytes).result().unwrap();
        }
        Self(address)
    }
}

impl Drop for Tensor {
    fn drop(&mut self) {
        // SAFETY: allocated above, once.
        unsafe {
            let _ = sys::cuMemFree_v2(self.0);
            let _ = sys::cuDevicePrimaryCtxRelease_v2(0);
        }
    }
}

/// A range beside its memory, for a read past the driver: the stand-in's VRAM is host memory.
pub fn peek(range: &dyn DeviceRange, offset: u64, bytes: usize) -> Vec<u8> {
    let from = (range.address() + offset) as *const u8;
    // SAFETY: mapped by the stand-in, and written by nobody unordered but where a test asks for it.
    (0..bytes).map(|at| unsafe { from.add(at).read_volatile() }).collect()
}
