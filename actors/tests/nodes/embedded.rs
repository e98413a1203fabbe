//! An embedded cluster: all calls through real actors, in one process.

use crate::embedding::{bytes, eventually, on, short_lived, used_is_live};
use nkv_actors::message::Existence;
use nkv_actors::{Client, Cluster, ErrorKind, IfExists, NodeConfig, PutOptions};
use std::time::Duration;

async fn round_trip(client: &Client, key: &[u8], value: &[u8], opts: &PutOptions) {
    client.put(key, value, opts).await.unwrap();
    assert_eq!(client.get(key).await.unwrap(), value);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_put_is_got_from_every_rank() {
    let cluster = Cluster::start(3, short_lived("roundtrip")).await.unwrap();
    let sizes = [0, 1, 4095, 4096, 4097, 70_000, 300_000, 1 << 20, 3 << 20];
    for (i, n) in sizes.into_iter().enumerate() {
        let key = format!("key-{n}");
        let value = bytes(n, i as u8);
        let owner = (i % 3) as u32;
        round_trip(&cluster.node(owner).client(), key.as_bytes(), &value, &on((owner + 1) % 3))
            .await;
        for node in cluster.nodes() {
            let client = node.client();
            assert_eq!(client.get(key.as_bytes()).await.unwrap(), value);
            let mut small = vec![0; n.saturating_sub(1)];
            if n > 0 {
                let e = client.get_into(key.as_bytes(), &mut small).await.unwrap_err();
                assert_eq!(e.kind(), ErrorKind::InvalidArgument);
            }
        }
    }
    used_is_live(&cluster).await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_are_anything_from_1_to_1024_bytes_and_an_object_may_fill_the_heap() {
    let cluster = Cluster::start(1, short_lived("limits")).await.unwrap();
    let client = cluster.client();
    let none = PutOptions::default();
    for key in [vec![0u8], vec![0xff; 1024], b"a/b\nc".to_vec()] {
        round_trip(&client, &key, b"v", &none).await;
        client.remove(&key).await.unwrap();
    }
    for key in [vec![], vec![1; 1025]] {
        let e = client.put(&key, b"v", &none).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::InvalidArgument);
        assert_eq!(client.get(&key).await.unwrap_err().kind(), ErrorKind::InvalidArgument);
    }
    used_is_live(&cluster).await;
    let whole = bytes(8 << 20, 3);
    round_trip(&client, b"whole", &whole, &none).await;
    let e = client.put(b"more", &bytes((8 << 20) + 1, 0), &none).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::InvalidArgument, "{e}");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_first_batch_of_any_size_needs_one_way_to_each_owner() {
    let cluster = Cluster::start(2, short_lived("first-batch")).await.unwrap();
    // The handle of a rank other than the master's, which has attached to no owner yet.
    let client = cluster.node(1).client();
    let keys: Vec<String> = (0..1_000).map(|i| format!("k{i}")).collect();
    let items: Vec<_> = keys.iter().map(|k| (k.as_bytes(), &b"v"[..])).collect();
    for r in client.put_many(&items, &PutOptions::default()).await {
        r.unwrap();
    }
    used_is_live(&cluster).await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i6_an_object_is_immutable_and_what_was_removed_never_comes_back() {
    let cluster = Cluster::start(2, short_lived("remove")).await.unwrap();
    let (a, b) = (cluster.node(0).client(), cluster.node(1).client());
    a.put(b"k", b"one", &on(1)).await.unwrap();
    let e = b.put(b"k", b"two", &on(0).if_exists(IfExists::Fail)).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::AlreadyExists);
    b.put(b"k", b"two", &on(0)).await.expect("the object that is there stays");
    assert_eq!(b.get(b"k").await.unwrap(), &b"one"[..]);
    let meta = b.get_location(b"k").await.unwrap().into_memory().unwrap();
    a.remove(b"k").await.unwrap();
    assert_eq!(b.get(b"k").await.unwrap_err().kind(), ErrorKind::NotFound);
    let mut buf = [0; 8];
    let stale = b.read_into(&meta, &mut buf).await.unwrap_err();
    assert_eq!(stale.kind(), ErrorKind::NotFound, "an old location is no way in");
    assert_eq!(a.remove(b"k").await.unwrap_err().kind(), ErrorKind::NotFound);
    b.put(b"k", b"three", &on(1)).await.unwrap();
    assert_eq!(a.get(b"k").await.unwrap(), &b"three"[..]);
    used_is_live(&cluster).await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plan_is_written_in_pages_of_any_order_and_found_only_once_committed() {
    let cluster = Cluster::start(2, short_lived("plans")).await.unwrap();
    let (a, b) = (cluster.node(0).client(), cluster.node(1).client());
    let value = bytes(1_000_000, 9);
    let opts = PutOptions::default().preferred_rank(1).page_bytes(65_536);
    let plan = a.open_for_write(b"k", value.len() as u64, &opts).await.unwrap();
    assert_eq!((plan.n_pages(), plan.page_bytes()), (16, 65_536));
    assert_eq!(b.get(b"k").await.unwrap_err().kind(), ErrorKind::NotReady);
    assert_eq!(b.exists(&[b"k"]).await.unwrap(), [Existence::Writing]);
    let e = b.put(b"k", b"x", &opts).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::NotReady);
    assert!(plan.write_page(16, &[]).is_err() && plan.write_page(0, &[0; 10]).is_err());
    let pages: Vec<_> = value.chunks(65_536).collect();
    for i in (1..16).rev() {
        plan.write_page(i as u32, pages[i]).unwrap();
    }
    let e = a.commit(b"k").await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::InvalidArgument, "a page is missing: {e}");
    plan.write_page(0, pages[0]).unwrap();
    a.commit(b"k").await.unwrap();
    assert_eq!(b.get(b"k").await.unwrap(), value);
    let late = plan.write_page(0, pages[1]).unwrap_err();
    assert_eq!(late.kind(), ErrorKind::Reclaimed, "[I6] published bytes do not change: {late}");
    drop(plan);
    assert_eq!(b.get(b"k").await.unwrap(), value, "a committed plan's drop aborts nothing");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plan_that_lacks_bytes_comes_back_in_the_error_and_can_be_published_later() {
    let cluster = Cluster::start(2, short_lived("handed-back")).await.unwrap();
    let client = cluster.node(0).client();
    let value = bytes(8192, 3);
    let plan = client.open_for_write(b"k", 8192, &on(1)).await.unwrap();
    plan.write_from(0, &value[..4096]).unwrap();
    let e = plan.publish().await.unwrap_err();
    assert_eq!(e.error.kind(), ErrorKind::InvalidArgument, "{e}");
    assert_eq!(client.exists(&[b"k"]).await.unwrap(), [Existence::Writing]);
    let plan = e.plan.expect("it is still open");
    plan.write_from(4096, &value[4096..]).unwrap();
    plan.publish().await.unwrap();
    assert_eq!(client.get(b"k").await.unwrap(), value);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i12_an_aborted_or_dropped_plan_leaves_nothing_and_its_space_comes_back() {
    let cluster = Cluster::start(2, short_lived("abort")).await.unwrap();
    let a = cluster.node(0).client();
    for round in 0..3 {
        let plan = a.open_for_write(b"k", 1 << 20, &on(1)).await.unwrap();
        plan.write_from(0, &bytes(4096, round)).unwrap();
        if round == 0 {
            plan.abort().await.unwrap();
        } else {
            drop(plan);
        }
        eventually("the key is free again", async || {
            a.exists(&[b"k"]).await.unwrap() == [Existence::Absent]
        })
        .await;
    }
    used_is_live(&cluster).await;
    assert_eq!(cluster.nodes().last().unwrap().status().owner.live_bytes, 0);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i12_a_plan_whose_key_has_a_later_one_is_given_up_when_it_is_dropped() {
    let cluster = Cluster::start(2, short_lived("later")).await.unwrap();
    let a = cluster.node(0).client();
    let first = a.open_for_write(b"k", 4096, &on(1)).await.unwrap();
    // It ends the plan, and the same handle opens the key once more.
    a.remove(b"k").await.unwrap();
    let second = a.open_for_write(b"k", 4096, &on(1)).await.unwrap();
    drop(first);
    assert_eq!(a.open_plans(), 1, "the first is over, and the second is not");
    drop(second);
    assert_eq!(a.open_plans(), 0);
    used_is_live(&cluster).await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i10_an_expired_plan_is_adopted_if_ready_and_reclaimed_if_not() {
    let base = NodeConfig { write_ttl_ms: 200, ..short_lived("expire") };
    let cluster = Cluster::start(2, base).await.unwrap();
    let a = cluster.node(0).client();
    let unfinished = a.open_for_write(b"unfinished", 8192, &on(1)).await.unwrap();
    unfinished.write_from(0, &[1; 4096]).unwrap();
    let owner = cluster.node(1).owner();
    let gauges = async || owner.call(nkv_actors::owner::GetGauges, nkv_pace::HANGS).await.unwrap();
    eventually("the plan is reclaimed", async || gauges().await.reclaimed == 1).await;
    let e = unfinished.write_from(4096, &[1; 4096]).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Reclaimed);
    let e = unfinished.publish().await.unwrap_err();
    assert_eq!(e.error.kind(), ErrorKind::Reclaimed, "[I11] {e}");
    // READY by hand, as a kernel would, and never committed.
    let ready = a.open_for_write(b"ready", 4096, &on(1)).await.unwrap();
    ready.write_from(0, &bytes(4096, 1)).unwrap();
    let d = ready.desc().unwrap().clone();
    let name = cluster.node(1).info().memory.name().unwrap().to_string();
    let segment = nkv_store::shm::attach(&name, false).unwrap();
    use nkv_store::{Memory, object};
    let word = d.meta.header_off + nkv_store::layout::PUBLISH_OFF;
    let epoch = d.meta.at.epoch;
    let found = segment.compare_swap(word, object::writing(epoch), object::ready(epoch)).unwrap();
    assert_eq!(found, object::writing(epoch));
    eventually("the plan is adopted", async || gauges().await.adopted == 1).await;
    eventually("and the master hears so", async || a.get(b"ready").await.is_ok()).await;
    assert_eq!(a.get(b"ready").await.unwrap(), bytes(4096, 1));
    drop(ready);
    used_is_live(&cluster).await;
    assert_eq!(a.get(b"ready").await.unwrap(), bytes(4096, 1));
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_heap_evicts_the_coldest_and_keeps_what_was_read() {
    let cluster = Cluster::start(1, short_lived("evict")).await.unwrap();
    let client = cluster.client();
    let none = PutOptions::default();
    let key = |i: usize| format!("k{i}").into_bytes();
    for i in 0..400 {
        client.put(&key(i), &bytes(64 << 10, i as u8), &none).await.unwrap();
        let mut buf = vec![0; 64 << 10];
        client.get_into(&key(0), &mut buf).await.unwrap();
        assert_eq!(buf, bytes(64 << 10, 0), "the hot key stays");
        client.flush().await.unwrap();
    }
    let o = cluster.node(0).status().owner;
    assert!(o.evictions > 250, "{o:?}");
    assert_eq!(client.get(&key(1)).await.unwrap_err().kind(), ErrorKind::NotFound);
    client.evict_until_below(0.1).await.unwrap();
    eventually("the heap is down to a tenth", async || {
        cluster.node(0).status().owner.heap_used <= (8 << 20) / 10
    })
    .await;
    used_is_live(&cluster).await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batches_and_prefixes() {
    let cluster = Cluster::start(3, short_lived("batch")).await.unwrap();
    let client = cluster.client();
    let keys: Vec<Vec<u8>> = (0..50).map(|i| format!("b{i}").into_bytes()).collect();
    let values: Vec<Vec<u8>> = (0..50).map(|i| bytes(1000 + i, i as u8)).collect();
    let items: Vec<(&[u8], &[u8])> =
        keys.iter().zip(&values).take(40).map(|(k, v)| (&k[..], &v[..])).collect();
    for r in client.put_many(&items, &PutOptions::default()).await {
        r.unwrap();
    }
    let all: Vec<&[u8]> = keys.iter().map(|k| &k[..]).collect();
    let run = client.match_prefix(&all).await.unwrap();
    assert_eq!(run.len(), 40);
    let mut bufs = vec![vec![0u8; 2000]; 40];
    let run = run.iter().filter_map(|at| at.in_memory());
    let mut reads: Vec<_> = run.zip(&mut bufs).map(|(m, b)| (m, &mut b[..])).collect();
    for (i, r) in client.read_many_into(&mut reads).await.into_iter().enumerate() {
        assert_eq!(r.unwrap(), 1000 + i);
    }
    for (b, v) in bufs.iter().zip(&values) {
        assert_eq!(&b[..v.len()], &v[..]);
    }
    let mut bufs = vec![vec![0u8; 2000]; 50];
    let mut gets: Vec<_> = all.iter().copied().zip(bufs.iter_mut().map(|b| &mut b[..])).collect();
    let got = client.get_many_into(&mut gets).await;
    assert!(got[..40].iter().all(Result::is_ok));
    assert!(got[40..].iter().all(|r| r.as_ref().unwrap_err().kind() == ErrorKind::NotFound));
    client.flush().await.unwrap();
    eventually("readers' reports reached the owners", async || {
        cluster.nodes().iter().map(|n| n.status().owner.gets_served).sum::<u64>() == 80
    })
    .await;
    let removed = client.remove_many(&all).await;
    assert_eq!(removed.iter().filter(|r| r.is_ok()).count(), 40);
    assert!(client.match_prefix(&all).await.unwrap().is_empty());
    used_is_live(&cluster).await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_verbs_over_tcp_from_a_client_that_owns_nothing() {
    use nkv_actors::{ClientConfig, TransportChoice};
    let base = short_lived("overtcp");
    let cluster = Cluster::start(2, base.clone()).await.unwrap();
    let config =
        ClientConfig { job: base.job, transport: TransportChoice::Tcp, ..ClientConfig::default() };
    // Through rank 1, which only returns the address of the master.
    let client = Client::connect(&cluster.node(1).info().control, config).await.unwrap();
    for (i, n) in [0, 1, 4096, 70_000, 3 << 20].into_iter().enumerate() {
        let key = format!("k{n}");
        let value = bytes(n, i as u8);
        round_trip(&client, key.as_bytes(), &value, &on((i % 2) as u32)).await;
        assert_eq!(cluster.client().get(key.as_bytes()).await.unwrap(), value);
    }
    let plan = client.open_for_write(b"pages", 600_000, &on(1)).await.unwrap();
    assert_eq!(plan.transport(), Some(nkv_transport::Kind::Tcp));
    let value = bytes(600_000, 77);
    for (i, page) in value.chunks(256 << 10).enumerate().rev() {
        plan.write_page(i as u32, page).unwrap();
    }
    plan.publish().await.unwrap();
    assert_eq!(client.get(b"pages").await.unwrap(), value);
    client.remove(b"pages").await.unwrap();
    assert_eq!(client.get(b"pages").await.unwrap_err().kind(), ErrorKind::NotFound);
    client.close().await;
    used_is_live(&cluster).await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i10_a_late_tcp_writer_changes_nothing_after_its_plan_was_ended() {
    use nkv_actors::{ClientConfig, TransportChoice};
    let base = NodeConfig { write_ttl_ms: 150, ..short_lived("latetcp") };
    let cluster = Cluster::start(1, base.clone()).await.unwrap();
    let config =
        ClientConfig { job: base.job, transport: TransportChoice::Tcp, ..ClientConfig::default() };
    let client = Client::connect(&cluster.node(0).info().control, config).await.unwrap();
    let plan = client.open_for_write(b"late", 4096, &on(0)).await.unwrap();
    plan.write_from(0, &[1; 100]).unwrap();
    let d = plan.desc().unwrap().clone();
    eventually("the plan is reclaimed, its slot armed again and the master told", async || {
        let o = cluster.node(0).status().owner;
        let row = cluster.client().stats().await.unwrap().ranks.remove(0);
        o.reclaimed == 1 && o.heap_used == 0 && row.allocated_bytes == 0
    })
    .await;
    // The extent now belongs to another plan; the old token must not reach it.
    let value = bytes(4096, 5);
    cluster.client().put(b"next", &value, &on(0)).await.unwrap();
    let meta = cluster.client().get_location(b"next").await.unwrap().into_memory().unwrap();
    assert_eq!(
        (meta.at.slot, meta.object.payload_off()),
        (d.meta.at.slot, d.meta.object.payload_off())
    );
    assert!(meta.at.epoch > d.meta.at.epoch, "[I3]");
    let data = cluster.node(0).info().data.clone().unwrap();
    let (incarnation, job) = (d.meta.at.incarnation, cluster.node(0).config().job.clone());
    let credentials = Some(cluster.node(0).credentials().clone());
    let refused = tokio::task::spawn_blocking(move || {
        use nkv_transport::{Op, TcpOptions, TcpVerbs, Verbs};
        let opts = TcpOptions { credentials, ..TcpOptions::default() };
        let late = TcpVerbs::connect(&data, incarnation, &job, opts).unwrap();
        late.post(
            d.token,
            &mut [Op::Write { offset: d.meta.object.payload_off(), src: &[9; 4096] }],
        )
    })
    .await
    .unwrap();
    assert!(refused.is_err(), "a fenced token was accepted");
    assert_eq!(cluster.client().get(b"next").await.unwrap(), value);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i6_one_key_twice_in_a_batch_is_written_once_and_overwrites_nobody() {
    let cluster = Cluster::start(1, short_lived("twice")).await.unwrap();
    let client = cluster.client();
    let (small, large, other) = (bytes(4096, 1), bytes(32 << 10, 2), bytes(32 << 10, 3));
    let items: [(&[u8], &[u8]); 3] = [(b"a", &small), (b"b", &other), (b"a", &large)];
    let kept = client.put_many(&items, &PutOptions::default()).await;
    assert!(kept.iter().all(Result::is_ok), "what is there stays: {kept:?}");
    assert_eq!(client.get(b"a").await.unwrap(), small);
    client.remove(b"a").await.unwrap();
    client.remove(b"b").await.unwrap();
    let once = PutOptions::default().if_exists(IfExists::Fail);
    let results = client.put_many(&items, &once).await;
    assert!(results[0].is_ok() && results[1].is_ok(), "{results:?}");
    let twice = results[2].as_ref().unwrap_err();
    assert_eq!(twice.kind(), ErrorKind::InvalidArgument);
    assert!(twice.message().contains("stands twice in this batch, at 0 and 2 "), "{twice}");
    assert_eq!(client.get(b"a").await.unwrap(), small);
    assert_eq!(client.get(b"b").await.unwrap(), other);
    used_is_live(&cluster).await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i12_a_cancelled_put_gives_its_plan_back() {
    let cluster = Cluster::start(2, short_lived("cancel")).await.unwrap();
    let client = cluster.node(1).client();
    let value = bytes(64 << 10, 1);
    for i in 0..200u32 {
        let key = format!("k{i}");
        let opts = PutOptions::default();
        let put = client.put(key.as_bytes(), &value, &opts);
        let _ = tokio::time::timeout(Duration::from_micros(u64::from(i) * 3), put).await;
    }
    eventually("no plan is left at client, owner or master", async || {
        let stats = cluster.client().stats().await.unwrap();
        let owners: u64 = cluster.nodes().iter().map(|n| n.status().owner.plans_open).sum();
        client.open_plans() == 0 && stats.plans_open == 0 && owners == 0
    })
    .await;
    used_is_live(&cluster).await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i6_a_key_that_is_being_written_can_be_removed_and_its_plan_is_over() {
    let cluster = Cluster::start(2, short_lived("rmwriting")).await.unwrap();
    let client = cluster.client();
    for round in 0..3 {
        let plan = client.open_for_write(b"k", 8192, &on(1)).await.unwrap();
        plan.write_from(0, &bytes(8192, round)).unwrap();
        cluster.node(1).client().remove(b"k").await.unwrap();
        let e = plan.publish().await.unwrap_err();
        assert_eq!(e.error.kind(), ErrorKind::Reclaimed, "{e}");
        assert!(e.plan.is_none(), "it has ended");
        assert_eq!(client.exists(&[b"k"]).await.unwrap(), [Existence::Absent]);
    }
    eventually("no plan is left at the master", async || {
        client.stats().await.unwrap().plans_open == 0
    })
    .await;
    used_is_live(&cluster).await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closed_and_dropped_clients_leave_no_attachment() {
    use nkv_actors::ClientConfig;
    let base = short_lived("attachments");
    let cluster = Cluster::start(1, base.clone()).await.unwrap();
    for i in 0..6 {
        let config = ClientConfig { job: base.job.clone(), ..ClientConfig::default() };
        let client = Client::connect(&cluster.node(0).info().control, config).await.unwrap();
        client.put(format!("k{i}").as_bytes(), b"v", &PutOptions::default()).await.unwrap();
        if i % 2 == 0 {
            client.close().await;
        }
    }
    eventually("nobody is attached", async || cluster.node(0).status().attachments == 0).await;
    cluster.stop().await;
}
