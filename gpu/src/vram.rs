//! VRAM of a segment: allocated here and exported as a file descriptor, or imported from another
//! process of the host. Each step that the driver must undo is a value, so that a failure between
//! two steps undoes those before it, in the reverse order.

mod copies;
mod foreign;
mod lane;
mod lanes;
mod memory;
mod range;
mod scratch;
mod span;
mod tensor;

use crate::driver::{Device, DriverError};
use cudarc::driver::sys::{
    CUmemAllocationGranularity_flags_enum as Granularity, CUmemAllocationHandleType,
    CUmemAllocationProp, CUmemAllocationProp_st__bindgen_ty_1 as AllocationFlags,
    CUmemAllocationType_enum as AllocationType, CUmemLocation,
    CUmemLocationType_enum as LocationType, CUmemRangeHandleType_enum as RangeHandle,
};
use range::{Allocation, Mapped, Reserved};
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::Arc;

pub use copies::CopyMethod;
pub use foreign::{ForeignVram, TensorHandle};
pub use memory::VramMemory;
pub use span::Span;
pub use tensor::{TensorDevices, TensorMemory};

/// The kind of handle that memory is exported as.
const FD: CUmemAllocationHandleType =
    CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

/// A range of a device's addresses with memory behind it.
pub trait DeviceRange: Send + Sync + std::fmt::Debug {
    /// The device.
    fn device(&self) -> &Arc<Device>;
    /// Its first byte, for kernels and copies.
    fn address(&self) -> u64;
    /// Bytes that may be used.
    fn bytes(&self) -> u64;
    /// The range as a dma-buf. None where the driver gives none for it.
    fn dma_buf(&self) -> Option<OwnedFd> {
        None
    }
}

/// Memory of nkv's own on a device, mapped for reads and writes. It exists as long as any process
/// maps it: that the process which made it has died takes nothing away.
#[derive(Debug)]
pub struct Vram {
    // Dropped in this order.
    mapped: Mapped,
    allocation: Allocation,
    bytes: u64,
}

impl Vram {
    /// Allocates at least `bytes`, rounded up to the device's granularity.
    ///
    /// # Errors
    /// For 0 bytes, and those of the driver.
    pub fn allocate(device: &Arc<Device>, bytes: u64) -> Result<Self, DriverError> {
        let rounded = rounded(device, bytes)?;
        let allocation = Allocation::create(device, rounded, &properties(device))?;
        Self::map(device, allocation, bytes, rounded)
    }

    /// Maps what another process allocated for as many `bytes` and exported.
    ///
    /// # Errors
    /// Those of the driver, such as for a descriptor that is no memory, or of fewer bytes.
    pub fn import(device: &Arc<Device>, fd: OwnedFd, bytes: u64) -> Result<Self, DriverError> {
        let rounded = rounded(device, bytes)?;
        let allocation = Allocation::import(device, fd, rounded)?;
        Self::map(device, allocation, bytes, rounded)
    }

    fn map(
        device: &Arc<Device>,
        allocation: Allocation,
        bytes: u64,
        rounded: u64,
    ) -> Result<Self, DriverError> {
        let mapped = Mapped::new(Reserved::new(device, rounded)?, &allocation)?;
        mapped.allow_access(location(device))?;
        Ok(Self { mapped, allocation, bytes })
    }

    /// A descriptor for other processes of this host, which map the same bytes with
    /// [`Vram::import`].
    ///
    /// # Errors
    /// Those of the driver.
    pub fn export_fd(&self) -> Result<OwnedFd, DriverError> {
        self.allocation.export()
    }

    /// Bytes allocated, after rounding up.
    pub fn allocated(&self) -> u64 {
        self.mapped.range().bytes()
    }
}

impl DeviceRange for Vram {
    fn device(&self) -> &Arc<Device> {
        self.mapped.range().device()
    }

    fn address(&self) -> u64 {
        self.mapped.range().address()
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn dma_buf(&self) -> Option<OwnedFd> {
        if !self.device().attributes().dma_buf {
            return None;
        }
        let current = self.device().enter_to_drop()?;
        let (address, bytes, mut fd) = (self.address(), self.allocated(), -1_i32);
        let kind = RangeHandle::CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD;
        // SAFETY: the whole mapped range, whose address and length are multiples of the
        // granularity; the descriptor's number lives until the call returns.
        let rc = unsafe {
            let into = (&raw mut fd).cast();
            (current.api().cuMemGetHandleForAddressRange)(into, address, bytes as usize, kind, 0)
        };
        let about = || format!("as a dma-buf of {bytes} bytes");
        match current.check("cuMemGetHandleForAddressRange", rc, about) {
            // SAFETY: the driver made it for the caller.
            Ok(()) => (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) }),
            Err(e) => {
                tracing::debug!("RDMA goes through host memory: {e}");
                None
            }
        }
    }
}

fn location(device: &Device) -> CUmemLocation {
    CUmemLocation { type_: LocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: device.handle() }
}

/// What is asked for with each allocation: pinned memory of the device, exported as descriptors,
/// and reached by RDMA devices if they can reach any.
fn properties(device: &Device) -> CUmemAllocationProp {
    CUmemAllocationProp {
        type_: AllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: FD,
        location: location(device),
        win32HandleMetaData: std::ptr::null_mut(),
        allocFlags: AllocationFlags {
            compressionType: 0,
            gpuDirectRDMACapable: device.attributes().rdma_of_mapped.into(),
            usage: 0,
            reserved: [0; 4],
        },
    }
}

/// `bytes`, rounded up to what the device allocates and maps.
fn rounded(device: &Device, bytes: u64) -> Result<u64, DriverError> {
    let current = device.enter()?;
    let (properties, mut unit) = (properties(device), 0_usize);
    let flag = Granularity::CU_MEM_ALLOC_GRANULARITY_RECOMMENDED;
    // SAFETY: both live until the call returns.
    let rc = unsafe { (current.api().cuMemGetAllocationGranularity)(&mut unit, &properties, flag) };
    let about = || format!("for {bytes} bytes on GPU {}", device.ordinal());
    current.check("cuMemGetAllocationGranularity", rc, about)?;
    let rounded = bytes.checked_next_multiple_of(unit as u64).filter(|rounded| *rounded > 0);
    rounded.ok_or_else(|| {
        let name = &device.attributes().name;
        DriverError::Invalid(format!(
            "{bytes} bytes cannot be allocated on {name} in units of {unit}: give the segment 1 \
             byte to {} bytes",
            device.attributes().memory
        ))
    })
}
