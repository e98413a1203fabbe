//! Eviction beside the producer that claims the freed space, and readers of what was there.

use crate::log::{Owner, U, log, payload};
use crate::segment::{Tally, check};
use loom::sync::atomic::{AtomicU64, fence};
use nkv_store::layout::{OWNER_OFF, flag, low};
use nkv_store::memory::Memory;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A full log of four units; the object of the first slot is the oldest.
fn full() -> Owner {
    let mut owner = log(4, &[0]);
    owner.fill(1..=4);
    owner
}

/// A full log of eight units; its oldest objects have one unit and two. The next claim, of two
/// units, covers the first object and half of the second, whose header it does not write: only the
/// loss of LIVE shows a reader that it is gone.
fn staggered() -> Owner {
    let mut owner = log(8, &[0, 1, 2]);
    owner.add(1, U);
    owner.add(2, 2 * U);
    owner.fill(3..=7);
    owner
}

#[test]
fn i7_i13_a_producer_that_sees_the_new_limit_overwrites_nothing_that_a_reader_believes() {
    let (tally, reuse) = (Tally::default(), Tally::default());
    let (met, reused) = (tally.clone(), reuse.clone());
    check(4, move |first| {
        let mut owner = staggered();
        let (producer, reader) = (owner.segment.clone(), owner.segment.clone());
        let retire = move || {
            let put = loom::thread::spawn(move || producer.put_bytes(8, 2 * U));
            assert!(owner.make_room(|_, _| true) > 0);
            (put.join().unwrap(), owner)
        };
        let read = move || reader.read_bytes((1, 1), 2, 2 * U);
        let ((slot, mut owner), copy) = first.race(retire, read);
        met.count(copy.is_some());
        reused.count(slot.is_some());
        assert!(copy.is_none_or(|copy| copy == payload(2, 2 * U)), "[I7] bytes of the next claim");
        owner.log.accept(0, &mut owner.index).unwrap();
        let next = slot.map(|slot| owner.segment.read_bytes((slot, 2), 8, 2 * U));
        assert!(next.is_none_or(|next| next == Some(payload(8, 2 * U))));
    });
    tally.met_both();
    reuse.met_both();
}

#[test]
fn i9_a_view_pinned_in_time_holds_the_tail() {
    let (tally, reuse) = (Tally::default(), Tally::default());
    let (met, reused) = (tally.clone(), reuse.clone());
    check(6, move |first| {
        let mut owner = full();
        let segment = owner.segment.clone();
        let pin = Arc::new(AtomicU64::new(0));
        let scanned = pin.clone();
        let retire = move || {
            owner.make_room(|_, _| scanned.load(Ordering::Relaxed) == 0);
            owner.segment.put(5).is_some()
        };
        let view = move || {
            // Pin, fence, header check; then the payload, at any time, without a second header
            // check.
            pin.store(1, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            let owner = segment.memory.load(segment.layout.header_off(0) + OWNER_OFF).unwrap();
            let valid = low(owner) & flag::LIVE != 0;
            let mut copy = vec![0; U as usize];
            segment.memory.read(segment.layout.payload_off(0), &mut copy).unwrap();
            valid.then_some(copy)
        };
        let (took, copy) = first.race(retire, view);
        met.count(copy.is_some());
        reused.count(took);
        assert!(copy.is_none_or(|copy| copy == payload(1, U)), "[I9] overwritten under a view");
    });
    tally.met_both();
    reuse.met_both();
}
