//! `exists` with prefetch: a test for each branch of the flow chart of its source, named after the
//! branch, and the races beside it. What is on disk alone is what an earlier cluster has saved.

use crate::embedding::{eventually, on};
use nkv_actors::message::{Existence, Tier};
use nkv_actors::tier::{SsdConfig, SsdPolicy, TierFigures};
use nkv_actors::{Cluster, ErrorKind, NodeConfig, PutOptions, WritePlan};
use std::path::Path;
use tempfile::TempDir;

const MIB: u64 = 1 << 20;
const BLOCK: usize = 64 << 10;
/// The rank whose disk has the objects.
const SAVED_AT: u32 = 1;

struct Scene {
    dir: TempDir,
    cluster: Cluster,
}

async fn start(dir: &Path) -> Cluster {
    let ssd = SsdConfig { policy: SsdPolicy::WriteThrough, ..SsdConfig::new(dir, 256 * MIB) };
    let config = NodeConfig {
        job: format!("prefetch-{}", dir.display()).replace('/', "-"),
        heap_bytes: 16 * MIB,
        ssd: Some(ssd),
        ..NodeConfig::default()
    };
    Cluster::start(2, config).await.unwrap()
}

impl Scene {
    /// Two ranks; `block/0` and on are on the disk of rank 1 alone.
    async fn new(blocks: usize) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let cluster = start(dir.path()).await;
        for block in 0..blocks {
            let value = vec![block as u8; BLOCK];
            cluster.client().put(&key(block), &value, &on(SAVED_AT)).await.unwrap();
        }
        eventually("all is saved", async || {
            cluster.node(SAVED_AT).tier().unwrap().figures().ssd_objects == blocks as u64
        })
        .await;
        cluster.stop().await;
        let cluster = start(dir.path()).await;
        Self { dir, cluster }
    }

    fn figures(&self) -> TierFigures {
        self.cluster.node(SAVED_AT).tier().unwrap().figures()
    }

    /// Of block 0: the tier and the rank.
    async fn place(&self) -> (Tier, u32) {
        let location = self.cluster.client().get_location(&key(0)).await.unwrap();
        (location.tier(), location.rank())
    }

    /// Asks from rank 0.
    async fn prefetch(&self, wait: bool) -> Existence {
        self.cluster.client().prefetch(&[&key(0)], wait).await.unwrap()[0]
    }

    async fn promoted(&self) {
        eventually("it is brought back", async || self.figures().kv_promote_hits == 1).await;
    }
}

fn key(block: usize) -> Vec<u8> {
    format!("block/{block}").into_bytes()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b_no_prefetch_leaves_exists_as_it_is() {
    let scene = Scene::new(1).await;
    let found = scene.cluster.client().exists(&[&key(0)]).await.unwrap();
    assert_eq!(found, [Existence::OnDisk]);
    assert_eq!((scene.figures().kv_promote_requested, scene.place().await.0), (0, Tier::Disk));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f_a_key_without_a_replica_does_not_exist() {
    let scene = Scene::new(1).await;
    for wait in [false, true] {
        let found = scene.cluster.client().prefetch(&[b"nothing"], wait).await.unwrap();
        assert_eq!(found, [Existence::Absent]);
    }
    assert_eq!(scene.figures().kv_promote_requested, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn h_what_is_in_memory_is_not_prefetched() {
    let scene = Scene::new(1).await;
    scene.cluster.client().put(b"here", &[1; BLOCK], &PutOptions::default()).await.unwrap();
    let found = scene.cluster.client().prefetch(&[b"here"], true).await.unwrap();
    assert_eq!((found, scene.figures().kv_promote_requested), (vec![Existence::Ready], 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn j_what_is_being_put_is_not_prefetched() {
    let scene = Scene::new(1).await;
    let client = scene.cluster.client();
    let opts = PutOptions::default();
    let plan = client.open_for_write(&key(0), BLOCK as u64, &opts).await.unwrap();
    assert_eq!(scene.prefetch(true).await, Existence::OnDisk, "it exists: the disk has it");
    assert_eq!(scene.figures().kv_promote_requested, 0);
    plan.write_from(0, &[0; BLOCK]).unwrap();
    plan.publish().await.unwrap();
    assert_eq!(scene.prefetch(true).await, Existence::Ready);
    assert_eq!(scene.figures().kv_promote_requested, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p_the_segment_of_the_asking_node_is_preferred() {
    let scene = Scene::new(1).await;
    assert_eq!(scene.prefetch(false).await, Existence::OnDisk, "it goes on behind the answer");
    scene.promoted().await;
    assert_eq!(scene.place().await, (Tier::Memory, 0));
    let read = scene.cluster.client().get(&key(0)).await.unwrap();
    assert_eq!(&read[..], [0; BLOCK]);
    let figures = scene.figures();
    assert_eq!((figures.kv_promote_hits, figures.kv_promoted_bytes), (1, BLOCK as u64));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn w_with_wait_it_is_in_memory_at_the_answer() {
    let scene = Scene::new(1).await;
    assert_eq!(scene.prefetch(true).await, Existence::Ready);
    assert_eq!(scene.place().await, (Tier::Memory, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s_another_segment_takes_it_where_the_preferred_one_is_full() {
    let scene = Scene::new(1).await;
    let plans = hold_memory(&scene.cluster, 0).await;
    assert_eq!(scene.prefetch(true).await, Existence::Ready);
    assert_eq!(scene.place().await, (Tier::Memory, 1));
    drop(plans);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn x_without_room_anywhere_it_is_counted_and_the_key_exists_all_the_same() {
    let scene = Scene::new(1).await;
    let plans = [hold_memory(&scene.cluster, 0).await, hold_memory(&scene.cluster, 1).await];
    assert_eq!(scene.prefetch(true).await, Existence::OnDisk);
    // It may wait for room longer than the call that asked for it.
    eventually("it has failed", async || scene.figures().kv_promote_fail == 1).await;
    assert_eq!(scene.figures().kv_promote_hits, 0);
    assert_eq!(scene.place().await, (Tier::Disk, SAVED_AT));
    drop(plans);
    assert_eq!(scene.prefetch(true).await, Existence::Ready, "it comes once there is room");
}

/// Holds all memory of a rank, by plans of this handle and by views: nothing there can be evicted.
async fn hold_memory(cluster: &Cluster, rank: u32) -> Vec<WritePlan> {
    let client = cluster.client();
    let mut plans = Vec::new();
    // What is left after the large ones is taken by smaller ones.
    for bytes in [MIB, MIB / 16] {
        for n in 0.. {
            let name = format!("held/{rank}/{bytes}/{n}").into_bytes();
            match client.open_for_write(&name, bytes, &on(rank)).await {
                Ok(plan) if plan.desc().unwrap().meta.rank == rank => plans.push(plan),
                _ => break,
            }
        }
    }
    fill_log(cluster, rank).await;
    plans
}

/// Claims the whole log of a rank, and holds what lies there by views.
async fn fill_log(cluster: &Cluster, rank: u32) {
    let client = cluster.client();
    let mut views = Vec::new();
    for n in 0..4096u32 {
        let name = format!("log/{rank}/{n}").into_bytes();
        if client.put(&name, &[7; BLOCK], &on(rank)).await.is_err() {
            break;
        }
        let location = client.get_location(&name).await.unwrap();
        if location.rank() != rank {
            break;
        }
        views.push(client.get_view(&name).await.unwrap());
    }
    std::mem::forget(views);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r_full_memory_is_evicted_as_for_any_put() {
    let scene = Scene::new(1).await;
    let client = scene.cluster.client();
    for n in 0..400 {
        let name = format!("filler/{n}").into_bytes();
        client.put(&name, &[3; BLOCK], &on(n % 2)).await.unwrap();
    }
    assert_eq!(scene.prefetch(true).await, Existence::Ready);
    assert_eq!(scene.place().await.0, Tier::Memory);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn y_a_prefetch_that_fails_is_counted_and_the_key_exists_all_the_same() {
    let scene = Scene::new(1).await;
    let slab = scene.dir.path().join(format!("rank-{SAVED_AT}/slab-00000.dat"));
    let mut bytes = std::fs::read(&slab).unwrap();
    bytes[4096 + 100] ^= 1;
    std::fs::write(&slab, bytes).unwrap();
    assert_eq!(scene.prefetch(false).await, Existence::OnDisk);
    eventually("it has failed", async || scene.figures().kv_promote_fail == 1).await;
    let figures = scene.figures();
    assert_eq!((figures.ssd_load_corrupt, figures.kv_promote_hits), (1, 0));
    let gone = scene.cluster.client().get(&key(0)).await.unwrap_err();
    assert_eq!(gone.kind(), ErrorKind::NotFound, "the damaged object was removed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn duplicate_requests_are_one_promotion() {
    let scene = Scene::new(1).await;
    let clients = [scene.cluster.client(), scene.cluster.node(1).client()];
    let name = key(0);
    let names = [&name[..]];
    let all = clients.iter().cycle().take(16).map(|client| client.prefetch(&names, false));
    // Polled together, so that they overlap.
    for found in futures_util::future::join_all(all).await {
        assert!(matches!(found.unwrap()[0], Existence::OnDisk | Existence::Ready));
    }
    eventually("none is in progress", async || scene.figures().kv_promote_pending == 0).await;
    let figures = scene.figures();
    let requested = figures.kv_promote_requested;
    assert_eq!(figures.kv_promote_coalesced + figures.kv_promote_hits, requested, "{figures:?}");
    assert_eq!(figures.kv_promote_fail, 0);
    assert_eq!(&scene.cluster.client().get(&name).await.unwrap()[..], [0; BLOCK]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_is_prefetched_and_then_read_from_memory() {
    let scene = Scene::new(40).await;
    let client = scene.cluster.client();
    let names: Vec<_> = (0..40).map(key).collect();
    let names: Vec<&[u8]> = names.iter().map(Vec::as_slice).collect();
    assert_eq!(client.prefetch(&names, true).await.unwrap(), vec![Existence::Ready; 40]);
    let hits = scene.figures().kv_promote_hits;
    for (block, read) in client.get_many(&names).await.into_iter().enumerate() {
        assert_eq!(&read.unwrap()[..], vec![block as u8; BLOCK]);
    }
    assert_eq!((hits, scene.figures().kv_promote_hits), (40, 40));
}
