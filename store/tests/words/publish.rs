//! A reader, or the owner, beside a producer that publishes: READY follows every field and every
//! payload byte.

use crate::segment::{
    BYTES, Tally, check, expect, extent, key, payload, publication, put, read, run, segment,
};
use nkv_store::Heap;
use nkv_store::layout::epoch_of;
use nkv_store::object::{key_of, read_header, ready, validate};

#[test]
fn i2_i4_a_reader_beside_a_producer_accepts_the_whole_object_or_nothing() {
    let tally = Tally::default();
    let met = tally.clone();
    check(3, move |first| {
        let mut slots = segment();
        let heap = slots.heap().clone();
        slots.open(0, 1, extent(&heap)).unwrap();
        let (producer, reader) = (heap.clone(), heap.clone());
        let (took, copy) =
            first.race(move || put(&producer, 0, 1), move || read(&reader, 0, Some(1)));
        assert!(took);
        met.count(copy.is_some());
        assert!(copy.is_none_or(|copy| copy == payload(1)), "[I4] READY came before the payload");
        assert_eq!(read(&heap, 0, None), Some(payload(1)));
    });
    tally.met_both();
}

/// The object of epoch 1, its two pages written by two threads, published by the first.
fn put_pages(heap: &Heap) {
    let object = publication(heap, 0, 1);
    run(heap, &mut object.announce());
    let page = move |heap: &Heap, at: usize| {
        let bytes = &payload(1)[at..at + BYTES / 2];
        run(heap, &mut [object.page(at as u64, bytes)]);
    };
    let other = heap.clone();
    let second = loom::thread::spawn(move || page(&other, BYTES / 2));
    page(heap, 0);
    second.join().unwrap();
    let mut publish = object.publish();
    run(heap, &mut publish);
    assert_eq!(object.took(&publish), Ok(()));
}

#[test]
fn i4_pages_of_two_threads_land_before_ready() {
    let tally = Tally::default();
    let met = tally.clone();
    check(2, move |first| {
        let mut slots = segment();
        let heap = slots.heap().clone();
        slots.open(0, 1, extent(&heap)).unwrap();
        let producer = heap.clone();
        let ((), copy) = first.race(move || put_pages(&producer), move || read(&heap, 0, Some(1)));
        met.count(copy.is_some());
        assert!(copy.is_none_or(|copy| copy == payload(1)), "[I4] READY came before a page");
    });
    tally.met_both();
}

#[test]
fn i2_i4_an_owner_who_sees_ready_sees_the_header_that_goes_with_it() {
    let tally = Tally::default();
    let met = tally.clone();
    check(3, move |first| {
        let mut slots = segment();
        let heap = slots.heap().clone();
        slots.open(0, 1, extent(&heap)).unwrap();
        let producer = heap.clone();
        let owner = move || {
            let header = read_header(&heap, 0).unwrap();
            if header.publish == ready(1) {
                let arena = heap.layout().arena;
                assert_eq!(validate(&header, &expect(&heap, Some(1)), &arena), Ok(()));
                assert_eq!((key_of(&header), epoch_of(header.owner)), (key(), 1));
            }
            match slots.commit(0, 1) {
                Ok(done) => assert_eq!((done.key, done.bytes_total), (key(), BYTES as u64)),
                Err(early) => assert!(early.to_string().contains("open"), "{early}"),
            }
            header.publish == ready(1)
        };
        let (took, seen) = first.race(move || put(&producer, 0, 1), owner);
        assert!(took);
        met.count(seen);
    });
    tally.met_both();
}
