//! The kernels: their PTX, their parameters, the descriptors from which they copy, and their
//! launches. docs/reference/gpu-kernels.md describes them.

mod check;
mod copy;
mod launch;
mod layout;
mod loaded;
mod log;
mod params;
mod parts;
mod pool;

pub use crate::vram::Span;
pub use check::{LogAddresses, Reach};
pub use launch::{Launch, LaunchOptions, LaunchStream};
pub use layout::{Descriptor, Descriptors, KvDims, KvLayout, KvShape, KvStrides, LayoutError};
pub use loaded::{Kernels, LogPutOutcome, Publish, Wanted};
pub use log::{LogMemory, Source};
pub use params::{
    GatherPublish, LogPut, LogPutObject, LogPutResult, LogPutStatus, ScatterResult, WaitScatter,
};
pub use parts::OwnStream;
pub(crate) use parts::{Event, LaunchMemory};
pub use pool::{MAX_IN_FLIGHT, MAX_LAUNCH_BYTES};

/// PTX for GPUs from compute capability 8.0 on.
pub const PTX_SM80: &str = include_str!("../kernels/nkv_sm80.ptx");
/// PTX for GPUs from compute capability 9.0 on, with [`GATHER_BULK`].
pub const PTX_SM90: &str = include_str!("../kernels/nkv_sm90.ptx");

/// Copies and publishes an object. Parameters: [`GatherPublish`].
pub const GATHER_PUBLISH: &str = "nkv_gather_publish";
/// Waits for an object and copies it. Parameters: [`WaitScatter`].
pub const WAIT_SCATTER: &str = "nkv_wait_scatter";
/// Puts objects into a device log. Parameters: [`LogPut`].
pub const LOG_PUT: &str = "nkv_log_put";
/// As [`GATHER_PUBLISH`], by the bulk copy engine; one thread of each block works. It needs
/// [`BULK_SHARED_BYTES`], and sizes that are multiples of 16.
pub const GATHER_BULK: &str = "nkv_gather_bulk";

/// Most threads of a block, for all kernels but [`GATHER_BULK`].
pub const MAX_BLOCK: u32 = 512;
/// Dynamic shared memory of a block of [`GATHER_BULK`].
pub const BULK_SHARED_BYTES: u32 = 3 * 32768;
/// Most blocks of a launch: the counter of finished blocks has 21 bits for them.
pub const MAX_GRID: u32 = (1 << 21) - 1;
