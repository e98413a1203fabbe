//! A handle that was closed does nothing any more: every call fails with an error that says so, and
//! it reserves no key.

use crate::embedding::log::{attached, gauges, logged, with_log};
use crate::embedding::{bytes, client_by, config, eventually};
use nkv_actors::{Client, ClientConfig, Cluster, Error, ErrorKind, PutOptions, TransportChoice};
use std::time::Duration;

/// How often the test checks whether a handle is closed too soon.
const POLLS: usize = 50;

fn is_closed_error<T: std::fmt::Debug>(verb: &str, done: Result<T, Error>) {
    let e = done.expect_err(verb);
    let closed = e.kind() == ErrorKind::Disconnected && e.message().contains("is closed");
    assert!(closed, "{verb}: {e}");
}

/// The owner takes some time to end an aborted plan.
async fn is_free(client: &Client, key: &[u8]) {
    let put = async || client.put(key, b"mine", &PutOptions::default()).await.is_ok();
    eventually("its key is free", put).await;
}

async fn no_verb_works(client: &Client) {
    let (k, v, plain) = (&b"k"[..], &bytes(9_000, 1)[..], PutOptions::default());
    let mut buffer = vec![0; 9_000];
    is_closed_error("put", client.put(k, v, &plain).await);
    is_closed_error("put into a log", client.put(k, v, &logged(0)).await);
    is_closed_error("put_many", client.put_many(&[(k, v)], &plain).await.remove(0));
    is_closed_error("open_for_write", client.open_for_write(k, 1, &plain).await);
    is_closed_error("commit", client.commit(k).await);
    is_closed_error("get", client.get(k).await);
    is_closed_error("get_into", client.get_into(k, &mut buffer).await);
    is_closed_error("get_many_into", client.get_many_into(&mut [(k, &mut buffer)]).await.remove(0));
    is_closed_error("get_view", client.get_view(k).await);
    is_closed_error("lookup_mapped", client.lookup_mapped(&[k], &mut [false]));
    is_closed_error("exists", client.exists(&[k]).await);
    is_closed_error("match_prefix", client.match_prefix(&[k]).await);
    is_closed_error("get_location", client.get_location(k).await);
    is_closed_error("remove", client.remove(k).await);
    is_closed_error("remove_many", client.remove_many(&[k]).await.remove(0));
    is_closed_error("remove_matching", client.remove_matching("").await);
    is_closed_error("remove_all", client.remove_all().await);
    is_closed_error("list", client.list(None, None, 0).await);
    is_closed_error("stats", client.stats().await);
    is_closed_error("membership", client.membership().await);
    is_closed_error("evict_until_below", client.evict_until_below(0.0).await);
    is_closed_error("mount_segment", client.mount_segment(0, 1 << 20).await);
    let limit = Duration::from_secs(1);
    is_closed_error("unmount_segment", client.unmount_segment(0, 1, limit).await);
    is_closed_error("flush", client.flush().await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handle_that_is_closed_ends_every_verb_and_reserves_nothing() {
    let cluster = Cluster::start(1, with_log("closed")).await.unwrap();
    let other = client_by(&cluster, TransportChoice::Auto).await;
    for transport in [TransportChoice::Shm, TransportChoice::Tcp] {
        let client = attached(&cluster, transport).await;
        client.put(b"there", &bytes(9_000, 2), &PutOptions::default()).await.unwrap();
        let meta = client.get_location(b"there").await.unwrap().into_memory().unwrap();
        let writing = client.open_for_write(b"writing", 10, &PutOptions::default()).await.unwrap();
        client.clone().close().await;
        let before = other.stats().await.unwrap();
        let claimed = gauges(&cluster, 0).log_claimed_bytes;
        no_verb_works(&client).await;
        is_closed_error("read_into", client.read_into(&meta, &mut [0; 9_000]).await);
        is_closed_error("write_from", writing.write_from(0, &[1; 10]));
        is_closed_error("publish", writing.publish().await.map_err(Error::from));
        client.close().await;
        let after = other.stats().await.unwrap();
        assert_eq!(after.master.opened, before.master.opened, "no plan was granted to it");
        assert_eq!(gauges(&cluster, 0).log_claimed_bytes, claimed, "nor did it claim");
        is_free(&other, b"k").await;
        is_free(&other, b"writing").await;
        other.remove_all().await.unwrap();
    }
    cluster.stop().await;
}

/// The put waits for room when its handle is closed; if it were granted after that, its key would
/// stay reserved.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_put_that_is_asking_when_its_handle_closes_reserves_nothing() {
    let cluster = Cluster::start(1, config("closed-asking")).await.unwrap();
    let other = client_by(&cluster, TransportChoice::Auto).await;
    // Open plans take so much that no eviction can make room.
    let held = other.open_for_write(b"held", 6 << 20, &PutOptions::default()).await.unwrap();
    let job = cluster.node(0).config().job.clone();
    let client = ClientConfig { job, ..ClientConfig::default() };
    let client = Client::connect(&cluster.node(0).info().control, client).await.unwrap();
    let asking = {
        let client = client.clone();
        tokio::spawn(async move {
            client.put(b"k", &bytes(4 << 20, 1), &PutOptions::default()).await.unwrap_err()
        })
    };
    let (waiting, probe) = (async || other.stats().await.unwrap().waiting == 1, client.clone());
    eventually("it waits for room", waiting).await;
    let closing = tokio::spawn(async move { client.close().await });
    eventually("its handle closes", async || probe.exists(&[b"k"]).await.is_err()).await;
    for _ in 0..POLLS {
        // In this order: while the put waits, its handle is not closed.
        let closed = closing.is_finished();
        if other.stats().await.unwrap().waiting != 1 {
            break;
        }
        assert!(!closed, "closed, and what is granted now is nobody's");
    }
    held.abort().await.unwrap();
    closing.await.unwrap();
    let given_back = async || other.stats().await.unwrap().plans_open == 0;
    eventually("what was granted is given back", given_back).await;
    is_free(&other, b"k").await;
    let e = asking.await.unwrap();
    assert_eq!(e.kind(), ErrorKind::Disconnected, "{e}");
    cluster.stop().await;
}

#[test]
fn a_closed_handle_of_a_thread_says_so_too() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let cluster = runtime.block_on(Cluster::start(1, config("closed-thread"))).unwrap();
    let client = runtime.block_on(client_by(&cluster, TransportChoice::Auto));
    let handle = client.blocking().unwrap();
    handle.put(b"k", b"v", &PutOptions::default()).unwrap();
    handle.close();
    is_closed_error("put", handle.put(b"l", b"v", &PutOptions::default()));
    is_closed_error("get", handle.get(b"k"));
    is_closed_error("get_into", handle.get_into(b"k", &mut [0; 9]));
    is_closed_error("get_view", handle.get_view(b"k"));
    is_closed_error("remove_many", handle.remove_many(&[b"k"]).remove(0));
    runtime.block_on(cluster.stop());
}

#[test]
fn a_node_goes_on_writing_when_the_handle_of_one_of_its_threads_is_gone() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let config = nkv_actors::NodeConfig { ttl_ms: 500, ..config("closed-one-of-them") };
    let cluster = runtime.block_on(Cluster::start(1, config)).unwrap();
    let client = cluster.client();
    let opts = PutOptions::default();
    let plan = runtime.block_on(client.open_for_write(b"k", 4, &opts)).unwrap();
    let handle = client.blocking().unwrap();
    handle.put(b"l", b"v", &opts).unwrap();
    drop(handle);
    // The master would end the plans of a producer that has no connection for a TTL.
    std::thread::sleep(std::time::Duration::from_millis(1_500));
    plan.write_from(0, b"page").unwrap();
    runtime.block_on(plan.publish()).unwrap();
    assert_eq!(&runtime.block_on(client.get(b"k")).unwrap()[..], b"page");
    runtime.block_on(cluster.stop());
}
