//! Placement in a whole job: four ranks on three hosts, two of which are in one rack.

use crate::embedding::machine::TestMachine;
use crate::embedding::{bytes, config, eventually};
use nkv_actors::{Client, Environment, Node, NodeConfig, Placement, PutOptions};
use nkv_store::Watermarks;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Host and rack of each rank.
const SITES: [(u64, &str); 4] = [(1, "/r1"), (1, "/r1"), (2, "/r1"), (3, "/r2")];
const LEN: usize = 256 << 10;
/// Objects that fit into a heap.
const FIT: usize = 15;

async fn start(job: &str, base: NodeConfig) -> Vec<Node> {
    let mut nodes: Vec<Node> = Vec::new();
    for (rank, (boot_id, rack)) in (0..).zip(SITES) {
        let mut env = Environment::of_this_process().apart();
        env.machine = Arc::new(TestMachine { boot_id: Some(boot_id), ..TestMachine::default() });
        let port = nodes.first().map_or(0, |first| {
            first.info().control.to_string().rsplit(':').next().unwrap().parse().unwrap()
        });
        let config = NodeConfig {
            job: config(job).job,
            rank,
            world_size: SITES.len() as u32,
            port,
            rack: rack.parse().unwrap(),
            ..base.clone()
        };
        nodes.push(Node::start_in(env, config).await.unwrap());
    }
    eventually("all have reported", async || nodes[0].is_ready()).await;
    // Until the handles know who is there.
    for node in &nodes {
        eventually("all are members", async || {
            node.client().membership().await.is_ok_and(|view| view.nodes().count() == SITES.len())
        })
        .await;
    }
    nodes
}

async fn stop(nodes: Vec<Node>) {
    for node in nodes.into_iter().rev() {
        node.stop().await;
    }
}

/// Heaps that evict only for a put that finds no room, without logs.
fn heaps(placement: Placement) -> NodeConfig {
    NodeConfig {
        heap_bytes: 4 << 20,
        watermarks: Watermarks::Percent { hi: 100, lo: 99 },
        placement,
        ..config("")
    }
}

fn logs(placement: Placement) -> NodeConfig {
    let log_bytes = Some(8 << 20);
    NodeConfig { heap_bytes: 12 << 20, log_bytes, device_alloc: true, placement, ..config("") }
}

/// The ranks where a key lies.
async fn ranks(client: &Client, key: &str) -> BTreeSet<u32> {
    let found = client.get_replicas(key.as_bytes()).await;
    found.unwrap_or_default().iter().map(|place| place.rank()).collect()
}

/// Puts objects PREFIX0 and on; returns how many each rank got.
async fn put(client: &Client, prefix: &str, n: usize, opts: &PutOptions) -> BTreeMap<u32, usize> {
    let mut got = BTreeMap::new();
    for i in 0..n {
        let (key, value) = (format!("{prefix}{i}"), bytes(LEN, i as u8));
        client.put(key.as_bytes(), &value, opts).await.unwrap();
        let there = ranks(client, &key).await;
        there.iter().for_each(|rank| *got.entry(*rank).or_default() += 1);
    }
    got
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn topology_is_respected_while_hosts_fill() {
    let nodes = start("fills", heaps(Placement::Topology)).await;
    let (client, opts) = (nodes[1].client(), PutOptions::default());
    let own_host = put(&client, "a", 2 * FIT, &opts).await;
    assert!(own_host.keys().all(|rank| *rank < 2) && own_host.len() == 2, "{own_host:?}");
    // What is left on its host, and then its rack.
    let rack = put(&client, "b", FIT, &opts).await;
    assert!(rack.keys().all(|rank| *rank < 3) && rack[&2] >= FIT - 2, "{rack:?}");
    let other_rack = put(&client, "c", FIT, &opts).await;
    assert!(other_rack.contains_key(&3) && other_rack[&3] >= FIT - 3, "{other_rack:?}");
    // All are full soon: then room is made on its own host.
    put(&client, "d", FIT, &opts).await;
    let evicting = put(&client, "e", FIT, &opts).await;
    assert!(evicting.keys().all(|rank| *rank < 2), "{evicting:?}");
    let lookups = nodes[3].client();
    assert!(lookups.get(b"e14").await.unwrap() == bytes(LEN, 14), "another rack reads it");
    assert!(lookups.read_counters().by_master > 0, "by a message to the master");
    stop(nodes).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn local_first_puts_into_logs_of_the_writers_host_and_all_find_it() {
    let nodes = start("local", logs(Placement::LocalFirst)).await;
    for (writer, allowed) in [(0, vec![0, 1]), (2, vec![2]), (3, vec![3])] {
        let client = nodes[writer].client();
        let got = put(&client, &format!("w{writer}/"), 8, &PutOptions::default()).await;
        assert_eq!(got.keys().copied().collect::<Vec<_>>(), allowed, "rank {writer}'s: {got:?}");
        let counters = client.write_counters();
        assert!(counters.by_log >= 8, "without a message: {counters:?}");
    }
    for node in &nodes {
        for writer in [0, 2, 3] {
            for i in 0..8 {
                let read = node.client().get(format!("w{writer}/{i}").as_bytes()).await.unwrap();
                assert!(read == bytes(LEN, i), "w{writer}/{i} at rank {}", node.info().rank);
            }
        }
    }
    stop(nodes).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_and_most_free_use_every_rank_by_logs_and_by_plans() {
    for (job, placement) in [("random", Placement::Random(5)), ("free", Placement::MostFree)] {
        for base in [logs(placement), heaps(placement)] {
            let nodes = start(job, base).await;
            let client = nodes[2].client();
            let got = put(&client, "k", 24, &PutOptions::default()).await;
            assert_eq!(got.len(), 4, "{placement}: {got:?}");
            for i in 0..24 {
                let read = nodes[0].client().get(format!("k{i}").as_bytes()).await.unwrap();
                assert!(read == bytes(LEN, i), "{placement}: k{i}");
            }
            stop(nodes).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_go_to_other_racks_and_then_to_other_hosts() {
    for placement in [Placement::Hash, Placement::Topology, Placement::MostFree] {
        let nodes = start("racks", heaps(placement)).await;
        let client = nodes[0].client();
        for (replicas, hosts) in [(2, 2), (3, 3), (4, 3)] {
            let prefix = format!("{replicas}/");
            put(&client, &prefix, 3, &PutOptions::default().replicas(replicas)).await;
            for i in 0..3 {
                let there = ranks(&client, &format!("{prefix}{i}")).await;
                let of: BTreeSet<_> = there.iter().map(|rank| SITES[*rank as usize]).collect();
                assert_eq!((there.len(), of.len()), (usize::from(replicas), hosts), "{placement}");
                let racks: BTreeSet<_> = of.iter().map(|(_, rack)| rack).collect();
                assert_eq!(racks.len(), 2, "{placement}: {of:?}");
            }
        }
        stop(nodes).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn most_free_fills_what_is_left_of_logs_by_every_transport() {
    let nodes = start("room", logs(Placement::MostFree)).await;
    // Half of the log of rank 3, and of rank 0, is full: two thirds of what follows fits elsewhere.
    let (client, opts) = (nodes[0].client(), PutOptions::default());
    for rank in [0, 3] {
        put(&client, &format!("on{rank}/"), 16, &opts.clone().preferred_rank(rank)).await;
    }
    let got = put(&client, "k", 24, &opts).await;
    let emptier = got.get(&1).unwrap_or(&0) + got.get(&2).unwrap_or(&0);
    assert!(emptier >= 22, "ranks 1 and 2 had most room: {got:?}");
    let more = put(&client, "m", 24, &opts).await;
    assert!(more.len() == 4 && more.values().all(|n| *n <= 9), "then all are alike: {more:?}");
    let counters = client.write_counters();
    assert_eq!(counters.by_plan, 0, "{counters:?}");
    stop(nodes).await;
}
