//! One object of the heap: a kernel gathers and publishes it, another waits for it and scatters it,
//! and a processor looks on. All steps are taken by one thread, so a seed is one run.

use nkv_gpu::kernels::{Descriptor, GatherPublish, ScatterResult, WaitScatter};
use nkv_ptx::{Execution, Launch, Module, Stale};
use nkv_store::layout::{flag, state, word};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

pub const EPOCH: u32 = 5;
const HASH: u64 = 0x1111_2222_3333_4444;
const CHECK: u64 = 0x5555_6666_7777_8888;
const PAYLOAD_BASE: u64 = 0x7000;
/// Words of the header, as in `ObjHeader`.
const FIELDS: [u64; 5] = [HASH, 3 | 1 << 32, PAYLOAD_BASE, 0, CHECK];
const PUBLISH: usize = 5;
const OWNER: usize = 7;
/// Words of the segment before the payload.
const PAYLOAD: usize = 32;
/// Bytes of the pages. With 8 threads the first needs the loop of four loads, the second the loop
/// of one, and the odd ones the tail; each begins at a multiple of 16.
const SIZES: [u64; 4] = [1104, 272, 155, 528];
/// A block needs its stages of 32 KiB more than once.
const BULK_SIZES: [u64; 4] = [131_088, 272, 160, 528];

/// What happens in a run besides the copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    Nothing,
    /// The owner retires the object so many steps after READY, and its bytes are used again.
    Retire(u64),
    /// The reader wants another key.
    OtherKey,
    /// Nobody publishes.
    NeverReady,
    /// The publish word is not what the writer expects.
    NotExpected,
}

/// What a run is made of.
pub struct Case<'a> {
    pub writer: &'a Module,
    pub gather: &'a str,
    pub reader: &'a Module,
    pub event: Event,
    pub seed: u64,
}

/// Memory of both sides. The segment is shared, the rest belongs to one kernel.
struct Heap {
    segment: Vec<AtomicU64>,
    source: Vec<u64>,
    target: Vec<u64>,
    gather: Vec<Descriptor>,
    scatter: Vec<Descriptor>,
    /// Both counters, what the writer found, the reader's result.
    words: [u64; 4],
    bytes: u64,
}

fn vec_words(bytes: u64) -> usize {
    bytes.div_ceil(16) as usize * 2
}

/// Address aligned to 16 in an array that is two words larger than needed.
fn aligned(at: *const u64) -> u64 {
    (at as u64).next_multiple_of(16)
}

impl Heap {
    fn new(sizes: &[u64], seed: u64) -> Heap {
        let room: usize = sizes.iter().map(|size| vec_words(*size)).sum();
        let value = |i: usize| (seed << 32 | i as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        let segment = (0..PAYLOAD + room + 2).map(|i| AtomicU64::new(!(i as u64))).collect();
        let mut heap = Heap {
            segment,
            source: (0..room + 2).map(value).collect(),
            target: vec![0; room + 2],
            gather: Vec::new(),
            scatter: Vec::new(),
            words: [0, 0, u64::MAX, 0],
            bytes: sizes.iter().sum(),
        };
        let (payload, source) = (heap.payload(), aligned(heap.source.as_ptr()));
        let target = aligned(heap.target.as_ptr());
        let mut at = 0;
        // Both sides have the pages in reverse order, each in memory of its own.
        let all: u64 = sizes.iter().map(|size| size.next_multiple_of(16)).sum();
        for &size in sizes {
            let mirrored = all - at - size.next_multiple_of(16);
            heap.gather.push(Descriptor { dst: payload + at, src: source + mirrored, size });
            heap.scatter.push(Descriptor { dst: target + mirrored, src: payload + at, size });
            at += size.next_multiple_of(16);
        }
        for (i, field) in FIELDS.into_iter().enumerate() {
            heap.segment[i].store(field, SeqCst);
        }
        heap.segment[3].store(heap.bytes, SeqCst);
        heap.segment[PUBLISH].store(word(state::WRITING, EPOCH), SeqCst);
        heap.segment[OWNER].store(word(flag::LIVE, EPOCH), SeqCst);
        heap
    }

    fn payload(&self) -> u64 {
        aligned(self.segment[PAYLOAD].as_ptr())
    }

    fn header(&self) -> u64 {
        self.segment.as_ptr() as u64
    }

    fn word(&self, i: usize) -> u64 {
        &raw const self.words[i] as u64
    }

    fn old(&self) -> Stale {
        let bytes = self.segment.iter().flat_map(|w| w.load(SeqCst).to_le_bytes()).collect();
        Stale { base: self.header(), bytes }
    }

    /// Whether the first copied bytes are those of the source, of each page.
    fn same(&self, copies: &[Descriptor], to: impl Fn(&Descriptor) -> u64) -> bool {
        copies.iter().zip(&self.gather).all(|(copy, from)| {
            (0..copy.size).all(|i| {
                let (a, b) = ((to(copy) + i) as *const u8, (from.src + i) as *const u8);
                // SAFETY: the descriptors lie in this heap's arrays.
                unsafe { a.read_volatile() == b.read_volatile() }
            })
        })
    }
}

/// Runs both kernels, interleaved by the seed. Returns what the reader found; the error says what
/// was wrong.
pub fn run(case: &Case<'_>) -> Result<ScatterResult, String> {
    let bulk = case.gather == nkv_gpu::kernels::GATHER_BULK;
    let heap = Heap::new(if bulk { &BULK_SIZES } else { &SIZES }, case.seed);
    if case.event == Event::NotExpected {
        heap.segment[PUBLISH].store(word(state::WRITING, EPOCH + 1), SeqCst);
    }
    let writer = case.writer.kernel(case.gather).ok_or("no such kernel")?;
    let reader = case.reader.kernel(nkv_gpu::kernels::WAIT_SCATTER).ok_or("no such kernel")?;
    let (write, read) = launches(case, &heap, bulk);
    let mut write = Execution::new(writer, &write).map_err(|e| e.to_string())?;
    let mut read = Execution::new(reader, &read).map_err(|e| e.to_string())?;
    let mut rng = case.seed.wrapping_mul(0x2545_F491_4F6C_DD1D) | 1;
    let (mut writing, mut reading) = (case.event != Event::NeverReady, true);
    let (mut published, mut since) = (false, 0);
    while writing || reading {
        rng = rng.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let first = (rng >> 33).is_multiple_of(2);
        // SAFETY: both kernels access the heap's memory only, which lives until they have ended.
        unsafe {
            if writing && (first || !reading) {
                writing = write.step().map_err(|e| e.to_string())?;
            } else if reading {
                reading = read.step().map_err(|e| e.to_string())?;
            }
        }
        let publish = heap.segment[PUBLISH].load(SeqCst);
        if !published && publish == word(state::READY, EPOCH) {
            published = true;
            if !heap.same(&heap.gather, |copy| copy.dst) {
                return Err("READY before the payload".to_owned());
            }
        }
        if published && case.event == Event::Retire(since) {
            retire(&heap);
        }
        since += u64::from(published);
    }
    judge(case, &heap, published)
}

fn launches(case: &Case<'_>, heap: &Heap, bulk: bool) -> (Launch, Launch) {
    let count = heap.gather.len() as u32;
    let write = GatherPublish {
        descriptors: heap.gather.as_ptr() as u64,
        count,
        done: heap.word(0),
        publish: heap.header() + PUBLISH as u64 * 8,
        expect: word(state::WRITING, EPOCH),
        ready: word(state::READY, EPOCH),
        found: heap.word(2),
    };
    let read = WaitScatter {
        header: heap.header(),
        key_hash: HASH,
        key_check: CHECK + u64::from(case.event == Event::OtherKey),
        epoch: EPOCH,
        payload_base: PAYLOAD_BASE,
        bytes: heap.bytes,
        spins: if case.event == Event::NeverReady { 20 } else { 1 << 30 },
        descriptors: heap.scatter.as_ptr() as u64,
        count,
        done: heap.word(1),
        result: heap.word(3),
    };
    // Where nothing is published, the reader's spins would not end.
    let spins = if case.event == Event::NotExpected { 20 } else { read.spins };
    let read = WaitScatter { spins, ..read };
    let shared_bytes = if bulk { nkv_gpu::kernels::BULK_SHARED_BYTES } else { 0 };
    let write = Launch {
        grid: 3,
        block: if bulk { 1 } else { 8 },
        args: write.args().to_vec(),
        seed: case.seed,
        drain: 20,
        shared_bytes,
        max_instructions: 1 << 20,
        ..Launch::default()
    };
    let read = Launch {
        grid: 2,
        block: 8,
        args: read.args().to_vec(),
        seed: case.seed + 1_000_000,
        stale: Some(heap.old()),
        max_instructions: 1 << 20,
        ..Launch::default()
    };
    (write, read)
}

/// The owner clears LIVE; then the bytes and the header are of another object.
fn retire(heap: &Heap) {
    heap.segment[OWNER].store(word(0, EPOCH), SeqCst);
    for payload in &heap.segment[PAYLOAD..] {
        payload.store(0xDEAD_DEAD_DEAD_DEAD, SeqCst);
    }
}

fn judge(case: &Case<'_>, heap: &Heap, published: bool) -> Result<ScatterResult, String> {
    let read = |i: usize| {
        // SAFETY: a word of this heap; the kernels that wrote it have ended.
        unsafe { (heap.word(i) as *const u64).read_volatile() }
    };
    if read(0) != 0 || read(1) != 0 {
        return Err("a counter of blocks is not 0".to_owned());
    }
    let result = ScatterResult::from_word(read(3)).ok_or("no result")?;
    let allowed: &[ScatterResult] = match case.event {
        Event::Nothing => &[ScatterResult::Valid],
        Event::Retire(_) => &[ScatterResult::Valid, ScatterResult::Gone, ScatterResult::Changed],
        Event::OtherKey => &[ScatterResult::Gone],
        Event::NeverReady => &[ScatterResult::NotReady],
        // Of a later epoch.
        Event::NotExpected => &[ScatterResult::Gone],
    };
    if !allowed.contains(&result) {
        return Err(format!("the result is {result:?}"));
    }
    if result == ScatterResult::Valid && !heap.same(&heap.scatter, |copy| copy.dst) {
        return Err("a torn read was valid".to_owned());
    }
    let expected = match case.event {
        Event::NeverReady => u64::MAX,
        Event::NotExpected => word(state::WRITING, EPOCH + 1),
        _ => word(state::WRITING, EPOCH),
    };
    if read(2) != expected {
        return Err(format!("the writer found {:#x}", read(2)));
    }
    let wanted = !matches!(case.event, Event::NeverReady | Event::NotExpected);
    if published != wanted {
        return Err("wrongly published, or not".to_owned());
    }
    Ok(result)
}
