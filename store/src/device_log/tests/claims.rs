//! A producer's decisions and verbs.

use super::*;
use crate::layout::PUBLISH_OFF;
use crate::object::dead;

#[test]
fn a_log_is_whole_units_that_have_numbers() {
    assert!(LogLayout::new(LOG_BASE, 16 * U, U, HEADER_BASE).is_ok());
    for (base, bytes, unit, headers) in [
        (LOG_BASE, 16 * U + 1, U, HEADER_BASE),
        (LOG_BASE, 3 * U, U, HEADER_BASE),
        (LOG_BASE, 16 * U, 0, HEADER_BASE),
        (LOG_BASE, 16 * 100, 100, HEADER_BASE),
        (LOG_BASE + 8, 16 * U, U, HEADER_BASE),
        (LOG_BASE, 16 * U, U, HEADER_BASE + 8),
        (u64::MAX - 63, 16 * U, U, HEADER_BASE),
        (LOG_BASE, 16 * U, U, u64::MAX - 63),
        (LOG_BASE, ((1 << 31) + 1) * 64, 64, HEADER_BASE),
    ] {
        assert!(LogLayout::new(base, bytes, unit, headers).is_err(), "{bytes} in {unit}");
    }
}

#[test]
fn a_position_is_a_slot_at_an_epoch_and_back() {
    let g = layout(12);
    for p in (0..40).map(|unit| unit * U) {
        let (slot, epoch) = (g.slot(p), g.epoch(p).unwrap());
        assert_eq!((u64::from(slot), u64::from(epoch)), (p / U % 12, p / U / 12 + 1));
        assert_eq!(g.position(slot, epoch), Some(p));
        assert_eq!(g.payload_off(p), LOG_BASE + p % (12 * U));
    }
    assert_eq!((g.position(12, 1), g.position(0, 0)), (None, None));
    assert_eq!(g.epoch(g.end() - 1), Some(u32::MAX));
    assert_eq!(g.epoch(g.end()), None);
}

#[test]
fn an_object_larger_than_a_quarter_takes_the_plan_path() {
    let g = layout(18);
    assert_eq!(g.max_claim(), 4 * U);
    let put = |bytes| LogPut::new(g, key(1), 4096, bytes).map(|put| put.claim_bytes());
    assert_eq!(
        (put(0), put(1), put(U + 1), put(4 * U)),
        (Some(U), Some(U), Some(2 * U), Some(4 * U))
    );
    assert_eq!(put(4 * U + 1), None);
}

#[test]
fn a_full_log_is_left_unclaimed_and_so_is_a_broken_one() {
    let w = world(8);
    let put = LogPut::new(w.layout, key(1), 4096, 2 * U).unwrap();
    for unit in 0..=6 {
        assert_eq!(put.room(&w.line()), Some(unit * U));
        w.memory.fetch_add(BUMP_PTR_OFF, U).unwrap();
    }
    assert_eq!(put.room(&w.line()), None);
    assert_eq!(put.room(&ControlLine::unread()), None);
    w.memory.store(BUMP_PTR_OFF, 7).unwrap();
    assert_eq!(put.room(&w.line()), None);
    w.memory.store(BUMP_PTR_OFF, u64::MAX - U + 1).unwrap();
    assert_eq!(put.room(&w.line()), None);
}

#[test]
fn i13_a_claim_above_the_limit_waits_and_names_no_place_to_write_to() {
    let mut w = world(8);
    w.fill(1, 8);
    let claim = w.claim(9, U);
    assert_eq!(claim.position, 8 * U);
    let ClaimStep::Wait(claim) = claim.next(w.line().heap_limit()) else {
        panic!("above the limit")
    };
    assert!(w.make_room(0) > 0);
    let ClaimStep::Write(write) = claim.next(w.line().heap_limit()) else { panic!("room") };
    assert_eq!((write.position, write.slot), (8 * U, (0, 2)));
    w.publish(&write, 9, U);
    w.log.accept(0, &mut w.index).unwrap();
    assert_eq!(w.get(9), Some(payload(9, U)));
    w.check_counts();
}

#[test]
fn i13_a_claim_across_the_end_is_skipped_and_says_so() {
    let mut w = world(8);
    w.fill(1, 7);
    let claim = w.claim(8, 2 * U);
    // It waits for the limit like any other claim: its slot does not belong to it before.
    let ClaimStep::Wait(claim) = claim.next(w.line().heap_limit()) else {
        panic!("above the limit")
    };
    w.make_room(0);
    let ClaimStep::Skip(skip) = claim.next(w.line().heap_limit()) else { panic!("in one piece?") };
    w.run(&mut skip.ops());
    assert_eq!(w.log.accept(0, &mut w.index).unwrap(), 1);
    assert_eq!(w.log.counts().skipped, Sum { claims: 1, bytes: 2 * U });
    // The next claim begins behind it.
    assert_eq!(w.claim(8, U).position, 9 * U);
    w.check_counts();
}

#[test]
fn i13_an_aborted_claim_is_dead_even_if_its_header_was_never_written() {
    let mut w = world(8);
    let write = w.place(1, 100);
    w.run(&mut write.abort().ops());
    let at = w.layout.header_off(0) + PUBLISH_OFF;
    assert_eq!(w.memory.load(at).unwrap(), dead(1));
    assert_eq!(w.log.accept(0, &mut w.index).unwrap(), 1);
    assert_eq!(w.log.counts().skipped, Sum { claims: 1, bytes: U });
    assert!(w.index.inserted.is_empty());
    w.check_counts();
}

#[test]
fn i4_an_abort_flushes_before_it_says_dead() {
    let w = world(8);
    let abort = w.place(1, 100).abort();
    let ops = abort.ops();
    assert!(matches!(ops[0], Op::Flush));
    // The owner acts on DEAD: it must not be visible before the size that belongs to it.
    assert!(matches!(ops[2], Op::Flush));
    assert!(matches!(ops[3], Op::Store { value, .. } if value == dead(1)));
}

#[test]
fn i3_no_position_past_the_last_epoch_is_ever_a_place() {
    let g = layout(8);
    let memory = Arc::new(AnonMemory::new(LOG_BASE + 8 * U).unwrap());
    // An owner whose log is almost out of epochs: two units of the last epoch are left to retire.
    memory.store(HEAP_LIMIT_OFF, g.end() - 2 * U).unwrap();
    memory.store(BUMP_PTR_OFF, g.end() - 4 * U).unwrap();
    let mut index = Index::default();
    let log =
        DeviceLog::rebuild(memory.clone(), g, (RULES, Arc::default()), 0, &mut index).unwrap();
    let mut w = World { memory, layout: g, log, index, moves: Arc::default() };
    // Holes of an earlier run, void at once: there is no producer to ask.
    w.log.accept(0, &mut w.index).unwrap();
    let check = w.log.hole(TTL + 1).unwrap().unwrap();
    let report = check.ask::<u32>([]).all_clear().unwrap();
    w.log.close_holes(report, 0, &mut w.index).unwrap();
    for name in 1..=4 {
        w.log.accept(0, &mut w.index).unwrap();
        w.make_room(0);
        assert_eq!(w.put(name, U).slot, (3 + name as u32, u32::MAX));
    }
    assert_eq!(w.log.limit, g.end());
    let put = LogPut::new(g, key(9), 4096, U).unwrap();
    assert_eq!(put.room(&w.line()), None);
    // A producer that claims nevertheless, with values read before, waits without end and abandons.
    let claim = w.claim(9, U);
    let ClaimStep::Wait(claim) = claim.next(u64::MAX) else { panic!("no epoch to write with") };
    assert_eq!(w.log.abandon(claim.abandon()).unwrap(), AbandonReply::Noted);
    w.log.accept(0, &mut w.index).unwrap();
    w.make_room(0);
    assert_eq!(w.log.limit, g.end());
    assert_eq!(w.get(1), Some(payload(1, U)));
}
