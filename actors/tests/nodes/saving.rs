//! Copies on disks that a put, or somebody later, asks for. The policy of these disks would save
//! nothing by itself: what is there was asked for.

use crate::embedding::{eventually, on};
use nkv_actors::message::{Existence, Medium, Preferred, Tier};
use nkv_actors::tier::SsdConfig;
use nkv_actors::{Cluster, ErrorKind, Node, NodeConfig, PutOptions, SavedOn};
use std::path::Path;
use std::time::Duration;

const MIB: u64 = 1 << 20;
const BLOCK: usize = 64 << 10;
const DISK: Preferred = Preferred { rank: None, medium: Medium::Disk };

fn config(dir: &Path) -> NodeConfig {
    NodeConfig {
        job: format!("saving-{}-{}", std::process::id(), dir.display()).replace('/', "-"),
        heap_bytes: 16 * MIB,
        ssd: Some(SsdConfig::new(dir, 256 * MIB)),
        ..NodeConfig::default()
    }
}

async fn start(dir: &Path) -> Cluster {
    Cluster::start(2, config(dir)).await.unwrap()
}

fn value(seed: u8) -> Vec<u8> {
    vec![seed; BLOCK]
}

fn at_disk(rank: u32) -> Preferred {
    Preferred { rank: Some(rank), medium: Medium::Disk }
}

fn objects_on_disk(cluster: &Cluster) -> [u64; 2] {
    [0, 1].map(|rank| cluster.node(rank).tier().unwrap().figures().ssd_save_success)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_put_on_a_disk_is_served_by_the_next_process() {
    let dir = tempfile::tempdir().unwrap();
    let cluster = start(dir.path()).await;
    let client = cluster.client();
    client.put(b"alone", &value(0), &on(1)).await.unwrap();
    client.put(b"other", &value(5), &PutOptions::default().at([at_disk(1)])).await.unwrap();
    client.put(b"saved", &value(1), &PutOptions::default().at([DISK])).await.unwrap();
    let there = PutOptions::default().at([at_disk(1), "0".parse().unwrap()]);
    let many: [(&[u8], &[u8]); 2] = [(b"a", &value(2)), (b"b", &value(3))];
    assert_eq!(client.put_many(&many, &there).await, [Ok(()), Ok(())]);
    let parts: [&[u8]; 2] = [b"in ", b"parts"];
    client.put_parts(b"parts", &parts, &there).await.unwrap();
    assert_eq!(client.get_location(b"saved").await.unwrap().tier(), Tier::Memory);
    let [first, second] = objects_on_disk(&cluster);
    assert!(first + second == 5 && second >= 4, "{first} {second}: rank 1 was named for four");
    cluster.stop().await;
    let cluster = start(dir.path()).await;
    let client = cluster.client();
    let keys: [&[u8]; 5] = [b"saved", b"a", b"b", b"parts", b"alone"];
    let found = client.exists(&keys).await.unwrap();
    assert_eq!(found[..4], [Existence::OnDisk; 4]);
    assert_eq!(found[4], Existence::Absent, "evict_only saves nothing by itself");
    assert_eq!(client.get_location(b"a").await.unwrap().rank(), 1);
    for (key, expected) in [(&b"saved"[..], value(1)), (b"a", value(2)), (b"b", value(3))] {
        assert!(client.get(key).await.unwrap() == expected);
    }
    assert_eq!(client.get(b"parts").await.unwrap(), &b"in parts"[..]);
    // Of two objects of one key on disks neither would be found later.
    let short = client.put(b"other", b"short", &PutOptions::default().at([at_disk(0)])).await;
    let error = short.unwrap_err();
    assert!(error.message().contains("is on the disk of rank 1, and this one has 5"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_in_memory_and_copies_on_disks_are_of_one_put() {
    let dir = tempfile::tempdir().unwrap();
    let cluster = start(dir.path()).await;
    let client = cluster.client();
    let everywhere = ["0", "1", "disk", "disk"].map(|at| at.parse::<Preferred>().unwrap());
    let opts = PutOptions::default().at(everywhere);
    let put: [(&[u8], &[u8]); 1] = [(b"k", &value(1))];
    assert_eq!(client.put_replicas(&put, &opts).await, [Ok(2)]);
    assert_eq!(objects_on_disk(&cluster), [1, 1]);
    // Again: it is there, and nothing is written.
    assert_eq!(client.put_replicas(&put, &opts).await, [Ok(0)]);
    assert_eq!(client.put_many(&put, &opts).await, [Ok(())]);
    assert_eq!(objects_on_disk(&cluster), [1, 1]);
    client.remove(b"k").await.unwrap();
    assert_eq!(client.exists(&[b"k"]).await.unwrap(), [Existence::Absent]);
    // A third disk there is not.
    let opts = PutOptions::default().at([DISK; 3]);
    let error = client.put(b"three", &value(2), &opts).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    assert!(error.message().contains("3 disks: 2 ranks have one now"), "{error}");
    assert_eq!(client.exists(&[b"three"]).await.unwrap(), [Existence::Absent]);
    client.put(b"three", &value(2), &PutOptions::default()).await.unwrap();
    let saved = client.save_to_disk(&[b"three"], &[None; 3]).await.remove(0).unwrap();
    assert_eq!(
        (saved.ranks, saved.missing.map(|e| e.kind())),
        (vec![0, 1], Some(ErrorKind::NotReady))
    );
    let plan = client.open_for_write(b"plan", 8, &PutOptions::default().at([DISK])).await;
    assert_eq!(plan.err().map(|e| e.kind()), Some(ErrorKind::InvalidArgument));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_in_memory_is_saved_later_and_a_striped_object_with_its_stripes() {
    let dir = tempfile::tempdir().unwrap();
    let cluster = start(dir.path()).await;
    let client = cluster.client();
    let striped: Vec<u8> = (0..3 * BLOCK).map(|i| (i / 7) as u8).collect();
    client.put(b"striped", &striped, &PutOptions::default().stripes(2)).await.unwrap();
    client.put(b"whole", &value(4), &on(1)).await.unwrap();
    let saved = client.save_to_disk(&[b"striped", b"whole", b"none"], &[None]).await;
    assert!(saved[0].is_ok(), "{saved:?}");
    let on = |ranks| Ok(SavedOn { ranks, missing: None });
    assert_eq!(saved[1], on(vec![1]), "the disk of its own rank");
    assert_eq!(saved[2].as_ref().map_err(|e| e.kind()), Err(ErrorKind::NotFound));
    let of_rank_0 = client.save_to_disk(&[b"whole"], &[Some(0)]).await;
    assert_eq!(of_rank_0, [on(vec![0])]);
    let again = client.save_to_disk(&[b"whole"], &[None, None]).await;
    assert_eq!(again, [on(vec![0, 1])], "those that have it");
    client.remove(b"striped").await.unwrap();
    let left = [0, 1].map(|rank| cluster.node(rank).tier().unwrap().figures().ssd_objects);
    assert_eq!(left, [1, 1], "its stripes are on no disk any more");
    client.put(b"striped", &striped, &PutOptions::default().stripes(2)).await.unwrap();
    assert!(client.save_to_disk(&[b"striped"], &[None]).await[0].is_ok());
    let (none, ninth) = (client.save_to_disk(&[b"whole"], &[]).await, [None; 9]);
    for wrong in [none, client.save_to_disk(&[b"whole"], &ninth).await] {
        assert_eq!(wrong[0].as_ref().map_err(|e| e.kind()), Err(ErrorKind::InvalidArgument));
    }
    cluster.stop().await;
    let cluster = start(dir.path()).await;
    assert!(cluster.client().get(b"striped").await.unwrap() == striped);
    assert!(cluster.client().get(b"whole").await.unwrap() == value(4));
}

/// Whatever comes first, an acknowledged removal is for good.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i6_what_is_removed_while_it_is_saved_stays_removed() {
    let dir = tempfile::tempdir().unwrap();
    let cluster = start(dir.path()).await;
    let client = cluster.client();
    let mut saved_first = 0;
    for round in 0..200_u32 {
        let (key, disks) = (format!("k/{round}"), [Some(round % 2)]);
        let key = key.as_bytes();
        client.put(key, &value(round as u8), &on(round / 2 % 2)).await.unwrap();
        let save = async {
            let saved = client.save_to_disk(&[key], &disks).await.remove(0);
            saved.is_ok()
        };
        let remove = async {
            tokio::time::sleep(Duration::from_micros(u64::from(round % 20) * 100)).await;
            client.remove(key).await
        };
        let (saved, removed) = tokio::join!(save, remove);
        removed.unwrap();
        saved_first += u32::from(saved);
        assert_eq!(client.exists(&[key]).await.unwrap(), [Existence::Absent], "round {round}");
    }
    assert!(saved_first > 0, "no save ever came first");
    let left = [0, 1].map(|rank| cluster.node(rank).tier().unwrap().figures().ssd_objects);
    assert_eq!(left, [0, 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_only_disk_takes_what_lies_at_a_rank_without_one() {
    let dir = tempfile::tempdir().unwrap();
    let base = NodeConfig { world_size: 2, ..config(dir.path()) };
    let first =
        Node::start(NodeConfig { rank: 0, port: 0, ssd: None, ..base.clone() }).await.unwrap();
    let port = first.info().control.to_string().rsplit(':').next().unwrap().parse().unwrap();
    let second = Node::start(NodeConfig { rank: 1, port, ..base }).await.unwrap();
    eventually("both are there", async || first.is_ready()).await;
    let client = first.client();
    client
        .put(b"k", &value(7), &PutOptions::default().at(["0".parse().unwrap(), DISK]))
        .await
        .unwrap();
    let figures = second.tier().unwrap().figures();
    assert_eq!((figures.ssd_objects, figures.kv_save_asked, figures.kv_save_asked_fail), (1, 1, 0));
    let error = client.put(b"l", &value(8), &PutOptions::default().at([at_disk(0)])).await;
    let error = error.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    assert!(error.message().contains("rank 0 has no disk: start it with --ssd-dir"), "{error}");
    assert_eq!(client.exists(&[b"l"]).await.unwrap(), [Existence::Absent], "nothing was stored");
    second.stop().await;
    first.stop().await;
}
