//! nkv-gpu: segments whose payload lies in the memory of a GPU, and the kernels that write, publish
//! and read objects there.
//!
//! - [`driver`] opens the CUDA driver library and a device.
//! - [`vram`] allocates, exports and imports VRAM, and is a memory of the store.
//! - [`registered`] gives kernels access to host memory.
//! - [`kernels`] has the kernels and their launches.
#![expect(unsafe_code, reason = "the driver library is called, and kernels get raw addresses")]

pub mod driver;
pub mod kernels;
pub mod registered;
pub mod vram;
