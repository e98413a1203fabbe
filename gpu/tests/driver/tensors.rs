//! Tensors of a caller as the buffers of verbs.

use crate::start::Start;
use crate::task::{self, Done, Tasks, Tensor, pattern};
use cudarc::driver::sys;
use nkv_gpu::driver::Driver;
use nkv_gpu::registered::RegisteredHost;
use nkv_gpu::vram::CopyMethod::{self, Batch, Each, Kernel};
use nkv_gpu::vram::{DeviceRange, Span, TensorDevices, Vram};
use nkv_store::memory::SplitMemory;
use nkv_store::op::{DeviceBuffer, Op};
use nkv_store::{AnonMemory, Memory};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use std::ptr::null_mut;
use std::sync::Arc;

const CONTROL: u64 = 4096;
const BYTES: usize = 3 << 20;

/// See `task`.
pub fn tasks() -> Tasks {
    &[
        ("segments", segments),
        ("without_batches", without_batches),
        ("in_stream", in_stream),
        ("wrong_tensors", wrong_tensors),
        ("tensor_conformance", conformance),
    ]
}

fn devices() -> Result<TensorDevices, task::Error> {
    Ok(TensorDevices::new(Driver::open()?))
}

/// A tensor's whole memory in parts that follow one another in another order.
fn in_parts(mut address: u64, sizes: &[usize]) -> Vec<Span> {
    let mut spans = Vec::new();
    for bytes in sizes {
        spans.push(Span { address, bytes: *bytes as u64 });
        address += *bytes as u64;
    }
    spans.reverse();
    spans
}

/// Sizes of ranges: of any length, and such as a kernel copies.
const SIZES: [&[usize]; 2] = [&[1, 4097, 1 << 20, 0, 77_777, 300], &[4096, 16, 1 << 17, 160, 48]];

fn segments() -> Done {
    for sizes in SIZES {
        // By the table at last: it measures first.
        for method in [Some(Each), Some(Batch), Some(Kernel), None] {
            segments_by(method, sizes)?;
        }
    }
    Ok(())
}

/// Writes a tensor's bytes into segments of each kind, and reads them back into another tensor.
pub fn segments_by(method: Option<CopyMethod>, sizes: &[usize]) -> Done {
    let devices = devices()?;
    let devices = method.into_iter().fold(devices, TensorDevices::copying_by);
    let device = task::device()?;
    let control = || Arc::new(AnonMemory::new(CONTROL).unwrap());
    let pinned: Arc<dyn Memory> = Arc::new(AnonMemory::new(CONTROL + BYTES as u64)?);
    let _registered = RegisteredHost::new(&device, pinned.clone())?;
    let vram = Arc::new(task::vram(&device, BYTES as u64)?);
    let all: [Arc<dyn Memory>; 3] = [
        Arc::new(AnonMemory::new(CONTROL + BYTES as u64)?),
        pinned,
        Arc::new(SplitMemory::new(control(), vram).ok_or("no control words")?),
    ];
    let len: usize = sizes.iter().sum();
    // Allocated by nkv here, so that each call of it is one that can fail.
    let from = Vram::allocate(&device, BYTES as u64)?;
    let into = Vram::allocate(&device, BYTES as u64)?;
    let source = devices.tensor(in_parts(from.address(), sizes), None)?;
    let target = devices.tensor(in_parts(into.address(), &[len]), Some(1))?;
    for (seed, segment) in all.iter().enumerate() {
        let written = pattern(seed as u64, len);
        source.write(0, &written)?;
        let src = DeviceBuffer::new(&source, 0, len)?;
        Op::WriteFromDevice { offset: CONTROL + 5, src }.run(&**segment)?;
        let mut there = vec![0; len];
        segment.read(CONTROL + 5, &mut there)?;
        assert!(there == written, "segment {seed}");
        let dst = DeviceBuffer::new(&target, 3, len - 3)?;
        Op::ReadToDevice { offset: CONTROL + 5, dst }.run(&**segment)?;
        let mut back = vec![0; len];
        target.read(0, &mut back)?;
        assert!(back[3..] == written[..len - 3], "segment {seed}");
    }
    Ok(())
}

pub fn bytes_of_tensors_reach_segments_of_each_kind_and_come_back() {
    let calls = Start::task("segments").env("MOCK_CUDA_DELAY_US", "30").run().good().calls;
    for call in ["cuMemcpyAsync", "cuMemcpyBatchAsync", "cuLaunchKernel"] {
        assert!(calls.iter().any(|made| made == call), "no {call}");
    }
}

fn without_batches() -> Done {
    segments_by(Some(Batch), SIZES[0])
}

pub fn a_driver_without_copies_in_batches_copies_one_by_one() {
    let old = Start::task("without_batches").without_symbol("cuMemcpyBatchAsync");
    let calls = old.run().good().calls;
    assert!(calls.iter().any(|call| call == "cuMemcpyAsync"), "{calls:?}");
}

/// A copy of a tensor that a stream of the caller still writes.
fn in_stream() -> Done {
    let (devices, _device) = (devices()?, task::device()?);
    let (tensor, written, mut stream) = (Tensor::new(4096), pattern(3, 4096), null_mut());
    // SAFETY: the pointer lives until the call returns.
    unsafe { sys::cuStreamCreate(&mut stream, 1).result()? };
    let span = Span { address: tensor.0, bytes: 4096 };
    // SAFETY: the bytes live until the stream has copied them.
    unsafe { sys::cuMemcpyHtoDAsync_v2(tensor.0, written.as_ptr().cast(), 4096, stream).result()? };
    let memory = devices.tensor(vec![span], Some(stream as u64))?;
    let mut seen = vec![0; 4096];
    memory.read(0, &mut seen)?;
    assert!(seen == written, "read before the caller's stream had written it");
    // SAFETY: made above, destroyed once.
    unsafe { sys::cuStreamDestroy_v2(stream).result()? };
    Ok(())
}

pub fn a_copy_waits_for_the_stream_of_its_caller() {
    for seed in ["1", "2", "3", "4"] {
        let run = Start::task("in_stream").env("MOCK_CUDA_SEED", seed);
        let calls = run.env("MOCK_CUDA_DELAY_US", "9000").run().good().calls;
        assert!(!calls.contains(&"cuCtxSynchronize".to_string()), "all streams were waited for");
    }
}

fn wrong_tensors() -> Done {
    let devices = devices()?;
    let host = [0_u8; 64];
    let span = Span { address: host.as_ptr() as u64, bytes: 64 };
    let refused = devices.tensor(vec![span], None).unwrap_err().to_string();
    assert!(refused.contains("is not in a GPU: give it as memory of the host"), "{refused}");
    let _device = task::device()?;
    let tensor = Tensor::new(64);
    let span = Span { address: tensor.0, bytes: 64 };
    let refused = devices.tensor(vec![span], Some(0x77)).unwrap_err().to_string();
    assert!(refused.contains("cuStreamIsCapturing failed with"), "{refused}");
    assert!(refused.contains("for stream 0x77 on GPU 0: give a stream"), "{refused}");
    let refused = devices.tensor(vec![span], Some(2)).unwrap_err().to_string();
    assert!(refused.contains("records a CUDA graph"), "{refused}");
    let long = Span { bytes: u64::MAX, ..span };
    let half = Span { bytes: u64::MAX - tensor.0, ..span };
    for spans in [vec![long], vec![half, half]] {
        let refused = devices.tensor(spans, None).unwrap_err().to_string();
        assert!(refused.contains("bytes at 0x"), "{refused}");
    }
    let memory = devices.tensor(vec![span], None)?;
    let refused = memory.write(60, &[0; 5]).unwrap_err().to_string();
    assert!(refused.contains("60") && refused.contains("64"), "{refused}");
    let refused = memory.load(8).unwrap_err().to_string();
    assert!(refused.contains("tensors have bytes alone"), "{refused}");
    Ok(())
}

pub fn what_is_no_tensor_is_refused_and_so_is_what_is_no_stream() {
    Start::task("wrong_tensors").env("MOCK_CUDA_CAPTURING", "2").run().good();
}

/// Parts of any sizes beside host memory: the same accesses have the same results.
fn conformance() -> Done {
    let (devices, _device) = (devices()?, task::device()?);
    let tensor = Tensor::new(9000);
    let mut runner =
        TestRunner::new(Config { cases: 40, failure_persistence: None, ..Config::default() });
    let access = (any::<bool>(), 0..9100_u64, 0..4000_usize, any::<u64>());
    let sizes = proptest::collection::vec(0..1500_usize, 1..6);
    runner.run(&(sizes, proptest::collection::vec(access, 1..20)), |(sizes, accesses)| {
        let len: usize = sizes.iter().sum();
        let memory = devices.tensor(in_parts(tensor.0, &sizes), None).unwrap();
        memory.write(0, &vec![0; len]).unwrap();
        let host = AnonMemory::new(len.max(1) as u64).unwrap();
        for (writes, at, bytes, seed) in accesses {
            if at + bytes as u64 > len as u64 {
                prop_assert!(memory.read(at, &mut vec![0; bytes]).is_err() || bytes == 0);
            } else if writes {
                memory.write(at, &pattern(seed, bytes)).unwrap();
                host.write(at, &pattern(seed, bytes)).unwrap();
            } else {
                let (mut there, mut here) = (vec![0; bytes], vec![0; bytes]);
                memory.read(at, &mut there).unwrap();
                host.read(at, &mut here).unwrap();
                prop_assert!(there == here);
            }
        }
        Ok(())
    })?;
    Ok(())
}

pub fn tensors_in_parts_and_host_memory_answer_alike() {
    Start::task("tensor_conformance").env("MOCK_CUDA_DELAY_US", "20").run().good();
}
