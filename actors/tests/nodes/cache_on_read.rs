//! Handles that keep what they read from another host at their own rank: three ranks on three
//! hosts.

use crate::embedding::machine::TestMachine;
use crate::embedding::{bytes, config, eventually, on};
use nkv_actors::{Client, Environment, ErrorKind, Node, NodeConfig, PutOptions};
use nkv_store::Retention;
use std::sync::Arc;

const RANKS: u32 = 3;
const LEN: usize = 100_000;

async fn start(job: &str, heap_bytes: u64) -> Vec<Node> {
    let mut nodes: Vec<Node> = Vec::new();
    for rank in 0..RANKS {
        let mut env = Environment::of_this_process().apart();
        env.machine =
            Arc::new(TestMachine { boot_id: Some(7 + u64::from(rank)), ..TestMachine::default() });
        let port = nodes.first().map_or(0, |first| {
            first.info().control.to_string().rsplit(':').next().unwrap().parse().unwrap()
        });
        let config = NodeConfig {
            rank,
            world_size: RANKS,
            port,
            heap_bytes,
            cache_on_read: rank == 2,
            ..config(job)
        };
        nodes.push(Node::start_in(env, config).await.unwrap());
    }
    for node in &nodes {
        eventually("all are members", async || {
            node.client().membership().await.is_ok_and(|v| v.nodes().count() == RANKS as usize)
        })
        .await;
    }
    eventually("all have reported", async || nodes[0].is_ready()).await;
    nodes
}

async fn stop(nodes: Vec<Node>) {
    for node in nodes.into_iter().rev() {
        node.stop().await;
    }
}

/// The ranks that have a key.
async fn ranks(client: &Client, key: &[u8]) -> Vec<u32> {
    let found = client.get_replicas(key).await.unwrap_or_default();
    let mut ranks: Vec<u32> = found.iter().map(|place| place.rank()).collect();
    ranks.sort_unstable();
    ranks
}

/// Reads that needed no network.
fn by_loads(client: &Client) -> u64 {
    client.read_counters().by_loads
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_read_from_another_host_is_kept_here_and_removed_with_the_rest() {
    let nodes = start("kept", 8 << 20).await;
    let (writer, reader) = (&nodes[1].client(), &nodes[2].client());
    let keys: Vec<String> = (0..6).map(|i| format!("block/{i}")).collect();
    for (i, key) in keys.iter().enumerate() {
        writer.put(key.as_bytes(), &bytes(LEN, i as u8), &on(1)).await.unwrap();
    }
    assert!(reader.get(b"block/0").await.unwrap() == bytes(LEN, 0));
    let mut buffers = vec![vec![0; LEN]; 5];
    let mut items: Vec<_> = keys[1..]
        .iter()
        .map(String::as_bytes)
        .zip(buffers.iter_mut().map(|b| &mut b[..]))
        .collect();
    assert_eq!(reader.get_many_into(&mut items).await, vec![Ok(LEN); 5]);
    for key in &keys {
        eventually("it is kept", async || ranks(writer, key.as_bytes()).await == [1, 2]).await;
    }
    let names: Vec<&[u8]> = keys.iter().map(String::as_bytes).collect();
    eventually("all are in this host's indexes", async || {
        reader.lookup_mapped(&names, &mut [false; 6]) == Ok(6)
    })
    .await;
    let before = by_loads(reader);
    for (i, key) in keys.iter().enumerate() {
        assert!(reader.get(key.as_bytes()).await.unwrap() == bytes(LEN, i as u8), "{key}");
    }
    assert_eq!(by_loads(reader), before + 6);
    eventually("each is counted", async || reader.read_counters().cached == 6).await;
    // A handle that was not asked to keeps nothing.
    assert!(nodes[0].client().get(b"block/0").await.unwrap() == bytes(LEN, 0));
    let stats = writer.stats().await.unwrap();
    assert_eq!((stats.master.replicas_repaired, stats.master.repairs_waiting), (0, 0));
    for key in &keys {
        writer.remove(key.as_bytes()).await.unwrap();
        let gone = reader.get(key.as_bytes()).await.unwrap_err();
        assert_eq!(gone.kind(), ErrorKind::NotFound, "{key}");
    }
    stop(nodes).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_kept_evicts_nothing_and_goes_first() {
    let nodes = start("first", 4 << 20).await;
    let (writer, reader) = (&nodes[1].client(), &nodes[2].client());
    for i in 0..10 {
        writer.put(format!("own/{i}").as_bytes(), &bytes(LEN, i), &on(2)).await.unwrap();
    }
    for i in 0..36 {
        let key = format!("far/{i}");
        writer.put(key.as_bytes(), &bytes(LEN, i), &on(1)).await.unwrap();
        let before = reader.read_counters().cached;
        // Where the rank has no room nothing is tried for a second.
        eventually("it is kept", async || {
            assert!(reader.get(key.as_bytes()).await.unwrap() == bytes(LEN, i));
            reader.read_counters().cached > before
        })
        .await;
    }
    assert!(nodes[2].status().owner.evictions > 0);
    let used = async || writer.stats().await.unwrap().ranks[2].allocated_bytes;
    eventually("it is below the high watermark", async || used().await <= (4 << 20) / 100 * 95)
        .await;
    for i in 10..30 {
        writer.put(format!("own/{i}").as_bytes(), &bytes(LEN, i), &on(2)).await.unwrap();
    }
    assert!(nodes[2].status().owner.evictions > 0);
    for i in 0..30 {
        let key = format!("own/{i}");
        assert!(reader.get(key.as_bytes()).await.unwrap() == bytes(LEN, i), "{key}");
    }
    for i in 0..36 {
        let key = format!("far/{i}");
        assert!(reader.get(key.as_bytes()).await.unwrap() == bytes(LEN, i), "{key}");
    }
    stop(nodes).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_extra_replica_is_none_of_those_asked_for_and_stands_in_when_they_are_lost() {
    let mut nodes = start("stands-in", 8 << 20).await;
    let (writer, reader) = (&nodes[1].client(), &nodes[2].client());
    let pinned = on(1).retention(Retention::HardPin);
    writer.put(b"k", &bytes(LEN, 1), &pinned).await.unwrap();
    reader.get(b"k").await.unwrap();
    eventually("it is kept", async || ranks(reader, b"k").await == [1, 2]).await;
    reader.replicate(&[b"k"], 2).await.remove(0).unwrap();
    eventually("there is a second one", async || {
        let stats = nodes[0].client().stats().await.unwrap();
        stats.master.replicas_repaired == 1 && stats.master.repairs_waiting == 0
    })
    .await;
    let pins = || nodes.iter().filter(|n| n.status().owner.hard_pinned_bytes > 0).count();
    eventually("both are pinned", async || pins() == 2).await;
    let opts = PutOptions::default().replicas(3);
    let made = writer.put_replicas(&[(b"all", &bytes(LEN, 2)[..])], &opts).await;
    assert_eq!(made, [Ok(3)]);
    reader.replicate(&[b"all"], 1).await.remove(0).unwrap();
    eventually("one is left", async || ranks(reader, b"all").await.len() == 1).await;
    // Its only replica leaves with its rank: the extra one is there, and another is made of it.
    writer.put(b"lost", &bytes(LEN, 3), &on(1)).await.unwrap();
    reader.get(b"lost").await.unwrap();
    eventually("it is kept", async || ranks(reader, b"lost").await == [1, 2]).await;
    nodes.remove(1).stop().await;
    let reader = &nodes[1].client();
    assert!(reader.get(b"lost").await.unwrap() == bytes(LEN, 3));
    eventually("one is made", async || ranks(reader, b"lost").await == [0, 2]).await;
    assert!(nodes[0].client().get(b"lost").await.unwrap() == bytes(LEN, 3));
    stop(nodes).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_heap_that_is_kept_full_takes_no_extra_replica_to_evict_it_at_once() {
    let nodes = start("full", 4 << 20).await;
    let (writer, reader) = (&nodes[1].client(), &nodes[2].client());
    for i in 0..400 {
        writer.put(format!("own/{i}").as_bytes(), &bytes(16_000, 1), &on(2)).await.unwrap();
    }
    assert!(nodes[2].status().owner.evictions > 0);
    writer.put(b"far", &bytes(8_000, 1), &on(1)).await.unwrap();
    for _ in 0..50 {
        assert!(reader.get(b"far").await.unwrap() == bytes(8_000, 1));
        tokio::time::sleep(std::time::Duration::from_millis(30)).await;
    }
    assert_eq!(reader.read_counters().cached, 0);
    assert_eq!(ranks(reader, b"far").await, [1]);
    stop(nodes).await;
}
