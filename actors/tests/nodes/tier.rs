//! The SSD tier of nodes in one process: what leaves memory is saved, found, brought back, and
//! removed; a new node finds what an earlier one saved.

use crate::embedding::eventually;
use nkv_actors::message::{Existence, Removed, Tier};
use nkv_actors::tier::{SsdConfig, SsdPolicy, TierFigures};
use nkv_actors::{Cluster, ErrorKind, NodeConfig, PutOptions};
use std::path::Path;

const MIB: u64 = 1 << 20;
const BLOCK: usize = 64 << 10;

fn config(dir: &Path, policy: SsdPolicy) -> NodeConfig {
    let ssd = SsdConfig { policy, ..SsdConfig::new(dir, 256 * MIB) };
    NodeConfig {
        job: format!("tier-{}-{}", std::process::id(), dir.display()).replace('/', "-"),
        heap_bytes: 16 * MIB,
        ssd: Some(ssd),
        ..NodeConfig::default()
    }
}

fn keys(n: usize) -> Vec<String> {
    (0..n).map(|i| format!("block/{i}")).collect()
}

/// The bytes of a key: no two keys have a word in common.
fn content(key: &str) -> Vec<u8> {
    let seed = nkv_store::key::key_hash(key.as_bytes());
    (0..BLOCK as u64 / 8).flat_map(|i| (seed.wrapping_mul(2 * i + 1)).to_le_bytes()).collect()
}

async fn put_all(cluster: &Cluster, keys: &[String]) {
    for key in keys {
        let value = content(key);
        cluster.client().put(key.as_bytes(), &value, &PutOptions::default()).await.unwrap();
    }
}

fn figures(cluster: &Cluster, rank: u32) -> TierFigures {
    cluster.node(rank).tier().expect("a tier").figures()
}

async fn read_all(cluster: &Cluster, keys: &[String]) {
    let client = cluster.client();
    for key in keys {
        let read = client.get(key.as_bytes()).await;
        assert!(read.as_deref() == Ok(&content(key)[..]), "{key}: {:?}", read.err());
    }
}

async fn start(dir: &Path, ranks: u32, policy: SsdPolicy) -> Cluster {
    Cluster::start(ranks, config(dir, policy)).await.unwrap()
}

/// All that was handed over is on disk.
async fn settled(cluster: &Cluster) {
    eventually("all is saved", async || {
        cluster.nodes().iter().all(|n| n.tier().expect("a tier").figures().kv_demote_pending == 0)
    })
    .await;
}

async fn tier_of(cluster: &Cluster, key: &str) -> Option<Tier> {
    cluster.client().get_location(key.as_bytes()).await.ok().map(|location| location.tier())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_memory_has_no_room_for_is_read_back_from_disk() {
    let dir = tempfile::tempdir().unwrap();
    let cluster = start(dir.path(), 1, SsdPolicy::EvictOnly).await;
    let keys = keys(600);
    put_all(&cluster, &keys).await;
    settled(&cluster).await;
    let first = cluster.client().get_location(b"block/0").await.unwrap();
    assert_eq!((first.tier(), first.rank(), first.bytes_total()), (Tier::Disk, 0, BLOCK as u64));
    let names: Vec<&[u8]> = keys.iter().map(|k| k.as_bytes()).collect();
    let found = cluster.client().exists(&names).await.unwrap();
    assert!(found.contains(&Existence::OnDisk) && found.contains(&Existence::Ready));
    assert!(!found.contains(&Existence::Absent));
    assert_eq!(cluster.client().match_prefix(&names).await.unwrap().len(), 600);
    read_all(&cluster, &keys).await;
    assert!(figures(&cluster, 0).kv_promote_hits > 300);
    assert_eq!(tier_of(&cluster, "block/599").await, Some(Tier::Memory), "it was read just now");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_at_once_come_back_though_memory_has_no_room_for_all() {
    let dir = tempfile::tempdir().unwrap();
    let cluster = start(dir.path(), 1, SsdPolicy::EvictOnly).await;
    let keys = keys(600);
    put_all(&cluster, &keys).await;
    settled(&cluster).await;
    let names: Vec<&[u8]> = keys.iter().map(|k| k.as_bytes()).collect();
    let read = cluster.client().get_many(&names).await;
    for (key, read) in keys.iter().zip(read) {
        assert!(read.as_deref() == Ok(&content(key)[..]), "{key}: {:?}", read.err());
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_write_through_a_new_cluster_finds_what_the_last_one_put() {
    let dir = tempfile::tempdir().unwrap();
    let cluster = start(dir.path(), 2, SsdPolicy::WriteThrough).await;
    let keys = keys(100);
    put_all(&cluster, &keys).await;
    eventually("all keys are on disk", async || {
        figures(&cluster, 0).ssd_objects + figures(&cluster, 1).ssd_objects == 100
    })
    .await;
    cluster.stop().await;
    let cluster = start(dir.path(), 2, SsdPolicy::WriteThrough).await;
    assert_eq!(tier_of(&cluster, "block/3").await, Some(Tier::Disk));
    read_all(&cluster, &keys).await;
    assert_eq!(tier_of(&cluster, "block/3").await, Some(Tier::Memory));
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i6_what_was_removed_comes_back_neither_from_disk_nor_with_a_new_cluster() {
    let dir = tempfile::tempdir().unwrap();
    let cluster = start(dir.path(), 2, SsdPolicy::WriteThrough).await;
    let client = cluster.client();
    let keys = keys(120);
    put_all(&cluster, &keys).await;
    settled(&cluster).await;
    // One by one, and by pattern.
    for result in client.remove_many(&[b"block/1", b"block/2"]).await {
        result.unwrap();
    }
    client.remove_matching("^block/5[0-9]$").await.unwrap();
    let gone = |key: &str| {
        ["block/1", "block/2"].contains(&key) || (key.starts_with("block/5") && key.len() == 8)
    };
    let mut cluster = cluster;
    for again in [false, true] {
        if again {
            cluster.stop().await;
            cluster = start(dir.path(), 2, SsdPolicy::WriteThrough).await;
        }
        let client = cluster.client();
        for key in &keys {
            let found = client.get(key.as_bytes()).await;
            let absent = found.as_ref().is_err_and(|e| e.kind() == ErrorKind::NotFound);
            assert_eq!(absent, gone(key), "{key}, again {again}: {:?}", found.err());
        }
    }
    // What only a disk has.
    cluster.stop().await;
    let cluster = start(dir.path(), 2, SsdPolicy::WriteThrough).await;
    assert_eq!(tier_of(&cluster, "block/3").await, Some(Tier::Disk));
    cluster.client().remove(b"block/3").await.unwrap();
    let again = cluster.client().remove(b"block/3").await.unwrap_err();
    assert_eq!(again.kind(), ErrorKind::NotFound);
    assert_eq!(tier_of(&cluster, "block/3").await, None);
    // Two that were removed by name, ten by pattern; reads brought the rest back into memory.
    let left = keys.iter().filter(|key| !gone(key)).count() as u64 - 1;
    let removed = cluster.client().remove_matching("^block/").await.unwrap();
    assert_eq!(removed.on_disk, left);
    assert_eq!(cluster.client().remove_matching("^block/").await.unwrap(), Removed::default());
    assert_eq!(figures(&cluster, 0).ssd_objects + figures(&cluster, 1).ssd_objects, 0);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_was_removed_can_be_put_and_saved_again() {
    let dir = tempfile::tempdir().unwrap();
    let cluster = start(dir.path(), 1, SsdPolicy::WriteThrough).await;
    let client = cluster.client();
    for round in 1..=3u8 {
        client.put(b"k", &vec![round; BLOCK], &PutOptions::default()).await.unwrap();
        eventually("it is on disk", async || figures(&cluster, 0).ssd_objects == 1).await;
        assert_eq!(client.get(b"k").await.unwrap()[0], round);
        client.remove(b"k").await.unwrap();
        assert_eq!(figures(&cluster, 0).ssd_objects, 0);
        assert_eq!(client.exists(&[b"k"]).await.unwrap(), [Existence::Absent]);
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_nodes_do_not_share_a_directory() {
    let dir = tempfile::tempdir().unwrap();
    let cluster = start(dir.path(), 1, SsdPolicy::EvictOnly).await;
    let other = NodeConfig { job: "another".into(), ..config(dir.path(), SsdPolicy::EvictOnly) };
    let refused = Cluster::start(1, other).await.unwrap_err().to_string();
    assert!(refused.contains("another process uses"), "{refused}");
    cluster.stop().await;
}
