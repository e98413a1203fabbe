//! Private memory of a process that is master and owner in one: puts a million objects of 4 KiB
//! with keys of 20 to 60 bytes, by the log and by plans, each in a process of its own, and prints
//! the bytes of private memory per object. `cargo bench --bench metadata -- OBJECTS`. The
//! segment itself is shared memory and is not counted; key strings and all tables are.
#![expect(clippy::unwrap_used, reason = "a benchmark that cannot run ends")]

#[path = "shared/memory.rs"]
mod memory;

use memory::private_bytes;
use nkv::{Blocking, Cluster, NodeConfig, PutOptions};
use nkv_store::clock::{BootClock, Clock};
use std::time::Duration;
use tokio::runtime::Runtime;

const VALUE_BYTES: usize = 4 << 10;
/// Objects that one call puts.
const BATCH: u64 = 256;

/// Of 20 to 60 bytes, each length as often as the others.
fn key(i: u64) -> Vec<u8> {
    let len = 20 + i as usize % 41;
    format!("{i:08x}/").bytes().chain(*b"layer/").cycle().take(len).collect()
}

fn per_second(objects: u64, began_ns: u64) -> u64 {
    (objects as u128 * 1_000_000_000 / u128::from(BootClock.now_ns() - began_ns)) as u64
}

/// Puts all objects and waits until the master lists them.
fn put_all(handle: &Blocking, objects: u64, opts: &PutOptions) {
    let value = vec![7u8; VALUE_BYTES];
    for first in (0..objects).step_by(BATCH as usize) {
        let keys: Vec<_> = (first..objects.min(first + BATCH)).map(key).collect();
        let items: Vec<_> = keys.iter().map(|key| (&key[..], &value[..])).collect();
        handle.put_many(&items, opts).into_iter().for_each(|put| put.unwrap());
    }
    while handle.stats().unwrap().objects < objects {
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn measure(path: &str, objects: u64) {
    let before = private_bytes();
    let runtime = Runtime::new().unwrap();
    let job = format!("bench-metadata-{}", std::process::id());
    // As much room as the objects take, and a tenth more, so that nothing is evicted.
    let room = objects * VALUE_BYTES as u64 * 11 / 10 + (64 << 20);
    let by_log = path == "log";
    let (log_bytes, small) = if by_log { (room, 8 << 20) } else { (0, 0) };
    let heap_bytes = room + small;
    let config = NodeConfig {
        job,
        heap_bytes,
        log_bytes: Some(log_bytes),
        call_timeout_ms: 60_000,
        ..NodeConfig::default()
    };
    let cluster = runtime.block_on(async {
        let cluster = Cluster::start(1, config).await.unwrap();
        cluster.node(0).ready().await;
        cluster
    });
    let started = private_bytes();
    let handle = cluster.client().blocking().unwrap();
    let began_ns = BootClock.now_ns();
    put_all(&handle, objects, &PutOptions::default().device_alloc(by_log));
    let puts = per_second(objects, began_ns);
    let counts = cluster.client().write_counters();
    // What was only in flight has gone back by then.
    std::thread::sleep(Duration::from_secs(1));
    let full = private_bytes();
    let began_ns = BootClock.now_ns();
    let listed = handle.list(None, None, objects as usize).unwrap().len() as u64;
    let lists = per_second(listed, began_ns);
    let began_ns = BootClock.now_ns();
    let removed = handle.remove_all().unwrap().in_memory;
    let removes = per_second(removed, began_ns);
    println!(
        "{path}: {objects} objects, {} by the log and {} by plans; private bytes per object: {} \
         with the node, {} since it started; a second: {puts} listed puts, {lists} keys listed, \
         {removes} removed",
        counts.by_log,
        counts.by_plan,
        (full - before) / objects,
        (full - started) / objects,
    );
    handle.close();
    runtime.block_on(cluster.stop());
}

fn main() {
    let words: Vec<String> = std::env::args().collect();
    let objects = words.iter().find_map(|word| word.parse().ok()).unwrap_or(1_000_000);
    if let Some(path) = words.iter().find(|word| ["log", "plan"].contains(&word.as_str())) {
        return measure(path, objects);
    }
    for path in ["log", "plan"] {
        let program = std::env::current_exe().unwrap();
        let done = std::process::Command::new(program).args([path, &objects.to_string()]).status();
        assert!(done.unwrap().success());
    }
}
