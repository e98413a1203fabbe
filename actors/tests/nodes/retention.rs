//! What evictors do with objects that are pinned, or go first: in a heap that is filled many times
//! over, after a panic of its actors, and with more hard pins than there may be.

use crate::embedding::{bytes, client_by, config, eventually};
use nkv_actors::actor::Crash;
use nkv_actors::{Client, Cluster, ErrorKind, NodeConfig, PutOptions, Result, TransportChoice};
use nkv_pace::HANGS;
use nkv_store::Retention;
use std::time::Duration;

const LEN: usize = 60_000;
const LARGE: usize = 5 * LEN;
/// More than any test takes.
const LONG: Retention = Retention::SoftPin(Duration::from_secs(3_600));

async fn one_rank(job: &str) -> Cluster {
    let base = NodeConfig { heap_bytes: 4 << 20, quarantine_ms: 1, ..config(job) };
    Cluster::start(1, base).await.unwrap()
}

async fn put(client: &Client, prefix: &str, n: usize, retention: Retention) {
    let opts = PutOptions::default().retention(retention);
    for i in 0..n {
        let (key, value) = (format!("{prefix}{i}"), bytes(LEN, i as u8));
        client.put(key.as_bytes(), &value, &opts).await.unwrap();
    }
}

/// How many of the first `n` keys are there; each has its bytes.
async fn left(client: &Client, prefix: &str, n: usize) -> usize {
    let mut left = 0;
    for i in 0..n {
        match client.get(format!("{prefix}{i}").as_bytes()).await {
            Ok(value) => assert!(value == bytes(LEN, i as u8), "{prefix}{i}"),
            Err(e) if e.kind() == ErrorKind::NotFound => continue,
            Err(e) => panic!("{prefix}{i}: {e}"),
        }
        left += 1;
    }
    left
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pinned_objects_stay_while_a_heap_is_filled_three_times_and_the_first_go_first() {
    let cluster = one_rank("retention").await;
    let client = &cluster.client();
    put(client, "hard/", 8, Retention::HardPin).await;
    put(client, "soft/", 8, LONG).await;
    // Never read: its pin begins with the put. The host has been up for longer than this.
    put(client, "unread/", 4, Retention::SoftPin(Duration::from_secs(120))).await;
    put(client, "usual/", 8, Retention::Usual).await;
    // The newest, and some of them are gone before any of the others is.
    put(client, "first/", 20, Retention::EvictFirst).await;
    let mut more = 0;
    while cluster.node(0).status().owner.evictions == 0 {
        let key = format!("more/{more}");
        client.put(key.as_bytes(), &bytes(LEN, 0), &PutOptions::default()).await.unwrap();
        more += 1;
        assert!(more < 70, "the heap is to be full");
    }
    assert!(left(client, "first/", 20).await < 20);
    assert_eq!(left(client, "usual/", 8).await, 8);
    put(client, "flood/", 180, Retention::Usual).await;
    assert_eq!(left(client, "usual/", 8).await + left(client, "first/", 20).await, 0);
    assert_eq!((left(client, "hard/", 8).await, left(client, "soft/", 8).await), (8, 8));
    // After a panic of both actors their new incarnations find the pins in the headers.
    cluster.node(0).owner().call(Crash, HANGS).await.unwrap_err();
    cluster.node(0).evictor().call(Crash, HANGS).await.unwrap_err();
    put(client, "again/", 180, Retention::Usual).await;
    assert_eq!((left(client, "hard/", 8).await, left(client, "soft/", 8).await), (8, 8));
    assert_eq!(left(client, "unread/", 4).await, 4);
    for i in 0..8 {
        client.remove(format!("hard/{i}").as_bytes()).await.unwrap();
    }
    assert_eq!(left(client, "hard/", 8).await, 0);
    eventually("no hard pin is counted", async || {
        cluster.node(0).status().owner.hard_pinned_bytes == 0
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_heap_full_of_soft_pins_still_takes_what_is_put() {
    let cluster = one_rank("soft-full").await;
    let client = &cluster.client();
    put(client, "soft/", 150, LONG).await;
    let kept = left(client, "soft/", 150).await;
    assert!((1..150).contains(&kept), "{kept}");
    // One that needs the room of many neighbours.
    client.put(b"large", &bytes(2 << 20, 1), &PutOptions::default()).await.unwrap();
    assert!(left(client, "soft/", 150).await < kept);
}

fn has_no_room(done: &Result<()>) -> bool {
    matches!(done, Err(e) if e.kind() == ErrorKind::OutOfMemory)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hard_pins_have_half_of_a_heap_and_the_error_says_so() {
    let cluster = one_rank("hard-full").await;
    let client = &cluster.client();
    let opts = PutOptions::default().retention(Retention::HardPin);
    let mut put = 0;
    let refused = loop {
        let key = format!("hard/{put}");
        match client.put(key.as_bytes(), &bytes(LARGE, put as u8), &opts).await {
            Ok(()) => put += 1,
            Err(e) => break e,
        }
        assert!(put < 14, "more than the heap has");
    };
    let half = 4 << 20 >> 1;
    assert!(put * LARGE < half && (put + 1) * LARGE > half, "{put}");
    assert_eq!(refused.kind(), ErrorKind::OutOfMemory);
    let text = refused.to_string();
    assert!(text.contains("hard pins have") && text.contains("--heap-bytes"), "{text}");
    for i in 0..put {
        let value = client.get(format!("hard/{i}").as_bytes()).await.unwrap();
        assert!(value == bytes(LARGE, i as u8), "{i}");
    }
    // In one batch, and by a master that has lost its memory.
    for round in ["batch", "after a panic"] {
        let keys: Vec<_> = (0..20).map(|i| format!("{round}/{i}")).collect();
        let value = bytes(LEN / 2, 7);
        let items: Vec<_> = keys.iter().map(|key| (key.as_bytes(), &value[..])).collect();
        let done = client.put_many(&items, &opts).await;
        let pinned = || cluster.node(0).status().owner.hard_pinned_bytes;
        assert!(pinned() <= half as u64, "{} of {half}", pinned());
        assert!(done.iter().all(|done| done.is_ok() || has_no_room(done)), "{done:?}");
        assert!(done.iter().any(has_no_room), "{round}");
        cluster.node(0).master().unwrap().call(Crash, HANGS).await.unwrap_err();
    }
    // What is removed makes room for others.
    client.remove(b"hard/0").await.unwrap();
    eventually("its room is free", async || {
        let value = bytes(LARGE, 9);
        match client.put(b"another", &value, &opts).await {
            Ok(()) => true,
            Err(e) if e.kind() == ErrorKind::OutOfMemory => false,
            Err(e) => panic!("{e}"),
        }
    })
    .await;
    // Others have the rest.
    client.put(b"usual", &bytes(LEN, 1), &PutOptions::default()).await.unwrap();
}

async fn is_there(client: &Client, key: &[u8]) -> bool {
    client.exists(&[key]).await.unwrap()[0] == nkv_actors::message::Existence::Ready
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_object_until_read_is_removed_everywhere_some_time_after_its_first_read() {
    let base = NodeConfig { heap_bytes: 8 << 20, quarantine_ms: 1, ..config("until-read") };
    let cluster = Cluster::start(2, base).await.unwrap();
    let client = &cluster.client();
    let until_read = Retention::UntilRead(Duration::from_secs(1));
    let opts = PutOptions::default().retention(until_read).replicas(2);
    // Its slot had an object that was read: that is no read of the next one.
    client.put(b"before", &bytes(LEN, 0), &opts.clone().retention(Retention::Usual)).await.unwrap();
    eventually("its owner knows that it is live", async || {
        client.lookup_mapped(&[b"before"], &mut [false]) == Ok(1)
    })
    .await;
    client.get(b"before").await.unwrap();
    client.flush().await.unwrap();
    client.remove(b"before").await.unwrap();
    eventually("its slot is free", async || {
        client.stats().await.unwrap().ranks.iter().all(|rank| rank.allocated_bytes == 0)
    })
    .await;
    for key in [&b"unread"[..], b"read", b"striped"] {
        let stripes = if key == b"striped" { 2 } else { 1 };
        client.put(key, &bytes(LEN, 1), &opts.clone().stripes(stripes)).await.unwrap();
    }
    for key in [&b"read"[..], b"striped"] {
        assert!(client.get(key).await.unwrap() == bytes(LEN, 1));
    }
    client.flush().await.unwrap();
    // What it knows of reads is in the headers.
    for node in cluster.nodes() {
        node.evictor().call(Crash, HANGS).await.unwrap_err();
    }
    for key in [&b"read"[..], b"striped"] {
        eventually("it is removed", async || !is_there(client, key).await).await;
        assert_eq!(client.get(key).await.unwrap_err().kind(), ErrorKind::NotFound);
    }
    eventually("nothing else is left of them", async || {
        cluster.nodes().iter().all(|node| node.status().owner.objects == 1)
    })
    .await;
    assert!(is_there(client, b"unread").await);
    assert!(client.get(b"unread").await.unwrap() == bytes(LEN, 1));
    eventually("it is removed", async || !is_there(client, b"unread").await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn neither_a_repair_nor_another_put_is_the_first_read() {
    const LARGE: usize = 100_000;
    let base = NodeConfig {
        heap_bytes: 16 << 20,
        log_bytes: Some(8 << 20),
        device_alloc: true,
        ..config("no-read")
    };
    let cluster = Cluster::start(3, base).await.unwrap();
    let client = &cluster.client();
    let until_read = Retention::UntilRead(Duration::from_secs(1));
    let opts = PutOptions::default().retention(until_read).preferred_rank(1).replicas(2);
    client.put(b"k", &bytes(LARGE, 1), &opts).await.unwrap();
    let other = client_by(&cluster, TransportChoice::Shm).await;
    let by_log = PutOptions::default().preferred_rank(1).device_alloc(true);
    other.put(b"first", &bytes(LARGE, 2), &by_log).await.unwrap();
    eventually("it is in an index that this handle maps", async || {
        other.lookup_mapped(&[b"k"], &mut [false]) == Ok(1)
    })
    .await;
    other.put(b"k", &bytes(LARGE, 1), &by_log).await.unwrap();
    assert_eq!(other.write_counters().there_already, 1, "{:?}", other.write_counters());
    other.flush().await.unwrap();
    client.replicate(&[b"k"], 3).await.remove(0).unwrap();
    eventually("there is a third", async || {
        client.stats().await.unwrap().master.replicas_repaired == 1
    })
    .await;
    client.flush().await.unwrap();
    // Longer than its time, and than the pause between two looks.
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    assert!(is_there(client, b"k").await);
    assert!(client.get(b"k").await.unwrap() == bytes(LARGE, 1));
    eventually("it is removed", async || !is_there(client, b"k").await).await;
}
