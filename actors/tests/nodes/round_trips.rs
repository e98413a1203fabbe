//! Round trips of a handle that reaches its owners by tcp, counted as the requests that their
//! agents served.

use crate::embedding::log::{LOG, at_rest, gauges, logged, with_log};
use crate::embedding::{bytes, client_by, eventually};
use nkv_actors::message::Existence;
use nkv_actors::{Client, Cluster, PutOptions, TransportChoice};

const RANKS: u32 = 2;

/// Requests that the agents of all ranks served.
fn requests(cluster: &Cluster) -> u64 {
    cluster.nodes().iter().map(|node| node.status().agent.requests).sum()
}

/// A handle that is attached to every owner.
async fn attached(cluster: &Cluster) -> Client {
    let client = client_by(cluster, TransportChoice::Tcp).await;
    for rank in 0..RANKS {
        let key = format!("first of {rank}");
        client.put(key.as_bytes(), b"put", &logged(rank)).await.unwrap();
    }
    client
}

fn by_log() -> PutOptions {
    PutOptions::default().device_alloc(true)
}

/// Waits until a key can be found by the index.
async fn is_served(cluster: &Cluster, keys: &[&[u8]]) {
    let near = client_by(cluster, TransportChoice::Shm).await;
    eventually("they are served", async || {
        near.exists(keys).await.unwrap().iter().all(|e| *e == Existence::Ready)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_first_get_is_one_request_and_so_are_many_of_one_owner() {
    let cluster = Cluster::start(RANKS, with_log("trips-get")).await.unwrap();
    let (writer, reader) = (attached(&cluster).await, attached(&cluster).await);
    let keys: Vec<_> = (0..40u32).map(|i| format!("k{i}").into_bytes()).collect();
    let values: Vec<_> = (0..40).map(|i| bytes(3_000 + i * 100, i as u8)).collect();
    let items: Vec<(&[u8], &[u8])> =
        keys.iter().zip(&values).map(|(k, v)| (k.as_slice(), v.as_slice())).collect();
    let before = requests(&cluster);
    let c = writer.write_counters();
    writer.put_many(&items, &by_log()).await.into_iter().for_each(Result::unwrap);
    assert_eq!(writer.write_counters().by_log - c.by_log, 40);
    assert_eq!(requests(&cluster) - before, u64::from(RANKS));
    let before = requests(&cluster);
    writer.put(b"alone", &bytes(5_000, 1), &by_log()).await.unwrap();
    assert_eq!(requests(&cluster) - before, 1);
    let names: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
    is_served(&cluster, &names).await;

    let before = requests(&cluster);
    assert_eq!(reader.get(&keys[0]).await.unwrap(), values[0]);
    assert_eq!(requests(&cluster) - before, 1);
    let before = requests(&cluster);
    assert_eq!(reader.exists(&names[1..2]).await.unwrap(), [Existence::Ready]);
    assert_eq!(requests(&cluster) - before, 1);
    let before = requests(&cluster);
    assert_eq!(reader.match_prefix(&names).await.unwrap().len(), 40);
    assert_eq!(requests(&cluster) - before, u64::from(RANKS));

    // A handle that has seen none of the locations.
    let reader = attached(&cluster).await;
    let mut rooms: Vec<_> = values.iter().map(|_| vec![0; 16 << 10]).collect();
    let mut wanted: Vec<(&[u8], &mut [u8])> =
        names.iter().zip(&mut rooms).map(|(name, room)| (*name, room.as_mut_slice())).collect();
    let before = requests(&cluster);
    let read = reader.get_many_into(&mut wanted).await;
    assert_eq!(requests(&cluster) - before, u64::from(RANKS));
    for ((n, room), value) in read.into_iter().zip(&rooms).zip(&values) {
        assert_eq!(&room[..n.unwrap()], value);
    }
    let r = reader.read_counters();
    assert_eq!((r.accepted, r.by_index, r.by_master), (40, 40, 0), "{r:?}");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_larger_than_guessed_absent_or_removed_is_answered_as_by_any_transport() {
    let cluster = Cluster::start(RANKS, with_log("trips-other")).await.unwrap();
    let (writer, reader) = (attached(&cluster).await, attached(&cluster).await);
    let large = bytes(300_000, 7);
    writer.put(b"large", &large, &by_log()).await.unwrap();
    is_served(&cluster, &[b"large"]).await;
    assert_eq!(reader.get(b"large").await.unwrap(), large);
    let mut small = [0; 100];
    let e = reader.get_into(b"large", &mut small).await.unwrap_err();
    assert!(e.to_string().contains("300000 bytes"), "{e}");
    assert_eq!(reader.get(b"none").await.unwrap_err().kind(), nkv_actors::ErrorKind::NotFound);
    writer.remove(b"large").await.unwrap();
    let e = reader.get(b"large").await.unwrap_err();
    assert_eq!(e.kind(), nkv_actors::ErrorKind::NotFound, "{e}");
    writer.put(b"large", &bytes(10, 1), &by_log()).await.unwrap();
    assert_eq!(reader.get(b"large").await.unwrap(), bytes(10, 1));
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i13_batches_go_round_the_log_and_every_claim_is_settled() {
    let cluster = Cluster::start(RANKS, with_log("trips-laps")).await.unwrap();
    let client = attached(&cluster).await;
    let first = client.write_counters();
    // Six times round both logs, in sizes that do not divide them.
    let (mut put, mut number) = (0u64, 0usize);
    let mut last = Vec::new();
    while put < 12 * LOG {
        last.clear();
        for _ in 0..30 {
            number += 1;
            last.push((format!("w{number}").into_bytes(), bytes(9_000 + number * 64 % 9_000, 3)));
        }
        let items: Vec<(&[u8], &[u8])> =
            last.iter().map(|(k, v)| (k.as_slice(), v.as_slice())).collect();
        put += items.iter().map(|(_, v)| v.len() as u64).sum::<u64>();
        client.put_many(&items, &by_log()).await.into_iter().for_each(Result::unwrap);
    }
    let w = client.write_counters();
    assert_eq!((w.by_log - first.by_log) + (w.by_plan - first.by_plan), number as u64, "{w:?}");
    assert!(w.by_log > w.by_plan, "{w:?}");
    for rank in 0..RANKS as usize {
        at_rest(&cluster, rank).await;
        let g = gauges(&cluster, rank);
        assert!(g.log_skipped_bytes > 0 && g.log_voided_bytes == 0, "{g:?}");
    }
    let (key, value) = last.last().unwrap();
    assert_eq!(&client.get(key).await.unwrap(), value);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn i13_producers_that_crowd_a_log_by_tcp_wait_in_line_and_leave_no_hole() {
    let cluster = Cluster::start(RANKS, with_log("trips-crowd")).await.unwrap();
    let mut producers = Vec::new();
    for producer in 0..4u8 {
        let client = attached(&cluster).await;
        producers.push(tokio::spawn(async move {
            let options = logged(0);
            let mut last = Vec::new();
            for round in 0..40usize {
                last.clear();
                for i in 0..20 {
                    let key = format!("{producer}/{round}/{i}").into_bytes();
                    last.push((key, bytes(20_000 + (round * 20 + i) * 991 % 60_000, producer)));
                }
                let (alone, many) = last.split_at(4);
                let many: Vec<(&[u8], &[u8])> =
                    many.iter().map(|(k, v)| (k.as_slice(), v.as_slice())).collect();
                client.put_many(&many, &options).await.into_iter().for_each(Result::unwrap);
                for (key, value) in alone {
                    client.put(key, value, &options).await.unwrap();
                }
            }
            for (key, value) in &last {
                // A later put of another producer may have taken its place.
                match client.get(key).await {
                    Ok(read) => assert_eq!(&read, value),
                    Err(e) => assert_eq!(e.kind(), nkv_actors::ErrorKind::NotFound, "{e}"),
                }
            }
            client.write_counters()
        }));
    }
    let mut by_log = 0;
    for producer in producers {
        by_log += producer.await.unwrap().by_log;
    }
    assert!(by_log > 1_000, "{by_log} of 3200 puts by the log");
    at_rest(&cluster, 0).await;
    let g = gauges(&cluster, 0);
    assert!(g.log_skipped_bytes > 0 && g.log_voided_bytes == 0, "{g:?}");
    cluster.stop().await;
}
