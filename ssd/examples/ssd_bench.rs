//! Speed of the slab engine on a directory's disk.
//!
//!     cargo run --release -p nkv-ssd --example ssd_bench -- DIRECTORY [GIB [MEMORY]]
//!
//!     cargo run --release -p nkv-ssd --example ssd_bench -- DIRECTORY index OBJECTS
//!
//! The second form: how long a start takes with that many objects.
//!
//! The first: one line for each size, number of threads, and objects in a call: GB/s of saves into
//! slabs that were written before, under both durabilities, and of loads; beside fio (`psync`, one
//! job for each thread, each in a part of the file of its own), in turn in each round. MEMORY is
//! that of fio's buffers: `malloc` by default; `shmhuge` is in huge pages, as the buffers here are
//! (reserve some: `echo 64 >/proc/sys/vm/nr_hugepages`).
#![expect(clippy::disallowed_methods, reason = "a benchmark measures time")]
#![expect(clippy::unwrap_used, reason = "a benchmark that cannot go on says where")]

use nkv_ssd::{Disk, Engine, Object, Payload, Saved, SlabEngine};
use nkv_ssd::{Durability, slab::SlabOptions};
use nkv_store::{AnonMemory, Key, Memory, OwnMemory};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Instant, SystemTime};

const GIB: u64 = 1 << 30;
const ROUNDS: usize = 3;
/// Threads, and objects in a call.
const JOBS: [(usize, usize); 5] = [(1, 1), (4, 1), (8, 1), (1, 32), (4, 32)];

fn main() {
    let mut arguments = std::env::args().skip(1);
    let directory = arguments.next().expect("ssd_bench DIRECTORY [GIB]");
    let second = arguments.next();
    if second.as_deref() == Some("index") {
        let objects = arguments.next().and_then(|text| text.parse().ok());
        return starts(Path::new(&directory), objects.unwrap_or(1_000_000));
    }
    let gib = second.map_or(2, |text| text.parse().expect("a number of GiB"));
    let memory = arguments.next().unwrap_or_else(|| "malloc".to_owned());
    println!(
        "GB/s, medians of {ROUNDS} rounds, and of the rounds' ratios\n\
         {:>8} {:>7} {:>5} {:>10} {:>11} {:>6} {:>10} {:>9} {:>9} {:>5} {:>6}",
        "size",
        "threads",
        "group",
        "fio write",
        "best effort",
        "of fio",
        "persistent",
        "of effort",
        "fio read",
        "load",
        "of fio"
    );
    let (slabs, file) = (Path::new(&directory).join("slabs"), Path::new(&directory).join("fio"));
    std::fs::create_dir_all(&slabs).unwrap();
    let disk = Bench { slabs, file, memory, gib };
    disk.fio("write", (1 << 20, 1));
    for size in [256 << 10, 1 << 20] {
        for (threads, group) in JOBS {
            let job = (size, threads, group);
            let rounds: Vec<_> = (0..ROUNDS).map(|number| disk.round(number, job)).collect();
            let of = |figure: fn(&Round) -> f64| median(rounds.iter().map(figure).collect());
            println!(
                "{size:>8} {threads:>7} {group:>5} {:>10.2} {:>11.2} {:>6.2} {:>10.2} {:>9.2} \
                 {:>9.2} {:>5.2} {:>6.2}",
                of(|r| r.fio_write),
                of(|r| r.effort),
                of(|r| r.effort / r.fio_write),
                of(|r| r.persistent),
                of(|r| r.persistent / r.effort),
                of(|r| r.fio_read),
                of(|r| r.load),
                of(|r| r.load / r.fio_read),
            );
        }
    }
}

/// GB/s of one round.
struct Round {
    fio_write: f64,
    effort: f64,
    persistent: f64,
    fio_read: f64,
    load: f64,
}

struct Bench {
    slabs: PathBuf,
    file: PathBuf,
    memory: String,
    gib: u64,
}

impl Bench {
    fn round(&self, number: usize, job: (u64, usize, usize)) -> Round {
        let (size, threads, _) = job;
        let measured = |durability| measured(&self.slabs, self.gib * GIB, job, durability);
        let fio = || ["write", "read"].map(|rw| self.fio(rw, (size, threads)));
        // Each reads what it has just written, and each is the first one in half of the rounds.
        let ((effort, load), [fio_write, fio_read]) = if number.is_multiple_of(2) {
            let first = measured(Durability::BestEffort);
            (first, fio())
        } else {
            let first = fio();
            (measured(Durability::BestEffort), first)
        };
        let (persistent, _) = measured(Durability::Persistent);
        Round { fio_write, effort, persistent, fio_read, load }
    }

    /// GB/s of fio, whose jobs share the file among them.
    fn fio(&self, rw: &str, (size, jobs): (u64, usize)) -> f64 {
        let part = self.gib * GIB / jobs as u64;
        let done = Command::new("fio")
            .args(["--name=ssd", "--direct=1", "--ioengine=psync", "--thread"])
            .args(["--group_reporting", "--output-format=terse", "--terse-version=3"])
            .arg(format!("--filename={}", self.file.display()))
            .arg(format!("--mem={}", self.memory))
            .arg(format!("--rw={rw}"))
            .arg(format!("--bs={size}"))
            .arg(format!("--numjobs={jobs}"))
            .arg(format!("--size={part}"))
            .arg(format!("--offset_increment={part}"))
            .output()
            .expect("fio is missing: apt-get install fio");
        let text = String::from_utf8_lossy(&done.stdout);
        let column = if rw == "write" { 47 } else { 6 };
        let kib_s = text.lines().find_map(|line| line.split(';').nth(column)?.parse::<f64>().ok());
        kib_s.expect("a line of fio") * 1024.0 / 1e9
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
    // Of each thread, as the threads that bring objects back have it.
    let buffers: Vec<Mutex<AnonMemory>> = (0..threads)
        .map(|_| {
            let memory = AnonMemory::huge(size.max(2 << 20)).unwrap();
            memory.write(0, &vec![7; size as usize]).unwrap();
            Mutex::new(memory)
        })
        .collect();
    let keys: Vec<Key> =
        (0..bytes / size).map(|number| Key::new(&number.to_le_bytes()).unwrap()).collect();
    let all: Vec<&Key> = keys.iter().collect();
    engine.remove(&all).unwrap();
    let save = |thread: usize, keys: &[Key]| {
        let memory: &AnonMemory = &buffers[thread].lock().unwrap();
        let payload = Payload { memory, offset: 0, len: size };
        let object = |key| Object { key, layout: 0, payload };
        let objects: Vec<Object<'_>> = keys.iter().map(object).collect();
        let saved = engine.save(&objects);
        assert!(saved.iter().all(|saved| matches!(saved, Saved::Saved)), "{saved:?}");
    };
    // The first write to each range of a file takes longer.
    rate(threads, &keys, (size, group), save);
    engine.remove(&all).unwrap();
    let saves = rate(threads, &keys, (size, group), save);
    let loads = rate(threads, &keys, (size, 1), |thread, keys| {
        let memory: &mut AnonMemory = &mut buffers[thread].lock().unwrap();
        let own = OwnMemory::of(memory);
        engine.load(&keys[0], Payload { memory: &own, offset: 0, len: size }).unwrap();
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
