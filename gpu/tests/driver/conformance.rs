//! VRAM as a memory beside host memory: the same accesses have the same results.

use crate::start::Start;
use crate::task::{self, Done, Tasks, pattern};
use nkv_store::{AnonMemory, Memory, StoreError};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

const BYTES: u64 = 100_000;

/// See `task`.
pub fn tasks() -> Tasks {
    &[("conformance", conformance), ("large", large)]
}

#[derive(Debug, Clone)]
enum Access {
    Read(u64, usize),
    Write(u64, usize, u64),
    Load(u64),
    Store(u64, u64),
    Flush,
}

/// Offsets within, at the end, beyond it, and where a sum overflows.
fn offset() -> impl Strategy<Value = u64> {
    prop_oneof![
        6 => 0..BYTES,
        2 => BYTES - 16..BYTES + 16,
        1 => (0..BYTES / 8).prop_map(|word| word * 8),
        1 => u64::MAX - 16..=u64::MAX,
    ]
}

fn access() -> impl Strategy<Value = Access> {
    let aligned = prop_oneof![3 => (0..BYTES / 8 + 2).prop_map(|word| word * 8), 1 => offset()];
    let aligned = aligned.boxed();
    prop_oneof![
        (offset(), 0..5000_usize).prop_map(|(at, len)| Access::Read(at, len)),
        (offset(), 0..5000_usize, any::<u64>()).prop_map(|(at, len, s)| Access::Write(at, len, s)),
        aligned.clone().prop_map(Access::Load),
        (aligned, any::<u64>()).prop_map(|(at, value)| Access::Store(at, value)),
        Just(Access::Flush),
    ]
}

/// Its result: bytes read, the word, or the error's text.
fn run(memory: &dyn Memory, access: &Access) -> Result<Vec<u8>, String> {
    let text = |e: StoreError| e.to_string();
    match *access {
        Access::Read(at, len) => {
            let mut into = vec![0xee; len];
            memory.read(at, &mut into).map(|()| into).map_err(text)
        }
        Access::Write(at, len, seed) => {
            memory.write(at, &pattern(seed, len)).map(|()| Vec::new()).map_err(text)
        }
        Access::Load(at) => memory.load(at).map(|word| word.to_ne_bytes().to_vec()).map_err(text),
        Access::Store(at, value) => memory.store(at, value).map(|()| Vec::new()).map_err(text),
        Access::Flush => {
            memory.flush();
            Ok(Vec::new())
        }
    }
}

fn conformance() -> Done {
    let device = task::device()?;
    let mut runner =
        TestRunner::new(Config { cases: 40, failure_persistence: None, ..Config::default() });
    runner.run(&proptest::collection::vec(access(), 1..40), |accesses| {
        let host = AnonMemory::new(BYTES).unwrap();
        let vram = task::vram(&device, BYTES).unwrap();
        for access in &accesses {
            prop_assert_eq!(run(&vram, access), run(&host, access), "{:?}", access);
        }
        let all = Access::Read(0, BYTES as usize);
        prop_assert!(run(&vram, &all) == run(&host, &all), "the bytes differ in the end");
        Ok(())
    })?;
    let vram = task::vram(&device, BYTES)?;
    assert_eq!((vram.len(), vram.host_base(), vram.host_len()), (BYTES, None, 0));
    for refused in [vram.compare_swap(8, 0, 1), vram.fetch_add(8, 1)] {
        let refused = refused.unwrap_err();
        assert!(matches!(refused, StoreError::Unsupported(_)), "{refused}");
        assert!(refused.to_string().contains("the CPU has no atomics there"), "{refused}");
    }
    assert!(matches!(vram.fetch_add(4, 1), Err(StoreError::Misaligned { .. })));
    assert!(matches!(vram.fetch_add(BYTES, 1), Err(StoreError::OutOfBounds { .. })));
    Ok(())
}

pub fn vram_and_host_memory_answer_alike() {
    Start::task("conformance").env("MOCK_CUDA_DELAY_US", "20").run().good();
}

fn large() -> Done {
    let vram = task::vram(&task::device()?, 8 << 20)?;
    for len in [(1 << 20) - 1, 1 << 20, (1 << 20) + 1, (5 << 20) + 7] {
        let (written, mut back) = (pattern(len as u64, len), vec![0; len]);
        vram.write(3, &written)?;
        vram.read(3, &mut back)?;
        assert!(back == written, "{len} bytes");
    }
    Ok(())
}

pub fn copies_larger_than_a_piece_are_whole() {
    Start::task("large").run().good();
}
