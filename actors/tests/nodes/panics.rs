//! Supervision: a panic injected into each actor while 64 callers are queued. The call that
//! panicked gets Internal, all others a correct answer from rebuilt state.

use crate::embedding::{config, eventually};
use nkv_actors::actor::Crash;
use nkv_actors::client::producer::Attach;
use nkv_actors::evictor::EvictTo;
use nkv_actors::owner::GetGauges;
use nkv_actors::{Client, Cluster, ErrorKind, IfExists, PutOptions};
use std::sync::Arc;
use std::time::Duration;

const LIMIT: Duration = nkv_pace::HANGS;
const CALLERS: usize = 64;

async fn fill(client: &Client) {
    for i in 0..CALLERS {
        let opts = PutOptions::default().preferred_rank((i % 2) as u32);
        client.put(format!("k{i}").as_bytes(), &value(i), &opts).await.unwrap();
    }
}

fn value(i: usize) -> Vec<u8> {
    vec![i as u8; 1000 + i]
}

/// Queues `CALLERS` calls around a crash, all before the actor can run one of them.
async fn crash_among<T: Send + 'static>(
    crash: impl Future<Output = nkv_actors::Result<()>> + Send + 'static,
    call: impl Fn(usize) -> std::pin::Pin<Box<dyn Future<Output = T> + Send>>,
) -> Vec<T> {
    let mut before: Vec<_> = (0..CALLERS / 2).map(|i| tokio::spawn(call(i))).collect();
    let crash = tokio::spawn(crash);
    before.extend((CALLERS / 2..CALLERS).map(|i| tokio::spawn(call(i))));
    let mut answers = Vec::new();
    for b in before {
        answers.push(b.await.unwrap());
    }
    let e = crash.await.unwrap().unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Internal, "the panicking call: {e}");
    answers
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panic_in_the_master_is_survived_with_every_object_found() {
    let cluster = Arc::new(Cluster::start(2, config("panic-master")).await.unwrap());
    let client = cluster.client();
    fill(&client).await;
    let open = client.open_for_write(b"half", 4096, &PutOptions::default()).await.unwrap();
    open.write_from(0, &[7; 4096]).unwrap();
    let before = client.stats().await.unwrap();
    for _ in 0..3 {
        let master = cluster.node(0).master().unwrap().clone();
        let c = client.clone();
        let answers = crash_among(async move { master.call(Crash, LIMIT).await }, |i| {
            let c = c.clone();
            Box::pin(async move { c.get(format!("k{i}").as_bytes()).await })
        })
        .await;
        for (i, a) in answers.into_iter().enumerate() {
            assert_eq!(a.unwrap(), value(i), "k{i}");
        }
    }
    let after = client.stats().await.unwrap();
    assert_eq!((before.objects, before.plans_open), (after.objects, after.plans_open));
    for (b, a) in before.ranks.iter().zip(&after.ranks) {
        assert_eq!(b.allocated_bytes, a.allocated_bytes, "the arena is rebuilt from the reports");
    }
    open.publish().await.expect("an open plan outlives the master's panic");
    assert_eq!(client.get(b"half").await.unwrap(), vec![7; 4096]);
    let once = PutOptions::default().if_exists(IfExists::Fail);
    let e = client.put(b"k1", b"other", &once).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::AlreadyExists);
    client.put(b"new", &[1; 9000], &PutOptions::default()).await.unwrap();
    let status = cluster.node(0).status();
    let master = status.actors.iter().find(|a| a.name == "master").unwrap();
    assert_eq!((master.panics, master.restarts), (3, 3));
    assert!(master.last_error.as_deref().unwrap().contains("injected"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panic_in_an_owner_is_survived_with_its_slots_as_they_were() {
    let cluster = Arc::new(Cluster::start(2, config("panic-owner")).await.unwrap());
    let client = cluster.client();
    fill(&client).await;
    let on1 = PutOptions::default().preferred_rank(1);
    let open = client.open_for_write(b"half", 4096, &on1).await.unwrap();
    open.write_from(0, &[7; 4096]).unwrap();
    let owner = cluster.node(1).owner().clone();
    // The master's message about the plan may reach the owner after the producer's first byte.
    let mut before = owner.call(GetGauges, LIMIT).await.unwrap();
    eventually("the owner knows the plan and the objects", async || {
        before = owner.call(GetGauges, LIMIT).await.unwrap();
        (before.plans_open, before.objects) == (1, (CALLERS / 2) as u64)
    })
    .await;
    let o = owner.clone();
    let answers = crash_among(async move { owner.call(Crash, LIMIT).await }, |_| {
        let o = o.clone();
        Box::pin(async move { o.call(GetGauges, LIMIT).await })
    })
    .await;
    for a in answers {
        let a = a.unwrap();
        assert_eq!((a.objects, a.live_bytes), (before.objects, before.live_bytes));
        assert_eq!((a.plans_open, a.open_bytes), (1, before.open_bytes));
    }
    open.publish().await.unwrap();
    for i in 0..CALLERS {
        assert_eq!(client.get(format!("k{i}").as_bytes()).await.unwrap(), value(i));
        client.remove(format!("k{i}").as_bytes()).await.unwrap();
    }
    client.remove(b"half").await.unwrap();
    eventually("space comes back after the owner's panic", async || {
        o.call(GetGauges, LIMIT).await.unwrap().heap_used == 0
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panic_in_an_evictor_is_survived_and_it_still_finds_victims() {
    let cluster = Arc::new(Cluster::start(2, config("panic-evictor")).await.unwrap());
    let client = cluster.client();
    fill(&client).await;
    let evictor = cluster.node(1).evictor().clone();
    let e = evictor.clone();
    let answers = crash_among(async move { evictor.call(Crash, LIMIT).await }, |_| {
        let e = e.clone();
        Box::pin(async move { e.call(EvictTo(u64::MAX), LIMIT).await })
    })
    .await;
    assert!(answers.into_iter().all(|a| a.is_ok()));
    // The last commits may still be on their way to the owner.
    objects(&cluster, (CALLERS / 2) as u64).await;
    e.call(EvictTo(0), LIMIT).await.unwrap();
    objects(&cluster, 0).await;
}

async fn objects(cluster: &Cluster, want: u64) {
    let there = || cluster.node(1).status().owner.objects;
    eventually(&format!("{want} objects"), async || there() == want).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panic_in_a_producer_is_survived_with_its_attachments() {
    let cluster = Arc::new(Cluster::start(2, config("panic-producer")).await.unwrap());
    let client = cluster.node(1).client();
    fill(&client).await;
    let producer = cluster.node(1).producer().clone();
    let info = cluster.node(0).info().clone();
    let p = producer.clone();
    let answers = crash_among(async move { producer.call(Crash, LIMIT).await }, |_| {
        let (p, info) = (p.clone(), info.clone());
        Box::pin(async move { p.call(Attach(info), LIMIT).await })
    })
    .await;
    assert!(answers.into_iter().all(|a| matches!(a, Ok(Ok(_)))));
    for i in 0..CALLERS {
        assert_eq!(client.get(format!("k{i}").as_bytes()).await.unwrap(), value(i));
    }
}
