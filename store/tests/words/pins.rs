//! A process that reads an object without copying it, beside the owner that retires it [I9].

use crate::segment::{Tally, check, extent, key, live, payload, put};
use nkv_store::pins::Table;
use nkv_store::reader::{copy, read_slot, still};
use nkv_store::{Heap, Slots};

/// Retires slot 0 and, once its scan finds no pin on it, puts the next object there.
fn take_away(mut slots: Slots) -> bool {
    let heap = slots.heap().clone();
    slots.retire(0, 1, true, 0).unwrap();
    let freed = slots.due(u64::MAX).len() == 1;
    if freed {
        slots.open(0, 2, extent(&heap)).unwrap();
        assert!(put(&heap, 0, 2));
    }
    freed
}

/// Pins the object and reads its bytes in place: no header check afterwards.
fn view(heap: &Heap) -> Option<Vec<u8>> {
    let (words, g) = (&**heap.memory(), heap.layout());
    let hit = read_slot(words, g, 0, key())?;
    let table = Table::of(&g.pins, 0).unwrap();
    table.set(words, 0, hit.slot, hit.epoch()).unwrap();
    let bytes = still(words, g, &hit).then(|| {
        let mut bytes = payload(0);
        heap.memory().read(hit.header.payload_base, &mut bytes).unwrap();
        (bytes, hit.epoch())
    });
    table.clear(words, 0).unwrap();
    let (bytes, epoch) = bytes?;
    assert_eq!(bytes, payload(epoch), "[I9] bytes changed under a pin");
    Some(bytes)
}

#[test]
fn i9_the_bytes_of_a_pinned_object_stay_until_its_pin_is_gone() {
    let (freed, viewed) = (Tally::default(), Tally::default());
    let (f, v) = (freed.clone(), viewed.clone());
    check(3, move |first| {
        let slots = live();
        let heap = slots.heap().clone();
        let (gone, seen) = first.race(move || take_away(slots), move || view(&heap));
        f.count(gone);
        v.count(seen.is_some());
    });
    freed.met_both();
    viewed.met_both();
}

#[test]
fn i9_a_copying_reader_needs_no_pin() {
    let tally = Tally::default();
    let met = tally.clone();
    check(2, move |first| {
        let slots = live();
        let heap = slots.heap().clone();
        let reader = move || {
            let (words, g) = (&**heap.memory(), heap.layout());
            let hit = read_slot(words, g, 0, key())?;
            let mut bytes = payload(0);
            let believed = copy(words, g, &hit, &mut bytes);
            believed.then(|| (hit.epoch(), bytes))
        };
        let (_, copied) = first.race(move || take_away(slots), reader);
        met.count(copied.is_some());
        assert!(copied.is_none_or(|(epoch, bytes)| bytes == payload(epoch)), "[I7] torn");
    });
    tally.met_both();
}
