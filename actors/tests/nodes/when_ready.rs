//! Waiting for objects that are not READY yet.

use crate::embedding::log::{logged, with_log};
use crate::embedding::{bytes, client_by, on};
use nkv_actors::actor::Crash;
use nkv_actors::{Client, Cluster, ErrorKind, NodeConfig, Result, TransportChoice};
use nkv_pace::HANGS;
use nkv_store::threads::spawn_named;
use std::task::Poll;
use std::time::Duration;

const MS: fn(u64) -> Duration = Duration::from_millis;

/// Lets a wait that was begun reach the master and the owners. If it does not in time, what the
/// caller is to see is there before it asks, which a test must bear as well.
async fn begun() {
    tokio::time::sleep(MS(20)).await;
}

async fn started(job: &str) -> Cluster {
    let config = NodeConfig { ttl_ms: 1_000, write_ttl_ms: 1_000, ..with_log(job) };
    Cluster::start(2, config).await.unwrap()
}

/// Handles that map the segments, and that do not.
async fn readers(cluster: &Cluster) -> [Client; 3] {
    let (shm, tcp) = (TransportChoice::Shm, TransportChoice::Tcp);
    [cluster.client(), client_by(cluster, shm).await, client_by(cluster, tcp).await]
}

fn awaited(client: &Client, key: &'static [u8]) -> tokio::task::JoinHandle<Result<Vec<u8>>> {
    let client = client.clone();
    tokio::spawn(async move { Ok(client.get_when_ready(key, HANGS).await?.to_vec()) })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_nobody_has_opened_is_returned_once_it_is_put() {
    let cluster = started("ready-put").await;
    let writer = client_by(&cluster, TransportChoice::Shm).await;
    let keys: [[&'static [u8]; 2]; 3] = [[b"a0", b"a1"], [b"b0", b"b1"], [b"c0", b"c1"]];
    for (reader, keys) in readers(&cluster).await.iter().zip(keys) {
        let (by_log, by_plan) = (awaited(reader, keys[0]), awaited(reader, keys[1]));
        begun().await;
        // Not where the key's hash leads.
        for rank in 0..2 {
            let key = keys[rank as usize];
            let opts = if rank == 0 { logged(1) } else { on(0) };
            writer.put(key, &bytes(70_000, rank as u8), &opts).await.unwrap();
        }
        assert_eq!(by_log.await.unwrap().unwrap(), bytes(70_000, 0));
        assert_eq!(by_plan.await.unwrap().unwrap(), bytes(70_000, 1));
        // What is there is returned at once.
        assert_eq!(reader.get_when_ready(keys[0], MS(0)).await.unwrap(), bytes(70_000, 0));
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_object_is_not_returned_before_all_its_pages_are_written() {
    let cluster = started("ready-pages").await;
    let writer = cluster.node(1).client();
    for (n, reader) in readers(&cluster).await.iter().enumerate() {
        let key: &'static [u8] = [&b"x"[..], b"y", b"z"][n];
        let before = awaited(reader, key);
        begun().await;
        let opts = on(1).page_bytes(4096);
        let plan = writer.open_for_write(key, 8192, &opts).await.unwrap();
        let after = awaited(reader, key);
        begun().await;
        plan.write_page(1, &[1; 4096]).unwrap();
        begun().await;
        assert!(!before.is_finished() && !after.is_finished());
        plan.write_page(0, &[2; 4096]).unwrap();
        plan.publish().await.unwrap();
        for read in [before, after] {
            let read = read.await.unwrap().unwrap();
            assert!(read[..4096] == [2; 4096] && read[4096..] == [1; 4096]);
        }
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_ends_with_the_reason_when_the_producer_does() {
    let cluster = started("ready-ends").await;
    for (n, reader) in readers(&cluster).await.iter().enumerate() {
        let producer = client_by(&cluster, TransportChoice::Tcp).await;
        for (late, why) in [(false, "gave it up"), (true, "in time")] {
            let (kind, text, key) = ended(&producer, reader, &format!("{n}/{late}"), late).await;
            assert_eq!(
                (kind, text.contains(why), key),
                (ErrorKind::Reclaimed, true, true),
                "{text}"
            );
        }
    }
    cluster.stop().await;
}

/// How a wait ends whose producer gives up, or is late; and whether its error names the key. Where
/// it had given up before the wait arrived, another one is tried, at most three times.
async fn ended(
    producer: &Client,
    reader: &Client,
    name: &str,
    late: bool,
) -> (ErrorKind, String, bool) {
    for turn in 0.. {
        let key = format!("{name}/{turn}").into_bytes();
        let plan = producer.open_for_write(&key, 8192, &on(1)).await.unwrap();
        let (reading, awaited) = (reader.clone(), key.clone());
        let read = tokio::spawn(async move { reading.get_when_ready(&awaited, MS(3_000)).await });
        begun().await;
        let plan = if late {
            Some(plan)
        } else {
            plan.abort().await.unwrap();
            None
        };
        let e = read.await.unwrap().unwrap_err();
        drop(plan);
        if e.kind() != ErrorKind::Timeout || late || turn == 3 {
            return (e.kind(), e.to_string(), e.key() == Some(&key));
        }
    }
    unreachable!()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn layers_come_in_the_order_in_which_they_are_written_and_a_batch_when_all_are() {
    let cluster = started("ready-layers").await;
    let writer = client_by(&cluster, TransportChoice::Shm).await;
    for (n, reader) in readers(&cluster).await.into_iter().enumerate() {
        let keys: Vec<_> = (0..6).map(|layer| format!("{n}/layer/{layer}").into_bytes()).collect();
        let names: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
        let mut layers = reader.when_ready(&names, HANGS).unwrap();
        let batch = {
            let (reader, keys) = (reader.clone(), keys.clone());
            tokio::spawn(async move {
                let mut rooms = vec![vec![0; 5_000]; keys.len()];
                let items = keys.iter().zip(&mut rooms);
                let mut items: Vec<(&[u8], &mut [u8])> =
                    items.map(|(k, room)| (k.as_slice(), room.as_mut_slice())).collect();
                let read = reader.get_many_when_ready_into(&mut items, HANGS).await;
                (read, rooms)
            })
        };
        begun().await;
        for layer in [3, 1, 0, 2, 5, 4] {
            let value = bytes(4_000 + layer, layer as u8);
            let opts = if layer % 2 == 0 { logged(layer as u32 / 2 % 2) } else { on(1) };
            writer.put(names[layer], &value, &opts).await.unwrap();
            let (which, read) = layers.next().await.unwrap();
            assert_eq!((which, read.unwrap()), (layer, value.into()));
        }
        assert!(layers.next().await.is_none());
        let (read, rooms) = batch.await.unwrap();
        for (layer, (n, room)) in read.into_iter().zip(rooms).enumerate() {
            assert_eq!(room[..n.unwrap()], bytes(4_000 + layer, layer as u8));
        }
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_whose_read_was_given_up_is_returned_by_the_next_call() {
    let cluster = started("ready-given-up").await;
    let writer = client_by(&cluster, TransportChoice::Shm).await;
    for (n, reader) in readers(&cluster).await.into_iter().enumerate() {
        let keys = ["x", "y", "z"].map(|key| format!("{n}{key}").into_bytes());
        let names: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
        let mut ready = reader.when_ready(&names, HANGS).unwrap();
        for key in &names {
            writer.put(key, key, &logged(1)).await.unwrap();
        }
        let mut all = Vec::new();
        while all.len() < names.len() {
            // Polled a different number of times before it is dropped.
            let mut polls = 0;
            let next = polled(ready.next(), all.len() * 3 + n, &mut polls).await;
            if let Some(Some((which, bytes))) = next {
                assert_eq!(bytes.unwrap(), *names[which]);
                all.push(which);
            } else if let Some((which, bytes)) = ready.next().await {
                assert_eq!(bytes.unwrap(), *names[which]);
                all.push(which);
            }
        }
        all.sort_unstable();
        assert_eq!(all, [0, 1, 2]);
        assert!(ready.next().await.is_none());
    }
    cluster.stop().await;
}

/// Polls a future so many times; None if it has not ended by then.
async fn polled<T>(work: impl Future<Output = T>, most: usize, polls: &mut usize) -> Option<T> {
    let mut work = std::pin::pin!(work);
    std::future::poll_fn(|cx| {
        *polls += 1;
        match work.as_mut().poll(cx) {
            Poll::Ready(done) => Poll::Ready(Some(done)),
            Poll::Pending if *polls > most => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_asks_once_and_ends_in_time() {
    let cluster = started("ready-late").await;
    let [_, _, tcp] = readers(&cluster).await;
    // Attached to both owners.
    for rank in 0..2 {
        tcp.put(&[rank as u8], b"first", &logged(rank)).await.unwrap();
    }
    tcp.membership().await.unwrap();
    let asked = tcp.message_counters().waited;
    let plan = tcp.open_for_write(b"open", 4_096, &on(1)).await.unwrap();
    let (mut one, mut two) = ([0; 8], [0; 8]);
    let mut items: [(&[u8], &mut [u8]); 2] = [(b"open", &mut one), (b"none", &mut two)];
    for read in tcp.get_many_when_ready_into(&mut items, MS(300)).await {
        let e = read.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Timeout, "{e}");
        assert!(e.message().contains("300 ms"), "{e}");
    }
    // One to open, one to wait.
    assert_eq!(tcp.message_counters().waited - asked, 2);
    plan.abort().await.unwrap();

    let e = tcp.get_when_ready(b"", MS(1)).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::InvalidArgument);
    let mut none = tcp.when_ready(&[], MS(1)).unwrap();
    assert!(none.next().await.is_none());
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thread_waits_too_and_a_removed_key_for_its_next_put() {
    let cluster = started("ready-thread").await;
    let writer = client_by(&cluster, TransportChoice::Shm).await;
    for reader in readers(&cluster).await {
        writer.put(b"k", b"before", &logged(1)).await.unwrap();
        writer.remove(b"k").await.unwrap();
        let waits = spawn_named("waits", move || {
            let reader = reader.blocking()?;
            let mut layers = reader.when_ready(&[b"k"], HANGS)?;
            let first = layers.next().unwrap();
            assert!(layers.next().is_none());
            assert_eq!(reader.get_when_ready(b"k", HANGS)?, &b"after"[..]);
            first.1
        })
        .unwrap();
        begun().await;
        writer.put(b"k", b"after", &logged(0)).await.unwrap();
        let read = tokio::task::spawn_blocking(|| waits.join().unwrap()).await.unwrap();
        assert_eq!(read.unwrap(), &b"after"[..]);
        writer.remove(b"k").await.unwrap();
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_outlives_the_actors_that_it_asked() {
    let cluster = started("ready-panic").await;
    let writer = client_by(&cluster, TransportChoice::Shm).await;
    for (n, reader) in readers(&cluster).await.iter().enumerate() {
        let key: &'static [u8] = [&b"x"[..], b"y", b"z"][n];
        let read = awaited(reader, key);
        begun().await;
        let crashed = cluster.node(0).master().unwrap().call(Crash, HANGS).await;
        assert_eq!(crashed.unwrap_err().kind(), ErrorKind::Internal);
        begun().await;
        let crashed = cluster.node(1).owner().call(Crash, HANGS).await;
        assert_eq!(crashed.unwrap_err().kind(), ErrorKind::Internal);
        writer.put(key, b"value", &logged(1)).await.unwrap();
        assert_eq!(read.await.unwrap().unwrap(), b"value");
    }
    cluster.stop().await;
}
