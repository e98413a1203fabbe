//! Listings and removals by pattern over an embedded cluster, alone and beside puts, deaths and
//! panics.

use crate::embedding::{eventually, on, short_lived, three};
use nkv_actors::actor::Crash;
use nkv_actors::message::{Existence, KEYS_PER_ROUND, KeyState, Listed};
use nkv_actors::{Client, Cluster, Error, ErrorKind, Node, NodeConfig, PutOptions};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Waits until no object and no used byte is left, at the master and at the owners.
async fn is_empty(cluster: &Cluster) {
    eventually("every byte of every heap is free again", async || {
        let stats = cluster.client().stats().await.unwrap();
        let free = |n: &Node| n.status().owner.heap_used == 0;
        stats.objects == 0
            && stats.ranks.iter().all(|r| r.allocated_bytes == 0)
            && cluster.nodes().iter().all(free)
    })
    .await;
}

/// `n` small objects, key `PREFIX00042`, spread over all ranks.
async fn fill(client: &Client, prefix: &str, n: usize) {
    let keys: Vec<String> = (0..n).map(|i| format!("{prefix}{i:05}")).collect();
    for part in keys.chunks(512) {
        let items: Vec<_> = part.iter().map(|k| (k.as_bytes(), &b"value"[..])).collect();
        for r in client.put_many(&items, &PutOptions::default()).await {
            r.unwrap();
        }
    }
}

fn names(list: &[Listed]) -> Vec<String> {
    list.iter().map(|l| String::from_utf8_lossy(&l.key).into_owned()).collect()
}

async fn listed(client: &Client, pattern: &str) -> Vec<String> {
    names(&client.list(Some(pattern), None, usize::MAX).await.unwrap())
}

/// All keys, page by page.
async fn pages(client: &Client, step: usize) -> Vec<String> {
    let (mut all, mut after) = (Vec::new(), None::<Vec<u8>>);
    loop {
        let page = client.list(None, after.as_deref(), step).await.unwrap();
        assert!(page.len() <= step);
        let Some(last) = page.last() else { return all };
        after = Some(last.key.to_vec());
        all.extend(names(&page));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_listing_says_key_bytes_rank_and_state_in_the_order_of_keys() {
    let cluster = Cluster::start(3, short_lived("ls")).await.unwrap();
    let client = cluster.node(1).client();
    assert_eq!(client.list(None, None, 10).await.unwrap(), []);
    client.put(b"b", &[1; 5000], &on(2)).await.unwrap();
    client.put(b"a/1", b"x", &on(0)).await.unwrap();
    let open = client.open_for_write(b"a/2", 70_000, &on(1)).await.unwrap();
    let row = |l: &Listed| (l.key.to_vec(), l.bytes_total, l.rank, l.state);
    let rows: Vec<_> = client.list(None, None, 10).await.unwrap().iter().map(row).collect();
    let expected = [
        (b"a/1".to_vec(), 1, 0, KeyState::Ready),
        (b"a/2".to_vec(), 70_000, 1, KeyState::Writing),
        (b"b".to_vec(), 5000, 2, KeyState::Ready),
    ];
    assert_eq!(rows, expected);
    assert_eq!(listed(&client, "^a").await, ["a/1", "a/2"]);
    assert_eq!(names(&client.list(None, Some(b"a/1"), 1).await.unwrap()), ["a/2"]);
    assert_eq!(client.list(None, None, 0).await.unwrap(), []);
    open.abort().await.unwrap();
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i6_what_matches_goes_from_every_rank_with_open_plans_and_nothing_else_does() {
    let cluster = Cluster::start(3, short_lived("rm-matching")).await.unwrap();
    let (a, b) = (cluster.node(0).client(), cluster.node(2).client());
    for rank in 0..3 {
        for i in 0..20 {
            for key in [format!("run-1/{rank}/{i}"), format!("run-10/{rank}/{i}")] {
                a.put(key.as_bytes(), key.as_bytes(), &on(rank)).await.unwrap();
            }
        }
    }
    let plan = a.open_for_write(b"run-1/open", 4096, &on(1)).await.unwrap();
    let other = a.open_for_write(b"run-10/open", 4096, &on(1)).await.unwrap();
    let meta = b.get_location(b"run-1/2/7").await.unwrap().into_memory().unwrap();

    assert_eq!(b.remove_matching("^run-1/").await.unwrap().in_memory, 61);

    assert_eq!(b.read_into(&meta, &mut [0; 64]).await.unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(plan.write_from(0, &[1; 4096]).unwrap_err().kind(), ErrorKind::Reclaimed);
    assert_eq!(plan.publish().await.unwrap_err().error.kind(), ErrorKind::Reclaimed);
    other.write_from(0, &[2; 4096]).unwrap();
    other.publish().await.unwrap();
    for rank in 0..3 {
        for i in 0..20 {
            let (gone, kept) = (format!("run-1/{rank}/{i}"), format!("run-10/{rank}/{i}"));
            assert_eq!(a.get(gone.as_bytes()).await.unwrap_err().kind(), ErrorKind::NotFound);
            assert_eq!(a.get(kept.as_bytes()).await.unwrap(), kept.as_bytes());
        }
    }
    assert_eq!(listed(&a, "run-1/").await, Vec::<String>::new());
    assert_eq!(a.remove_matching("^run-1/").await.unwrap().in_memory, 0);
    // Not anchored: it matches anywhere.
    assert_eq!(a.remove_matching("/2/1[0-9]$").await.unwrap().in_memory, 10);
    assert_eq!(listed(&a, "").await.len(), 51);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_put_beside_a_removal_is_whole_or_absent_and_other_keys_stay() {
    let cluster = Arc::new(Cluster::start(2, short_lived("rm-race")).await.unwrap());
    let client = cluster.client();
    fill(&client, "old/", 1_500).await;
    let stop = Arc::new(AtomicBool::new(false));
    let writers: Vec<_> = (0..2)
        .map(|w| {
            let (client, stop) = (cluster.node(w).client(), stop.clone());
            tokio::spawn(async move {
                let mut kept = Vec::new();
                for i in 0..250 {
                    let key = format!("keep/{w}/{i}");
                    client.put(key.as_bytes(), key.as_bytes(), &on(w)).await.unwrap();
                    kept.push(key);
                    // The only possible outcomes, whether it was removed meanwhile or not.
                    let key = format!("old/new/{w}/{i}");
                    match client.put(key.as_bytes(), key.as_bytes(), &on(w)).await {
                        Ok(()) => {}
                        Err(e) => assert_eq!(e.kind(), ErrorKind::Reclaimed, "{e}"),
                    }
                    if stop.load(Ordering::Acquire) {
                        break;
                    }
                }
                kept
            })
        })
        .collect();
    let mut removed = 0;
    for _ in 0..5 {
        removed += cluster.node(1).client().remove_matching("^old/").await.unwrap().in_memory;
        // Every key that existed before the call is gone after it, whatever was put meanwhile.
        assert_eq!(listed(&client, r"^old/\d").await, Vec::<String>::new());
    }
    stop.store(true, Ordering::Release);
    for w in writers {
        for key in w.await.unwrap() {
            assert_eq!(client.get(key.as_bytes()).await.unwrap(), key.as_bytes());
        }
    }
    removed += client.remove_matching("^old/").await.unwrap().in_memory;
    assert!(removed >= 1_500, "{removed}");
    assert_eq!(listed(&client, "^old/").await, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i6_after_remove_all_no_key_is_found_and_every_byte_is_free_again() {
    let base = NodeConfig { heap_bytes: 32 << 20, ..short_lived("rm-all") };
    let cluster = Cluster::start(3, base).await.unwrap();
    let client = cluster.node(2).client();
    // Several rounds.
    let n = KEYS_PER_ROUND + 800;
    fill(&client, "k", n).await;
    let plan = client.open_for_write(b"open", 100_000, &on(1)).await.unwrap();
    assert_eq!(client.remove_all().await.unwrap().in_memory, n as u64 + 1);
    let keys: Vec<String> = (0..n).map(|i| format!("k{i:05}")).collect();
    let keys: Vec<&[u8]> = keys.iter().map(|k| k.as_bytes()).collect();
    let found = client.exists(&keys).await.unwrap();
    assert!(found.iter().all(|e| *e == Existence::Absent));
    assert_eq!(client.list(None, None, 10).await.unwrap(), []);
    assert!(plan.publish().await.is_err());
    is_empty(&cluster).await;
    assert_eq!(client.remove_all().await.unwrap().in_memory, 0);
    client.put(b"k00001", b"again", &on(0)).await.unwrap();
    assert_eq!(client.get(b"k00001").await.unwrap(), &b"again"[..]);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_of_20000_keys_neither_skip_nor_repeat_a_key_that_stays() {
    let base = NodeConfig { heap_bytes: 48 << 20, ..short_lived("ls-pages") };
    let cluster = Cluster::start(3, base).await.unwrap();
    let client = cluster.client();
    fill(&client, "k", 20_000).await;
    let all: Vec<String> = (0..20_000).map(|i| format!("k{i:05}")).collect();
    for step in [6_000, 20_000, 100_000] {
        assert!(pages(&client, step).await == all, "in pages of {step}");
    }
    assert_eq!(
        names(&client.list(Some("7$"), Some(b"k15000"), 3).await.unwrap()),
        ["k15007", "k15017", "k15027"]
    );

    // Other keys are put and removed while the pages are read.
    let (rounds, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let churn = tokio::spawn(churn(cluster.node(1).client(), rounds.clone(), stop.clone()));
    let mut passes = 0;
    while passes < 3 || rounds.load(Ordering::Acquire) < 1_000 {
        let mut seen = pages(&client, 2_000).await;
        assert!(seen.is_sorted_by(|a, b| a < b), "in order, none twice");
        seen.retain(|k| !k.ends_with('x'));
        assert!(seen == all, "{} of the keys that stayed", seen.len());
        passes += 1;
        assert!(passes < 1_000 && !churn.is_finished(), "the others stand still");
    }
    stop.store(true, Ordering::Release);
    churn.await.unwrap();
    cluster.stop().await;
}

/// Puts keys between those of the test and removes them again, a few at a time.
async fn churn(client: Client, rounds: Arc<AtomicU64>, stop: Arc<AtomicBool>) {
    const THERE: u64 = 64;
    let key = |i: u64| format!("k{:05}x", i * 7_919 % 20_000);
    while !stop.load(Ordering::Acquire) {
        let i = rounds.fetch_add(1, Ordering::AcqRel);
        client.put(key(i).as_bytes(), b"x", &on(1)).await.unwrap();
        if i >= THERE {
            client.remove(key(i - THERE).as_bytes()).await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_that_are_no_text_are_listed_matched_and_removed_like_others() {
    let cluster = Cluster::start(1, short_lived("ls-bytes")).await.unwrap();
    let client = cluster.client();
    let keys: [&[u8]; 4] = [b"\x00", b"a\nb", b"a\xffb", &[0xfe; 1024]];
    for key in keys {
        client.put(key, b"v", &on(0)).await.unwrap();
    }
    let list = client.list(None, None, 10).await.unwrap();
    assert!(list.iter().map(|l| &*l.key).eq(keys));
    let list = client.list(Some(r"(?-u:\xff)"), None, 10).await.unwrap();
    assert!(list.iter().map(|l| &*l.key).eq([&b"a\xffb"[..]]));
    assert_eq!(client.remove_matching(r"^a(?s-u:.)b$").await.unwrap().in_memory, 2);
    assert_eq!(client.remove_matching(r"^(?-u:\xfe){1024}$").await.unwrap().in_memory, 1);
    assert_eq!(client.list(None, None, 10).await.unwrap().len(), 1);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_pattern_is_refused_in_the_words_of_the_regex_crate_and_changes_nothing() {
    let cluster = Cluster::start(1, short_lived("ls-wrong")).await.unwrap();
    let client = cluster.client();
    client.put(b"k", b"v", &on(0)).await.unwrap();
    let message_of = |e: Error| {
        assert_eq!(e.kind(), ErrorKind::InvalidArgument, "{e}");
        e.message().to_string()
    };
    for (pattern, expected) in
        [("k(", "unclosed group"), (r"\w{99999}", "size limit"), ("*", "repetition")]
    {
        let text = message_of(client.remove_matching(pattern).await.unwrap_err());
        assert!(text.contains(expected), "{text}");
        assert_eq!(message_of(client.list(Some(pattern), None, 1).await.unwrap_err()), text);
    }
    assert_eq!(client.get(b"k").await.unwrap(), &b"v"[..]);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i6_with_a_dead_rank_a_removal_says_what_was_confirmed_and_ends_once_the_rank_is_gone() {
    let base = NodeConfig { ttl_ms: 4_000, ..short_lived("rm-dead") };
    let [first, second, third] = three(base).await;
    let client = first.client();
    for i in 0..30 {
        client.put(format!("k{i:02}").as_bytes(), b"v", &on(i % 3)).await.unwrap();
    }
    // Without leaving, like a killed process.
    drop(third);
    let lost = |l: &&Listed| l.state == KeyState::Unreachable;
    eventually("the link is seen to be down", async || {
        client.list(None, None, 100).await.unwrap().iter().filter(lost).count() == 10
    })
    .await;
    let e = second.client().remove_matching("^k").await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Disconnected, "{e}");
    assert!(e.message().contains("the link of rank 2 is down"), "{e}");
    assert!(e.message().contains("20 keys removed, 10 more not confirmed"), "{e}");
    for i in 0..30 {
        let e = client.get(format!("k{i:02}").as_bytes()).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::NotFound, "asked to go, it is not given out: {e}");
    }
    let left = client.list(None, None, 100).await.unwrap();
    assert!(left.len() == 10 && left.iter().all(|l| l.state == KeyState::Removing), "{left:?}");
    eventually("the dead rank is gone, and its keys with it", async || {
        client.list(None, None, 100).await.unwrap().is_empty()
    })
    .await;
    assert_eq!(client.remove_all().await.unwrap().in_memory, 0);
    second.stop().await;
    first.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panic_of_the_master_under_a_removal_loses_no_key_of_it_for_good() {
    // No rank is to be given up because a busy machine kept it silent.
    let calm = NodeConfig { ttl_ms: nkv_pace::HANGS_MS, ..short_lived("rm-panic") };
    let cluster = Cluster::start(2, calm).await.unwrap();
    let client = cluster.client();
    for turn in 0..3 {
        fill(&client, "k", 3_000).await;
        client.put(b"stays", b"v", &on(1)).await.unwrap();
        let (remover, master) = (client.clone(), cluster.node(0).master().unwrap().clone());
        let removal = tokio::spawn(async move { remover.remove_matching("^k").await });
        // At another point of the removal each time.
        for _ in 0..turn {
            tokio::task::yield_now().await;
        }
        master.call(Crash, nkv_pace::HANGS).await.unwrap_err();
        match removal.await.unwrap() {
            Ok(_) => assert_eq!(listed(&client, "^k").await, Vec::<String>::new()),
            Err(e) => assert_eq!(e.kind(), ErrorKind::Internal, "{e}"),
        }
        client.remove_matching("^k").await.unwrap();
        assert_eq!(listed(&client, "").await, ["stays"]);
        assert_eq!(client.get(b"k00007").await.unwrap_err().kind(), ErrorKind::NotFound);
        client.remove(b"stays").await.unwrap();
    }
    is_empty(&cluster).await;
    cluster.stop().await;
}
