//! Host memory that kernels of a device access: a segment's control words.

use crate::driver::{Device, DriverError};
use nkv_store::memory::{HostMemory, Memory};
use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};

/// `CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP`.
const PORTABLE_AND_MAPPED: u32 = 0x1 | 0x2;

/// First byte and length of each range that this process has registered.
static REGISTERED: RwLock<Vec<(usize, usize)>> = RwLock::new(Vec::new());

/// The driver copies these bytes of the host as they are, without a buffer between, as long as the
/// value lives. None if they are not registered.
pub(crate) fn registered(at: NonNull<u8>, len: usize) -> Option<impl Sized> {
    let ranges = REGISTERED.read().unwrap_or_else(PoisonError::into_inner);
    let within = |(base, bytes): &(usize, usize)| {
        let offset = at.as_ptr().addr().checked_sub(*base);
        offset.is_some_and(|offset| offset.checked_add(len).is_some_and(|end| end <= *bytes))
    };
    ranges.iter().any(within).then_some(ranges)
}

/// Registration of one process's mapping of a host memory with one device; undone when dropped.
#[derive(Debug)]
pub struct RegisteredHost {
    device: Arc<Device>,
    memory: HostMemory,
    address: u64,
}

/// Those of this process that others may share, by the address of their memory.
static SHARED: Mutex<BTreeMap<usize, Weak<RegisteredHost>>> = Mutex::new(BTreeMap::new());

impl RegisteredHost {
    /// As [`RegisteredHost::new`], or the registration that this process has already: the driver
    /// refuses a second one of the same bytes.
    ///
    /// # Errors
    /// As there.
    pub fn shared(device: &Arc<Device>, memory: Arc<dyn Memory>) -> Result<Arc<Self>, DriverError> {
        let base = memory.host_base().map_or(0, |base| base.as_ptr().addr());
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        shared.retain(|_, one| one.strong_count() > 0);
        if let Some(one) = shared.get(&base).and_then(Weak::upgrade) {
            return Ok(one);
        }
        let made = Arc::new(Self::new(device, memory)?);
        shared.insert(base, Arc::downgrade(&made));
        Ok(made)
    }

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
        let range = (base.addr(), len as usize);
        REGISTERED.write().unwrap_or_else(PoisonError::into_inner).push(range);
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
        // Waits for copies that are under way.
        let range = (self.memory.words().base().as_ptr().addr(), self.bytes() as usize);
        let mut ranges = REGISTERED.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = ranges.iter().position(|known| *known == range) {
            ranges.swap_remove(at);
        }
        drop(ranges);
        let Some(current) = self.device.enter_to_drop() else { return };
        let base = self.memory.words().base().as_ptr();
        // SAFETY: registered by `new`, once; the mapping still exists.
        let rc = unsafe { (current.api().cuMemHostUnregister)(base.cast()) };
        self.device.log_failure("cuMemHostUnregister", rc);
    }
}
