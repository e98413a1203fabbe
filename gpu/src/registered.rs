//! Host memory that is registered with a device: a segment's control words for kernels, and whole
//! segments in DRAM, from and to which copies then go at full rate.

use crate::driver::{Device, DriverError};
use nkv_store::fork::ProcessMark;
use nkv_store::memory::{HostMemory, Memory};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

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

/// The driver's registration of one mapping.
#[derive(Debug)]
struct Registration {
    device: Arc<Device>,
    memory: HostMemory,
    address: u64,
}

impl Registration {
    fn new(device: &Arc<Device>, memory: HostMemory) -> Result<Self, DriverError> {
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
        REGISTERED.write().unwrap_or_else(PoisonError::into_inner).push(made.range());
        Ok(made)
    }

    fn range(&self) -> (usize, usize) {
        (self.memory.words().base().as_ptr().addr(), self.memory.words().len() as usize)
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let range = self.range();
        // Waits for copies that are under way.
        let mut ranges = REGISTERED.write().unwrap_or_else(PoisonError::into_inner);
        ranges.retain(|known| *known != range);
        drop(ranges);
        let Some(current) = self.device.enter_to_drop() else { return };
        let base = self.memory.words().base().as_ptr();
        // SAFETY: registered by `new`, once; the mapping still exists.
        let rc = unsafe { (current.api().cuMemHostUnregister)(base.cast()) };
        self.device.log_failure("cuMemHostUnregister", rc);
    }
}

/// Registrations of this process by the mapping's address, each with its users.
type Known = BTreeMap<usize, (usize, Registration)>;

fn known() -> MutexGuard<'static, Known> {
    static KNOWN: Mutex<Known> = Mutex::new(BTreeMap::new());
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A process's mapping of host memory, registered for all GPUs of the process: by the first user,
/// until the last one drops this. Each process registers its own mapping.
#[derive(Debug)]
pub struct RegisteredHost {
    base: usize,
    address: u64,
    bytes: u64,
    made: ProcessMark,
}

impl RegisteredHost {
    /// Pins what the CPU can access of `memory` and maps it for the device, unless this process has
    /// done so already. Blocks: takes 0.1 to 0.3 s/GiB.
    ///
    /// # Errors
    /// If there is nothing of that kind, or the driver refuses.
    pub fn new(device: &Arc<Device>, memory: Arc<dyn Memory>) -> Result<Self, DriverError> {
        // In a child made by fork, whose copy of the lock may be held for ever.
        drop(device.enter()?);
        let memory = HostMemory::of(memory).ok_or_else(|| {
            let why = "only host memory can be registered with a GPU, and this memory has none";
            DriverError::Invalid(why.to_string())
        })?;
        let base = memory.words().base().as_ptr().addr();
        let mut known = known();
        let (users, registered) = match known.entry(base) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => entry.insert((0, Registration::new(device, memory)?)),
        };
        *users += 1;
        let (address, bytes) = (registered.address, registered.memory.words().len());
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

impl Drop for RegisteredHost {
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
