//! What a scan finds and reports after an owner has lost its state, and slots that are out of
//! epochs.

use super::*;
use crate::arena::Arena;

#[test]
fn i3_a_slot_out_of_epochs_is_lost_and_counted_but_its_extent_comes_back() {
    let heap = heap(4);
    let header = heap.layout().header_off(1);
    heap.memory().store(header + PUBLISH_OFF, reserved(u32::MAX)).unwrap();
    heap.memory().store(header + OWNER_OFF, word(flag::LIVE, u32::MAX)).unwrap();
    let mut slots = Slots::scan(heap, &[], |_, _| false, 0);
    let at = put(&mut slots, 1, u32::MAX, KEYS.id(b"last"));
    slots.retire(1, u32::MAX, true, 0).unwrap();
    let freed = slots.due(Q);
    assert_eq!(freed, [Freed { slot: 1, epoch: u32::MAX, extent: at }]);
    assert_eq!((slots.usage().spent, state_name(&slots, 1)), (1, "spent"));
    assert!(slots.open(1, u32::MAX, at).is_err() && slots.open(1, 0, at).is_err());
    assert!(slots.report().any(|r| r.slot == 1 && r.kind == SlotKind::Held));
    assert_eq!(low(slots.header(1).owner) & flag::LIVE, 0);
}

#[test]
fn a_scan_finds_every_slot_as_it_was_and_holds_what_is_in_doubt() {
    let mut slots = Slots::fresh(heap(8));
    let heap = slots.heap().clone();
    let key = KEYS.id(b"k");
    put(&mut slots, 0, 1, key);
    put(&mut slots, 1, 1, key);
    slots.retire(1, 1, true, 0).unwrap();
    for slot in 2..6 {
        slots.open(slot, 1, extent(&heap, slot, 1)).unwrap();
        begin(&heap, slot, 1, key, extent(&heap, slot, 1), 10);
    }
    slots.retire(5, 1, false, 0).unwrap();
    // Slot 2: an open plan. 3: ending, LIVE not cleared yet. 4: partly written for a plan not
    // received yet. 5: retired, but its plan not marked as ending yet. 6: free, with an old plan
    // that was forgotten.
    let plan =
        |slot, epoch, ending| OpenSlot { slot, epoch, extent: extent(&heap, slot, 1), ending };
    let plans = [plan(2, 1, false), plan(3, 1, true), plan(5, 1, false), plan(6, 9, false)];
    drop(slots);
    let mut slots = Slots::scan(heap, &plans, |slot, _| slot == 0, 1000);
    let names: Vec<_> = (0..8).map(|s| state_name(&slots, s)).collect();
    let held = ["live", "quarantined", "open", "fencing", "free", "fencing", "free", "free"];
    assert_eq!(names, held);
    assert_eq!(slots.fencing().collect::<Vec<_>>(), [(3, 1), (5, 1)]);
    for slot in [1, 3, 5] {
        assert_eq!(low(slots.header(slot).owner) & flag::LIVE, 0, "slot {slot} is served");
    }
    let usage = slots.usage();
    assert_eq!((usage.unheard, usage.quarantined, usage.live_bytes), (1, 1, 4096));
    assert_eq!(slots.due(1000 + Q - 1), [], "quarantine restarts in full");
    let freed = slots.due(1000 + Q);
    let at = extent(slots.heap(), 1, 1);
    assert_eq!(freed, [Freed { slot: 1, epoch: 1, extent: at }]);
    // The plan that wrote to slot 4 is received at last and continues.
    let late = extent(slots.heap(), 4, 1);
    slots.open(4, 1, late).unwrap();
    assert_eq!(slots.header(4).publish, writing(1));
}

#[test]
fn reports_name_what_is_held_and_skip_what_was_never_used() {
    let mut slots = Slots::fresh(heap(8));
    let at = put(&mut slots, 3, 1, KEYS.id(b"k"));
    slots.open(4, 1, extent(slots.heap(), 4, 2)).unwrap();
    let gone = put(&mut slots, 6, 1, KEYS.id(b"gone"));
    slots.retire(6, 1, true, 0).unwrap();
    let kinds: Vec<_> = slots.report().map(|r| (r.slot, r.kind, r.extent)).collect();
    let object = ObjectDesc { extent: at, bytes_total: 100, page_bytes: 4096 };
    let retention = Retention::Usual;
    let live = SlotKind::Live { key: KEYS.id(b"k"), object, retention };
    let open = extent(slots.heap(), 4, 2);
    let wanted =
        [(3, live, Some(at)), (4, SlotKind::Open, Some(open)), (6, SlotKind::Held, Some(gone))];
    assert_eq!(kinds, wanted);
    let evictable: Vec<_> = slots.extents(|_| false).map(|(s, _, _, live)| (s, live)).collect();
    assert_eq!(evictable, [(3, true), (4, false), (6, false)]);
    slots.due(Q);
    assert!(slots.report().any(|r| (r.slot, r.epoch, r.kind) == (6, 2, SlotKind::Free)));
}

#[test]
fn those_who_start_cold_find_what_is_published_and_not_retired() {
    let mut slots = Slots::fresh(heap(4));
    let heap = slots.heap().clone();
    put(&mut slots, 0, 1, KEYS.id(b"retired"));
    put(&mut slots, 2, 1, KEYS.id(b"live"));
    slots.retire(0, 1, true, 0).unwrap();
    slots.touch(2, 1, 9);
    slots.open(3, 1, extent(&heap, 3, 1)).unwrap();
    let found: Vec<_> = live_slots(&heap).collect();
    let retention = Retention::Usual;
    let live = LiveSlot { slot: 2, epoch: 1, bytes_total: 100, last_access_ms: 9, retention };
    assert_eq!(found, [live]);
    assert!(slots.is_live(2, 1) && !slots.is_live(2, 2) && !slots.is_live(0, 1));
    assert!(slots.is_open(3, 1) && !slots.is_open(3, 2) && !slots.is_open(2, 1));
}

#[test]
fn i8_a_scan_finds_the_extent_of_an_object_that_fills_its_arena() {
    // Rounded up to the allocator's bin, 18 units, it would be larger than the arena.
    let mut slots = Slots::fresh(heap(17));
    let heap = slots.heap().clone();
    let mut arena = Arena::new(heap.layout().arena, heap.layout().arena_unit, 17);
    let at = arena.alloc(17 * 4096 - 100).unwrap();
    slots.open(0, 1, at).unwrap();
    begin(&heap, 0, 1, KEYS.id(b"all of it"), at, 17 * 4096 - 100);
    assert!(publish(&heap, 0, 1));
    assert!(slots.commit(0, 1).unwrap().newly);
    drop(slots);
    let mut slots = Slots::scan(heap.clone(), &[], |slot, _| slot == 0, 0);
    assert_eq!(slots.extents(|_| false).collect::<Vec<_>>(), [(0, 1, at, true)]);
    // Another owner that loses its memory in quarantine frees the same extent again, whole.
    slots.retire(0, 1, true, 0).unwrap();
    let mut slots = Slots::scan(heap, &[], |_, _| false, 0);
    assert_eq!(slots.due(Q), [Freed { slot: 0, epoch: 1, extent: at }]);
    arena.free(at).unwrap();
}

#[test]
fn i15_a_key_whose_object_lost_live_is_served_by_nothing_though_the_index_still_names_it() {
    let mut slots = Slots::fresh(heap(4));
    let key = KEYS.id(b"k");
    put(&mut slots, 1, 1, key);
    assert_eq!(slots.serving(key, |_| true), Some(1));
    assert_eq!(slots.serving(key, |slot| slot != 1), None);
    slots.retire(1, 1, true, 0).unwrap();
    // The state between the two stores that remove an object: LIVE is cleared before the entry.
    slots.index_mut().insert(key, 1, 1);
    assert_eq!(slots.serving(key, |_| true), None);
}
