//! What every transport owes its users, whatever it is made of.

use crate::fixtures::{Fixture, SEGMENT_BYTES, TOKEN};
use nkv_store::Memory;
use nkv_store::clock::{BootClock, Clock};
use nkv_store::threads::spawn_named;
use nkv_transport::{Op, TransportError};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A deterministic stream that differs between seeds and never repeats within a page.
fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..len)
        .map(|_| {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            (x >> 32) as u8
        })
        .collect()
}

fn bytes_at(memory: &dyn Memory, offset: u64, len: usize) -> Vec<u8> {
    let mut v = vec![0; len];
    memory.read(offset, &mut v).unwrap();
    v
}

pub fn a_batch_is_executed_in_order(f: Fixture) {
    let (mut a, mut b, mut c, mut d) = ([9; 16], [9; 16], [9; 8], [9; 16]);
    let mut ops = [
        Op::Read {
            offset: 64,
            dst: &mut a,
        },
        Op::Write {
            offset: 64,
            src: &[1; 16],
        },
        Op::Read {
            offset: 64,
            dst: &mut b,
        },
        Op::Store {
            offset: 64,
            value: 5,
        },
        Op::FetchAdd {
            offset: 64,
            add: 2,
            old: 0,
        },
        Op::Flush,
        Op::CompareSwap {
            offset: 64,
            expect: 7,
            new: 8,
            old: 0,
        },
        Op::Read {
            offset: 64,
            dst: &mut c,
        },
        Op::Write {
            offset: 66,
            src: &[3; 4],
        },
        Op::Read {
            offset: 64,
            dst: &mut d,
        },
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
            Op::Read {
                offset,
                dst: &mut [],
            },
            Op::Store {
                offset: 8,
                value: 1,
            },
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
    for (i, len) in [1, 2, 7, 8, 9, 63, 64, 65, 4095, 4097, 70_001]
        .into_iter()
        .enumerate()
    {
        for (j, offset) in [101u64, 104, 4096, 8191].into_iter().enumerate() {
            let whole = len + 2 * AROUND;
            f.memory
                .write(offset - AROUND as u64, &vec![0xaa; whole])
                .unwrap();
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
        Op::Store {
            offset: SEGMENT_BYTES - 8,
            value: 7,
        },
        Op::Write {
            offset: 20 << 20,
            src: &b,
        },
    ];
    f.verbs.post(TOKEN, &mut ops).unwrap();
    assert!(bytes_at(&*f.memory, 5, LEN) == a);
    assert!(bytes_at(&*f.memory, 20 << 20, LEN) == b);
    let (mut x, mut y, mut word) = (vec![0; LEN], vec![0; LEN], [0; 8]);
    let mut ops = [
        Op::Read {
            offset: 5,
            dst: &mut x,
        },
        Op::Read {
            offset: SEGMENT_BYTES - 8,
            dst: &mut word,
        },
        Op::Read {
            offset: 20 << 20,
            dst: &mut y,
        },
    ];
    f.verbs.post(0, &mut ops).unwrap();
    assert!(x == a && y == b && word == 7u64.to_ne_bytes());
}

pub fn a_batch_of_many_operations_is_executed_whole(f: Fixture) {
    const N: usize = 10_000;
    let src = pattern(3, N * 24);
    let mut ops: Vec<Op> = Vec::new();
    for i in 0..N {
        ops.push(Op::Write {
            offset: 4096 + 24 * i as u64,
            src: &src[24 * i..24 * (i + 1)],
        });
        ops.push(Op::FetchAdd {
            offset: 8,
            add: i as u64,
            old: 0,
        });
    }
    f.verbs.post(TOKEN, &mut ops).unwrap();
    let olds: Vec<u64> = ops
        .iter()
        .filter_map(|o| {
            if let Op::FetchAdd { old, .. } = o {
                Some(*old)
            } else {
                None
            }
        })
        .collect();
    assert!(
        olds.iter()
            .enumerate()
            .all(|(i, old)| *old == (i * i.saturating_sub(1) / 2) as u64)
    );
    assert!(bytes_at(&*f.memory, 4096, N * 24) == src);
    let mut back = vec![0; N * 24];
    let mut ops: Vec<Op> = back
        .chunks_mut(24)
        .enumerate()
        .map(|(i, dst)| Op::Read {
            offset: 4096 + 24 * i as u64,
            dst,
        })
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
        Op::Read {
            offset: 4096,
            dst: &mut before,
        },
        Op::Write {
            offset: 4096,
            src: &new,
        },
        Op::Read {
            offset: 4096,
            dst: &mut after,
        },
    ];
    f.verbs.post(TOKEN, &mut ops).unwrap();
    assert!(before == old && after == new);
}

pub fn out_of_bounds_is_refused_and_nothing_of_the_batch_happens(f: Fixture) {
    let end = SEGMENT_BYTES;
    for (offset, len) in [(end, 1), (end - 4, 5), (u64::MAX, 1), (u64::MAX - 3, 8)] {
        let mut room = vec![0; len];
        let src = vec![1; len];
        for last in [
            Op::Write { offset, src: &src },
            Op::Read {
                offset,
                dst: &mut room,
            },
        ] {
            let mut ops = [
                Op::Write {
                    offset: 0,
                    src: &[1; 100],
                },
                Op::FetchAdd {
                    offset: 128,
                    add: 1,
                    old: 0,
                },
                last,
            ];
            let r = f.verbs.post(TOKEN, &mut ops);
            assert!(matches!(r, Err(TransportError::OutOfBounds(_))), "{r:?}");
        }
    }
    let word_past_the_end = f.verbs.store(TOKEN, end, 1);
    assert!(matches!(
        word_past_the_end,
        Err(TransportError::OutOfBounds(_))
    ));
    assert!(bytes_at(&*f.memory, 0, 256).iter().all(|b| *b == 0));
    f.verbs.write(TOKEN, 0, &[1]).unwrap();
}

pub fn misaligned_words_are_refused_and_nothing_of_the_batch_happens(f: Fixture) {
    for offset in [1, 4, 15] {
        for word in [
            Op::Store { offset, value: 1 },
            Op::FetchAdd {
                offset,
                add: 1,
                old: 0,
            },
            Op::CompareSwap {
                offset,
                expect: 0,
                new: 1,
                old: 0,
            },
        ] {
            let mut ops = [
                Op::Write {
                    offset: 0,
                    src: &[1; 100],
                },
                word,
            ];
            let r = f.verbs.post(TOKEN, &mut ops);
            assert!(matches!(r, Err(TransportError::OutOfBounds(_))), "{r:?}");
        }
    }
    assert!(bytes_at(&*f.memory, 0, 128).iter().all(|b| *b == 0));
}

pub fn without_a_token_there_are_only_reads(f: Fixture) {
    for change in [
        Op::Write {
            offset: 0,
            src: &[1],
        },
        Op::Store {
            offset: 0,
            value: 1,
        },
        Op::FetchAdd {
            offset: 0,
            add: 1,
            old: 0,
        },
        Op::CompareSwap {
            offset: 0,
            expect: 0,
            new: 1,
            old: 0,
        },
    ] {
        let r = f.verbs.post(0, &mut [Op::Flush, change]);
        assert!(matches!(r, Err(TransportError::Refused(_))), "{r:?}");
    }
    assert_eq!(f.verbs.load(0).unwrap(), 0);
}

pub fn i1_atomics_of_four_threads_add_up(f: Fixture) {
    const EACH: u64 = 500;
    let threads: Vec<_> = (0..4u64)
        .map(|t| {
            let verbs = f.verbs.clone();
            spawn_named("adder", move || {
                let mut seen = Vec::new();
                for _ in 0..EACH {
                    seen.push(verbs.fetch_add(TOKEN, 64, t + 1).unwrap());
                    // A counter by compare-and-swap beside it.
                    let mut now = verbs.load(128).unwrap();
                    loop {
                        match verbs.compare_swap(TOKEN, 128, now, now + 1).unwrap() {
                            found if found == now => break,
                            found => now = found,
                        }
                    }
                }
                seen
            })
            .unwrap()
        })
        .collect();
    let mut seen: Vec<u64> = threads
        .into_iter()
        .flat_map(|t| t.join().unwrap())
        .collect();
    assert_eq!(f.memory.load(64).unwrap(), EACH * (1 + 2 + 3 + 4));
    assert_eq!(f.memory.load(128).unwrap(), EACH * 4);
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(
        seen.len() as u64,
        EACH * 4,
        "two additions found the same word"
    );
}

pub fn i1_words_written_beside_each_other_are_never_torn(f: Fixture) {
    // Every word of the header always has eight equal bytes.
    let done = Arc::new(AtomicBool::new(false));
    let (verbs, d) = (f.verbs.clone(), done.clone());
    let writer = spawn_named("writer", move || {
        for i in 0..2_000u32 {
            verbs.write(TOKEN, 4096, &[i as u8; 64]).unwrap();
            verbs.write(TOKEN, 4096 + 32, &[!i as u8; 8]).unwrap();
        }
        d.store(true, Ordering::SeqCst);
    })
    .unwrap();
    while !done.load(Ordering::SeqCst) {
        let mut header = [0; 64];
        f.verbs.read(4096, &mut header).unwrap();
        for word in header.chunks(8) {
            assert!(word.iter().all(|b| *b == word[0]), "{header:?}");
        }
    }
    writer.join().unwrap();
}

pub fn compare_swap_returns_what_it_found(f: Fixture) {
    assert_eq!(f.verbs.compare_swap(TOKEN, 8, 1, 2).unwrap(), 0);
    assert_eq!(
        f.memory.load(8).unwrap(),
        0,
        "a failed swap changed the word"
    );
    assert_eq!(f.verbs.compare_swap(TOKEN, 8, 0, u64::MAX).unwrap(), 0);
    assert_eq!(f.verbs.compare_swap(TOKEN, 8, 0, 1).unwrap(), u64::MAX);
    assert_eq!(f.verbs.fetch_add(TOKEN, 8, 3).unwrap(), u64::MAX);
    assert_eq!(f.verbs.load(8).unwrap(), 2);
}

pub fn i4_a_ready_word_is_never_seen_before_its_payload(f: Fixture) {
    const READY: u64 = 0x0000_0007_0000_0002;
    const SLOTS: usize = 120;
    // Sizes on both sides of every threshold; the last one is streamed past the cache.
    const SIZES: [usize; 5] = [40, 4096, 33_000, 64 << 10, 300_001];
    let at = |slot: usize| (64 * slot as u64, (1 << 20) + (slot * 301_056) as u64);
    let (verbs, memory) = (f.verbs.clone(), f.memory.clone());
    let payloads: Arc<Vec<Vec<u8>>> = Arc::new(
        (0..SLOTS)
            .map(|s| pattern(s as u64 + 9, SIZES[s % SIZES.len()]))
            .collect(),
    );
    let src = payloads.clone();
    let producer = spawn_named("producer", move || {
        for (slot, payload) in src.iter().enumerate() {
            let (word, extent) = at(slot);
            let mut ops = [
                Op::Store {
                    offset: word,
                    value: 1,
                },
                Op::Write {
                    offset: extent,
                    src: payload,
                },
                Op::CompareSwap {
                    offset: word,
                    expect: 1,
                    new: READY,
                    old: 0,
                },
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
        assert!(
            &seen == payload,
            "slot {slot} was READY without its payload"
        );
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
                    let mut ops = [
                        Op::Write { offset, src: &src },
                        Op::Read {
                            offset,
                            dst: &mut back,
                        },
                    ];
                    verbs.post(TOKEN, &mut ops).unwrap();
                    assert!(back == src);
                }
            })
            .unwrap()
        })
        .collect();
    threads.into_iter().for_each(|t| t.join().unwrap());
}

pub fn a_handle_marked_dead_says_disconnected(f: Fixture) {
    f.verbs.write(TOKEN, 0, &[1; 10]).unwrap();
    f.alive.mark_dead();
    assert!(!f.verbs.is_alive());
    for r in [
        f.verbs.read(0, &mut [0; 10]),
        f.verbs.write(TOKEN, 0, &[2; 10]),
        f.verbs.post(0, &mut []),
        f.verbs.flush(),
    ] {
        assert!(matches!(r, Err(TransportError::Disconnected(_))), "{r:?}");
    }
    assert_eq!(bytes_at(&*f.memory, 0, 10), [1; 10]);
}

pub fn i18_after_the_owners_death_every_post_ends_within_two_seconds(f: Fixture) {
    let clock = BootClock;
    let posted = Arc::new(AtomicBool::new(false));
    let workers: Vec<_> = (0..3u64)
        .map(|t| {
            let (verbs, posted) = (f.verbs.clone(), posted.clone());
            spawn_named("worker", move || {
                let mut buf = vec![t as u8; 1 << 20];
                loop {
                    let offset = t << 20;
                    let mut ops = [
                        Op::Write {
                            offset,
                            src: &buf.clone(),
                        },
                        Op::Read {
                            offset,
                            dst: &mut buf,
                        },
                    ];
                    match verbs.post(TOKEN, &mut ops) {
                        Ok(()) => posted.store(true, Ordering::SeqCst),
                        Err(e) => return (e, clock.now_ms()),
                    }
                }
            })
            .unwrap()
        })
        .collect();
    while !posted.load(Ordering::SeqCst) {
        std::thread::yield_now();
    }
    let died = clock.now_ms();
    (f.kill)();
    for w in workers {
        let (e, ended) = w.join().unwrap();
        assert!(matches!(e, TransportError::Disconnected(_)), "{e:?}");
        assert!(
            ended - died < 2_000,
            "{} ms after the owner's death",
            ended - died
        );
    }
    let asked = clock.now_ms();
    let later = f.verbs.read(0, &mut [0; 10]);
    assert!(
        matches!(later, Err(TransportError::Disconnected(_))),
        "{later:?}"
    );
    assert!(clock.now_ms() - asked < 2_000);
    drop(f.keep);
}
