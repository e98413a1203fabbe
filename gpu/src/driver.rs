//! The CUDA driver library and its devices. Nothing of CUDA is linked: the library is loaded when
//! it is first asked for, and each reason that it cannot be used is an error of its own.

mod api;
mod device;
mod error;

use api::SUCCESS;
use cudarc::driver::sys;
use cudarc::driver::sys::CUpointer_attribute_enum::{
    CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL as DEVICE_ORDINAL,
    CU_POINTER_ATTRIBUTE_MEMORY_TYPE as MEMORY_TYPE,
};
use std::ffi::{CStr, c_char};
use std::sync::Arc;

pub(crate) use api::Api;
pub(crate) use device::Current;
pub use device::{Attributes, Device};
pub use error::DriverError;

/// Oldest driver that serves: CUDA 12.0, as `cuDriverGetVersion` writes it.
pub const OLDEST_VERSION: i32 = 12_000;

/// `CU_MEMORYTYPE_HOST`.
const HOST_MEMORY: u32 = 1;

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
    /// If it is not in a GPU.
    pub fn device_of(&self, address: u64) -> Result<u32, DriverError> {
        let (mut kind, mut ordinal) = (0_u32, 0_i32);
        let about = || format!("for the address {address:#x}");
        // SAFETY: the numbers live until the calls return, and have the attributes' sizes.
        unsafe {
            let into = (&raw mut kind).cast();
            let rc = (self.api.cuPointerGetAttribute)(into, MEMORY_TYPE, address);
            // Memory that the driver does not know is that of the host.
            if rc == sys::CUresult::CUDA_ERROR_INVALID_VALUE as u32 || kind == HOST_MEMORY {
                return Err(DriverError::Invalid(format!(
                    "the memory at {address:#x} is not in a GPU: give it as memory of the host"
                )));
            }
            self.check("cuPointerGetAttribute", rc, about)?;
            let into = (&raw mut ordinal).cast();
            let rc = (self.api.cuPointerGetAttribute)(into, DEVICE_ORDINAL, address);
            self.check("cuPointerGetAttribute", rc, about)?;
        }
        u32::try_from(ordinal).map_err(|_| {
            DriverError::Invalid(format!("the memory at {address:#x} is on GPU {ordinal}"))
        })
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
