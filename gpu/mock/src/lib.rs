//! A stand-in for the CUDA driver library: copied to `libcuda.so.1` in a folder of
//! LD_LIBRARY_PATH, it is what a program loads on a machine without a GPU. VRAM is a memfd that is
//! mapped into the process. docs/reference/vram.md lists what it can show and what it cannot.
//!
//! | variable | effect |
//! |---|---|
//! | `MOCK_CUDA_FAIL=CALL[:NTH]:CODE` | the call of that symbol fails: each, or the NTH from 1 |
//! | `MOCK_CUDA_LOG=FILE` | each call appends its symbol |
//! | `MOCK_CUDA_LEAKS=FILE` | what is left when the process exits, one `KIND COUNT` a line |
//! | `MOCK_CUDA_VERSION=N`, `MOCK_CUDA_DEVICES=N` | version of the driver, number of devices |
//! | `MOCK_CUDA_ATTRIBUTES=N=VALUE,...` | attributes of every device |
//! | `MOCK_CUDA_DELAY_US=N`, `MOCK_CUDA_SEED=N` | longest delay of a stream's operation, its seed |
#![expect(unsafe_code, reason = "it is a C library")]

mod calls;
mod context;
mod host;
mod ipc;
mod kernels;
mod memory;
mod settings;
mod state;
mod stream;

/// CUDA's numbers of the errors that the calls return.
mod code {
    pub const INVALID_VALUE: u32 = 1;
    pub const OUT_OF_MEMORY: u32 = 2;
    pub const NOT_INITIALIZED: u32 = 3;
    pub const INVALID_DEVICE: u32 = 101;
    pub const INVALID_IMAGE: u32 = 200;
    pub const INVALID_CONTEXT: u32 = 201;
    pub const INVALID_PTX: u32 = 218;
    pub const OPERATING_SYSTEM: u32 = 304;
    pub const INVALID_HANDLE: u32 = 400;
    pub const NOT_FOUND: u32 = 500;
    pub const NOT_READY: u32 = 600;
    pub const CONTEXT_IS_DESTROYED: u32 = 709;
    pub const ALREADY_REGISTERED: u32 = 712;
    pub const NOT_REGISTERED: u32 = 713;
    pub const LAUNCH_FAILED: u32 = 719;
    pub const NOT_SUPPORTED: u32 = 801;
}

/// What a call returns: Err is CUDA's number of the error.
type Outcome = Result<(), u32>;
