//! The steps from memory to a mapped range, each undone by its drop.

use super::FD;
use crate::driver::{Device, DriverError};
use cudarc::driver::sys::{
    CUmemAccess_flags_enum as Access, CUmemAccessDesc, CUmemAllocationProp, CUmemLocation,
};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;

/// A handle to memory of a device; released when dropped.
#[derive(Debug)]
pub struct Allocation {
    device: Arc<Device>,
    handle: u64,
    bytes: u64,
}

impl Allocation {
    pub fn create(
        device: &Arc<Device>,
        bytes: u64,
        properties: &CUmemAllocationProp,
    ) -> Result<Self, DriverError> {
        let current = device.enter()?;
        let mut handle = 0;
        // SAFETY: both live until the call returns.
        let rc = unsafe { (current.api().cuMemCreate)(&mut handle, bytes as usize, properties, 0) };
        let (total, ordinal) = (device.attributes().memory, device.ordinal());
        let about = || format!("for {bytes} of the {total} bytes of GPU {ordinal}");
        current.check("cuMemCreate", rc, about)?;
        Ok(Self { device: device.clone(), handle, bytes })
    }

    /// The driver takes what the descriptor stands for; the descriptor itself is closed.
    pub fn import(device: &Arc<Device>, fd: OwnedFd, bytes: u64) -> Result<Self, DriverError> {
        let current = device.enter()?;
        let mut handle = 0;
        let value = fd.as_raw_fd() as usize as *mut std::ffi::c_void;
        // SAFETY: for this kind of handle the pointer's value is the descriptor.
        let rc = unsafe { (current.api().cuMemImportFromShareableHandle)(&mut handle, value, FD) };
        let about = || format!("for {bytes} bytes of another process on GPU {}", device.ordinal());
        current.check("cuMemImportFromShareableHandle", rc, about)?;
        Ok(Self { device: device.clone(), handle, bytes })
    }

    pub fn export(&self) -> Result<OwnedFd, DriverError> {
        let current = self.device.enter()?;
        let mut fd = -1_i32;
        let into = (&raw mut fd).cast();
        // SAFETY: a descriptor of this kind is an int, which lives until the call returns.
        let rc = unsafe { (current.api().cuMemExportToShareableHandle)(into, self.handle, FD, 0) };
        let about = || format!("for {} bytes on GPU {}", self.bytes, self.device.ordinal());
        current.check("cuMemExportToShareableHandle", rc, about)?;
        if fd < 0 {
            return Err(DriverError::Invalid(format!(
                "the driver exported {} bytes as descriptor {fd}: update the driver",
                self.bytes
            )));
        }
        // SAFETY: the driver made it for the caller.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        let Some(current) = self.device.enter_to_drop() else { return };
        // SAFETY: made by `create` or `import`, released once; its mapping is gone.
        let rc = unsafe { (current.api().cuMemRelease)(self.handle) };
        self.device.log_failure("cuMemRelease", rc);
    }
}

/// A range of addresses without memory; given back when dropped.
#[derive(Debug)]
pub struct Reserved {
    device: Arc<Device>,
    address: u64,
    bytes: u64,
}

impl Reserved {
    pub fn new(device: &Arc<Device>, bytes: u64) -> Result<Self, DriverError> {
        let current = device.enter()?;
        let mut address = 0;
        // SAFETY: the number lives until the call returns; the driver chooses the address.
        let rc =
            unsafe { (current.api().cuMemAddressReserve)(&mut address, bytes as usize, 0, 0, 0) };
        let about = || format!("for {bytes} bytes of addresses on GPU {}", device.ordinal());
        current.check("cuMemAddressReserve", rc, about)?;
        Ok(Self { device: device.clone(), address, bytes })
    }

    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    pub fn address(&self) -> u64 {
        self.address
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        let Some(current) = self.device.enter_to_drop() else { return };
        // SAFETY: reserved by `new`; nothing is mapped there any more.
        let rc = unsafe { (current.api().cuMemAddressFree)(self.address, self.bytes as usize) };
        self.device.log_failure("cuMemAddressFree", rc);
    }
}

/// A range with memory behind it; unmapped when dropped, before the range is given back.
#[derive(Debug)]
pub struct Mapped {
    range: Reserved,
}

impl Mapped {
    /// The caller keeps the allocation until this is dropped.
    pub fn new(range: Reserved, allocation: &Allocation) -> Result<Self, DriverError> {
        let current = range.device.enter()?;
        let (address, bytes, handle) = (range.address, range.bytes, allocation.handle);
        // SAFETY: reserved, of the allocation's length, and nothing is mapped there.
        let rc = unsafe { (current.api().cuMemMap)(address, bytes as usize, 0, handle, 0) };
        let about =
            || format!("for {bytes} bytes at {address:#x} of GPU {}", range.device.ordinal());
        current.check("cuMemMap", rc, about)?;
        drop(current);
        Ok(Self { range })
    }

    /// Lets that device read and write it; before this no access is allowed.
    pub fn allow_access(&self, location: CUmemLocation) -> Result<(), DriverError> {
        let flags = Access::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        let access = CUmemAccessDesc { location, flags };
        let Reserved { device, address, bytes } = &self.range;
        let current = device.enter()?;
        // SAFETY: the range is mapped; the description lives until the call returns.
        let rc = unsafe { (current.api().cuMemSetAccess)(*address, *bytes as usize, &access, 1) };
        let about = || format!("for {bytes} bytes at {address:#x} of GPU {}", device.ordinal());
        current.check("cuMemSetAccess", rc, about)
    }

    pub fn range(&self) -> &Reserved {
        &self.range
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        let Some(current) = self.range.device.enter_to_drop() else { return };
        // SAFETY: mapped by `new`; `self` is borrowed by every copy, so none is in flight.
        let rc =
            unsafe { (current.api().cuMemUnmap)(self.range.address, self.range.bytes as usize) };
        self.range.device.log_failure("cuMemUnmap", rc);
    }
}
