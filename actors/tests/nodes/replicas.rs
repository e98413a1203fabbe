//! Puts of several replicas in whole clusters: where they lie, that any of them serves, and what
//! is left of them after deaths, restarts of the master and removals.

use crate::embedding::{
    bytes, client_by, config, eventually, on, short_lived, three, used_is_live,
};
use nkv_actors::actor::Crash;
use nkv_actors::{Client, Cluster, ErrorKind, NodeConfig, PutOptions, TransportChoice};
use nkv_pace::HANGS;
use std::collections::BTreeSet;

const LEN: usize = 20_000;

pub async fn start(job: &str, ranks: u32, base: NodeConfig) -> Cluster {
    Cluster::start(ranks, NodeConfig { job: config(job).job, ..base }).await.unwrap()
}

fn twice() -> PutOptions {
    PutOptions::default().replicas(2)
}

/// Puts keys PREFIX0 and on; the value's seed is the number.
async fn put(client: &Client, prefix: &str, n: usize, opts: &PutOptions) -> Vec<u32> {
    let mut made = Vec::new();
    for i in 0..n {
        let (key, value) = (format!("{prefix}{i}"), bytes(LEN, i as u8));
        let items = [(key.as_bytes(), &value[..])];
        made.push(client.put_replicas(&items, opts).await.remove(0).unwrap());
    }
    made
}

pub async fn check(client: &Client, prefix: &str, n: usize) {
    for i in 0..n {
        let got = client.get(format!("{prefix}{i}").as_bytes()).await;
        assert!(got.unwrap() == bytes(LEN, i as u8), "{prefix}{i}");
    }
}

/// The ranks that the master names for a key.
pub async fn ranks(client: &Client, key: &str) -> BTreeSet<u32> {
    let found = client.get_replicas(key.as_bytes()).await;
    found.unwrap_or_default().iter().map(|place| place.rank()).collect()
}

/// A handle of each transport.
pub async fn by_every_transport(cluster: &Cluster) -> [Client; 3] {
    [
        cluster.client(),
        client_by(cluster, TransportChoice::Tcp).await,
        client_by(cluster, TransportChoice::Shm).await,
    ]
}

/// Removes the twelve keys hN/0 and on of each handle, and stops the cluster: it has no others.
pub async fn removes_all(cluster: Cluster, handles: [Client; 3]) {
    for result in handles[0].remove_many(&[b"h0/0", b"h1/0"]).await {
        result.unwrap();
    }
    assert_eq!(handles[0].remove_matching("^h[0-2]/").await.unwrap().in_memory, 34);
    for i in 0..12 {
        let gone = handles[1].get(format!("h1/{i}").as_bytes()).await.unwrap_err();
        assert_eq!(gone.kind(), ErrorKind::NotFound);
    }
    for handle in &handles[1..] {
        handle.close().await;
    }
    used_is_live(&cluster).await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i12_replicas_lie_on_different_ranks_and_each_serves_by_every_transport() {
    let cluster = start("two-each", 3, config("")).await;
    let handles = by_every_transport(&cluster).await;
    for (h, handle) in handles.iter().enumerate() {
        let prefix = format!("h{h}/");
        assert_eq!(put(handle, &prefix, 12, &twice()).await, [2; 12]);
        let mut pairs = BTreeSet::new();
        for i in 0..12 {
            let there = ranks(handle, &format!("{prefix}{i}")).await;
            assert_eq!(there.len(), 2);
            pairs.insert(there);
        }
        assert!(pairs.len() > 1, "not all on the same ranks: {pairs:?}");
        for reader in &handles {
            check(reader, &prefix, 12).await;
        }
        assert_eq!(put(handle, &prefix, 1, &twice()).await, [0], "it is there");
    }
    removes_all(cluster, handles).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fewer_replicas_than_asked_for_are_counted_and_no_error() {
    let cluster = start("fewer", 2, config("")).await;
    let client = cluster.client();
    let opts = PutOptions::default().replicas(5);
    assert_eq!(put(&client, "k", 3, &opts).await, [2; 3], "there are two ranks");
    assert_eq!(client.write_counters().replicas_short, 9);
    assert_eq!(client.stats().await.unwrap().master.replicas_short, 9);
    // Without room at the second rank.
    let large = bytes(6 << 20, 1);
    client.put(b"large", &large, &on(1)).await.unwrap();
    let items = [(&b"other"[..], &large[..])];
    let made = client.put_replicas(&items, &twice().preferred_rank(0)).await;
    assert_eq!(made, [Ok(1)]);
    assert!(client.get(b"other").await.unwrap() == large);
    let many = PutOptions::default().replicas(9);
    let refused = client.put_replicas(&[(b"k", b"v")], &many).await.remove(0).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
    let refused = client.open_for_write(b"k", 9, &twice()).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i18_when_a_holder_dies_every_get_succeeds_from_the_other_replica() {
    let base = NodeConfig { ttl_ms: 4_000, ..short_lived("holder-dies") };
    let [first, second, third] = three(base).await;
    let (own, client) = (first.client(), second.client());
    assert_eq!(put(&client, "k", 60, &twice()).await, [2; 60]);
    // Known by location, by index and not at all.
    check(&client, "k", 30).await;
    let of_third = {
        let mut of_third = 0;
        for i in 0..60 {
            of_third += usize::from(ranks(&own, &format!("k{i}")).await.contains(&2));
        }
        of_third
    };
    assert!(of_third > 10, "{of_third}");
    // Without leaving, like a killed process.
    drop(third);
    for handle in [&client, &own] {
        check(handle, "k", 60).await;
    }
    eventually("the dead one is not named", async || {
        let mut named = 0;
        for i in 0..60 {
            named += usize::from(ranks(&own, &format!("k{i}")).await.contains(&2));
        }
        named == 0
    })
    .await;
    check(&client, "k", 60).await;
    second.stop().await;
    first.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i6_replicas_are_known_to_a_rebuilt_master_and_to_rebuilt_owners() {
    let cluster = start("rebuilt", 3, config("")).await;
    let client = cluster.client();
    put(&client, "k", 20, &twice()).await;
    client.remove(b"k7").await.unwrap();
    let mut before = Vec::new();
    for i in 0..20 {
        let mut there = client.get_replicas(format!("k{i}").as_bytes()).await.unwrap_or_default();
        there.sort_by_key(|at| at.rank());
        before.push(there);
    }
    for crash in ["master", "owners"] {
        match crash {
            "master" => {
                cluster.node(0).master().unwrap().call(Crash, HANGS).await.unwrap_err();
            }
            _ => {
                for node in cluster.nodes() {
                    node.owner().call(Crash, HANGS).await.unwrap_err();
                }
                cluster.node(0).master().unwrap().call(Crash, HANGS).await.unwrap_err();
            }
        }
        eventually("all have reported", async || {
            let mut both = 0;
            for i in 0..20 {
                both += usize::from(ranks(&client, &format!("k{i}")).await.len() == 2);
            }
            both == 19
        })
        .await;
        // The same ones: none was made again.
        for (i, before) in before.iter().enumerate() {
            let mut now = client.get_replicas(format!("k{i}").as_bytes()).await.unwrap_or_default();
            now.sort_by_key(|at| at.rank());
            assert_eq!(now, *before);
        }
        let gone = client.get(b"k7").await.unwrap_err();
        assert_eq!(gone.kind(), ErrorKind::NotFound);
    }
    for i in (0..20).filter(|i| *i != 7) {
        client.remove(format!("k{i}").as_bytes()).await.unwrap();
    }
    used_is_live(&cluster).await;
    assert!(cluster.nodes().iter().all(|node| node.status().owner.heap_used == 0));
    cluster.stop().await;
}

/// Without sets both owners would report an object of the same key, and one would be retired.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn objects_of_one_key_that_no_put_wrote_together_are_duplicates() {
    let cluster = start("not-of-one-put", 3, config("")).await;
    let client = cluster.client();
    put(&client, "k", 5, &PutOptions::default()).await;
    for i in 0..5 {
        assert_eq!(ranks(&client, &format!("k{i}")).await.len(), 1);
    }
    assert_eq!(client.put_replicas(&[(b"k0", b"other bytes")], &twice()).await, [Ok(0)]);
    check(&client, "k", 5).await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_replicas_are_made_again_so_that_a_second_death_loses_nothing() {
    // Long enough that a busy machine does not make a living rank look dead.
    let base = NodeConfig { ttl_ms: 3_000, ..config("repaired") };
    let [first, second, third] = three(base).await;
    let client = first.client();
    assert_eq!(put(&client, "k", 40, &twice()).await, [2; 40]);
    put(&client, "alone", 5, &on(0)).await;
    // Without leaving, like a killed process.
    drop(third);
    eventually("all have two replicas at the two ranks that are left", async || {
        let mut both = 0;
        for i in 0..40 {
            both += usize::from(ranks(&client, &format!("k{i}")).await.len() == 2);
        }
        both == 40
    })
    .await;
    for i in 0..5 {
        assert_eq!(ranks(&client, &format!("alone{i}")).await.len(), 1);
    }
    eventually("repairs are counted, and over", async || {
        let stats = client.stats().await.unwrap().master;
        stats.replicas_repaired > 0 && stats.repairs_waiting == 0
    })
    .await;
    drop(second);
    check(&client, "k", 40).await;
    first.stop().await;
}

/// Of objects in a log as well: they were put without a message, and alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_get_and_lose_replicas_on_request_and_a_rebuilt_master_knows_them() {
    for log_bytes in [0, 4 << 20] {
        let base = NodeConfig { log_bytes: Some(log_bytes), device_alloc: true, ..config("") };
        let cluster = start(&format!("on-request-{log_bytes}"), 3, base).await;
        let client = cluster.client();
        let keys: Vec<String> = (0..10).map(|i| format!("k{i}")).collect();
        let keys: Vec<&[u8]> = keys.iter().map(|key| key.as_bytes()).collect();
        for (i, key) in keys.iter().enumerate() {
            client.put(key, &bytes(LEN, i as u8), &on(1)).await.unwrap();
        }
        assert_eq!(client.write_counters().by_log > 0, log_bytes > 0);
        let have = async |n: usize| {
            eventually("so many replicas", async || {
                let mut right = 0;
                for key in &keys {
                    let found = client.get_replicas(key).await;
                    right += usize::from(found.is_ok_and(|found| found.len() == n));
                }
                right == keys.len()
            })
            .await;
        };
        assert!(client.replicate(&keys, 3).await.iter().all(Result::is_ok));
        have(3).await;
        for node in cluster.nodes() {
            check(&node.client(), "k", 10).await;
        }
        cluster.node(0).master().unwrap().call(Crash, HANGS).await.unwrap_err();
        have(3).await;
        assert!(client.replicate(&keys, 1).await.iter().all(Result::is_ok));
        have(1).await;
        check(&client, "k", 10).await;
        let absent = client.replicate(&[b"absent"], 2).await.remove(0).unwrap_err();
        assert_eq!(absent.kind(), ErrorKind::NotFound);
        let many = client.replicate(&[b"k1"], 9).await.remove(0).unwrap_err();
        assert_eq!(many.kind(), ErrorKind::InvalidArgument);
        assert_eq!(client.remove_all().await.unwrap().in_memory, 10);
        used_is_live(&cluster).await;
        cluster.stop().await;
    }
}
