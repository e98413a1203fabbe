//! The kernels as they are shipped.

use crate::heap::{self, Event};
use crate::log;
use nkv_gpu::kernels::{GATHER_BULK, GATHER_PUBLISH, LOG_PUT, PTX_SM80, PTX_SM90, ScatterResult};
use nkv_ptx::Module;

/// Runs of each test.
const SEEDS: u64 = 1000;

fn modules() -> [Module; 2] {
    [PTX_SM80, PTX_SM90].map(|text| Module::parse(text).unwrap())
}

/// How many runs were valid, changed during the copy, and neither.
fn heap_runs(
    gather: &str,
    modules: &[&Module],
    seeds: u64,
    event: impl Fn(u64) -> Event,
) -> [u64; 3] {
    let mut found = [0; 3];
    for module in modules {
        for seed in 1..=seeds {
            let event = event(seed);
            let case = heap::Case { writer: module, gather, reader: module, event, seed };
            match heap::run(&case) {
                Ok(ScatterResult::Valid) => found[0] += 1,
                Ok(ScatterResult::Changed) => found[1] += 1,
                Ok(_) => found[2] += 1,
                Err(error) => panic!("{gather}, seed {seed}, {event:?}: {error}"),
            }
        }
    }
    found
}

#[test]
fn i4_ready_comes_after_every_byte() {
    let [a, b] = &modules();
    heap_runs(GATHER_PUBLISH, &[a, b], SEEDS, |_| Event::Nothing);
    heap_runs(GATHER_BULK, &[b], 30, |_| Event::Nothing);
}

#[test]
fn i7_an_object_that_is_retired_during_the_copy_is_not_valid() {
    let [a, b] = &modules();
    let found = heap_runs(GATHER_PUBLISH, &[a, b], SEEDS, |seed| Event::Retire(seed % 300));
    assert!(found.iter().all(|n| *n >= 20), "{found:?}");
}

#[test]
fn i2_another_key_is_not_read() {
    let [a, b] = &modules();
    heap_runs(GATHER_PUBLISH, &[a, b], 50, |_| Event::OtherKey);
}

#[test]
fn a_reader_stops_waiting() {
    let [a, b] = &modules();
    heap_runs(GATHER_PUBLISH, &[a, b], 50, |_| Event::NeverReady);
}

#[test]
fn a_writer_whose_epoch_is_over_publishes_nothing() {
    let [a, b] = &modules();
    heap_runs(GATHER_PUBLISH, &[a, b], 50, |_| Event::NotExpected);
}

#[test]
fn i13_claims_of_three_kernels_are_settled_and_whole() {
    let mut all = log::Counts::default();
    for module in &modules() {
        for seed in 1..=SEEDS {
            // Few spins: some claims are abandoned.
            let spins = if seed.is_multiple_of(3) { 2 } else { 1 << 20 };
            let kernel = module.kernel(LOG_PUT).unwrap();
            match log::run(&log::Case { kernel, block: 8, seed, spins }) {
                Ok(counts) => {
                    all.skips += counts.skips;
                    all.abandoned += counts.abandoned;
                    all.again += counts.again;
                }
                Err(error) => panic!("seed {seed}: {error}"),
            }
        }
    }
    assert!([all.skips, all.abandoned, all.again].iter().all(|n| *n >= 100), "{all:?}");
}
