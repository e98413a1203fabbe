//! Launches of the kernels, on VRAM and on host memory that is registered: in one process, and in
//! two that map the same segment.

use crate::descriptors;
use crate::start::Start;
use crate::task::{self, Done, Tasks, other, pattern};
use cudarc::driver::sys;
use nkv_gpu::driver::Device;
use nkv_gpu::kernels::{
    Descriptors, Kernels, KvDims, KvLayout, KvShape, KvStrides, LaunchOptions, LaunchStream,
    LogAddresses, LogPutObject, LogPutStatus, MAX_IN_FLIGHT, PTX_SM80, Publish, Reach,
    ScatterResult, Span, Wanted,
};
use nkv_gpu::registered::RegisteredHost;
use nkv_gpu::vram::{DeviceRange, Vram, VramMemory};
use nkv_store::Memory;
use nkv_store::clock::{BootClock, Clock};
use nkv_store::layout::{flag, state, word};
use nkv_store::shm::MemfdMemory;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::Stdio;
use std::sync::Arc;

const BYTES: u64 = 4 << 20;
const CONTROL: u64 = 8192;
/// The object's pages, their size, and where it lies in the segment's VRAM.
const COUNT: u64 = 12;
const PAGE: u64 = 4096;
const LEN: u64 = COUNT * PAGE;
const OBJECT: u64 = 1 << 20;
/// Words of the header, which begins at 0 of the control words.
const PUBLISH: u64 = 40;
const OWNER: u64 = 56;
const EPOCH: u32 = 7;
/// More than any wait takes.
const LONG: u64 = 20_000_000;

/// See `task`.
pub fn tasks() -> Tasks {
    &[
        ("reader", reader),
        ("writer", writer),
        ("one_process", one_process),
        ("streams", streams),
        ("log", log),
        ("refusals", refusals),
        ("bad_text", bad_text),
        ("bad_launch", bad_launch),
        ("in_flight", in_flight),
    ]
}

/// One process's view: the segment's two memories, the kernels, and a cache of pages in VRAM of its
/// own.
#[derive(Clone)]
pub struct Side {
    // Dropped first: it waits for launches that nobody waited for.
    kernels: Arc<Kernels>,
    control: Arc<MemfdMemory>,
    registered: Arc<RegisteredHost>,
    segment: Arc<Vram>,
    own: Arc<Vram>,
}

fn new_control() -> Result<MemfdMemory, task::Error> {
    let control = MemfdMemory::create(CONTROL)?;
    for (at, word) in [(0, 11), (16, OBJECT), (24, LEN), (32, 12)] {
        control.store(at, word)?;
    }
    control.store(PUBLISH, word(state::WRITING, EPOCH))?;
    control.store(OWNER, word(flag::LIVE, EPOCH))?;
    Ok(control)
}

impl Side {
    /// Of a new segment.
    pub fn new_segment(device: &Arc<Device>) -> Result<Self, task::Error> {
        Self::of(device, new_control()?, Vram::allocate(device, BYTES)?)
    }

    fn of(device: &Arc<Device>, control: MemfdMemory, segment: Vram) -> Result<Self, task::Error> {
        let control = Arc::new(control);
        let registered = Arc::new(RegisteredHost::new(device, control.clone())?);
        let own = Arc::new(Vram::allocate(device, BYTES)?);
        let kernels = Kernels::load(device)?;
        Ok(Self { control, registered, segment: Arc::new(segment), own, kernels })
    }

    fn own_memory(&self) -> Result<VramMemory, task::Error> {
        Ok(VramMemory::new(self.own.clone())?)
    }

    /// Copies between the object and pages of the cache in reverse order.
    fn copies(&self, gather: bool) -> Descriptors {
        let dims =
            KvDims { layers: 1, pages: 64, page_tokens: 8, heads: 1, head_bytes: PAGE as u32 / 16 };
        let layout = KvLayout::PagedNhd;
        let strides = KvStrides::contiguous(layout, &dims).unwrap();
        let shape = KvShape::new(layout, dims, strides).unwrap();
        let pages: Vec<u32> = (0..COUNT as u32).rev().map(|page| 2 * page).collect();
        let (object, cache) = (self.segment.address() + OBJECT, self.own.address());
        let make = if gather { Descriptors::gather } else { Descriptors::scatter };
        make(object, cache, &shape, &pages).unwrap()
    }

    fn publish(&self) -> Publish {
        Publish {
            word: self.registered.address() + PUBLISH,
            expect: word(state::WRITING, EPOCH),
            ready: word(state::READY, EPOCH),
        }
    }

    pub fn wanted(&self) -> Wanted {
        Wanted {
            header: self.registered.address(),
            key_hash: 11,
            key_check: 12,
            epoch: EPOCH,
            payload_base: OBJECT,
            bytes: LEN,
            spins: LONG,
        }
    }

    /// Gathers pages that were written by `fill_pages`, to the end.
    pub fn gather(&self, stream: &LaunchStream, bulk: bool) -> Result<u64, task::Error> {
        let (from, to) = ([Span::of(&*self.own)], [Span::of(&*self.segment)]);
        let (reach, options) = (Reach { read: &from, write: &to }, few());
        let (copies, publish) = (self.copies(true), self.publish());
        // SAFETY: all of it is mapped as long as `self`, and the launch is waited for.
        let launch = unsafe {
            if bulk {
                self.kernels.gather_bulk(stream, options, publish, &copies, &reach)?
            } else {
                self.kernels.gather_publish(stream, options, publish, &copies, &reach)?
            }
        };
        Ok(launch.wait()?)
    }

    /// Queues the other direction, into the same pages.
    pub fn scatter(
        &self,
        stream: &LaunchStream,
        wanted: Wanted,
    ) -> Result<nkv_gpu::kernels::Launch<ScatterResult>, task::Error> {
        let (from, to) = ([Span::of(&*self.segment)], [Span::of(&*self.own)]);
        let reach = Reach { read: &from, write: &to };
        let copies = self.copies(false);
        // SAFETY: all of it is mapped as long as `self`, and callers wait for the launch.
        Ok(unsafe { self.kernels.wait_scatter(stream, few(), wanted, &copies, &reach)? })
    }

    /// The pages that an object consists of, filled by a seed.
    pub fn fill_pages(&self, seed: u64) -> Result<(), task::Error> {
        let memory = self.own_memory()?;
        for page in 0..COUNT {
            memory.write(2 * page * PAGE, &pattern(seed + page, PAGE as usize))?;
        }
        Ok(())
    }

    pub fn check_pages(&self, seed: u64) -> Result<(), task::Error> {
        let (memory, mut there) = (self.own_memory()?, vec![0; PAGE as usize]);
        for page in 0..COUNT {
            memory.read(2 * page * PAGE, &mut there)?;
            assert!(there == pattern(seed + page, PAGE as usize), "page {page}");
        }
        Ok(())
    }
}

fn few() -> LaunchOptions {
    LaunchOptions { multiprocessors: Some(3), threads: Some(64) }
}

/// Makes the segment, starts the writer, and waits for the object in a kernel.
fn reader() -> Done {
    let device = task::device()?;
    let (mut socket, there) = UnixStream::pair()?;
    let side = Side::new_segment(&device)?;
    let mut writer = other("writer").stdin(Stdio::from(OwnedFd::from(there))).spawn()?;
    descriptors::send(&socket, &side.control.fd().try_clone_to_owned()?)?;
    descriptors::send(&socket, &side.segment.export_fd()?)?;
    socket.read_exact(&mut [0])?;
    let launch = side.scatter(&LaunchStream::own(&device)?, side.wanted())?;
    assert_eq!(launch.wait()?, ScatterResult::Valid);
    side.check_pages(9)?;
    assert!(writer.wait()?.success());
    Ok(())
}

/// Copies its pages into the object and publishes it, in a kernel.
fn writer() -> Done {
    let device = task::device()?;
    let mut socket = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned()?);
    let control = MemfdMemory::take(descriptors::receive(&socket)?, CONTROL)?;
    let segment = Vram::import(&device, descriptors::receive(&socket)?, BYTES)?;
    let side = Side::of(&device, control, segment)?;
    side.fill_pages(9)?;
    socket.write_all(&[1])?;
    let found = side.gather(&LaunchStream::own(&device)?, false)?;
    assert_eq!(found, side.publish().expect);
    Ok(())
}

pub fn i4_a_kernel_reads_what_a_kernel_of_another_process_published() {
    for seed in ["1", "2", "3"] {
        Start::task("reader").env("MOCK_CUDA_SEED", seed).run().good();
    }
}

/// A reader that is queued first, on a stream of its own.
fn one_process() -> Done {
    let device = task::device()?;
    for bulk in [false, true] {
        let side = Side::new_segment(&device)?;
        let streams = [LaunchStream::own(&device)?, LaunchStream::own(&device)?];
        side.fill_pages(5)?;
        // The same segment, and another cache.
        let own = Arc::new(Vram::allocate(&device, BYTES)?);
        let into = Side { own, ..side.clone() };
        let launch = into.scatter(&streams[0], side.wanted())?;
        assert!(!launch.is_done()?, "READY is not set yet");
        assert_eq!(side.gather(&streams[1], bulk)?, side.publish().expect);
        assert_eq!(launch.wait()?, ScatterResult::Valid);
        into.check_pages(5)?;
        assert_eq!(side.control.load(PUBLISH)?, word(state::READY, EPOCH));
        // The word is not what the writer expects: nothing is published.
        assert_eq!(side.gather(&streams[1], bulk)?, word(state::READY, EPOCH));
        for (wanted, result) in [
            (Wanted { key_check: 13, ..side.wanted() }, ScatterResult::Gone),
            (Wanted { epoch: EPOCH + 1, spins: 5, ..side.wanted() }, ScatterResult::NotReady),
        ] {
            assert_eq!(into.scatter(&streams[0], wanted)?.wait()?, result);
        }
    }
    Ok(())
}

pub fn i4_a_kernel_waits_for_what_a_kernel_of_another_stream_publishes() {
    for seed in ["1", "2"] {
        Start::task("one_process").env("MOCK_CUDA_SEED", seed).run().good();
    }
}

/// A caller's stream, and the legacy default stream.
fn streams() -> Done {
    let device = task::device()?;
    let (mut context, mut stream) = (std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: the pointers live until the calls return.
    unsafe {
        sys::cuDevicePrimaryCtxRetain(&mut context, 0).result()?;
        sys::cuCtxSetCurrent(context).result()?;
        sys::cuStreamCreate(&mut stream, 0).result()?;
    }
    for handle in [stream as u64, 0] {
        let (side, stream) = (Side::new_segment(&device)?, LaunchStream::Caller(handle));
        side.fill_pages(handle)?;
        assert_eq!(side.gather(&stream, false)?, side.publish().expect);
        assert_eq!(side.scatter(&stream, side.wanted())?.wait()?, ScatterResult::Valid);
        side.check_pages(handle)?;
    }
    // SAFETY: made above, given back once.
    unsafe {
        sys::cuStreamDestroy_v2(stream).result()?;
        sys::cuDevicePrimaryCtxRelease_v2(0).result()?;
    }
    Ok(())
}

pub fn a_launch_is_queued_in_a_stream_of_the_caller() {
    Start::task("streams").run().good();
}

/// A log of 16 units whose claim word is in VRAM.
fn log() -> Done {
    let (device, unit, log_bytes) = (task::device()?, 4096, 16 * 4096);
    let side = Side::new_segment(&device)?;
    let limit = 4096;
    side.control.store(limit, log_bytes)?;
    let at = |offset: u64| side.registered.address() + offset;
    let log = LogAddresses {
        bump: side.segment.address(),
        limit: at(limit),
        headers: at(0),
        payload: side.segment.address() + OBJECT,
        offset: OBJECT,
        log_bytes,
    };
    let memory = VramMemory::new(side.segment.clone())?;
    memory.store(0, 0)?;
    side.fill_pages(3)?;
    let object = |key: u64, bytes: u64| LogPutObject {
        src: side.own.address(),
        bytes,
        claim_bytes: bytes.next_multiple_of(unit),
        key_hash: key,
        key_check: !key,
        n_pages: 1,
        page_size: bytes as u32,
    };
    // Three units each: the last does not fit.
    let objects: Vec<_> = (1..=6).map(|key| object(key, 2 * unit + 100)).collect();
    let (stream, read) = (LaunchStream::own(&device)?, [Span::of(&*side.own)]);
    // SAFETY: all of it is mapped as long as `side`, and the launch is waited for.
    let launch = unsafe { side.kernels.log_put(&stream, few(), &log, 10, &objects, &read)? };
    let outcomes = launch.wait()?;
    let stored: Vec<_> = outcomes.iter().filter(|o| o.status == LogPutStatus::Stored).collect();
    assert_eq!((stored.len(), memory.load(0)?), (5, 15 * unit), "{outcomes:?}");
    let mut there = vec![0; PAGE as usize];
    for outcome in stored {
        let header = outcome.position / unit * 64;
        assert_eq!(side.control.load(header + PUBLISH)?, word(state::READY, 1));
        assert_eq!(side.control.load(header + 16)?, OBJECT + outcome.position);
        memory.read(OBJECT + outcome.position, &mut there)?;
        assert!(there == pattern(3, PAGE as usize));
    }
    Ok(())
}

pub fn i4_objects_are_put_into_a_log_by_a_launch() {
    Start::task("log").run().good();
}

fn refusals() -> Done {
    let device = task::device()?;
    let side = Side::new_segment(&device)?;
    let stream = LaunchStream::own(&device)?;
    let (from, to) = ([Span::of(&*side.own)], [Span::of(&*side.segment)]);
    let reach = Reach { read: &from, write: &to };
    let (good, publish) = (side.copies(true), side.publish());
    let refused = |options, publish, copies: &Descriptors, reach: &Reach<'_>| {
        // SAFETY: nothing is launched.
        let launch =
            unsafe { side.kernels.gather_publish(&stream, options, publish, copies, reach) };
        launch.unwrap_err().to_string()
    };
    let all = LaunchOptions::default();
    let odd = LaunchOptions { multiprocessors: Some(133), ..all };
    let wide = LaunchOptions { threads: Some(513), ..all };
    let nowhere = Publish { word: publish.word + 4, ..publish };
    let short = [Span { bytes: PAGE, ..Span::of(&*side.own) }];
    let none = Descriptors::default();
    for (text, part) in [
        (refused(odd, publish, &good, &reach), "133 multiprocessors, and this GPU has 132"),
        (refused(wide, publish, &good, &reach), "513 threads of a block: give 1 to 512"),
        (refused(all, nowhere, &good, &reach), "of the publish word is 0, or no multiple of 8"),
        (refused(all, publish, &none, &reach), "0 copies, of 1 to 2^32 - 1"),
        (refused(all, publish, &good, &Reach { read: &short, ..reach }), "copy 0 of 4096 bytes"),
        (refused(all, publish, &good, &Reach { write: &short, ..reach }), "copy 0 of 4096 bytes"),
    ] {
        assert!(text.starts_with("nkv_gather_publish is not launched: "), "{text}");
        assert!(text.contains(part), "no {part:?} in {text}");
    }
    Ok(())
}

pub fn arguments_that_cannot_be_are_refused_before_the_launch() {
    let ended = Start::task("refusals").run().good();
    assert!(!ended.calls.iter().any(|call| call == "cuLaunchKernel"));
}

fn bad_text() -> Done {
    let device = task::device()?;
    let broken = PTX_SM80.replacen("bar.sync", "nowhere.sync", 1);
    let refused = Kernels::load_ptx(&device, &broken).unwrap_err().to_string();
    for part in
        ["cuModuleLoadDataEx failed with CUDA_ERROR_INVALID_PTX", "compiler reports", "13.0"]
    {
        assert!(refused.contains(part), "no {part:?} in {refused}");
    }
    assert!(refused.contains("nowhere"), "{refused}");
    Ok(())
}

pub fn text_that_does_not_compile_is_an_error_with_the_reason() {
    Start::task("bad_text").run().good();
    let old = Start::task("one_process").env("MOCK_CUDA_ATTRIBUTES", "75=7");
    old.run().failed_with(&["has compute capability 7.0, and the kernels need 8.0"]);
}

fn bad_launch() -> Done {
    let device = task::device()?;
    let side = Side::new_segment(&device)?;
    // One copy of 16 bytes, from address 0, where nothing is mapped.
    let dims = KvDims { layers: 1, pages: 1, page_tokens: 1, heads: 1, head_bytes: 8 };
    let strides = KvStrides::contiguous(KvLayout::PagedNhd, &dims)?;
    let shape = KvShape::new(KvLayout::PagedNhd, dims, strides)?;
    let copies = Descriptors::gather(side.segment.address(), 0, &shape, &[0])?;
    let (from, to) = ([Span { address: 0, bytes: 16 }], [Span::of(&*side.segment)]);
    let reach = Reach { read: &from, write: &to };
    let stream = LaunchStream::own(&device)?;
    // SAFETY: the stand-in reports the access; on a GPU the context would be lost.
    let launch =
        unsafe { side.kernels.gather_publish(&stream, few(), side.publish(), &copies, &reach)? };
    let failed = launch.wait().unwrap_err().to_string();
    let part =
        "LAUNCH_FAILED (719), of nkv_gather_publish for 1 copies of 16 bytes, 1 blocks of 64";
    assert!(failed.contains(part), "no {part:?} in {failed}");
    Ok(())
}

pub fn a_launch_that_fails_is_an_error_with_the_kernel_and_the_sizes() {
    Start::task("bad_launch").run().good();
}

/// Launches that nobody waits for, behind one that waits for READY.
fn in_flight() -> Done {
    let device = task::device()?;
    let (side, stream) = (Side::new_segment(&device)?, LaunchStream::own(&device)?);
    for _ in 0..MAX_IN_FLIGHT {
        drop(side.scatter(&stream, side.wanted())?);
    }
    let refused = side.scatter(&stream, side.wanted()).unwrap_err().to_string();
    let part = format!("{MAX_IN_FLIGHT} launches are in flight");
    assert!(refused.contains(&part) && refused.contains("wait for one"), "{refused}");
    side.control.store(PUBLISH, word(state::READY, EPOCH))?;
    let drained = LaunchStream::own(&device)?;
    // Their memory comes back when they have ended.
    let until = BootClock.now_ns() + 60_000_000_000;
    while BootClock.now_ns() < until {
        match side.scatter(&drained, side.wanted()) {
            Ok(launch) => {
                assert_eq!(launch.wait()?, ScatterResult::Valid);
                return Ok(());
            }
            Err(e) => assert!(e.to_string().contains("in flight"), "{e}"),
        }
        std::thread::yield_now();
    }
    Err("no launch has ended within 60 s".into())
}

pub fn launches_that_nobody_waits_for_are_bounded_and_give_their_memory_back() {
    Start::task("in_flight").env("MOCK_CUDA_DELAY_US", "100").run().good();
}
