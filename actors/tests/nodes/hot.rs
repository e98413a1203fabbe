//! Objects that are read often get further replicas, which other handles find and which go when it
//! is over.

use crate::embedding::{bytes, client_by, config, eventually};
use nkv_actors::{Client, Cluster, NodeConfig, PutOptions, TransportChoice};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const LEN: usize = 20_000;
const RANKS: usize = 3;

/// Reads a key until it is stopped.
async fn read_on(client: Client, key: &'static [u8], value: Vec<u8>, stop: Arc<AtomicBool>) {
    while !stop.load(Ordering::Relaxed) {
        assert!(client.get(key).await.unwrap() == value);
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_read_often_gets_replicas_that_serve_reads_and_loses_them_when_it_is_cold() {
    let base = NodeConfig {
        heap_bytes: 16 << 20,
        log_bytes: Some(8 << 20),
        hot_reads: 50,
        hot_replicas: RANKS as u8,
        ..config("hot")
    };
    let cluster = Cluster::start(RANKS as u32, base).await.unwrap();
    let own = cluster.client();
    let (planned, logged): (&'static [u8], &'static [u8]) = (b"planned", b"logged");
    for (key, by_log) in [(planned, false), (logged, true), (b"cold", false)] {
        let opts = PutOptions::default().device_alloc(by_log);
        own.put(key, &bytes(LEN, by_log.into()), &opts).await.unwrap();
    }
    let stop = Arc::new(AtomicBool::new(false));
    let mut readers = Vec::new();
    for i in 0..30 {
        let handle = client_by(&cluster, TransportChoice::Tcp).await;
        let (key, seed) = if i % 2 == 0 { (planned, 0) } else { (logged, 1) };
        readers.push(tokio::spawn(read_on(handle, key, bytes(LEN, seed), stop.clone())));
    }
    for key in [planned, logged] {
        eventually("it has a replica at each rank", async || {
            own.count_replicas(key).await.is_ok_and(|n| n == RANKS)
        })
        .await;
    }
    eventually("each replica was counted, as what it is", async || {
        let master = own.stats().await.unwrap().master;
        assert_eq!(master.replicas_repaired, 0, "{master:?}");
        master.hot_objects == 4
    })
    .await;
    assert_eq!(own.count_replicas(b"cold").await.unwrap(), 1);
    // Handles that read before there were replicas read from all of them in time.
    let served = || cluster.nodes().iter().map(|n| n.status().owner.gets_served).collect();
    let before: Vec<u64> = served();
    eventually("each rank serves reads", async || {
        before.iter().zip(served()).all(|(before, now): (_, u64)| now > before + 100)
    })
    .await;
    stop.store(true, Ordering::Relaxed);
    for reader in readers {
        reader.await.unwrap();
    }
    for (key, seed) in [(planned, 0), (logged, 1)] {
        eventually("one replica is left", async || {
            own.count_replicas(key).await.is_ok_and(|n| n == 1)
        })
        .await;
        assert!(own.get(key).await.unwrap() == bytes(LEN, seed));
    }
}
