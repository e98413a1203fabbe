//! Kernels made of nkv.triton, as Triton compiles them: their text, and runs in weak memory.
//! scripts/triton-kernels makes the texts.

mod mutants;
mod processes;
mod text;

use crate::heap::{CHECK, EPOCH, Event, HASH, Heap, PAYLOAD_BASE, PUBLISH};
use crate::log;
use nkv_gpu::kernels::ScatterResult;
use nkv_ptx::{Kernel, Launch, Module};
use nkv_store::layout::{state, word};
use std::sync::atomic::Ordering::SeqCst;

const PUSH_OBJECT: &str = "push_object";
const PUSH_PAGES: &str = "push_pages";
const WAIT_READ: &str = "wait_read";
const LOG_PUT: &str = "log_put";
const KERNELS: [&str; 4] = [PUSH_OBJECT, PUSH_PAGES, WAIT_READ, LOG_PUT];

/// Threads of a program: four warps.
const THREADS: u32 = 128;
/// Bytes of a page of `push_object`: one tile.
const TILE_BYTES: u64 = 1024;
/// What the offset of the header is taken to be, so that its base differs from that of payloads.
const HEADER_OFF: u64 = 0x140;
/// Bytes of shared memory, by which a program's first thread tells the others what it read.
pub const SHARED_BYTES: u32 = 64;
/// Runs of each kernel.
const SEEDS: u64 = 150;

/// The text of a kernel for sm_80 or sm_90.
fn text_of(kernel: &str, arch: u32) -> &'static str {
    macro_rules! text {
        ($name:literal) => {
            (
                include_str!(concat!("triton/", $name, "_sm80.ptx")),
                include_str!(concat!("triton/", $name, "_sm90.ptx")),
            )
        };
    }
    let (sm80, sm90) = match kernel {
        PUSH_OBJECT => text!("push_object"),
        PUSH_PAGES => text!("push_pages"),
        WAIT_READ => text!("wait_read"),
        LOG_PUT => text!("log_put"),
        other => panic!("no kernel {other}"),
    };
    if arch == 80 { sm80 } else { sm90 }
}

fn module(kernel: &str, arch: u32) -> Module {
    Module::parse(text_of(kernel, arch)).unwrap()
}

/// A writer and the reader, both made of nkv.triton.
struct Pair<'a> {
    writer: &'a Kernel,
    /// Which one the writer is.
    name: &'a str,
    reader: &'a Kernel,
}

fn launch(kernel: &Kernel, grid: u32, mut args: Vec<u64>, seed: u64) -> Launch {
    // Triton adds two parameters that these kernels do not use.
    args.resize(kernel.params().len(), 0);
    Launch {
        grid,
        block: THREADS,
        args,
        seed,
        shared_bytes: SHARED_BYTES,
        max_instructions: 1 << 24,
        ..Launch::default()
    }
}

impl Pair<'_> {
    /// Bytes of the pages: a few masked tiles, or one whole tile for each of two programs and a
    /// rest.
    fn sizes(&self, seed: u64) -> Vec<u64> {
        match (self.name, seed.is_multiple_of(8)) {
            (PUSH_OBJECT, false) => vec![TILE_BYTES; 2],
            (PUSH_OBJECT, true) => vec![TILE_BYTES; 17],
            (_, false) => vec![528; 3],
            (_, true) => vec![8192 + 528; 2],
        }
    }

    /// What the reader found, for one seed.
    fn run(&self, event: Event, seed: u64) -> Result<ScatterResult, String> {
        let sizes = self.sizes(seed);
        let heap = Heap::new(&sizes, seed, false);
        if event == Event::NotExpected {
            heap.segment[PUBLISH].store(word(state::WRITING, EPOCH + 1), SeqCst);
        }
        // Rows of [payloads, control words]; the object is rank 1's.
        let bases = [0, 0, heap.payload() - PAYLOAD_BASE, heap.header() - HEADER_OFF];
        let write = self.write(&heap, &sizes, &bases, seed);
        let read = self.read(&heap, &bases, event, seed);
        let (writer, reader) = ((self.writer, &write), (self.reader, &read));
        let published = heap.interleave(writer, reader, event, seed)?;
        let found = if self.name == PUSH_OBJECT && event != Event::NeverReady {
            u64::from(published)
        } else {
            if published { 1 } else { u64::MAX }
        };
        if heap.read(2) != found {
            return Err(format!("the writer returned {:#x}", heap.read(2)));
        }
        heap.judge(event, published)
    }

    fn write(&self, heap: &Heap, sizes: &[u64], bases: &[u64; 4], seed: u64) -> Launch {
        let (source, page) = (heap.gather[0].src, sizes[0]);
        if self.name == PUSH_OBJECT {
            let (pages, bases) = (sizes.len() as u64, bases.as_ptr() as u64);
            let at = [HEADER_OFF, PAYLOAD_BASE, page];
            let args = [vec![source, pages], at.to_vec(), vec![1, bases, heap.word(2)]].concat();
            return launch(self.writer, 1, args, seed);
        }
        let at = [heap.header(), heap.payload(), page, u64::from(EPOCH)];
        let args = [vec![source, page / 4], at.to_vec(), vec![heap.word(0), heap.word(2)]];
        launch(self.writer, sizes.len() as u32, args.concat(), seed)
    }

    fn read(&self, heap: &Heap, bases: &[u64; 4], event: Event, seed: u64) -> Launch {
        let check = CHECK + u64::from(event == Event::OtherKey);
        let spins = match event {
            Event::NeverReady | Event::NotExpected => 20,
            _ => 1 << 30,
        };
        let of = [HEADER_OFF, u64::from(EPOCH), HASH, check, PAYLOAD_BASE, heap.bytes, spins];
        let to = [PAYLOAD_BASE, heap.scatter[0].dst, 1, bases.as_ptr() as u64, heap.word(3)];
        let launch = launch(self.reader, 2, [of.as_slice(), &to].concat(), seed + 1_000_000);
        Launch { stale: Some(heap.old()), ..launch }
    }
}

/// Calls `of` with the kernels of each architecture and each writer.
fn with_pairs(mut of: impl FnMut(&Pair<'_>)) {
    for arch in [80, 90] {
        let read = module(WAIT_READ, arch);
        for name in [PUSH_OBJECT, PUSH_PAGES] {
            let write = module(name, arch);
            let (writer, reader) = (write.kernel(name).unwrap(), read.kernel(WAIT_READ).unwrap());
            of(&Pair { writer, name, reader });
        }
    }
}

/// How many runs were valid, changed during the copy, and neither.
fn runs(seeds: u64, event: impl Fn(u64) -> Event) -> [u64; 3] {
    let mut found = [0; 3];
    with_pairs(|pair| {
        for seed in 1..=seeds {
            match pair.run(event(seed), seed) {
                Ok(ScatterResult::Valid) => found[0] += 1,
                Ok(ScatterResult::Changed) => found[1] += 1,
                Ok(_) => found[2] += 1,
                Err(error) => panic!("{}, seed {seed}, {:?}: {error}", pair.name, event(seed)),
            }
        }
    });
    found
}

#[test]
fn i4_ready_comes_after_every_byte() {
    runs(SEEDS, |_| Event::Nothing);
}

#[test]
fn i7_an_object_that_is_retired_during_the_copy_is_not_valid() {
    let found = runs(SEEDS, |seed| Event::Retire(seed * 97 % 12_000));
    assert!(found.iter().all(|n| *n >= 10), "{found:?}");
}

#[test]
fn i2_another_key_is_not_read() {
    runs(10, |_| Event::OtherKey);
}

#[test]
fn a_reader_stops_waiting() {
    runs(10, |_| Event::NeverReady);
}

/// `push_pages` names its epoch; `push_object` takes that of the word.
#[test]
fn a_writer_that_names_its_epoch_publishes_no_other() {
    for arch in [80, 90] {
        let (write, read) = (module(PUSH_PAGES, arch), module(WAIT_READ, arch));
        let writer = write.kernel(PUSH_PAGES).unwrap();
        let pair = Pair { writer, name: PUSH_PAGES, reader: read.kernel(WAIT_READ).unwrap() };
        for seed in 1..=10 {
            pair.run(Event::NotExpected, seed).unwrap();
        }
    }
}

#[test]
fn i13_claims_of_three_kernels_are_settled_and_whole() {
    let mut all = log::Counts::default();
    for arch in [80, 90] {
        let module = module(LOG_PUT, arch);
        for seed in 1..=SEEDS {
            // Few spins: some claims are abandoned.
            let spins = if seed.is_multiple_of(3) { 2 } else { 1 << 20 };
            let kernel = module.kernel(LOG_PUT).unwrap();
            match log::run(&log::Case { kernel, block: THREADS, seed, spins }) {
                Ok(counts) => {
                    all.skips += counts.skips;
                    all.abandoned += counts.abandoned;
                    all.again += counts.again;
                }
                Err(error) => panic!("seed {seed}: {error}"),
            }
        }
    }
    assert!([all.skips, all.abandoned, all.again].iter().all(|n| *n >= 20), "{all:?}");
}
