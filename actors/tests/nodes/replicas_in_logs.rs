//! Puts of several replicas into the logs of as many ranks: no plan and no message, and the same
//! promises as by plans.

use crate::embedding::{bytes, client_by, config, eventually, three};
use crate::replicas::{by_every_transport, check, ranks, removes_all, start};
use nkv_actors::actor::Crash;
use nkv_actors::{Client, ErrorKind, NodeConfig, PutOptions, TransportChoice};
use nkv_pace::HANGS;
use std::collections::BTreeSet;

const LEN: usize = 20_000;

/// Also by handles that are started without it.
fn twice() -> PutOptions {
    PutOptions::default().replicas(2).device_alloc(true)
}

fn with_logs(base: NodeConfig) -> NodeConfig {
    NodeConfig { heap_bytes: 16 << 20, log_bytes: Some(8 << 20), device_alloc: true, ..base }
}

/// Puts keys PREFIX0 and on, half of them one by one and half in a batch.
async fn put(client: &Client, prefix: &str, n: usize, opts: &PutOptions) {
    let items: Vec<_> = (0..n).map(|i| (format!("{prefix}{i}"), bytes(LEN, i as u8))).collect();
    let (alone, together) = items.split_at(n / 2);
    for (key, value) in alone {
        client.put(key.as_bytes(), value, opts).await.unwrap();
    }
    let together: Vec<_> = together.iter().map(|(k, v)| (k.as_bytes(), &v[..])).collect();
    for done in client.put_many(&together, opts).await {
        done.unwrap();
    }
}

/// How many of the keys have so many replicas.
async fn having(client: &Client, prefix: &str, n: usize, replicas: usize) -> usize {
    let mut right = 0;
    for i in 0..n {
        right += usize::from(ranks(client, &format!("{prefix}{i}")).await.len() == replicas);
    }
    right
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i12_replicas_lie_in_logs_of_different_ranks_and_each_serves_by_every_transport() {
    let cluster = start("logs-each", 3, with_logs(config(""))).await;
    let handles = by_every_transport(&cluster).await;
    for (h, handle) in handles.iter().enumerate() {
        let prefix = format!("h{h}/");
        put(handle, &prefix, 12, &twice()).await;
        let counters = handle.write_counters();
        assert_eq!((counters.by_plan, counters.by_log), (0, 24), "handle {h}");
        // Asked at once, and by another handle: no key was announced yet.
        let other = &handles[(h + 1) % 3];
        let mut pairs = BTreeSet::new();
        for i in 0..12 {
            // On a busy machine one of two may have been announced by then, and the other not yet.
            let key = format!("{prefix}{i}");
            eventually("both are found", async || ranks(other, &key).await.len() > 1).await;
            let there = ranks(other, &key).await;
            assert_eq!(there.len(), 2, "{prefix}{i}");
            pairs.insert(there);
        }
        assert!(pairs.len() > 1, "not all on the same ranks: {pairs:?}");
        for reader in &handles {
            check(reader, &prefix, 12).await;
        }
        // Again: what is there stays, and no third replica.
        put(handle, &prefix, 12, &twice()).await;
        assert_eq!(having(other, &prefix, 12, 2).await, 12);
    }
    removes_all(cluster, handles).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i6_replicas_in_logs_are_known_to_a_rebuilt_master_and_to_rebuilt_owners() {
    let cluster = start("logs-rebuilt", 3, with_logs(config(""))).await;
    let client = cluster.client();
    put(&client, "k", 20, &twice()).await;
    client.remove(b"k7").await.unwrap();
    for crash in ["owners", "master", "both"] {
        if crash != "master" {
            for node in cluster.nodes() {
                node.owner().call(Crash, HANGS).await.unwrap_err();
            }
        }
        if crash != "owners" {
            cluster.node(0).master().unwrap().call(Crash, HANGS).await.unwrap_err();
        }
        eventually("all have reported", async || having(&client, "k", 20, 2).await == 19).await;
        check(&client, "k", 7).await;
        let gone = client.get(b"k7").await.unwrap_err();
        assert_eq!(gone.kind(), ErrorKind::NotFound);
    }
    let stats = client.stats().await.unwrap().master;
    assert_eq!((stats.replicas_repaired, stats.repairs_waiting), (0, 0));
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_replicas_of_logs_are_made_again_so_that_a_second_death_loses_nothing() {
    let base = with_logs(NodeConfig { ttl_ms: 3_000, ..config("logs-lost") });
    let [first, second, third] = three(base).await;
    let client = first.client();
    put(&client, "k", 40, &twice()).await;
    assert_eq!(client.write_counters().by_plan, 0);
    // Without leaving, like a killed process.
    drop(third);
    // What is put now finds one of its logs at most in the middle of dying.
    put(&client, "late", 20, &twice()).await;
    for prefix in ["k", "late"] {
        let n = if prefix == "k" { 40 } else { 20 };
        eventually("all have two replicas at the ranks that are left", async || {
            having(&client, prefix, n, 2).await == n
        })
        .await;
    }
    eventually("repairs are counted, and over", async || {
        let stats = client.stats().await.unwrap().master;
        stats.replicas_repaired > 0 && stats.repairs_waiting == 0
    })
    .await;
    drop(second);
    check(&client, "k", 40).await;
    check(&client, "late", 20).await;
    first.stop().await;
}

/// A key names one content; if two handles give it two, one of them is served everywhere.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i15_of_two_puts_at_once_one_is_served_at_both_ranks() {
    let cluster = start("logs-two-puts", 3, with_logs(config(""))).await;
    let tcp = client_by(&cluster, TransportChoice::Tcp).await;
    let handles = [cluster.client(), tcp.clone()];
    // The later keys of the second handle by plans.
    let opts = |seed: u8, i: u8| twice().device_alloc(seed == 1 || i < 30);
    let put = async |handle: &Client, seed: u8| {
        let value = bytes(LEN, seed);
        for i in 0..60 {
            handle.put(format!("k{i}").as_bytes(), &value, &opts(seed, i)).await.unwrap();
        }
    };
    tokio::join!(put(&handles[0], 1), put(&handles[1], 2));
    eventually("each has two replicas", async || having(&tcp, "k", 60, 2).await == 60).await;
    for i in 0..60 {
        let key = format!("k{i}");
        let mut found = Vec::new();
        for at in tcp.get_replicas(key.as_bytes()).await.unwrap() {
            let mut copy = vec![0; LEN];
            tcp.read_into(at.in_memory().unwrap(), &mut copy).await.unwrap();
            found.push(copy);
        }
        assert!(found[0] == found[1], "{key}: one content");
        assert!([1, 2].iter().any(|seed| found[0] == bytes(LEN, *seed)), "{key}: one that was put");
    }
    tcp.close().await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn puts_that_logs_cannot_take_in_full_take_plans() {
    let cluster = start("logs-or-plans", 2, with_logs(config(""))).await;
    let client = cluster.client();
    let three = PutOptions::default().replicas(3);
    put(&client, "three", 4, &three).await;
    let counters = client.write_counters();
    assert_eq!((counters.by_log, counters.replicas_short), (0, 4), "there are two ranks");
    // More than a quarter of the log.
    let large = bytes(3 << 20, 5);
    client.put(b"large", &large, &twice()).await.unwrap();
    assert_eq!(ranks(&client, "large").await.len(), 2);
    let fails = twice().if_exists(nkv_actors::IfExists::Fail);
    client.put(b"fails", &large[..LEN], &fails).await.unwrap();
    assert_eq!(client.write_counters().by_log, 0);
    let at = PutOptions::default().at(["1".parse().unwrap(), "0".parse().unwrap()]);
    client.put(b"named", &large[..LEN], &at).await.unwrap();
    assert_eq!(client.write_counters().by_log, 2);
    assert_eq!(ranks(&client, "named").await, BTreeSet::from([0, 1]));
    cluster.stop().await;
}
