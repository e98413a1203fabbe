//! One stream with pinned host memory, through which bytes between pageable memory and a device
//! pass. Every copy is complete when its method returns.

use super::span::{Cursor, Span};
use crate::driver::{Current, Device, DriverError};
use crate::kernels::{Descriptor, LaunchStream, OwnStream};
use cudarc::driver::sys::{CUmemcpyAttributes, CUmemcpySrcAccessOrder_enum as SourceOrder};
use nkv_store::StoreError;
use std::ptr::NonNull;
use std::sync::Arc;

/// Bytes copied at a time. There is pinned memory for two pieces: one is copied by the device while
/// the other is by the CPU.
pub const PIECE: usize = 1 << 20;
/// For one thread at a time.
#[derive(Debug)]
pub struct Lane {
    device: Arc<Device>,
    stream: Arc<OwnStream>,
    staging: Option<NonNull<u8>>,
}

// SAFETY: a stream and pinned memory may be used from any thread, one at a time.
unsafe impl Send for Lane {}

impl Lane {
    pub fn new(device: &Arc<Device>) -> Result<Self, DriverError> {
        let stream = Arc::new(OwnStream::new(device)?);
        let mut lane = Self { device: device.clone(), stream, staging: None };
        let (current, mut staging) = (device.enter()?, std::ptr::null_mut());
        // SAFETY: the pointer lives until the call returns.
        let rc = unsafe { (current.api().cuMemAllocHost_v2)(&mut staging, 2 * PIECE) };
        let about = || format!("for copies of {PIECE} bytes on GPU {}", device.ordinal());
        current.check("cuMemAllocHost", rc, about)?;
        lane.staging = NonNull::new(staging.cast());
        Ok(lane)
    }

    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Its stream, for kernels.
    pub fn launch_stream(&self) -> LaunchStream {
        LaunchStream::Own(self.stream.clone())
    }

    /// Copies `len` bytes of the device's spans, piece by piece, to `take`, which gets the offset
    /// of each. The caller ensures that the spans exist, here and below.
    pub fn read(
        &self,
        spans: &mut Cursor<'_>,
        len: usize,
        mut take: impl FnMut(u64, &[u8]) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let current = self.device.enter()?;
        // Of the last piece that the device copies: its offset, and its bytes.
        let mut in_flight: Option<(usize, usize)> = None;
        for at in (0..len).step_by(PIECE).chain([len]) {
            let bytes = PIECE.min(len - at);
            if in_flight.is_some() {
                self.complete(&current)?;
            }
            let next = self.half(at)?;
            let mut filled = 0;
            while filled < bytes {
                let Span { address, bytes: n } = spans.take((bytes - filled) as u64);
                let n = n as usize;
                // SAFETY: within the half, which no copy in flight uses.
                let rc = unsafe {
                    let into = next.as_ptr().add(filled);
                    (current.api().cuMemcpyDtoHAsync_v2)(into.cast(), address, n, self.stream.raw())
                };
                current.check("cuMemcpyDtoHAsync", rc, || about("from", address, n, len))?;
                filled += n;
            }
            if let Some((at, bytes)) = in_flight.take() {
                // SAFETY: its copy is complete, and the copy in flight uses the other half.
                let piece = unsafe { std::slice::from_raw_parts(self.half(at)?.as_ptr(), bytes) };
                take(at as u64, piece)?;
            }
            in_flight = (bytes > 0).then_some((at, bytes));
        }
        Ok(())
    }

    /// Copies `len` bytes to the device's spans, piece by piece, from `give`, which fills each.
    pub fn write(
        &self,
        spans: &mut Cursor<'_>,
        len: usize,
        mut give: impl FnMut(u64, &mut [u8]) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let current = self.device.enter()?;
        for at in (0..len).step_by(PIECE) {
            let bytes = PIECE.min(len - at);
            let half = self.half(at)?;
            // SAFETY: the copy before the last used this half, and is complete.
            give(at as u64, unsafe { std::slice::from_raw_parts_mut(half.as_ptr(), bytes) })?;
            if at > 0 {
                self.complete(&current)?;
            }
            let mut sent = 0;
            while sent < bytes {
                let Span { address, bytes: n } = spans.take((bytes - sent) as u64);
                let n = n as usize;
                // SAFETY: within the half, which is not written until the copy is complete.
                let rc = unsafe {
                    let from = half.as_ptr().add(sent);
                    (current.api().cuMemcpyHtoDAsync_v2)(address, from.cast(), n, self.stream.raw())
                };
                current.check("cuMemcpyHtoDAsync", rc, || about("to", address, n, len))?;
                sent += n;
            }
        }
        Ok(self.complete(&current)?)
    }

    /// Copies between memory of devices, or pinned memory of the host, one after another.
    pub fn copy_each(&self, list: &[Descriptor]) -> Result<(), DriverError> {
        let current = self.device.enter()?;
        for Descriptor { dst, src, size } in list {
            let n = *size as usize;
            // SAFETY: the caller ensures that both ranges exist.
            let rc = unsafe { (current.api().cuMemcpyAsync)(*dst, *src, n, self.stream.raw()) };
            let about = || format!("for {n} bytes from {src:#x} to {dst:#x}");
            current.check("cuMemcpyAsync", rc, about)?;
        }
        self.complete(&current)
    }

    /// Whether the driver takes many copies in one call.
    pub fn has_batch(&self) -> bool {
        self.device.api().cuMemcpyBatchAsync.is_some()
    }

    /// The same in one call.
    pub fn copy_batch(&self, list: &[Descriptor]) -> Result<(), DriverError> {
        let Some(batch) = self.device.api().cuMemcpyBatchAsync else {
            return self.copy_each(list);
        };
        let current = self.device.enter()?;
        let mut into: Vec<u64> = list.iter().map(|copy| copy.dst).collect();
        let mut from: Vec<u64> = list.iter().map(|copy| copy.src).collect();
        let mut sizes: Vec<usize> = list.iter().map(|copy| copy.size as usize).collect();
        // SAFETY: plain numbers, of which 0 is none.
        let mut attributes: CUmemcpyAttributes = unsafe { std::mem::zeroed() };
        // Never the flag for copies beside a kernel: on one GPU it is 20 times slower.
        attributes.srcAccessOrder = SourceOrder::CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
        let (mut first, mut failed) = (0, 0);
        // SAFETY: lists of as many elements, which live until the call returns; the caller ensures
        // that the ranges exist.
        let rc = unsafe {
            let (into, from, sizes) = (into.as_mut_ptr(), from.as_mut_ptr(), sizes.as_mut_ptr());
            let (n, stream) = (list.len(), self.stream.raw());
            batch(into, from, sizes, n, &mut attributes, &mut first, 1, &mut failed, stream)
        };
        let about = || format!("for {} copies, at number {failed}", list.len());
        current.check("cuMemcpyBatchAsync", rc, about)?;
        self.complete(&current)
    }

    /// The pinned memory for the piece at this offset.
    fn half(&self, at: usize) -> Result<NonNull<u8>, DriverError> {
        let staging = self.staging.ok_or_else(|| {
            DriverError::Invalid(format!(
                "the driver returned no address for {} bytes of pinned memory: update it",
                2 * PIECE
            ))
        })?;
        // SAFETY: there are two pieces.
        Ok(unsafe { staging.add(at / PIECE % 2 * PIECE) })
    }

    fn complete(&self, current: &Current<'_>) -> Result<(), DriverError> {
        // SAFETY: the stream lives as long as `self`.
        let rc = unsafe { (current.api().cuStreamSynchronize)(self.stream.raw()) };
        let about = || format!("for copies on GPU {}", self.device.ordinal());
        current.check("cuStreamSynchronize", rc, about)
    }
}

fn about(direction: &str, address: u64, len: usize, whole: usize) -> String {
    format!("for {len} of {whole} bytes {direction} VRAM at {address:#x}")
}

impl Drop for Lane {
    fn drop(&mut self) {
        let Some(staging) = self.staging else { return };
        let Some(current) = self.device.enter_to_drop() else { return };
        // SAFETY: made by `new`, freed once. The stream is waited for first: after a failed call a
        // copy from or to this memory may be in flight.
        let freed = unsafe {
            let _ = (current.api().cuStreamSynchronize)(self.stream.raw());
            (current.api().cuMemFreeHost)(staging.as_ptr().cast())
        };
        self.device.log_failure("cuMemFreeHost", freed);
    }
}
