//! The calls of the driver library that this crate makes, as a table that is filled when the
//! library is opened: a symbol that is not there is reported then, not at its first call. Results
//! are numbers here: a newer driver may return one that an enumeration of this build lacks.
#![allow(non_snake_case, reason = "each field has the name of its symbol")]

use cudarc::driver::sys;
use std::ffi::{c_char, c_int, c_uint, c_ulonglong, c_void};
use sys::{
    CUcontext, CUdevice, CUdevice_attribute, CUdeviceptr, CUevent, CUflushGPUDirectRDMAWritesScope,
    CUflushGPUDirectRDMAWritesTarget, CUfunction, CUfunction_attribute, CUipcMemHandle,
    CUjit_option, CUmemAccessDesc, CUmemAllocationGranularity_flags, CUmemAllocationHandleType,
    CUmemAllocationProp, CUmemGenericAllocationHandle, CUmemRangeHandleType, CUmemcpyAttributes,
    CUmodule, CUpointer_attribute, CUresult, CUstream, CUstreamCaptureStatus, CUuuid,
};

/// Addresses to copy to, addresses to copy from, sizes, their number; attributes, from which copy
/// on each holds, their number; the first copy that failed; the stream.
pub type MemcpyBatchAsync = unsafe extern "C" fn(
    *mut CUdeviceptr,
    *mut CUdeviceptr,
    *mut usize,
    usize,
    *mut CUmemcpyAttributes,
    *mut usize,
    usize,
    *mut usize,
    CUstream,
) -> u32;

/// `CUDA_SUCCESS`.
pub const SUCCESS: u32 = 0;

macro_rules! table {
    ($($name:ident($($arg:ty),*);)*) => {
        /// One function pointer a call.
        #[derive(Debug, Clone, Copy)]
        pub struct Api {
            $(pub $name: unsafe extern "C" fn($($arg),*) -> u32,)*
            /// Drivers for CUDA 12.8 and later have it.
            pub cuMemcpyBatchAsync: Option<MemcpyBatchAsync>,
        }

        // The argument lists are those of the bindings.
        $(const _: unsafe fn($($arg),*) -> CUresult = sys::$name;)*

        impl Api {
            /// Finds every symbol, or names the first that is not there.
            ///
            /// # Safety
            /// `library` must be a CUDA driver library, and stay loaded.
            pub unsafe fn load(library: &libloading::Library) -> Result<Self, &'static str> {
                Ok(Self {
                    $($name: {
                        let symbol = concat!(stringify!($name), "\0");
                        // SAFETY: the library exports this symbol with this signature.
                        let found = unsafe { library.get(symbol.as_bytes()) };
                        *found.map_err(|_| stringify!($name))?
                    },)*
                    // SAFETY: as above.
                    cuMemcpyBatchAsync: unsafe { library.get(b"cuMemcpyBatchAsync\0") }
                        .ok()
                        .map(|found| *found),
                })
            }
        }
    };
}

table! {
    cuInit(c_uint);
    cuDriverGetVersion(*mut c_int);
    cuDeviceGetCount(*mut c_int);
    cuDeviceGet(*mut CUdevice, c_int);
    cuDeviceGetName(*mut c_char, c_int, CUdevice);
    cuDeviceGetUuid_v2(*mut CUuuid, CUdevice);
    cuDeviceTotalMem_v2(*mut usize, CUdevice);
    cuDeviceGetAttribute(*mut c_int, CUdevice_attribute, CUdevice);
    cuDevicePrimaryCtxRetain(*mut CUcontext, CUdevice);
    cuDevicePrimaryCtxRelease_v2(CUdevice);
    cuDevicePrimaryCtxGetState(CUdevice, *mut c_uint, *mut c_int);
    cuCtxPushCurrent_v2(CUcontext);
    cuCtxPopCurrent_v2(*mut CUcontext);
    cuGetErrorName(CUresult, *mut *const c_char);
    cuMemGetAllocationGranularity(
        *mut usize, *const CUmemAllocationProp, CUmemAllocationGranularity_flags
    );
    cuMemCreate(
        *mut CUmemGenericAllocationHandle, usize, *const CUmemAllocationProp, c_ulonglong
    );
    cuMemExportToShareableHandle(
        *mut c_void, CUmemGenericAllocationHandle, CUmemAllocationHandleType, c_ulonglong
    );
    cuMemImportFromShareableHandle(
        *mut CUmemGenericAllocationHandle, *mut c_void, CUmemAllocationHandleType
    );
    cuMemRelease(CUmemGenericAllocationHandle);
    cuMemAddressReserve(*mut CUdeviceptr, usize, usize, CUdeviceptr, c_ulonglong);
    cuMemAddressFree(CUdeviceptr, usize);
    cuMemMap(CUdeviceptr, usize, usize, CUmemGenericAllocationHandle, c_ulonglong);
    cuMemUnmap(CUdeviceptr, usize);
    cuMemSetAccess(CUdeviceptr, usize, *const CUmemAccessDesc, usize);
    cuMemGetHandleForAddressRange(
        *mut c_void, CUdeviceptr, usize, CUmemRangeHandleType, c_ulonglong
    );
    cuMemGetAddressRange_v2(*mut CUdeviceptr, *mut usize, CUdeviceptr);
    cuMemAllocHost_v2(*mut *mut c_void, usize);
    cuMemFreeHost(*mut c_void);
    cuMemHostRegister_v2(*mut c_void, usize, c_uint);
    cuMemHostUnregister(*mut c_void);
    cuMemHostGetDevicePointer_v2(*mut CUdeviceptr, *mut c_void, c_uint);
    cuIpcGetMemHandle(*mut CUipcMemHandle, CUdeviceptr);
    cuIpcOpenMemHandle_v2(*mut CUdeviceptr, CUipcMemHandle, c_uint);
    cuIpcCloseMemHandle(CUdeviceptr);
    cuStreamCreate(*mut CUstream, c_uint);
    cuStreamDestroy_v2(CUstream);
    cuStreamSynchronize(CUstream);
    cuEventCreate(*mut CUevent, c_uint);
    cuEventDestroy_v2(CUevent);
    cuEventRecord(CUevent, CUstream);
    cuStreamIsCapturing(CUstream, *mut CUstreamCaptureStatus);
    cuPointerGetAttribute(*mut c_void, CUpointer_attribute, CUdeviceptr);
    cuMemcpyAsync(CUdeviceptr, CUdeviceptr, usize, CUstream);
    cuMemcpyHtoDAsync_v2(CUdeviceptr, *const c_void, usize, CUstream);
    cuMemcpyDtoHAsync_v2(*mut c_void, CUdeviceptr, usize, CUstream);
    cuMemAlloc_v2(*mut CUdeviceptr, usize);
    cuMemFree_v2(CUdeviceptr);
    cuModuleLoadDataEx(
        *mut CUmodule, *const c_void, c_uint, *mut CUjit_option, *mut *mut c_void
    );
    cuModuleUnload(CUmodule);
    cuModuleGetFunction(*mut CUfunction, CUmodule, *const c_char);
    cuFuncSetAttribute(CUfunction, CUfunction_attribute, c_int);
    cuLaunchKernel(
        CUfunction, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, CUstream,
        *mut *mut c_void, *mut *mut c_void
    );
    cuEventQuery(CUevent);
    cuEventSynchronize(CUevent);
    cuCtxSynchronize();
    cuFlushGPUDirectRDMAWrites(
        CUflushGPUDirectRDMAWritesTarget, CUflushGPUDirectRDMAWritesScope
    );
}
