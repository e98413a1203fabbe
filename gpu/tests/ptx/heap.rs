//! One object of the heap: a kernel gathers and publishes it, another waits for it and scatters it,
//! and a processor looks on. All steps are taken by one thread, so a seed is one run.

use nkv_gpu::kernels::{Descriptor, GatherPublish, ScatterResult, WaitScatter};
use nkv_ptx::{Execution, Kernel, Launch, Module, Stale};
use nkv_store::layout::{flag, state, word};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

pub const EPOCH: u32 = 5;
pub const HASH: u64 = 0x1111_2222_3333_4444;
pub const CHECK: u64 = 0x5555_6666_7777_8888;
pub const PAYLOAD_BASE: u64 = 0x7000;
/// Words of the header, as in `ObjHeader`.
const FIELDS: [u64; 5] = [HASH, 3 | 1 << 32, PAYLOAD_BASE, 0, CHECK];
pub const PUBLISH: usize = 5;
const OWNER: usize = 7;
/// Words of the segment before the payload.
const PAYLOAD: usize = 32;
/// Bytes of the pages. With 8 threads the first needs the loop of four loads, the second the loop
/// of one, and the odd ones the tail; each begins at a multiple of 16.
const SIZES: [u64; 4] = [1104, 272, 155, 528];
const NEXT: u64 = 1_442_695_040_888_963_407;
/// A block needs its stages of 32 KiB more than once.
const BULK_SIZES: [u64; 4] = [131_088, 272, 160, 528];

/// What happens in a run besides the copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    Nothing,
    /// The reader begins after READY.
    Late,
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
pub struct Heap {
    pub segment: Vec<AtomicU64>,
    source: Vec<u64>,
    target: Vec<u64>,
    pub gather: Vec<Descriptor>,
    pub scatter: Vec<Descriptor>,
    words: [u64; 4],
    pub bytes: u64,
}

fn vec_words(bytes: u64) -> usize {
    bytes.div_ceil(16) as usize * 2
}

/// Address aligned to 16 in an array that is two words larger than needed.
fn aligned(at: *const u64) -> u64 {
    (at as u64).next_multiple_of(16)
}

impl Heap {
    /// `mirrored`: outside the object the pages are in reverse order.
    pub fn new(sizes: &[u64], seed: u64, mirrored: bool) -> Heap {
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
        let all: u64 = sizes.iter().map(|size| size.next_multiple_of(16)).sum();
        for &size in sizes {
            let there = if mirrored { all - at - size.next_multiple_of(16) } else { at };
            heap.gather.push(Descriptor { dst: payload + at, src: source + there, size });
            heap.scatter.push(Descriptor { dst: target + there, src: payload + at, size });
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

    pub fn payload(&self) -> u64 {
        aligned(self.segment[PAYLOAD].as_ptr())
    }

    pub fn header(&self) -> u64 {
        self.segment.as_ptr() as u64
    }

    /// Address of a word: both counters, what the writer found, the reader's result.
    pub fn word(&self, i: usize) -> u64 {
        &raw const self.words[i] as u64
    }

    /// The word itself, after the kernels have ended.
    pub fn read(&self, i: usize) -> u64 {
        // SAFETY: a word of this heap; the kernels that wrote it have ended.
        unsafe { (self.word(i) as *const u64).read_volatile() }
    }

    pub fn old(&self) -> Stale {
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
    let heap = Heap::new(if bulk { &BULK_SIZES } else { &SIZES }, case.seed, true);
    let writer = case.writer.kernel(case.gather).ok_or("no such kernel")?;
    let reader = case.reader.kernel(nkv_gpu::kernels::WAIT_SCATTER).ok_or("no such kernel")?;
    if case.event == Event::NotExpected {
        heap.segment[PUBLISH].store(word(state::WRITING, EPOCH + 1), SeqCst);
    }
    let (write, read) = launches(case, &heap, bulk);
    let published = heap.interleave((writer, &write), (reader, &read), case.event, case.seed)?;
    let expected = match case.event {
        Event::NeverReady => u64::MAX,
        Event::NotExpected => word(state::WRITING, EPOCH + 1),
        _ => word(state::WRITING, EPOCH),
    };
    if heap.read(2) != expected {
        return Err(format!("the writer found {:#x}", heap.read(2)));
    }
    heap.judge(case.event, published)
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

impl Heap {
    /// Runs both kernels, interleaved by the seed. Returns whether READY was set.
    pub fn interleave(
        &self,
        (writer, write): (&Kernel, &Launch),
        (reader, read): (&Kernel, &Launch),
        event: Event,
        seed: u64,
    ) -> Result<bool, String> {
        let mut write = Execution::new(writer, write).map_err(|e| e.to_string())?;
        let mut read = Execution::new(reader, read).map_err(|e| e.to_string())?;
        let mut rng = seed.wrapping_mul(0x2545_F491_4F6C_DD1D) | 1;
        let (mut writing, mut reading) = (event != Event::NeverReady, true);
        let (mut published, mut since) = (false, 0);
        while writing || reading {
            rng = rng.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(NEXT);
            let first = (rng >> 33).is_multiple_of(2) || event == Event::Late && !published;
            // SAFETY: both kernels access the heap's memory only, which lives until they have
            // ended.
            unsafe {
                if writing && (first || !reading) {
                    writing = write.step().map_err(|e| e.to_string())?;
                } else if reading {
                    reading = read.step().map_err(|e| e.to_string())?;
                }
            }
            let publish = self.segment[PUBLISH].load(SeqCst);
            if !published && publish == word(state::READY, EPOCH) {
                published = true;
                if !self.same(&self.gather, |copy| copy.dst) {
                    return Err("READY before the payload".to_owned());
                }
            }
            if published && event == Event::Retire(since) {
                self.retire();
            }
            since += u64::from(published);
        }
        Ok(published)
    }

    /// The owner clears LIVE; then the bytes and the header are of another object.
    fn retire(&self) {
        self.segment[OWNER].store(word(0, EPOCH), SeqCst);
        for payload in &self.segment[PAYLOAD..] {
            payload.store(0xDEAD_DEAD_DEAD_DEAD, SeqCst);
        }
    }

    /// What the reader found; the error says what was wrong.
    pub fn judge(&self, event: Event, published: bool) -> Result<ScatterResult, String> {
        if self.read(0) != 0 || self.read(1) != 0 {
            return Err("a counter of blocks is not 0".to_owned());
        }
        let result = ScatterResult::from_word(self.read(3)).ok_or("no result")?;
        let allowed: &[ScatterResult] = match event {
            Event::Nothing | Event::Late => &[ScatterResult::Valid],
            Event::Retire(_) => {
                &[ScatterResult::Valid, ScatterResult::Gone, ScatterResult::Changed]
            }
            Event::OtherKey => &[ScatterResult::Gone],
            Event::NeverReady => &[ScatterResult::NotReady],
            // Of a later epoch.
            Event::NotExpected => &[ScatterResult::Gone],
        };
        if !allowed.contains(&result) {
            return Err(format!("the result is {result:?}"));
        }
        if result == ScatterResult::Valid && !self.same(&self.scatter, |copy| copy.dst) {
            return Err("a torn read was valid".to_owned());
        }
        if published == matches!(event, Event::NeverReady | Event::NotExpected) {
            return Err("wrongly published, or not".to_owned());
        }
        Ok(result)
    }
}
