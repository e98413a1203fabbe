//! A launch on its way: its memory goes to the device, the kernel follows, and the result comes
//! back with its end.

use super::check;
use super::loaded::Kernels;
use super::parts::{LaunchMemory, OwnStream};
use crate::driver::{Device, DriverError, SUCCESS};
use cudarc::driver::sys::CUstream;
use std::any::Any;
use std::ops::Range;
use std::sync::Arc;

/// Where a launch has its counter and its result in its memory; then comes its list.
pub const DONE: u64 = 0;
/// A word of zeros.
pub const UNUSED: u64 = 8;
pub const RESULT: u64 = 16;
pub const LIST: u64 = 32;
/// The stream that a launch is queued in.
#[derive(Debug, Clone)]
pub enum LaunchStream {
    /// A stream of the caller's, by its handle as a number: a `CUstream`, or what PyTorch calls
    /// `cuda_stream`. 0 is the legacy default stream, which the launch then waits for.
    Caller(u64),
    /// A stream of nkv's, which waits for no other.
    Own(Arc<OwnStream>),
}

impl LaunchStream {
    /// A new stream of nkv's.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn own(device: &Arc<Device>) -> Result<Self, DriverError> {
        Ok(Self::Own(Arc::new(OwnStream::new(device)?)))
    }

    /// Refuses a stream that records a CUDA graph: a launch has memory for one time.
    fn refuse_recording(&self, device: &Arc<Device>) -> Result<(), DriverError> {
        match self {
            Self::Caller(handle) => device.refuse_recording(*handle),
            Self::Own(_) => Ok(()),
        }
    }

    fn raw(&self) -> CUstream {
        match self {
            Self::Caller(handle) => *handle as usize as CUstream,
            Self::Own(stream) => stream.raw(),
        }
    }
}

/// How much of the device a launch may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LaunchOptions {
    /// Multiprocessors; None: all. A launch gets one block for each of them, so that others have
    /// place beside it.
    pub multiprocessors: Option<u32>,
    /// Threads of a block; None: 512.
    pub threads: Option<u32>,
}

/// A kernel with its parameters, but for what lies in its memory.
pub struct Order<'a> {
    pub kernel: &'static str,
    pub grid: u32,
    pub block: u32,
    pub shared: u32,
    pub list: &'a [u8],
    /// Bytes of results behind the list.
    pub results: usize,
    pub about: String,
}

impl Kernels {
    /// Queues the memory's bytes, the kernel and its result.
    ///
    /// # Safety
    /// What the addresses among the arguments mean is the kernel's contract.
    pub(super) unsafe fn launch<R>(
        self: &Arc<Self>,
        stream: &LaunchStream,
        order: Order<'_>,
        args: impl FnOnce(u64) -> Vec<u64>,
        decode: impl FnOnce(&[u8]) -> Result<R, DriverError> + Send + 'static,
    ) -> Result<Launch<R>, DriverError> {
        let Order { kernel, list, results, .. } = order;
        let Some(function) = self.module.function(kernel) else {
            let why = "the kernel is not loaded: it needs a GPU of compute capability 9.0 or later";
            return check::refuse(kernel, why);
        };
        stream.refuse_recording(self.device())?;
        let behind = LIST as usize + list.len();
        let mut memory = self.pool.take(self.device(), behind + results)?;
        let result = match results {
            0 => RESULT as usize..RESULT as usize + 8,
            n => behind..behind + n,
        };
        let about =
            format!("of {kernel} {}, {} blocks of {}", order.about, order.grid, order.block);
        let queue = || {
            let host = memory.host()?;
            host[..LIST as usize].fill(0);
            host[LIST as usize..behind].copy_from_slice(list);
            // What a kernel that was killed leaves is no result.
            host[behind..behind + results].fill(0);
            memory.send(stream.raw(), behind + results)?;
            let mut args = args(memory.address());
            let mut values: Vec<_> = args.iter_mut().map(|arg| (&raw mut *arg).cast()).collect();
            let (grid, block, shared, none) =
                (order.grid, order.block, order.shared, std::ptr::null_mut());
            let current = self.device().enter()?;
            // SAFETY: as many values as parameters, each as long or longer. What their addresses
            // mean is this function's contract.
            let rc = unsafe {
                (current.api().cuLaunchKernel)(
                    function,
                    grid,
                    1,
                    1,
                    block,
                    1,
                    1,
                    shared,
                    stream.raw(),
                    values.as_mut_ptr(),
                    none,
                )
            };
            current.check("cuLaunchKernel", rc, || about.clone())?;
            drop(current);
            memory.receive(stream.raw(), result.clone())
        };
        if let Err(e) = queue() {
            self.give_up(stream, memory);
            return Err(e);
        }
        Ok(Launch {
            kernels: self.clone(),
            _stream: stream.clone(),
            memory: Some(memory),
            result,
            decode: Some(Box::new(decode)),
            about,
        })
    }

    /// After an error: what was queued may still use the memory. If that does not end, it is never
    /// freed.
    fn give_up(&self, stream: &LaunchStream, memory: LaunchMemory) {
        let ended = self.device().enter_to_drop().is_some_and(|current| {
            // SAFETY: the stream is the caller's or kept by it.
            let rc = unsafe { (current.api().cuStreamSynchronize)(stream.raw()) };
            rc == SUCCESS
        });
        self.pool.lost(memory.bytes());
        if !ended {
            self.pool.mark_unknown();
            std::mem::forget(memory);
        }
    }

    /// Whether a launch failed of which it is not known that it has ended.
    pub fn has_unknown_launches(&self) -> bool {
        self.pool.has_unknown()
    }
}

type Decode<R> = Box<dyn FnOnce(&[u8]) -> Result<R, DriverError> + Send>;

/// A kernel that was queued. Dropped without being waited for, it runs to its end all the same.
#[must_use = "its result says whether it did what it was for"]
pub struct Launch<R> {
    memory: Option<LaunchMemory>,
    _stream: LaunchStream,
    kernels: Arc<Kernels>,
    result: Range<usize>,
    decode: Option<Decode<R>>,
    about: String,
}

impl<R> std::fmt::Debug for Launch<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Launch({})", self.about)
    }
}

impl<R> Launch<R> {
    /// Keeps something until it has ended, also if nobody waits for it.
    pub(super) fn keep(mut self, what: Arc<dyn Any + Send + Sync>) -> Self {
        self.memory.iter_mut().for_each(|memory| memory.kept.push(what.clone()));
        self
    }

    /// Whether it has ended.
    ///
    /// # Errors
    /// Those of the driver, which are the kernel's as well.
    pub fn is_done(&self) -> Result<bool, DriverError> {
        self.memory.as_ref().map_or(Ok(true), LaunchMemory::is_done)
    }

    /// Waits for its end. Kernels end: their waits are bounded by `spins`.
    ///
    /// # Errors
    /// Those of the driver, which are the kernel's as well.
    pub fn wait(mut self) -> Result<R, DriverError> {
        let (Some(mut memory), Some(decode)) = (self.memory.take(), self.decode.take()) else {
            return check::refuse("a kernel", "its launch was waited for already");
        };
        if let Err(e) = memory.wait(|| self.about.clone()) {
            // Whether the device is done with the memory is not known.
            self.memory = Some(memory);
            return Err(e);
        }
        let result = memory.host().and_then(|host| decode(&host[self.result.clone()]));
        self.kernels.pool.give_back(memory);
        result
    }
}

impl<R> Drop for Launch<R> {
    fn drop(&mut self) {
        if let Some(memory) = self.memory.take() {
            self.kernels.pool.leave(memory);
        }
    }
}
