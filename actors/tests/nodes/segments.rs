//! Segments mounted and unmounted while a cluster of real nodes runs: objects there are found and
//! read by every data path, are removed with the segment, and nothing is left behind.

use crate::embedding::{
    bytes, client_by, config, eventually, fill, left_in_shm, on, rank1_incarnations, used_is_live,
};
use nkv_actors::message::RankState;
use nkv_actors::{Cluster, ErrorKind, MemoryChoice, Node, NodeConfig, PutOptions, TransportChoice};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

const MIB: u64 = 1 << 20;
const SOON: Duration = nkv_pace::HANGS;

/// Puts, gets and removes keys of its own until it is stopped; returns the number of rounds.
async fn load(cluster: Arc<Cluster>, stop: Arc<AtomicBool>) -> u64 {
    let (a, b) = (cluster.node(0).client(), cluster.node(1).client());
    let mut round = 0u64;
    while !stop.load(Ordering::Relaxed) {
        let (key, value) = (format!("load{round}"), bytes(20_000, round as u8));
        let done = a.put(key.as_bytes(), &value, &on(1)).await;
        if let Err(e) = &done {
            // Its segment may be unmounted meanwhile: then the error says so.
            let expected = [ErrorKind::Reclaimed, ErrorKind::Disconnected, ErrorKind::NotReady];
            assert!(expected.contains(&e.kind()), "{e}");
        }
        match b.get(key.as_bytes()).await {
            Ok(got) => assert_eq!(got, value, "a wrong byte"),
            Err(e) => {
                let expected = [ErrorKind::NotFound, ErrorKind::Disconnected, ErrorKind::NotReady];
                assert!(expected.contains(&e.kind()), "{e}");
            }
        }
        let _ = a.remove(key.as_bytes()).await;
        round += 1;
    }
    round
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_segment_mounted_under_load_is_used_by_every_way_and_goes_with_all_it_holds() {
    let base = config("mount");
    let cluster = Arc::new(Cluster::start(2, base.clone()).await.unwrap());
    let (stop, node) = (Arc::new(AtomicBool::new(false)), cluster.node(1));
    let loading = tokio::spawn(load(cluster.clone(), stop.clone()));
    let mut former = 0;
    for round in 0..2u8 {
        assert_eq!(node.mount_segment(8 * MIB).await.unwrap(), 1);
        let info = node.mounted().remove(0);
        assert_eq!((info.rank, info.segment_id, info.layout.arena.len), (1, 1, 8 * MIB));
        assert_ne!(info.incarnation, former, "[I3]");
        former = info.incarnation;
        let keys = fill(&cluster.client(), &format!("r{round}-"), 100, 32_000).await;
        let (first, second) = rank1_incarnations(&cluster, &keys, info.incarnation).await;
        assert!(first.len() > 20 && second.len() > 20, "{} and {}", first.len(), second.len());
        let tcp = client_by(&cluster, TransportChoice::Tcp).await;
        for client in [cluster.node(0).client(), node.client(), tcp.clone()] {
            for (i, key) in keys.iter().enumerate() {
                assert_eq!(client.get(key.as_bytes()).await.unwrap(), bytes(32_000, i as u8));
            }
        }
        assert_eq!(left_in_shm(&base.job), 8, "three segments, their locks, two sockets");
        let there = node.status().segments.remove(0);
        assert_eq!((there.segment, there.link.as_str(), there.draining), (1, "joined", false));
        assert!(there.owner.objects >= second.len() as u64 && there.agent.bytes_out > 0);

        let report = node.unmount_segment(1, SOON).await.unwrap();
        assert!(report.objects >= second.len() as u64, "{report:?}");
        assert!(report.confirmed && report.plans_left == 0, "{report:?}");
        for client in [cluster.node(0).client(), node.client(), tcp.clone()] {
            for key in &second {
                let e = client.get(key.as_bytes()).await.unwrap_err();
                assert_eq!(e.kind(), ErrorKind::NotFound, "{e}");
            }
            for key in &first {
                client.get(key.as_bytes()).await.unwrap();
            }
        }
        assert_eq!(left_in_shm(&base.job), 6, "two segments, their locks, two sockets");
        assert!(node.mounted().is_empty() && node.status().segments.is_empty());
        assert_eq!(cluster.client().membership().await.unwrap().ranks.len(), 2);
        for key in first {
            cluster.client().remove(key.as_bytes()).await.unwrap();
        }
        tcp.close().await;
    }
    stop.store(true, Ordering::Relaxed);
    assert!(loading.await.unwrap() > 10);
    used_is_live(&cluster).await;
    let all: Vec<_> = cluster.nodes().iter().map(|n| n.status().owner.live_bytes).collect();
    assert_eq!(all, [0, 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_of_a_segment_that_is_unmounted_get_whole_values_or_none() {
    let cluster = Arc::new(Cluster::start(2, config("unmount-reads")).await.unwrap());
    let node = cluster.node(1);
    node.mount_segment(32 * MIB).await.unwrap();
    let incarnation = node.mounted()[0].incarnation;
    let keys = fill(&cluster.client(), "k", 8, 2 << 20).await;
    let (_, there) = rank1_incarnations(&cluster, &keys, incarnation).await;
    let key = there.first().expect("most room is there").clone();
    let seed = key.trim_start_matches('k').parse::<u8>().unwrap();
    let (whole, gone) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let mut readers = Vec::new();
    let tcp = client_by(&cluster, TransportChoice::Tcp).await;
    for client in [cluster.client(), tcp] {
        let meta = client.get_location(key.as_bytes()).await.unwrap().into_memory().unwrap();
        let (whole, gone) = (whole.clone(), gone.clone());
        readers.push(tokio::spawn(async move {
            let (want, mut buf) = (bytes(2 << 20, seed), vec![0; 2 << 20]);
            // By location: no message is sent, the header alone decides.
            loop {
                match client.read_into(&meta, &mut buf).await {
                    Ok(n) => {
                        assert!(n == want.len() && buf == want, "a read that is not whole");
                        whole.fetch_add(1, Ordering::Relaxed);
                    }
                    Err(e) => {
                        assert!(matches!(e.kind(), ErrorKind::NotFound | ErrorKind::Disconnected));
                        gone.fetch_add(1, Ordering::Relaxed);
                        return;
                    }
                }
            }
        }));
    }
    eventually("both read", async || whole.load(Ordering::Relaxed) > 20).await;
    let report = node.unmount_segment(1, SOON).await.unwrap();
    assert!(report.confirmed, "{report:?}");
    for r in readers {
        tokio::time::timeout(SOON, r).await.expect("a reader that goes on").unwrap();
    }
    assert_eq!(gone.load(Ordering::Relaxed), 2);
    cluster.client().put(key.as_bytes(), b"anew", &on(0)).await.unwrap();
    assert_eq!(node.client().get(key.as_bytes()).await.unwrap(), &b"anew"[..]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i6_whoever_still_maps_an_unmounted_segment_finds_nothing_readable() {
    let cluster = Cluster::start(2, config("unmount-mapped")).await.unwrap();
    let (node, client) = (cluster.node(1), cluster.client());
    node.mount_segment(16 * MIB).await.unwrap();
    let keys = fill(&client, "k", 20, 32_000).await;
    let info = node.mounted().remove(0);
    let (_, there) = rank1_incarnations(&cluster, &keys, info.incarnation).await;
    let memory = nkv_store::shm::attach(info.memory.name().unwrap(), false).unwrap();
    let heap = nkv_store::heap::Heap::open(memory).unwrap();
    let readable = || nkv_store::object::live_slots(&heap).count();
    eventually("all are committed there", async || readable() == there.len()).await;
    // A plan that is still open after the drain is not an object yet.
    let open = client.open_for_write(b"open", 4096, &on(1)).await.unwrap();
    assert_eq!(open.desc().unwrap().meta.at.incarnation, info.incarnation);
    open.write_from(0, &[1; 4096]).unwrap();
    let owner = node.owner_of(1).unwrap();
    let gauges = async || owner.call(nkv_actors::owner::GetGauges, SOON).await.unwrap();
    let known = async || {
        let g = gauges().await;
        (g.objects, g.plans_open) == (there.len() as u64, 1)
    };
    eventually("its owner knows of the objects and of the plan", known).await;
    let report = node.unmount_segment(1, Duration::ZERO).await.unwrap();
    assert_eq!((report.objects, report.plans_left), (there.len() as u64, 1), "{report:?}");
    assert_eq!(readable(), 0, "the memory is still here, and no header in it is believed");
    assert_eq!(left_in_shm(&cluster.node(0).config().job), 6, "nobody new can map it");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unmount_waits_for_open_plans_and_no_longer_than_it_may() {
    let cluster = Arc::new(Cluster::start(1, config("unmount-plans")).await.unwrap());
    let client = cluster.client();
    for (round, limit) in [SOON, Duration::ZERO].into_iter().enumerate() {
        let id = cluster.node(0).mount_segment(32 * MIB).await.unwrap();
        let there = cluster.node(0).mounted()[0].incarnation;
        let key = format!("k{round}");
        let value = bytes(100_000, 7);
        let plan = client.open_for_write(key.as_bytes(), 100_000, &on(0)).await.unwrap();
        assert_eq!(plan.desc().unwrap().meta.at.incarnation, there);
        plan.write_from(0, &value[..50_000]).unwrap();
        let unmounting = {
            let cluster = cluster.clone();
            tokio::spawn(async move { cluster.node(0).unmount_segment(id, limit).await.unwrap() })
        };
        let ends = limit.is_zero();
        if !ends {
            eventually("the master knows that it drains", async || {
                let view = client.membership().await.unwrap();
                view.ranks.iter().any(|(i, s)| i.segment_id == id && *s == RankState::Draining)
            })
            .await;
            assert!(cluster.node(0).status().segments[0].draining);
            let other = client.put(b"other", b"v", &on(0)).await;
            other.expect("puts go elsewhere meanwhile");
            assert_ne!(
                client.get_location(b"other").await.unwrap().into_memory().unwrap().at.incarnation,
                there
            );
            plan.write_from(50_000, &value[50_000..]).unwrap();
            plan.publish().await.expect("in time");
            let report = unmounting.await.unwrap();
            assert_eq!((report.plans_left, report.objects), (0, 1), "{report:?}");
            assert!(
                report.waited_ms < nkv_pace::HANGS_MS / 2,
                "it went on as soon as it could: {report:?}"
            );
        } else {
            let report = unmounting.await.unwrap();
            assert_eq!((report.plans_left, report.confirmed), (1, true), "{report:?}");
            let late = plan.write_from(50_000, &value[50_000..]).unwrap_err();
            assert_eq!(late.kind(), ErrorKind::Disconnected, "{late}");
            let e = plan.publish().await.unwrap_err();
            assert!(
                matches!(e.error.kind(), ErrorKind::Reclaimed | ErrorKind::Disconnected),
                "{e}"
            );
        }
        assert_eq!(client.get(key.as_bytes()).await.unwrap_err().kind(), ErrorKind::NotFound);
        client.put(key.as_bytes(), &value, &on(0)).await.expect("the key is free again");
    }
    eventually("no plan is left", async || {
        client.open_plans() == 0 && client.stats().await.unwrap().plans_open == 0
    })
    .await;
    used_is_live(&cluster).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_mounted_is_refused_and_leaves_nothing() {
    let base = config("mount-refused");
    let cluster = Cluster::start(1, base.clone()).await.unwrap();
    let node = cluster.node(0);
    let threads = || std::fs::read_dir("/proc/self/task").unwrap().count();
    let before = threads();
    let e = node.mount_segment(1 << 42).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::OutOfMemory);
    assert!(e.message().contains("MemAvailable: ") && e.message().contains("smaller"), "{e}");
    for bytes in [0, u64::MAX] {
        let e = node.mount_segment(bytes).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::InvalidArgument, "{e}");
    }
    assert_eq!(left_in_shm(&base.job), 3);
    assert_eq!(cluster.client().membership().await.unwrap().ranks.len(), 1);
    eventually("no thread is left", async || threads() <= before).await;
    let e = node.unmount_segment(0, SOON).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::InvalidArgument, "{e}");
    let e = node.unmount_segment(1, SOON).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::NotFound, "{e}");
    // The largest possible number, and one more.
    for id in 1..64 {
        assert_eq!(node.mount_segment(65_536).await.unwrap(), id);
    }
    let e = node.mount_segment(65_536).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::OutOfMemory);
    assert!(e.message().contains("64 segments"), "{e}");
    node.unmount_segment(17, SOON).await.unwrap();
    assert_eq!(node.mount_segment(65_536).await.unwrap(), 17, "the lowest free number");
    node.drain(Duration::ZERO).await;
    let e = node.mount_segment(65_536).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Disconnected, "{e}");
    assert!(e.message().contains("shutting down"), "{e}");
    cluster.stop().await;
    assert_eq!(left_in_shm(&base.job), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn private_memory_is_mounted_and_measured_too() {
    let base = NodeConfig { memory: MemoryChoice::Private, ..config("mount-private") };
    let cluster = Cluster::start(1, base).await.unwrap();
    let (node, client) = (cluster.node(0), cluster.client());
    let e = node.mount_segment(1 << 42).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::OutOfMemory, "{e}");
    node.mount_segment(16 * MIB).await.unwrap();
    client.put(b"k", &bytes(9 << 20, 1), &PutOptions::default()).await.unwrap();
    let tcp = client_by(&cluster, TransportChoice::Tcp).await;
    assert_eq!(tcp.get(b"k").await.unwrap(), bytes(9 << 20, 1), "larger than the first heap");
    node.unmount_segment(1, SOON).await.unwrap();
    assert_eq!(tcp.get(b"k").await.unwrap_err().kind(), ErrorKind::NotFound);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mounts_and_unmounts_at_once_get_in_nobodys_way() {
    let cluster = Arc::new(Cluster::start(2, config("mount-many")).await.unwrap());
    let mount = |i: u32| {
        let cluster = cluster.clone();
        tokio::spawn(async move { cluster.node(i % 2).mount_segment(MIB).await.unwrap() })
    };
    let mounting: Vec<_> = (0..6).map(mount).collect();
    let mut ids = Vec::new();
    for m in mounting {
        ids.push(m.await.unwrap());
    }
    ids.sort_unstable();
    assert_eq!(ids, [1, 1, 2, 2, 3, 3]);
    // A caller that goes away does not leave a segment half unmounted, and a second caller gets an
    // answer.
    let (node, client) = (cluster.node(1), cluster.client());
    assert_eq!(node.mount_segment(32 * MIB).await.unwrap(), 4);
    let open = client.open_for_write(b"open", 4096, &on(1)).await.unwrap();
    assert_eq!(open.desc().unwrap().meta.at.incarnation, node.mounted()[3].incarnation);
    let drains = async || node.status().segments.iter().any(|s| s.segment == 4 && s.draining);
    tokio::select! {
        early = node.unmount_segment(4, SOON) => panic!("a plan is open: {early:?}"),
        () = eventually("it drains", drains) => {}
    }
    let e = node.unmount_segment(4, SOON).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::NotReady, "{e}");
    open.abort().await.unwrap();
    eventually("it is gone", async || node.mounted().len() == 3).await;
    assert_eq!(cluster.client().membership().await.unwrap().ranks.len(), 8);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_mounts_and_unmounts_over_the_control_port() {
    let cluster = Cluster::start(2, config("mount-remote")).await.unwrap();
    let client = client_by(&cluster, TransportChoice::Auto).await;
    assert_eq!(client.mount_segment(1, 2 * MIB).await.unwrap(), 1);
    assert_eq!(cluster.node(1).mounted().len(), 1);
    let e = client.mount_segment(1, 1 << 42).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::OutOfMemory, "{e}");
    let e = client.mount_segment(7, MIB).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::InvalidArgument, "{e}");
    assert!(e.message().contains("ranks are 0 to 1"), "{e}");
    let e = client.unmount_segment(1, 5, SOON).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::NotFound, "{e}");
    assert!(client.unmount_segment(1, 1, SOON).await.unwrap().confirmed);
    assert!(cluster.node(1).mounted().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_is_dropped_takes_its_mounted_segments_along() {
    let base = NodeConfig { ttl_ms: 600, ..config("mount-drop") };
    let first = Node::start(NodeConfig { world_size: 2, ..base.clone() }).await.unwrap();
    let port = first.info().control.to_string();
    let port = port.rsplit(':').next().unwrap().parse().unwrap();
    let of_rank_1 = NodeConfig { rank: 1, world_size: 2, port, ..base.clone() };
    let second = Node::start(of_rank_1.clone()).await.unwrap();
    second.mount_segment(8 * MIB).await.unwrap();
    second.mount_segment(8 * MIB).await.unwrap();
    assert_eq!(second.files().len(), 7);
    let client = first.client();
    let keys = fill(&client, "k", 24, 32_000).await;
    drop(second);
    eventually("its files are gone", async || left_in_shm(&base.job) == 3).await;
    let fresh = Node::start(of_rank_1).await.unwrap();
    // Known at once: the rank has joined again, so the segments of its former process are gone.
    for key in &keys {
        let e = client.get(key.as_bytes()).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::NotFound, "{e}");
    }
    eventually("one segment is left of it", async || {
        client.membership().await.unwrap().ranks.len() == 2
    })
    .await;
    assert_eq!(fresh.mount_segment(MIB).await.unwrap(), 1);
    client.put(keys[0].as_bytes(), b"anew", &on(1)).await.unwrap();
    fresh.stop().await;
    eventually("it left with all it had", async || {
        client.membership().await.unwrap().ranks.len() == 1
    })
    .await;
    first.stop().await;
    assert_eq!(left_in_shm(&base.job), 0);
}
