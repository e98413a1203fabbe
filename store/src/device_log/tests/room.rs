//! Eviction, quarantine, pins, and reclaimed space.

use super::*;
use crate::layout::{OWNER_OFF, word};

#[test]
fn room_is_made_ahead_of_demand_and_never_more_than_that() {
    let mut w = world(16);
    // Twelve units claimed: a quarter is free, nothing is evicted.
    w.fill(1, 12);
    assert_eq!(w.log.retire_ahead(0, &mut w.index).unwrap(), 0);
    w.fill(13, 1);
    assert_eq!(w.log.retire_ahead(0, &mut w.index).unwrap(), 1);
    // It is in quarantine: the same demand retires nothing more.
    assert_eq!(w.log.retire_ahead(1, &mut w.index).unwrap(), 0);
    assert_eq!(w.get(1), None);
    assert_eq!(w.get(2), Some(payload(2, U)));
    w.log.restart_quarantines(1);
    assert_eq!(w.log.advance(Q, |_, _| true).unwrap(), 0);
    assert_eq!(w.log.advance(1 + Q, |_, _| true).unwrap(), U);
    assert_eq!(w.line().heap_limit(), 17 * U);
    assert_eq!(w.log.counts().evicted, Sum { claims: 1, bytes: U });
}

#[test]
fn i8_the_limit_moves_only_after_quarantine_counted_from_when_it_was_settled() {
    let mut w = world(8);
    w.fill(1, 8);
    assert_eq!(w.log.retire_ahead(100, &mut w.index).unwrap(), 2);
    assert_eq!(w.log.next_due_ns(), Some(100 + Q));
    w.log.restart_quarantines(700);
    assert_eq!(w.log.next_due_ns(), Some(700 + Q));
    assert_eq!(w.log.advance(699 + Q, |_, _| true).unwrap(), 0);
    assert_eq!(w.memory.load(HEAP_LIMIT_OFF).unwrap(), 8 * U);
    // A later call restarts only what was retired since.
    w.log.restart_quarantines(5000);
    assert_eq!(w.log.advance(700 + Q, |_, _| true).unwrap(), 2 * U);
    assert_eq!(w.log.usage().quarantined, Sum::default());
}

#[test]
fn i9_a_pinned_object_holds_the_tail_and_loses_live_all_the_same() {
    let memory = Arc::new(AnonMemory::new(LOG_BASE + 8 * U).unwrap());
    // An owner that may not claim, so it cannot leave the object behind.
    let mut w = world_of(memory, 8, LogRules { owner_claims: false, ..RULES });
    w.fill(1, 8);
    w.log.retire_ahead(0, &mut w.index).unwrap();
    w.log.restart_quarantines(0);
    let owner = w.memory.load(w.layout.header_off(1) + OWNER_OFF).unwrap();
    assert_eq!(owner, word(0, 1));
    let pinned = |slot, epoch| (slot, epoch) != (1, 1);
    assert_eq!(w.log.advance(Q, pinned).unwrap(), U);
    assert_eq!(w.log.advance(u64::MAX, pinned).unwrap(), 0);
    assert_eq!(w.log.advance(u64::MAX, |_, _| true).unwrap(), U);
}

#[test]
fn a_log_full_of_what_was_never_readable_moves_on_though_nothing_is_due() {
    let mut w = world(8);
    // Two abandoned claims become the tail once the tail has passed what was before.
    for name in 1..=2 {
        let write = w.place(name, U);
        w.run(&mut write.publication().announce());
        w.run(&mut write.abort().ops());
    }
    w.log.accept(0, &mut w.index).unwrap();
    w.fill(3, 6);
    assert!(!w.log.tail_is_free());
    assert_eq!(w.log.retire_ahead(0, &mut w.index).unwrap(), 0);
    assert_eq!((w.log.next_due_ns(), w.log.tail_is_free()), (None, true));
    assert_eq!(w.log.advance(0, |_, _| true).unwrap(), 2 * U);
    assert!(!w.log.tail_is_free());
}

#[test]
fn an_object_retired_in_the_middle_is_gone_at_once_and_its_space_comes_with_the_tail() {
    let mut w = world(8);
    w.fill(1, 8);
    assert_eq!(w.log.retire(3, 1, 0, &mut w.index).unwrap(), Retire::Done);
    assert_eq!(w.log.retire(3, 1, 0, &mut w.index).unwrap(), Retire::Already);
    assert_eq!(w.log.retire(3, 2, 0, &mut w.index).unwrap(), Retire::Unknown);
    assert_eq!(w.log.retire(8, 1, 0, &mut w.index).unwrap(), Retire::Unknown);
    assert_eq!((w.get(4), w.log.is_live(3, 1), w.log.is_live(2, 1)), (None, false, true));
    assert_eq!(w.log.counts().removed, Sum { claims: 1, bytes: U });
    w.log.restart_quarantines(0);
    assert_eq!(w.log.advance(Q, |_, _| true).unwrap(), 0);
    // Two are wanted; then two more, of which the one in the middle costs nothing.
    assert_eq!(w.make_room(0), 2 * U);
    w.fill(9, 2);
    assert_eq!(w.log.retire_ahead(0, &mut w.index).unwrap(), 1);
    w.log.restart_quarantines(0);
    assert_eq!(w.log.advance(Q, |_, _| true).unwrap(), 2 * U);
    assert_eq!(w.log.retire(3, 1, 0, &mut w.index).unwrap(), Retire::Already);
    w.check_counts();
}

#[test]
fn i8_an_object_retired_in_the_middle_is_held_for_its_own_quarantine() {
    let mut w = world(8);
    w.fill(1, 8);
    w.log.retire_ahead(0, &mut w.index).unwrap();
    w.log.restart_quarantines(0);
    w.log.retire(2, 1, 500, &mut w.index).unwrap();
    w.log.restart_quarantines(500);
    w.log.advance(Q, |_, _| true).unwrap();
    // Two claims wait for room; the removed object provides it for the first.
    w.memory.fetch_add(BUMP_PTR_OFF, U).unwrap();
    w.log.retire_ahead(Q, &mut w.index).unwrap();
    assert_eq!(w.log.advance(499 + Q, |_, _| true).unwrap(), 0);
    assert_eq!(w.log.advance(500 + Q, |_, _| true).unwrap(), U);
}

#[test]
fn a_log_goes_round_and_every_byte_is_what_was_put() {
    let mut w = world(12);
    let mut now = 0;
    for name in 1..=100 {
        let bytes = 1 + name * 37 % (3 * U);
        let put = LogPut::new(w.layout, key(name), 4096, bytes).unwrap();
        // After a skip there is no room for a second claim every time: the next object uses it.
        if put.room(&w.line()).is_some() {
            match w.claim(name, bytes).next(w.line().heap_limit()) {
                ClaimStep::Write(write) => w.publish(&write, name, bytes),
                ClaimStep::Skip(skip) => w.run(&mut skip.ops()),
                ClaimStep::Wait(_) => panic!("alone, and there was room"),
            }
            assert_eq!(w.log.accept(now, &mut w.index).unwrap(), 1);
        }
        for (id, at) in &w.index.objects {
            let copy = w.read(at).unwrap();
            assert!(copy.iter().all(|byte| *byte == copy[0]), "{id:?}");
        }
        now += Q;
        w.make_room(now);
        w.check_counts();
    }
    assert!(w.log.counts().evicted.claims > 50 && w.log.counts().skipped.claims > 5);
}

#[test]
fn i13_the_tail_never_passes_what_was_retired_and_room_is_made_for_ever_after() {
    for removed in [false, true] {
        let mut w = world(8);
        // What is free already is at the tail, before any producer asked for room.
        if removed {
            w.fill(1, 1);
            assert_eq!(w.log.retire(0, 1, 0, &mut w.index).unwrap(), Retire::Done);
            w.log.restart_quarantines(0);
        } else {
            let write = w.place(1, U);
            w.run(&mut write.abort().ops());
            assert_eq!(w.log.accept(0, &mut w.index).unwrap(), 1);
        }
        assert!(!w.log.tail_is_free() && !w.log.held_by_pin());
        assert_eq!(w.log.advance(Q, |_, _| true).unwrap(), 0, "nothing was retired");
        assert_eq!((w.log.tail, w.log.limit), (0, 8 * U));
        // From here on every lap needs room, and finds it.
        for name in 2..=33 {
            w.fill(name, 1);
            w.make_room(name * Q);
            assert!(w.log.tail + 8 * U > w.log.claimed_bytes().unwrap(), "no room for {name}");
            w.check_counts();
        }
        assert_eq!(w.log.limit, w.log.tail + 8 * U);
        assert!(w.log.counts().evicted.claims >= 24);
    }
}
