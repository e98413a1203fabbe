//! The owner's index against a map, with what a reader finds after every step.

use super::*;
use crate::heap::{Heap, HeapConfig};
use crate::memory::AnonMemory;
use proptest::prelude::*;
use std::collections::BTreeMap;

fn heap(slots: u64) -> Heap {
    let config = HeapConfig { arena_bytes: slots * 4096, ..HeapConfig::default() };
    let memory = Arc::new(AnonMemory::new(config.segment_bytes()).unwrap());
    Heap::format(memory, &config).unwrap()
}

/// Entries that a reader finds.
fn led_to(heap: &Heap, key: KeyId) -> Vec<(u32, u64)> {
    let buckets = buckets_of(&heap.layout().index, key).unwrap();
    let entries = buckets.iter().flat_map(|b| probe(&**heap.memory(), *b, key));
    entries.map(|e| (e.slot, e.epoch_low)).collect()
}

/// Keys that fall into a few buckets.
fn key(n: u8) -> KeyId {
    KeyId { hash: u64::from(n % 3), check: u64::from(n) << 1 }
}

proptest! {
    #[test]
    fn every_entry_is_found_by_its_owner_and_readers_are_led_to_no_other(
        steps in prop::collection::vec((any::<bool>(), 0u8..40, 0u32..64, 1u32..3), 1..200)
    ) {
        let heap = heap(64);
        let mut index = Index::empty(heap.memory().clone(), heap.layout().index);
        let mut model: BTreeMap<(u8, u32, u32), ()> = BTreeMap::new();
        for (insert, k, slot, epoch) in steps {
            if insert {
                index.insert(key(k), slot, epoch);
                model.insert((k, slot, epoch), ());
            } else {
                index.remove(key(k), slot, epoch);
                model.remove(&(k, slot, epoch));
            }
            let mut seen = 0;
            for k in 0..40 {
                let mine: Vec<_> = model.keys().filter(|(key, ..)| *key == k).collect();
                for (_, slot, _) in &mine {
                    prop_assert_eq!(index.find(key(k), |s| s == *slot), Some(*slot));
                }
                prop_assert_eq!(index.find(key(k), |_| true).is_some(), !mine.is_empty());
                let led = led_to(&heap, key(k));
                seen += led.len() as u64;
                for (slot, epoch) in led {
                    let known = mine.iter().any(|(_, s, e)| *s == slot && u64::from(*e) == epoch);
                    prop_assert!(known, "led to slot {} at {}", slot, epoch);
                }
            }
            // Nothing is lost: what a reader does not find is what has overflowed.
            prop_assert_eq!(seen + index.overflowed(), model.len() as u64);
        }
    }
}

#[test]
fn a_place_that_is_given_up_goes_to_an_entry_that_had_none() {
    let heap = heap(64);
    let mut index = Index::empty(heap.memory().clone(), heap.layout().index);
    let keys: Vec<_> = (0..17).map(|i| KeyId { hash: 0, check: i }).collect();
    for (slot, key) in keys.iter().enumerate() {
        index.insert(*key, slot as u32, 1);
    }
    assert_eq!(index.overflowed(), 1, "two buckets hold sixteen");
    assert_eq!(led_to(&heap, keys[16]), []);
    index.remove(keys[3], 3, 1);
    assert_eq!((index.overflowed(), led_to(&heap, keys[16])), (0, vec![(16, 1)]));
    assert_eq!(led_to(&heap, keys[3]), []);
}

#[test]
fn an_index_made_anew_leads_nowhere() {
    let heap = heap(64);
    let mut index = Index::empty(heap.memory().clone(), heap.layout().index);
    (0..40).for_each(|n| index.insert(key(n), u32::from(n), 7));
    Index::empty(heap.memory().clone(), heap.layout().index);
    assert!((0..40).all(|n| led_to(&heap, key(n)).is_empty()));
}

#[test]
fn an_entry_is_about_the_epochs_whose_low_bits_it_has() {
    let k = key(9);
    let entry = Entry::of_word(word_of(k, 5, 4096 + 3), k).unwrap();
    assert_eq!((entry.slot, entry.is_about(3), entry.is_about(4096 + 3)), (5, true, true));
    assert!(!entry.is_about(4));
    assert_eq!(Entry::of_word(word_of(k, 5, 1), key(10)), None);
    assert_eq!(Entry::of_word(0, KeyId { hash: 0, check: 0 }), None);
}

#[test]
fn an_index_takes_at_most_32_bytes_a_slot_and_two_buckets() {
    for slots in [1u64, 3, 8, 1000, 1 << 20] {
        let bytes = region_bytes(slots);
        assert!(bytes >= slots * 16 && (bytes <= slots * 32 || bytes == 128), "{slots}: {bytes}");
        assert!(fits(&Region { offset: 0, len: bytes }));
    }
    assert!(fits(&Region::default()) && !fits(&Region { offset: 0, len: 64 }));
    assert!(!fits(&Region { offset: 0, len: 192 }));
}
