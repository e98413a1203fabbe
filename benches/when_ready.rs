//! From READY to the bytes in the hands of a reader that waits for them. A writer puts 4 KiB some
//! time after a reader began to wait; the time from the call that sets READY until the reader has
//! the bytes: `cargo bench --bench when_ready -- ROUNDS MICROSECONDS`, by default 2,000 rounds, the
//! put 30 us after the wait began. Beside it, over each transport, a get of what is there.
#![expect(clippy::unwrap_used, reason = "a benchmark that cannot run ends")]

use hdrhistogram::Histogram;
use nkv::{Blocking, Client, ClientConfig, Cluster, NodeConfig, PutOptions, TransportChoice};
use nkv_store::clock::{BootClock, Clock};
use nkv_store::threads::spawn_named;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::runtime::Runtime;

const VALUE: [u8; 4096] = [7; 4096];
const LIMIT: Duration = Duration::from_secs(10);

/// What the two threads share: the round that the reader waits in, and when READY was set.
#[derive(Default)]
struct Rounds {
    waits: AtomicU64,
    ready_ns: AtomicU64,
}

fn key(name: &str, round: u64) -> Vec<u8> {
    format!("{name}/{round}").into_bytes()
}

/// Waits for the key of each round; nanoseconds from READY to the bytes.
fn read(reader: &Blocking, name: &str, rounds: u64, shared: &Rounds) -> Histogram<u64> {
    let mut times = Histogram::new_with_bounds(1, 60_000_000_000, 3).unwrap();
    for round in 1..=rounds {
        let key = key(name, round);
        shared.waits.store(round, Ordering::Release);
        assert!(reader.get_when_ready(&key, LIMIT).unwrap() == VALUE[..]);
        let now_ns = BootClock.now_ns();
        times.saturating_record(now_ns.saturating_sub(shared.ready_ns.load(Ordering::Acquire)));
    }
    times
}

fn pause(us: u64) {
    let until_ns = BootClock.now_ns() + us * 1000;
    while BootClock.now_ns() < until_ns {
        // The master, too, needs one of a few processors.
        std::thread::yield_now();
    }
}

fn write(writer: &Blocking, name: &str, (rounds, us): (u64, u64), by_plan: bool, shared: &Rounds) {
    for round in 1..=rounds {
        let key = key(name, round);
        let opts = PutOptions::default();
        let plan = by_plan.then(|| writer.open_for_write(&key, VALUE.len() as u64, &opts).unwrap());
        while shared.waits.load(Ordering::Acquire) < round {
            std::thread::yield_now();
        }
        pause(us);
        let Some(plan) = plan else {
            shared.ready_ns.store(BootClock.now_ns(), Ordering::Release);
            writer.put(&key, &VALUE, &opts).unwrap();
            continue;
        };
        plan.write_from(0, &VALUE).unwrap();
        shared.ready_ns.store(BootClock.now_ns(), Ordering::Release);
        writer.publish(plan).unwrap();
    }
}

/// Median of gets of what is there.
fn get(reader: &Blocking) -> f64 {
    let mut times = Histogram::<u64>::new_with_bounds(1, 60_000_000_000, 3).unwrap();
    for _ in 0..2_000 {
        let began_ns = BootClock.now_ns();
        assert!(reader.get(b"there").unwrap() == VALUE[..]);
        times.saturating_record(BootClock.now_ns() - began_ns);
    }
    times.value_at_quantile(0.5) as f64 / 1000.0
}

fn main() {
    let numbers: Vec<u64> = std::env::args().filter_map(|word| word.parse().ok()).collect();
    let (rounds, us) = match numbers[..] {
        [rounds, us] => (rounds, us),
        _ => (2_000, 30),
    };
    let runtime = Runtime::new().unwrap();
    let config = NodeConfig { heap_bytes: 256 << 20, ..NodeConfig::default() };
    let cluster = runtime.block_on(Cluster::start(1, config)).unwrap();
    let at = cluster.node(0).info().control.clone();
    println!("4 KiB, {rounds} rounds, put {us} us after the wait began; us from READY to bytes");
    for transport in [TransportChoice::Shm, TransportChoice::Tcp] {
        for by_plan in [true, false] {
            let config = ClientConfig {
                job: cluster.node(0).config().job.clone(),
                ..ClientConfig::default()
            };
            let client = ClientConfig { transport, ..config };
            let handle = runtime.block_on(Client::connect(&at, client)).unwrap();
            let reader = handle.blocking().unwrap();
            let writer = cluster.client().blocking().unwrap();
            writer.put(b"there", &VALUE, &PutOptions::default()).unwrap();
            let there_us = get(&reader);
            let name = format!("{transport} {}", if by_plan { "plan" } else { "log" });
            let (shared, of_writer) = (Arc::new(Rounds::default()), name.clone());
            let writes = {
                let shared = shared.clone();
                spawn_named("writer", move || {
                    write(&writer, &of_writer, (rounds, us), by_plan, &shared);
                })
                .unwrap()
            };
            let times = read(&reader, &name, rounds, &shared);
            writes.join().unwrap();
            let at = |q| times.value_at_quantile(q) as f64 / 1000.0;
            println!(
                "{name:>9}: p50 {:6.1}  p90 {:6.1}  p99 {:6.1}  get of what is there {there_us:.1}",
                at(0.5),
                at(0.9),
                at(0.99)
            );
        }
    }
    runtime.block_on(cluster.stop());
}
