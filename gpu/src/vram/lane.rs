//! One stream with a piece of pinned host memory, through which bytes between pageable memory and
//! a device pass. Every copy is complete when its method returns.

use crate::driver::{Current, Device, DriverError};
use cudarc::driver::sys::CUstream;
use std::ptr::NonNull;
use std::sync::Arc;

/// Bytes copied at a time.
pub const PIECE: usize = 1 << 20;
/// `CU_STREAM_NON_BLOCKING`: it does not wait for the legacy default stream, nor that for it.
const NON_BLOCKING: u32 = 1;

/// For one thread at a time.
#[derive(Debug)]
pub struct Lane {
    device: Arc<Device>,
    stream: CUstream,
    staging: Option<NonNull<u8>>,
}

// SAFETY: a stream and pinned memory may be used from any thread, one at a time.
unsafe impl Send for Lane {}

impl Lane {
    pub fn new(device: &Arc<Device>) -> Result<Self, DriverError> {
        let current = device.enter()?;
        let about = || format!("for copies of {PIECE} bytes on GPU {}", device.ordinal());
        let (mut stream, mut staging) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the pointer lives until the call returns.
        let rc = unsafe { (current.api().cuStreamCreate)(&mut stream, NON_BLOCKING) };
        current.check("cuStreamCreate", rc, about)?;
        // From here on `drop` destroys the stream.
        let mut lane = Self { device: device.clone(), stream, staging: None };
        // SAFETY: as above.
        let rc = unsafe { (current.api().cuMemAllocHost_v2)(&mut staging, PIECE) };
        current.check("cuMemAllocHost", rc, about)?;
        lane.staging = NonNull::new(staging.cast());
        Ok(lane)
    }

    /// Copies from the device. The caller ensures that `dst.len()` bytes exist at `address`.
    pub fn read(&self, address: u64, dst: &mut [u8]) -> Result<(), DriverError> {
        let (device, staging) = (self.device.clone(), self.staging()?);
        let current = device.enter()?;
        let (mut at, whole) = (address, dst.len());
        for piece in dst.chunks_mut(PIECE) {
            // SAFETY: the piece is at most as long as the staging memory, which is not used
            // otherwise until the stream has completed the copy.
            unsafe {
                let (into, len) = (staging.as_ptr(), piece.len());
                let rc = (current.api().cuMemcpyDtoHAsync_v2)(into.cast(), at, len, self.stream);
                let about = || about("from", at, len, whole);
                current.check("cuMemcpyDtoHAsync", rc, about)?;
                self.complete(&current, about)?;
                std::ptr::copy_nonoverlapping(into, piece.as_mut_ptr(), len);
            }
            at += piece.len() as u64;
        }
        Ok(())
    }

    /// Copies to the device. The caller ensures that `src.len()` bytes exist at `address`.
    pub fn write(&self, address: u64, src: &[u8]) -> Result<(), DriverError> {
        let (device, staging) = (self.device.clone(), self.staging()?);
        let current = device.enter()?;
        let (mut at, whole) = (address, src.len());
        for piece in src.chunks(PIECE) {
            // SAFETY: as in `read`; the stream has completed the copy of the piece before.
            unsafe {
                let (from, len) = (staging.as_ptr(), piece.len());
                std::ptr::copy_nonoverlapping(piece.as_ptr(), from, len);
                let rc = (current.api().cuMemcpyHtoDAsync_v2)(at, from.cast(), len, self.stream);
                let about = || about("to", at, len, whole);
                current.check("cuMemcpyHtoDAsync", rc, about)?;
                self.complete(&current, about)?;
            }
            at += piece.len() as u64;
        }
        Ok(())
    }

    fn staging(&self) -> Result<NonNull<u8>, DriverError> {
        self.staging.ok_or_else(|| {
            DriverError::Invalid(format!(
                "the driver returned no address for {PIECE} bytes of pinned memory: update it"
            ))
        })
    }

    fn complete(
        &self,
        current: &Current<'_>,
        about: impl FnOnce() -> String,
    ) -> Result<(), DriverError> {
        // SAFETY: the stream lives as long as `self`.
        let rc = unsafe { (current.api().cuStreamSynchronize)(self.stream) };
        current.check("cuStreamSynchronize", rc, about)
    }
}

fn about(direction: &str, address: u64, len: usize, whole: usize) -> String {
    format!("for {len} of {whole} bytes {direction} VRAM at {address:#x}")
}

impl Drop for Lane {
    fn drop(&mut self) {
        let Some(current) = self.device.enter_to_drop() else { return };
        // SAFETY: the stream was made by `new`. It is waited for first, since after a failed call
        // a copy from or to the staging memory may be in flight.
        let destroyed = unsafe {
            let _ = (current.api().cuStreamSynchronize)(self.stream);
            (current.api().cuStreamDestroy_v2)(self.stream)
        };
        self.device.log_failure("cuStreamDestroy", destroyed);
        if let Some(staging) = self.staging {
            // SAFETY: made by `new`, freed once, and no copy is in flight.
            let rc = unsafe { (current.api().cuMemFreeHost)(staging.as_ptr().cast()) };
            self.device.log_failure("cuMemFreeHost", rc);
        }
    }
}
