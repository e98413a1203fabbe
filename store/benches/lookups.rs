//! The cost of a batch of location lookups, including hashing of 32-byte keys and validation of
//! headers: `cargo bench -p nkv-store --bench lookups`. A million live objects, whose payloads are
//! never touched; keys in random order. Prints medians of nanoseconds a key; asserts nothing.
#![expect(clippy::unwrap_used, reason = "a measurement ends where it cannot go on")]

use nkv_store::clock::{BootClock, Clock};
use nkv_store::index::Index;
use nkv_store::object::{ObjectDesc, Publication};
use nkv_store::reader::Reader;
use nkv_store::{Extent, Heap, HeapConfig, KeyHasher, KeyId, SegmentName, Slots, random_u64, shm};
use std::hint::black_box;

const OBJECTS: u32 = 1_000_000;
const UNIT: u64 = 4096;
const BATCH: usize = 128;
const PASSES: usize = 5;
const KEYS: KeyHasher = KeyHasher::new([7; 16]);

fn name(there: bool, index: u32) -> [u8; 32] {
    let mut name = [b'.'; 32];
    name[16] = if there { b'+' } else { b'-' };
    name[20..28].copy_from_slice(format!("{index:08}").as_bytes());
    name
}

fn filled(config: &HeapConfig) -> Reader {
    let named = SegmentName { job: "lookups".into(), rank: 0, incarnation: random_u64() };
    let memory = shm::create(&named, config.segment_bytes(), shm::Allocation::LATER).unwrap();
    let heap = Heap::format(std::sync::Arc::new(memory), config).unwrap();
    let (mut slots, mut index) =
        (Slots::fresh(heap.clone()), Index::empty(heap.memory().clone(), heap.layout().index));
    let g = *heap.layout();
    for slot in 0..OBJECTS {
        let extent = Extent { offset: g.arena.offset + u64::from(slot) * UNIT, len: UNIT };
        let key = KEYS.id(&name(true, slot));
        slots.open(slot, 1, extent).unwrap();
        let object =
            Publication::new((g.header_off(slot), 1), key, &ObjectDesc::at(extent.offset, 8, 8));
        for op in object.announce().iter_mut().chain(&mut object.publish()) {
            op.run(&**heap.memory()).unwrap();
        }
        slots.commit(slot, 1).unwrap();
        index.insert(key, slot, 1);
    }
    Reader::of(&heap).unwrap()
}

fn main() {
    let arena_bytes = u64::from(OBJECTS) * UNIT;
    let reader = filled(&HeapConfig { arena_bytes, ..HeapConfig::default() });
    for there in [true, false] {
        let mut names: Vec<_> = (0..OBJECTS).map(|i| name(there, i)).collect();
        for last in (1..names.len()).rev() {
            names.swap(last, (random_u64() % (last as u64 + 1)) as usize);
        }
        let (mut found, mut times) = (0, Vec::new());
        for names in names.chunks(BATCH).cycle().take(names.len() / BATCH * PASSES) {
            let start = BootClock.now_ns();
            let mut ids = [KeyId { hash: 0, check: 0 }; BATCH];
            ids.iter_mut().zip(names).for_each(|(id, name)| *id = KEYS.id(name));
            let mut hits = [None; BATCH];
            reader.find_many(&ids[..names.len()], &mut hits[..names.len()]);
            times.push((BootClock.now_ns() - start) as f64 / names.len() as f64);
            found += black_box(&hits).iter().filter(|hit| hit.is_some()).count();
        }
        times.sort_unstable_by(f64::total_cmp);
        let [p10, p50] = [times.len() / 10, times.len() / 2].map(|at| times[at]);
        let what = if there { "hits" } else { "misses" };
        println!(
            "{what}: p50 {p50:.0} ns a key ({:.1} M/s), p10 {p10:.0}, found {found}",
            1e3 / p50
        );
    }
}
