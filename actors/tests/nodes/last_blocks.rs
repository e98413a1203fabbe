//! Heaps without a log, as ranks with the policy `prefix` have by default: kept nearly full; and
//! `put_many` marks the last object of a batch.

use crate::embedding::{bytes, config, eventually};
use nkv_actors::{Client, Cluster, NodeConfig, PutOptions};
use nkv_store::heap::Heap;
use nkv_store::object::live_slots;
use nkv_store::{PolicyKind, Retention, shm};

const LEN: usize = 65_536;
const HEAP: u64 = 4 << 20;

async fn one_rank(job: &str) -> Cluster {
    let policy = PolicyKind::Prefix;
    let base = NodeConfig { heap_bytes: HEAP, policy, log_bytes: None, ..config(job) };
    Cluster::start(1, NodeConfig { quarantine_ms: 1, ..base }).await.unwrap()
}

async fn put_many(client: &Client, keys: &[String]) {
    let value = bytes(LEN, 1);
    let items: Vec<_> = keys.iter().map(|key| (key.as_bytes(), &value[..])).collect();
    let put = client.put_many(&items, &PutOptions::default()).await;
    put.into_iter().for_each(Result::unwrap);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn put_many_marks_the_last_object_of_a_batch_and_put_marks_none() {
    let cluster = one_rank("last-blocks").await;
    let (client, node) = (&cluster.client(), cluster.node(0));
    assert_eq!(node.status().owner.log_total, 0);
    let memory = shm::attach(node.info().memory.name().unwrap(), false).unwrap();
    let heap = Heap::open(memory).unwrap();
    let keys: Vec<String> = (0..5).map(|i| format!("batch/{i}")).collect();
    put_many(client, &keys).await;
    put_many(client, &["one of a batch".to_string()]).await;
    client.put(b"alone", &bytes(LEN, 1), &PutOptions::default()).await.unwrap();
    eventually("all are committed", async || live_slots(&heap).count() == 7).await;
    let last: Vec<_> = live_slots(&heap)
        .filter(|object| object.retention == Retention::LastOfBatch)
        .map(|object| object.slot)
        .collect();
    let wanted = client.get_location(keys[4].as_bytes()).await.unwrap();
    assert_eq!(last, [wanted.in_memory().unwrap().at.slot]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_heap_without_a_log_is_kept_full_but_for_two_objects() {
    let cluster = one_rank("kept-full").await;
    let client = &cluster.client();
    for batch in 0..60 {
        let keys: Vec<String> = (0..4).map(|i| format!("{batch}/{i}")).collect();
        put_many(client, &keys).await;
    }
    let heap = || cluster.node(0).status().owner;
    assert!(heap().evictions > 0);
    let room = 2 * LEN as u64;
    assert!(room > HEAP / 100);
    eventually("only that is free", async || {
        let now = heap();
        let free = now.heap_total - now.live_bytes;
        now.live_bytes == now.heap_used && (room..=room + 4 * LEN as u64).contains(&free)
    })
    .await;
}

/// Puts one object after another into a rank that is full.
async fn fill(client: &Client, prefix: &str, n: usize) {
    for i in 0..n {
        let key = format!("{prefix}/{i}");
        client.put(key.as_bytes(), &bytes(LEN, 1), &PutOptions::default()).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_views_hold_does_not_have_used_objects_evicted_for_want_of_room() {
    let cluster = one_rank("views-hold").await;
    let client = &cluster.client();
    let owner = || cluster.node(0).status().owner;
    // What is used lies at the lowest addresses, which a choice without a policy would take.
    fill(client, "used", 8).await;
    fill(client, "seen", 6).await;
    let mut views = Vec::new();
    for i in 0..6 {
        let key = format!("seen/{i}");
        views.push(client.get_view(key.as_bytes()).await.unwrap());
        client.remove(key.as_bytes()).await.unwrap();
    }
    eventually("only views hold them", async || owner().pinned == 6).await;
    for round in 0..20 {
        for i in 0..8 {
            let served = owner().gets_served;
            client.get(format!("used/{i}").as_bytes()).await.unwrap();
            eventually("the read was noted", async || owner().gets_served > served).await;
        }
        fill(client, &format!("others/{round}"), 16).await;
    }
    assert!(owner().evictions > 200, "{}", owner().evictions);
    assert_eq!(owner().pinned, 6);
    drop(views);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_goes_first_is_there_until_the_next_put_in_a_heap_that_is_full() {
    let cluster = one_rank("goes-next").await;
    let client = &cluster.client();
    let first = PutOptions::default().retention(Retention::EvictFirst);
    fill(client, "others", 80).await;
    for i in 0..20 {
        let key = format!("first/{i}");
        client.put(key.as_bytes(), &bytes(LEN, i), &first).await.unwrap();
        let evictions = cluster.node(0).status().owner.evictions;
        // Longer than the evictor takes to be told of it.
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        assert!(client.get(key.as_bytes()).await.unwrap() == bytes(LEN, i), "{key}");
        fill(client, &format!("more/{i}"), 1).await;
        eventually("it goes", async || client.get_location(key.as_bytes()).await.is_err()).await;
        assert!(cluster.node(0).status().owner.evictions > evictions);
    }
}
