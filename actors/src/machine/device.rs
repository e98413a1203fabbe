//! Segments whose payloads lie in a GPU of this machine.

use super::NewSegment;
use nkv_gpu::driver::{Device, Driver};
use nkv_gpu::vram::{Vram, VramMemory};
use nkv_store::memory::SplitMemory;
use nkv_store::{AnonMemory, StoreError};
use std::sync::Arc;

/// What a GPU is, if it can be used.
pub(super) fn describe(ordinal: u32) -> Result<String, StoreError> {
    let device = Device::new(Driver::open()?, ordinal)?;
    Ok(format!("GPU {ordinal}, {}", device.attributes()))
}

/// A segment of `bytes`: those from `payloads` on in VRAM.
pub(super) fn create(ordinal: u32, payloads: u64, bytes: u64) -> Result<NewSegment, StoreError> {
    let device = Device::new(Driver::open()?, ordinal)?;
    let control = Arc::new(AnonMemory::new(payloads)?);
    let vram = Vram::allocate(&device, bytes.saturating_sub(payloads))?;
    let payload = Arc::new(VramMemory::new(Arc::new(vram))?);
    let memory = SplitMemory::new(control, payload);
    let memory = memory.ok_or_else(|| StoreError::BadSegment("no control words".to_string()))?;
    Ok(NewSegment::private(Arc::new(memory)))
}
