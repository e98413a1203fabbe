//! Actors that neither answer nor panic: they are detected within 2 s, callers get Timeout, and in
//! the end the node exits, since only a new process frees their thread.

use crate::embedding;
use nkv_actors::actor::{ActorStatus, Crash, Freeze, RESTART_BUDGET};
use nkv_actors::owner::GetGauges;
use nkv_actors::{Client, Cluster, Ended, ErrorKind, Node, NodeConfig, PutOptions};
use nkv_pace::{HANGS, HANGS_MS, Stopwatch, Took};
use nkv_store::clock::{BootClock, Clock};
use std::time::Duration;

/// An actor that is blocked for this time is detected, also by a watchdog that is scheduled late.
const STANDS: Duration = Duration::from_secs(5);

fn config(job: &str) -> NodeConfig {
    NodeConfig {
        heap_bytes: 4 << 20,
        ttl_ms: HANGS_MS,
        call_timeout_ms: 400,
        ..embedding::config(job)
    }
}

fn actor(node: &Node, name: &str) -> ActorStatus {
    node.status().actors.into_iter().find(|a| a.name == name).unwrap()
}

/// Waits until an actor is in a state; returns how long that took.
async fn becomes(node: &Node, name: &str, state: &str) -> Took {
    let watch = Stopwatch::start();
    while actor(node, name).state != state {
        assert!(watch.took().ms < HANGS_MS, "{:?}", actor(node, name));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    watch.took()
}

/// Puts until one succeeds, each under a key of its own: one that timed out is being withdrawn.
async fn puts(client: &Client) {
    let until_ms = BootClock.now_ms() + HANGS_MS;
    for n in 0.. {
        let key = format!("after the thaw {n}");
        match client.put(key.as_bytes(), b"x", &PutOptions::default()).await {
            Ok(()) => return,
            Err(e) => assert!(BootClock.now_ms() < until_ms, "no put succeeds: {e}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_owner_is_seen_within_two_seconds_with_what_it_does_and_thaws() {
    let cluster = Cluster::start(1, config("frozen-owner")).await.unwrap();
    let node = cluster.node(0);
    node.owner().try_send(Freeze(STANDS)).unwrap();
    let seen = becomes(node, "owner", "frozen").await;
    assert!(seen.within(2_000), "{seen}");
    let what = actor(node, "owner").frozen_in.unwrap();
    assert!(what.starts_with("Freeze for "), "{what}");
    let neighbour = actor(node, "evictor").frozen_in.unwrap();
    assert_eq!(neighbour, "another actor holds its thread");
    let e = node.owner().call(GetGauges, Duration::from_millis(100)).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Timeout, "{e}");
    becomes(node, "owner", "running").await;
    becomes(node, "evictor", "running").await;
    let client = cluster.client();
    puts(&client).await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_of_a_frozen_master_get_timeout_in_time_and_known_keys_are_still_read() {
    let cluster = Cluster::start(1, config("frozen-master")).await.unwrap();
    let node = cluster.node(0);
    let client = cluster.client();
    client.put(b"k", b"value", &PutOptions::default()).await.unwrap();
    assert_eq!(client.get(b"k").await.unwrap(), &b"value"[..]);
    node.master().unwrap().try_send(Freeze(STANDS)).unwrap();
    let e = client.put(b"new", b"x", &PutOptions::default()).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Timeout, "{e}");
    assert_eq!(client.get(b"k").await.unwrap(), &b"value"[..], "by the location it had seen");
    let reads = client.read_counters();
    assert!(reads.by_index + reads.by_cache > 0, "{reads:?}");
    becomes(node, "master", "frozen").await;
    becomes(node, "master", "running").await;
    puts(&client).await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_actor_frozen_for_a_ttl_ends_its_node_with_a_reason() {
    let config = NodeConfig { ttl_ms: 2_000, ..config("frozen-long") };
    let node = Node::start(config).await.unwrap();
    node.evictor().try_send(Freeze(HANGS)).unwrap();
    let ended = tokio::time::timeout(HANGS / 2, node.ended()).await.unwrap();
    let Ended::ActorFailed(why) = ended else { panic!("{ended:?}") };
    assert!(why.starts_with("the evictor actor is frozen (Freeze for "), "{why}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_actor_past_its_restart_budget_ends_its_node_with_a_reason() {
    let node = Node::start(config("budget")).await.unwrap();
    for _ in 0..=RESTART_BUDGET {
        node.evictor().call(Crash, HANGS).await.unwrap_err();
    }
    let ended = tokio::time::timeout(HANGS, node.ended()).await.unwrap();
    let Ended::ActorFailed(why) = ended else { panic!("{ended:?}") };
    assert!(why.starts_with("the evictor actor failed more than 8 times"), "{why}");
}
