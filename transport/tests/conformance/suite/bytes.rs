//! Bytes: order within a batch, sizes, alignment, and payloads before READY.

use super::{bytes_at, pattern};
use crate::fixtures::{Fixture, SEGMENT_BYTES, TOKEN};
use nkv_store::clock::{BootClock, Clock};
use nkv_store::threads::spawn_named;
use nkv_transport::verbs::{NoObserver, Post, PostObserver};
use nkv_transport::{Op, TransportError};
use std::sync::Arc;

pub fn a_batch_is_executed_in_order(f: Fixture) {
    let (mut a, mut b, mut c, mut d) = ([9; 16], [9; 16], [9; 8], [9; 16]);
    let mut ops = [
        Op::Read { offset: 64, dst: &mut a },
        Op::Write { offset: 64, src: &[1; 16] },
        Op::Read { offset: 64, dst: &mut b },
        Op::Store { offset: 64, value: 5 },
        Op::FetchAdd { offset: 64, add: 2, old: 0 },
        Op::Flush,
        Op::CompareSwap { offset: 64, expect: 7, new: 8, old: 0 },
        Op::Read { offset: 64, dst: &mut c },
        Op::Write { offset: 66, src: &[3; 4] },
        Op::Read { offset: 64, dst: &mut d },
    ];
    f.verbs.post(TOKEN, &mut ops).unwrap();
    assert!(matches!(ops[4], Op::FetchAdd { old: 5, .. }));
    assert!(matches!(ops[6], Op::CompareSwap { old: 7, .. }));
    assert_eq!((a, b, c), ([0; 16], [1; 16], 8u64.to_ne_bytes()));
    assert_eq!(d, [8, 0, 3, 3, 3, 3, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1]);
}

pub fn an_empty_batch_succeeds(f: Fixture) {
    f.verbs.post(0, &mut []).unwrap();
    f.verbs.post(TOKEN, &mut [Op::Flush]).unwrap();
    f.verbs.flush().unwrap();
    assert_eq!(f.verbs.segment_len(), SEGMENT_BYTES);
    assert!(f.verbs.is_alive());
}

pub fn operations_of_no_bytes_succeed_and_change_nothing(f: Fixture) {
    for offset in [0, 13, SEGMENT_BYTES] {
        let mut ops = [
            Op::Write { offset, src: &[] },
            Op::Read { offset, dst: &mut [] },
            Op::Store { offset: 8, value: 1 },
            Op::Write { offset, src: &[] },
        ];
        f.verbs.post(TOKEN, &mut ops).unwrap();
    }
    f.verbs.write(TOKEN, 16, &[]).unwrap();
    f.verbs.read(16, &mut []).unwrap();
    assert!(f.verbs.write(TOKEN, SEGMENT_BYTES + 1, &[]).is_err());
    assert_eq!(
        bytes_at(&*f.memory, 0, 64),
        [vec![0; 8], 1u64.to_ne_bytes().to_vec(), vec![0; 48]].concat()
    );
}

pub fn unaligned_ranges_arrive_whole_and_touch_nothing_else(f: Fixture) {
    const AROUND: usize = 100;
    for (i, len) in [1, 2, 7, 8, 9, 63, 64, 65, 4095, 4097, 70_001].into_iter().enumerate() {
        for (j, offset) in [101u64, 104, 4096, 8191].into_iter().enumerate() {
            let whole = len + 2 * AROUND;
            f.memory.write(offset - AROUND as u64, &vec![0xaa; whole]).unwrap();
            let src = pattern((i * 10 + j) as u64, len);
            f.verbs.write(TOKEN, offset, &src).unwrap();
            let mut want = vec![0xaa; whole];
            want[AROUND..AROUND + len].copy_from_slice(&src);
            assert!(
                bytes_at(&*f.memory, offset - AROUND as u64, whole) == want,
                "{len} at {offset}"
            );
            let mut back = vec![0; len];
            f.verbs.read(offset, &mut back).unwrap();
            assert!(back == src, "{len} at {offset}");
        }
    }
}

pub fn operations_larger_than_any_socket_buffer_arrive_whole(f: Fixture) {
    const LEN: usize = (16 << 20) + 3;
    let (a, b) = (pattern(1, LEN), pattern(2, LEN));
    let mut ops = [
        Op::Write { offset: 5, src: &a },
        Op::Store { offset: SEGMENT_BYTES - 8, value: 7 },
        Op::Write { offset: 20 << 20, src: &b },
    ];
    f.verbs.post(TOKEN, &mut ops).unwrap();
    assert!(bytes_at(&*f.memory, 5, LEN) == a);
    assert!(bytes_at(&*f.memory, 20 << 20, LEN) == b);
    let (mut x, mut y, mut word) = (vec![0; LEN], vec![0; LEN], [0; 8]);
    let mut ops = [
        Op::Read { offset: 5, dst: &mut x },
        Op::Read { offset: SEGMENT_BYTES - 8, dst: &mut word },
        Op::Read { offset: 20 << 20, dst: &mut y },
    ];
    f.verbs.post(0, &mut ops).unwrap();
    assert!(x == a && y == b && word == 7u64.to_ne_bytes());
}

pub fn a_batch_of_many_operations_is_executed_whole(f: Fixture) {
    const N: usize = 10_000;
    let src = pattern(3, N * 24);
    let mut ops: Vec<Op> = Vec::new();
    for i in 0..N {
        ops.push(Op::Write { offset: 4096 + 24 * i as u64, src: &src[24 * i..24 * (i + 1)] });
        ops.push(Op::FetchAdd { offset: 8, add: i as u64, old: 0 });
    }
    f.verbs.post(TOKEN, &mut ops).unwrap();
    let olds: Vec<u64> = ops
        .iter()
        .filter_map(|o| if let Op::FetchAdd { old, .. } = o { Some(*old) } else { None })
        .collect();
    assert!(olds.iter().enumerate().all(|(i, old)| *old == (i * i.saturating_sub(1) / 2) as u64));
    assert!(bytes_at(&*f.memory, 4096, N * 24) == src);
    let mut back = vec![0; N * 24];
    let mut ops: Vec<Op> = back
        .chunks_mut(24)
        .enumerate()
        .map(|(i, dst)| Op::Read { offset: 4096 + 24 * i as u64, dst })
        .collect();
    f.verbs.post(0, &mut ops).unwrap();
    assert!(back == src);
}

pub fn a_large_read_before_a_change_sees_the_old_bytes(f: Fixture) {
    const LEN: usize = 1 << 20;
    let (old, new) = (pattern(4, LEN), pattern(5, LEN));
    f.memory.write(4096, &old).unwrap();
    let (mut before, mut after) = (vec![0; LEN], vec![0; LEN]);
    let mut ops = [
        Op::Read { offset: 4096, dst: &mut before },
        Op::Write { offset: 4096, src: &new },
        Op::Read { offset: 4096, dst: &mut after },
    ];
    f.verbs.post(TOKEN, &mut ops).unwrap();
    assert!(before == old && after == new);
}

pub fn i4_a_ready_word_is_never_seen_before_its_payload(f: Fixture) {
    const READY: u64 = 0x0000_0007_0000_0002;
    const SLOTS: usize = 120;
    // Sizes on both sides of every threshold; the last one is copied with streaming stores.
    const SIZES: [usize; 5] = [40, 4096, 33_000, 64 << 10, 300_001];
    let at = |slot: usize| (64 * slot as u64, (1 << 20) + (slot * 301_056) as u64);
    let (verbs, memory) = (f.verbs.clone(), f.memory.clone());
    let payloads: Arc<Vec<Vec<u8>>> =
        Arc::new((0..SLOTS).map(|s| pattern(s as u64 + 9, SIZES[s % SIZES.len()])).collect());
    let src = payloads.clone();
    let producer = spawn_named("producer", move || {
        for (slot, payload) in src.iter().enumerate() {
            let (word, extent) = at(slot);
            let mut ops = [
                Op::Store { offset: word, value: 1 },
                Op::Write { offset: extent, src: payload },
                Op::CompareSwap { offset: word, expect: 1, new: READY, old: 0 },
            ];
            verbs.post(TOKEN, &mut ops).unwrap();
        }
    })
    .unwrap();
    let clock = BootClock;
    for (slot, payload) in payloads.iter().enumerate() {
        let (word, extent) = at(slot);
        let deadline = clock.now_ms() + 20_000;
        while memory.load(word).unwrap() != READY {
            assert!(clock.now_ms() < deadline, "slot {slot} was never published");
            std::hint::spin_loop();
        }
        let mut seen = vec![0; payload.len()];
        memory.read(extent, &mut seen).unwrap();
        assert!(&seen == payload, "slot {slot} was READY without its payload");
    }
    producer.join().unwrap();
}

pub fn posts_of_several_threads_do_not_mix(f: Fixture) {
    let threads: Vec<_> = (0..4u64)
        .map(|t| {
            let verbs = f.verbs.clone();
            spawn_named("poster", move || {
                for round in 0..20 {
                    let src = pattern(t * 100 + round, 100_000 + 777 * t as usize);
                    let offset = (t << 20) + 3;
                    let mut back = vec![0; src.len()];
                    let mut ops =
                        [Op::Write { offset, src: &src }, Op::Read { offset, dst: &mut back }];
                    verbs.post(TOKEN, &mut ops).unwrap();
                    let wrong: Vec<usize> =
                        (0..src.len()).filter(|i| back[*i] != src[*i]).collect();
                    let (first, last) = (wrong.first(), wrong.last());
                    assert!(
                        wrong.is_empty(),
                        "thread {t}, round {round}: {} of {} bytes are wrong, {first:?} to \
                         {last:?}; read {:?}",
                        wrong.len(),
                        src.len(),
                        first.map(|i| &back[*i..(*i + 8).min(src.len())]),
                    );
                }
            })
            .unwrap()
        })
        .collect();
    threads.into_iter().for_each(|t| t.join().unwrap());
}

pub fn batches_of_one_call_end_each_for_itself(f: Fixture) {
    let payload = [pattern(5, 300_000), pattern(6, 70), pattern(7, 1_000_000)];
    let mut chains: Vec<Vec<Op<'_>>> = (0..9u64)
        .map(|i| {
            let offset = if i == 4 { f.verbs.segment_len() - 8 } else { i << 20 };
            vec![
                Op::Write { offset, src: &payload[i as usize % 3] },
                Op::CompareSwap { offset: 64 * i + (16 << 20), expect: 0, new: i + 1, old: 77 },
            ]
        })
        .collect();
    let mut was = [0; 8];
    chains.push(vec![Op::Read { offset: 16 << 20, dst: &mut was }]);
    let mut posts: Vec<_> = chains.iter_mut().map(|ops| Post { token: TOKEN, ops }).collect();
    let results = f.verbs.post_many(&mut posts, &mut NoObserver);
    for (i, result) in results.iter().enumerate() {
        match i {
            4 => assert!(matches!(result, Err(TransportError::OutOfBounds(_))), "{result:?}"),
            _ => assert!(result.is_ok(), "batch {i}: {result:?}"),
        }
    }
    for (i, ops) in chains.iter().enumerate().take(9) {
        let (Op::CompareSwap { old, .. }, payload) = (&ops[1], &payload[i % 3]) else {
            unreachable!()
        };
        let word = f.memory.load((16 << 20) + 64 * i as u64).unwrap();
        assert_eq!((*old, word), if i == 4 { (77, 0) } else { (0, i as u64 + 1) });
        if i != 4 {
            assert_eq!(&bytes_at(&*f.memory, (i as u64) << 20, payload.len()), payload);
        }
    }
}

/// Admits batches, except one.
struct RefusingObserver {
    bytes: Vec<u64>,
    in_flight: Vec<bool>,
    left: Vec<u32>,
    most: u64,
    refuses: usize,
}

impl PostObserver for RefusingObserver {
    fn on_submit(&mut self, index: usize) -> Result<(), TransportError> {
        if index == self.refuses {
            return Err(TransportError::Refused("not this one".to_string()));
        }
        assert!(!self.in_flight[index], "batch {index} left while it was on its way");
        self.in_flight[index] = true;
        self.left[index] += 1;
        let in_flight = self.bytes.iter().zip(&self.in_flight).filter(|(_, in_flight)| **in_flight);
        self.most = self.most.max(in_flight.map(|(bytes, _)| bytes).sum());
        Ok(())
    }

    fn on_complete(&mut self, index: usize) {
        assert!(self.in_flight[index], "batch {index} was over and had not left");
        self.in_flight[index] = false;
    }
}

/// A fence waits for what is in flight, not for everything that is still to be sent.
pub fn i10_each_batch_of_one_call_leaves_by_itself_and_few_are_on_their_way(f: Fixture) {
    let (n, len) = (14, 1 << 20);
    let payload = pattern(9, len);
    let refuses = 5;
    let mut chains: Vec<_> = (0..n as u64)
        .map(|i| {
            let word = Op::CompareSwap { offset: 8 * i, expect: 0, new: i + 1, old: 77 };
            [Op::Write { offset: (1 << 20) * (i + 1), src: &payload }, word]
        })
        .collect();
    let mut posts: Vec<_> = chains.iter_mut().map(|ops| Post { token: TOKEN, ops }).collect();
    let mut keeper = RefusingObserver {
        bytes: vec![len as u64; n],
        in_flight: vec![false; n],
        left: vec![0; n],
        most: 0,
        refuses,
    };
    for (i, result) in f.verbs.post_many(&mut posts, &mut keeper).into_iter().enumerate() {
        assert_eq!(result.is_ok(), i != refuses, "batch {i}: {result:?}");
        let word = f.memory.load(8 * i as u64).unwrap();
        assert_eq!(word, if i == refuses { 0 } else { i as u64 + 1 }, "batch {i}");
        assert_eq!(keeper.left[i], u32::from(i != refuses), "batch {i}");
    }
    assert!(!keeper.in_flight.contains(&true), "all are over");
    assert!(keeper.most <= 8 << 20, "{} bytes on their way at once", keeper.most);
}
