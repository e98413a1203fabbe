//! A put is acknowledged only once its owner has recorded the plan, not when the message about it
//! is in a socket. So acknowledged objects are found after the master dies, whatever the owner had
//! read by then.

use crate::cluster_process::{ProcessCluster, until};
use nkv::{Blocking, Error, ErrorKind, PutOptions};
use nkv_store::clock::{BootClock, Clock};
use rustix::process::Signal;
use std::time::Duration;

/// A complete cluster takes puts, and finds its objects, within this.
const SERVED_LIMIT: Duration = Duration::from_secs(60);
/// No rank expires meanwhile.
const TTL_MS: &str = "120000";
/// Puts to the stopped owner go on for so long at most, or until one fails.
const STOPPED_MS: u64 = 4_000;
/// Batches before the owner is stopped, at most so many while it is stopped, and puts per batch.
const BATCHES_BEFORE: u64 = 8;
const BATCHES_MEANWHILE: u64 = 200;
const PUTS: u64 = 32;
const VALUE: &[u8] = b"acknowledged";

/// Long keys, so that the messages about a few hundred puts fill the socket to the owner.
fn key(n: u64) -> Vec<u8> {
    format!("{n:0>1000}").into_bytes()
}

fn owner() -> PutOptions {
    PutOptions::default().preferred_rank(1).page_bytes(4096)
}

/// Puts one batch; returns the keys that were acknowledged, and whether all were.
fn put(handle: &Blocking, batch: u64) -> (Vec<Vec<u8>>, bool) {
    let keys: Vec<_> = (batch * PUTS..(batch + 1) * PUTS).map(key).collect();
    let items: Vec<_> = keys.iter().map(|k| (&k[..], VALUE)).collect();
    let done = handle.put_many(&items, &owner());
    let acked: Vec<_> = keys.iter().zip(done).filter(|(_, d)| d.is_ok()).collect();
    let all = acked.len() == keys.len();
    (acked.into_iter().map(|(key, _)| key.clone()).collect(), all)
}

fn is_away(e: &Error) -> bool {
    matches!(e.kind(), ErrorKind::NotReady | ErrorKind::Disconnected | ErrorKind::Timeout)
}

#[test]
fn what_was_acknowledged_is_found_when_the_master_dies_while_its_owner_stands_still() {
    let mut cluster = ProcessCluster::start_each(2, |rank, command| {
        let heap = if rank == 1 { "64MiB" } else { "8MiB" };
        command.args(["--heap-bytes", heap, "--ttl-ms", TTL_MS, "--write-ttl-ms", TTL_MS]);
    });
    let handle = cluster.connect(0);
    until(SERVED_LIMIT, "rank 1 takes objects", || handle.put(b"first", VALUE, &owner()).is_ok());

    let mut acked = Vec::new();
    for batch in 0..BATCHES_BEFORE {
        acked.extend(put(&handle, batch).0);
    }
    assert!(!acked.is_empty(), "nothing was acknowledged by an owner that runs");
    cluster.node(1).stop();
    let stopped = BootClock.now_ms();
    for batch in BATCHES_BEFORE..BATCHES_BEFORE + BATCHES_MEANWHILE {
        let (more, all) = put(&handle, batch);
        acked.extend(more);
        if !all || BootClock.now_ms() - stopped > STOPPED_MS {
            break;
        }
    }
    cluster.kill9(0);
    drop(handle);
    cluster.node(1).signal(Signal::CONT);
    cluster.restart(0);

    let handle = cluster.connect(0);
    until(SERVED_LIMIT, "the cluster is whole again", || match handle.get(&acked[0]) {
        Ok(_) => true,
        Err(e) => !is_away(&e),
    });
    let mut lost = Vec::new();
    for key in &acked {
        match handle.get(key) {
            Ok(value) => assert_eq!(value, VALUE),
            Err(e) => lost.push(e),
        }
    }
    assert!(lost.is_empty(), "{} of {} lost, the first: {}", lost.len(), acked.len(), lost[0]);
    let stats = handle.stats().unwrap();
    assert_eq!(stats.ranks.iter().map(|r| r.owner.evictions).sum::<u64>(), 0);
}
