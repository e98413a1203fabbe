//! Which seeds are run: one that is named, or as many fresh ones as are asked for, on as many
//! threads as there are processors. A seed that fails is printed with the command that repeats it.

use crate::coverage::Coverage;
use crate::run::{Outcome, run};
use nkv_store::clock::{BootClock, Clock};
use nkv_store::random_u64;
use nkv_store::threads::spawn_named;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// Seeds are short enough to be typed again.
const SEED_BITS: u64 = 32;
/// Fresh seeds of a plain `cargo test`.
const SEEDS: u64 = 200;
/// From so many seeds on every required counter must have increased.
const ENOUGH: u64 = 200;
/// A progress line after so many seeds.
const PROGRESS: usize = 500;

/// One seed, and whether its events are printed; else how many fresh ones.
fn setting<T: std::str::FromStr>(name: &str) -> Option<T> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

fn again(seed: u64) -> String {
    format!("repeat it with: scripts/sim {seed}")
}

fn report(outcome: &Outcome) {
    println!(
        "seed {}: {} ranks, {} calls, {} faults, {} virtual ms, trace {:016x} of {} events",
        outcome.seed,
        outcome.ranks,
        outcome.ops,
        outcome.faults,
        outcome.virtual_ms,
        outcome.trace.0,
        outcome.trace.1
    );
    outcome.wrong.iter().for_each(|w| println!("  {w}"));
    if !outcome.wrong.is_empty() {
        println!("  {}", again(outcome.seed));
    }
}

/// Checks the size of every run, besides its oracle.
fn check_size(outcome: &Outcome) {
    let Outcome { seed, ranks, ops, faults, .. } = outcome;
    assert!(*ranks >= 3 && *ops >= 2_000 && *faults >= 5, "seed {seed}: {ranks} {ops} {faults}");
}

/// Runs seeds on all processors; returns the sum of their counters, and the seeds that failed.
fn run_many(first: u64, n: u64, jobs: usize) -> (Coverage, Vec<u64>) {
    let next = Arc::new(AtomicU64::new(0));
    let done = Arc::new(AtomicUsize::new(0));
    let sum = Arc::new(Mutex::new((Coverage::default(), Vec::new())));
    let threads: Vec<_> = (0..jobs)
        .map(|_| {
            let (next, done, sum) = (next.clone(), done.clone(), sum.clone());
            spawn_named("seeds", move || {
                loop {
                    let i = next.fetch_add(1, Ordering::SeqCst);
                    if i >= n {
                        return;
                    }
                    let seed = (first + i) & ((1 << SEED_BITS) - 1);
                    let outcome = std::panic::catch_unwind(|| run(seed, false));
                    let mut sum = sum.lock().unwrap();
                    match outcome {
                        Ok(outcome) => {
                            check_size(&outcome);
                            sum.0.join(&outcome.coverage);
                            if !outcome.wrong.is_empty() {
                                report(&outcome);
                                sum.1.push(seed);
                            }
                        }
                        Err(_) => {
                            println!("seed {seed} panicked; {}", again(seed));
                            sum.1.push(seed);
                        }
                    }
                    drop(sum);
                    let done = done.fetch_add(1, Ordering::SeqCst) + 1;
                    if done.is_multiple_of(PROGRESS) {
                        println!("{done} seeds");
                    }
                }
            })
            .unwrap()
        })
        .collect();
    threads.into_iter().for_each(|t| t.join().unwrap());
    let sum = sum.lock().unwrap();
    sum.clone()
}

fn processors() -> usize {
    setting("NKV_SIM_JOBS")
        .unwrap_or_else(|| std::thread::available_parallelism().map_or(1, |n| n.get()))
}

#[test]
fn seeds_hold() {
    if let Some(seed) = setting("NKV_SIM_SEED") {
        let outcome = run(seed, std::env::var("NKV_SIM_TOLD").is_ok());
        report(&outcome);
        assert!(outcome.wrong.is_empty(), "{}", again(seed));
        return check_size(&outcome);
    }
    let n = setting("NKV_SIM_SEEDS").unwrap_or(SEEDS);
    let first = setting("NKV_SIM_FROM").unwrap_or_else(|| random_u64() >> (64 - SEED_BITS));
    println!("{n} seeds from {first}");
    let began_ms = BootClock.now_ms();
    let (coverage, failed) = run_many(first, n, processors());
    for (what, n) in &coverage.0 {
        println!("{n:>12}  {what}");
    }
    let (seconds, failures) = ((BootClock.now_ms() - began_ms) / 1000, failed.len());
    println!("{n} seeds from {first} in {seconds} s: {failures} failed");
    assert!(failed.is_empty(), "seeds {failed:?} failed; {}", again(failed[0]));
    if n >= ENOUGH {
        let never = coverage.never(n);
        assert!(never.is_empty(), "in {n} seeds it never happened: {never:?}");
    }
}

#[test]
fn one_seed_twice_has_one_trace() {
    let first = setting("NKV_SIM_FROM").unwrap_or_else(|| random_u64() >> (64 - SEED_BITS));
    for seed in first..first + 4 {
        let seed = seed & ((1 << SEED_BITS) - 1);
        let (once, twice) = (run(seed, false), run(seed, false));
        assert_eq!(once.trace, twice.trace, "seed {seed} is not deterministic");
        assert_ne!(once.trace, run(seed + 1, false).trace, "seeds do not differ");
    }
}
