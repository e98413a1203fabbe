//! What was read stays: handed to the thread that copies, awaited for a while, counted when lost.

use super::*;
use crate::object::{Publication, SetMark};

/// A log of 32 units, a quarter of it kept free, in which `room` units have to be retired.
fn full(room: u64) -> (World, Copier) {
    let mut w = world(32);
    w.fill(1, 24 + room);
    let copier = Copier::new(w.memory.clone(), w.layout, w.moves.clone(), 100).unwrap();
    (w, copier)
}

fn slot_of(w: &World, name: u64) -> (u32, u32) {
    let object = &w.index.objects[&key(name)];
    (object.slot, object.epoch)
}

fn read(w: &mut World, name: u64) {
    let (slot, epoch) = slot_of(w, name);
    assert!(w.log.touch(slot, epoch));
}

fn copy_all(copier: &mut Copier) {
    while copier.step().unwrap() == Step::Moved {}
}

#[test]
fn what_is_read_after_the_survey_is_copied_all_the_same() {
    let (mut w, mut copier) = full(2);
    assert_eq!(w.log.survivors().unwrap(), []);
    read(&mut w, 1);
    assert_eq!(w.log.retire_ahead(10, &mut w.index).unwrap(), 0);
    assert!(w.log.awaits_copy());
    copy_all(&mut copier);
    assert_eq!(w.log.accept(20, &mut w.index).unwrap(), 1);
    // The second one, and the third for the copy's own unit.
    assert_eq!(w.log.retire_ahead(20, &mut w.index).unwrap(), 2);
    assert!(!w.log.awaits_copy());
    assert_eq!(w.get(1), Some(payload(1, U)));
    assert_eq!((w.get(2), w.get(3)), (None, None));
    assert_eq!(w.log.counts().lost_reads, Sum::default());
    w.check_counts();
}

#[test]
fn what_is_not_worth_a_copy_any_more_goes_unless_it_is_read_again() {
    let (mut w, mut copier) = full(2);
    assert_eq!(w.log.survivors().unwrap(), []);
    for name in [1, 2] {
        read(&mut w, name);
        let (slot, epoch) = slot_of(&w, name);
        w.log.forget_reads(slot, epoch);
        w.log.forget_reads(slot, epoch + 1);
    }
    read(&mut w, 2);
    assert_eq!(w.log.retire_ahead(10, &mut w.index).unwrap(), 1);
    copy_all(&mut copier);
    assert_eq!(w.log.accept(20, &mut w.index).unwrap(), 1);
    assert_eq!((w.get(1), w.get(2)), (None, Some(payload(2, U))));
    assert_eq!(w.log.counts().lost_reads, Sum::default());
    w.check_counts();
}

#[test]
fn a_copy_has_the_mark_of_its_original_and_a_retired_object_none() {
    let (mut w, mut copier) = full(2);
    let mark = SetMark::new(9, 2);
    let (slot, _) = slot_of(&w, 1);
    // As its producer would have written it.
    let publication = Publication::new((0, 1), key(1), &w.index.objects[&key(1)].object);
    let marked = publication.in_set(mark);
    let Op::Write { src, .. } = marked.announce()[0] else { unreachable!() };
    w.memory.write(w.layout.header_off(slot), src).unwrap();
    assert_eq!(w.log.survivors().unwrap(), []);
    read(&mut w, 1);
    assert_eq!(w.log.retire_ahead(10, &mut w.index).unwrap(), 0);
    copy_all(&mut copier);
    assert_eq!(w.log.accept(20, &mut w.index).unwrap(), 1);
    assert_eq!(w.log.retire_ahead(20, &mut w.index).unwrap(), 2);
    let copy = w.log.live().find(|o| o.key == key(1)).unwrap();
    assert!(copy.slot != slot && copy.mark == mark, "{copy:?}");
    assert_eq!(w.get(1), Some(payload(1, U)));
    assert!(w.log.live().filter(|o| o.key != key(1)).all(|o| o.mark.is_none()));
}

#[test]
fn retiring_waits_for_copies_for_a_bounded_time_and_not_for_each_of_them() {
    let (mut w, _copier) = full(3);
    assert_eq!(w.log.survivors().unwrap(), []);
    read(&mut w, 1);
    read(&mut w, 2);
    assert_eq!(w.log.retire_ahead(10, &mut w.index).unwrap(), 0);
    let limit = 10 + 2 * Q + 5_000_000;
    assert_eq!(w.log.retire_ahead(limit - 1, &mut w.index).unwrap(), 0);
    assert_eq!(w.log.retire_ahead(limit, &mut w.index).unwrap(), 3);
    assert_eq!(w.log.counts().lost_reads, Sum { claims: 2, bytes: 2 * U });
    assert!(!w.log.awaits_copy());
}

/// Producers took all room at once, so the first room for a copy is what was retired before its
/// original, one quarantine later.
#[test]
fn a_copy_that_waits_for_a_quarantine_is_waited_for() {
    const LONG_Q: u64 = 10_000_000;
    let memory = Arc::new(AnonMemory::new(LOG_BASE + 32 * U).unwrap());
    let mut w = world_of(memory, 32, LogRules::with_a_quarter_free(LONG_Q, TTL));
    w.fill(1, 32);
    let copier = Copier::new(w.memory.clone(), w.layout, w.moves.clone(), 100);
    let mut copier = copier.unwrap();
    assert_eq!(w.log.survivors().unwrap(), []);
    read(&mut w, 4);
    assert_eq!(w.log.retire_ahead(10, &mut w.index).unwrap(), 3);
    w.log.restart_quarantines(10);
    assert_eq!(copier.step().unwrap(), Step::Waiting);
    let room_at = 10 + LONG_Q;
    assert_eq!(w.log.retire_ahead(room_at, &mut w.index).unwrap(), 0);
    assert_eq!(w.log.advance(room_at, |_, _| true).unwrap(), 3 * U);
    copy_all(&mut copier);
    assert_eq!(w.log.accept(room_at, &mut w.index).unwrap(), 1);
    assert!(w.log.retire_ahead(room_at, &mut w.index).unwrap() > 0);
    assert_eq!(w.get(4), Some(payload(4, U)));
    assert_eq!(w.log.counts().lost_reads, Sum::default());
    w.check_counts();
}

#[test]
fn a_copy_keeps_all_reads_of_its_original_but_one_and_what_is_copied_is_not_what_is_claimed() {
    for copies in [1, 8] {
        let (mut w, mut copier) = full(0);
        (1..=copies).for_each(|name| (0..3).for_each(|_| read(&mut w, name)));
        let objects = (1..=copies).map(|name| w.index.objects[&key(name)]);
        w.moves.give(objects.collect());
        copy_all(&mut copier);
        // Here the owner sees what producers claimed, and what was copied.
        w.log.survivors().unwrap();
        assert_eq!(w.log.lately(), (24 * U, copies * U));
        assert_eq!(w.log.accept(0, &mut w.index).unwrap(), copies);
        for name in 1..=copies {
            let (slot, epoch) = slot_of(&w, name);
            let x = w.layout.position(slot, epoch).unwrap();
            assert!(x >= 24 * U, "{name} was not copied");
            assert_eq!(w.log.known.reads(x), 2, "{copies} copies");
        }
    }
}

#[test]
fn an_owner_that_may_not_claim_waits_for_no_copy() {
    let memory = Arc::new(AnonMemory::new(LOG_BASE + 32 * U).unwrap());
    let mut w = world_of(memory, 32, LogRules { owner_claims: false, ..RULES });
    w.fill(1, 26);
    read(&mut w, 1);
    assert_eq!(w.log.retire_ahead(10, &mut w.index).unwrap(), 2);
}

#[test]
fn a_copy_waits_in_line_for_room() {
    let (mut w, mut copier) = full(8);
    read(&mut w, 20);
    let object = w.index.objects[&key(20)];
    w.moves.give(vec![object]);
    assert_eq!(copier.step().unwrap(), Step::Waiting);
    assert!(!w.moves.is_clear_below(u64::MAX - 1), "it has an open claim [I14]");
    assert_eq!(copier.step().unwrap(), Step::Waiting);
    assert!(w.make_room(0) > 0);
    copy_all(&mut copier);
    assert_eq!(w.log.accept(Q, &mut w.index).unwrap(), 1);
    assert_eq!(w.log.counts().copies.claims, 1);
    assert_ne!(slot_of(&w, 20), (object.slot, object.epoch));
    assert_eq!(w.get(20), Some(payload(20, U)));
    w.check_counts();
}

#[test]
fn a_copy_in_line_is_given_up_when_its_object_ends_or_after_so_many_waits() {
    let (mut w, mut copier) = full(8);
    let (first, second) = (w.index.objects[&key(30)], w.index.objects[&key(31)]);
    w.moves.give(vec![first, second]);
    assert_eq!(copier.step().unwrap(), Step::Waiting);
    w.log.retire(first.slot, first.epoch, 0, &mut w.index).unwrap();
    assert_eq!(copier.step().unwrap(), Step::Moved);
    assert!(w.moves.is_clear_below(u64::MAX - 1));
    let waits = (0..).take_while(|_| copier.step().unwrap() == Step::Waiting).count();
    assert_eq!(waits, 250);
    assert!(w.moves.is_clear_below(u64::MAX - 1));
    assert_eq!(copier.step().unwrap(), Step::Idle);
    assert_eq!(w.log.accept(0, &mut w.index).unwrap(), 0);
    assert_eq!(w.log.counts().abandoned, Sum { claims: 2, bytes: 2 * U });
    w.check_counts();
}
