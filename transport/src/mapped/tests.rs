//! Copies, batches in order, and owners that die meanwhile.

use super::{Mapped, MappedVerbs};
use crate::error::TransportError;
use crate::verbs::{Alive, Op, Verbs};
use nkv_store::streaming::STREAM_FROM_BYTES;
use nkv_store::threads::spawn_named;
use nkv_store::{AnonMemory, Memory, StoreError, Stripes};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Memory whose owner dies while it is written.
#[derive(Debug)]
struct Dying(AnonMemory, Alive);

impl nkv_store::testkit::MemoryDouble for Dying {
    fn inner(&self) -> &dyn Memory {
        &self.0
    }
    fn read(&self, offset: u64, dst: &mut [u8]) -> Result<(), StoreError> {
        self.1.mark_dead();
        self.0.read(offset, dst)
    }
    fn write(&self, offset: u64, src: &[u8]) -> Result<(), StoreError> {
        self.1.mark_dead();
        self.0.write(offset, src)
    }
}

#[test]
fn success_is_not_reported_if_the_owner_died_during_the_work() {
    for read in [false, true] {
        let alive = Alive::new();
        let memory = Dying(AnonMemory::new(4096).unwrap(), alive.clone());
        let verbs = MappedVerbs::local(Arc::new(memory), alive);
        let mut dst = [0; 100];
        let r = if read { verbs.read(0, &mut dst) } else { verbs.write(1, 0, &[1; 100]) };
        assert!(matches!(r, Err(TransportError::Disconnected(_))), "{r:?}");
    }
}

/// Memory that blocks the write at one offset.
#[derive(Debug)]
struct Slow(AnonMemory, u64, AtomicBool);

impl nkv_store::testkit::MemoryDouble for Slow {
    fn inner(&self) -> &dyn Memory {
        &self.0
    }
    fn write(&self, offset: u64, src: &[u8]) -> Result<(), StoreError> {
        while offset == self.1 && self.2.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.0.write(offset, src)
    }
}

#[test]
fn i4_a_word_behind_a_large_write_waits_for_the_slowest_of_its_threads() {
    const LEN: usize = 1 << 20;
    for late in 0..4 {
        let at = 4096 + late * (LEN as u64 / 4);
        let slow = Slow(AnonMemory::new(2 << 20).unwrap(), at, AtomicBool::new(true));
        let memory = Arc::new(slow);
        let stripes = Stripes::new(4, LEN as u64);
        let verbs = MappedVerbs::local(memory.clone(), Alive::new()).with_stripes(stripes);
        let put = spawn_named("put", move || {
            let payload = vec![7; LEN];
            let write = Op::Write { offset: 4096, src: &payload };
            verbs.post(1, &mut [write, Op::Store { offset: 0, value: 1 }])
        })
        .unwrap();
        let landed = |i: u64| memory.load(4096 + i * (LEN as u64 / 4)).unwrap() != 0;
        while !(0..4).all(|i| i == late || landed(i)) {
            std::thread::yield_now();
        }
        std::thread::sleep(Duration::from_millis(30));
        assert!(memory.load(0).unwrap() == 0 && !landed(late));
        memory.2.store(false, Ordering::SeqCst);
        put.join().unwrap().unwrap();
        assert_eq!(memory.load(0).unwrap(), 1);
        let mut all = vec![0; LEN];
        memory.read(4096, &mut all).unwrap();
        assert!(all.iter().all(|b| *b == 7));
    }
}

#[test]
fn copies_of_any_length_and_alignment_arrive_whole_and_touch_nothing_else() {
    const LEN: usize = 300 << 10;
    let m = Mapped::new(Arc::new(AnonMemory::new(LEN as u64).unwrap()));
    let src: Vec<u8> =
        (0..LEN as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    for len in [
        0,
        1,
        7,
        8,
        16,
        64,
        72,
        4096,
        STREAM_FROM_BYTES - 1,
        STREAM_FROM_BYTES,
        STREAM_FROM_BYTES + 77,
    ] {
        for offset in [0u64, 1, 8, 13, 63, 4095] {
            for shift in [0, 3] {
                m.write(0, &vec![0xee; LEN]).unwrap();
                let src = &src[shift..shift + len];
                m.write(offset, src).unwrap();
                let mut all = vec![0; LEN];
                m.read(0, &mut all).unwrap();
                let (o, end) = (offset as usize, offset as usize + len);
                assert!(&all[o..end] == src, "{len} at {offset}");
                assert!(all[..o].iter().chain(&all[end..]).all(|b| *b == 0xee));
            }
        }
    }
    assert!(m.write(LEN as u64 - 8, &[0; 9]).is_err());
    assert!(m.read(u64::MAX, &mut [0; 64]).is_err());
    assert!(m.at(1, LEN).is_none() && m.at(u64::MAX, 2).is_none());
}
