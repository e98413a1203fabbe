//! The memory of a rank as a pool of workers, in one process.

use crate::embedding::{eventually, used_is_live};
use nkv_actors::actor::Crash;
use nkv_actors::message::Existence;
use nkv_actors::tier::{SsdConfig, SsdPolicy};
use nkv_actors::{Cluster, ErrorKind, NodeConfig, PoolOptions, PutOptions, ShmPool, StoreSlot};
use nkv_store::ArenaUnit;
use std::time::Duration;

const MIB: u64 = 1 << 20;
const CHUNK: u64 = 256 << 10;

fn config() -> NodeConfig {
    NodeConfig {
        job: format!("pool-{}-{:?}", std::process::id(), std::thread::current().id())
            .replace(['(', ')'], ""),
        heap_bytes: 16 * MIB,
        log_bytes: Some(0),
        ..NodeConfig::default()
    }
}

async fn start() -> Cluster {
    Cluster::start(1, config()).await.unwrap()
}

fn options() -> PoolOptions {
    PoolOptions { rank: Some(0), ..PoolOptions::default() }
}

async fn attach(cluster: &Cluster) -> ShmPool {
    cluster.client().attach_pool(options()).await.unwrap()
}

fn names(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("chunk/{number}")).collect()
}

fn bytes(names: &[String]) -> Vec<&[u8]> {
    names.iter().map(|name| name.as_bytes()).collect()
}

/// A worker copies its bytes there.
fn fill(slot: &StoreSlot, byte: u8) {
    slot.write(0, &vec![byte; slot.len as usize]).unwrap();
}

fn holds(slot: &StoreSlot, byte: u8) -> bool {
    let mut all = vec![0; slot.len as usize];
    slot.read(0, &mut all).unwrap();
    all.iter().all(|one| *one == byte)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slots_begin_at_multiples_of_what_the_node_is_set_to() {
    let unit = 2 * MIB;
    let heap_align = ArenaUnit::try_from(unit as u32).unwrap();
    let cluster = Cluster::start(1, NodeConfig { heap_align, heap_bytes: 32 * MIB, ..config() })
        .await
        .unwrap();
    let (pool, client, names) = (attach(&cluster).await, cluster.client(), names(8));
    let slots = pool.prepare_store(&bytes(&names), CHUNK).await.unwrap();
    assert_eq!(slots.len(), 8);
    for (slot, byte) in slots.iter().zip(1..) {
        assert_eq!((slot.offset % unit, slot.address() % unit, slot.len), (0, 0, CHUNK));
        fill(slot, byte);
    }
    pool.commit_store(&bytes(&names)).await.into_iter().for_each(|done| done.unwrap());
    // What the owner finds in the headers agrees with what the master has placed.
    let node = cluster.node(0);
    node.owner().call(Crash, Duration::from_secs(5)).await.unwrap_err();
    used_is_live(&cluster).await;
    assert_eq!(node.status().owner.live_bytes, 8 * unit);
    for (name, byte) in names.iter().zip(1..) {
        assert_eq!(client.get(name.as_bytes()).await.unwrap()[..], vec![byte; CHUNK as usize]);
    }
    client.remove(names[3].as_bytes()).await.unwrap();
    used_is_live(&cluster).await;
    let again = pool.prepare_store(&[b"again"], unit).await.unwrap();
    assert_eq!((again.len(), again[0].offset % unit), (1, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_worker_wrote_in_place_is_found_once_it_is_committed() {
    let cluster = start().await;
    let (pool, client, names) = (attach(&cluster).await, cluster.client(), names(8));
    let slots = pool.prepare_store(&bytes(&names), CHUNK).await.unwrap();
    assert_eq!(slots.len(), 8);
    let info = pool.info().unwrap();
    for (slot, byte) in slots.iter().zip(1..) {
        assert_eq!((&*slot.shm_name, slot.len), (&*info.shm_name, CHUNK));
        assert!(slot.offset + slot.len <= info.bytes);
        fill(slot, byte);
    }
    assert!(client.get(b"chunk/0").await.is_err(), "not committed");
    assert!(pool.prepare_retrieve(&[b"chunk/0"]).await.unwrap().is_none());
    for done in pool.commit_store(&bytes(&names)).await {
        done.unwrap();
    }
    let read = pool.prepare_retrieve(&bytes(&names)).await.unwrap().unwrap();
    for (slot, byte) in read.iter().zip(1..) {
        assert!(slot.bytes().len() as u64 == CHUNK && slot.bytes().iter().all(|b| *b == byte));
    }
    assert_eq!(client.get(b"chunk/3").await.unwrap()[..4], [4; 4]);
    slots[0].write(0, b"late").unwrap_err();
    // Stored already.
    assert!(pool.prepare_store(&bytes(&names), CHUNK).await.unwrap().is_empty());
    assert_eq!(pool.outstanding(), (0, 8));
    pool.finish_read(&bytes(&names));
    assert_eq!(pool.outstanding(), (0, 0));
    let figures = pool.figures();
    assert_eq!((figures.prepared, figures.committed, figures.skipped_exists), (8, 8, 8));
    assert_eq!((figures.retrieved, figures.missed), (8, 1));
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_for_which_there_is_no_room_are_skipped_and_counted() {
    let cluster = start().await;
    let (pool, names) = (attach(&cluster).await, names(100));
    let slots = pool.prepare_store(&bytes(&names), CHUNK).await.unwrap();
    let given = slots.len();
    assert!((32..100).contains(&given), "{given}");
    assert_eq!(pool.figures().skipped_full, 100 - given as u64);
    let keys: Vec<&[u8]> = slots.iter().map(|slot| &slot.key[..]).collect();
    for done in pool.commit_store(&keys).await {
        done.unwrap();
    }
    drop(slots);
    // Room comes back by the usual eviction.
    assert!(!pool.prepare_store(&[b"another"], CHUNK).await.unwrap().is_empty());
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_layout_is_another_object() {
    let cluster = start().await;
    let layout = |text: &str| PoolOptions { layout: text.into(), ..options() };
    let client = cluster.client();
    let ours = client.attach_pool(layout("bfloat16 tp=2")).await.unwrap();
    let other = client.attach_pool(layout("bfloat16 tp=4")).await.unwrap();
    for (pool, byte) in [(&ours, 1), (&other, 2)] {
        assert!(pool.prepare_retrieve(&[b"k"]).await.unwrap().is_none());
        let slots = pool.prepare_store(&[b"k"], CHUNK).await.unwrap();
        fill(&slots[0], byte);
        assert_eq!(pool.commit_store(&[b"k"]).await, [Ok(())]);
    }
    for (pool, byte) in [(&ours, 1), (&other, 2)] {
        let read = pool.prepare_retrieve(&[b"k"]).await.unwrap().unwrap();
        assert_eq!((&read[0].key[..], read[0].bytes()[0]), (&b"k"[..], byte));
    }
    assert!(client.get(b"k").await.is_err(), "without a layout it is another key");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_retrieve_gives_all_or_nothing() {
    let cluster = start().await;
    let pool = attach(&cluster).await;
    cluster.client().put(b"there", &[1; 1000], &PutOptions::default()).await.unwrap();
    assert!(pool.prepare_retrieve(&[b"there", b"not there"]).await.unwrap().is_none());
    assert_eq!((pool.outstanding(), pool.figures().missed), ((0, 0), 1));
    // Twice given, twice to be finished.
    let read = pool.prepare_retrieve(&[b"there", b"there"]).await.unwrap().unwrap();
    assert_eq!(read[1].bytes(), [1; 1000]);
    pool.finish_read(&[b"there"]);
    assert_eq!(pool.outstanding(), (0, 1));
    pool.finish_read(&[b"there", b"there", b"never given"]);
    assert_eq!(pool.outstanding(), (0, 0));
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slots_of_one_key_are_finished_one_by_one() {
    let cluster = start().await;
    let pool = attach(&cluster).await;
    cluster.client().put(b"k", &[1; 1000], &PutOptions::default()).await.unwrap();
    let first = pool.prepare_retrieve(&[b"k"]).await.unwrap().unwrap();
    let second = pool.prepare_retrieve(&[b"k"]).await.unwrap().unwrap();
    pool.finish_slots(&second);
    pool.finish_slots(&second);
    assert_eq!(pool.outstanding(), (0, 1), "the first one stays");
    pool.finish_slots(&first);
    assert_eq!(pool.outstanding(), (0, 0));
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_at_the_limit_and_empty_lists_have_clear_answers() {
    let cluster = start().await;
    let layout = PoolOptions { layout: "bfloat16".into(), ..options() };
    let pool = cluster.client().attach_pool(layout).await.unwrap();
    let long = vec![b'k'; 991];
    assert_eq!(pool.prepare_store(&[&long], 0).await.unwrap().len(), 1);
    assert_eq!(pool.commit_store(&[&long]).await, [Ok(())]);
    assert_eq!(pool.prepare_retrieve(&[&long]).await.unwrap().unwrap()[0].bytes(), b"");
    for key in [&[b'k'; 992][..], b""] {
        let refused = pool.prepare_store(&[key], CHUNK).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
        assert!(refused.message().contains("1 to 991"), "{refused}");
    }
    assert!(pool.prepare_store(&[], CHUNK).await.unwrap().is_empty());
    assert_eq!(pool.prepare_retrieve(&[]).await.unwrap().unwrap().len(), 0);
    // One place for a key, however often it is named.
    assert_eq!(pool.prepare_store(&[b"twice", b"twice"], CHUNK).await.unwrap().len(), 1);
    assert_eq!(pool.outstanding(), (1, 1));
    cluster.stop().await;
}

/// Another thread of the worker still writes when the commit begins.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i6_what_is_written_during_a_commit_is_in_the_object_or_refused() {
    let cluster = start().await;
    let pool = attach(&cluster).await;
    for round in 0..60u32 {
        let key = round.to_le_bytes();
        let slot = pool.prepare_store(&[&key], MIB).await.unwrap().remove(0);
        fill(&slot, 0);
        let writer = tokio::task::spawn_blocking(move || {
            (1..).take_while(|n| slot.write(0, &vec![*n as u8; MIB as usize]).is_ok()).count()
        });
        tokio::time::sleep(Duration::from_micros(u64::from(round) * 50)).await;
        assert_eq!(pool.commit_store(&[&key]).await, [Ok(())]);
        let read = cluster.client().get(&key).await.unwrap();
        writer.await.unwrap();
        assert!(read.iter().all(|byte| *byte == read[0]), "round {round}: half of a write");
        assert!(cluster.client().get(&key).await.unwrap() == read, "round {round}: it changed");
        cluster.client().remove(&key).await.unwrap();
    }
    cluster.stop().await;
}

/// The worker is slow, and not gone: what it still keeps is its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i9_i10_a_slot_that_expired_is_not_reused_before_the_worker_lets_it_go() {
    let cluster = start().await;
    let (write_ttl, read_ttl) = (Duration::ZERO, Duration::ZERO);
    let client = cluster.client();
    let short = PoolOptions { write_ttl, read_ttl, ..options() };
    let pool = client.attach_pool(short).await.unwrap();
    client.put(b"read", &[7; CHUNK as usize], &PutOptions::default()).await.unwrap();
    let read = pool.prepare_retrieve(&[b"read"]).await.unwrap().unwrap();
    let slots = pool.prepare_store(&[b"written"], CHUNK).await.unwrap();
    fill(&slots[0], 9);
    pool.expire();
    assert_eq!((pool.outstanding(), pool.figures().expired), ((0, 0), 2));
    client.remove(b"read").await.unwrap();
    for round in 0..200u32 {
        let key = round.to_le_bytes();
        client.put(&key, &[0; CHUNK as usize], &PutOptions::default()).await.unwrap();
    }
    assert!(read[0].bytes().iter().all(|byte| *byte == 7));
    assert!(holds(&slots[0], 9));
    let late = pool.commit_store(&[b"written"]).await.remove(0).unwrap_err();
    assert_eq!(late.kind(), ErrorKind::NotFound);
    drop(slots);
    eventually("the key can be stored again", async || {
        !pool.prepare_store(&[b"written"], CHUNK).await.unwrap().is_empty()
    })
    .await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_may_be_committed_after_the_time_that_a_plan_has() {
    let config = NodeConfig { write_ttl_ms: 300, ..config() };
    let cluster = Cluster::start(1, config).await.unwrap();
    let pool = attach(&cluster).await;
    let slots = pool.prepare_store(&[b"k"], CHUNK).await.unwrap();
    tokio::time::sleep(Duration::from_millis(700)).await;
    fill(&slots[0], 3);
    assert_eq!(pool.commit_store(&[b"k"]).await, [Ok(())]);
    assert_eq!(cluster.client().get(b"k").await.unwrap()[0], 3);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pool_of_another_size_or_of_no_rank_is_refused() {
    let cluster = start().await;
    let client = cluster.client();
    let other = PoolOptions { expected_bytes: Some(5), ..options() };
    let refused = client.attach_pool(other).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
    assert!(refused.message().contains("not 5"), "{refused}");
    let absent = client.attach_pool(PoolOptions { rank: Some(9), ..options() }).await.unwrap_err();
    assert_eq!(absent.kind(), ErrorKind::Disconnected);
    assert!(absent.message().contains("rank 9"), "{absent}");
    cluster.stop().await;
}

/// Stored through the pool, saved, evicted, brought back, and read in place.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_only_the_disk_has_is_brought_back_before_it_is_read_in_place() {
    let dir = tempfile::tempdir().unwrap();
    let ssd = SsdConfig { policy: SsdPolicy::EvictOnly, ..SsdConfig::new(dir.path(), 256 * MIB) };
    let config = NodeConfig { ssd: Some(ssd), ..config() };
    let cluster = Cluster::start(1, config).await.unwrap();
    let (pool, names) = (attach(&cluster).await, names(150));
    for (name, byte) in names.iter().zip(0..) {
        let slots = pool.prepare_store(&[name.as_bytes()], CHUNK).await.unwrap();
        fill(&slots[0], byte);
        assert_eq!(pool.commit_store(&[name.as_bytes()]).await, [Ok(())], "{name}");
    }
    eventually("it is on disk alone", async || {
        cluster.client().exists(&[b"chunk/0"]).await.unwrap() == [Existence::OnDisk]
    })
    .await;
    let some = &bytes(&names)[..10];
    let read = pool.prepare_retrieve(some).await.unwrap().unwrap();
    for (slot, byte) in read.iter().zip(0..) {
        assert!(slot.bytes().iter().all(|b| *b == byte));
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_beside_panics_of_the_master_is_whole_or_an_error_and_can_be_done_again() {
    let cluster = start().await;
    let (pool, client, names) = (attach(&cluster).await, cluster.client(), names(20));
    let master = cluster.node(0).master().unwrap().clone();
    let mut committed = 0;
    for (round, names) in names.chunks(4).enumerate() {
        let byte = |at: usize| (1 + 10 * round + at) as u8;
        for (at, slot) in pool.prepare_store(&bytes(names), CHUNK).await.unwrap().iter().enumerate()
        {
            fill(slot, byte(at));
        }
        let (keys, crash) = (bytes(names), master.call(Crash, Duration::from_secs(5)));
        let (done, panicked) = tokio::join!(pool.commit_store(&keys), crash);
        panicked.unwrap_err();
        for (at, (name, done)) in names.iter().zip(done).enumerate() {
            if done.is_ok() {
                committed += 1;
            } else if let [slot] = &pool.prepare_store(&[name.as_bytes()], CHUNK).await.unwrap()[..]
            {
                fill(slot, byte(at));
                pool.commit_store(&[name.as_bytes()]).await.remove(0).unwrap();
            }
            let read = client.get(name.as_bytes()).await.unwrap();
            assert_eq!(read[..], vec![byte(at); CHUNK as usize], "{name}: {done:?}");
        }
    }
    used_is_live(&cluster).await;
    assert!(committed > 0, "a commit is repeated once the master is back");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_that_cannot_be_committed_do_not_keep_the_others_from_it() {
    let cluster = start().await;
    let pool = attach(&cluster).await;
    let late = pool.prepare_store(&[b"late"], CHUNK).await.unwrap();
    pool.abort_store(&[b"late"]);
    let slots = pool.prepare_store(&[b"first", b"second"], CHUNK).await.unwrap();
    slots.iter().zip(1..).for_each(|(slot, byte)| fill(slot, byte));
    let done = pool.commit_store(&[b"first", b"late", b"never prepared", b"second"]).await;
    let [Ok(()), Err(expired), Err(unknown), Ok(())] = &done[..] else { panic!("{done:?}") };
    assert_eq!((expired.key(), unknown.key()), (Some(&b"late"[..]), Some(&b"never prepared"[..])));
    for (key, byte) in [(&b"first"[..], 1), (b"second", 2)] {
        assert_eq!(cluster.client().get(key).await.unwrap()[..], vec![byte; CHUNK as usize]);
    }
    drop(late);
    // Its plan ends in the background.
    eventually("its key is nowhere", async || {
        cluster.client().get(b"late").await.unwrap_err().kind() == ErrorKind::NotFound
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_than_memory_holds_is_an_error_that_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let ssd = SsdConfig { policy: SsdPolicy::WriteThrough, ..SsdConfig::new(dir.path(), 64 * MIB) };
    let cluster = Cluster::start(1, NodeConfig { ssd: Some(ssd), ..config() }).await.unwrap();
    let (pool, client, names) = (attach(&cluster).await, cluster.client(), names(100));
    for name in &names {
        client.put(name.as_bytes(), &[7; CHUNK as usize], &PutOptions::default()).await.unwrap();
    }
    eventually("all is saved", async || {
        cluster.node(0).tier().unwrap().figures().ssd_objects == names.len() as u64
    })
    .await;
    let e = match pool.prepare_retrieve(&bytes(&names)).await {
        Err(e) => e,
        Ok(found) => panic!("{:?}: {:?}", found.map(|all| all.len()), pool.figures()),
    };
    assert!(matches!(e.kind(), ErrorKind::OutOfMemory | ErrorKind::NotReady), "{e}");
    // Its pins are gone with it.
    let some = pool.prepare_retrieve(&bytes(&names[..20])).await.unwrap().unwrap();
    assert!(some.iter().all(|slot| slot.bytes().iter().all(|byte| *byte == 7)));
}
