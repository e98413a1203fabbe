//! Scattered pages into one object that lies in the VRAM of another process, against the driver's
//! batch of copies and against one copy of as many bytes.

use crate::segment::{Headers, Pages};
use crate::{Bench, Done, descriptors};
use cudarc::driver::{DriverError, sys};
use nkv_gpu::driver::{Device, Driver};
use nkv_gpu::kernels::{Descriptors, LaunchOptions, LaunchStream, Reach, Span};
use nkv_gpu::vram::{DeviceRange, Vram, VramMemory};
use nkv_store::Memory;
use nkv_store::clock::{BootClock, Clock};
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

/// The other process: allocates VRAM, passes it on, and keeps it until its standard input ends.
pub fn holder(bytes: u64) -> Done {
    let mut socket = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned()?);
    let vram = Vram::allocate(&Device::new(Driver::open()?, 0)?, bytes)?;
    descriptors::send(&socket, &vram.export_fd()?)?;
    let _ = socket.read(&mut [0])?;
    Ok(())
}

/// VRAM of another process, mapped here.
pub struct Held {
    pub vram: Arc<Vram>,
    socket: Option<UnixStream>,
    process: Child,
}

impl Held {
    pub fn new(bench: &Bench, bytes: u64) -> Result<Self, Box<dyn std::error::Error>> {
        let (here, there) = UnixStream::pair()?;
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["holder", &bytes.to_string()]).stdin(Stdio::from(OwnedFd::from(there)));
        let process = command.spawn()?;
        drop(command);
        let fd = descriptors::receive(&here)?;
        let vram = Arc::new(Vram::import(&bench.device, fd, bytes)?);
        Ok(Self { vram, socket: Some(here), process })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        drop(self.socket.take());
        let _ = self.process.wait();
    }
}

/// Work that is queued several times and then waited for: seconds of one.
pub fn seconds_each(
    times: u64,
    mut queue: impl FnMut(u64) -> Done,
    wait: impl Fn() -> Done,
) -> Result<f64, Box<dyn std::error::Error>> {
    // Once before it counts.
    queue(0)?;
    wait()?;
    let began = BootClock.now_ns();
    for n in 1..=times {
        queue(n)?;
    }
    wait()?;
    Ok((BootClock.now_ns() - began) as f64 / 1e9 / times as f64)
}

/// A stream of the driver's calls that nkv is compared with, and the context that it is in.
pub struct Plain(pub sys::CUstream);

impl Plain {
    pub fn new() -> Result<Self, DriverError> {
        let (mut context, mut stream) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the pointers live until the calls return.
        unsafe {
            sys::cuDevicePrimaryCtxRetain(&mut context, 0).result()?;
            sys::cuCtxSetCurrent(context).result()?;
            sys::cuStreamCreate(&mut stream, 1).result()?;
        }
        Ok(Self(stream))
    }

    pub fn wait(&self) -> Done {
        // SAFETY: the stream lives as long as `self`.
        unsafe { sys::cuStreamSynchronize(self.0).result()? };
        Ok(())
    }
}

impl Drop for Plain {
    fn drop(&mut self) {
        // SAFETY: made by `new`, given back once.
        unsafe {
            let _ = sys::cuStreamSynchronize(self.0);
            let _ = sys::cuStreamDestroy_v2(self.0);
            let _ = sys::cuDevicePrimaryCtxRelease_v2(0);
        }
    }
}

/// One batch of the driver with a copy for each page. None where it has no such call.
fn batch(plain: &Plain, copies: &Descriptors) -> Done {
    let of = |part: fn(&nkv_gpu::kernels::Descriptor) -> u64| {
        copies.list().iter().map(part).collect::<Vec<u64>>()
    };
    let (mut to, mut from) = (of(|copy| copy.dst), of(|copy| copy.src));
    let mut sizes: Vec<usize> = copies.list().iter().map(|copy| copy.size as usize).collect();
    // The order of a stream; no hints.
    // SAFETY: a zeroed value is one without hints.
    let mut attributes: sys::CUmemcpyAttributes = unsafe { std::mem::zeroed() };
    attributes.srcAccessOrder = sys::CUmemcpySrcAccessOrder::CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
    let (mut first, mut failed) = (0, 0);
    // SAFETY: lists of as many elements; memory stays mapped until the stream was waited for.
    let rc = unsafe {
        sys::cuMemcpyBatchAsync(
            to.as_mut_ptr(),
            from.as_mut_ptr(),
            sizes.as_mut_ptr(),
            sizes.len(),
            &mut attributes,
            &mut first,
            1,
            &mut failed,
            plain.0,
        )
    };
    Ok(rc.result()?)
}

struct Case<'a> {
    bench: &'a Bench,
    pages: Pages,
    held: &'a Held,
    headers: Headers,
    copies: Descriptors,
    times: u64,
}

impl Case<'_> {
    /// GB/s of payload of one kernel.
    fn ours(&self, bulk: bool, options: LaunchOptions) -> Result<f64, Box<dyn std::error::Error>> {
        let (from, to) = ([self.pages.span()], [Span::of(&*self.held.vram)]);
        let reach = Reach { read: &from, write: &to };
        let stream = LaunchStream::own(&self.bench.device)?;
        let kernels = &self.bench.kernels;
        let queued = std::cell::RefCell::new(Vec::new());
        let queue = |n: u64| -> Done {
            self.headers.arm(n, 1, self.copies.bytes())?;
            let publish = self.headers.publish(n, 1);
            // SAFETY: all of it is mapped as long as `self`, and every launch is waited for.
            let launch = unsafe {
                if bulk {
                    kernels.gather_bulk(&stream, options, publish, &self.copies, &reach)?
                } else {
                    kernels.gather_publish(&stream, options, publish, &self.copies, &reach)?
                }
            };
            queued.borrow_mut().push((launch, publish.expect));
            Ok(())
        };
        let wait = || -> Done {
            for (launch, expect) in queued.take() {
                if launch.wait()? != expect {
                    return Err("an object was not published".into());
                }
            }
            Ok(())
        };
        Ok(self.copies.bytes() as f64 / 1e9 / seconds_each(self.times, queue, wait)?)
    }

    fn check(&self) -> Done {
        let mut first = vec![0; self.pages.bytes as usize];
        let (mut there, object) = (first.clone(), VramMemory::new(self.held.vram.clone())?);
        let pages = VramMemory::new(self.pages.vram.clone())?;
        for (at, offset) in self.pages.offsets().enumerate().step_by(97) {
            pages.read(offset, &mut first)?;
            object.read(at as u64 * self.pages.bytes, &mut there)?;
            if first != there {
                return Err(format!("page {at} differs").into());
            }
        }
        Ok(())
    }
}

fn fill(pages: &Pages) -> Done {
    let memory = VramMemory::new(pages.vram.clone())?;
    for (at, offset) in pages.offsets().enumerate() {
        memory.write(offset, &vec![at as u8 | 1; pages.bytes as usize])?;
    }
    Ok(())
}

fn case(bench: &Bench, count: u32, page: u64, times: u64) -> Done {
    let pages = Pages::new(bench, count, page)?;
    fill(&pages)?;
    let bytes = u64::from(count) * page;
    let held = Held::new(bench, bytes)?;
    let copies = pages.gather(held.vram.address())?;
    let headers = Headers::new(bench, times + 1)?;
    let case = Case { bench, pages, held: &held, headers, copies, times };
    let plain = Plain::new()?;
    let gigabytes = bytes as f64 / 1e9;
    let whole = seconds_each(
        times,
        |_| {
            let (to, from) = (held.vram.address(), case.pages.vram.address());
            // SAFETY: both are mapped until the stream was waited for.
            let rc = unsafe { sys::cuMemcpyDtoDAsync_v2(to, from, bytes as usize, plain.0) };
            Ok(rc.result()?)
        },
        || plain.wait(),
    )?;
    let whole = gigabytes / whole;
    let batched = if bench.kernels.device().attributes().capability >= (8, 0)
        && Driver::open()?.version() >= 12_080
    {
        Some(gigabytes / seconds_each(times, |_| batch(&plain, &case.copies), || plain.wait())?)
    } else {
        bench.lines.fact("cuMemcpyBatchAsync", "skipped: the driver is older than CUDA 12.8");
        None
    };
    let (all, few) = (LaunchOptions::default(), bench.either(8, 2));
    let some = LaunchOptions { multiprocessors: Some(few), threads: None };
    for (what, bulk, options) in [
        ("gather_publish".to_string(), false, all),
        (format!("gather_publish on {few} multiprocessors"), false, some),
        ("gather_bulk".to_string(), true, all),
        (format!("gather_bulk on {few} multiprocessors"), true, some),
    ] {
        if bulk && !bench.kernels.has_bulk() {
            continue;
        }
        let ours = case.ours(bulk, options)?;
        case.check()?;
        let name = format!("{what}, {count} pages of {} KiB to another process", page >> 10);
        if let Some(batched) = batched {
            bench.lines.figure(&name, "GB/s", ours, Some(("cuMemcpyBatchAsync", batched)));
        }
        bench.lines.figure(&name, "GB/s", ours, Some(("one cuMemcpyDtoDAsync", whole)));
    }
    Ok(())
}

/// See the file's first paragraph.
pub fn gather(bench: &Bench) -> Done {
    let (count, sizes, times) =
        bench.either((4096, [64 << 10, 256 << 10], 20), (16, [4 << 10, 8 << 10], 2));
    sizes.into_iter().try_for_each(|page| case(bench, count, page, times))
}
