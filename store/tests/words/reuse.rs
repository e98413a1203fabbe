//! A reader beside an owner that retires and arms again, and the producer that comes next.

use crate::segment::{
    BYTES, Q, Tally, check, expect, extent, live, payload, publication, put, read, run,
};
use loom::sync::atomic::AtomicU64;
use nkv_store::layout::{OWNER_OFF, PUBLISH_OFF, epoch_of, flag, low, word};
use nkv_store::object::{Reading, chain_in_time, read_header, reserved, validate};
use nkv_store::{Heap, Slots};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Retires slot 0 and arms it again. No time passes for the reader: what a strict reader accepts
/// may not depend on the quarantine.
fn arm_again(slots: &mut Slots) {
    slots.retire(0, 1, true, 0).unwrap();
    assert_eq!(slots.due(Q).len(), 1);
}

#[test]
fn i7_a_strict_reader_believes_no_copy_that_a_reuse_overtook() {
    for known in [Some(1), None] {
        let tally = Tally::default();
        let met = tally.clone();
        check(2, move |first| {
            let mut slots = live();
            let reader = slots.heap().clone();
            let owner = move || {
                let heap = slots.heap().clone();
                arm_again(&mut slots);
                slots.open(0, 2, extent(&heap)).unwrap();
                // Another thread: it must order its bytes after the owner's words by itself.
                let producer = loom::thread::spawn(move || put(&heap, 0, 2));
                assert!(producer.join().unwrap());
                slots.commit(0, 2).unwrap();
            };
            let ((), copy) = first.race(owner, move || read(&reader, 0, known));
            met.count(copy.is_some());
            let next = known.is_none().then(|| payload(2));
            let whole = |copy: &Vec<u8>| *copy == payload(1) || Some(copy) == next.as_ref();
            assert!(copy.as_ref().is_none_or(whole), "[I7] told {known:?}, believed {copy:?}");
        });
        tally.met_both();
    }
}

#[test]
fn i7_a_strict_reader_believes_no_copy_of_an_extent_that_went_to_another_slot() {
    let tally = Tally::default();
    let met = tally.clone();
    check(3, move |first| {
        let mut slots = live();
        let reader = slots.heap().clone();
        let owner = move || {
            let heap = slots.heap().clone();
            arm_again(&mut slots);
            slots.open(1, 1, extent(&heap)).unwrap();
            let producer = move || run(&heap, &mut publication(&heap, 1, 1).whole(&payload(7)));
            loom::thread::spawn(producer).join().unwrap();
        };
        let ((), copy) = first.race(owner, move || read(&reader, 0, Some(1)));
        met.count(copy.is_some());
        assert!(copy.is_none_or(|copy| copy == payload(1)), "[I7] bytes of another object");
    });
    tally.met_both();
}

/// Time shared by all parties, in nanoseconds, and exact for each of them.
fn now(clock: &AtomicU64) -> u64 {
    clock.fetch_add(0, Ordering::AcqRel)
}

/// Retires slot 0 while time passes, and puts the next object there once that is allowed.
fn reuse_when_due(mut slots: Slots, clock: &AtomicU64) {
    let heap = slots.heap().clone();
    slots.retire(0, 1, true, now(clock)).unwrap();
    slots.restart_quarantines(now(clock));
    let mut freed = slots.due(now(clock));
    for _ in 0..2 {
        if freed.is_empty() {
            clock.fetch_add(Q / 2, Ordering::AcqRel);
            freed = slots.due(now(clock));
        }
    }
    assert_eq!(freed.len(), 1, "held for longer than Q");
    slots.open(0, 2, extent(&heap)).unwrap();
    assert!(put(&heap, 0, 2));
}

/// A chained read that a device executes out of order: the second header check overtakes the
/// payload. Returns whether it was in time, and the copy if it may be accepted.
fn read_out_of_order(heap: &Heap, clock: &AtomicU64) -> (bool, Option<Vec<u8>>) {
    let mut reading = Reading::new(heap.layout().header_off(0), expect(heap, Some(1)));
    let mut copy = vec![0; BYTES];
    let began = now(clock);
    let [before, payload, after] = reading.chain(&mut copy);
    run(heap, &mut [before, after, payload]);
    let in_time = chain_in_time(began, now(clock), heap.layout().quarantine_ns());
    if !in_time {
        run(heap, &mut [reading.again()]);
    }
    let believed = reading.judge(&heap.layout().arena).is_ok();
    (in_time, believed.then_some(copy))
}

#[test]
fn i8_a_chain_that_ends_in_time_copied_nothing_reused_in_whatever_order_it_was_served() {
    let (tally, times) = (Tally::default(), Tally::default());
    let (met, timely) = (tally.clone(), times.clone());
    check(1, move |first| {
        let slots = live();
        let heap = slots.heap().clone();
        let clock = Arc::new(AtomicU64::new(0));
        let readers = clock.clone();
        let owner = move || reuse_when_due(slots, &clock);
        let ((), (in_time, copy)) = first.race(owner, move || read_out_of_order(&heap, &readers));
        timely.count(in_time);
        met.count(copy.is_some());
        assert!(copy.is_none_or(|copy| copy == payload(1)), "[I8] reused within the quarantine");
    });
    tally.met_both();
    times.met_both();
}

#[test]
fn i2_i3_live_of_an_epoch_is_never_seen_with_what_an_older_one_published() {
    let tally = Tally::default();
    let met = tally.clone();
    check(3, move |first| {
        let mut slots = live();
        let heap = slots.heap().clone();
        let reader = move || {
            let header = heap.layout().header_off(0);
            let owner = heap.memory().load(header + OWNER_OFF).unwrap();
            let publish = heap.memory().load(header + PUBLISH_OFF).unwrap();
            let armed = owner == word(flag::LIVE, 2);
            assert!(!armed || publish == reserved(2), "[I3] armed LIVE before RESERVED");
            // Whatever mix of words is read, nothing of epoch 2 is readable, nor of 1 without LIVE.
            let seen = read_header(&heap, 0).unwrap();
            let arena = heap.layout().arena;
            assert!(validate(&seen, &expect(&heap, Some(2)), &arena).is_err(), "{seen:?}");
            let live = low(seen.owner) & flag::LIVE != 0 && epoch_of(seen.owner) == 1;
            assert!(live || validate(&seen, &expect(&heap, None), &arena).is_err(), "{seen:?}");
            armed
        };
        let ((), armed) = first.race(move || arm_again(&mut slots), reader);
        met.count(armed);
    });
    tally.met_both();
}
