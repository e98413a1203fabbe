//! What a launch needs of the driver, each given back when it is dropped: a module with its
//! kernels, streams, events, memory of the device and pinned memory of the host.

use super::{BULK_SHARED_BYTES, GATHER_BULK, GATHER_PUBLISH, LOG_PUT, WAIT_SCATTER};
use crate::driver::{Device, DriverError};
use cudarc::driver::sys::{
    CUevent, CUfunction, CUfunction_attribute_enum as FunctionAttribute,
    CUjit_option_enum as JitOption, CUmodule, CUstream,
};
use std::any::Any;
use std::ffi::CString;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

/// `CU_STREAM_NON_BLOCKING`: it does not wait for the legacy default stream, nor that for it.
const NON_BLOCKING: u32 = 1;
/// `CU_EVENT_DISABLE_TIMING`: the event costs less, and nothing asks for its time.
const WITHOUT_TIME: u32 = 2;
/// `CUDA_ERROR_NOT_READY`.
const NOT_READY: u32 = 600;
/// Bytes for the compiler's reasons.
const LOG_BYTES: usize = 4096;

/// Kernels of one PTX, compiled for a device.
#[derive(Debug)]
pub struct Module {
    device: Arc<Device>,
    module: CUmodule,
    /// By its name. Read only after `load`.
    functions: Vec<(&'static str, CUfunction)>,
}

// SAFETY: handles of a module may be used from any thread, and are not changed after `load`.
unsafe impl Send for Module {}
// SAFETY: as above.
unsafe impl Sync for Module {}

impl Module {
    pub fn load(device: &Arc<Device>, ptx: &str) -> Result<Self, DriverError> {
        let text = CString::new(ptx).map_err(|_| {
            DriverError::Invalid("the kernels' PTX contains a zero byte".to_string())
        })?;
        let (mut module, mut log) = (null_mut(), vec![0_u8; LOG_BYTES]);
        let mut options =
            [JitOption::CU_JIT_ERROR_LOG_BUFFER, JitOption::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES];
        let mut values = [log.as_mut_ptr().cast(), LOG_BYTES as *mut std::ffi::c_void];
        let current = device.enter()?;
        // SAFETY: the text ends with a zero byte; buffer and lists live until the call returns.
        let rc = unsafe {
            let (options, values) = (options.as_mut_ptr(), values.as_mut_ptr());
            let text = text.as_ptr().cast();
            (current.api().cuModuleLoadDataEx)(&mut module, text, 2, options, values)
        };
        let about = || {
            let (major, minor) = device.attributes().capability;
            let end = log.iter().position(|byte| *byte == 0).unwrap_or(log.len());
            let log = String::from_utf8_lossy(&log[..end]);
            let bytes = ptx.len();
            let reported = if log.is_empty() { "nothing" } else { log.trim() };
            format!(
                "for {bytes} bytes of PTX on GPU {} of compute capability {major}.{minor}; its \
                 compiler reports: {reported}",
                device.ordinal()
            )
        };
        current.check("cuModuleLoadDataEx", rc, about)?;
        drop(current);
        // From here on `drop` unloads it.
        let mut loaded = Self { device: device.clone(), module, functions: Vec::new() };
        for name in [GATHER_PUBLISH, WAIT_SCATTER, LOG_PUT] {
            loaded.find(name)?;
        }
        if ptx.contains(GATHER_BULK) {
            loaded.find(GATHER_BULK)?;
            loaded.allow_shared(GATHER_BULK, BULK_SHARED_BYTES)?;
        }
        Ok(loaded)
    }

    fn find(&mut self, name: &'static str) -> Result<(), DriverError> {
        let (text, mut function) = (CString::new(name).unwrap_or_default(), null_mut());
        let current = self.device.enter()?;
        // SAFETY: the pointer and the name live until the call returns.
        let rc = unsafe {
            (current.api().cuModuleGetFunction)(&mut function, self.module, text.as_ptr())
        };
        current.check("cuModuleGetFunction", rc, || format!("for the kernel {name}"))?;
        self.functions.push((name, function));
        Ok(())
    }

    fn allow_shared(&self, name: &'static str, bytes: u32) -> Result<(), DriverError> {
        let current = self.device.enter()?;
        let attribute = FunctionAttribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        let Some(function) = self.function(name) else { return Ok(()) };
        // SAFETY: a function of this module.
        let rc = unsafe { (current.api().cuFuncSetAttribute)(function, attribute, bytes as i32) };
        let about = || format!("for {bytes} bytes of shared memory of {name}");
        current.check("cuFuncSetAttribute", rc, about)
    }

    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// None if the PTX lacks it.
    pub fn function(&self, name: &str) -> Option<CUfunction> {
        self.functions.iter().find(|(known, _)| *known == name).map(|(_, function)| *function)
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        let Some(current) = self.device.enter_to_drop() else { return };
        // SAFETY: loaded once; every launch was waited for, since it holds the module.
        let rc = unsafe { (current.api().cuModuleUnload)(self.module) };
        self.device.log_failure("cuModuleUnload", rc);
    }
}

/// A stream of nkv's own, which waits for no other.
#[derive(Debug)]
pub struct OwnStream {
    device: Arc<Device>,
    stream: CUstream,
}

// SAFETY: a stream may be used from any thread, also from several at once.
unsafe impl Send for OwnStream {}
// SAFETY: as above.
unsafe impl Sync for OwnStream {}

impl OwnStream {
    /// A new stream.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn new(device: &Arc<Device>) -> Result<Self, DriverError> {
        let (current, mut stream) = (device.enter()?, null_mut());
        // SAFETY: the pointer lives until the call returns.
        let rc = unsafe { (current.api().cuStreamCreate)(&mut stream, NON_BLOCKING) };
        let about = || format!("for launches on GPU {}", device.ordinal());
        current.check("cuStreamCreate", rc, about)?;
        Ok(Self { device: device.clone(), stream })
    }

    pub(crate) fn raw(&self) -> CUstream {
        self.stream
    }
}

impl Drop for OwnStream {
    fn drop(&mut self) {
        let Some(current) = self.device.enter_to_drop() else { return };
        // SAFETY: made by `new`, destroyed once; what is queued still runs.
        let rc = unsafe { (current.api().cuStreamDestroy_v2)(self.stream) };
        self.device.log_failure("cuStreamDestroy", rc);
    }
}

/// A point in a stream that can be waited for.
#[derive(Debug)]
pub struct Event {
    device: Arc<Device>,
    event: CUevent,
}

// SAFETY: an event may be used from any thread, also from several at once.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    pub fn new(device: &Arc<Device>) -> Result<Self, DriverError> {
        let (current, mut event) = (device.enter()?, null_mut());
        // SAFETY: the pointer lives until the call returns.
        let rc = unsafe { (current.api().cuEventCreate)(&mut event, WITHOUT_TIME) };
        current.check("cuEventCreate", rc, || format!("on GPU {}", device.ordinal()))?;
        Ok(Self { device: device.clone(), event })
    }

    pub fn raw(&self) -> CUevent {
        self.event
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        let Some(current) = self.device.enter_to_drop() else { return };
        // SAFETY: made by `new`, destroyed once.
        let rc = unsafe { (current.api().cuEventDestroy_v2)(self.event) };
        self.device.log_failure("cuEventDestroy", rc);
    }
}

/// Memory of a launch: as many bytes on the device as in pinned memory of the host, and the event
/// that tells when the device is done with both.
#[derive(Debug)]
pub struct LaunchMemory {
    device: Arc<Device>,
    pub event: Event,
    address: u64,
    pinned: Option<NonNull<u8>>,
    bytes: usize,
    /// What the launch uses besides.
    pub kept: Vec<Arc<dyn Any + Send + Sync>>,
}

// SAFETY: both memories may be used from any thread, one at a time.
unsafe impl Send for LaunchMemory {}

impl LaunchMemory {
    pub fn new(device: &Arc<Device>, bytes: usize) -> Result<Self, DriverError> {
        let event = Event::new(device)?;
        let about = || format!("for {bytes} bytes of a launch on GPU {}", device.ordinal());
        let (current, mut pinned) = (device.enter()?, null_mut());
        // From here on `drop` frees what is there.
        let (device_of, kept) = (device.clone(), Vec::new());
        let mut memory = Self { device: device_of, event, address: 0, pinned: None, bytes, kept };
        // SAFETY: the pointers live until the calls return.
        unsafe {
            let rc = (current.api().cuMemAlloc_v2)(&mut memory.address, bytes);
            current.check("cuMemAlloc", rc, about)?;
            let rc = (current.api().cuMemAllocHost_v2)(&mut pinned, bytes);
            current.check("cuMemAllocHost", rc, about)?;
        }
        memory.pinned = NonNull::new(pinned.cast());
        Ok(memory)
    }

    /// Its first byte on the device; a multiple of 256.
    pub fn address(&self) -> u64 {
        self.address
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The host's bytes. The device must not use them meanwhile.
    pub fn host(&mut self) -> Result<&mut [u8], DriverError> {
        let pinned = self.pinned.ok_or_else(|| {
            let bytes = self.bytes;
            DriverError::Invalid(format!(
                "the driver returned no address for {bytes} bytes of pinned memory: update it"
            ))
        })?;
        // SAFETY: allocated with this length, initialised below before it is read, and borrowed
        // with `self`.
        Ok(unsafe { std::slice::from_raw_parts_mut(pinned.as_ptr(), self.bytes) })
    }

    /// Queues a copy of bytes [0, len) to the device.
    pub fn send(&mut self, stream: CUstream, len: usize) -> Result<(), DriverError> {
        let (address, from) = (self.address, self.host()?[..len].as_ptr());
        let current = self.device.enter()?;
        // SAFETY: both are as long; the caller waits for the stream before it changes them.
        let rc = unsafe { (current.api().cuMemcpyHtoDAsync_v2)(address, from.cast(), len, stream) };
        current.check("cuMemcpyHtoDAsync", rc, || format!("for {len} bytes of a launch"))
    }

    /// Queues a copy of a range back, and an event behind it.
    pub fn receive(
        &mut self,
        stream: CUstream,
        range: std::ops::Range<usize>,
    ) -> Result<(), DriverError> {
        let (address, len) = (self.address + range.start as u64, range.len());
        let into = self.host()?[range].as_mut_ptr();
        let current = self.device.enter()?;
        // SAFETY: as in `send`; the event is of this device.
        unsafe {
            let rc = (current.api().cuMemcpyDtoHAsync_v2)(into.cast(), address, len, stream);
            current.check("cuMemcpyDtoHAsync", rc, || format!("for {len} bytes of a launch"))?;
            let rc = (current.api().cuEventRecord)(self.event.raw(), stream);
            current.check("cuEventRecord", rc, || format!("behind {len} bytes of a launch"))
        }
    }
}

impl LaunchMemory {
    /// Waits until the device is done with it.
    pub fn wait(&self, about: impl FnOnce() -> String) -> Result<(), DriverError> {
        let current = self.device.enter()?;
        // SAFETY: the event lives as long as `self`.
        let rc = unsafe { (current.api().cuEventSynchronize)(self.event.raw()) };
        current.check("cuEventSynchronize", rc, about)
    }

    /// Waits until the device is done with all that was queued on it.
    pub fn wait_for_device(&self) -> Result<(), DriverError> {
        let current = self.device.enter()?;
        // SAFETY: a call without arguments, with its context current.
        let rc = unsafe { (current.api().cuCtxSynchronize)() };
        current.check("cuCtxSynchronize", rc, || format!("on GPU {}", self.device.ordinal()))
    }

    /// Whether the device is done with it.
    pub fn is_done(&self) -> Result<bool, DriverError> {
        let current = self.device.enter()?;
        // SAFETY: the event lives as long as `self`.
        match unsafe { (current.api().cuEventQuery)(self.event.raw()) } {
            NOT_READY => Ok(false),
            rc => current.check("cuEventQuery", rc, || "of a launch".to_string()).map(|()| true),
        }
    }
}

impl Drop for LaunchMemory {
    fn drop(&mut self) {
        let Some(current) = self.device.enter_to_drop() else { return };
        if self.address != 0 {
            // SAFETY: allocated by `new`, freed once; no launch uses it.
            let rc = unsafe { (current.api().cuMemFree_v2)(self.address) };
            self.device.log_failure("cuMemFree", rc);
        }
        if let Some(pinned) = self.pinned {
            // SAFETY: as above.
            let rc = unsafe { (current.api().cuMemFreeHost)(pinned.as_ptr().cast()) };
            self.device.log_failure("cuMemFreeHost", rc);
        }
    }
}
