//! Ranks elect a master, and another one when it is lost for good.

use crate::embedding::{bytes, config, eventually, on};
use nkv_actors::{
    Client, ClientConfig, Cluster, ElectionChoice, ErrorKind, Node, NodeConfig, PutOptions,
};
use nkv_pace::HANGS_MS;
use nkv_store::clock::{BootClock, Clock};
use std::time::Duration;

async fn elected(job: &str, ranks: u32) -> Vec<Option<Node>> {
    // Longer than the default: the machine may be busy with something else.
    let (election, master_lease_ms) = (ElectionChoice::Ranks, 2_500);
    let base = NodeConfig { election, master_lease_ms, ..config(job) };
    let cluster = Cluster::start(ranks, base).await.unwrap();
    cluster.into_nodes().into_iter().map(Some).collect()
}

/// The rank that is master, once there is just one and its rank `n` ranks report to it.
async fn master(nodes: &[Option<Node>]) -> u32 {
    let until_ms = BootClock.now_ms() + HANGS_MS;
    loop {
        let masters = nodes.iter().flatten().filter(|node| node.master().is_some());
        let masters: Vec<u32> = masters.map(|node| node.config().rank).collect();
        let joined = nodes.iter().flatten().all(|node| !node.joined().is_empty());
        if let ([one], true) = (&masters[..], joined) {
            return *one;
        }
        assert!(BootClock.now_ms() < until_ms, "masters: {masters:?}, joined: {joined}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn client_of(node: &Node) -> Client {
    let config = ClientConfig { job: node.config().job.clone(), ..ClientConfig::default() };
    Client::connect(&node.info().control, config).await.unwrap()
}

fn value(i: usize) -> Vec<u8> {
    bytes(5_000, i as u8)
}

async fn put(client: &Client, prefix: &str, n: usize, opts: impl Fn(usize) -> PutOptions) {
    for i in 0..n {
        let key = format!("{prefix}{i}");
        eventually(&key, async || match client.put(key.as_bytes(), &value(i), &opts(i)).await {
            Ok(_) => true,
            Err(e) => {
                let kind = e.kind();
                assert!(
                    matches!(
                        kind,
                        ErrorKind::Disconnected | ErrorKind::NotReady | ErrorKind::Timeout
                    ),
                    "{e}"
                );
                false
            }
        })
        .await;
    }
}

/// What a call returns once a master serves it.
async fn found(client: &Client, key: &str) -> Option<Vec<u8>> {
    let until_ms = BootClock.now_ms() + HANGS_MS;
    loop {
        match client.get(key.as_bytes()).await {
            Ok(value) => return Some(value.to_vec()),
            Err(e) if e.kind() == ErrorKind::NotFound => return None,
            Err(e) => assert!(BootClock.now_ms() < until_ms, "{key}: {e}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i6_another_rank_becomes_master_and_what_was_acknowledged_stays_as_it_was() {
    let mut nodes = elected("elected", 3).await;
    let first = master(&nodes).await;
    let survivors: Vec<u32> = (0..3).filter(|rank| *rank != first).collect();
    let outside = client_of(nodes[first as usize].as_ref().unwrap()).await;
    let inside = nodes[survivors[0] as usize].as_ref().unwrap().client();
    put(&outside, "k", 40, |i| on(survivors[i % 2])).await;
    for i in 0..10 {
        inside.remove(format!("k{i}").as_bytes()).await.unwrap();
    }
    drop(nodes[first as usize].take());
    let lost_ms = BootClock.now_ms();
    let second = master(&nodes).await;
    assert!(survivors.contains(&second));
    println!("rank {second} is master after {} ms", BootClock.now_ms() - lost_ms);
    for (name, client) in [("outside", &outside), ("inside", &inside)] {
        for i in 0..40 {
            let expected = (i >= 10).then(|| value(i));
            assert!(found(client, &format!("k{i}")).await == expected, "{name}: k{i}");
        }
        put(client, name, 5, |i| on(survivors[i % 2])).await;
        assert_eq!(client.membership().await.unwrap().master, second);
    }
    println!("served after {} ms", BootClock.now_ms() - lost_ms);
    for client in [&outside, &inside] {
        client.close().await;
    }
    for node in nodes.into_iter().flatten() {
        node.stop().await;
    }
}
