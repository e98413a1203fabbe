//! The SSD tier below a rank: gets after a prefetch beside gets of what is in memory; puts with
//! `write_through` beside puts without a disk, at half and at twice what the disk takes.
//!
//!   cargo bench --bench ssd_tier [-- DIRECTORY]      default: target/ssd-tier-bench
//!
//! Blocks of 256 KiB, one rank, one client, all in this process. Ratios are of rounds in turn.
#![expect(clippy::unwrap_used, reason = "a benchmark that fails panics")]

use nkv::{Client, Cluster, NodeConfig, PutOptions};
use nkv_actors::message::{Existence, Tier};
use nkv_actors::tier::{SsdConfig, SsdPolicy, TierFigures};
use nkv_store::clock::{BootClock, Clock};
use std::path::Path;
use std::time::Duration;

const BLOCK: usize = 256 << 10;
const MIB: u64 = 1 << 20;
const ROUNDS: usize = 10;
const ROUND: Duration = Duration::from_secs(2);

fn main() {
    let dir = std::env::args().skip(1).find(|arg| !arg.starts_with("--"));
    let dir = dir.unwrap_or_else(|| "target/ssd-tier-bench".into());
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    runtime.worker_threads(2).enable_all().build().unwrap().block_on(async {
        let _ = std::fs::remove_dir_all(&dir);
        prefetch(&Path::new(&dir).join("prefetch")).await;
        puts(&Path::new(&dir).join("puts")).await;
        std::fs::remove_dir_all(&dir).unwrap();
    });
}

/// Time since it was started.
struct Stopwatch(u64);

impl Stopwatch {
    fn start() -> Self {
        Self(BootClock.now_ns())
    }

    fn seconds(&self) -> f64 {
        (BootClock.now_ns() - self.0) as f64 / 1e9
    }
}

async fn start(ssd: Option<SsdConfig>, heap_mib: u64) -> Cluster {
    let job = format!("ssd-tier-{}-{}", std::process::id(), ssd.is_some());
    let heap_bytes = heap_mib * MIB;
    Cluster::start(1, NodeConfig { job, heap_bytes, ssd, ..NodeConfig::default() }).await.unwrap()
}

fn figures(cluster: &Cluster) -> TierFigures {
    cluster.node(0).tier().unwrap().figures()
}

async fn settled(cluster: &Cluster) {
    while figures(cluster).kv_demote_pending > 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn percentile(times: &mut [f64], of: f64) -> f64 {
    times.sort_by(f64::total_cmp);
    times[((times.len() - 1) as f64 * of) as usize]
}

/// Microseconds of a get.
async fn get(client: &Client, key: &str, into: &mut [u8]) -> f64 {
    let began = Stopwatch::start();
    assert_eq!(client.get_into(key.as_bytes(), into).await.unwrap(), BLOCK);
    began.seconds() * 1e6
}

async fn prefetch(dir: &Path) {
    let ssd = SsdConfig { policy: SsdPolicy::EvictOnly, ..SsdConfig::new(dir, 2048 * MIB) };
    let cluster = start(Some(ssd), 256).await;
    let client = cluster.client();
    let (block, mut into) = (vec![7; BLOCK], vec![0; BLOCK]);
    let opts = PutOptions::default();
    for n in 0..4000 {
        client.put(format!("old/{n}").as_bytes(), &block, &opts).await.unwrap();
    }
    settled(&cluster).await;
    let (mut from_disk, mut from_memory, mut memory_hits) = (Vec::new(), Vec::new(), 0);
    for n in 0..400 {
        let (old, new) = (format!("old/{n}"), format!("new/{n}"));
        let found = client.prefetch(&[old.as_bytes()], false).await.unwrap();
        assert_eq!(found, [Existence::OnDisk]);
        client.put(new.as_bytes(), &block, &opts).await.unwrap();
        tokio::time::sleep(Duration::from_millis(20)).await;
        let requested = figures(&cluster).kv_promote_requested;
        let at = client.get_location(old.as_bytes()).await.unwrap();
        if n % 2 == 0 {
            from_disk.push(get(&client, &old, &mut into).await);
            from_memory.push(get(&client, &new, &mut into).await);
        } else {
            from_memory.push(get(&client, &new, &mut into).await);
            from_disk.push(get(&client, &old, &mut into).await);
        }
        let hit = figures(&cluster).kv_promote_requested == requested && at.tier() == Tier::Memory;
        memory_hits += usize::from(hit);
    }
    let took = figures(&cluster).promote_times;
    let (disk, memory) = (percentile(&mut from_disk, 0.5), percentile(&mut from_memory, 0.5));
    println!("get 20 ms after exists(prefetch): {memory_hits} of 400 were hits in memory");
    println!("  p50 {disk:.1} us; of what was put 20 ms ago {memory:.1} us: {:.2}", disk / memory);
    println!("  promotions: {took:?}");
    cluster.stop().await;
}

/// What puts at a rate came to.
#[derive(Default)]
struct Puts {
    times_us: Vec<f64>,
    failed: usize,
}

/// Puts at `rate` blocks a second, or as fast as they go; four at a time, then a pause.
async fn put_at(client: &Client, rate: f64, next: &mut usize, time: Duration, puts: &mut Puts) {
    let (began, first, block) = (Stopwatch::start(), *next, vec![9; BLOCK]);
    while began.seconds() < time.as_secs_f64() {
        let due = began.seconds() * rate;
        while ((*next - first) as f64) < due && began.seconds() < time.as_secs_f64() {
            let key = format!("put/{next}");
            *next += 1;
            let began = Stopwatch::start();
            let done = client.put(key.as_bytes(), &block, &PutOptions::default()).await;
            puts.failed += usize::from(done.is_err());
            puts.times_us.push(began.seconds() * 1e6);
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

fn resident_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("RssAnon")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1024
}

async fn puts(dir: &Path) {
    let ssd = SsdConfig { policy: SsdPolicy::WriteThrough, ..SsdConfig::new(dir, 8192 * MIB) };
    let (with, without) = (start(Some(ssd), 1024).await, start(None, 1024).await);
    let mut next = 0;
    // Twice over the disk: the first write to each range is slower.
    let mut flood = Puts::default();
    put_at(&with.client(), f64::INFINITY, &mut next, Duration::from_secs(20), &mut flood).await;
    settled(&with).await;
    let (saved, began) = (figures(&with).ssd_save_success, Stopwatch::start());
    let mut flood = Puts::default();
    put_at(&with.client(), f64::INFINITY, &mut next, Duration::from_secs(5), &mut flood).await;
    let saved = figures(&with).ssd_save_success - saved;
    let rate = saved as f64 / began.seconds();
    println!("the disk takes {:.0} MiB/s of a flood of puts", rate * BLOCK as f64 / MIB as f64);
    settled(&with).await;
    // By the place in a round, without and with a disk: the second of a round is slower.
    let mut p99 = [[Vec::new(), Vec::new()], [Vec::new(), Vec::new()]];
    for round in 0..ROUNDS {
        for (turn, times) in p99.iter_mut().enumerate() {
            let which = (round + turn) % 2;
            let cluster = [&without, &with][which];
            let mut puts = Puts::default();
            put_at(&cluster.client(), rate / 2.0, &mut next, ROUND, &mut puts).await;
            assert_eq!(puts.failed, 0);
            times[which].push(percentile(&mut puts.times_us, 0.99));
            settled(&with).await;
        }
    }
    for (turn, [mut without, mut with]) in ["first", "second"].iter().zip(p99) {
        let (without, with) = (percentile(&mut without, 0.5), percentile(&mut with, 0.5));
        let ratio = with / without;
        println!(
            "at half of it, {turn} of a round, median p99: without a disk {without:.1} us, with \
             {with:.1} us: {ratio:.2}"
        );
    }
    let mut flood = Puts::default();
    put_at(&without.client(), 2.0 * rate, &mut next, Duration::from_secs(5), &mut flood).await;
    let reached = (flood.times_us.len() * BLOCK) as f64 / 5.0 / MIB as f64;
    println!("at twice it, without a disk: {reached:.0} MiB/s were put");
    let (before, resident) = (figures(&with), resident_mib());
    let mut puts = Puts::default();
    put_at(&with.client(), 2.0 * rate, &mut next, Duration::from_secs(10), &mut puts).await;
    let after = figures(&with);
    println!(
        "at twice it: {:.0} MiB/s were put, {} failed; waited for the writer {}, dropped {}, \
         unnamed {}; private memory {} MiB before, {} MiB after",
        (puts.times_us.len() * BLOCK) as f64 / 10.0 / MIB as f64,
        puts.failed,
        after.writer_queue_full_sync_fallback - before.writer_queue_full_sync_fallback,
        after.kv_demote_dropped - before.kv_demote_dropped,
        after.kv_demote_unnamed - before.kv_demote_unnamed,
        resident,
        resident_mib(),
    );
    println!("  p99 {:.1} us", percentile(&mut puts.times_us, 0.99));
    with.stop().await;
    without.stop().await;
}
