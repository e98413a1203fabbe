//! The CUDA driver library and its devices. Nothing of CUDA is linked: the library is loaded when
//! it is first asked for, and each reason that it cannot be used is an error of its own.

mod api;
mod device;
mod error;

pub(crate) use api::SUCCESS;
use cudarc::driver::sys;
use cudarc::driver::sys::CUpointer_attribute_enum::{
    CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL as DEVICE_ORDINAL,
    CU_POINTER_ATTRIBUTE_MEMORY_TYPE as MEMORY_TYPE,
};
use libloading::os::unix::{Library, RTLD_LAZY};
use std::ffi::{CStr, c_char};
use std::sync::Arc;

pub(crate) use api::Api;
pub(crate) use device::Current;
pub use device::{Attributes, Device};
pub use error::DriverError;

/// Oldest driver that serves: CUDA 12.0, as `cuDriverGetVersion` writes it.
pub const OLDEST_VERSION: i32 = 12_000;

/// `CUDA_ERROR_INVALID_CONTEXT`.
const INVALID_CONTEXT: u32 = 201;
/// `CUDA_ERROR_INVALID_VALUE`, for memory that the driver does not know.
const NOT_KNOWN: u32 = 1;
/// `CU_MEMORYTYPE_HOST`.
const HOST_MEMORY: u32 = 1;
/// A library is opened only if it is loaded already.
const NOT_LOADED: i32 = RTLD_LAZY | RTLD_NOLOAD;
/// `RTLD_NOLOAD` of Linux.
const RTLD_NOLOAD: i32 = 4;

/// A primary context that is kept for a moment.
struct Retained<'a>(sys::CUcontext, sys::CUdevice, &'a Driver);

impl Drop for Retained<'_> {
    fn drop(&mut self) {
        // SAFETY: retained once.
        let rc = unsafe { (self.2.api.cuDevicePrimaryCtxRelease_v2)(self.1) };
        if let Err(e) = self.2.check("cuDevicePrimaryCtxRelease", rc, String::new) {
            tracing::warn!("{e}");
        }
    }
}

/// An opened driver library.
#[derive(Debug)]
pub struct Driver {
    api: Api,
    version: i32,
    devices: u32,
}

impl Driver {
    /// Loads the library, finds every symbol and initialises it.
    ///
    /// # Errors
    /// What is missing, and what to do about it.
    pub fn open() -> Result<Arc<Self>, DriverError> {
        // SAFETY: loading the driver library runs its initialisers, as in every program with CUDA.
        if !unsafe { sys::is_culib_present() } {
            return Err(DriverError::NoLibrary { why: why_not_loaded() });
        }
        // SAFETY: as above; it is never unloaded.
        let library = unsafe { sys::culib() };
        // SAFETY: it was found under the driver library's name.
        let api = unsafe { Api::load(library) };
        let api = api.map_err(|symbol| DriverError::MissingSymbol { symbol })?;
        let mut driver = Self { api, version: 0, devices: 0 };
        // SAFETY: the numbers live until the calls return; `cuInit` comes before all others but the
        // version, which needs none.
        unsafe {
            let rc = (api.cuDriverGetVersion)(&mut driver.version);
            driver.check("cuDriverGetVersion", rc, || "at start".to_string())?;
            if driver.version < OLDEST_VERSION {
                return Err(DriverError::TooOld { version: driver.version });
            }
            driver.check("cuInit", (api.cuInit)(0), || "at start".to_string())?;
            let mut count = 0;
            let rc = (api.cuDeviceGetCount)(&mut count);
            driver.check("cuDeviceGetCount", rc, || "at start".to_string())?;
            driver.devices = u32::try_from(count).unwrap_or(0);
        }
        if driver.devices == 0 {
            return Err(DriverError::NoDevice);
        }
        Ok(Arc::new(driver))
    }

    /// Its version, 12080 for CUDA 12.8.
    pub fn version(&self) -> i32 {
        self.version
    }

    /// How many devices this process can use.
    pub fn devices(&self) -> u32 {
        self.devices
    }

    /// The number of the GPU that the memory at this address is in.
    ///
    /// # Errors
    /// If it is not in a GPU, also if no GPU is used by this process yet.
    pub fn device_of(&self, address: u64) -> Result<u32, DriverError> {
        let not_there = || {
            DriverError::Invalid(format!(
                "the memory at {address:#x} is not in a GPU: give it as memory of the host"
            ))
        };
        let found = match self.attributes_of(address) {
            // A thread may have no context, which the call needs: any that is in use will do.
            Err(INVALID_CONTEXT) => {
                let context = self.context_in_use()?.ok_or_else(not_there)?;
                self.within(&context, || self.attributes_of(address))?
            }
            found => found,
        };
        let (kind, ordinal) = match found {
            Ok(found) => found,
            Err(NOT_KNOWN) => return Err(not_there()),
            Err(code) => {
                let about = || format!("for the address {address:#x}");
                return self.check("cuPointerGetAttribute", code, about).and(Err(not_there()));
            }
        };
        u32::try_from(ordinal).ok().filter(|_| kind != HOST_MEMORY).ok_or_else(not_there)
    }

    /// Makes calls with a context, and then the thread's own is current again.
    fn within<T>(
        &self,
        context: &Retained<'_>,
        calls: impl FnOnce() -> T,
    ) -> Result<T, DriverError> {
        // SAFETY: retained as long as `context` lives.
        let rc = unsafe { (self.api.cuCtxPushCurrent_v2)(context.0) };
        self.check("cuCtxPushCurrent", rc, || "to ask for an address".to_string())?;
        let done = calls();
        let mut left = std::ptr::null_mut();
        // SAFETY: pushed above, on this thread.
        let rc = unsafe { (self.api.cuCtxPopCurrent_v2)(&mut left) };
        self.check("cuCtxPopCurrent", rc, || "after a question for an address".to_string())?;
        Ok(done)
    }

    /// Kind of the memory at an address, and its GPU; or the number of the error.
    fn attributes_of(&self, address: u64) -> Result<(u32, i32), u32> {
        let (mut kind, mut ordinal) = (0_u32, -1_i32);
        for (attribute, into) in
            [(MEMORY_TYPE, (&raw mut kind).cast()), (DEVICE_ORDINAL, (&raw mut ordinal).cast())]
        {
            // SAFETY: the numbers live until the calls return, and have the attributes' sizes.
            match unsafe { (self.api.cuPointerGetAttribute)(into, attribute, address) } {
                SUCCESS => {}
                code => return Err(code),
            }
        }
        Ok((kind, ordinal))
    }

    /// The primary context of a GPU that this process uses. None: it uses none.
    fn context_in_use(&self) -> Result<Option<Retained<'_>>, DriverError> {
        for ordinal in 0..self.devices {
            let about = || format!("for GPU {ordinal}");
            let (mut device, mut flags, mut active) = (0, 0, 0);
            let mut context = std::ptr::null_mut();
            // SAFETY: the numbers live until the calls return.
            unsafe {
                let rc = (self.api.cuDeviceGet)(&mut device, ordinal as i32);
                self.check("cuDeviceGet", rc, about)?;
                let rc = (self.api.cuDevicePrimaryCtxGetState)(device, &mut flags, &mut active);
                self.check("cuDevicePrimaryCtxGetState", rc, about)?;
                if active == 0 {
                    continue;
                }
                let rc = (self.api.cuDevicePrimaryCtxRetain)(&mut context, device);
                self.check("cuDevicePrimaryCtxRetain", rc, about)?;
            }
            return Ok(Some(Retained(context, device, self)));
        }
        Ok(None)
    }

    /// Whether this process has initialised the driver library: memory of a GPU exists in it only
    /// then. It loads nothing and initialises nothing.
    pub fn is_in_use() -> bool {
        // SAFETY: what is loaded already runs no initialiser.
        let Ok(library) = (unsafe { Library::open(Some("libcuda.so.1"), NOT_LOADED) }) else {
            return false;
        };
        type GetCount = unsafe extern "C" fn(*mut i32) -> u32;
        let mut devices = 0;
        // SAFETY: the call has this type, and fails before `cuInit`; the number lives until then.
        unsafe {
            library
                .get::<GetCount>(b"cuDeviceGetCount\0")
                .is_ok_and(|of| of(&mut devices) == SUCCESS)
        }
    }

    pub(crate) fn api(&self) -> &Api {
        &self.api
    }

    /// An error unless the call succeeded; `about` names what it was for, with the numbers.
    pub(crate) fn check(
        &self,
        call: &'static str,
        code: u32,
        about: impl FnOnce() -> String,
    ) -> Result<(), DriverError> {
        if code == SUCCESS {
            return Ok(());
        }
        Err(DriverError::Call { call, code, name: self.error_name(code), about: about() })
    }

    fn error_name(&self, code: u32) -> String {
        type GetName = unsafe extern "C" fn(u32, *mut *const c_char) -> u32;
        let mut name: *const c_char = std::ptr::null();
        // SAFETY: the enumeration of the bindings is a u32, and this type lets numbers through that
        // it lacks; the driver returns a static text or leaves null.
        unsafe {
            let get_name: GetName = std::mem::transmute(self.api.cuGetErrorName);
            let found = get_name(code, &mut name) == SUCCESS && !name.is_null();
            let known = found.then(|| CStr::from_ptr(name).to_string_lossy().into_owned());
            known.unwrap_or_else(|| "an error unknown to this driver".to_string())
        }
    }
}

/// Why the library under its usual name is not loaded, in the words of the dynamic linker.
fn why_not_loaded() -> String {
    // SAFETY: as for the driver library; it has just failed to load.
    match unsafe { libloading::Library::new("libcuda.so.1") } {
        Ok(_) => "libcuda.so.1 was there only at the second attempt".to_string(),
        Err(e) => std::error::Error::source(&e).map_or_else(|| e.to_string(), |s| s.to_string()),
    }
}
