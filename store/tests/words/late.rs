//! A late producer, against the owner that ends its plan and reuses slot and extent. The gate
//! represents whatever admits a producer's writes: a tcp grant, or a process's own plan.

use crate::segment::{
    Q, Tally, check, expect, extent, payload, publication, put, read, run, segment,
    segment_of_a_contended_word,
};
use loom::sync::atomic::AtomicU32;
use nkv_store::Heap;
use nkv_store::layout::{PUBLISH_OFF, epoch_of};
use nkv_store::object::{read_header, ready, reserved, validate};
use std::sync::Arc;
use std::sync::atomic::Ordering;

const CLOSED: u32 = 1 << 31;

/// The word of a gate, in the orders of `nkv_transport::gate`.
#[derive(Debug, Default)]
struct Gate(AtomicU32);

impl Gate {
    fn acquire(&self) -> bool {
        let next = |word: u32| (word & CLOSED == 0).then_some(word + 1);
        self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, next).is_ok()
    }

    fn release(&self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }

    /// Closes it; true if no writer is inside.
    fn close(&self) -> bool {
        self.0.fetch_or(CLOSED, Ordering::SeqCst);
        self.0.load(Ordering::SeqCst) & !CLOSED == 0
    }
}

/// A producer of epoch 1 that may start late. Some(whether READY was stored) if it was admitted.
fn late_put(heap: &Heap, gate: &Gate) -> Option<bool> {
    if !gate.acquire() {
        return None;
    }
    let took = put(heap, 0, 1);
    gate.release();
    Some(took)
}

#[test]
fn i10_a_late_writer_is_fenced_or_holds_its_extent() {
    let tally = Tally::default();
    let met = tally.clone();
    check(4, move |first| {
        let mut slots = segment();
        let heap = slots.heap().clone();
        slots.open(0, 1, extent(&heap)).unwrap();
        let gate = Arc::new(Gate::default());
        let (producer, entry) = (heap.clone(), gate.clone());
        let owner = move || {
            let heap = slots.heap().clone();
            // Removed, not expired: LIVE is cleared first, whatever the producer has done by now.
            slots.retire(0, 1, false, 0).unwrap();
            let fenced = gate.close();
            if fenced {
                assert!(slots.fenced(0, 1, 0));
            }
            let freed = slots.due(u64::MAX);
            assert_eq!(freed.len(), usize::from(fenced), "[I10] reused, its producer may write");
            if fenced {
                slots.open(0, 2, extent(&heap)).unwrap();
                assert!(put(&heap, 0, 2), "[I10] the late one took the word");
                slots.commit(0, 2).unwrap();
            }
            fenced
        };
        let (_, fenced) = first.race(move || late_put(&producer, &entry), owner);
        met.count(fenced);
        let found = read(&heap, 0, None);
        assert_eq!(found, fenced.then(|| payload(2)), "[I10] a late byte, or a removed object");
    });
    tally.met_both();
}

#[test]
fn i10_an_expired_plan_is_adopted_if_its_ready_took_and_reclaimed_if_not() {
    let tally = Tally::default();
    let met = tally.clone();
    check(4, move |first| {
        let mut slots = segment();
        let heap = slots.heap().clone();
        slots.open(0, 1, extent(&heap)).unwrap();
        let gate = Arc::new(Gate::default());
        let (producer, entry) = (heap.clone(), gate.clone());
        let owner = move || {
            let fenced = gate.close();
            let adopted = fenced && slots.is_published(0, 1);
            if adopted {
                slots.commit(0, 1).unwrap();
            } else if fenced {
                slots.retire(0, 1, true, 0).unwrap();
            }
            (fenced, adopted)
        };
        let (took, (fenced, adopted)) = first.race(move || late_put(&producer, &entry), owner);
        assert!(!fenced || took == adopted.then_some(true), "[I10] {took:?} but {adopted}");
        met.count(adopted);
        let readable = read(&heap, 0, Some(1));
        assert_eq!(readable, (adopted || !fenced).then(|| payload(1)));
    });
    tally.met_both();
}

#[test]
fn i11_the_ready_of_an_epoch_that_ended_never_makes_the_next_one_readable() {
    let tally = Tally::default();
    let met = tally.clone();
    check(4, move |first| {
        let mut slots = segment_of_a_contended_word();
        let heap = slots.heap().clone();
        slots.open(0, 1, extent(&heap)).unwrap();
        let object = publication(&heap, 0, 1);
        run(&heap, &mut object.announce());
        run(&heap, &mut [object.page(0, &payload(1))]);
        // All bytes are written; only the last word is late, from a process that could not be
        // stopped.
        let producer = heap.clone();
        let late = move || {
            let mut publish = object.publish();
            run(&producer, &mut publish);
            object.took(&publish)
        };
        let owner = move || {
            slots.retire(0, 1, true, 0).unwrap();
            assert_eq!(slots.due(Q).len(), 1);
            let refused = slots.commit(0, 1).unwrap_err();
            assert!(refused.to_string().contains("past the epoch"), "[I11] {refused}");
            slots
        };
        let (took, mut slots) = first.race(late, owner);
        met.count(took.is_ok());
        assert!(took.is_ok() || took == Err(reserved(2)), "{took:?}");
        slots.open(0, 2, extent(&heap)).unwrap();
        let at = heap.layout().header_off(0) + PUBLISH_OFF;
        assert_eq!(heap.memory().load(at).unwrap(), reserved(2), "[I11] the late one took it");
        assert!(slots.commit(0, 2).is_err(), "[I2] committed by another epoch's READY");
        assert_eq!((read(&heap, 0, None), read(&heap, 0, Some(1))), (None, None));
    });
    tally.met_both();
}

#[test]
fn i2_a_commit_and_a_retire_agree_on_what_a_reader_finds() {
    let tally = Tally::default();
    let met = tally.clone();
    check(4, move |first| {
        let mut slots = segment();
        let heap = slots.heap().clone();
        slots.open(0, 1, extent(&heap)).unwrap();
        let producer = heap.clone();
        let owner = move || {
            let committed = slots.commit(0, 1).is_ok();
            if !committed {
                slots.retire(0, 1, false, 0).unwrap();
            }
            (slots, committed)
        };
        let (took, (mut slots, committed)) = first.race(move || put(&producer, 0, 1), owner);
        assert!(took);
        met.count(committed);
        let header = read_header(&heap, 0).unwrap();
        assert_eq!((header.publish, epoch_of(header.owner)), (ready(1), 1));
        let valid = validate(&header, &expect(&heap, Some(1)), &heap.layout().arena);
        assert_eq!(valid.is_ok(), committed, "[I2] READY but retired, or committed but not found");
        assert_eq!(slots.commit(0, 1).is_ok(), committed);
    });
    tally.met_both();
}
