//! The hole rule: what becomes void, when, and what does not.

use super::*;

/// A log of 16 units whose third claim nobody settles.
fn with_a_hole() -> (World, Claim) {
    let mut w = world(16);
    w.fill(1, 2);
    let hole = w.claim(3, 2 * U);
    w.put(4, U);
    assert_eq!(w.log.accept(10, &mut w.index).unwrap(), 1);
    (w, hole)
}

#[test]
fn a_hole_is_asked_about_once_it_is_old_and_only_once_at_a_time() {
    let (mut w, _hole) = with_a_hole();
    assert!(w.log.hole(10 + TTL).unwrap().is_none());
    let check = w.log.hole(11 + TTL).unwrap().unwrap();
    assert_eq!(check.below(), 5 * U);
    assert!(w.log.hole(100 * TTL).unwrap().is_none());
    w.log.check = None;
    assert!(w.log.hole(100 * TTL).unwrap().is_some());
    assert_eq!(w.log.counts().hole_checks, 2);
}

#[test]
fn a_hole_is_as_old_as_its_first_unit_not_as_the_traffic_behind_it() {
    let mut w = world(16);
    let mut open = w.place(0, U);
    // There is always a claim open, but never the same one for long.
    for turn in 1..40 {
        let next = w.place(turn, U);
        w.publish(&open, turn - 1, U);
        w.log.accept(turn * TTL / 2, &mut w.index).unwrap();
        assert!(w.log.hole(turn * TTL / 2).unwrap().is_none(), "turn {turn}");
        w.make_room(turn * TTL / 2);
        open = next;
    }
}

#[test]
fn i14_nothing_is_void_before_everybody_answered_or_is_fenced() {
    let (mut w, _hole) = with_a_hole();
    let check = w.log.hole(20 + TTL).unwrap().unwrap();
    let mut asking = check.ask(["a", "b", "c"]);
    asking.clear(&"a");
    asking.fenced(&"c");
    asking.fenced(&"nobody asked");
    let mut asking = asking.all_clear().unwrap_err();
    assert_eq!(asking.outstanding(), ["b"]);
    w.log.accept(20 + TTL, &mut w.index).unwrap();
    assert_eq!(w.log.counts().voided, Sum::default());
    asking.clear(&"b");
    let report = asking.all_clear().unwrap();
    assert_eq!(report.fenced, 1);
    let voided = w.log.close_holes(report, 20 + TTL, &mut w.index).unwrap();
    assert_eq!(voided, Sum { claims: 1, bytes: 2 * U });
    assert_eq!(w.log.unsettled_bytes().unwrap(), 0);
    w.check_counts();
}

#[test]
fn i14_what_was_settled_while_everybody_was_asked_is_accepted_and_not_void() {
    let (mut w, hole) = with_a_hole();
    let check = w.log.hole(20 + TTL).unwrap().unwrap();
    let ClaimStep::Write(write) = hole.next(w.line().heap_limit()) else { panic!("room") };
    w.publish(&write, 3, 2 * U);
    let report = check.ask::<u32>([]).all_clear().unwrap();
    assert_eq!(w.log.close_holes(report, 0, &mut w.index).unwrap(), Sum::default());
    assert_eq!(w.get(3), Some(payload(3, 2 * U)));
}

#[test]
fn i14_a_claim_made_after_the_question_is_not_void() {
    let (mut w, _hole) = with_a_hole();
    let check = w.log.hole(20 + TTL).unwrap().unwrap();
    let later = w.place(5, U);
    let report = check.ask::<u32>([]).all_clear().unwrap();
    w.log.close_holes(report, 0, &mut w.index).unwrap();
    assert_eq!(w.log.unsettled_bytes().unwrap(), U);
    w.publish(&later, 5, U);
    assert_eq!(w.log.accept(0, &mut w.index).unwrap(), 1);
    assert_eq!(w.get(5), Some(payload(5, U)));
}

#[test]
fn i14_a_report_of_another_check_or_segment_voids_nothing() {
    let (mut w, _hole) = with_a_hole();
    let (mut other, _) = with_a_hole();
    let stale = w.log.hole(20 + TTL).unwrap().unwrap().ask::<u32>([]).all_clear().unwrap();
    w.log.check = None;
    let current = w.log.hole(20 + TTL).unwrap().unwrap();
    let _theirs = other.log.hole(20 + TTL).unwrap().unwrap();
    assert_eq!(w.log.close_holes(stale, 0, &mut w.index).unwrap(), Sum::default());
    let report = current.ask::<u32>([]).all_clear().unwrap();
    assert_eq!(other.log.close_holes(report, 0, &mut other.index).unwrap(), Sum::default());
    assert_eq!(other.log.unsettled_bytes().unwrap(), 2 * U);
}

#[test]
fn what_died_in_line_is_void_as_the_limit_comes_to_it_without_another_question() {
    let mut w = world(8);
    let hole = w.claim(1, U);
    w.fill(2, 6);
    // One across the limit and one above: their producer dies together with the hole's.
    let waiting = [w.claim(8, 2 * U), w.claim(9, 2 * U)];
    w.log.accept(0, &mut w.index).unwrap();
    assert_eq!(w.make_room(0), 0, "the tail cannot pass the hole");
    let report = w.log.hole(TTL + 1).unwrap().unwrap().ask::<u32>([]).all_clear().unwrap();
    w.log.close_holes(report, 0, &mut w.index).unwrap();
    drop((hole, waiting));
    for _ in 0..8 {
        w.make_room(0);
        w.log.accept(0, &mut w.index).unwrap();
        w.check_counts();
    }
    assert_eq!(w.log.counts().voided.bytes, 5 * U);
    assert_eq!(w.log.unsettled_bytes().unwrap(), 0);
    assert_eq!(w.log.counts().hole_checks, 1);
    w.fill(20, 2);
    assert_eq!(w.get(21), Some(payload(21, U)));
}
