//! Shared parts of the tests of late writers: a cluster with short times, an owner's figures,
//! access to its memory, and a writer that is stopped while its bytes are in flight.

use super::relay::Relay;
use super::writer::Writer;
use crate::cluster_process::{ProcessCluster, READY_LIMIT, until};
use crate::content;
use nkv::message::{ClusterStats, OwnerGauges, PlanDesc, RankStats};
use nkv::{Blocking, Error, ErrorKind, PutOptions, Result};
use nkv_pace::{HANGS, HANGS_MS, timed};
use nkv_store::clock::{BootClock, Clock};
use nkv_store::memory::Memory;
use nkv_store::shm;
use std::sync::Arc;
use std::time::Duration;

/// What a busy machine may add to a wait.
pub const SLACK: Duration = HANGS;
/// Every call ends within this, whichever process is dead or stopped.
pub const CALL_MS: u64 = 2_300;
/// Quarantine of retired memory.
pub const QUARANTINE_MS: u64 = 50;
/// The object that is written slowly: one page, so that a stop falls into the middle of a copy.
pub const LARGE_BYTES: u64 = 48 << 20;
/// The heap of each rank: the large object, and less than half as much beside it.
pub const HEAP_BYTES: u64 = 64 << 20;
/// The log of each rank.
pub const LOG_BYTES: u64 = 4 << 20;
/// Most attempts to stop a writer before its copy is over.
pub const TRIES: u64 = 20;

/// A cluster's times.
#[derive(Clone, Copy)]
pub struct Times {
    /// Membership TTL.
    pub ttl_ms: u64,
    /// Limit from open to commit (`--write-ttl-ms`).
    pub write_ttl_ms: u64,
}

/// Starts `ranks` ranks; rank 0's memory is its own, so that clients reach the master by tcp.
pub fn cluster(ranks: u32, times: Times) -> ProcessCluster {
    let mut cluster = unstarted(ranks, times);
    (0..ranks).for_each(|rank| cluster.restart(rank));
    cluster.wait_ready(READY_LIMIT);
    cluster
}

/// As [`cluster`], with a relay between rank 1 and the master.
pub fn relayed_cluster(ranks: u32, times: Times) -> (ProcessCluster, Relay) {
    let mut cluster = unstarted(ranks, times);
    cluster.restart(0);
    let relay = Relay::to(cluster.port());
    cluster.master_seen_at(1, relay.port());
    (1..ranks).for_each(|rank| cluster.restart(rank));
    cluster.wait_ready(READY_LIMIT);
    (cluster, relay)
}

fn unstarted(ranks: u32, times: Times) -> ProcessCluster {
    ProcessCluster::none(ranks, move |rank, command| {
        let flags = [
            ("--heap-bytes", HEAP_BYTES + LOG_BYTES),
            ("--log-bytes", LOG_BYTES),
            ("--ttl-ms", times.ttl_ms),
            ("--write-ttl-ms", times.write_ttl_ms),
            ("--quarantine-ms", QUARANTINE_MS),
        ];
        for (flag, value) in flags {
            command.arg(flag).arg(value.to_string());
        }
        if rank == 0 {
            command.args(["--memory", "private"]);
        }
    })
}

/// Options of a put to a rank's heap.
pub fn on(rank: u32) -> PutOptions {
    PutOptions::default().preferred_rank(rank).device_alloc(false)
}

/// Puts version `version` of `key`.
pub fn put(client: &Blocking, key: &str, len: usize, rank: u32, version: u64) -> Result<()> {
    client.put(key.as_bytes(), &content::bytes(key.as_bytes(), version, len), &on(rank))
}

/// Puts that must not fail.
pub fn put_some(client: &Blocking, name: &str, n: u64, rank: u32) -> Vec<String> {
    let keys: Vec<String> = (0..n).map(|i| format!("{name}/{i}")).collect();
    for key in &keys {
        put(client, key, SMALL_BYTES, rank, 0).unwrap_or_else(|e| panic!("put {key}: {e}"));
    }
    keys
}

/// Objects of [`put_some`].
pub const SMALL_BYTES: usize = 20_000;

/// Every key of [`put_some`] is found, with the right bytes.
pub fn expect_all(client: &Blocking, keys: &[String]) {
    for key in keys {
        expect(client, key, SMALL_BYTES, 0);
    }
}

/// Version `version` of `key` is found, with the right bytes.
pub fn expect(client: &Blocking, key: &str, len: usize, version: u64) {
    let got = client.get(key.as_bytes()).unwrap_or_else(|e| panic!("get {key}: {e}"));
    let wrong = content::wrong(key.as_bytes(), version, len, &got);
    assert_eq!(wrong, 0, "wrong bytes in {key} ({} of {len} read)", got.len());
}

/// The kind of error that a call ended with, and that it ended in time.
pub fn kind_in_time<T>(what: &str, call: impl FnOnce() -> Result<T>) -> Option<ErrorKind> {
    let (end, took) = timed(|| call().err());
    assert!(took.within(CALL_MS), "{what} took {took}: {end:?}");
    end.map(|e: Error| e.kind())
}

/// A rank's row.
pub fn row(stats: &ClusterStats, rank: u32) -> RankStats {
    stats.ranks.iter().find(|r| r.rank == rank).cloned().unwrap_or_default()
}

/// An owner's figures, from itself: the master need not be there.
pub fn gauges(cluster: &ProcessCluster, rank: u32) -> OwnerGauges {
    let (code, body) = cluster.get(rank, "/status");
    assert_eq!(code, 200, "{body}");
    let status: serde_json::Value = serde_json::from_str(&body).expect("JSON");
    serde_json::from_value(status["owner"].clone()).expect("an owner's figures")
}

/// Waits until used bytes are live bytes on a rank, by owner and master, and no plan is open.
pub fn settled(client: &Blocking, rank: u32, limit: Duration) {
    until(limit, "used bytes are live bytes", || {
        let stats = client.stats().expect("figures");
        let (r, plans) = (row(&stats, rank), stats.plans_open);
        let o = r.owner;
        plans == 0
            && o.fencing == 0
            && o.heap_used == o.live_bytes
            && r.allocated_bytes == o.live_bytes
    });
}

/// An owner's memory, as this process sees it.
pub fn memory_of(cluster: &ProcessCluster, rank: u32) -> Arc<dyn Memory> {
    shm::attach(cluster.node(rank).segment(), false).expect("the owner's segment")
}

fn word(memory: &dyn Memory, offset: u64) -> u64 {
    memory.load(offset).expect("within the segment")
}

/// Opens a large object in `rank`'s heap and stops the writer while its bytes are in flight: the
/// first are written, the last are not. The step is not answered yet.
pub fn stop_in_mid_write(
    cluster: &ProcessCluster,
    writer: &mut Writer,
    rank: u32,
) -> (String, PlanDesc) {
    for version in 0..TRIES {
        if let Some(stopped) = try_to_stop(cluster, writer, rank, version) {
            return stopped;
        }
    }
    panic!("{TRIES} copies were over before the writer stood");
}

/// One attempt; if the copy was over before the signal, its plan is aborted.
pub fn try_to_stop(
    cluster: &ProcessCluster,
    writer: &mut Writer,
    rank: u32,
    version: u64,
) -> Option<(String, PlanDesc)> {
    let memory = memory_of(cluster, rank);
    let key = format!("late/{version}");
    let plan = writer.open(&key, (LARGE_BYTES, LARGE_BYTES), rank, version);
    let value = content::bytes(key.as_bytes(), version, LARGE_BYTES as usize);
    let (first, last) =
        (plan.meta.object.payload_off(), plan.meta.object.payload_off() + LARGE_BYTES - 8);
    let right = |at: usize| u64::from_le_bytes(value[at..at + 8].try_into().expect("a word"));
    let (first_word, last_word) = (right(0), right(LARGE_BYTES as usize - 8));
    writer.send("write 0");
    let since = BootClock.now_ms();
    while word(&*memory, first) != first_word {
        assert!(BootClock.now_ms() - since < HANGS_MS, "no byte of {key} arrives");
        std::thread::yield_now();
    }
    writer.stop();
    if word(&*memory, last) != last_word {
        return Some((key, plan));
    }
    writer.resume();
    writer.answer().expect("written");
    writer.step("abort").expect("aborted");
    None
}
