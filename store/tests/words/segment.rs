//! A segment whose words are under the model checker, and the parties as one function each: an
//! object written, read, or retired. The orders are chosen in `nkv_store::words`, not here.

use loom::sync::atomic::{AtomicU64, fence};
use nkv_store::layout::{CTL_BYTES, HEADER_BYTES, KEY_CHECK_OFF, OWNER_OFF, PUBLISH_OFF, Region};
use nkv_store::memory::Memory;
use nkv_store::object::{Expect, ObjectDesc, Publication, Reading, Slots};
use nkv_store::op::Op;
use nkv_store::words::{self, WORDWISE_BYTES, Words};
use nkv_store::{AnonMemory, Export, Extent, Heap, HeapConfig, KeyHasher, KeyId, StoreError};
use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes of every payload: enough that a half of it is copied as a whole and not word by word.
pub const BYTES: usize = 4 * WORDWISE_BYTES;
/// The words of a payload that the model watches; all others stay zero.
const WATCHED: [u64; 2] = [0, BYTES as u64 - 8];
/// Words of a header that change during a model.
const HEADER: [u64; 5] = [0, 16, PUBLISH_OFF, OWNER_OFF, KEY_CHECK_OFF];
/// Quarantine in nanoseconds.
pub const Q: u64 = 5_000_000;

/// Memory in which the words of interest to a model are under the model checker; the rest, written
/// before the model's threads start or never, is plain.
#[derive(Debug)]
pub struct Modelled {
    plain: AnonMemory,
    words: BTreeMap<u64, AtomicU64>,
    /// The word that is stored to while others compare-and-swap it. The checker would let a later
    /// load miss a store that came after a swap; as an exchange, the store is in the swap's order.
    contended: Option<u64>,
}

impl Modelled {
    pub fn new(bytes: u64, watched: impl Iterator<Item = u64>, contended: Option<u64>) -> Modelled {
        let plain = AnonMemory::new(bytes).unwrap();
        let words = watched.map(|at| (at, AtomicU64::new(0))).collect();
        Modelled { plain, words, contended }
    }

    fn inside(&self, offset: u64, len: usize) -> impl Iterator<Item = (usize, &AtomicU64)> {
        let words = self.words.range(offset..offset + len as u64);
        words.map(move |(at, word)| ((at - offset) as usize, word))
    }
}

impl Words for Modelled {
    fn check(&self, what: &'static str, offset: u64, len: u64) -> Result<(), StoreError> {
        let segment_len = self.plain.len();
        let inside = offset.checked_add(len).is_some_and(|end| end <= segment_len);
        if inside {
            Ok(())
        } else {
            Err(StoreError::OutOfBounds { what, offset, len, segment_len })
        }
    }

    fn load_word(&self, offset: u64, order: Ordering) -> Result<u64, StoreError> {
        self.words.get(&offset).map_or_else(|| self.plain.load(offset), |w| Ok(w.load(order)))
    }

    fn store_word(&self, offset: u64, value: u64, order: Ordering) -> Result<(), StoreError> {
        match self.words.get(&offset) {
            Some(word) if self.contended == Some(offset) => drop(word.swap(value, order)),
            Some(word) => word.store(value, order),
            None => self.plain.store(offset, value)?,
        }
        Ok(())
    }

    fn swap_word(
        &self,
        offset: u64,
        expect: u64,
        new: u64,
        done: Ordering,
        failed: Ordering,
    ) -> Result<u64, StoreError> {
        match self.words.get(&offset) {
            Some(word) => {
                let found = word.compare_exchange(expect, new, done, failed);
                Ok(found.unwrap_or_else(|found| found))
            }
            None => self.plain.compare_swap(offset, expect, new),
        }
    }

    fn add_word(&self, offset: u64, add: u64, order: Ordering) -> Result<u64, StoreError> {
        match self.words.get(&offset) {
            Some(word) => Ok(word.fetch_add(add, order)),
            None => self.plain.fetch_add(offset, add),
        }
    }

    fn copy_out(&self, offset: u64, dst: &mut [u8]) -> Result<(), StoreError> {
        self.plain.read(offset, dst)?;
        for (at, word) in self.inside(offset, dst.len()) {
            dst[at..at + 8].copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
        }
        Ok(())
    }

    fn copy_in(&self, offset: u64, src: &[u8]) -> Result<(), StoreError> {
        for (at, word) in self.inside(offset, src.len()) {
            let bytes = src[at..at + 8].try_into().unwrap();
            word.store(u64::from_ne_bytes(bytes), Ordering::Relaxed);
        }
        if self.inside(offset, src.len()).next().is_none() {
            self.plain.write(offset, src)?;
        }
        Ok(())
    }

    fn fence(&self, order: Ordering) {
        fence(order);
    }
}

impl Memory for Modelled {
    fn len(&self) -> u64 {
        self.plain.len()
    }
    fn export(&self) -> Export {
        Export::Private
    }
    fn host_base(&self) -> Option<NonNull<u8>> {
        None
    }
    fn read(&self, offset: u64, dst: &mut [u8]) -> Result<(), StoreError> {
        words::read(self, offset, dst)
    }
    fn write(&self, offset: u64, src: &[u8]) -> Result<(), StoreError> {
        words::write(self, offset, src)
    }
    fn load(&self, offset: u64) -> Result<u64, StoreError> {
        words::load(self, offset)
    }
    fn store(&self, offset: u64, value: u64) -> Result<(), StoreError> {
        words::store(self, offset, value)
    }
    fn compare_swap(&self, offset: u64, expect: u64, new: u64) -> Result<u64, StoreError> {
        words::compare_swap(self, offset, expect, new)
    }
    fn fetch_add(&self, offset: u64, add: u64) -> Result<u64, StoreError> {
        words::fetch_add(self, offset, add)
    }
    fn flush(&self) {
        words::flush(self);
    }
}

/// A fresh segment of two slots; the words of both headers and of the first extent are modelled.
pub fn segment() -> Slots {
    segment_with(None)
}

/// As `segment`, where the publish word of slot 0 is compared and swapped while its owner stores.
pub fn segment_of_a_contended_word() -> Slots {
    segment_with(Some(CTL_BYTES + PUBLISH_OFF))
}

fn segment_with(contended: Option<u64>) -> Slots {
    let config = HeapConfig {
        arena_bytes: 8192,
        quarantine_ms: (Q / 1_000_000) as u32,
        incarnation: 1,
        boot_id: 1,
        ..CONFIG.with(Clone::clone)
    };
    let [index, pins] = regions(&config);
    let headers = [0, 1].map(|slot| CTL_BYTES + HEADER_BYTES * slot);
    let header_words = headers.into_iter().flat_map(|at| HEADER.map(|word| at + word));
    let payload = config.segment_bytes() - 8192;
    // The first entry of the key's bucket, and the first pin with the count of pins before it.
    let entry = nkv_store::index::buckets_of(&index, key()).unwrap()[0];
    let beside = [entry, pins.offset, pins.offset + 64];
    let watched = header_words.chain(WATCHED.map(|word| payload + word)).chain(beside);
    let memory = Arc::new(Modelled::new(config.segment_bytes(), watched, contended));
    Slots::fresh(Heap::format(memory, &config).unwrap())
}

/// Where index and pins of a segment lie.
fn regions(config: &HeapConfig) -> [Region; 2] {
    thread_local! {
        static FOUND: std::cell::OnceCell<[Region; 2]> = const { std::cell::OnceCell::new() };
    }
    FOUND.with(|found| {
        *found.get_or_init(|| {
            let memory = Arc::new(AnonMemory::new(config.segment_bytes()).unwrap());
            let g = *Heap::format(memory, config).unwrap().layout();
            [g.index, g.pins]
        })
    })
}

thread_local! {
    // Made once: its default asks the kernel for random numbers.
    static CONFIG: HeapConfig = HeapConfig::default();
}

/// The extent that all objects of a model share.
pub fn extent(heap: &Heap) -> Extent {
    Extent { offset: heap.layout().arena.offset, len: 4096 }
}

/// The payload of an epoch: the epoch in every watched word.
pub fn payload(epoch: u32) -> Vec<u8> {
    let mut bytes = vec![0; BYTES];
    for at in WATCHED.map(|at| at as usize) {
        bytes[at..at + 8].copy_from_slice(&u64::from(epoch).to_ne_bytes());
    }
    bytes
}

/// The key hasher of the tests.
pub const KEYS: KeyHasher = KeyHasher::new([7; 16]);

pub fn key() -> KeyId {
    KEYS.id(b"k")
}

/// What the producer of an epoch writes.
pub fn publication(heap: &Heap, slot: u32, epoch: u32) -> Publication {
    let header_off = heap.layout().header_off(slot);
    let (offset, bytes) = (extent(heap).offset, BYTES as u64);
    Publication::new((header_off, epoch), key(), &ObjectDesc::at(offset, bytes, 4096))
}

pub fn run(heap: &Heap, ops: &mut [Op<'_>]) {
    for op in ops {
        op.run(heap.memory().as_ref()).unwrap();
    }
}

/// A whole put, as one chain; true if READY was stored.
pub fn put(heap: &Heap, slot: u32, epoch: u32) -> bool {
    let (object, bytes) = (publication(heap, slot, epoch), payload(epoch));
    let mut ops = object.whole(&bytes);
    run(heap, &mut ops);
    object.took(&ops).is_ok()
}

/// An object of epoch 1 in slot 0, committed.
pub fn live() -> Slots {
    let mut slots = segment();
    let heap = slots.heap().clone();
    slots.open(0, 1, extent(&heap)).unwrap();
    assert!(put(&heap, 0, 1));
    assert!(slots.commit(0, 1).unwrap().newly);
    slots
}

/// What a reader expects that has a location with an epoch, or without one.
pub fn expect(heap: &Heap, epoch: Option<u32>) -> Expect {
    let payload_base = extent(heap).offset;
    Expect { key: Some(key()), epoch, payload_base, bytes_total: BYTES as u64 }
}

/// A strict read of a slot: the copy, if it may be accepted.
pub fn read(heap: &Heap, slot: u32, epoch: Option<u32>) -> Option<Vec<u8>> {
    let mut reading = Reading::new(heap.layout().header_off(slot), expect(heap, epoch));
    let mut copy = vec![0; BYTES];
    run(heap, &mut reading.chain(&mut copy));
    reading.judge(&heap.layout().arena).is_ok().then_some(copy)
}

/// Counts the outcomes of a model's executions, so that a test can check that both occurred.
#[derive(Debug, Clone, Default)]
pub struct Tally(Arc<[AtomicUsize; 2]>);

impl Tally {
    pub fn count(&self, happened: bool) {
        self.0[usize::from(happened)].fetch_add(1, Ordering::Relaxed);
    }

    /// Asserts that it happened in some executions, and in others not.
    pub fn met_both(&self) {
        let [not, did] = [0, 1].map(|i| self.0[i].load(Ordering::Relaxed));
        println!("executions: {did} and {not}");
        assert!(not > 0 && did > 0, "the model never met both ends: {did} and {not}");
    }
}

/// Which party a model's executions start with. The checker looks for races backwards from what ran
/// last and misses some in which a party's own load came between: so both are tried.
#[derive(Debug, Clone, Copy)]
pub enum First {
    Left,
    Right,
}

impl First {
    /// Runs both at once; returns their results.
    pub fn race<L, R>(
        self,
        left: impl FnOnce() -> L + 'static,
        right: impl FnOnce() -> R + 'static,
    ) -> (L, R)
    where
        L: 'static,
        R: 'static,
    {
        match self {
            First::Left => {
                let other = loom::thread::spawn(right);
                (left(), other.join().unwrap())
            }
            First::Right => {
                let other = loom::thread::spawn(left);
                let right = right();
                (other.join().unwrap(), right)
            }
        }
    }
}

/// Tries `model` with at most so many preemptions in one execution.
pub fn check(preemptions: usize, model: impl Fn(First) + Clone + Sync + Send + 'static) {
    for first in [First::Left, First::Right] {
        let mut checker = loom::model::Builder::new();
        checker.preemption_bound = Some(preemptions);
        let model = model.clone();
        checker.check(move || model(first));
    }
}
