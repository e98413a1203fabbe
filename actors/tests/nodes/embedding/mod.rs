//! Shared by tests of embedded clusters with mounted segments: small heaps, values that identify
//! their key, bounded waits. It starts nothing by itself.

pub mod log;
pub mod machine;

use nkv_actors::{Client, ClientConfig, Cluster, Node, NodeConfig, PutOptions, TransportChoice};
use nkv_pace::{HANGS, HANGS_MS};
use nkv_store::clock::{BootClock, Clock};
use std::time::Duration;

pub fn config(job: &str) -> NodeConfig {
    NodeConfig {
        job: format!("{job}-{}", std::process::id()),
        heap_bytes: 8 << 20,
        log_bytes: Some(0),
        device_alloc: false,
        quarantine_ms: 5,
        ttl_ms: 5_000,
        ..NodeConfig::default()
    }
}

/// The same for ranks that are gone a second after their last heartbeat.
pub fn short_lived(job: &str) -> NodeConfig {
    NodeConfig { ttl_ms: 1_000, ..config(job) }
}

pub fn on(rank: u32) -> PutOptions {
    PutOptions::default().preferred_rank(rank)
}

pub fn bytes(n: usize, seed: u8) -> Vec<u8> {
    (0..n).map(|i| (i as u8).wrapping_mul(31).wrapping_add(seed)).collect()
}

/// Polls every few milliseconds until `done`, within [`HANGS`].
pub async fn eventually<F: AsyncFnMut() -> bool>(what: &str, mut done: F) {
    let until_ms = BootClock.now_ms() + HANGS_MS;
    while !done().await {
        assert!(BootClock.now_ms() < until_ms, "not within {HANGS:?}: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Puts and removes `n` objects on rank 0, each with a quarantine of its own.
pub async fn quarantines_pass(cluster: &Cluster, n: usize) {
    let freed = || cluster.node(0).status().owner.freed;
    for i in 0..n {
        let before = freed();
        let key = format!("comes and goes {i}");
        cluster.client().put(key.as_bytes(), &bytes(4_096, 1), &on(0)).await.unwrap();
        cluster.client().remove(key.as_bytes()).await.unwrap();
        eventually("its space is free", async || freed() > before).await;
    }
}

/// Number of files of a job in /dev/shm: segments, their locks, and sockets.
pub fn left_in_shm(job: &str) -> usize {
    let prefix = format!("nkv.{job}.");
    let names = std::fs::read_dir("/dev/shm")
        .unwrap()
        .filter_map(|e| e.ok()?.file_name().into_string().ok());
    names.filter(|name| name.starts_with(&prefix)).count()
}

/// A client without a node of its own, with the given transport.
pub async fn client_by(cluster: &Cluster, transport: TransportChoice) -> Client {
    let job = cluster.node(0).config().job.clone();
    let config = ClientConfig { job, transport, device_alloc: false, ..ClientConfig::default() };
    Client::connect(&cluster.node(0).info().control, config).await.unwrap()
}

/// Puts keys PREFIX0, PREFIX1, ... on rank 1, the number being the seed of the value.
pub async fn fill(client: &Client, prefix: &str, n: usize, len: usize) -> Vec<String> {
    let mut keys = Vec::new();
    for i in 0..n {
        let key = format!("{prefix}{i}");
        client.put(key.as_bytes(), &bytes(len, i as u8), &on(1)).await.unwrap();
        keys.push(key);
    }
    keys
}

/// Which keys lie on rank 1's first segment, and which on the mounted one of this incarnation.
pub async fn rank1_incarnations(
    cluster: &Cluster,
    keys: &[String],
    mounted: u64,
) -> (Vec<String>, Vec<String>) {
    let (mut first, mut second) = (Vec::new(), Vec::new());
    for key in keys {
        let meta = cluster.client().get_location(key.as_bytes()).await.unwrap();
        let meta = meta.into_memory().unwrap();
        assert_eq!(meta.rank, 1);
        match meta.at.incarnation {
            i if i == mounted => second.push(key.clone()),
            i => {
                assert_eq!(i, cluster.node(1).info().incarnation);
                first.push(key.clone());
            }
        }
    }
    (first, second)
}

/// Waits until no byte is used but by live objects, at every owner and at the master.
pub async fn used_is_live(cluster: &Cluster) {
    eventually("used bytes = live bytes on every segment, at owner and master", async || {
        let stats = cluster.client().stats().await.unwrap();
        let owners = cluster.nodes().iter().flat_map(|n| {
            let status = n.status();
            let mounted = status.segments.into_iter().map(move |s| (s.segment, s.owner));
            let rank = n.info().rank;
            [(0, status.owner)].into_iter().chain(mounted).map(move |(s, o)| ((rank, s), o))
        });
        owners.into_iter().all(|(segment_id, o)| {
            let row = stats.ranks.iter().find(|r| (r.rank, r.segment) == segment_id);
            o.heap_used == o.live_bytes && row.is_some_and(|r| r.allocated_bytes == o.live_bytes)
        })
    })
    .await;
}

/// Three nodes that can die one by one.
pub async fn three(base: NodeConfig) -> [Node; 3] {
    let first = Node::start(NodeConfig { world_size: 3, port: 0, ..base.clone() }).await.unwrap();
    let port = first.info().control.to_string().rsplit(':').next().unwrap().parse().unwrap();
    let at = |rank| NodeConfig { rank, world_size: 3, port, ..base.clone() };
    let second = Node::start(at(1)).await.unwrap();
    let third = Node::start(at(2)).await.unwrap();
    eventually("all have reported", async || first.is_ready()).await;
    [first, second, third]
}
