//! What a reader on the same host finds; it accepts no copy that was overtaken.

use super::*;
use crate::arena::Extent;
use crate::heap::HeapConfig;
use crate::key::KEYS;
use crate::memory::{AnonMemory, Memory, SplitMemory};
use crate::object::{ObjectDesc, Publication, Slots};
use crate::testkit::MemoryDouble;
use std::sync::Arc;

const BYTES: usize = 300;

fn slots() -> Slots {
    let config = HeapConfig { arena_bytes: 16 * 4096, quarantine_ms: 1, ..HeapConfig::default() };
    let memory = Arc::new(AnonMemory::new(config.segment_bytes()).unwrap());
    Slots::fresh(Heap::format(memory, &config).unwrap())
}

/// Memory that the CPU cannot load from, as VRAM.
#[derive(Debug)]
struct Device(AnonMemory);

impl MemoryDouble for Device {
    fn inner(&self) -> &dyn Memory {
        &self.0
    }
}

fn put(slots: &mut Slots, slot: u32, epoch: u32, key: KeyId, with: u8) {
    put_bytes(slots, slot, epoch, key, &[with; BYTES]);
}

fn put_bytes(slots: &mut Slots, slot: u32, epoch: u32, key: KeyId, bytes: &[u8]) {
    let heap = slots.heap().clone();
    let g = heap.layout();
    let len = (bytes.len() as u64).next_multiple_of(4096);
    let extent = Extent { offset: g.arena.offset + u64::from(slot) * 4096, len };
    slots.open(slot, epoch, extent).unwrap();
    let at = (g.header_off(slot), epoch);
    let object =
        Publication::new(at, key, &ObjectDesc::at(extent.offset, bytes.len() as u64, 4096));
    for op in &mut object.whole(bytes) {
        op.run(&**heap.memory()).unwrap();
    }
    slots.commit(slot, epoch).unwrap();
}

fn key(n: u32) -> KeyId {
    KEYS.id(&n.to_le_bytes())
}

fn got(reader: &Reader, key: KeyId) -> Option<Vec<u8>> {
    let hit = reader.find(key)?;
    let mut bytes = vec![0; hit.header.bytes_total as usize];
    reader.copy(&hit, &mut bytes).then_some(bytes)
}

#[test]
fn i2_what_is_committed_is_found_and_what_is_not_is_not() {
    let mut slots = slots();
    let reader = Reader::of(slots.heap()).unwrap();
    for n in 0..10 {
        assert_eq!(got(&reader, key(n)), None);
        put(&mut slots, n, 1, key(n), n as u8);
    }
    for n in 0..10 {
        assert_eq!(got(&reader, key(n)), Some(vec![n as u8; BYTES]));
    }
    let keys: Vec<_> = (0..20).map(key).collect();
    let mut found = vec![None; 20];
    reader.find_many(&keys, &mut found);
    let there = found.iter().map(|hit| hit.map(|hit| (hit.slot, hit.epoch())));
    assert!(there.eq((0..20).map(|n| (n < 10).then_some((n, 1)))));
    slots.retire(3, 1, true, 0).unwrap();
    assert_eq!((reader.find(key(3)), reader.read_slot(3, key(3))), (None, None));
    assert_eq!(reader.read_slot(4, key(5)), None, "another key's slot");
}

#[test]
fn i7_a_copy_that_a_retire_or_a_reuse_overtook_is_not_believed() {
    let mut slots = slots();
    let reader = Reader::of(slots.heap()).unwrap();
    put(&mut slots, 0, 1, key(0), 7);
    let hit = reader.find(key(0)).unwrap();
    let mut bytes = [0; BYTES];
    assert!(reader.copy(&hit, &mut bytes) && reader.still(&hit));
    slots.retire(0, 1, true, 0).unwrap();
    assert!(!reader.copy(&hit, &mut bytes), "retired");
    assert!(!reader.still(&hit));
    assert_eq!(slots.due(u64::MAX).len(), 1);
    // The same key in the same slot again is still another object [I3].
    put(&mut slots, 0, 2, key(0), 7);
    assert!(!reader.copy(&hit, &mut bytes) && !reader.still(&hit));
    assert_eq!(got(&reader, key(0)), Some(vec![7; BYTES]));
}

#[test]
fn i7_a_copy_by_several_threads_is_whole_and_believed_no_more_than_one() {
    let bytes: Vec<u8> = (0..40_001u32).map(|i| (i / 3) as u8).collect();
    let mut slots = slots();
    let reader = Reader::of(slots.heap()).unwrap().with_stripes(Stripes::new(4, 0));
    assert_eq!(reader.stripes.of(bytes.len() as u64), 4);
    put_bytes(&mut slots, 0, 1, key(0), &bytes);
    let hit = reader.find(key(0)).unwrap();
    assert!(got(&reader, key(0)) == Some(bytes.clone()));
    slots.retire(0, 1, true, 0).unwrap();
    assert!(!reader.copy(&hit, &mut vec![0; bytes.len()]), "retired");
    slots.due(u64::MAX);
    put_bytes(&mut slots, 0, 2, key(0), &bytes);
    assert!(!reader.copy(&hit, &mut vec![0; bytes.len()]), "another object");
    assert!(got(&reader, key(0)) == Some(bytes));
}

#[test]
fn i2_an_entry_that_outlived_its_object_leads_to_nothing() {
    let mut slots = slots();
    let heap = slots.heap().clone();
    let reader = Reader::of(&heap).unwrap();
    put(&mut slots, 0, 1, key(0), 1);
    let index = heap.layout().index;
    let mut stale = vec![0; index.len as usize];
    heap.memory().read(index.offset, &mut stale).unwrap();
    slots.retire(0, 1, true, 0).unwrap();
    slots.due(u64::MAX);
    put(&mut slots, 0, 2, key(9), 9);
    heap.memory().write(index.offset, &stale).unwrap();
    assert_eq!(reader.find(key(0)), None, "its slot is another key's");
    // Accepted only for its own epoch, even if the key is there again.
    slots.retire(0, 2, true, 0).unwrap();
    slots.due(u64::MAX);
    put(&mut slots, 0, 3, key(0), 3);
    heap.memory().write(index.offset, &stale).unwrap();
    assert_eq!(reader.find(key(0)), None);
}

#[test]
fn a_header_that_lies_about_its_payload_is_not_followed() {
    let mut slots = slots();
    let heap = slots.heap().clone();
    let reader = Reader::of(&heap).unwrap();
    put(&mut slots, 0, 1, key(0), 1);
    let at = heap.layout().header_off(0);
    for (offset, value) in [(16, 0u64), (16, u64::MAX - 3), (24, u64::MAX)] {
        let before = heap.memory().load(at + offset).unwrap();
        heap.memory().store(at + offset, value).unwrap();
        assert_eq!(reader.find(key(0)), None, "{offset}: {value}");
        heap.memory().store(at + offset, before).unwrap();
    }
    assert!(reader.find(key(0)).is_some());
}

#[test]
fn i9_a_pinned_slot_is_armed_only_once_nobody_looks() {
    let mut slots = slots();
    let reader = Reader::of(slots.heap()).unwrap();
    let g = *slots.heap().layout();
    let pins = crate::pins::Pins::new(reader.memory().clone(), &g.pins, 0).unwrap();
    let pins = Arc::new(pins);
    put(&mut slots, 0, 1, key(0), 5);
    put(&mut slots, 1, 1, key(1), 6);
    let hit = reader.find(key(0)).unwrap();
    let place = (hit.header.payload_base, hit.header.bytes_total);
    let view = pins.pin_bytes((0, 1), place, || reader.still(&hit)).unwrap();
    slots.retire(0, 1, true, 0).unwrap();
    slots.retire(1, 1, true, 0).unwrap();
    let freed = slots.due(10_000_000);
    assert_eq!(freed.iter().map(|f| f.slot).collect::<Vec<_>>(), [1]);
    assert_eq!(slots.held_longer(11_000_000, 10_000_000), (1, 0), "due at 1 ms");
    assert_eq!(slots.held_longer(11_000_001, 10_000_000), (1, 1));
    assert!(slots.due(u64::MAX).is_empty());
    assert_eq!(&*view, [5; BYTES]);
    let late = pins.pin_bytes((0, 1), place, || reader.still(&hit));
    assert_eq!(late.unwrap_err(), crate::pins::NoPin::Changed, "after the retire");
    drop(view);
    assert_eq!(slots.due(u64::MAX).len(), 1);
    assert_eq!(slots.held_longer(u64::MAX, 0), (0, 0));
}

#[test]
fn i2_i7_a_payload_that_cannot_be_loaded_is_found_by_loads_and_read_through_its_memory() {
    let config = HeapConfig { arena_bytes: 16 * 4096, quarantine_ms: 1, ..HeapConfig::default() };
    let layout = *slots().heap().layout();
    let control = Arc::new(AnonMemory::new(layout.payloads().offset).unwrap());
    let payload = Arc::new(Device(AnonMemory::new(layout.payloads().len).unwrap()));
    let memory = Arc::new(SplitMemory::new(control, payload.clone()).unwrap());
    let mut slots = Slots::fresh(Heap::format(memory.clone(), &config).unwrap());
    let reader = Reader::of(slots.heap()).unwrap();
    assert!(!reader.maps_payloads());
    put(&mut slots, 2, 1, key(2), 7);
    assert_eq!(got(&reader, key(2)), Some(vec![7; BYTES]));
    let mut there = [0; BYTES];
    Memory::read(&*payload, 2 * 4096, &mut there).unwrap();
    assert_eq!(there, [7; BYTES], "in the payload's memory, from its own offset 0 on");
    let hit = reader.find(key(2)).unwrap();
    let place = (hit.header.payload_base, hit.header.bytes_total);
    let pins = crate::pins::Pins::new(reader.memory().clone(), &layout.pins, 0).unwrap();
    assert!(Arc::new(pins).pin_bytes((2, 1), place, || true).is_err(), "no bytes to borrow");
    slots.retire(2, 1, true, 0).unwrap();
    assert_eq!(got(&reader, key(2)), None);
    let device: Arc<dyn Memory> = payload;
    assert!(SplitMemory::new(device.clone(), device).is_none(), "control words must be loadable");
    let (end, bytes) = (memory.len(), &mut [0; 8][..]);
    assert!(memory.read(end - 7, bytes).is_err() && memory.read(u64::MAX, bytes).is_err());
    assert!(memory.load(end).is_err() && memory.write(end - 7, bytes).is_err());
}
