//! What a master has to do in a job of many ranks: the program's own Master, and ranks that only
//! answer it, in one process. Times are those for which the master's thread was on a processor.
//!
//! `cargo bench --bench scale -- RANKS OBJECTS`, or `scripts/sim --ranks RANKS`.
#![expect(clippy::unwrap_used, reason = "a benchmark that cannot run ends")]

#[path = "shared/memory.rs"]
mod memory;
#[path = "scale/ranks.rs"]
mod ranks;

use memory::private_bytes;
use nkv::Placement;
use nkv::message::{OpenItem, OwnerGauges, OwnerToMaster, Promote, Request, Response};
use nkv_actors::placement::Nearest;
use nkv_store::Retention;
use nkv_store::clock::{BootClock, Clock};
use ranks::{Job, SLOT_BYTES};
use tokio::runtime::Builder;

const DEFAULT_RANKS: u32 = 100;
const DEFAULT_OBJECTS: u64 = 1_000_000;
/// Requests, and rounds of heartbeats, of which the mean is taken.
const REQUESTS: u64 = 2_000;
const MISSES: u64 = 100;
/// Items of one request to open.
const BATCH: u64 = 64;
const ROUNDS: u64 = 20;
/// Room of each rank in a job in which objects are opened.
const FREE_SLOTS: u32 = 4_096;
/// With elections a rank counts as lost after a lease and an eighth.
const DETECTED_MS: f64 = 1_125.0;

fn row(what: &str, value: f64, unit: &str) {
    println!("| {what} | {value:.1} | {unit} |");
}

/// The mean time that the master worked for each of `n`.
async fn work(job: &Job, n: u64, task: impl AsyncFnOnce()) -> f64 {
    let before = job.busy_ns();
    task().await;
    // Answered after all that was sent before.
    job.ask(Request::View).await;
    (job.busy_ns() - before) as f64 / 1_000.0 / n as f64
}

async fn heartbeats(job: &Job) {
    let (ranks, rounds) = (job.ranks() as u64, ROUNDS);
    let each = work(job, ranks * rounds, async || {
        for _ in 0..rounds {
            for rank in 0..job.ranks() {
                let gauges = Box::new(OwnerGauges::default());
                job.sends(rank, OwnerToMaster::Heartbeat { gauges, stamp_ms: 0 }).await;
            }
        }
    });
    let each = each.await;
    row("a heartbeat", each, "µs");
    row(
        "heartbeats, four a second of each rank",
        each * ranks as f64 * 4.0 / 10_000.0,
        "% of a processor",
    );
}

async fn opens(ranks: u32, placement: Placement) {
    let mut job = Job::start(ranks, placement, 1).await;
    job.join_all(0, FREE_SLOTS).await;
    let batches = (u64::from(ranks) * u64::from(FREE_SLOTS) / 4 / BATCH).min(REQUESTS / BATCH);
    let each = work(&job, batches * BATCH, async || {
        for request in 0..batches {
            let item = |i| OpenItem {
                key: format!("opened/{request}/{i}").into_bytes(),
                bytes_total: SLOT_BYTES,
                preferred_rank: None,
                medium: Default::default(),
                further: Vec::new(),
                nearest: placement.by_distance().then_some(Nearest { rank: 0, distance: 0 }),
                page_bytes: 4_096,
                replicas: 1,
                replica_of: None,
                retention: Retention::Usual,
            };
            let items = (0..BATCH).map(item).collect();
            match job.ask(Request::OpenForWrite { request, wait_ms: 1_000, items }).await {
                Response::Plans(list) => assert!(list.iter().all(Result::is_ok), "{list:?}"),
                other => panic!("{other}"),
            }
        }
    });
    row(&format!("an open, {BATCH} in a request, placement {placement}"), each.await, "µs");
}

async fn lookups(job: &Job, objects: u64) {
    let ask = async |n: u64, key: &dyn Fn(u64) -> String| {
        for i in 0..n {
            let keys = vec![key(i).as_bytes().into()];
            let asked = Request::GetLocation { keys, gone: Vec::new(), promote: Promote::No };
            let Response::Locations(_) = job.ask(asked).await else { panic!("no locations") };
        }
    };
    let hits = work(job, REQUESTS, async || ask(REQUESTS, &|i| job.key(i * 7_919 % objects)).await);
    row("a lookup of what it lists", hits.await, "µs");
    let misses = work(job, MISSES, async || ask(MISSES, &|i| format!("absent/{i}")).await);
    row("a lookup in vain: it asks the owners of all logs", misses.await, "µs");
}

async fn changes(job: &mut Job) {
    let lost = (job.ranks() / 4).clamp(1, 5);
    let (before, began_ns) = (job.busy_ns(), BootClock.now_ns());
    for _ in 0..lost {
        job.loses_one().await;
    }
    let each = |ns: u64| ns as f64 / 1_000.0 / lost as f64;
    row(
        "a rank leaves with its objects: until all confirmed the view",
        each(BootClock.now_ns() - began_ns),
        "µs",
    );
    row("the same, the master's work", each(job.busy_ns() - before), "µs");
}

async fn run(ranks: u32, objects: u64) {
    println!("{ranks} ranks, {objects} objects\n\n| what | | |\n|---|---|---|");
    for placement in [Placement::Hash, Placement::MostFree, Placement::Topology] {
        opens(ranks, placement).await;
    }
    let memory = private_bytes();
    let mut job = Job::start(ranks, Placement::Hash, 2).await;
    let (began_ns, before) = (BootClock.now_ns(), job.busy_ns());
    let per_rank = objects.div_ceil(u64::from(ranks)) as u32;
    job.join_all(per_rank, per_rank).await;
    let (wall_ms, busy_ns) =
        ((BootClock.now_ns() - began_ns) as f64 / 1e6, (job.busy_ns() - before) as f64);
    let objects = u64::from(per_rank) * u64::from(ranks);
    row("all ranks join and report: wall time", wall_ms, "ms");
    row("the same, the master's work for an object", busy_ns / 1_000.0 / objects as f64, "µs");
    row("take-over: with a lease of 1 s", DETECTED_MS + wall_ms, "ms");
    let used = private_bytes().saturating_sub(memory) as f64;
    row("private memory of the master", used / objects as f64, "bytes an object");
    row("a membership view", job.view_bytes().await as f64 / 1_024.0, "KiB");
    heartbeats(&job).await;
    lookups(&job, objects).await;
    changes(&mut job).await;
}

fn main() {
    let numbers: Vec<u64> = std::env::args().skip(1).filter_map(|arg| arg.parse().ok()).collect();
    let ranks = numbers.first().map_or(DEFAULT_RANKS, |ranks| *ranks as u32);
    let objects = numbers.get(1).copied().unwrap_or(DEFAULT_OBJECTS);
    assert!(ranks > 0 && objects >= u64::from(ranks), "at least one rank, and one object on each");
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(run(ranks, objects));
}
