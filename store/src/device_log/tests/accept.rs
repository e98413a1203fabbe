//! What the owner accepts of what producers wrote, and what a scan costs.

use super::*;
use crate::layout::{OWNER_OFF, PUBLISH_OFF, flag, word};
use crate::object::{ObjectDesc, producer_fields, ready};
use crate::testkit::MemoryDouble;
use std::sync::atomic::{AtomicU64, Ordering};

/// A header with arbitrary content, published at a position.
fn forge(w: &World, p: u64, payload_base: u64, bytes_total: u64) {
    let at = w.layout.header_off(w.layout.slot(p));
    let fields = producer_fields(key(99), &ObjectDesc::at(payload_base, bytes_total, 4096));
    w.memory.write(at, &fields).unwrap();
    w.memory.store(at + PUBLISH_OFF, ready(w.layout.epoch(p).unwrap())).unwrap();
}

#[test]
fn claims_are_accepted_in_any_order_and_each_once() {
    let mut w = world(16);
    let places: Vec<ClaimWrite> = (1..=4).map(|name| w.place(name, name * U)).collect();
    assert_eq!(w.log.accept(0, &mut w.index).unwrap(), 0);
    for (name, left) in [(3, 7), (1, 6), (4, 2), (2, 0)] {
        w.publish(&places[name as usize - 1], name, name * U);
        assert_eq!(w.log.accept(0, &mut w.index).unwrap(), 1);
        assert_eq!(w.log.accept(0, &mut w.index).unwrap(), 0);
        assert_eq!(w.log.unsettled_bytes().unwrap(), left * U);
        w.check_counts();
    }
    for name in 1..=4 {
        assert_eq!(w.get(name), Some(payload(name, name * U)));
    }
    assert_eq!(w.log.usage().live, Sum { claims: 4, bytes: 10 * U });
    assert_eq!(w.log.live().map(|o| o.slot).collect::<Vec<_>>(), [0, 1, 3, 6]);
}

#[test]
fn i15_no_owner_word_is_live_before_ready_and_all_are_after_accept() {
    let mut w = world(8);
    let write = w.place(1, U);
    let owner = || w.memory.load(w.layout.header_off(0) + OWNER_OFF).unwrap();
    let object = write.publication();
    w.run(&mut object.announce());
    w.log.accept(0, &mut w.index).unwrap();
    assert_eq!(owner(), 0);
    w.run(&mut [object.page(0, &payload(1, U))]);
    w.run(&mut object.publish());
    assert_eq!(owner(), 0);
    w.log.accept(0, &mut w.index).unwrap();
    assert_eq!(owner(), word(flag::LIVE, 1));
}

#[test]
fn i15_of_two_objects_of_one_key_only_the_first_accepted_becomes_live() {
    let mut w = world(16);
    let (first, second) = (w.place(1, U), w.place(1, 2 * U));
    w.publish(&second, 1, 2 * U);
    w.log.accept(0, &mut w.index).unwrap();
    w.publish(&first, 1, U);
    w.log.accept(0, &mut w.index).unwrap();
    assert_eq!(w.get(1), Some(payload(1, 2 * U)));
    let loser = w.memory.load(w.layout.header_off(0) + OWNER_OFF).unwrap();
    assert_eq!(loser, word(0, 1));
    assert_eq!(w.log.counts().duplicates, Sum { claims: 1, bytes: U });
    // Once the accepted one is gone the key may be put again.
    assert_eq!(w.log.retire(1, 1, 0, &mut w.index).unwrap(), Retire::Done);
    w.put(1, 3 * U);
    w.log.accept(0, &mut w.index).unwrap();
    assert_eq!(w.get(1), Some(payload(1, 3 * U)));
    w.check_counts();
}

#[test]
fn i13_a_header_that_lies_is_a_hole_and_never_two_claims_of_one_unit() {
    for (base_units, bytes, why) in [
        (1, U, "another place"),
        (0, 3 * U, "more than a quarter"),
        (0, 2 * U, "reaches into a known claim"),
        (0, u64::MAX, "no number at all"),
    ] {
        let mut w = world(8);
        let liar = w.claim(99, U);
        w.put(1, 2 * U);
        w.log.accept(0, &mut w.index).unwrap();
        forge(&w, liar.position, LOG_BASE + base_units * U, bytes);
        assert_eq!(w.log.accept(0, &mut w.index).unwrap(), 0, "{why}");
        assert_eq!(w.log.unsettled_bytes().unwrap(), U, "{why}");
        assert_eq!(w.get(1), Some(payload(1, 2 * U)));
        w.check_counts();
    }
}

#[test]
fn i13_nothing_beyond_what_is_claimed_or_across_the_end_is_accepted() {
    let mut w = world(8);
    let claim = w.claim(99, U);
    forge(&w, claim.position, LOG_BASE, 2 * U);
    forge(&w, U, LOG_BASE + U, U);
    assert_eq!(w.log.accept(0, &mut w.index).unwrap(), 0);
    // Across the end of the log only DEAD is a claim.
    let mut w = world(8);
    w.fill(1, 7);
    w.make_room(0);
    let claim = w.claim(99, 2 * U);
    forge(&w, claim.position, LOG_BASE + 7 * U, 2 * U);
    assert_eq!(w.log.accept(0, &mut w.index).unwrap(), 0);
    w.check_counts();
}

#[test]
fn a_claim_being_written_is_stepped_over_and_its_lie_about_its_size_costs_nobody_else() {
    let mut w = world(16);
    let (slow, next) = (w.place(1, U), w.place(2, U));
    w.run(&mut slow.publication().announce());
    // It states four units, and hides the next claim as long as it is WRITING.
    w.memory.write(w.layout.header_off(0) + 24, &(4 * U).to_ne_bytes()).unwrap();
    w.publish(&next, 2, U);
    w.put(3, U);
    w.put(4, U);
    assert_eq!(w.log.accept(0, &mut w.index).unwrap(), 0);
    let check = w.log.hole(TTL + 1).unwrap().unwrap();
    let report = check.ask::<u32>([]).all_clear().unwrap();
    let voided = w.log.close_holes(report, 0, &mut w.index).unwrap();
    assert_eq!(voided, Sum { claims: 1, bytes: U });
    assert_eq!(w.log.usage().live.claims, 3);
    w.check_counts();
}

#[test]
fn a_claim_that_waited_across_the_limit_is_accepted_whole() {
    let mut w = world(12);
    w.fill(1, 11);
    let claim = w.claim(12, 2 * U);
    // The owner scans its first unit as a gap that ends at the limit.
    w.log.accept(0, &mut w.index).unwrap();
    assert_eq!(w.log.unsettled_bytes().unwrap(), 2 * U);
    w.make_room(0);
    let ClaimStep::Skip(skip) = claim.next(w.line().heap_limit()) else { panic!("across the end") };
    w.run(&mut skip.ops());
    assert_eq!(w.log.accept(0, &mut w.index).unwrap(), 1);
    assert_eq!(w.log.unsettled_bytes().unwrap(), 0);
    w.check_counts();
}

#[test]
fn i13_an_abandoned_claim_is_settled_wherever_it_lies() {
    let mut w = world(8);
    w.fill(1, 7);
    // One across the limit, two above it; the second of these is abandoned first.
    let claims: Vec<Claim> = [2 * U, U, U].map(|bytes| w.claim(9, bytes)).into();
    w.log.accept(0, &mut w.index).unwrap();
    let [a, b, c] = claims.try_into().unwrap();
    let [a, b, c] = [a.abandon(), b.abandon(), c.abandon()];
    for claim in [c, a, b] {
        assert_eq!(w.log.abandon(claim).unwrap(), AbandonReply::Noted, "{claim:?}");
        assert_eq!(w.log.abandon(claim).unwrap(), AbandonReply::Already, "{claim:?}");
        w.check_counts();
    }
    assert_eq!(w.log.counts().abandoned, Sum { claims: 3, bytes: 4 * U });
    assert_eq!(w.log.unsettled_bytes().unwrap(), 0);
    while w.make_room(0) > 0 {
        w.log.accept(0, &mut w.index).unwrap();
        w.check_counts();
    }
    // There is room for a quarter again; with the next two objects the abandoned units return, too.
    w.fill(20, 2);
    assert_eq!(w.make_room(0), 6 * U);
    assert_eq!((w.log.tail, w.get(21)), (11 * U, Some(payload(21, U))));
    assert_eq!(w.log.abandon(Abandon { p: 0, n: U }).unwrap(), AbandonReply::Already);
}

#[test]
fn i13_only_a_whole_claim_that_nobody_settled_is_abandoned() {
    let mut w = world(16);
    w.fill(1, 2);
    let open = w.claim(3, 2 * U);
    w.put(4, U);
    w.log.accept(0, &mut w.index).unwrap();
    let refused = [
        (0, U),         // live
        (U / 2, U),     // no unit
        (2 * U, 0),     // nothing
        (2 * U, 3 * U), // into a known claim
        (2 * U, 5 * U), // more than a quarter
        (5 * U, U),     // not claimed
        (u64::MAX - U + 1, U),
    ];
    for (p, n) in refused {
        assert_eq!(w.log.abandon(Abandon { p, n }).unwrap(), AbandonReply::Refused, "{p} {n}");
        w.check_counts();
    }
    assert_eq!(w.log.abandon(open.abandon()).unwrap(), AbandonReply::Noted);
    assert_eq!(w.get(1), Some(payload(1, U)));
    w.check_counts();
}

#[test]
fn i13_abandoned_claims_above_the_limit_never_share_a_unit() {
    let mut w = world(16);
    w.fill(1, 16);
    w.memory.fetch_add(BUMP_PTR_OFF, 8 * U).unwrap();
    assert_eq!(w.log.abandon(Abandon { p: 18 * U, n: 2 * U }).unwrap(), AbandonReply::Noted);
    for (p, n) in [(17, 2), (17, 4), (18, 1), (18, 3), (19, 1)] {
        let overlapping = Abandon { p: p * U, n: n * U };
        assert_eq!(w.log.abandon(overlapping).unwrap(), AbandonReply::Refused, "{p} {n}");
    }
    for (p, n) in [(16, 2), (20, 1)] {
        let beside = Abandon { p: p * U, n: n * U };
        assert_eq!(w.log.abandon(beside).unwrap(), AbandonReply::Noted, "{p} {n}");
    }
    w.check_counts();
}

#[test]
fn abandoned_claims_above_the_limit_are_bounded() {
    let mut w = world(8);
    w.fill(1, 8);
    let claims = 4200;
    w.memory.fetch_add(BUMP_PTR_OFF, claims * U).unwrap();
    let noted = (8..8 + claims)
        .map(|unit| w.log.abandon(Abandon { p: unit * U, n: U }).unwrap())
        .filter(|reply| *reply == AbandonReply::Noted);
    assert_eq!(noted.count(), 4096);
    w.check_counts();
}

/// Memory that counts how often a word is read.
#[derive(Debug)]
struct Watched {
    plain: AnonMemory,
    loads: AtomicU64,
}

impl MemoryDouble for Watched {
    fn inner(&self) -> &dyn Memory {
        &self.plain
    }
    fn read(&self, offset: u64, dst: &mut [u8]) -> Result<(), StoreError> {
        self.loads.fetch_add(1, Ordering::Relaxed);
        self.plain.read(offset, dst)
    }
    fn load(&self, offset: u64) -> Result<u64, StoreError> {
        self.loads.fetch_add(1, Ordering::Relaxed);
        self.plain.load(offset)
    }
}

#[test]
fn a_claim_that_hangs_costs_a_drain_one_look_and_not_a_walk_over_all_behind_it() {
    // 32 headers fit below the payloads of the test logs.
    let plain = AnonMemory::new(LOG_BASE + 32 * U).unwrap();
    let memory = Arc::new(Watched { plain, loads: AtomicU64::new(0) });
    let mut w = world_of(memory.clone(), 32, RULES);
    let (hangs, writes) = (w.claim(1, 2 * U), w.place(2, 8 * U));
    w.run(&mut writes.publication().announce());
    for name in 3..20 {
        w.put(name, U);
    }
    assert_eq!(w.log.accept(0, &mut w.index).unwrap(), 17);
    memory.loads.store(0, Ordering::Relaxed);
    assert_eq!(w.log.accept(0, &mut w.index).unwrap(), 0);
    // The bump, one word for each unit of a claim without a header, word and header of one with.
    assert_eq!(memory.loads.load(Ordering::Relaxed), 1 + 2 + 2);
    drop(hangs);
}
