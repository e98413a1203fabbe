//! The owner asks a process for its open claims while that process puts. The answer decides what
//! becomes void, and nothing that is still to be written may [I14].

use crate::log::{Modeled, Owner, Segment, U, log, payload, table};
use crate::segment::{Tally, check};
use nkv_store::device_log::{ClaimStep, OpenClaims};

/// A put of `bytes` bytes in the required order: entered before its fetch-and-add, left when it
/// landed. Starts again after a skip.
fn put(segment: &Segment, claims: &OpenClaims<Modeled>, name: u64, bytes: u64) -> u32 {
    let put = segment.put_of(name, bytes);
    let open = claims.enter_from(0, put.room(&segment.line()).unwrap()).unwrap();
    loop {
        let p = segment.fetch_add(&put);
        open.note(p);
        match put.claimed(p).next(segment.line().heap_limit()) {
            ClaimStep::Write(write) => {
                segment.write(&write, name, bytes);
                open.leave();
                return write.slot.0;
            }
            ClaimStep::Skip(skip) => {
                segment.run(&mut skip.ops());
                open.note(put.room(&segment.line()).unwrap());
            }
            ClaimStep::Wait(_) => panic!("there is room, and it is alone"),
        }
    }
}

/// One run of the hole rule, which begins as soon as there is a hole. Returns whether the only
/// process had nothing open.
fn ask(owner: &mut Owner, claims: &OpenClaims<Modeled>) -> Option<bool> {
    owner.log.accept(0, &mut owner.index).unwrap();
    let check = owner.log.hole(1).unwrap()?;
    let mut asking = check.ask(["producer"]);
    if claims.clear_below(asking.below()) {
        asking.clear(&"producer");
    }
    match asking.all_clear() {
        Err(_) => Some(false),
        Ok(report) => {
            let voided = owner.log.close_holes(report, 1, &mut owner.index).unwrap();
            assert_eq!(voided.bytes, 0, "[I14] void, and its producer had not given it up");
            Some(true)
        }
    }
}

#[test]
fn i14_an_answer_is_right_with_a_fetch_and_add_in_flight() {
    let tally = Tally::default();
    let met = tally.clone();
    check(8, move |first| {
        let mut owner = log(4, &[0]);
        let segment = owner.segment.clone();
        let claims = table(1);
        let theirs = claims.clone();
        let asks = move || {
            let answer = ask(&mut owner, &claims);
            (owner, answer)
        };
        let (slot, (mut owner, answer)) = first.race(move || put(&segment, &theirs, 1, U), asks);
        if let Some(clear) = answer {
            met.count(clear);
        }
        owner.log.accept(1, &mut owner.index).unwrap();
        assert_eq!(owner.segment.read(slot, 1, 1), Some(payload(1, U)));
        assert_eq!(owner.log.counts().accepted.claims, 1);
    });
    tally.met_both();
}

#[test]
fn i14_a_put_that_skips_and_claims_again_has_always_its_own_claim_open() {
    let tally = Tally::default();
    let met = tally.clone();
    check(6, move |first| {
        let mut owner = log(8, &[7, 1]);
        // Seven units are claimed, and enough freed that two claims of two units have room; the
        // first one crosses the end of the log.
        owner.fill(10..17);
        for slot in 0..4 {
            owner.log.retire(slot, 1, 0, &mut owner.index).unwrap();
        }
        assert_eq!(owner.make_room(|_, _| true), 4 * U);
        let segment = owner.segment.clone();
        let claims = table(1);
        let theirs = claims.clone();
        let asks = move || {
            let answer = ask(&mut owner, &claims);
            (owner, answer)
        };
        let (slot, (mut owner, answer)) =
            first.race(move || put(&segment, &theirs, 1, 2 * U), asks);
        if let Some(clear) = answer {
            met.count(clear);
        }
        owner.log.accept(1, &mut owner.index).unwrap();
        assert_eq!((slot, owner.log.counts().skipped.claims), (1, 1));
        assert_eq!(owner.log.counts().voided.bytes, 0);
    });
    tally.met_both();
}
