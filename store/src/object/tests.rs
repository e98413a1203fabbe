//! The life of an object, one statement each. `reading` tests a reader's conditions, `rebuild` what
//! a scan finds, `order` single stores, `model` random lives, `readers` races.

mod model;
mod order;
mod readers;
mod reading;
mod rebuild;

use super::*;
use crate::arena::Extent;
use crate::heap::HeapConfig;
use crate::key::KEYS;
use crate::memory::AnonMemory;
use crate::retention::Retention;
use hashbrown::HashSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Quarantine of the test segments in nanoseconds.
const Q: u64 = 5_000_000;

/// Whether the slot was already retired at the epoch asked for, or is past it: for a retire this
/// means "done before", for a commit it is `Reclaimed` [I11].
fn is_already_retired(error: &StoreError) -> bool {
    let retired = ["fencing", "quarantined", "spent", "past the epoch asked for"];
    matches!(error, StoreError::WrongState { state, .. } if retired.contains(state))
}

fn state_name(slots: &Slots, slot: u32) -> &'static str {
    slots.at(slot).unwrap().state.name()
}

fn heap(slots: u64) -> Heap {
    let config =
        HeapConfig { arena_bytes: slots * 4096, quarantine_ms: 5, ..HeapConfig::default() };
    Heap::format(Arc::new(AnonMemory::new(config.segment_bytes()).unwrap()), &config).unwrap()
}

/// The extent of `units` from the slot's own page on.
fn extent(heap: &Heap, slot: u32, units: u64) -> Extent {
    let offset = heap.layout().arena.offset + u64::from(slot) * 4096;
    Extent { offset, len: units * 4096 }
}

/// A producer's header fields and (WRITING, epoch).
fn begin(heap: &Heap, slot: u32, epoch: u32, key: KeyId, at: Extent, bytes: u64) {
    let header = heap.layout().header_off(slot);
    heap.memory()
        .write(header, &producer_fields(key, &ObjectDesc::at(at.offset, bytes, 4096)))
        .unwrap();
    heap.memory().store(header + PUBLISH_OFF, writing(epoch)).unwrap();
}

/// A producer's last step; true if READY was stored.
fn publish(heap: &Heap, slot: u32, epoch: u32) -> bool {
    let at = heap.layout().header_off(slot) + PUBLISH_OFF;
    heap.memory().compare_swap(at, writing(epoch), ready(epoch)).unwrap() == writing(epoch)
}

fn put(slots: &mut Slots, slot: u32, epoch: u32, key: KeyId) -> Extent {
    let heap = slots.heap().clone();
    let at = extent(&heap, slot, 1);
    slots.open(slot, epoch, at).unwrap();
    begin(&heap, slot, epoch, key, at, 100);
    assert!(publish(&heap, slot, epoch));
    assert!(slots.commit(slot, epoch).unwrap().newly);
    at
}

fn expect(key: KeyId, epoch: u32, at: Extent) -> Expect {
    Expect { key: Some(key), epoch: Some(epoch), payload_base: at.offset, bytes_total: 100 }
}

#[test]
fn i2_an_object_is_readable_only_between_ready_and_retired() {
    let mut slots = Slots::fresh(heap(4));
    let heap = slots.heap().clone();
    let arena = heap.layout().arena;
    let (key, at) = (KEYS.id(b"k"), extent(&heap, 0, 1));
    let wanted = expect(key, 1, at);
    let read = |e: &Expect| validate(&read_header(&heap, 0).unwrap(), e, &arena);
    assert_eq!(read(&wanted), Err(Unreadable::NotReady));
    slots.open(0, 1, at).unwrap();
    let seen =
        |slots: &Slots| (read(&wanted), low(slots.header(0).publish), slots.is_published(0, 1));
    assert_eq!(seen(&slots), (Err(Unreadable::NotReady), state::RESERVED, false));
    begin(&heap, 0, 1, key, at, 100);
    assert_eq!(seen(&slots), (Err(Unreadable::NotReady), state::WRITING, false));
    assert!(publish(&heap, 0, 1));
    assert_eq!(seen(&slots), (Ok(()), state::READY, true));
    slots.commit(0, 1).unwrap();
    assert_eq!(read(&wanted), Ok(()));
    assert_eq!(read(&Expect { key: None, epoch: None, ..wanted }), Ok(()));
    slots.retire(0, 1, true, 0).unwrap();
    assert_eq!(seen(&slots), (Err(Unreadable::Gone), state::READY, false));
    assert_eq!(slots.due(Q).len(), 1);
    assert_eq!(read(&wanted), Err(Unreadable::Gone));
    assert_eq!(read(&Expect { epoch: None, ..wanted }), Err(Unreadable::NotReady));
}

/// A writer of another tier, which reads an object's bytes while it lies here.
#[derive(Debug, Default)]
struct TierWriter(Mutex<Option<Vec<(u32, u32)>>>);

impl TierWriter {
    fn holds(&self, objects: Option<Vec<(u32, u32)>>) {
        *self.0.lock().unwrap() = objects;
    }
}

impl Holders for TierWriter {
    fn held(&self, objects: &mut HashSet<(u32, u32)>) -> Result<(), StoreError> {
        let held = self.0.lock().unwrap().clone();
        objects.extend(held.ok_or_else(|| StoreError::BadSegment("no answer".to_string()))?);
        Ok(())
    }
}

#[test]
fn i9_an_extent_is_not_used_again_while_a_holder_besides_the_pins_needs_it() {
    let mut slots = Slots::fresh(heap(4));
    let writer = Arc::new(TierWriter::default());
    slots.ask_as_well(writer.clone());
    let at = put(&mut slots, 1, 1, KEYS.id(b"k"));
    put(&mut slots, 2, 1, KEYS.id(b"free"));
    slots.retire(1, 1, true, 0).unwrap();
    slots.retire(2, 1, true, 0).unwrap();
    writer.holds(None);
    assert_eq!(slots.due(Q), [], "a holder that cannot say holds everything");
    writer.holds(Some(vec![(1, 1), (2, 9)]));
    let freed: Vec<u32> = slots.due(Q + 1).iter().map(|f| f.slot).collect();
    assert_eq!(freed, [2], "of another epoch it holds nothing");
    assert_eq!(slots.held_longer(5 * Q, Q), (1, 1));
    writer.holds(Some(Vec::new()));
    assert_eq!(slots.due(5 * Q), [Freed { slot: 1, epoch: 1, extent: at }]);
}

#[test]
fn i11_a_stale_commit_is_reclaimed() {
    let mut slots = Slots::fresh(heap(4));
    let heap = slots.heap().clone();
    let at = extent(&heap, 2, 1);
    slots.open(2, 1, at).unwrap();
    begin(&heap, 2, 1, KEYS.id(b"late"), at, 100);
    slots.retire(2, 1, false, 0).unwrap();
    // The producer does not know of it: it publishes and commits during the fence, in quarantine,
    // and after the slot was given to another plan.
    assert!(publish(&heap, 2, 1));
    let reclaimed = |slots: &mut Slots| is_already_retired(&slots.commit(2, 1).unwrap_err());
    assert!(reclaimed(&mut slots));
    assert!(slots.fenced(2, 1, 10));
    assert!(reclaimed(&mut slots));
    assert_eq!(slots.due(10 + Q), [Freed { slot: 2, epoch: 1, extent: at }]);
    assert!(reclaimed(&mut slots));
    put(&mut slots, 2, 2, KEYS.id(b"new"));
    assert!(reclaimed(&mut slots));
    assert!(!publish(&heap, 2, 1), "a late publish has no effect");
    assert_eq!(slots.usage().live_objects, 1);
    assert!(!is_already_retired(&slots.commit(2, 3).unwrap_err()), "epoch 3 is yet to come");
}

#[test]
fn i8_a_retired_extent_is_not_reused_before_quarantine_ends() {
    let mut slots = Slots::fresh(heap(4));
    let at = put(&mut slots, 0, 1, KEYS.id(b"k"));
    let retired = slots.retire(0, 1, true, 1000).unwrap();
    assert_eq!(retired, at);
    assert_eq!(slots.next_due_ns(), Some(1000 + Q));
    assert_eq!(slots.due(1000 + Q - 1), []);
    assert!(slots.open(0, 1, at).is_err() && slots.open(0, 2, at).is_err());
    assert_eq!(slots.due(1000 + Q), [Freed { slot: 0, epoch: 1, extent: at }]);
    assert_eq!((slots.due(u64::MAX), slots.next_due_ns()), (vec![], None));
    slots.open(0, 2, at).unwrap();
}

#[test]
fn i8_settling_restarts_only_the_quarantines_just_begun() {
    let mut slots = Slots::fresh(heap(4));
    for slot in 0..2 {
        put(&mut slots, slot, 1, KEYS.id(b"k"));
    }
    slots.retire(0, 1, true, 0).unwrap();
    slots.restart_quarantines(100);
    slots.retire(1, 1, true, 200).unwrap();
    // The process was stopped between reading its clock and clearing LIVE.
    slots.restart_quarantines(Q);
    let freed = |slots: &mut Slots, now| slots.due(now).iter().map(|f| f.slot).collect::<Vec<_>>();
    assert_eq!(freed(&mut slots, 100 + Q - 1), []);
    assert_eq!(freed(&mut slots, 100 + Q), [0]);
    slots.restart_quarantines(3 * Q);
    assert_eq!(freed(&mut slots, 2 * Q - 1), []);
    assert_eq!(freed(&mut slots, 2 * Q), [1]);
}

#[test]
fn i10_an_unfenced_plan_is_held_without_limit() {
    let mut slots = Slots::fresh(heap(4));
    let at = extent(slots.heap(), 0, 2);
    slots.open(0, 1, at).unwrap();
    assert_eq!(slots.retire(0, 1, false, 0).unwrap(), at);
    assert_eq!((slots.due(u64::MAX), slots.next_due_ns()), (vec![], None));
    assert_eq!(slots.fencing().collect::<Vec<_>>(), [(0, 1)]);
    assert_eq!((slots.usage().fencing, slots.usage().held_bytes), (1, 8192));
    assert!(!slots.fenced(0, 2, 5) && !slots.fenced(1, 1, 5));
    assert!(slots.fenced(0, 1, 5) && !slots.fenced(0, 1, 5));
    assert_eq!(slots.due(5 + Q), [Freed { slot: 0, epoch: 1, extent: at }]);
}

#[test]
fn every_call_may_come_twice() {
    let mut slots = Slots::fresh(heap(4));
    let heap = slots.heap().clone();
    let (at, elsewhere) = (extent(&heap, 0, 1), extent(&heap, 1, 1));
    slots.open(0, 1, at).unwrap();
    slots.open(0, 1, at).unwrap();
    assert!(slots.open(0, 1, elsewhere).is_err(), "another extent is another plan");
    let early = slots.commit(0, 1).unwrap_err();
    assert!(!is_already_retired(&early) && early.to_string().contains("not READY"), "{early}");
    begin(&heap, 0, 1, KEYS.id(b"k"), at, 100);
    assert!(publish(&heap, 0, 1));
    let first = slots.commit(0, 1).unwrap();
    let (key, retention) = (KEYS.id(b"k"), Retention::Usual);
    let wanted = Committed { newly: true, key, bytes_total: 100, extent: at, retention };
    assert_eq!(first, wanted);
    assert_eq!(slots.commit(0, 1).unwrap(), Committed { newly: false, ..wanted });
    slots.retire(0, 1, true, 0).unwrap();
    let again = slots.retire(0, 1, false, 99).unwrap_err();
    assert!(is_already_retired(&again), "{again}");
    assert_eq!(slots.due(Q).len(), 1, "the second retire did not prolong anything");
    assert!(is_already_retired(&slots.retire(0, 1, true, 0).unwrap_err()));
    assert!(!is_already_retired(&slots.retire(0, 2, true, 0).unwrap_err()), "free, not retired");
    assert!(!is_already_retired(&slots.retire(9, 1, true, 0).unwrap_err()), "no such slot");
}

#[test]
fn a_commit_must_carry_its_own_plans_payload() {
    let mut slots = Slots::fresh(heap(4));
    let heap = slots.heap().clone();
    let (at, elsewhere) = (extent(&heap, 0, 1), extent(&heap, 1, 1));
    for (slot, payload, bytes, fits) in
        [(0, at, 4097, false), (1, elsewhere, 4096, true), (2, at, 1, false)]
    {
        let plan = extent(&heap, slot, 1);
        slots.open(slot, 1, plan).unwrap();
        begin(&heap, slot, 1, KEYS.id(b"k"), payload, bytes);
        assert!(publish(&heap, slot, 1));
        assert_eq!(slots.commit(slot, 1).is_ok(), fits, "slot {slot}");
    }
    let arena = heap.layout().arena;
    for bad in [Extent { offset: 0, len: 4096 }, Extent { offset: arena.offset, len: 0 }] {
        assert!(matches!(slots.open(3, 1, bad), Err(StoreError::OutOfBounds { .. })));
    }
}

#[test]
fn a_touch_reaches_only_a_live_object_of_that_epoch() {
    let mut slots = Slots::fresh(heap(4));
    put(&mut slots, 0, 1, KEYS.id(b"k"));
    assert!(slots.touch(0, 1, 77) && !slots.touch(0, 2, 88) && !slots.touch(1, 1, 88));
    assert!(!slots.touch(u32::MAX, 1, 88));
    assert_eq!(slots.header(0).last_access, 77);
    slots.retire(0, 1, true, 0).unwrap();
    assert!(!slots.touch(0, 1, 99));
}

#[test]
fn a_read_before_the_commit_is_noted_of_an_object_that_goes_after_its_first_read() {
    let mut slots = Slots::fresh(heap(4));
    put(&mut slots, 0, 1, KEYS.id(b"before"));
    assert!(slots.touch(0, 1, 77));
    slots.retire(0, 1, true, 0).unwrap();
    slots.due(Q);
    let until_read = Retention::UntilRead(std::time::Duration::from_secs(1));
    for (slot, epoch, retention) in [(0, 2, until_read), (1, 1, Retention::HardPin)] {
        let at = extent(slots.heap(), slot, 1);
        slots.open(slot, epoch, at).unwrap();
        slots.retain(slot, epoch, retention).unwrap();
        assert_eq!(slots.header(slot).last_access, 0, "what was read there before is another");
        slots.touch_open(slot, epoch + 1, 88);
        assert_eq!(slots.header(slot).last_access, 0);
        slots.touch_open(slot, epoch, 99);
        let noted = if retention == until_read { 99 } else { 0 };
        assert_eq!(slots.header(slot).last_access, noted);
    }
}
