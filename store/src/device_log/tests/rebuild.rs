//! The owner's actor restarts: what the headers tell it, and what they cannot.

use super::*;
use crate::layout::{OWNER_OFF, flag, word};

fn restart(w: &mut World, now_ns: u64) {
    w.index = Index::default();
    w.log = DeviceLog::rebuild(
        w.memory.clone(),
        w.layout,
        (RULES, w.moves.clone()),
        now_ns,
        &mut w.index,
    )
    .unwrap();
    assert!(w.log.next_due_ns().is_none_or(|due| due == now_ns + Q));
    w.log.restart_quarantines(now_ns);
}

#[test]
fn what_was_live_is_live_and_what_was_retired_is_held_for_a_whole_quarantine() {
    let mut w = world(8);
    w.fill(1, 8);
    assert_eq!(w.log.retire_ahead(0, &mut w.index).unwrap(), 2);
    w.log.retire(4, 1, 0, &mut w.index).unwrap();
    restart(&mut w, 5 * Q);
    let live: Vec<u32> = w.log.live().map(|object| object.slot).collect();
    assert_eq!(live, [2, 3, 5, 6, 7]);
    assert_eq!(w.log.counts().found_retired, Sum { claims: 3, bytes: 3 * U });
    assert_eq!(w.get(3), Some(payload(3, U)));
    w.log.accept(5 * Q, &mut w.index).unwrap();
    w.log.retire_ahead(5 * Q, &mut w.index).unwrap();
    assert_eq!(w.log.advance(6 * Q - 1, |_, _| true).unwrap(), 0);
    assert_eq!(w.log.advance(6 * Q, |_, _| true).unwrap(), 2 * U);
    w.check_counts();
}

#[test]
fn i15_what_was_served_before_the_restart_comes_before_what_was_published_meanwhile() {
    let mut w = world(16);
    let early = w.place(1, U);
    w.put(1, 2 * U);
    w.log.accept(0, &mut w.index).unwrap();
    w.publish(&early, 1, U);
    restart(&mut w, 0);
    w.log.accept(0, &mut w.index).unwrap();
    assert_eq!(w.get(1), Some(payload(1, 2 * U)));
    assert_eq!(w.log.counts().duplicates, Sum { claims: 1, bytes: U });
    // Once refused it stays refused, even if the accepted one is gone at the next restart.
    w.log.retire(1, 1, 0, &mut w.index).unwrap();
    restart(&mut w, 0);
    w.log.accept(0, &mut w.index).unwrap();
    assert_eq!(w.log.usage().live, Sum::default());
    let loser = w.memory.load(w.layout.header_off(0) + OWNER_OFF).unwrap();
    assert_eq!(loser, word(0, 1));
}

#[test]
fn i14_what_only_the_table_knew_is_a_hole_again_and_void_only_after_everybody_was_asked() {
    let mut w = world(8);
    w.fill(1, 2);
    let claim = w.claim(3, U);
    w.put(4, U);
    w.log.abandon(claim.abandon()).unwrap();
    w.log.accept(0, &mut w.index).unwrap();
    assert_eq!(w.log.unsettled_bytes().unwrap(), 0);
    restart(&mut w, 0);
    w.log.accept(0, &mut w.index).unwrap();
    assert_eq!(w.log.unsettled_bytes().unwrap(), U);
    w.check_counts();
    let check = w.log.hole(TTL + 1).unwrap().unwrap();
    let report = check.ask::<u32>([]).all_clear().unwrap();
    assert_eq!(w.log.close_holes(report, 0, &mut w.index).unwrap().bytes, U);
    assert_eq!(w.log.usage().live.claims, 3);
}

#[test]
fn i15_a_live_word_that_no_owner_wrote_serves_nobody_twice() {
    let mut w = world(8);
    w.fill(1, 1);
    let write = w.place(1, U);
    // A process that maps the segment sets LIVE itself: the owner still decides.
    w.memory.store(w.layout.header_off(1) + OWNER_OFF, word(flag::LIVE, 1)).unwrap();
    w.publish(&write, 1, U);
    w.log.accept(0, &mut w.index).unwrap();
    assert_eq!(w.memory.load(w.layout.header_off(1) + OWNER_OFF).unwrap(), word(0, 1));
    assert_eq!(w.log.usage().live.claims, 1);
}

#[test]
fn a_limit_that_no_owner_wrote_is_refused() {
    let mut w = world(8);
    for limit in [0, 7 * U, 8 * U + 1, w.layout.end() + U] {
        w.memory.store(HEAP_LIMIT_OFF, limit).unwrap();
        let log = DeviceLog::rebuild(
            w.memory.clone(),
            w.layout,
            (RULES, Arc::default()),
            0,
            &mut w.index,
        );
        assert!(matches!(log, Err(StoreError::BadSegment(_))), "{limit}");
    }
    w.memory.store(BUMP_PTR_OFF, U).unwrap();
    let log = DeviceLog::fresh(w.memory.clone(), w.layout, RULES, Arc::default());
    assert!(matches!(log, Err(StoreError::BadSegment(_))));
}

#[test]
fn a_log_that_was_restarted_at_every_step_ends_like_any_other() {
    let mut w = world(12);
    for turn in 0..60 {
        let put = LogPut::new(w.layout, key(turn), 4096, U * (1 + turn % 3)).unwrap();
        if put.room(&w.line()).is_some() {
            match w.claim(turn, U * (1 + turn % 3)).next(w.line().heap_limit()) {
                ClaimStep::Write(write) => w.publish(&write, turn, U * (1 + turn % 3)),
                ClaimStep::Skip(skip) => w.run(&mut skip.ops()),
                ClaimStep::Wait(_) => panic!("alone, and there was room"),
            }
        }
        restart(&mut w, turn * Q);
        w.log.accept(turn * Q, &mut w.index).unwrap();
        w.make_room(turn * Q);
        w.check_counts();
    }
    assert!(w.log.tail > 24 * U);
    let live: Vec<LogObject> = w.log.live().collect();
    assert!(!live.is_empty() && live.iter().all(|object| w.read(object).is_some()));
}
