//! A full device log: puts take plans meanwhile, and the log is used again once it has room.

use crate::embedding::log::{LOG, at_rest, attached, gauges, logged, with_log};
use crate::embedding::{bytes, eventually, used_is_live};
use nkv_actors::message::Existence;
use nkv_actors::{Cluster, PutOptions, TransportChoice};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i9_a_view_holds_its_bytes_and_not_the_log() {
    let cluster = Cluster::start(1, with_log("log-view-full")).await.unwrap();
    let client = attached(&cluster, TransportChoice::Shm).await;
    let put = async |i: u32| client.put(&i.to_be_bytes(), &bytes(64 << 10, 1), &logged(0)).await;
    for round in 0..3 {
        let first = round * 1_000;
        put(first).await.unwrap();
        let mut view = None;
        eventually("it is served", async || {
            view = client.get_view(&first.to_be_bytes()).await.ok();
            view.is_some()
        })
        .await;
        // Several times what the log holds, while the view is open.
        let full = client.write_counters().by_log + 4 * LOG / (64 << 10);
        let mut next = first;
        eventually("the log takes puts all the same", async || {
            next += 1;
            put(next).await.unwrap();
            client.write_counters().by_log >= full
        })
        .await;
        assert_eq!(view.unwrap().to_vec(), bytes(64 << 10, 1));
    }
    assert!(gauges(&cluster, 0).log_passed_over_bytes > 0, "its bytes were passed over");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_full_of_what_is_never_read_goes_on() {
    let cluster = Cluster::start(1, with_log("log-never")).await.unwrap();
    let client = attached(&cluster, TransportChoice::Shm).await;
    client.remove(b"first").await.unwrap();
    client.put(b"k", &bytes(60 << 10, 1), &PutOptions::default()).await.unwrap();
    eventually("served", async || client.get(b"k").await.is_ok()).await;
    // Each is a duplicate, void as soon as it is seen; together four times what the log holds.
    let mut by_log = client.write_counters().by_log;
    let full = by_log + 4 * LOG / (64 << 10);
    eventually("the log takes them all", async || {
        // While the log is full the put takes a plan, and is refused.
        let _ = client.put(b"k", &bytes(60 << 10, 1), &logged(0)).await;
        by_log = client.write_counters().by_log;
        by_log >= full
    })
    .await;
    at_rest(&cluster, 0).await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_keeps_the_newest_and_a_full_one_sends_puts_to_the_heap() {
    let cluster = Cluster::start(1, with_log("log-wraps")).await.unwrap();
    let client = attached(&cluster, TransportChoice::Shm).await;
    // Ten times round the log, in sizes that do not divide it.
    let n = 700usize;
    for i in 0..n {
        let value = bytes(20_000 + i * 64 % 50_000, i as u8);
        client.put(format!("w{i}").as_bytes(), &value, &logged(0)).await.unwrap();
    }
    let w = client.write_counters();
    assert_eq!(w.by_log + w.by_plan, n as u64 + 1, "{w:?}");
    at_rest(&cluster, 0).await;
    let g = gauges(&cluster, 0);
    assert!(g.log_evictions > 0 && g.log_skipped_bytes > 0 && g.log_voided_bytes == 0, "{g:?}");
    assert_eq!(client.get(format!("w{}", n - 1).as_bytes()).await.unwrap().len(), {
        20_000 + (n - 1) * 64 % 50_000
    });
    // Too large for the log, also when it is empty.
    client.put(b"large", &bytes(2 << 20, 1), &logged(0)).await.unwrap();
    assert_eq!(client.write_counters().by_plan, w.by_plan + 1);
    assert_eq!(client.get(b"large").await.unwrap(), bytes(2 << 20, 1));
    client.remove_all().await.unwrap();
    eventually("empty", async || gauges(&cluster, 0).log_objects == 0).await;
    used_is_live(&cluster).await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_put_of_what_is_served_writes_nothing_and_counts_as_a_read() {
    let cluster = Cluster::start(1, with_log("log-there")).await.unwrap();
    let client = attached(&cluster, TransportChoice::Shm).await;
    let value = bytes(64 << 10, 1);
    client.put(b"k", &value, &logged(0)).await.unwrap();
    eventually("served", async || client.exists(&[b"k"]).await.unwrap() == [Existence::Ready])
        .await;
    let before = (client.write_counters(), gauges(&cluster, 0).log_claimed_bytes);
    client.put(b"k", &bytes(64 << 10, 2), &logged(0)).await.unwrap();
    let after = (client.write_counters(), gauges(&cluster, 0).log_claimed_bytes);
    assert_eq!(after.0.there_already, before.0.there_already + 1);
    assert_eq!((after.0.by_log, after.1), (before.0.by_log, before.1));
    // It never was read, and outlives a lap, since somebody wanted it.
    let copies = || gauges(&cluster, 0).log_copies;
    let mut next = 0u32;
    eventually("it is copied to the log's head", async || {
        next += 1;
        client.put(&next.to_be_bytes(), &value, &logged(0)).await.unwrap();
        copies() > 0
    })
    .await;
    assert_eq!(client.get(b"k").await.unwrap(), value);
    // Where the key is not served any more, the put stores it.
    client.remove(b"k").await.unwrap();
    client.put(b"k", &bytes(64 << 10, 3), &logged(0)).await.unwrap();
    eventually("the new one is served", async || {
        client.get(b"k").await.is_ok_and(|found| found == bytes(64 << 10, 3))
    })
    .await;
    cluster.stop().await;
}
