//! Faults of mounted segments: a panic or a freeze of their actors, a master that declares them
//! gone, a restarted master.

use crate::embedding::{
    bytes, client_by, config, eventually, fill, left_in_shm, on, rank1_incarnations,
};
use nkv_actors::actor::{Crash, Freeze};
use nkv_actors::owner::GetGauges;
use nkv_actors::{
    Client, ClientConfig, Cluster, Ended, ErrorKind, Node, NodeConfig, TransportChoice,
};
use nkv_store::clock::{BootClock, Clock};
use std::time::Duration;

const MIB: u64 = 1 << 20;
const LIMIT: Duration = nkv_pace::HANGS;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panic_of_a_mounted_segments_owner_is_survived_with_all_it_holds() {
    let cluster = Cluster::start(2, config("mounted-panic")).await.unwrap();
    let (node, client) = (cluster.node(1), cluster.client());
    node.mount_segment(16 * MIB).await.unwrap();
    let keys = fill(&client, "k", 40, 32_000).await;
    let open = client.open_for_write(b"open", 100_000, &on(1)).await.unwrap();
    open.write_from(0, &bytes(100_000, 9)).unwrap();
    assert_eq!(open.desc().unwrap().meta.at.incarnation, node.mounted()[0].incarnation);
    let owner = node.owner_of(1).unwrap();
    let (_, there) = rank1_incarnations(&cluster, &keys, node.mounted()[0].incarnation).await;
    eventually("the owner heard of everything", async || {
        let g = owner.call(GetGauges, LIMIT).await.unwrap();
        (g.objects, g.plans_open) == (there.len() as u64, 1)
    })
    .await;
    let before = owner.call(GetGauges, LIMIT).await.unwrap();
    for _ in 0..2 {
        let e = owner.call(Crash, LIMIT).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Internal, "{e}");
    }
    let after = owner.call(GetGauges, LIMIT).await.unwrap();
    assert_eq!((before.objects, before.open_bytes), (after.objects, after.open_bytes));
    let actor = node.status().segments[0].actors[0].clone();
    assert_eq!((actor.name, actor.panics, actor.restarts), ("owner", 2, 2));
    assert_eq!(node.status().actors.iter().map(|a| a.panics).sum::<u32>(), 0);
    open.publish().await.unwrap();
    for (i, key) in keys.iter().enumerate() {
        assert_eq!(client.get(key.as_bytes()).await.unwrap(), bytes(32_000, i as u8));
    }
    let report = node.unmount_segment(1, LIMIT).await.unwrap();
    assert_eq!((report.objects, report.confirmed), (before.objects + 1, true), "{report:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_actor_of_a_mounted_segment_that_stays_frozen_ends_its_node_with_a_reason() {
    let node = Node::start(NodeConfig { ttl_ms: 1_000, ..config("mounted-frozen") }).await.unwrap();
    for _ in 0..2 {
        node.mount_segment(MIB).await.unwrap();
    }
    node.owner_of(2).unwrap().try_send(Freeze(LIMIT)).unwrap();
    let ended = tokio::time::timeout(LIMIT / 2, node.ended()).await.unwrap();
    let Ended::ActorFailed(why) = ended else { panic!("{ended:?}") };
    assert!(why.starts_with("the owner actor of segment 2 is frozen (Freeze for "), "{why}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i17_a_mounted_segment_declared_gone_is_taken_down_and_its_node_goes_on() {
    let base = NodeConfig { ttl_ms: 800, ..config("mounted-gone") };
    let cluster = Cluster::start(2, base.clone()).await.unwrap();
    let (node, client) = (cluster.node(1), cluster.client());
    node.mount_segment(16 * MIB).await.unwrap();
    let keys = fill(&client, "k", 60, 200_000).await;
    let there = node.mounted()[0].incarnation;
    let (first, second) = rank1_incarnations(&cluster, &keys, there).await;
    assert!(!first.is_empty() && !second.is_empty());
    // Longer than the TTL, shorter than the watchdog's limit: meanwhile its link sends nothing.
    node.owner_of(1).unwrap().try_send(Freeze(Duration::from_millis(1_600))).unwrap();
    eventually("it is taken down", async || node.mounted().is_empty()).await;
    eventually("with its names", async || left_in_shm(&base.job) == 6).await;
    for key in &second {
        assert_eq!(client.get(key.as_bytes()).await.unwrap_err().kind(), ErrorKind::NotFound);
    }
    for key in &first {
        client.get(key.as_bytes()).await.unwrap();
    }
    assert!(cluster.node(0).is_ready(), "the rank itself is here");
    assert_eq!(node.mount_segment(MIB).await.unwrap(), 1, "its number is free");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_is_started_again_finds_what_mounted_segments_hold() {
    let base = NodeConfig { world_size: 2, ttl_ms: 10_000, ..config("mounted-master") };
    let first = Node::start(base.clone()).await.unwrap();
    let control = first.info().control.clone();
    let port = control.to_string().rsplit(':').next().unwrap().parse().unwrap();
    let of_rank_1 = NodeConfig { rank: 1, port, ..base.clone() };
    let second = Node::start(of_rank_1).await.unwrap();
    for _ in 0..2 {
        second.mount_segment(8 * MIB).await.unwrap();
    }
    let keys = fill(&first.client(), "k", 60, 32_000).await;
    let mounted: Vec<u64> = second.mounted().iter().map(|i| i.incarnation).collect();
    let mut there = 0;
    for key in &keys {
        let location = first.client().get_location(key.as_bytes()).await.unwrap();
        let at = location.in_memory().unwrap().at;
        there += usize::from(mounted.contains(&at.incarnation));
    }
    assert!(there > 20, "{there}");
    // One segment is late: it joins after all others.
    second.owner_of(1).unwrap().try_send(Freeze(Duration::from_millis(1_400))).unwrap();
    drop(first);
    let restarted = NodeConfig { port, ..base };
    let again = Node::start(restarted).await.unwrap();
    let config = ClientConfig {
        job: again.config().job.clone(),
        transport: TransportChoice::Tcp,
        ..ClientConfig::default()
    };
    let client = Client::connect(&control, config).await.unwrap();
    for (i, key) in keys.iter().enumerate() {
        // No read may report a key as absent.
        let mut got = client.get(key.as_bytes()).await;
        let until_ms = BootClock.now_ms() + nkv_pace::HANGS_MS;
        while BootClock.now_ms() < until_ms {
            match &got {
                Err(e) if matches!(e.kind(), ErrorKind::NotReady | ErrorKind::Disconnected) => {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                    got = client.get(key.as_bytes()).await;
                }
                _ => break,
            }
        }
        assert_eq!(got.unwrap(), bytes(32_000, i as u8), "{key}");
    }
    eventually("all are in", async || client.membership().await.unwrap().ranks.len() == 4).await;
    let report = second.unmount_segment(2, LIMIT).await.unwrap();
    assert!(report.confirmed && report.objects > 0, "{report:?}");
    assert_eq!(second.status().segments[0].link, "joined");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_master_a_segment_is_unmounted_all_the_same_and_none_is_mounted() {
    let base = NodeConfig { world_size: 2, ..config("mounted-alone") };
    let first = Node::start(base.clone()).await.unwrap();
    let port = first.info().control.to_string().rsplit(':').next().unwrap().parse().unwrap();
    let second = Node::start(NodeConfig { rank: 1, port, ..base.clone() }).await.unwrap();
    second.mount_segment(8 * MIB).await.unwrap();
    drop(first);
    eventually("the link is lost", async || second.status().segments[0].link != "joined").await;
    let report = second.unmount_segment(1, LIMIT).await.unwrap();
    assert!(!report.confirmed, "{report:?}");
    assert!(second.mounted().is_empty());
    assert_eq!(left_in_shm(&base.job), 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mounting_needs_a_master_within_its_limit() {
    let base = NodeConfig { world_size: 2, join_timeout_ms: 1_500, ..config("mount-alone") };
    let first = Node::start(base.clone()).await.unwrap();
    let port = first.info().control.to_string().rsplit(':').next().unwrap().parse().unwrap();
    let second = Node::start(NodeConfig { rank: 1, port, ..base.clone() }).await.unwrap();
    drop(first);
    let e = second.mount_segment(MIB).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Disconnected, "{e}");
    assert!(e.message().contains("did not accept the segment within 1.5s"), "{e}");
    assert_eq!(left_in_shm(&base.job), 3, "nothing is left of it");
    assert!(second.mounted().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn attached_readers_are_sent_away_when_a_segment_goes() {
    let cluster = Cluster::start(2, config("mounted-attached")).await.unwrap();
    let node = cluster.node(1);
    node.mount_segment(16 * MIB).await.unwrap();
    let client = client_by(&cluster, TransportChoice::Auto).await;
    client.put(b"k", b"v", &on(1)).await.unwrap();
    assert_eq!(client.get(b"k").await.unwrap(), &b"v"[..]);
    assert_eq!(node.status().segments[0].attachments, 1);
    let meta = client.get_location(b"k").await.unwrap().into_memory().unwrap();
    node.unmount_segment(1, LIMIT).await.unwrap();
    let mut buf = [0; 8];
    let e = client.read_into(&meta, &mut buf).await.unwrap_err();
    assert!(matches!(e.kind(), ErrorKind::NotFound | ErrorKind::Disconnected), "{e}");
    eventually("the handle let go of it", async || {
        client.read_into(&meta, &mut [0; 8]).await.unwrap_err().kind() == ErrorKind::Disconnected
    })
    .await;
}
