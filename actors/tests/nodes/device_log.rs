//! Puts through the device log: they send no message, every handle finds the objects, they are
//! listed once their key is reported, a removal is final, and every claim is accounted for.

use crate::embedding::log::{LOG, at_rest, attached, gauges, logged, with_log};
use crate::embedding::{bytes, client_by, config, eventually, used_is_live};
use nkv_actors::actor::{Crash, Freeze};
use nkv_actors::message::Existence;
use nkv_actors::{
    Client, ClientConfig, Cluster, ErrorKind, IfExists, NodeConfig, PutOptions, TransportChoice,
};
use std::time::Duration;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_put_into_a_log_is_got_from_everywhere() {
    let cluster = Cluster::start(2, with_log("log-roundtrip")).await.unwrap();
    let shm = client_by(&cluster, TransportChoice::Shm).await;
    let far = client_by(&cluster, TransportChoice::Tcp).await;
    let by_tcp = client_by(&cluster, TransportChoice::Tcp).await;
    let writers = [cluster.client(), shm, by_tcp];
    for (w, writer) in writers.iter().enumerate() {
        for (i, n) in [0usize, 1, 4095, 4096, 4097, 70_000, 1 << 20].into_iter().enumerate() {
            let (key, seed) = (format!("k{w}-{n}"), (w * 10 + i) as u8);
            writer.put(key.as_bytes(), &bytes(n, seed), &logged(1)).await.unwrap();
            for reader in [&writers[0], &writers[1], &far] {
                assert_eq!(reader.get(key.as_bytes()).await.unwrap(), bytes(n, seed), "{key}");
            }
            let meta = far.get_location(key.as_bytes()).await.unwrap();
            assert_eq!((meta.rank(), meta.bytes_total()), (1, n as u64));
        }
        let c = writer.write_counters();
        assert_eq!((c.by_log, c.by_plan), (7, 0), "{c:?}");
    }
    at_rest(&cluster, 1).await;
    let g = gauges(&cluster, 1);
    // What was read and had to make room was copied, too.
    assert_eq!(g.log_accepted - g.log_copies, 21, "{g:?}");
    cluster.stop().await;
}

/// If the key were reported as absent, a caller would put it again, get Ok, and read the old value.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_just_put_into_a_log_exists_whoever_asks() {
    let cluster = Cluster::start(2, with_log("log-exists")).await.unwrap();
    let there = |found| assert_eq!(found, [Existence::Ready, Existence::Absent]);
    for transport in [TransportChoice::Shm, TransportChoice::Tcp] {
        let (puts, asks) =
            (attached(&cluster, transport).await, attached(&cluster, transport).await);
        for i in 0..40u32 {
            let (key, none) = (format!("{transport:?}/{i}"), format!("{transport:?}/{i}/none"));
            puts.put(key.as_bytes(), &bytes(900, 7), &logged(i % 2)).await.unwrap();
            let keys = [key.as_bytes(), none.as_bytes()];
            there(puts.exists(&keys).await.unwrap());
            there(asks.exists(&keys).await.unwrap());
            assert_eq!(asks.match_prefix(&keys).await.unwrap().len(), 1);
        }
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_put_and_a_get_through_the_log_wait_for_nobody() {
    let cluster = Cluster::start(1, with_log("log-alone")).await.unwrap();
    let client = attached(&cluster, TransportChoice::Shm).await;
    cluster.node(0).master().unwrap().try_send(Freeze(Duration::from_millis(600))).unwrap();
    for i in 0..100u8 {
        client.put(&[b'k', i], &bytes(3_000, i), &logged(0)).await.unwrap();
    }
    eventually("all are accepted", async || gauges(&cluster, 0).log_accepted >= 100).await;
    for i in 0..100u8 {
        assert_eq!(client.get(&[b'k', i]).await.unwrap(), bytes(3_000, i));
    }
    let (w, r) = (client.write_counters(), client.read_counters());
    assert_eq!((w.by_log, w.by_plan), (101, 0), "{w:?}");
    assert_eq!((r.by_index, r.by_master), (100, 0), "{r:?}");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i6_what_is_removed_from_a_log_never_comes_back_named_or_not() {
    let cluster = Cluster::start(2, with_log("log-remove")).await.unwrap();
    let client = client_by(&cluster, TransportChoice::Shm).await;
    for turn in 0..40u8 {
        let key = [b'r', turn];
        client.put(&key, &bytes(5_000, turn), &logged(u32::from(turn % 2))).await.unwrap();
        if turn % 4 == 0 {
            // The same key in the other log as well: neither log knows of the other's object.
            client.put(&key, &bytes(5_000, turn), &logged(u32::from(1 - turn % 2))).await.unwrap();
        }
        if turn % 3 == 0 {
            client.flush().await.unwrap();
        }
        client.remove(&key).await.unwrap();
        for _ in 0..3 {
            let e = client.get(&key).await.unwrap_err();
            assert_eq!(e.kind(), ErrorKind::NotFound, "turn {turn}: {e}");
        }
        let e = client.remove(&key).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::NotFound, "turn {turn}: {e}");
        let found = cluster.client().exists(&[&key]).await.unwrap();
        assert_eq!(found, [Existence::Absent]);
    }
    client.put(b"last", &bytes(100, 1), &logged(0)).await.unwrap();
    client.flush().await.unwrap();
    eventually("it is listed", async || client.match_prefix(&[b"last"]).await.unwrap().len() == 1)
        .await;
    assert_eq!(
        client.remove_all().await.unwrap().in_memory,
        1,
        "what is listed is counted, in a log, too"
    );
    assert_eq!(client.get(b"last").await.unwrap_err().kind(), ErrorKind::NotFound);
    for rank in 0..2 {
        at_rest(&cluster, rank).await;
        assert_eq!(gauges(&cluster, rank).log_objects, 0);
    }
    used_is_live(&cluster).await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_removal_of_everything_took_out_of_logs_is_counted_named_or_not() {
    let cluster = Cluster::start(2, with_log("log-count")).await.unwrap();
    let client = client_by(&cluster, TransportChoice::Shm).await;
    for named in [false, true] {
        for i in 0..20u8 {
            client.put(&[b'n', i], &bytes(500, i), &logged(u32::from(i % 2))).await.unwrap();
        }
        client.put(b"planned", b"x", &PutOptions::default()).await.unwrap();
        if named {
            client.flush().await.unwrap();
            let listed = async || client.list(None, None, 100).await.unwrap().len() == 21;
            eventually("all are listed", listed).await;
        }
        assert_eq!(client.remove_all().await.unwrap().in_memory, 21, "named: {named}");
        assert_eq!(client.remove_all().await.unwrap().in_memory, 0);
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_master_learned_by_asking_it_forgets_when_the_log_makes_room() {
    let cluster = Cluster::start(1, with_log("log-asked")).await.unwrap();
    let (writer, asker) =
        (attached(&cluster, TransportChoice::Shm).await, client_by(&cluster, TransportChoice::Tcp));
    let asker = asker.await;
    // A key that its producer does not report: it has too many to report at once, or dies first.
    let mut in_log = Vec::new();
    for i in 0..40u8 {
        let (key, before) = ([b'a', i], writer.write_counters().by_log);
        writer.put(&key, &bytes(3_000, i), &logged(0)).await.unwrap();
        // While the log is full for a moment a put goes to the heap, where nothing makes room.
        if writer.write_counters().by_log > before {
            in_log.push(i);
        }
        asker.get_location(&key).await.unwrap();
        // The log wraps twice before any key is reported.
        if i % 20 == 19 {
            for n in 0..16u8 {
                let (key, value) = ([b'f', i, n], bytes(512 << 10, n));
                writer.put(&key, &value, &logged(0)).await.unwrap();
            }
        }
    }
    assert!(in_log.len() > 5, "{in_log:?}");
    let mut n = 0u16;
    for i in in_log {
        let gone = async || {
            // While the log is full puts use plans: the log wraps once there is room.
            n += 1;
            let key = [b'g', i, (n >> 8) as u8, n as u8];
            writer.put(&key, &bytes(100_000, i), &logged(0)).await.unwrap();
            asker.get(&[b'a', i]).await.is_err()
        };
        eventually("it made room", gone).await;
        let free = async || asker.put(&[b'a', i], b"again", &PutOptions::default()).await.is_ok();
        eventually("its key is free", free).await;
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i15_of_two_objects_of_one_key_the_first_is_served_and_the_other_is_void() {
    let cluster = Cluster::start(1, with_log("log-twice")).await.unwrap();
    let client = attached(&cluster, TransportChoice::Shm).await;
    client.put(b"k", &bytes(1_000, 1), &logged(0)).await.unwrap();
    eventually("accepted", async || gauges(&cluster, 0).log_accepted == 2).await;
    client.put(b"k", &bytes(2_000, 2), &logged(0)).await.unwrap();
    eventually("void", async || gauges(&cluster, 0).log_duplicates == 1).await;
    assert_eq!(client.get(b"k").await.unwrap(), bytes(1_000, 1));
    // It is refused where the put must be the first.
    let once = PutOptions::default().if_exists(IfExists::Fail);
    client.put(b"new", b"x", &logged(0)).await.unwrap();
    for key in [&b"k"[..], b"new"] {
        // Also before its key string has reached the master.
        let e = client.put(key, b"x", &once).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::AlreadyExists, "{e}");
        let opened = client.open_for_write(key, 1, &once).await;
        assert_eq!(opened.err().map(|e| e.kind()), Some(ErrorKind::AlreadyExists));
    }
    at_rest(&cluster, 0).await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn objects_of_a_log_survive_a_panic_of_their_owner_and_of_the_master() {
    let cluster = Cluster::start(1, with_log("log-panic")).await.unwrap();
    let client = attached(&cluster, TransportChoice::Shm).await;
    for i in 0..60u8 {
        client.put(&[b'p', i], &bytes(2_000, i), &logged(0)).await.unwrap();
    }
    client.flush().await.unwrap();
    let listed = async || client.list(Some("^p"), None, 100).await.unwrap().len();
    eventually("listed", async || listed().await == 60).await;
    let limit = nkv_pace::HANGS;
    cluster.node(0).owner().call(Crash, limit).await.unwrap_err();
    for i in 0..60u8 {
        assert_eq!(client.get(&[b'p', i]).await.unwrap(), bytes(2_000, i));
    }
    cluster.node(0).master().unwrap().call(Crash, limit).await.unwrap_err();
    eventually("listed again", async || listed().await == 60).await;
    client.put(b"after", b"x", &logged(0)).await.unwrap();
    assert_eq!(client.get(b"after").await.unwrap(), &b"x"[..]);
    client.remove(&[b'p', 7]).await.unwrap();
    assert_eq!(client.get(&[b'p', 7]).await.unwrap_err().kind(), ErrorKind::NotFound);
    at_rest(&cluster, 0).await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_producers_claim_at_once_and_every_object_is_whole() {
    let cluster = Cluster::start(1, with_log("log-many")).await.unwrap();
    let mut tasks = Vec::new();
    for t in 0..4u8 {
        let transport = if t == 3 { TransportChoice::Tcp } else { TransportChoice::Shm };
        let client = client_by(&cluster, transport).await;
        tasks.push(tokio::spawn(async move {
            let mut got = 0;
            for i in 0..500u32 {
                let key = format!("t{t}-{i}");
                let value = bytes(1_000 + (i as usize * 37) % 9_000, t.wrapping_add(i as u8));
                client.put(key.as_bytes(), &value, &logged(0)).await.unwrap();
                let back = format!("t{t}-{}", i / 2);
                let seed = t.wrapping_add((i / 2) as u8);
                match client.get(back.as_bytes()).await {
                    Ok(v) => {
                        got += 1;
                        let n = 1_000 + ((i / 2) as usize * 37) % 9_000;
                        assert_eq!(v, bytes(n, seed), "{back}");
                    }
                    Err(e) => assert_eq!(e.kind(), ErrorKind::NotFound, "{e}"),
                }
            }
            got
        }));
    }
    for task in tasks {
        assert!(task.await.unwrap() > 0);
    }
    at_rest(&cluster, 0).await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handle_that_is_configured_so_uses_the_log_without_being_told() {
    let base = NodeConfig { device_alloc: true, ..with_log("log-config") };
    let cluster = Cluster::start(2, base.clone()).await.unwrap();
    let job = cluster.node(0).config().job.clone();
    let config_with_log = ClientConfig { job, device_alloc: true, ..ClientConfig::default() };
    let client = Client::connect(&cluster.node(0).info().control, config_with_log).await.unwrap();
    for handle in [cluster.client(), client] {
        let items: Vec<_> = (0..20u8).map(|i| ([b'c', i], bytes(500, i))).collect();
        let batch: Vec<_> = items.iter().map(|(k, v)| (&k[..], &v[..])).collect();
        for r in handle.put_many(&batch, &PutOptions::default()).await {
            r.unwrap();
        }
        assert_eq!(handle.write_counters().by_log, 20);
        let never = PutOptions::default().device_alloc(false);
        handle.put(b"planned", b"x", &never).await.unwrap();
        assert_eq!(handle.write_counters().by_plan, 1);
        handle.remove_all().await.unwrap();
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_that_cannot_be_is_refused_with_its_numbers() {
    for log_bytes in [1, 16_383, u64::MAX] {
        let e = Cluster::start(1, NodeConfig { log_bytes: Some(log_bytes), ..config("log-odd") })
            .await
            .unwrap_err();
        assert!(e.to_string().contains(&format!("not {log_bytes}")), "{e}");
    }
    let cluster = Cluster::start(1, config("no-log")).await.unwrap();
    let client = client_by(&cluster, TransportChoice::Shm).await;
    client.put(b"k", b"v", &logged(0)).await.unwrap();
    assert_eq!((client.write_counters().by_log, client.write_counters().by_plan), (0, 1));
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i6_a_key_that_lies_in_the_heap_and_in_the_log_is_gone_from_both_once_removed() {
    let cluster = Cluster::start(1, with_log("log-both")).await.unwrap();
    let client = attached(&cluster, TransportChoice::Shm).await;
    for turn in 0..20u8 {
        let key = [b'b', turn];
        // A plan is open for the key while it is put into the log: neither side knows of the other.
        let plan = client.open_for_write(&key, 4_096, &PutOptions::default()).await.unwrap();
        client.put(&key, &bytes(4_096, turn), &logged(0)).await.unwrap();
        plan.write_from(0, &bytes(4_096, turn)).unwrap();
        plan.publish().await.unwrap();
        assert_eq!(client.get(&key).await.unwrap(), bytes(4_096, turn));
        client.remove(&key).await.unwrap();
        let e = client.get(&key).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::NotFound, "turn {turn}: {e}");
        assert_eq!(client.exists(&[&key]).await.unwrap(), [Existence::Absent]);
    }
    at_rest(&cluster, 0).await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i15_what_a_plan_brings_second_is_retired_and_the_first_stays() {
    let cluster = Cluster::start(1, with_log("log-second")).await.unwrap();
    let client = attached(&cluster, TransportChoice::Shm).await;
    for turn in 0..10u8 {
        let key = [b's', turn];
        let plan = client.open_for_write(&key, 4_096, &PutOptions::default()).await.unwrap();
        client.put(&key, &bytes(4_096, turn), &logged(0)).await.unwrap();
        eventually("the log serves it", async || client.get(&key).await.is_ok()).await;
        plan.write_from(0, &bytes(4_096, 100 + turn)).unwrap();
        plan.publish().await.unwrap();
        eventually("the second is gone", async || gauges(&cluster, 0).objects == 0).await;
        assert_eq!(client.get(&key).await.unwrap(), bytes(4_096, turn));
    }
    client.remove_all().await.unwrap();
    at_rest(&cluster, 0).await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_was_asked_about_before_it_had_a_name_is_forgotten_when_its_object_is_evicted() {
    let cluster = Cluster::start(1, with_log("log-asked-again")).await.unwrap();
    let fresh = client_by(&cluster, TransportChoice::Tcp).await;
    for turn in 0..3u8 {
        let key = [b'a', turn];
        // The key is never reported: its handle has only a few keys to report, and the log wraps
        // before they are due.
        let client = attached(&cluster, TransportChoice::Shm).await;
        client.put(&key, &bytes(9_000, turn), &logged(0)).await.unwrap();
        assert_eq!(
            fresh.get_location(&key).await.unwrap().into_memory().unwrap().object.bytes_total,
            9_000
        );
        let mut n = 0u16;
        eventually("it made room", async || {
            n += 1;
            let other = [b'x', turn, (n >> 8) as u8, n as u8];
            client.put(&other, &bytes(100_000, turn), &logged(0)).await.unwrap();
            fresh.exists(&[&key]).await.unwrap() == [Existence::Absent]
        })
        .await;
        fresh.put(&key, &bytes(50, turn), &PutOptions::default()).await.unwrap();
        assert_eq!(fresh.get(&key).await.unwrap(), bytes(50, turn), "by a plan");
        fresh.remove(&key).await.unwrap();
        client.put(&key, &bytes(60, turn), &logged(0)).await.unwrap();
        client.flush().await.unwrap();
        eventually("listed", async || client.list(Some("^a"), None, 10).await.unwrap().len() == 1)
            .await;
        assert_eq!(fresh.get(&key).await.unwrap(), bytes(60, turn), "through the log again");
        fresh.remove(&key).await.unwrap();
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i9_views_of_logged_objects_keep_their_bytes_over_many_laps_and_a_panic_of_the_owner() {
    let cluster = Cluster::start(1, with_log("log-view")).await.unwrap();
    let client = attached(&cluster, TransportChoice::Shm).await;
    let put = async |key: &[u8], n: usize, seed: u8| {
        client.put(key, &bytes(n, seed), &logged(0)).await.unwrap();
    };
    let mut views = Vec::new();
    let mut next = 0u32;
    for round in 0..6u8 {
        let key = [b'v', round];
        put(&key, 70_000, round).await;
        eventually("it is served", async || match client.get_view(&key).await {
            Ok(view) => {
                views.push((round, view));
                true
            }
            Err(_) => false,
        })
        .await;
        if round == 3 {
            cluster.node(0).owner().try_send(Crash).unwrap();
        }
        // A lap and a half.
        let more = client.write_counters().by_log + LOG / 100_000 * 3 / 2;
        eventually("the log goes on", async || {
            next += 1;
            put(&next.to_be_bytes(), 100_000, next as u8).await;
            client.write_counters().by_log >= more
        })
        .await;
        for (seed, view) in &views {
            assert_eq!(&view[..], bytes(70_000, *seed), "looked at in place, it never changed");
        }
        if round % 2 == 1 {
            views.remove(0);
        }
    }
    drop(views);
    at_rest(&cluster, 0).await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i6_what_is_read_outlives_the_tail_and_what_was_removed_does_not() {
    let cluster = Cluster::start(1, with_log("log-copied")).await.unwrap();
    let client = attached(&cluster, TransportChoice::Shm).await;
    let filler = bytes(50_000, 9);
    let mut next = 0u32;
    for round in 0..4u8 {
        let (hot, gone) = ([b'h', round], [b'g', round]);
        client.put(&hot, &bytes(60_000, round), &logged(0)).await.unwrap();
        client.put(&gone, &bytes(60_000, round), &logged(0)).await.unwrap();
        let before = gauges(&cluster, 0).log_copies;
        let mut removed = false;
        eventually("what was read was copied", async || {
            next += 1;
            client.put(&next.to_be_bytes(), &filler, &logged(0)).await.unwrap();
            for key in [&hot, &gone] {
                match client.get(key).await {
                    Ok(value) => assert_eq!(value, bytes(60_000, round)),
                    Err(e) => assert_eq!(e.kind(), ErrorKind::NotFound, "{e}"),
                }
            }
            client.flush().await.unwrap();
            if !removed && next.is_multiple_of(40) {
                // In the middle of anything that the owner does with it.
                let _ = client.remove(&gone).await;
                removed = true;
            }
            removed && gauges(&cluster, 0).log_copies >= before + 3
        })
        .await;
        assert_eq!(client.get(&gone).await.unwrap_err().kind(), ErrorKind::NotFound);
        assert!(client.list(Some("^g"), None, 10).await.unwrap().is_empty());
        // Wherever it lies now, all ways to it agree.
        if client.get(&hot).await.is_ok() {
            assert_eq!(client.exists(&[&hot]).await.unwrap(), [Existence::Ready]);
            assert_eq!(client.match_prefix(&[&hot]).await.unwrap().len(), 1);
        }
        let _ = client.remove(&hot).await;
        assert_eq!(client.get(&hot).await.unwrap_err().kind(), ErrorKind::NotFound);
    }
    at_rest(&cluster, 0).await;
    cluster.stop().await;
}

/// What plans wrote goes on in the log when the heap needs its room.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i6_i15_what_the_evictor_chose_is_served_from_the_log_once_and_a_removal_of_it_is_final() {
    const N: u32 = 160;
    let config = NodeConfig { heap_bytes: 4 << 20, ..config("log-spill") };
    let config = NodeConfig { heap_bytes: 16 << 20, log_bytes: Some(12 << 20), ..config };
    let cluster = Cluster::start(1, config).await.unwrap();
    let shm = client_by(&cluster, TransportChoice::Shm).await;
    let by_plan = PutOptions::default().device_alloc(false);
    let key = |i: u32| format!("block/{i}").into_bytes();
    for i in 0..N {
        shm.put(&key(i), &bytes(64 << 10, i as u8), &by_plan).await.unwrap();
        if i % 16 == 0 {
            shm.remove(&key(i)).await.unwrap();
        }
        if i == N / 2 {
            // Copies and originals of the moment are both there, or one of them.
            cluster.node(0).owner().call(Crash, nkv_pace::HANGS).await.unwrap_err();
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let g = gauges(&cluster, 0);
    assert!(g.log_spills > 0, "{g:?}");
    let mut there = 0;
    for i in 0..N {
        match shm.get(&key(i)).await {
            Ok(found) => {
                assert!(i % 16 != 0, "block/{i} is back");
                assert!(found == bytes(64 << 10, i as u8), "block/{i} has other bytes");
                there += 1;
            }
            Err(e) => assert_eq!(e.kind(), ErrorKind::NotFound, "{e}"),
        }
    }
    // The heap alone has room for 64.
    assert!(there > 100, "{there} of {N}: {:?}", gauges(&cluster, 0));
    let listed = async || shm.list(None, None, 1000).await.unwrap().len();
    eventually("listed once each", async || listed().await == there).await;
    assert_eq!(shm.remove_all().await.unwrap().in_memory, there as u64);
    for i in 0..N {
        assert_eq!(shm.get(&key(i)).await.unwrap_err().kind(), ErrorKind::NotFound, "block/{i}");
    }
    eventually("nothing is left", async || {
        let g = gauges(&cluster, 0);
        (g.objects, g.log_objects, listed().await) == (0, 0, 0)
    })
    .await;
    at_rest(&cluster, 0).await;
    used_is_live(&cluster).await;
    cluster.stop().await;
}
