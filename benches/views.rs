//! Floods beside a slow reader: two threads put objects of 64 KiB into one log as fast as they can,
//! while a reader holds views for so many seconds each. Prints how puts went and how long they
//! took: `cargo bench --bench views -- SECONDS_OF_A_VIEW SECONDS VIEWS`, by default 5, 20 and 16
//! views at one time; 0 views for comparison.
#![expect(clippy::unwrap_used, reason = "a benchmark that cannot run ends")]

use hdrhistogram::Histogram;
use nkv::{Blocking, Cluster, NodeConfig, ObjectView, PutOptions};
use nkv_store::clock::{BootClock, Clock};
use nkv_store::threads::spawn_named;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::runtime::Runtime;

const VALUE_BYTES: usize = 64 << 10;
const LOG_BYTES: u64 = 512 << 20;

/// Puts until it is stopped; the microseconds of each put, and how many failed.
fn flood(handle: Blocking, number: u8, stop: &AtomicBool) -> (Histogram<u64>, u64) {
    let (value, opts) = (vec![number; VALUE_BYTES], PutOptions::default());
    let mut times = Histogram::new_with_bounds(1, 60_000_000, 3).unwrap();
    let mut failed = 0;
    for i in 0u64.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let key = [&[number][..], &i.to_be_bytes()].concat();
        let began_ns = BootClock.now_ns();
        failed += u64::from(handle.put(&key, &value, &opts).is_err());
        times.saturating_record((BootClock.now_ns() - began_ns) / 1000);
    }
    handle.close();
    (times, failed)
}

/// Holds `most` views at one time of objects of its own, each for so long; how many in all, and how
/// many had other bytes at their end.
fn hold(handle: &Blocking, most: usize, each: Duration, stop: &AtomicBool) -> (u64, u64) {
    let (mut views, mut held, mut wrong) = (VecDeque::<ObjectView>::new(), 0u64, 0u64);
    let mut end = |view: ObjectView| wrong += u64::from(view.iter().any(|byte| *byte != b'v'));
    while !stop.load(Ordering::Relaxed) {
        let key = format!("viewed {held}");
        handle.put(key.as_bytes(), &vec![b'v'; VALUE_BYTES], &PutOptions::default()).unwrap();
        views.push_back(handle.get_view(key.as_bytes()).unwrap());
        held += 1;
        if views.len() > most {
            views.pop_front().into_iter().for_each(&mut end);
        }
        std::thread::sleep(each / most as u32);
    }
    views.into_iter().for_each(end);
    (held, wrong)
}

fn main() {
    let numbers: Vec<u64> = std::env::args().filter_map(|word| word.parse().ok()).collect();
    let (each, whole, views) = match numbers[..] {
        [each, whole, views] => (each, whole, views as usize),
        _ => (5, 20, 16),
    };
    let runtime = Runtime::new().unwrap();
    let job = format!("bench-views-{}", std::process::id());
    let log_bytes = Some(LOG_BYTES);
    let config = NodeConfig { job, heap_bytes: 2 * LOG_BYTES, log_bytes, ..NodeConfig::default() };
    let cluster = runtime.block_on(async {
        let cluster = Cluster::start(1, config).await.unwrap();
        cluster.node(0).ready().await;
        cluster
    });
    let stop = Arc::new(AtomicBool::new(false));
    let handle = || cluster.client().blocking().unwrap();
    let floods = [1, 2].map(|number| {
        let (handle, stop) = (handle(), stop.clone());
        spawn_named("flood", move || flood(handle, number, &stop)).unwrap()
    });
    let reader = (views > 0).then(|| {
        let (handle, stop, each) = (handle(), stop.clone(), Duration::from_secs(each));
        spawn_named("views", move || hold(&handle, views, each, &stop)).unwrap()
    });
    std::thread::sleep(Duration::from_secs(whole));
    stop.store(true, Ordering::Relaxed);
    for flood in floods {
        let (times, failed) = flood.join().unwrap();
        let [p50, p99, p999] = [0.5, 0.99, 0.999].map(|q| times.value_at_quantile(q));
        println!(
            "{} puts, {failed} failed; us: p50 {p50}, p99 {p99}, p999 {p999}, longest {}",
            times.len(),
            times.max()
        );
    }
    let counts = cluster.client().write_counters();
    let share = counts.by_plan as f64 / (counts.by_log + counts.by_plan).max(1) as f64 * 100.0;
    println!("{} by the log, {} by plans: {share:.3} %", counts.by_log, counts.by_plan);
    if let Some(reader) = reader {
        let (held, wrong) = reader.join().unwrap();
        println!("{held} views of {each} s, {views} at a time, {wrong} with other bytes");
    }
    runtime.block_on(cluster.stop());
}
