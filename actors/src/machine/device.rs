//! Segments whose payloads lie in a GPU of this machine.

use super::{DevicePayload, NewSegment};
use nkv_gpu::driver::{Device, Driver};
use nkv_gpu::registered::RegisteredHost;
use nkv_gpu::vram::{DeviceRange, Vram, VramMemory};
use nkv_store::memory::SplitMemory;
use nkv_store::segment_layout::SegmentLayout;
use nkv_store::{Memory, StoreError};
use std::any::Any;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Whether this process can use the GPU with this id.
pub(super) fn can_use(uuid: [u8; 16]) -> Result<(), StoreError> {
    Ok(Device::ordinal_of(&*Driver::open()?, uuid).map(drop)?)
}

/// A segment of `control`, followed by as many bytes of VRAM.
pub(super) fn create(
    control: NewSegment,
    ordinal: u32,
    payload_bytes: u64,
) -> Result<NewSegment, StoreError> {
    let device = Device::new(Driver::open()?, ordinal)?;
    let vram = Arc::new(Vram::allocate(&device, payload_bytes)?);
    let memory = split(control.memory, &vram)?;
    Ok(NewSegment { memory, payload: Some(vram), ..control })
}

/// The same segment in another process.
pub(super) fn attach(
    control: Arc<dyn Memory>,
    uuid: [u8; 16],
    fd: OwnedFd,
    layout: &SegmentLayout,
) -> Result<Arc<dyn Memory>, StoreError> {
    let payloads = layout.device_part();
    if control.len() != payloads.offset {
        return Err(StoreError::BadSegment(format!(
            "its control words have {} bytes in place of {}",
            control.len(),
            payloads.offset
        )));
    }
    let device = Device::of_uuid(&Driver::open()?, uuid)?;
    split(control, &Arc::new(Vram::import(&device, fd, payloads.len)?))
}

/// Registers host memory with a GPU.
pub(super) fn pin(
    memory: Arc<dyn Memory>,
    ordinal: u32,
) -> Result<Box<dyn Any + Send + Sync>, StoreError> {
    let device = Device::new(Driver::open()?, ordinal)?;
    Ok(Box::new(RegisteredHost::new(&device, memory)?))
}

fn split(control: Arc<dyn Memory>, vram: &Arc<Vram>) -> Result<Arc<dyn Memory>, StoreError> {
    let payload = Arc::new(VramMemory::new(vram.clone())?);
    let memory = SplitMemory::new(control, payload);
    let memory = memory.ok_or_else(|| StoreError::BadSegment("no control words".to_string()))?;
    Ok(Arc::new(memory))
}

impl DevicePayload for Vram {
    fn uuid(&self) -> [u8; 16] {
        self.device().attributes().uuid
    }

    fn descriptor(&self) -> Result<OwnedFd, StoreError> {
        Ok(self.export_fd()?)
    }
}
