//! What a reader finds without a message: through indexes, cached locations and views. The counters
//! show which of them was used.

use crate::embedding::{
    bytes, client_by, config, eventually, fill, on, quarantines_pass, used_is_live,
};
use nkv_actors::actor::Freeze;
use nkv_actors::message::Existence;
use nkv_actors::{Client, Cluster, ErrorKind, NodeConfig, PutOptions, TransportChoice};
use nkv_store::clock::{BootClock, Clock};
use std::time::Duration;

/// Reads a key until its location comes from an index: at first it may come from the master.
async fn met(client: &Client, key: &str, want: &[u8]) {
    let mut dst = vec![0; want.len()];
    eventually("an index leads to the key", async || {
        let before = client.read_counters().by_index;
        client.get_into(key.as_bytes(), &mut dst).await.unwrap();
        assert_eq!(dst, want);
        client.read_counters().by_index > before
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mapped_segments_are_read_without_the_master_whoever_maps_them() {
    let cluster = Cluster::start(2, config("unasked-near")).await.unwrap();
    let keys = fill(&cluster.client(), "k", 50, 3_000).await;
    for client in [cluster.client(), client_by(&cluster, TransportChoice::Shm).await] {
        met(&client, "k0", &bytes(3_000, 0)).await;
        let names: Vec<&[u8]> = keys.iter().map(String::as_bytes).collect();
        let mut found = [false; 50];
        // The owner receives a commit shortly after its put returned.
        eventually("all are in the index", async || {
            client.lookup_mapped(&names, &mut found).unwrap() == 50
        })
        .await;
        let before = client.read_counters();
        // The master is blocked, and is not needed.
        cluster.node(0).master().unwrap().try_send(Freeze(Duration::from_millis(400))).unwrap();
        for (i, key) in keys.iter().enumerate() {
            assert_eq!(client.get(key.as_bytes()).await.unwrap(), bytes(3_000, i as u8));
        }
        assert_eq!(client.exists(&names).await.unwrap(), vec![Existence::Ready; 50]);
        let run = client.match_prefix(&names).await.unwrap();
        assert!(
            run.len() == 50 && run.iter().all(|at| at.rank() == 1 && at.bytes_total() == 3_000)
        );
        let after = client.read_counters();
        assert_eq!((after.by_index - before.by_index, after.by_master), (50, before.by_master));
    }
    cluster.stop().await;
}

/// Reused pool buffers contain bytes of other objects, and objects are evicted while they are
/// copied.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i7_a_get_beside_puts_and_removes_of_its_key_returns_one_of_them_whole() {
    const LEN: usize = 200_000;
    let cluster = Cluster::start(1, config("unasked-changing")).await.unwrap();
    let (writer, reader) = (cluster.client(), client_by(&cluster, TransportChoice::Shm).await);
    let changes = tokio::spawn(async move {
        for n in 1..=200u8 {
            writer.put(b"k", &vec![n; LEN], &PutOptions::default()).await.unwrap();
            tokio::time::sleep(Duration::from_micros(500)).await;
            writer.remove(b"k").await.unwrap();
        }
    });
    let (mut seen, mut last) = (0, 0);
    while !changes.is_finished() {
        match reader.get(b"k").await {
            Ok(got) => {
                assert!(got.len() == LEN && got.iter().all(|b| *b == got[0]), "torn");
                assert!(got[0] >= last, "{} came after {last} was removed for it", got[0]);
                (seen, last) = (seen + 1, got[0]);
            }
            Err(e) => assert!(matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotReady), "{e}"),
        }
    }
    changes.await.unwrap();
    assert!(seen > 0 && last > 0, "{seen} gets, the last of {last}");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn over_tcp_the_rank_that_the_hash_names_is_asked_by_reads_alone() {
    let cluster = Cluster::start(2, config("unasked-far")).await.unwrap();
    let node = cluster.client();
    for i in 0..60u8 {
        node.put(format!("h{i}").as_bytes(), &bytes(500, i), &PutOptions::default()).await.unwrap();
    }
    let client = client_by(&cluster, TransportChoice::Tcp).await;
    let keys: Vec<_> = (0..60u8).map(|i| format!("h{i}")).collect();
    let names: Vec<&[u8]> = keys.iter().map(String::as_bytes).collect();
    // Attached to both by reading from both.
    for i in 0..60u8 {
        assert_eq!(client.get(names[i as usize]).await.unwrap(), bytes(500, i));
    }
    let first = client.read_counters();
    assert!(first.by_master > 0 && first.by_master + first.by_index == 60, "{first:?}");
    for i in 0..60u8 {
        assert_eq!(client.get(names[i as usize]).await.unwrap(), bytes(500, i));
    }
    let second = client.read_counters();
    assert_eq!((second.by_cache - first.by_cache, second.by_master), (60, first.by_master));
    // An object that another handle put, and that this one never read: its location comes from the
    // index.
    node.put(b"late", b"value", &PutOptions::default()).await.unwrap();
    let mut dst = [0; 5];
    eventually("the index has it", async || {
        let before = client.read_counters().by_master;
        client.get_into(b"late", &mut dst).await.unwrap();
        client.read_counters().by_master == before
    })
    .await;
    // Removed and put again elsewhere: the cached location is out of date, and is not used.
    node.remove(names[7]).await.unwrap();
    assert_eq!(client.get(names[7]).await.unwrap_err().kind(), ErrorKind::NotFound);
    let there = node.get_location(names[8]).await.unwrap().rank();
    node.remove(names[8]).await.unwrap();
    node.put(names[8], &bytes(900, 77), &on(1 - there)).await.unwrap();
    assert_eq!(client.get(names[8]).await.unwrap(), bytes(900, 77));
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_removed_or_evicted_is_found_nowhere_and_what_is_put_anew_is() {
    let cluster = Cluster::start(1, config("unasked-gone")).await.unwrap();
    let client = client_by(&cluster, TransportChoice::Shm).await;
    for turn in 0..30u8 {
        client.put(b"k", &bytes(2_000, turn), &PutOptions::default()).await.unwrap();
        assert_eq!(client.get(b"k").await.unwrap(), bytes(2_000, turn));
        client.remove(b"k").await.unwrap();
        assert_eq!(client.get(b"k").await.unwrap_err().kind(), ErrorKind::NotFound);
        assert_eq!(client.exists(&[b"k"]).await.unwrap(), [Existence::Absent]);
        assert!(client.match_prefix(&[b"k"]).await.unwrap().is_empty());
    }
    used_is_live(&cluster).await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i9_a_viewed_object_stays_in_place_though_it_is_removed() {
    let cluster = Cluster::start(1, config("view")).await.unwrap();
    let (node, client) = (cluster.client(), client_by(&cluster, TransportChoice::Shm).await);
    for viewer in [&node, &client] {
        node.put(b"k", &bytes(100_000, 3), &PutOptions::default()).await.unwrap();
        let view = viewer.get_view(b"k").await.unwrap();
        let again = viewer.get_view(b"k").await.unwrap();
        assert_eq!((&view[..], view.rank()), (&bytes(100_000, 3)[..], 0));
        node.remove(b"k").await.unwrap();
        assert_eq!(viewer.get_view(b"k").await.unwrap_err().kind(), ErrorKind::NotFound);
        let owner = || cluster.node(0).status().owner;
        eventually("only the view holds it", async || owner().pinned == 1).await;
        // Other objects take all the room, many times over.
        for i in 0..200u8 {
            let key = format!("other{i}");
            node.put(key.as_bytes(), &bytes(200_000, i), &PutOptions::default()).await.unwrap();
        }
        assert_eq!(&view[..], bytes(100_000, 3), "looked at in place, it never changed");
        drop(view);
        assert_eq!(owner().pinned, 1, "one view is left");
        drop(again);
        eventually("its space comes back", async || owner().pinned == 0).await;
        node.remove_all().await.unwrap();
        used_is_live(&cluster).await;
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn views_are_of_mapped_memory_and_of_what_is_there() {
    let cluster = Cluster::start(1, config("no-view")).await.unwrap();
    cluster.client().put(b"k", b"value", &PutOptions::default()).await.unwrap();
    cluster.client().put(b"empty", b"", &PutOptions::default()).await.unwrap();
    let far = client_by(&cluster, TransportChoice::Tcp).await;
    let e = far.get_view(b"k").await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Unsupported, "{e}");
    let e = cluster.client().get_view(b"absent").await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::NotFound, "{e}");
    assert!(cluster.client().get_view(b"empty").await.unwrap().is_empty());
    // A closed handle reads nothing any more; its views stay valid.
    let near = client_by(&cluster, TransportChoice::Shm).await;
    let view = near.get_view(b"k").await.unwrap();
    near.close().await;
    cluster.client().remove(b"k").await.unwrap();
    let pinned = || cluster.node(0).status().owner.pinned;
    eventually("only the view holds it", async || pinned() == 1).await;
    // Many quarantines: no time ends a view.
    quarantines_pass(&cluster, 10).await;
    assert_eq!(&view[..], b"value");
    assert_eq!(pinned(), 1);
    drop(view);
    eventually("freed", async || pinned() == 0).await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn owners_count_reads_by_who_led_there() {
    let cluster = Cluster::start(1, NodeConfig { ..config("served") }).await.unwrap();
    let client = client_by(&cluster, TransportChoice::Shm).await;
    client.put(b"k", &bytes(4_096, 1), &PutOptions::default()).await.unwrap();
    met(&client, "k", &bytes(4_096, 1)).await;
    let mut dst = [0; 4096];
    for _ in 0..1_000 {
        client.get_into(b"k", &mut dst).await.unwrap();
    }
    client.flush().await.unwrap();
    let reads = client.read_counters();
    eventually("the owner heard of all", async || {
        let o = cluster.node(0).status().owner;
        o.gets_served == reads.accepted
            && o.gets_by_index == reads.by_index
            && o.gets_by_master == reads.by_master
    })
    .await;
    assert!(reads.by_index >= 1_000 && reads.by_master <= 2, "{reads:?}");
    cluster.stop().await;
}

/// A steady loop: gets of existing keys, one by one and in batches, and puts through a log.
async fn steady(client: &Client, keys: &[&[u8]]) {
    let ops = 12_800usize;
    let opts = PutOptions::default().device_alloc(true);
    let mut into = vec![0; 500];
    // Once to attach to every owner.
    for key in keys {
        client.get_into(key, &mut into).await.unwrap();
        client.put(&[b"first", *key].concat(), &into, &opts).await.unwrap();
    }
    client.flush().await.unwrap();
    let (before, reads, writes) =
        (client.message_counters(), client.read_counters(), client.write_counters());
    let begun_ms = BootClock.now_ms();
    for i in 0..ops {
        client.get_into(keys[i % keys.len()], &mut into).await.unwrap();
    }
    let (got, gets_ms) = (client.message_counters(), BootClock.now_ms() - begun_ms);
    for i in 0..ops {
        let key = [b"put".as_slice(), &(reads.accepted + i as u64).to_be_bytes()].concat();
        client.put(&key, &into, &opts).await.unwrap();
    }
    // The last touches are sent as well.
    client.flush().await.unwrap();
    let put = client.message_counters();
    let (r, w) = (client.read_counters(), client.write_counters());
    assert_eq!(r.by_index + r.by_cache - reads.by_index - reads.by_cache, ops as u64, "{r:?}");
    assert_eq!(w.by_log - writes.by_log, ops as u64, "{w:?}");
    assert_eq!((got.waited, put.waited), (before.waited, before.waited), "nobody waits");
    let sent = [got.one_way - before.one_way, put.one_way - got.one_way];
    println!("{:?}: {sent:?} one-way messages for {ops} gets and {ops} puts", client);
    // Where the loop is slower than 128 operations in 100 ms, the timer sends what there is.
    let puts_ms = BootClock.now_ms() - begun_ms - gets_ms;
    for (n, took_ms) in sent.into_iter().zip([gets_ms, puts_ms]) {
        let most = ops as u64 / 128 + took_ms / 100;
        assert!((1..=most).contains(&n), "{n} messages in {took_ms} ms, {most} at most");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_a_steady_loop_no_call_waits_for_a_message_and_one_is_sent_per_128_operations_at_most() {
    let small = config("unasked-steady");
    let roomy = NodeConfig { heap_bytes: 192 << 20, log_bytes: Some(64 << 20), ..small };
    let cluster = Cluster::start(2, roomy).await.unwrap();
    let keys = fill(&cluster.client(), "k", 64, 500).await;
    let keys: Vec<&[u8]> = keys.iter().map(String::as_bytes).collect();
    for client in [
        cluster.client(),
        client_by(&cluster, TransportChoice::Shm).await,
        client_by(&cluster, TransportChoice::Tcp).await,
    ] {
        steady(&client, &keys).await;
    }
    let status = serde_json::to_value(cluster.node(0).status()).unwrap();
    for path in [
        "/reads/by_index",
        "/reads/by_cache",
        "/reads/by_master",
        "/writes/by_log",
        "/writes/by_plan",
        "/messages/waited",
        "/messages/one_way",
    ] {
        assert!(status.pointer(path).is_some_and(serde_json::Value::is_u64), "{path}: {status}");
    }
    cluster.stop().await;
}
