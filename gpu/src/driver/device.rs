//! One GPU: its properties, and its primary context, which the process shares with PyTorch and
//! other users of CUDA's runtime.

use super::{Api, Driver, DriverError};
use cudarc::driver::sys::{
    CUcontext, CUdevice, CUdevice_attribute_enum as Attribute, CUstream,
    CUstreamCaptureStatus_enum as CaptureStatus, CUuuid,
};
use nkv_store::fork::ProcessMark;
use std::ffi::CStr;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

/// What a device can do, as its driver reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attributes {
    /// Its name.
    pub name: String,
    /// Its id, the same in every process.
    pub uuid: [u8; 16],
    /// Bytes of VRAM.
    pub memory: u64,
    /// Major and minor number of its compute capability.
    pub capability: (i32, i32),
    /// Streaming multiprocessors.
    pub multiprocessors: i32,
    /// One address space for host and device.
    pub unified_addressing: bool,
    /// Address ranges can be reserved and mapped.
    pub address_management: bool,
    /// Memory can be exported as a file descriptor.
    pub fd_handles: bool,
    /// RDMA devices reach its memory.
    pub rdma: bool,
    /// They reach memory in mapped address ranges, too.
    pub rdma_of_mapped: bool,
    /// Its memory can be exported as a dma-buf.
    pub dma_buf: bool,
    /// From which reader on RDMA writes are ordered: 0 nobody, 100 this device, 200 all devices.
    pub rdma_writes_ordering: i32,
    /// How RDMA writes can be flushed: 1 by the host, 2 by operations of a stream.
    pub rdma_flush_options: i32,
    /// Device and host execute atomics on each other's memory natively.
    pub host_native_atomics: bool,
    /// Registered host memory has the same address for kernels.
    pub same_host_pointers: bool,
}

/// RDMA writes are ordered for the device itself, or for all devices.
const ORDERED_FOR_OWNER: i32 = 100;
const ORDERED_FOR_ALL: i32 = 200;
/// The host can flush them.
const FLUSH_BY_HOST: i32 = 1;

impl Attributes {
    fn query(driver: &Driver, device: CUdevice, ordinal: u32) -> Result<Self, DriverError> {
        let api = driver.api();
        let (mut name, mut memory) = ([0_u8; 256], 0);
        let about = || format!("for GPU {ordinal}");
        // SAFETY: the buffers live until the calls return, and the name's length is passed.
        unsafe {
            let rc = (api.cuDeviceGetName)(name.as_mut_ptr().cast(), name.len() as i32, device);
            driver.check("cuDeviceGetName", rc, about)?;
            let rc = (api.cuDeviceTotalMem_v2)(&mut memory, device);
            driver.check("cuDeviceTotalMem", rc, about)?;
        }
        let name = CStr::from_bytes_until_nul(&name)
            .map_or_else(|_| "unknown".to_string(), |name| name.to_string_lossy().into_owned());
        let number = |attribute: Attribute| {
            let mut value = 0;
            // SAFETY: the number lives until the call returns.
            let rc = unsafe { (api.cuDeviceGetAttribute)(&mut value, attribute, device) };
            let about = || format!("for {attribute:?} of GPU {ordinal}");
            driver.check("cuDeviceGetAttribute", rc, about).map(|()| value)
        };
        let flag = |attribute| number(attribute).map(|value| value != 0);
        use Attribute::*;
        Ok(Self {
            name,
            uuid: uuid_of(driver, device, ordinal)?,
            memory: memory as u64,
            capability: (
                number(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
                number(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
            ),
            multiprocessors: number(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
            unified_addressing: flag(CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING)?,
            address_management: flag(CU_DEVICE_ATTRIBUTE_VIRTUAL_ADDRESS_MANAGEMENT_SUPPORTED)?,
            fd_handles: flag(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED)?,
            rdma: flag(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED)?,
            rdma_of_mapped: flag(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED)?,
            dma_buf: flag(CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED)?,
            rdma_writes_ordering: number(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING)?,
            rdma_flush_options: number(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS)?,
            host_native_atomics: flag(CU_DEVICE_ATTRIBUTE_HOST_NATIVE_ATOMIC_SUPPORTED)?,
            same_host_pointers: flag(CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM)?,
        })
    }

    /// Host and device are joined by NVLink-C2C or the like, and not by PCIe alone: RDMA writes to
    /// the device and those to the host may take different paths.
    fn has_link_to_host(&self) -> bool {
        self.host_native_atomics
    }

    /// RDMA writes need a flush before the device itself sees them in order.
    pub fn needs_flush(&self) -> bool {
        let ordered = self.orders_writes_for_owner() && !self.has_link_to_host();
        self.rdma && !ordered
    }

    /// The device says that it sees RDMA writes in order.
    pub(crate) fn orders_writes_for_owner(&self) -> bool {
        self.rdma_writes_ordering >= ORDERED_FOR_OWNER
    }

    /// No reader needs a flush to see RDMA writes in order, another RDMA device included.
    pub fn orders_writes_for_all(&self) -> bool {
        self.rdma_writes_ordering >= ORDERED_FOR_ALL && !self.has_link_to_host()
    }

    /// The host can make that flush.
    pub fn host_can_flush(&self) -> bool {
        self.rdma_flush_options & FLUSH_BY_HOST != 0
    }
}

impl fmt::Display for Attributes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let yes = |flag: bool| if flag { "yes" } else { "no" };
        let gib = self.memory as f64 / f64::from(1 << 30);
        let (major, minor) = self.capability;
        write!(f, "{}, {gib:.1} GiB, compute capability {major}.{minor}", self.name)?;
        write!(f, ", {} multiprocessors", self.multiprocessors)?;
        for (what, flag) in [
            ("unified addressing", self.unified_addressing),
            ("address management", self.address_management),
            ("fd handles", self.fd_handles),
            ("GPUDirect RDMA", self.rdma),
            ("of mapped ranges", self.rdma_of_mapped),
            ("dma-buf", self.dma_buf),
            ("native atomics with the host", self.host_native_atomics),
            ("host pointers in kernels", self.same_host_pointers),
        ] {
            write!(f, ", {what} {}", yes(flag))?;
        }
        let (ordering, flush) = (self.rdma_writes_ordering, self.rdma_flush_options);
        write!(f, ", RDMA writes ordering {ordering}, flush options {flush}")
    }
}

/// A GPU with its primary context, which is released when this is dropped.
#[derive(Debug)]
pub struct Device {
    driver: Arc<Driver>,
    ordinal: u32,
    handle: CUdevice,
    context: CUcontext,
    attributes: Attributes,
    opened_in: ProcessMark,
}

// SAFETY: a context may be current on any number of threads; every call makes it so first.
unsafe impl Send for Device {}
// SAFETY: as above, and the driver's calls may be made from several threads at once.
unsafe impl Sync for Device {}

impl Device {
    /// Opens the GPU of that number among those that this process can use: the caller's
    /// LOCAL_RANK, as a rule.
    ///
    /// # Errors
    /// If there is none of that number, or it lacks what a segment in VRAM needs.
    pub fn new(driver: Arc<Driver>, ordinal: u32) -> Result<Arc<Self>, DriverError> {
        if ordinal >= driver.devices() {
            return Err(DriverError::NoSuchDevice { ordinal, devices: driver.devices() });
        }
        let handle = handle_of(&driver, ordinal)?;
        let attributes = Attributes::query(&driver, handle, ordinal)?;
        refuse_lacking(ordinal, &attributes)?;
        let mut context = std::ptr::null_mut();
        // SAFETY: the pointer lives until the call returns; `drop` releases the context once.
        let rc = unsafe { (driver.api().cuDevicePrimaryCtxRetain)(&mut context, handle) };
        driver.check("cuDevicePrimaryCtxRetain", rc, || format!("for GPU {ordinal}"))?;
        let opened_in = ProcessMark::here();
        Ok(Arc::new(Self { driver, ordinal, handle, context, attributes, opened_in }))
    }

    /// Opens the GPU with this id.
    ///
    /// # Errors
    /// If this process cannot use it.
    pub fn of_uuid(driver: &Arc<Driver>, uuid: [u8; 16]) -> Result<Arc<Self>, DriverError> {
        Self::new(driver.clone(), Self::ordinal_of(driver, uuid)?)
    }

    /// The number in this process of the GPU with this id. It opens none.
    ///
    /// # Errors
    /// If this process cannot use it.
    pub fn ordinal_of(driver: &Driver, uuid: [u8; 16]) -> Result<u32, DriverError> {
        for ordinal in 0..driver.devices() {
            if uuid_of(driver, handle_of(driver, ordinal)?, ordinal)? == uuid {
                return Ok(ordinal);
            }
        }
        Err(DriverError::OtherDevice { uuid, devices: driver.devices() })
    }

    /// Its number in this process.
    pub fn ordinal(&self) -> u32 {
        self.ordinal
    }

    /// What it can do.
    pub fn attributes(&self) -> &Attributes {
        &self.attributes
    }

    /// Refuses a stream that records a CUDA graph, and what is no stream.
    pub(crate) fn refuse_recording(&self, stream: u64) -> Result<(), DriverError> {
        let (current, mut status) = (self.enter()?, CaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE);
        // SAFETY: a handle that is none is an error of the call; the rest lives until it returns.
        let rc = unsafe {
            (current.api().cuStreamIsCapturing)(stream as usize as CUstream, &mut status)
        };
        let about = || format!("for stream {stream:#x} on GPU {}", self.ordinal);
        current.check("cuStreamIsCapturing", rc, about)?;
        match status {
            CaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE => Ok(()),
            _ => Err(DriverError::Invalid(format!(
                "stream {stream:#x} records a CUDA graph: puts, gets and launches of nkv cannot be \
                 part of it"
            ))),
        }
    }

    pub(crate) fn driver(&self) -> &Driver {
        &self.driver
    }

    pub(crate) fn handle(&self) -> CUdevice {
        self.handle
    }

    /// Makes its context current on this thread, until the value is dropped; then the caller's one
    /// is current again.
    pub(crate) fn enter(&self) -> Result<Current<'_>, DriverError> {
        if !self.opened_in.is_here() {
            return Err(DriverError::Forked);
        }
        // SAFETY: the context is retained as long as `self` lives.
        let rc = unsafe { (self.api().cuCtxPushCurrent_v2)(self.context) };
        self.check("cuCtxPushCurrent", rc, || format!("for GPU {}", self.ordinal))?;
        Ok(Current(self, PhantomData))
    }

    /// For a drop: the context, unless it cannot be used any more, and then there is nothing to
    /// give back: a child made by fork owns nothing, and a lost context has lost its memory.
    pub(crate) fn enter_to_drop(&self) -> Option<Current<'_>> {
        self.enter().inspect_err(|e| tracing::debug!("nothing given back: {e}")).ok()
    }

    pub(crate) fn api(&self) -> &Api {
        self.driver.api()
    }

    pub(crate) fn check(
        &self,
        call: &'static str,
        code: u32,
        about: impl FnOnce() -> String,
    ) -> Result<(), DriverError> {
        self.driver.check(call, code, about)
    }

    /// For a drop, which cannot return an error.
    pub(crate) fn log_failure(&self, call: &'static str, code: u32) {
        let about = || format!("when memory of GPU {} was given back", self.ordinal);
        if let Err(e) = self.check(call, code, about) {
            tracing::warn!("{e}");
        }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        if self.opened_in.is_here() {
            // SAFETY: retained once in `new`; what was made in it holds a reference to `self`.
            let rc = unsafe { (self.api().cuDevicePrimaryCtxRelease_v2)(self.handle) };
            self.log_failure("cuDevicePrimaryCtxRelease", rc);
        }
    }
}

fn handle_of(driver: &Driver, ordinal: u32) -> Result<CUdevice, DriverError> {
    let mut handle = 0;
    // SAFETY: the number lives until the call returns.
    let rc = unsafe { (driver.api().cuDeviceGet)(&mut handle, ordinal as i32) };
    driver.check("cuDeviceGet", rc, || format!("for GPU {ordinal}"))?;
    Ok(handle)
}

fn uuid_of(driver: &Driver, device: CUdevice, ordinal: u32) -> Result<[u8; 16], DriverError> {
    let mut uuid = CUuuid { bytes: [0; 16] };
    // SAFETY: the value lives until the call returns.
    let rc = unsafe { (driver.api().cuDeviceGetUuid_v2)(&mut uuid, device) };
    driver.check("cuDeviceGetUuid", rc, || format!("for GPU {ordinal}"))?;
    Ok(uuid.bytes.map(|byte| byte as u8))
}

fn refuse_lacking(ordinal: u32, attributes: &Attributes) -> Result<(), DriverError> {
    let lacks = if !attributes.unified_addressing || !attributes.address_management {
        "virtual address management, which needs Pascal or later without a vGPU profile that hides \
         it: use another GPU, or host memory (--memory shm)"
    } else if !attributes.fd_handles {
        "memory handles as file descriptors, which needs Linux without a restricting vGPU profile: \
         use another GPU, or host memory (--memory shm)"
    } else {
        return Ok(());
    };
    let name = attributes.name.clone();
    Err(DriverError::Lacks { ordinal, name, lacks: lacks.to_string() })
}

/// A device whose context is current on this thread.
#[derive(Debug)]
pub(crate) struct Current<'a>(&'a Device, PhantomData<*const ()>);

impl Current<'_> {
    pub(crate) fn api(&self) -> &Api {
        self.0.api()
    }

    pub(crate) fn check(
        &self,
        call: &'static str,
        code: u32,
        about: impl FnOnce() -> String,
    ) -> Result<(), DriverError> {
        self.0.check(call, code, about)
    }
}

impl Drop for Current<'_> {
    fn drop(&mut self) {
        let mut left = std::ptr::null_mut();
        // SAFETY: pushed on this thread by `enter`; the value is not Send.
        let rc = unsafe { (self.0.api().cuCtxPopCurrent_v2)(&mut left) };
        self.0.log_failure("cuCtxPopCurrent", rc);
    }
}
