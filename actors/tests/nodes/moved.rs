//! A key that exists is found although its last known location is out of date: the owner has just
//! retired that object, and neither the master nor this handle knows that yet [I7].

use crate::embedding::log::{at_rest, gauges, logged, with_log};
use crate::embedding::{bytes, client_by, eventually, on};
use nkv_actors::message::{Existence, ObjMeta};
use nkv_actors::{Client, Cluster, ErrorKind, TransportChoice};
use nkv_store::key::key_hash;
use nkv_store::layout::{OWNER_OFF, flag, low, word};
use nkv_store::{Memory, shm};

const RANKS: u32 = 2;
const LEN: usize = 5_000;

/// Puts a key by a plan, and returns once its owner has received the commit.
async fn is_put(cluster: &Cluster, client: &Client, key: &[u8], rank: u32) {
    let commits = || gauges(cluster, rank as usize).commits;
    let before = commits();
    client.put(key, &bytes(LEN, 1), &on(rank)).await.unwrap();
    eventually("its owner has heard of it", async || commits() > before).await;
}

/// Clears LIVE of an object, as its owner does before it reports that.
fn loses_live(cluster: &Cluster, at: &ObjMeta) {
    let memory = shm::attach(cluster.node(at.rank).info().memory.name().unwrap(), false).unwrap();
    let owner = at.header_off + OWNER_OFF;
    let flags = low(memory.load(owner).unwrap());
    memory.store(owner, word(flags & !flag::LIVE, at.at.epoch)).unwrap();
}

/// Puts a key by a plan, has it lose LIVE, and puts it into the log of the same rank.
async fn is_put_anew(cluster: &Cluster, client: &Client, key: &[u8], rank: u32) {
    is_put(cluster, client, key, rank).await;
    // This handle caches the location, too, and uses it for its next read.
    assert_eq!(client.get(key).await.unwrap(), bytes(LEN, 1));
    loses_live(cluster, client.get_location(key).await.unwrap().in_memory().unwrap());
    client.put(key, &bytes(LEN, 2), &logged(rank)).await.unwrap();
}

/// One key whose hash names the rank, and one whose hash does not: only the master can locate that
/// one.
fn keys_of(rank: u32) -> [Vec<u8>; 2] {
    let key = |named: bool| {
        let mut keys = (0u32..).map(|n| format!("{rank}/{n}").into_bytes());
        keys.find(|k| (key_hash(k) % u64::from(RANKS) == u64::from(rank)) == named).unwrap()
    };
    [key(true), key(false)]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i7_a_key_that_was_put_anew_is_found_before_anybody_heard_that_its_old_object_is_gone() {
    let cluster = Cluster::start(RANKS, with_log("moved")).await.unwrap();
    for transport in [TransportChoice::Shm, TransportChoice::Tcp] {
        let client = client_by(&cluster, transport).await;
        let found = bytes(LEN, 2);
        for rank in 0..RANKS {
            for key in keys_of(rank) {
                is_put_anew(&cluster, &client, &key, rank).await;
                assert_eq!(client.get(&key).await.unwrap(), found, "{transport:?}, rank {rank}");
                client.remove(&key).await.unwrap();

                is_put_anew(&cluster, &client, &key, rank).await;
                let mut into = vec![0; LEN];
                let read = client.get_many_into(&mut [(&key, &mut into)]).await.remove(0);
                assert_eq!((read.unwrap(), &into), (LEN, &found), "{transport:?}, rank {rank}");
                client.remove(&key).await.unwrap();

                is_put_anew(&cluster, &client, &key, rank).await;
                assert_eq!(client.exists(&[&key]).await.unwrap(), [Existence::Ready]);
                if transport == TransportChoice::Shm {
                    assert_eq!(&client.get_view(&key).await.unwrap()[..], found, "rank {rank}");
                }
                client.remove(&key).await.unwrap();
                let e = client.get(&key).await.unwrap_err();
                assert_eq!(e.kind(), ErrorKind::NotFound, "{e}");
            }
        }
    }
    for rank in 0..RANKS as usize {
        at_rest(&cluster, rank).await;
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i7_a_key_whose_owner_does_not_say_that_it_is_gone_is_not_said_to_be_nowhere() {
    let cluster = Cluster::start(1, with_log("moved-unsaid")).await.unwrap();
    for transport in [TransportChoice::Shm, TransportChoice::Tcp] {
        let client = client_by(&cluster, transport).await;
        is_put(&cluster, &client, b"k", 0).await;
        loses_live(&cluster, client.get_location(b"k").await.unwrap().in_memory().unwrap());
        let e = client.get(b"k").await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::NotReady, "{transport:?}: {e}");
        let mut into = vec![0; LEN];
        let e = client.get_into(b"k", &mut into).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::NotReady, "{transport:?}: {e}");
        client.remove(b"k").await.unwrap();
        let e = client.get(b"k").await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::NotFound, "{transport:?}: {e}");
    }
    cluster.stop().await;
}
