//! VRAM of others: a user's tensor, which PyTorch allocated and which only the legacy calls for
//! memory between processes export.

use super::DeviceRange;
use crate::driver::{Device, DriverError};
use cudarc::driver::sys::CUipcMemHandle;
use nkv_store::random_u64;
use std::sync::{Arc, Mutex, PoisonError};

/// `CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS`, which the call requires.
const LAZY_PEER_ACCESS: u32 = 1;

/// What another process of this host needs to map a range of a device's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TensorHandle {
    /// The driver's handle of the allocation that the range lies in.
    pub handle: [u8; 64],
    /// Process that exported it.
    pub pid: u32,
    /// A random number of that process: numbers of processes repeat between containers.
    pub process: u64,
    /// Where the allocation begins in that process.
    pub base: u64,
    /// Where the range begins in the allocation.
    pub offset: u64,
    /// Its bytes.
    pub bytes: u64,
}

impl TensorHandle {
    /// Exports `bytes` at an address of the device. The memory must stay allocated as long as
    /// others map it.
    ///
    /// # Errors
    /// If they are not in one allocation, or in one that this call does not export, such as memory
    /// of PyTorch's expandable segments.
    pub fn export(device: &Device, address: u64, bytes: u64) -> Result<Self, DriverError> {
        let current = device.enter()?;
        let (mut base, mut len, mut handle) = (0, 0, CUipcMemHandle { reserved: [0; 64] });
        let about = || format!("for {bytes} bytes at {address:#x} of GPU {}", device.ordinal());
        // SAFETY: the numbers live until the call returns.
        let rc = unsafe { (current.api().cuMemGetAddressRange_v2)(&mut base, &mut len, address) };
        current.check("cuMemGetAddressRange", rc, about)?;
        let offset = address.saturating_sub(base);
        if bytes > (len as u64).saturating_sub(offset) {
            return Err(DriverError::Invalid(format!(
                "{bytes} bytes at {address:#x} exceed their allocation of {len} bytes at \
                 {base:#x}: export each allocation by itself"
            )));
        }
        // SAFETY: the handle lives until the call returns.
        let rc = unsafe { (current.api().cuIpcGetMemHandle)(&mut handle, base) };
        current.check("cuIpcGetMemHandle", rc, about)?;
        let (pid, process) = this_process();
        let handle = handle.reserved.map(|byte| byte as u8);
        Ok(Self { handle, pid, process, base, offset, bytes })
    }
}

/// A range that another allocator owns, mapped here.
#[derive(Debug)]
pub struct ForeignVram {
    device: Arc<Device>,
    base: u64,
    address: u64,
    bytes: u64,
    /// False in the process that owns the memory, which needs no mapping.
    opened: bool,
}

impl ForeignVram {
    /// Maps it, or uses its address as it is in the process that exported it: there the driver
    /// refuses to open the handle.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn open(device: &Arc<Device>, of: &TensorHandle) -> Result<Self, DriverError> {
        let current = device.enter()?;
        let opened = (of.pid, of.process) != this_process();
        let mut base = of.base;
        if opened {
            let reserved = of.handle.map(|byte| byte as std::ffi::c_char);
            let handle = CUipcMemHandle { reserved };
            // SAFETY: the number lives until the call returns; a handle that is none is refused.
            let rc = unsafe {
                (current.api().cuIpcOpenMemHandle_v2)(&mut base, handle, LAZY_PEER_ACCESS)
            };
            let about = || {
                format!("for {} bytes of process {} on GPU {}", of.bytes, of.pid, device.ordinal())
            };
            current.check("cuIpcOpenMemHandle", rc, about)?;
        }
        // Closed again if the rest is refused.
        let mut vram =
            Self { device: device.clone(), base, address: base, bytes: of.bytes, opened };
        let address = base.checked_add(of.offset).filter(|at| at.checked_add(of.bytes).is_some());
        vram.address = address.ok_or_else(|| {
            DriverError::Invalid(format!("{} bytes at offset {} of a tensor", of.bytes, of.offset))
        })?;
        Ok(vram)
    }
}

impl DeviceRange for ForeignVram {
    fn device(&self) -> &Arc<Device> {
        &self.device
    }

    fn address(&self) -> u64 {
        self.address
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for ForeignVram {
    fn drop(&mut self) {
        if !self.opened {
            return;
        }
        let Some(current) = self.device.enter_to_drop() else { return };
        // SAFETY: opened by `open`, closed once.
        let rc = unsafe { (current.api().cuIpcCloseMemHandle)(self.base) };
        self.device.log_failure("cuIpcCloseMemHandle", rc);
    }
}

/// Number of this process, and a random one that it keeps; a child made by fork has its own.
fn this_process() -> (u32, u64) {
    static KEPT: Mutex<(u32, u64)> = Mutex::new((0, 0));
    let pid = std::process::id();
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    if kept.0 != pid {
        *kept = (pid, random_u64());
    }
    *kept
}
