//! What may be claimed and written, each change by itself.

use super::*;

#[test]
fn i1_only_whole_claims_are_added_and_only_to_the_bump() {
    let w = world(16);
    for (offset, add) in [
        (BUMP_PTR_OFF, 0),
        (BUMP_PTR_OFF, U - 1),
        (BUMP_PTR_OFF, U + 64),
        (BUMP_PTR_OFF, 5 * U),
        (BUMP_PTR_OFF, u64::MAX - U + 1),
        (HEAP_LIMIT_OFF, U),
        (0, U),
        (HEADER_BASE + PUBLISH_OFF, U),
        (LOG_BASE, U),
    ] {
        w.refused(Op::FetchAdd { offset, add, old: 0 });
    }
    assert_eq!((w.add(U), w.add(4 * U), w.add(2 * U)), (Ok(0), Ok(U), Ok(5 * U)));
    assert_eq!(w.rights.open(), (3, 0));
}

#[test]
fn i14_more_claims_than_the_table_holds_are_refused_until_one_is_over() {
    let w = world(4096);
    for _ in 0..MAX_OPEN_CLAIMS - 1 {
        w.add(U).unwrap();
    }
    let write = w.start_write(1, U);
    assert!(w.add(U).unwrap_err().contains("64 claims"));
    w.post(&mut write.publication().whole(&[1; U as usize])).unwrap();
    // A request that claims twice is refused as a whole and keeps no entry.
    let two = || Op::FetchAdd { offset: BUMP_PTR_OFF, add: U, old: 0 };
    assert!(w.post(&mut [two(), two()]).is_err());
    assert_eq!(w.memory.load(BUMP_PTR_OFF).unwrap(), 64 * U);
    assert_eq!(w.rights.open(), (63, 0));
    w.add(U).unwrap();
}

#[test]
fn i13_a_claims_bytes_and_its_header_are_all_that_its_producer_may_write() {
    let mut w = world(16);
    w.put(0, U);
    let (before, mine) = (w.start_write(1, U), w.start_write(2, 2 * U));
    let _after = w.start_write(3, U);
    let others = LogRights::new(w.layout, w.memory.clone());
    let (at, x) = (w.header(&mine), mine.object.payload_off());
    let (_, cut) = line();
    for ok in [
        Intent::Write { offset: x, len: 2 * U },
        Intent::Write { offset: x + 2 * U - 1, len: 1 },
        Intent::Write { offset: at, len: 40 },
        Intent::Store { offset: at + PUBLISH_OFF, value: writing(1) },
    ] {
        w.rights.check(&ok, &cut).unwrap();
        assert!(others.check(&ok, &cut).is_err(), "{ok:?} by another producer");
    }
    w.rights.leave(&cut);
    w.post(&mut mine.publication().announce()).unwrap();
    for (offset, len) in [
        (x - 1, 2),
        (x + 2 * U - 1, 2),
        // Two adjacent claims of one producer are still two.
        (before.object.payload_off(), 3 * U),
        (x + 3 * U, 1),
        (LOG_BASE - 1, 1),
        (LOG_BASE + 16 * U, 1),
        (0, 64),
        (at + 8, 8),
        (at + KEY_CHECK_OFF, 8),
        (at, 64),
        (at, 32),
        (at, 41),
        (at + PUBLISH_OFF, 8),
        (at + 48, 8),
        (at + 56, 8),
        (at + 48, 16),
        (u64::MAX - 7, 8),
    ] {
        w.refused(Op::Write { offset, src: &vec![1; len as usize] });
    }
    for (offset, value) in [
        (at, 1),
        (at + KEY_CHECK_OFF, 7),
        (at + 48, 1),
        (at + 56, word(1, 1)),
        (x, 1),
        (HEAP_LIMIT_OFF, 1),
        (BUMP_PTR_OFF, 1),
        // A header of no claim, and one of a claim that is over.
        (w.layout.header_off(9) + PUBLISH_OFF, writing(1)),
        (w.layout.header_off(0) + PUBLISH_OFF, writing(1)),
    ] {
        w.refused(Op::Store { offset, value });
    }
    assert_eq!(w.rights.open(), (3, 0));
}

#[test]
fn i3_the_publish_word_of_a_claim_takes_only_its_epoch_and_a_producers_steps() {
    use state::{DEAD, READY, RESERVED, WRITING};
    let mut w = world(8);
    (0..8).for_each(|name| w.put(name, U));
    w.make_room();
    // Slot 0 again, at epoch 2.
    let mine = w.start_write(9, U);
    assert_eq!(mine.slot, (0, 2));
    let at = w.header(&mine) + PUBLISH_OFF;
    w.post(&mut mine.publication().announce()).unwrap();
    let (_, cut) = line();
    for (low, epoch, ok) in [
        (WRITING, 2, true),
        (DEAD, 2, true),
        (READY, 2, false),
        (RESERVED, 2, false),
        (WRITING, 1, false),
        (WRITING, 3, false),
        (DEAD, 1, false),
        (DEAD, 3, false),
    ] {
        let store = Intent::Store { offset: at, value: word(low, epoch) };
        assert_eq!(w.rights.check(&store, &cut).is_ok(), ok, "store {low} {epoch}");
        w.rights.leave(&cut);
    }
    for from in [RESERVED, WRITING, READY, DEAD] {
        for to in [RESERVED, WRITING, READY, DEAD] {
            for (e1, e2) in [(2, 2), (2, 3), (1, 2), (1, 1), (3, 3)] {
                let (expect, new) = (word(from, e1), word(to, e2));
                let swap = Intent::CompareSwap { offset: at, expect, new };
                let ok = (from, to, e1, e2) == (WRITING, READY, 2, 2);
                assert_eq!(w.rights.check(&swap, &cut).is_ok(), ok, "{swap:?}");
                w.rights.leave(&cut);
            }
        }
    }
}

#[test]
fn i13_nothing_is_written_above_the_limit_as_it_is_now() {
    let mut w = world(8);
    (0..7).for_each(|name| w.put(name, U));
    // One that reaches across the limit, and one above it.
    let (across, above) = (w.add(2 * U).unwrap(), w.add(U).unwrap());
    assert_eq!((across, above), (7 * U, 9 * U));
    let g = w.layout;
    let fields = |p, n| producer_fields(KEYS.id(b"k"), &ObjectDesc::at(g.payload_off(p), n, 1));
    let (a, b) = (fields(across, 2 * U), fields(above, U));
    let slot = |p| g.header_off(g.slot(p));
    for (offset, src) in [
        (slot(across), &a[..]),
        (slot(above), &b[..]),
        (LOG_BASE + 7 * U, &[1; 8]),
        (g.payload_off(above), &[1; 8]),
    ] {
        assert!(w.refused(Op::Write { offset, src }).contains("limit of 1024"));
    }
    w.refused(Op::Store { offset: slot(above) + PUBLISH_OFF, value: dead(2) });
    assert_eq!(w.rights.open(), (2, 0));
    w.make_room();
    // The limit has moved: the same is permitted.
    w.post(&mut [Op::Write { offset: slot(across), src: &a }]).unwrap();
    w.post(&mut [Op::Write { offset: slot(above), src: &b }]).unwrap();
    w.post(&mut [Op::Write { offset: g.payload_off(above), src: &[1; 128] }]).unwrap();
}

#[test]
fn i13_a_claim_across_the_end_takes_its_fields_and_dead_and_nothing_else() {
    let mut w = world(8);
    (0..7).for_each(|name| w.put(name, U));
    w.make_room();
    let ClaimStep::Skip(skip) = w.claim(9, 2 * U) else { panic!("it does not wrap") };
    let at = w.layout.header_off(7);
    let fields =
        producer_fields(KEYS.id(b"k"), &ObjectDesc::at(w.layout.payload_off(7 * U), 2 * U, 1));
    w.post(&mut [Op::Write { offset: at, src: &fields }]).unwrap();
    for offset in [LOG_BASE + 7 * U, LOG_BASE] {
        w.refused(Op::Write { offset, src: &[1; 8] });
    }
    w.refused(Op::Store { offset: at + KEY_CHECK_OFF, value: 1 });
    w.refused(Op::Store { offset: at + PUBLISH_OFF, value: writing(1) });
    let (expect, new) = (writing(1), ready(1));
    w.refused(Op::CompareSwap { offset: at + PUBLISH_OFF, expect, new, old: 0 });
    w.post(&mut skip.ops()).unwrap();
    assert_eq!(w.rights.open(), (0, 0));
    assert_eq!(w.accept().skipped.bytes, 2 * U);
}

#[test]
fn i13_a_header_that_says_more_or_less_than_was_claimed_is_not_written() {
    let mut w = world(16);
    let mine = w.start_write(1, 2 * U);
    let (at, x) = (w.header(&mine), mine.object.payload_off());
    let next = w.start_write(2, U);
    // No word is stored that makes the owner read a header which this claim did not write.
    w.refused(Op::Store { offset: at + PUBLISH_OFF, value: writing(1) });
    w.refused(Op::Store { offset: at + PUBLISH_OFF, value: dead(1) });
    let (expect, new) = (writing(1), ready(1));
    w.refused(Op::CompareSwap { offset: at + PUBLISH_OFF, expect, new, old: 0 });
    for (base, total) in [(x, 2 * U + 1), (x, U), (x, 4 * U), (x, 0), (x + U, U + 1), (0, 2 * U)] {
        let lie = producer_fields(KEYS.id(b"k"), &ObjectDesc::at(base, total, 1));
        let before = w.bytes();
        let ops = &mut [
            Op::Write { offset: at, src: &lie },
            Op::Store { offset: at + PUBLISH_OFF, value: dead(1) },
        ];
        assert!(w.post(ops).unwrap_err().contains("a header that states"));
        assert!(before == w.bytes());
    }
    let true_one = producer_fields(KEYS.id(b"k"), &ObjectDesc::at(x, U + 1, 1));
    w.post(&mut [Op::Write { offset: at, src: &true_one }]).unwrap();
    w.post(&mut [Op::Store { offset: at + PUBLISH_OFF, value: dead(1) }]).unwrap();
    w.post(&mut next.publication().whole(&[2; U as usize])).unwrap();
    let counts = w.accept();
    assert_eq!((counts.skipped.bytes, counts.accepted.bytes), (2 * U, U));
}
