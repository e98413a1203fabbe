//! The kernels, loaded and launched through the driver's calls, on VRAM that two processes map and
//! host memory that both registered.

use crate::start::Start;
use crate::task::{self, Done, Tasks, other, pattern};
use cudarc::driver::sys;
use nkv_gpu::driver::Device;
use nkv_gpu::kernels::{
    Descriptor, GATHER_PUBLISH, GatherPublish, PTX_SM80, ScatterResult, WAIT_SCATTER, WaitScatter,
};
use nkv_gpu::registered::RegisteredHost;
use nkv_gpu::vram::{DeviceRange, Vram, VramMemory};
use nkv_store::Memory;
use nkv_store::shm::MemfdMemory;
use std::ffi::CString;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::Stdio;
use std::sync::Arc;

const BYTES: u64 = 4 << 20;
const CONTROL: u64 = 4096;
/// Bytes of the object, and where it lies in VRAM.
const LEN: u64 = 48 << 10;
const OBJECT: u64 = 1 << 20;
/// Where a process keeps descriptors, a counter, a result, and its own pages in its own VRAM.
const DESCRIPTORS: u64 = 0;
const DONE: u64 = 4096;
const RESULT: u64 = 4104;
const PAGES: u64 = 1 << 20;
/// Words of the header, which begins at 0 of the control words.
const PUBLISH: u64 = 40;
const OWNER: u64 = 56;
const EPOCH: u64 = 7;
const READY: u64 = 2;

/// See `task`.
pub fn tasks() -> Tasks {
    &[("reader", reader), ("writer", writer), ("bad_launch", bad_launch)]
}

/// A loaded module and a stream, with a context that is current on this thread.
struct Launcher {
    module: sys::CUmodule,
    stream: sys::CUstream,
}

impl Launcher {
    fn new() -> Result<Self, sys::CUresult> {
        let (mut context, mut module) = (std::ptr::null_mut(), std::ptr::null_mut());
        let (mut stream, text) = (std::ptr::null_mut(), CString::new(PTX_SM80).unwrap());
        // SAFETY: the pointers live until the calls return; the text ends with a zero byte.
        unsafe {
            ok(sys::cuDevicePrimaryCtxRetain(&mut context, 0))?;
            ok(sys::cuCtxSetCurrent(context))?;
            ok(sys::cuModuleLoadData(&mut module, text.as_ptr().cast()))?;
            ok(sys::cuStreamCreate(&mut stream, 1))?;
        }
        Ok(Self { module, stream })
    }

    /// Runs a kernel to its end.
    fn run(&self, kernel: &str, grid: u32, args: &[u64]) -> Result<(), sys::CUresult> {
        let (name, mut function) = (CString::new(kernel).unwrap(), std::ptr::null_mut());
        let mut values: Vec<_> =
            args.iter().map(|arg| (&raw const *arg).cast_mut().cast()).collect();
        // SAFETY: as many values as parameters, each as long or longer; the addresses among them
        // are mapped by this process until the launch has ended.
        unsafe {
            ok(sys::cuModuleGetFunction(&mut function, self.module, name.as_ptr()))?;
            let (values, none) = (values.as_mut_ptr(), std::ptr::null_mut());
            ok(sys::cuLaunchKernel(function, grid, 1, 1, 64, 1, 1, 0, self.stream, values, none))?;
            ok(sys::cuStreamSynchronize(self.stream))
        }
    }
}

impl Drop for Launcher {
    fn drop(&mut self) {
        // SAFETY: made by `new`, given back once.
        unsafe {
            let _ = sys::cuStreamDestroy_v2(self.stream);
            let _ = sys::cuModuleUnload(self.module);
            let _ = sys::cuDevicePrimaryCtxRelease_v2(0);
        }
    }
}

fn ok(result: sys::CUresult) -> Result<(), sys::CUresult> {
    if result == sys::CUresult::CUDA_SUCCESS { Ok(()) } else { Err(result) }
}

fn failed(e: sys::CUresult) -> String {
    format!("a call for the launch failed: {e:?}")
}

/// One process's view: the segment's two memories, and VRAM of its own.
struct Side {
    control: Arc<MemfdMemory>,
    registered: RegisteredHost,
    segment: Arc<Vram>,
    own: VramMemory,
}

impl Side {
    fn new(device: &Arc<Device>, control: MemfdMemory, segment: Vram) -> Result<Self, task::Error> {
        let control = Arc::new(control);
        let registered = RegisteredHost::new(device, control.clone())?;
        let own = task::vram(device, BYTES)?;
        Ok(Self { control, registered, segment: Arc::new(segment), own })
    }

    /// Writes descriptors of copies of 4 KiB between the object and own pages, in reverse order.
    fn describe(&self, gather: bool) -> Result<u32, task::Error> {
        let (object, own) = (self.segment.address() + OBJECT, self.own.range().address() + PAGES);
        let count = LEN / 4096;
        let list = (0..count).map(|at| {
            let (object, own) = (object + at * 4096, own + (count - 1 - at) * 4096);
            let (dst, src) = if gather { (object, own) } else { (own, object) };
            Descriptor { dst, src, size: 4096 }
        });
        let words = list.flat_map(|copy| [copy.dst, copy.src, copy.size]);
        let bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
        self.own.write(DESCRIPTORS, &bytes)?;
        Ok(count as u32)
    }

    fn own_address(&self, offset: u64) -> u64 {
        self.own.range().address() + offset
    }
}

/// Makes the segment, starts the writer, and waits for the object in a kernel.
fn reader() -> Done {
    let device = task::device()?;
    let (mut socket, there) = UnixStream::pair()?;
    let control = MemfdMemory::create(CONTROL)?;
    for (at, word) in [(0, 11), (16, OBJECT), (24, LEN), (32, 12), (OWNER, EPOCH << 32 | 1)] {
        control.store(at, word)?;
    }
    control.store(PUBLISH, EPOCH << 32 | 1)?;
    let side = Side::new(&device, control, Vram::allocate(&device, BYTES)?)?;
    let mut writer = other("writer").stdin(Stdio::from(OwnedFd::from(there))).spawn()?;
    task::send(&socket, &side.control.fd().try_clone_to_owned()?)?;
    task::send(&socket, &side.segment.export_fd()?)?;
    let count = side.describe(false)?;
    let wait = WaitScatter {
        header: side.registered.address(),
        key_hash: 11,
        key_check: 12,
        epoch: EPOCH as u32,
        payload_base: OBJECT,
        bytes: LEN,
        spins: 20_000_000,
        descriptors: side.own_address(DESCRIPTORS),
        count,
        done: side.own_address(DONE),
        result: side.own_address(RESULT),
    };
    socket.read_exact(&mut [0])?;
    let launcher = Launcher::new().map_err(failed)?;
    launcher.run(WAIT_SCATTER, 3, &wait.args()).map_err(failed)?;
    assert_eq!(ScatterResult::from_word(side.own.load(RESULT)?), Some(ScatterResult::Valid));
    let mut pages = vec![0; LEN as usize];
    side.own.read(PAGES, &mut pages)?;
    assert!(pages == pattern(9, LEN as usize), "the bytes of the other process's pages");
    assert!(writer.wait()?.success());
    Ok(())
}

/// Copies its pages into the object and publishes it, in a kernel.
fn writer() -> Done {
    let device = task::device()?;
    let mut socket = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned()?);
    let control = MemfdMemory::take(task::receive(&socket)?, CONTROL)?;
    let segment = Vram::import(&device, task::receive(&socket)?, BYTES)?;
    let side = Side::new(&device, control, segment)?;
    side.own.write(PAGES, &pattern(9, LEN as usize))?;
    let gather = GatherPublish {
        descriptors: side.own_address(DESCRIPTORS),
        count: side.describe(true)?,
        done: side.own_address(DONE),
        publish: side.registered.address() + PUBLISH,
        expect: EPOCH << 32 | 1,
        ready: EPOCH << 32 | READY,
        found: side.own_address(RESULT),
    };
    let launcher = Launcher::new().map_err(failed)?;
    socket.write_all(&[1])?;
    launcher.run(GATHER_PUBLISH, 3, &gather.args()).map_err(failed)?;
    assert_eq!(side.own.load(RESULT)?, gather.expect);
    Ok(())
}

pub fn i4_a_kernel_reads_what_a_kernel_of_another_process_published() {
    for seed in ["1", "2", "3"] {
        Start::task("reader").env("MOCK_CUDA_SEED", seed).run().good();
    }
}

fn bad_launch() -> Done {
    let _device = task::device()?;
    let launcher = Launcher::new().map_err(failed)?;
    let unknown = launcher.run("no_such_kernel", 1, &[]).unwrap_err();
    assert_eq!(unknown, sys::CUresult::CUDA_ERROR_NOT_FOUND);
    // Null descriptors.
    let refused = launcher.run(GATHER_PUBLISH, 1, &[0, 1, 0, 0, 0, 0, 0]).unwrap_err();
    assert_eq!(refused, sys::CUresult::CUDA_ERROR_LAUNCH_FAILED);
    Ok(())
}

pub fn a_launch_that_fails_is_an_error_of_its_stream() {
    Start::task("bad_launch").run().good();
}
