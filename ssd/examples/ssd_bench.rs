//! Speed of the slab engine on a directory's disk.
//!
//!     cargo run --release -p nkv-ssd --example ssd_bench -- DIRECTORY [GIB]
//!
//!     cargo run --release -p nkv-ssd --example ssd_bench -- DIRECTORY index OBJECTS
//!
//! The second form: how long a start takes with that many objects.
//!
//! The first: one line for each size, number of threads, and objects in a call: GB/s of saves into
//! slabs that were written before, under both durabilities in turn, and of loads.
//! `scripts/ssd-bench` runs it beside fio.
#![expect(clippy::disallowed_methods, reason = "a benchmark measures time")]
#![expect(clippy::unwrap_used, reason = "a benchmark that cannot go on says where")]

use nkv_ssd::{Disk, Engine, Object, Payload, Saved, SlabEngine};
use nkv_ssd::{Durability, slab::SlabOptions};
use nkv_store::{AnonMemory, Key, Memory};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Instant, SystemTime};

const GIB: u64 = 1 << 30;
const ROUNDS: usize = 5;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let directory = arguments.next().expect("ssd_bench DIRECTORY [GIB]");
    let second = arguments.next();
    if second.as_deref() == Some("index") {
        let objects = arguments.next().and_then(|text| text.parse().ok());
        return starts(Path::new(&directory), objects.unwrap_or(1_000_000));
    }
    let gib = second.map_or(2, |text| text.parse().expect("a number of GiB"));
    let (effort, load) = ("best effort", "load");
    println!(
        "{:>8} {:>7} {:>5} {effort:>11} {:>10} {:>5} {load:>5}  GB/s, medians of {ROUNDS} rounds",
        "size", "threads", "group", "persistent", "ratio"
    );
    for size in [256 << 10, 1 << 20] {
        for (threads, group) in [(1, 1), (4, 1), (8, 1), (1, 32), (4, 32)] {
            let (mut saves, mut loads) = ([Vec::new(), Vec::new()], Vec::new());
            let mut ratios = Vec::new();
            for _ in 0..ROUNDS {
                let both = [Durability::BestEffort, Durability::Persistent];
                let [(effort, load), (persistent, _)] = both.map(|durability| {
                    measured(Path::new(&directory), gib * GIB, (size, threads, group), durability)
                });
                saves[0].push(effort);
                saves[1].push(persistent);
                ratios.push(persistent / effort);
                loads.push(load);
            }
            let [effort, persistent] = saves.map(median);
            let (ratio, load) = (median(ratios), median(loads));
            println!(
                "{size:>8} {threads:>7} {group:>5} {effort:>11.2} {persistent:>10.2} {ratio:>5.2} \
                 {load:>5.2}"
            );
        }
    }
}

fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

fn options(capacity_bytes: u64, durability: Durability) -> SlabOptions {
    let now = || SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_secs());
    SlabOptions {
        capacity_bytes: capacity_bytes.next_multiple_of(GIB),
        slab_bytes: GIB,
        durability,
        ttl_s: 7 * 86_400,
        clock: Arc::new(now),
    }
}

/// Saves objects of a few bytes, and opens the directory again.
fn starts(directory: &Path, objects: u64) {
    let open = || {
        let storage = Arc::new(Disk::open(directory).unwrap());
        SlabEngine::open(storage, options(objects * 8192 + GIB, Durability::BestEffort)).unwrap()
    };
    let memory = AnonMemory::new(4096).unwrap();
    let engine = open();
    let payload = Payload { memory: &memory, offset: 0, len: 8 };
    let began = Instant::now();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (engine, payload) = (&engine, &payload);
            scope.spawn(move || {
                for number in (thread..objects).step_by(4) {
                    let key = Key::new(&number.to_le_bytes()).unwrap();
                    engine.save(&[Object { key: &key, layout: 0, payload: *payload }]);
                    if number % 10_000 == 0 {
                        engine.maintain().unwrap();
                    }
                }
            });
        }
    });
    engine.sync().unwrap();
    println!("{objects} saves: {:.1} s", began.elapsed().as_secs_f64());
    drop(engine);
    let began = Instant::now();
    let engine = open();
    let seconds = began.elapsed().as_secs_f64();
    println!("start with {} objects: {seconds:.2} s", engine.stats().objects);
    let began = Instant::now();
    let validated = engine.validate().unwrap();
    println!("validate: {:.1} s, {validated:?}", began.elapsed().as_secs_f64());
}

/// GB/s of saves and of loads.
fn measured(
    directory: &Path,
    bytes: u64,
    (size, threads, group): (u64, usize, usize),
    durability: Durability,
) -> (f64, f64) {
    // A header and rounding of each object come on top.
    let options = options(bytes + bytes / 4, durability);
    let engine = SlabEngine::open(Arc::new(Disk::open(directory).unwrap()), options).unwrap();
    let memory = AnonMemory::huge((threads as u64 * size).max(2 << 20)).unwrap();
    memory.write(0, &vec![7; memory.len() as usize]).unwrap();
    let keys: Vec<Key> =
        (0..bytes / size).map(|number| Key::new(&number.to_le_bytes()).unwrap()).collect();
    let all: Vec<&Key> = keys.iter().collect();
    engine.remove(&all).unwrap();
    let payload =
        |thread: usize| Payload { memory: &memory, offset: thread as u64 * size, len: size };
    let save = |thread: usize, keys: &[Key]| {
        let object = |key| Object { key, layout: 0, payload: payload(thread) };
        let objects: Vec<Object<'_>> = keys.iter().map(object).collect();
        let saved = engine.save(&objects);
        assert!(saved.iter().all(|saved| matches!(saved, Saved::Saved)), "{saved:?}");
    };
    // The first write to each range of a file takes longer.
    rate(threads, &keys, (size, group), save);
    engine.remove(&all).unwrap();
    let saves = rate(threads, &keys, (size, group), save);
    let loads = rate(threads, &keys, (size, 1), |thread, keys| {
        engine.load(&keys[0], payload(thread)).unwrap();
    });
    (saves, loads)
}

fn rate(
    threads: usize,
    keys: &[Key],
    (size, group): (u64, usize),
    each: impl Fn(usize, &[Key]) + Sync,
) -> f64 {
    let groups: Vec<&[Key]> = keys.chunks(group).collect();
    let (next, each, began) = (AtomicUsize::new(0), &each, Instant::now());
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (next, groups) = (&next, &groups);
            scope.spawn(move || {
                while let Some(keys) = groups.get(next.fetch_add(1, Ordering::Relaxed)) {
                    each(thread, keys);
                }
            });
        }
    });
    keys.len() as f64 * size as f64 / began.elapsed().as_secs_f64() / 1e9
}
