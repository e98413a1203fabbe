//! The order of the stores on which other processes rely, recorded by a memory.

use super::*;
use crate::layout::{CTL_BYTES, EXT_OFF, HEADER_BYTES, MAGIC};
use crate::memory::Memory;
use crate::op::Op;
use crate::testkit::MemoryDouble;
use std::sync::Mutex;

#[derive(Debug)]
struct Recorder {
    memory: AnonMemory,
    stores: Mutex<Vec<(u64, u64)>>,
}

impl Recorder {
    fn new(bytes: u64) -> Arc<Recorder> {
        let memory = AnonMemory::new(bytes).unwrap();
        Arc::new(Recorder { memory, stores: Mutex::default() })
    }

    /// Word stores since the last call.
    fn taken(&self) -> Vec<(u64, u64)> {
        std::mem::take(&mut self.stores.lock().unwrap())
    }
}

impl MemoryDouble for Recorder {
    fn inner(&self) -> &dyn Memory {
        &self.memory
    }
    fn store(&self, offset: u64, value: u64) -> Result<(), StoreError> {
        self.stores.lock().unwrap().push((offset, value));
        self.memory.store(offset, value)
    }
}

#[test]
fn words_are_stored_in_the_order_that_others_rely_on() {
    let config = HeapConfig { arena_bytes: 8192, quarantine_ms: 5, ..HeapConfig::default() };
    let memory = Recorder::new(config.segment_bytes());
    let heap = Heap::format(memory.clone(), &config).unwrap();
    let (first, second) = (CTL_BYTES, CTL_BYTES + HEADER_BYTES);
    let armed = |at: u64, epoch| {
        [(at + PUBLISH_OFF, reserved(epoch)), (at + OWNER_OFF, word(flag::LIVE, epoch))]
    };
    let mut formatted = vec![(EXT_OFF, 0)];
    formatted.extend(armed(first, 1).into_iter().chain(armed(second, 1)));
    formatted.push((EXT_OFF, MAGIC));
    assert_eq!(memory.taken(), formatted, "the magic is first taken away and comes last");

    let index = heap.layout().index;
    let mut slots = Slots::fresh(heap);
    let at = put(&mut slots, 1, 1, KEYS.id(b"k"));
    let producers = [(second + PUBLISH_OFF, writing(1))];
    let mut stored = memory.taken();
    let (entry, led) = stored.pop().unwrap();
    assert_eq!(stored, producers, "of the header an owner stores nothing before it retires");
    assert!(led != 0 && (index.offset..index.offset + index.len).contains(&entry));
    slots.retire(1, 1, true, 0).unwrap();
    assert_eq!(memory.taken(), [(second + OWNER_OFF, word(0, 1)), (entry, 0)]);
    assert_eq!(slots.due(Q), [Freed { slot: 1, epoch: 1, extent: at }]);
    assert_eq!(memory.taken(), armed(second, 2), "not LIVE before it is RESERVED");
}

#[test]
fn i4_a_producers_verbs_are_fields_then_writing_then_pages_then_ready() {
    let (header, payload) = (4096, 8192);
    let object = Publication::new((header, 7), KEYS.id(b"k"), &ObjectDesc::at(payload, 100, 4096));
    let bytes = [1; 100];
    let fields = (header, PRODUCER_FIELDS);
    let publish = (header + PUBLISH_OFF, 8);
    let ranges = |ops: &[Op<'_>]| ops.iter().map(Op::range).collect::<Vec<_>>();
    assert_eq!(ranges(&object.announce()), [fields, publish]);
    assert_eq!(ranges(&object.whole(&bytes)), [fields, publish, (payload, 100), publish]);
    assert_eq!(object.page(50, &bytes[50..]).range(), (payload + 50, 50));
    let [flush, ready_word] = object.publish();
    assert!(matches!(flush, Op::Flush), "pages of several connections land first");
    let Op::CompareSwap { offset, expect, new, .. } = ready_word else {
        panic!("READY is never a plain store: {ready_word:?}");
    };
    assert_eq!((offset, expect, new), (publish.0, writing(7), ready(7)));
}

#[test]
fn i11_a_producer_is_told_whether_its_ready_took_and_else_what_stands_there() {
    let mut slots = Slots::fresh(heap(2));
    let heap = slots.heap().clone();
    let at = extent(&heap, 0, 1);
    let key = KEYS.id(b"k");
    let header = heap.layout().header_off(0);
    let object = Publication::new((header, 1), key, &ObjectDesc::at(at.offset, 100, 4096));
    let run = |ops: &mut [Op<'_>]| ops.iter_mut().for_each(|op| op.run(&**heap.memory()).unwrap());
    slots.open(0, 1, at).unwrap();
    let mut first = object.whole(&[7; 100]);
    run(&mut first);
    assert_eq!(object.took(&first), Ok(()));
    // A producer that repeats READY did not publish, nor did one whose plan had ended before.
    let mut again = object.publish();
    run(&mut again);
    assert_eq!(object.took(&again), Err(ready(1)));
    slots.retire(0, 1, true, 0).unwrap();
    slots.due(Q);
    let mut late = object.publish();
    run(&mut late);
    assert_eq!(object.took(&late), Err(reserved(2)));
    // A batch without READY published nothing.
    assert_eq!(object.took(&object.announce()), Err(0));
}
