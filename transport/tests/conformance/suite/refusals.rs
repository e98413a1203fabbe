//! What must not happen, and how a handle ends: bounds, alignment, tokens, death.

use super::bytes_at;
use crate::fixtures::{Fixture, SEGMENT_BYTES, TOKEN};
use nkv_pace::{Stopwatch, timed};
use nkv_store::threads::spawn_named;
use nkv_transport::{Op, TransportError};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

pub fn out_of_bounds_is_refused_and_nothing_of_the_batch_happens(f: Fixture) {
    let end = SEGMENT_BYTES;
    for (offset, len) in [(end, 1), (end - 4, 5), (u64::MAX, 1), (u64::MAX - 3, 8)] {
        let mut room = vec![0; len];
        let src = vec![1; len];
        for last in [Op::Write { offset, src: &src }, Op::Read { offset, dst: &mut room }] {
            let mut ops = [
                Op::Write { offset: 0, src: &[1; 100] },
                Op::FetchAdd { offset: 128, add: 1, old: 0 },
                last,
            ];
            let r = f.verbs.post(TOKEN, &mut ops);
            assert!(matches!(r, Err(TransportError::OutOfBounds(_))), "{r:?}");
        }
    }
    let word_past_the_end = f.verbs.store(TOKEN, end, 1);
    assert!(matches!(word_past_the_end, Err(TransportError::OutOfBounds(_))));
    assert!(bytes_at(&*f.memory, 0, 256).iter().all(|b| *b == 0));
    f.verbs.write(TOKEN, 0, &[1]).unwrap();
}

pub fn misaligned_words_are_refused_and_nothing_of_the_batch_happens(f: Fixture) {
    for offset in [1, 4, 15] {
        for word in [
            Op::Store { offset, value: 1 },
            Op::FetchAdd { offset, add: 1, old: 0 },
            Op::CompareSwap { offset, expect: 0, new: 1, old: 0 },
        ] {
            let mut ops = [Op::Write { offset: 0, src: &[1; 100] }, word];
            let r = f.verbs.post(TOKEN, &mut ops);
            assert!(matches!(r, Err(TransportError::OutOfBounds(_))), "{r:?}");
        }
    }
    assert!(bytes_at(&*f.memory, 0, 128).iter().all(|b| *b == 0));
}

pub fn without_a_token_there_are_only_reads(f: Fixture) {
    for change in [
        Op::Write { offset: 0, src: &[1] },
        Op::Store { offset: 0, value: 1 },
        Op::FetchAdd { offset: 0, add: 1, old: 0 },
        Op::CompareSwap { offset: 0, expect: 0, new: 1, old: 0 },
    ] {
        let r = f.verbs.post(0, &mut [Op::Flush, change]);
        assert!(matches!(r, Err(TransportError::Refused(_))), "{r:?}");
    }
    assert_eq!(f.verbs.load(0).unwrap(), 0);
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
    let posted = Arc::new(AtomicBool::new(false));
    let workers: Vec<_> = (0..3u64)
        .map(|t| {
            let (verbs, posted) = (f.verbs.clone(), posted.clone());
            spawn_named("worker", move || {
                let mut buf = vec![t as u8; 1 << 20];
                loop {
                    let offset = t << 20;
                    let mut ops = [
                        Op::Write { offset, src: &buf.clone() },
                        Op::Read { offset, dst: &mut buf },
                    ];
                    match verbs.post(TOKEN, &mut ops) {
                        Ok(()) => posted.store(true, Ordering::SeqCst),
                        Err(e) => return e,
                    }
                }
            })
            .unwrap()
        })
        .collect();
    while !posted.load(Ordering::SeqCst) {
        std::thread::yield_now();
    }
    let died = Stopwatch::start();
    (f.kill)();
    for w in workers {
        let e = w.join().unwrap();
        let took = died.took();
        assert!(matches!(e, TransportError::Disconnected(_)), "{e:?}");
        assert!(took.within(2_000), "{took} after the owner's death");
    }
    let (later, took) = timed(|| f.verbs.read(0, &mut [0; 10]));
    assert!(matches!(later, Err(TransportError::Disconnected(_))), "{later:?}");
    assert!(took.within(2_000), "{took}");
    drop(f.keep);
}
