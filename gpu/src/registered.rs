//! Host memory that is registered with a device: a segment's control words for kernels, and whole
//! segments in DRAM, from and to which copies then go at full rate.

use crate::driver::{Device, DriverError};
use nkv_store::fork::ProcessMark;
use nkv_store::memory::{HostMemory, Memory};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// `CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP`.
const PORTABLE_AND_MAPPED: u32 = 0x1 | 0x2;

/// Registration of one process's mapping of a host memory with one device; undone when dropped.
#[derive(Debug)]
pub struct RegisteredHost {
    device: Arc<Device>,
    memory: HostMemory,
    address: u64,
}

impl RegisteredHost {
    /// Pins what the CPU can access of `memory`, and maps it for the device.
    ///
    /// # Errors
    /// If there is nothing of that kind, or the driver refuses.
    pub fn new(device: &Arc<Device>, memory: Arc<dyn Memory>) -> Result<Self, DriverError> {
        let memory = HostMemory::of(memory).ok_or_else(|| {
            let why = "only host memory can be registered with a GPU, and this memory has none";
            DriverError::Invalid(why.to_string())
        })?;
        let (base, len) = (memory.words().base().as_ptr(), memory.words().len());
        let about = || format!("for {len} bytes of host memory on GPU {}", device.ordinal());
        let current = device.enter()?;
        // SAFETY: the range is mapped as long as `memory`, which is kept, lives.
        let rc = unsafe {
            (device.api().cuMemHostRegister_v2)(base.cast(), len as usize, PORTABLE_AND_MAPPED)
        };
        current.check("cuMemHostRegister", rc, about)?;
        // From here on `drop` undoes the registration.
        let mut made = Self { device: device.clone(), memory, address: 0 };
        let into = &mut made.address;
        // SAFETY: registered above with device mapping; the number lives until the call returns.
        let rc = unsafe { (device.api().cuMemHostGetDevicePointer_v2)(into, base.cast(), 0) };
        current.check("cuMemHostGetDevicePointer", rc, about)?;
        Ok(made)
    }

    /// Address of its first byte for kernels of the device.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Bytes registered.
    pub fn bytes(&self) -> u64 {
        self.memory.words().len()
    }
}

impl Drop for RegisteredHost {
    fn drop(&mut self) {
        let Some(current) = self.device.enter_to_drop() else { return };
        let base = self.memory.words().base().as_ptr();
        // SAFETY: registered by `new`, once; the mapping still exists.
        let rc = unsafe { (current.api().cuMemHostUnregister)(base.cast()) };
        self.device.log_failure("cuMemHostUnregister", rc);
    }
}

/// Registrations of this process by the mapping's address, each with its users.
type Known = BTreeMap<usize, (usize, RegisteredHost)>;

fn known() -> MutexGuard<'static, Known> {
    static KNOWN: Mutex<Known> = Mutex::new(BTreeMap::new());
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A process's mapping of a segment in DRAM, registered for all GPUs of the process: by the first
/// user, until the last one drops this. Each process registers its own mapping: a node with
/// `--pool-pinned`, a client when it first copies memory of a device.
#[derive(Debug)]
pub struct PinnedMapping {
    base: usize,
    address: u64,
    bytes: u64,
    made: ProcessMark,
}

impl PinnedMapping {
    /// Registers what the CPU can access of `memory`, unless this process has done so already.
    /// Blocks: takes 0.1 to 0.3 s/GiB.
    ///
    /// # Errors
    /// As [`RegisteredHost::new`].
    pub fn of(device: &Arc<Device>, memory: Arc<dyn Memory>) -> Result<Self, DriverError> {
        // In a child made by fork, whose copy of the lock may be held for ever.
        drop(device.enter()?);
        let base = memory.host_base().map_or(0, |base| base.as_ptr() as usize);
        let mut known = known();
        let (users, registered) = match known.entry(base) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => entry.insert((0, RegisteredHost::new(device, memory)?)),
        };
        *users += 1;
        let (address, bytes) = (registered.address(), registered.bytes());
        Ok(Self { base, address, bytes, made: ProcessMark::here() })
    }

    /// Address of its first byte for kernels.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Bytes registered.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for PinnedMapping {
    fn drop(&mut self) {
        if !self.made.is_here() {
            return;
        }
        let mut known = known();
        if let Some((users, _)) = known.get_mut(&self.base) {
            *users -= 1;
            if *users == 0 {
                known.remove(&self.base);
            }
        }
    }
}
