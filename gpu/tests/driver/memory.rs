//! VRAM within one process.

use crate::launches::Side;
use crate::start::Start;
use crate::task::{self, Done, Tasks, Tensor, pattern, peek};
use cudarc::driver::sys;
use nkv_gpu::kernels::LaunchStream;
use nkv_gpu::registered::RegisteredHost;
use nkv_gpu::vram::{CopyMethod, DeviceRange, ForeignVram, TensorHandle, Vram, VramMemory};
use nkv_store::memory::{DmaBuf, SplitMemory};
use nkv_store::{AnonMemory, Export, Memory, StoreError};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

const BYTES: u64 = 3 << 20;

/// See `task`.
pub fn tasks() -> Tasks {
    &[
        ("everything", everything),
        ("contexts", contexts),
        ("dma_buf", dma_buf),
        ("observe", observe),
        ("pinned", pinned),
        ("sizes", sizes),
        ("own_tensor", own_tensor),
        ("not_exported", not_exported),
        ("registered", registered),
        ("flush", flush),
        ("threads", threads),
        ("i4", i4),
    ]
}

/// Every kind of call once or more.
pub fn everything() -> Done {
    let device = task::device()?;
    let vram = Arc::new(Vram::allocate(&device, BYTES)?);
    let imported = Arc::new(Vram::import(&device, vram.export_fd()?, BYTES)?);
    let (written, mut back) = (pattern(1, 5000), vec![0; 5000]);
    let memory = VramMemory::new(vram)?;
    memory.write(BYTES - 5000, &written)?;
    memory.store(8, 77)?;
    let other = VramMemory::new(imported)?;
    other.read(BYTES - 5000, &mut back)?;
    assert_eq!(back, written);
    assert_eq!(other.load(8)?, 77);
    memory.flush();
    memory.read(0, &mut back[..8])?;
    let control: Arc<dyn Memory> = Arc::new(AnonMemory::new(8192)?);
    let registered = RegisteredHost::new(&device, control)?;
    assert_eq!(registered.bytes(), 8192);
    crate::tensors::segments_by(Some(CopyMethod::Batch), &[4096, 5000])?;
    let side = Side::new_segment(&device)?;
    let stream = LaunchStream::own(&device)?;
    side.fill_pages(1)?;
    side.gather(&stream, false)?;
    side.scatter(&stream, side.wanted())?.wait()?;
    // Nobody waits for this one.
    drop(side.scatter(&stream, side.wanted())?);
    crate::processes::with_tensor_of_other(|handle, wanted| {
        let foreign = VramMemory::new(Arc::new(ForeignVram::open(&device, handle)?))?;
        let mut there = vec![0; wanted.len()];
        foreign.read(0, &mut there)?;
        assert_eq!(there, wanted);
        Ok(())
    })
}

pub fn nothing_is_left_after_a_good_run() {
    Start::task("everything").run().good();
}

pub fn memory_is_unmapped_before_its_addresses_and_its_handle_are_given_back() {
    let mut calls = Start::task("flush").run().good().calls;
    calls.retain(|call| ["cuMemUnmap", "cuMemAddressFree", "cuMemRelease"].contains(&&**call));
    assert_eq!(calls, ["cuMemUnmap", "cuMemAddressFree", "cuMemRelease"]);
}

fn contexts() -> Done {
    let (device, current) = (task::device()?, std::ptr::dangling_mut::<u8>());
    let (mine, mut now) = ((current as usize + 0x1fff) as sys::CUcontext, std::ptr::null_mut());
    // SAFETY: the stand-in takes any number above 0x1000 as a context.
    unsafe { sys::cuCtxSetCurrent(mine).result().unwrap() };
    let memory = task::vram(&device, BYTES)?;
    memory.write(0, b"bytes")?;
    drop(memory);
    // SAFETY: the pointer lives until the call returns.
    unsafe { sys::cuCtxGetCurrent(&mut now).result().unwrap() };
    assert_eq!(now, mine);
    // A thread that no context was made current on.
    std::thread::scope(|scope| {
        let copied = scope.spawn(|| task::vram(&device, BYTES)?.write(0, b"x").map_err(to_text));
        copied.join().unwrap()
    })
    .map_err(Into::into)
}

fn to_text(e: impl std::fmt::Display) -> nkv_gpu::driver::DriverError {
    nkv_gpu::driver::DriverError::Invalid(e.to_string())
}

pub fn the_context_of_the_caller_is_current_again() {
    Start::task("contexts").run().good();
}

fn dma_buf() -> Done {
    let memory = task::vram(&task::device()?, BYTES)?;
    memory.write(100, b"for a NIC")?;
    let Export::Device { address, dma_buf, writes_ordered } = memory.export() else {
        return Err(format!("{:?}", memory.export()).into());
    };
    assert_eq!(address, memory.range().address());
    if let Some(DmaBuf { fd, offset }) = dma_buf {
        let mut there = [0; 9];
        // SAFETY: open as long as the memory, which outlives the read.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        rustix::io::pread(fd, &mut there, offset + 100)?;
        assert_eq!(&there, b"for a NIC");
    }
    println!("dma-buf {}, ordered {writes_ordered}", dma_buf.is_some());
    Ok(())
}

pub fn memory_is_exported_as_a_dma_buf_where_the_device_can() {
    assert_eq!(Start::task("dma_buf").run().good().text.trim(), "dma-buf true, ordered false");
    let without = Start::task("dma_buf").env("MOCK_CUDA_ATTRIBUTES", "124=0").run().good();
    assert_eq!(without.text.trim(), "dma-buf false, ordered false");
    assert!(!without.calls.iter().any(|call| call == "cuMemGetHandleForAddressRange"));
    let refused = "cuMemGetHandleForAddressRange:801";
    let refused = Start::task("dma_buf").env("MOCK_CUDA_FAIL", refused).run().good();
    assert_eq!(refused.text.trim(), "dma-buf false, ordered false");
}

pub fn rdma_writes_are_ordered_for_all_where_the_device_says_so_and_has_no_other_link() {
    for (attributes, ordered) in
        [("118=0", false), ("118=100", false), ("118=200", true), ("118=200,86=1", false)]
    {
        let ended = Start::task("dma_buf").env("MOCK_CUDA_ATTRIBUTES", attributes).run().good();
        let expected = format!("dma-buf true, ordered {ordered}");
        assert_eq!(ended.text.trim(), expected, "{attributes}");
    }
}

fn sizes() -> Done {
    let device = task::device()?;
    let vram = Vram::allocate(&device, (2 << 20) + 1)?;
    assert_eq!((vram.bytes(), vram.allocated()), ((2 << 20) + 1, 4 << 20));
    for bytes in [0, u64::MAX] {
        let refused = Vram::allocate(&device, bytes).unwrap_err().to_string();
        assert!(refused.contains(&format!("{bytes} bytes cannot be allocated")), "{refused}");
    }
    let refused = Vram::allocate(&device, 81 << 30).unwrap_err().to_string();
    for part in ["cuMemCreate", "OUT_OF_MEMORY (2)", "86973087744 of the 85899345920", "fewer"] {
        assert!(refused.contains(part), "no {part:?} in {refused}");
    }
    // A descriptor of less memory than announced.
    let refused = Vram::import(&device, vram.export_fd()?, 5 << 20).unwrap_err().to_string();
    assert!(refused.contains("cuMemMap failed with CUDA_ERROR_INVALID_VALUE"), "{refused}");
    Ok(())
}

pub fn more_than_there_is_and_nothing_at_all_are_refused() {
    Start::task("sizes").run().good();
}

fn own_tensor() -> Done {
    let device = task::device()?;
    let tensor = Tensor::new(100_000);
    let handle = TensorHandle::export(&device, tensor.0 + 1024, 4096)?;
    assert_eq!(handle.offset, 1024);
    let foreign = Arc::new(ForeignVram::open(&device, &handle)?);
    assert_eq!(foreign.address(), tensor.0 + 1024);
    let memory = VramMemory::new(foreign)?;
    memory.write(0, b"tensor")?;
    assert!(memory.write(4096, b"x").is_err());
    drop(memory);
    // A process of another container that has the same number is not this one.
    let elsewhere = TensorHandle { process: handle.process ^ 1, ..handle };
    let refused = ForeignVram::open(&device, &elsewhere).unwrap_err().to_string();
    assert!(refused.contains("cuIpcOpenMemHandle failed"), "{refused}");
    Ok(())
}

pub fn a_tensor_of_this_process_needs_no_mapping() {
    Start::task("own_tensor").run().good();
}

fn not_exported() -> Done {
    let device = task::device()?;
    let vram = Vram::allocate(&device, BYTES)?;
    let refused = TensorHandle::export(&device, vram.address(), 8).unwrap_err().to_string();
    assert!(refused.contains("cuIpcGetMemHandle failed"), "{refused}");
    let tensor = Tensor::new(4096);
    let refused = TensorHandle::export(&device, tensor.0 + 4000, 100).unwrap_err().to_string();
    assert!(refused.contains("exceed their allocation of 4096 bytes"), "{refused}");
    Ok(())
}

pub fn memory_that_the_older_calls_do_not_export_is_refused() {
    Start::task("not_exported").run().good();
}

fn registered() -> Done {
    let device = task::device()?;
    let control = Arc::new(AnonMemory::new(8192)?);
    let registered = RegisteredHost::new(&device, control.clone())?;
    control.store(8, 5)?;
    // The stand-in's kernels would use this address; it is the host's own.
    // SAFETY: mapped as long as `control`.
    assert_eq!(unsafe { ((registered.address() + 8) as *const u64).read_volatile() }, 5);
    // The driver takes each mapping once: another user shares it.
    assert_eq!(RegisteredHost::new(&device, control)?.address(), registered.address());
    let vram: Arc<dyn Memory> = Arc::new(task::vram(&device, BYTES)?);
    let refused = RegisteredHost::new(&device, vram).unwrap_err().to_string();
    assert!(refused.contains("only host memory"), "{refused}");
    Ok(())
}

pub fn registered_host_memory_has_an_address_for_kernels() {
    Start::task("registered").run().good();
}

fn pinned() -> Done {
    let device = task::device()?;
    let (memory, other) = (Arc::new(AnonMemory::new(BYTES)?), Arc::new(AnonMemory::new(4096)?));
    let first = RegisteredHost::new(&device, memory.clone())?;
    let second = RegisteredHost::new(&device, memory.clone())?;
    let third = RegisteredHost::new(&device, other)?;
    assert_eq!((first.bytes(), first.address()), (second.bytes(), second.address()));
    assert_eq!((first.bytes(), third.bytes()), (BYTES, 4096));
    drop(first);
    drop(RegisteredHost::new(&device, memory.clone())?);
    drop(second);
    drop(RegisteredHost::new(&device, memory.clone())?);
    drop(RegisteredHost::new(&device, memory)?);
    let vram: Arc<dyn Memory> = Arc::new(task::vram(&device, BYTES)?);
    let refused = RegisteredHost::new(&device, vram).unwrap_err().to_string();
    assert!(refused.contains("only host memory"), "{refused}");
    Ok(())
}

pub fn a_mapping_is_pinned_by_its_first_user_until_its_last_one_drops_it() {
    let calls = Start::task("pinned").run().good().calls;
    let made = calls.iter().filter(|call| *call == "cuMemHostRegister_v2").count();
    // The first, the third, and each time that nobody used it any more.
    assert_eq!(made, 4);
}

pub fn memory_that_cannot_be_pinned_says_which_limit_to_raise_and_leaves_nothing() {
    for (call, code, parts) in [
        ("cuMemHostRegister", 2, ["OUT_OF_MEMORY (2)", "ulimit -l unlimited"]),
        ("cuMemHostRegister", 304, ["OPERATING_SYSTEM (304)", "--ulimit memlock=-1"]),
        ("cuMemHostGetDevicePointer", 999, ["UNKNOWN (999)", "dmesg"]),
    ] {
        let failure = format!("{call}_v2:{code}");
        let ended = Start::task("pinned").env("MOCK_CUDA_FAIL", &failure).run();
        ended.failed_with(&[call, "bytes of host memory on GPU 0"]).failed_with(&parts);
    }
}

fn flush() -> Done {
    let memory = task::vram(&task::device()?, BYTES)?;
    memory.flush();
    Ok(())
}

/// Attributes, and whether RDMA writes are flushed: none are ordered; ordered for the device;
/// ordered, and the host has another link to the device; no RDMA; the host cannot flush.
const FLUSHED: [(&str, bool); 5] = [
    ("118=0", true),
    ("118=100", false),
    ("118=100,86=1", true),
    ("118=0,116=0", false),
    ("118=0,117=0", false),
];

pub fn rdma_writes_are_flushed_where_they_are_not_ordered() {
    for (attributes, flushed) in FLUSHED {
        let ended = Start::task("flush").env("MOCK_CUDA_ATTRIBUTES", attributes).run().good();
        let called = ended.calls.iter().any(|call| call == "cuFlushGPUDirectRDMAWrites");
        assert_eq!(called, flushed, "{attributes}");
    }
}

fn observe() -> Done {
    let memory = task::vram(&task::device()?, BYTES)?;
    memory.read(0, &mut [0; 100])?;
    memory.read(0, &mut [])?;
    memory.load(8).map(drop).map_err(Into::into)
}

pub fn i4_a_reader_flushes_rdma_writes_once_before_each_copy_where_they_are_not_ordered() {
    let (flush, copy) = ("cuFlushGPUDirectRDMAWrites", "cuMemcpyDtoHAsync_v2");
    for (attributes, flushed) in FLUSHED {
        let start = Start::task("observe").env("MOCK_CUDA_ATTRIBUTES", attributes);
        let mut calls = start.run().good().calls;
        calls.retain(|call| [flush, copy].contains(&&**call));
        let each: &[&str] = if flushed { &[flush, copy] } else { &[copy] };
        assert_eq!(calls, each.repeat(2), "{attributes}");
    }
}

pub fn i4_a_reader_whose_flush_fails_gets_no_bytes() {
    let start = Start::task("observe").env("MOCK_CUDA_ATTRIBUTES", "118=0");
    let ended = start.env("MOCK_CUDA_FAIL", "cuFlushGPUDirectRDMAWrites:999").run();
    let ended = ended.failed_with(&["cuFlushGPUDirectRDMAWrites failed with CUDA_ERROR_UNKNOWN"]);
    assert!(!ended.calls.iter().any(|call| call == "cuMemcpyDtoHAsync_v2"));
}

fn threads() -> Done {
    let memory = task::vram(&task::device()?, 8 << 20)?;
    std::thread::scope(|scope| {
        for thread in 0..8_u64 {
            let memory = &memory;
            scope.spawn(move || {
                let (at, mut back) = (thread << 20, vec![0; 100_000]);
                for round in 0..5 {
                    let written = pattern(thread * 100 + round, back.len());
                    memory.write(at, &written).unwrap();
                    memory.read(at, &mut back).unwrap();
                    assert!(back == written, "thread {thread}, round {round}");
                }
            });
        }
    });
    Ok(())
}

pub fn threads_copy_at_the_same_time() {
    Start::task("threads").run().good();
}

/// A reader on another thread polls the control word, and then has the payload past the driver.
fn i4() -> Done {
    let device = task::device()?;
    let vram = Arc::new(Vram::allocate(&device, BYTES)?);
    let control: Arc<dyn Memory> = Arc::new(AnonMemory::new(4096)?);
    let payload = Arc::new(VramMemory::new(vram.clone())?);
    let split = SplitMemory::new(control.clone(), payload).unwrap();
    const LEN: usize = 20_000;
    std::thread::scope(|scope| -> Done {
        let reader = scope.spawn(|| {
            for round in 1..=20_u64 {
                while control.load(64).unwrap() < round {
                    std::hint::spin_loop();
                }
                let seen = peek(&*vram, 512, LEN);
                assert!(seen == pattern(round, LEN), "round {round}: the word came first");
                control.store(128, round).unwrap();
            }
        });
        let written = (1..=20).try_for_each(|round| {
            split.write(4096 + 512, &pattern(round, LEN))?;
            split.store(64, round)?;
            while control.load(128)? < round && !reader.is_finished() {
                std::hint::spin_loop();
            }
            Ok::<_, StoreError>(())
        });
        if written.is_err() {
            // The reader must not wait for ever.
            control.store(64, u64::MAX)?;
        }
        let read = reader.join();
        written?;
        read.map_err(|_| "the reader saw a word before its payload".into())
    })
}

pub fn i4_payload_in_vram_is_visible_before_the_control_word() {
    for seed in ["1", "2", "3"] {
        let run = Start::task("i4").env("MOCK_CUDA_SEED", seed).env("MOCK_CUDA_DELAY_US", "1000");
        run.run().good();
    }
}
