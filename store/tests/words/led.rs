//! A reader that has only the key and uses the index, beside the owner that writes it.

use crate::segment::{Tally, check, extent, key, live, payload, put, segment};
use nkv_store::Heap;
use nkv_store::reader::{copy, find};

/// The epoch that was found and its bytes, if they may be accepted.
fn get(heap: &Heap) -> Option<(u32, Vec<u8>)> {
    let (words, g) = (&**heap.memory(), heap.layout());
    let hit = find(words, g, key())?;
    let mut bytes = payload(0);
    copy(words, g, &hit, &mut bytes).then(|| (hit.epoch(), bytes))
}

#[test]
fn i2_i4_a_reader_who_is_led_to_an_object_finds_it_whole() {
    let tally = Tally::default();
    let met = tally.clone();
    check(3, move |first| {
        let mut slots = segment();
        let heap = slots.heap().clone();
        slots.open(0, 1, extent(&heap)).unwrap();
        let reader = heap.clone();
        let owner = move || {
            loom::thread::spawn(move || assert!(put(&heap, 0, 1))).join().unwrap();
            slots.commit(0, 1).unwrap();
        };
        let ((), got) = first.race(owner, move || {
            // It never gets NotReady: an object in the index is published already.
            let hit = find(&**reader.memory(), reader.layout(), key());
            (hit.is_some(), get(&reader))
        });
        met.count(got.0);
        assert!(!got.0 || got.1 == Some((1, payload(1))), "[I4] {got:?}");
    });
    tally.met_both();
}

#[test]
fn i2_i3_an_index_that_lags_behind_leads_to_nothing_that_is_not_there() {
    let tally = Tally::default();
    let met = tally.clone();
    check(2, move |first| {
        let mut slots = live();
        let reader = slots.heap().clone();
        let owner = move || {
            let heap = slots.heap().clone();
            slots.retire(0, 1, true, 0).unwrap();
            assert_eq!(slots.due(u64::MAX).len(), 1);
            slots.open(0, 2, extent(&heap)).unwrap();
            loom::thread::spawn(move || assert!(put(&heap, 0, 2))).join().unwrap();
            slots.commit(0, 2).unwrap();
        };
        let ((), got) = first.race(owner, move || get(&reader));
        met.count(got.is_some());
        assert!(got.is_none_or(|(epoch, bytes)| bytes == payload(epoch)), "[I7] torn");
    });
    tally.met_both();
}
