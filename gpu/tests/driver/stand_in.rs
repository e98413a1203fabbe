//! The stand-in itself: its streams are late and in no order, or the other tests would show less
//! than they seem to.

use crate::start::Start;
use crate::task::{self, Done, Tasks, Tensor, pattern};
use cudarc::driver::sys;
use std::ptr::{null_mut, read_volatile};

const LEN: usize = 4096;

/// See `task`.
pub fn tasks() -> Tasks {
    &[("late", late), ("unordered", unordered), ("events", events), ("batch", batch)]
}

fn stream() -> sys::CUstream {
    let mut stream = null_mut();
    // SAFETY: the pointer lives until the call returns.
    unsafe { sys::cuStreamCreate(&mut stream, 1).result().unwrap() };
    stream
}

/// The byte of VRAM as it is now.
fn now(address: u64) -> u8 {
    // SAFETY: mapped by the stand-in.
    unsafe { read_volatile(address as *const u8) }
}

fn late() -> Done {
    let _device = task::device()?;
    let (tensor, stream, mut from) = (Tensor::new(LEN), stream(), vec![1_u8; LEN]);
    // SAFETY: the buffers live until the stream has completed the copy.
    unsafe {
        let (at, source) = (tensor.0, from.as_mut_ptr());
        sys::cuMemcpyHtoDAsync_v2(at, source.cast(), LEN, stream).result()?;
        let at_once = now(at);
        // What the source contains when the copy is executed is what counts.
        source.write_volatile(2);
        sys::cuStreamSynchronize(stream).result()?;
        assert_eq!((at_once, now(at), now(at + 1)), (0, 2, 1));
        sys::cuStreamDestroy_v2(stream).result()?;
    }
    Ok(())
}

pub fn a_copy_is_executed_after_its_call_returned() {
    // The first delay of this seed is long.
    Start::task("late").env("MOCK_CUDA_DELAY_US", "2000000").run().good();
}

/// Prints which of two copies, each on a stream of its own, was first, some times.
fn unordered() -> Done {
    let _device = task::device()?;
    let (tensor, streams, from) = (Tensor::new(LEN), [stream(), stream()], [1_u8; 1]);
    for _ in 0..20 {
        // SAFETY: the buffers live until the streams have completed the copies.
        unsafe {
            [0, 1].iter().for_each(|at| (tensor.0 as *mut u8).add(*at).write_volatile(0));
            for (at, stream) in streams.iter().enumerate() {
                let (to, from) = (tensor.0 + at as u64, from.as_ptr().cast());
                sys::cuMemcpyHtoDAsync_v2(to, from, 1, *stream).result()?;
            }
            let first = loop {
                match (now(tensor.0), now(tensor.0 + 1)) {
                    (0, 0) => std::hint::spin_loop(),
                    (1, 0) => break "first",
                    (0, 1) => break "second",
                    _ => break "both",
                }
            };
            println!("{first}");
            streams.iter().try_for_each(|stream| sys::cuStreamSynchronize(*stream).result())?;
        }
    }
    // SAFETY: made above, destroyed once.
    unsafe { streams.iter().try_for_each(|stream| sys::cuStreamDestroy_v2(*stream).result())? };
    Ok(())
}

pub fn copies_of_two_streams_end_in_any_order() {
    let text = Start::task("unordered").env("MOCK_CUDA_DELAY_US", "4000").run().good().text;
    assert!(text.contains("first") && text.contains("second"), "{text}");
}

fn events() -> Done {
    let _device = task::device()?;
    let (tensor, streams, mut event) = (Tensor::new(LEN), [stream(), stream()], null_mut());
    let (written, mut back) = (pattern(5, LEN), vec![0_u8; LEN]);
    // SAFETY: the buffers live until the streams have completed the copies.
    unsafe {
        sys::cuEventCreate(&mut event, 0).result()?;
        let from = written.as_ptr().cast();
        sys::cuMemcpyHtoDAsync_v2(tensor.0, from, LEN, streams[0]).result()?;
        sys::cuEventRecord(event, streams[0]).result()?;
        sys::cuStreamWaitEvent(streams[1], event, 0).result()?;
        let into = back.as_mut_ptr().cast();
        sys::cuMemcpyDtoHAsync_v2(into, tensor.0, LEN, streams[1]).result()?;
        sys::cuStreamSynchronize(streams[1]).result()?;
        sys::cuEventQuery(event).result()?;
        assert!(back == written, "read before it was written");
        sys::cuEventDestroy_v2(event).result()?;
        streams.iter().try_for_each(|stream| sys::cuStreamDestroy_v2(*stream).result())?;
    }
    Ok(())
}

pub fn a_stream_waits_for_an_event_of_another() {
    for seed in ["1", "2", "3", "4"] {
        let run = Start::task("events").env("MOCK_CUDA_SEED", seed);
        run.env("MOCK_CUDA_DELAY_US", "3000").run().good();
    }
}

fn batch() -> Done {
    let _device = task::device()?;
    let (tensor, stream) = (Tensor::new(LEN), stream());
    let (written, mut back) = (pattern(6, LEN), vec![0_u8; LEN]);
    let half = LEN / 2;
    let run = |to: [u64; 2], from: [u64; 2], stream| {
        let (mut to, mut from, mut sizes, mut failed) = (to, from, [half; 2], 0);
        let (to, from, sizes) = (to.as_mut_ptr(), from.as_mut_ptr(), sizes.as_mut_ptr());
        let (none, first) = (null_mut(), null_mut());
        // SAFETY: two elements each; the buffers live until the stream has completed the copies.
        unsafe { sys::cuMemcpyBatchAsync(to, from, sizes, 2, none, first, 0, &mut failed, stream) }
    };
    let (host, vram) = (written.as_ptr() as u64, tensor.0);
    let (half_on, into) = (half as u64, back.as_mut_ptr() as u64);
    // On the legacy default stream it is refused, as by the real driver.
    let refused = run([vram, vram + half_on], [host, host + half_on], null_mut());
    assert_eq!(refused, sys::CUresult::CUDA_ERROR_INVALID_VALUE);
    run([vram, vram + half_on], [host, host + half_on], stream).result()?;
    run([into + half_on, into], [vram + half_on, vram], stream).result()?;
    // SAFETY: made above, destroyed once.
    unsafe {
        sys::cuStreamSynchronize(stream).result()?;
        sys::cuStreamDestroy_v2(stream).result()?;
    }
    assert!(back == written);
    Ok(())
}

pub fn a_batch_of_copies_is_executed_in_its_stream() {
    Start::task("batch").run().good();
}
