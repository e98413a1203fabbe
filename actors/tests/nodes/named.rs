//! A listing and a removal by pattern contain what was put into a log before they began, whoever
//! put it and by whatever transport: producers send key strings later, but the master asks for
//! them.

use crate::embedding::bytes;
use crate::embedding::log::{attached, logged, with_log};
use nkv_actors::{Client, Cluster, ErrorKind, TransportChoice};

async fn keys(client: &Client, pattern: &str) -> usize {
    client.list(Some(pattern), None, usize::MAX).await.unwrap().len()
}

/// Handles in the process of the ranks, and attached by shared memory and by tcp.
async fn handles(cluster: &Cluster) -> [Client; 3] {
    let shm = attached(cluster, TransportChoice::Shm).await;
    let tcp = attached(cluster, TransportChoice::Tcp).await;
    [cluster.client(), shm, tcp]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_just_put_into_a_log_is_listed_whoever_put_it() {
    let cluster = Cluster::start(2, with_log("log-listed")).await.unwrap();
    let handles = handles(&cluster).await;
    for turn in 0..30u32 {
        for (h, puts) in handles.iter().enumerate() {
            let key = format!("just/{h}/{turn:03}");
            puts.put(key.as_bytes(), &bytes(900, 7), &logged(turn % 2)).await.unwrap();
            let asks = &handles[(h + turn as usize) % 3];
            assert_eq!(keys(asks, &format!("^{key}$")).await, 1, "{key}");
        }
    }
    assert_eq!(keys(&handles[1], "^just/").await, 90);
    let by_log = handles.iter().map(|h| h.write_counters().by_log).sum::<u64>();
    assert!(by_log >= 90, "{by_log}");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i6_what_was_just_put_into_a_log_is_removed_by_a_pattern_whoever_put_it() {
    let cluster = Cluster::start(2, with_log("log-swept")).await.unwrap();
    let handles = handles(&cluster).await;
    for turn in 0..20u32 {
        for (h, puts) in handles.iter().enumerate() {
            let (key, kept) = (format!("gone/{h}/{turn}"), format!("kept/{h}/{turn}"));
            for key in [&key, &kept] {
                puts.put(key.as_bytes(), &bytes(900, 7), &logged(turn % 2)).await.unwrap();
            }
            let asks = &handles[(h + turn as usize) % 3];
            assert_eq!(asks.remove_matching("^gone/").await.unwrap().in_memory, 1, "{key}");
            let e = puts.get(key.as_bytes()).await.unwrap_err();
            assert_eq!(e.kind(), ErrorKind::NotFound, "{key}");
            assert_eq!(puts.get(kept.as_bytes()).await.unwrap(), bytes(900, 7));
        }
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_is_listed_whole_at_once() {
    let cluster = Cluster::start(1, with_log("named-many")).await.unwrap();
    let client = attached(&cluster, TransportChoice::Shm).await;
    let names: Vec<_> = (0..700).map(|i| format!("many/{i:05}")).collect();
    for turn in 0..3 {
        let items: Vec<_> = names.iter().map(|k| (k.as_bytes(), &b"v"[..])).collect();
        let before = client.write_counters().by_log;
        let done = client.put_many(&items, &logged(0)).await;
        done.into_iter().for_each(|put| put.unwrap());
        assert_eq!(client.write_counters().by_log - before, 700);
        assert_eq!(keys(&cluster.client(), "^many/").await, 700, "turn {turn}");
        assert_eq!(client.remove_matching("^many/").await.unwrap().in_memory, 700);
    }
    cluster.stop().await;
}
