//! Producers that claim concurrently, beside the owner that accepts and a reader.

use crate::log::{U, log, payload};
use crate::segment::{Tally, check};
use nkv_store::layout::{OWNER_OFF, PUBLISH_OFF, flag, word};
use nkv_store::memory::Memory;
use nkv_store::object::ready;

#[test]
fn i4_i13_claims_of_two_producers_are_apart_and_accepted_whole_or_not_yet() {
    let tally = Tally::default();
    let met = tally.clone();
    check(4, move |first| {
        let mut owner = log(4, &[0, 1]);
        let (one, two) = (owner.segment.clone(), owner.segment.clone());
        let producers = move || {
            let other = loom::thread::spawn(move || two.put(2).unwrap());
            let slot = one.put(1).unwrap();
            (slot, other.join().unwrap())
        };
        let accept = move || {
            owner.log.accept(0, &mut owner.index).unwrap();
            // What it accepted it can read, and so can every process it notifies.
            for object in owner.index.0.values() {
                let name = 1 + u64::from(object.key == crate::log::key(2));
                let copy = owner.segment.read(object.slot, object.epoch, name);
                assert_eq!(copy, Some(payload(name, U)), "[I4] accepted before it was whole");
            }
            owner
        };
        let ((one, two), mut owner) = first.race(producers, accept);
        assert_eq!(one + two, 1, "[I13] one slot for two claims");
        met.count(owner.index.0.is_empty());
        owner.log.accept(0, &mut owner.index).unwrap();
        for (name, slot) in [(1, one), (2, two)] {
            assert_eq!(owner.segment.read(slot, 1, name), Some(payload(name, U)));
        }
        assert_eq!(owner.log.unsettled_bytes().unwrap(), 0);
    });
    tally.met_both();
}

#[test]
fn i15_an_owner_word_is_seen_live_only_with_ready_and_the_whole_object() {
    let tally = Tally::default();
    let met = tally.clone();
    check(3, move |first| {
        let mut owner = log(4, &[0]);
        let (producer, reader) = (owner.segment.clone(), owner.segment.clone());
        let both = move || {
            let put = loom::thread::spawn(move || producer.put(1).unwrap());
            owner.log.accept(0, &mut owner.index).unwrap();
            put.join().unwrap();
            owner.log.accept(0, &mut owner.index).unwrap();
        };
        let observe = move || {
            let header = reader.layout.header_off(0);
            let live = reader.memory.load(header + OWNER_OFF).unwrap() == word(flag::LIVE, 1);
            let publish = reader.memory.load(header + PUBLISH_OFF).unwrap();
            assert!(!live || publish == ready(1), "[I15] LIVE before READY");
            let copy = reader.read(0, 1, 1);
            assert!(!live || copy.is_some(), "[I2] LIVE and READY, and not readable");
            assert!(copy.is_none_or(|copy| copy == payload(1, U)), "[I4]");
            live
        };
        let ((), live) = first.race(both, observe);
        met.count(live);
    });
    tally.met_both();
}
