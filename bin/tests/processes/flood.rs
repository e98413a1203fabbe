//! Two processes flood one owner's log with small objects: every id is in the log once or was put
//! by a plan, none twice, none lost, and every byte claimed is accounted for, position by position
//! [I13]. Prints puts per second without checking them.
//!
//! `NKV_FLOOD_PUTS` (200,000) puts in all; `NKV_FLOOD_LOG_MIB` (256) MiB of log, half of what the
//! heap has.

mod ids;
mod observer;
pub mod producer;

use crate::accounts::{accounted, gauges};
use crate::cluster_process::{ProcessCluster, by_devices, until};
use ids::Ids;
use nkv::message::OwnerGauges;
use nkv_store::clock::{BootClock, Clock};
use observer::{Observer, Seen};
use producer::{Flood, Task};
use std::time::Duration;

const PUTS: u64 = 200_000;
const PRODUCERS: u64 = 2;
/// A log sustains a quarter of its bytes per quarantine.
const LOG_MIB: u64 = 256;
const QUARANTINE_MS: u64 = 50;
/// All claims are settled and counted by the owner within this.
const SETTLE: Duration = nkv_pace::HANGS;
/// The test fails if nothing is put for so long.
const STALL_MS: u64 = 60_000;

fn set(variable: &str, default: u64) -> u64 {
    match std::env::var(variable) {
        Ok(text) => text.parse().unwrap_or_else(|e| panic!("{variable}={text}: {e}")),
        Err(_) => default,
    }
}

pub fn i13_every_claim_of_a_flood_is_accounted_for_by_position() {
    let each = set("NKV_FLOOD_PUTS", PUTS) / PRODUCERS;
    let total = each * PRODUCERS;
    let log_bytes = set("NKV_FLOOD_LOG_MIB", LOG_MIB) << 20;
    let cluster = ProcessCluster::start(1, move |command| {
        let flags = [
            ("--heap-bytes", 3 * log_bytes),
            ("--log-bytes", log_bytes),
            ("--quarantine-ms", QUARANTINE_MS),
        ];
        for (flag, value) in flags {
            command.arg(flag).arg(value.to_string());
        }
        if by_devices() {
            command.args(["--atomic-domain", "nic"]);
        }
    });
    let mut observer = Observer::start(&cluster, total);
    let since = BootClock.now_ms();
    let task = |n| {
        let (node, job) = (cluster.address(0), cluster.job().to_string());
        Flood::start(&Task { node, job, first: n * each, count: each })
    };
    let floods: Vec<Flood> = (0..PRODUCERS).map(task).collect();
    let mut last = since;
    while floods.iter().any(Flood::runs) {
        if observer.observe() > 0 {
            last = BootClock.now_ms();
        } else {
            std::thread::sleep(observer::PAUSE);
        }
        let (waited, seen) = (BootClock.now_ms() - last, observer.seen());
        assert!(
            waited < STALL_MS,
            "nothing for {waited} ms after {seen:?}: {:?}",
            gauges(&cluster, 0)
        );
    }
    let took_ms = (BootClock.now_ms() - since).max(1);
    let reports: Vec<_> = floods.into_iter().map(Flood::end).collect();
    until(SETTLE, "every claim is settled", || {
        observer.observe();
        accounted(&gauges(&cluster, 0))
    });
    let (ids, seen) = observer.end();
    let by_plan: Vec<u64> = reports.into_iter().flatten().collect();
    println!(
        "flood: {total} puts of {} bytes from {PRODUCERS} processes: {} puts/s, by_log={} \
         by_plan={} given_up={} laps={:.1} views={}",
        ids::VALUE_BYTES,
        total * 1_000 / took_ms,
        seen.ready - 1,
        by_plan.len(),
        seen.never,
        seen.positions as f64 * seen.unit as f64 / log_bytes as f64,
        seen.views
    );
    check(total, (&ids, &seen), &by_plan, &gauges(&cluster, 0));
}

fn check(total: u64, (ids, seen): (&Ids, &Seen), by_plan: &[u64], g: &OwnerGauges) {
    let both = by_plan.iter().filter(|id| ids.contains(**id)).count() as u64;
    // Objects that were read are copied, and those of plans that had to go.
    let copies = seen.twice + both;
    assert!(copies <= g.log_copies + g.log_stale_copies, "in the log twice: {seen:?} {g:#?}");
    // Less the object that the observer put first.
    let by_log = seen.ready - 1 - copies;
    assert_eq!(seen.damaged, 0, "objects that are not what was put");
    let mut planned = Ids::new(total);
    let twice = by_plan.iter().filter(|id| !planned.set(**id)).count();
    assert_eq!(twice, 0, "put by a plan twice");
    let lost: Vec<u64> =
        (0..total).filter(|id| !ids.contains(*id) && !planned.contains(*id)).take(10).collect();
    assert!(lost.is_empty(), "acknowledged and nowhere: {lost:?} and perhaps more");
    assert_eq!(by_log + by_plan.len() as u64, total);

    let bytes = |claims: u64| claims * seen.unit;
    assert_eq!(seen.ready + seen.dead + seen.never, seen.positions, "positions are whole claims");
    assert_eq!(g.log_claimed_bytes, bytes(seen.positions), "{g:#?}");
    assert_eq!(g.log_accepted_bytes, bytes(seen.ready), "{g:#?}");
    assert_eq!(g.log_skipped_bytes, bytes(seen.dead), "{g:#?}");
    assert_eq!(g.log_abandoned_bytes, bytes(seen.never), "{g:#?}");
    assert_eq!((g.log_voided_bytes, g.log_fenced), (0, 0), "nobody died: {g:#?}");
    assert_eq!(g.log_accepted + g.log_stale_copies, seen.ready, "{g:#?}");
}
