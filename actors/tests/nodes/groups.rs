//! Groups: what is read, or evicted, of one of their objects counts for the others, in heaps and
//! logs, on the same rank and on another one.

use crate::embedding::log::{LOG, at_rest, logged, with_log};
use crate::embedding::{bytes, config, eventually, on};
use nkv_actors::message::OwnerGauges;
use nkv_actors::{Client, Cluster, ErrorKind, NodeConfig, PutOptions};
use nkv_store::{Retention, Watermarks};

const LEN: usize = 60_000;

fn grouped(opts: PutOptions) -> PutOptions {
    opts.group(b"a conversation").unwrap()
}

/// Puts into the heap of rank 0, each when there is room for it: where a put waits, the owner
/// evicts what lies together.
async fn fill(client: &Client, cluster: &Cluster, prefix: &str, n: usize) {
    for i in 0..n {
        eventually("there is room", async || {
            let heap = owner(cluster, 0);
            heap.heap_used + 3 * LEN as u64 <= heap.heap_total
        })
        .await;
        put(client, &format!("{prefix}{i}/"), 1, &on(0)).await;
    }
}

/// Puts more until `n` objects stay below the high watermark, whatever that evicted is gone.
async fn below_high_mark(client: &Client, cluster: &Cluster, n: u64) {
    for i in 0.. {
        assert!(i < 60, "the heap is never evicted down to its low watermark");
        eventually("it is below the high watermark", async || {
            let heap = owner(cluster, 0);
            heap.heap_used * 100 <= heap.heap_total * 95
        })
        .await;
        let heap = owner(cluster, 0);
        if (heap.heap_used + n * LEN as u64) * 100 <= heap.heap_total * 94 {
            return;
        }
        fill(client, cluster, &format!("more room/{i}/"), 1).await;
    }
}

async fn put(client: &Client, prefix: &str, n: usize, opts: &PutOptions) {
    for i in 0..n {
        let (key, value) = (format!("{prefix}{i}"), bytes(LEN, i as u8));
        client.put(key.as_bytes(), &value, opts).await.unwrap();
    }
}

/// Which of the first `n` keys are there. It asks, and reads none.
async fn left(client: &Client, prefix: &str, n: usize) -> Vec<usize> {
    let mut left = Vec::new();
    for i in 0..n {
        match client.get_location(format!("{prefix}{i}").as_bytes()).await {
            Ok(_) => left.push(i),
            Err(e) if e.kind() == ErrorKind::NotFound => {}
            Err(e) => panic!("{prefix}{i}: {e}"),
        }
    }
    left
}

fn owner(cluster: &Cluster, rank: u32) -> OwnerGauges {
    cluster.node(rank).status().owner
}

/// Reads a key until another object, at that rank, counts as read.
async fn read_for_others(client: &Client, key: &str, (cluster, rank): (&Cluster, u32)) {
    let before = owner(cluster, rank).group_reads;
    eventually("another object of the group is used", async || {
        client.get(key.as_bytes()).await.unwrap();
        owner(cluster, rank).group_reads > before
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_a_heap_a_group_stays_while_one_of_its_objects_is_read_and_ends_with_the_first() {
    let watermarks = Watermarks::Percent { hi: 95, lo: 85 };
    let base =
        NodeConfig { heap_bytes: 4 << 20, watermarks, quarantine_ms: 1, ..config("group-heap") };
    let cluster = Cluster::start(1, base).await.unwrap();
    let client = &cluster.client();
    put(client, "usual/", 4, &on(0)).await;
    put(client, "group/", 4, &grouped(on(0))).await;
    for round in 0..5 {
        fill(client, &cluster, &format!("flood/{round}/"), 30).await;
        read_for_others(client, "group/0", (&cluster, 0)).await;
    }
    assert!(left(client, "usual/", 4).await.is_empty());
    assert_eq!(left(client, "group/", 4).await, [0, 1, 2, 3]);
    assert_eq!(owner(&cluster, 0).groups_lost, 0);
    // A batch names a group for each key, or none.
    let keys: [&[u8]; 3] = [b"each/0", b"each/1", b"each/2"];
    let named: [(&[u8], &[u8]); 2] = [(keys[0], b"one"), (keys[2], b"one")];
    let each = on(0).groups(named).unwrap();
    let items = keys.map(|key| (key, &b"kv"[..]));
    assert!(client.put_many(&items, &each).await.iter().all(Result::is_ok));
    let before = owner(&cluster, 0);
    client.get(keys[1]).await.unwrap();
    eventually("the read was noted", async || owner(&cluster, 0).gets_served > before.gets_served)
        .await;
    assert_eq!(owner(&cluster, 0).group_reads, before.group_reads);
    client.get(keys[0]).await.unwrap();
    eventually("one other object is used", async || {
        owner(&cluster, 0).group_reads > before.group_reads
    })
    .await;
    assert_eq!(owner(&cluster, 0).group_reads, before.group_reads + 1);
    // The first to go of a group that nobody has read lately is one that was to go first.
    below_high_mark(client, &cluster, 5).await;
    put(client, "newer/", 4, &on(0)).await;
    put(client, "first/", 1, &grouped(on(0).retention(Retention::EvictFirst))).await;
    read_for_others(client, "group/0", (&cluster, 0)).await;
    let mut more = 0;
    while !left(client, "group/", 4).await.is_empty() {
        fill(client, &cluster, &format!("more/{more}/"), 1).await;
        more += 1;
        assert!(more < 60, "the group is to go before what is older");
    }
    assert_eq!(left(client, "newer/", 4).await.len(), 4);
    assert_eq!((left(client, "first/", 1).await, owner(&cluster, 0).groups_lost), (vec![], 1));
}

/// Puts into the log of rank 1, no faster than what was read can be copied. On a busy machine the
/// log may have no room in time: such a put takes a plan, and counts for nothing.
async fn flood(client: &Client, cluster: &Cluster, n: usize) {
    let (mut put_in_log, mut number) = (0, 0);
    while put_in_log < n {
        assert!(number < 10 * n, "the log takes no puts");
        let before = owner(cluster, 1);
        put(client, &format!("flood/{}/{number}/", before.log_accepted), 1, &logged(1)).await;
        eventually("it is accepted, or in the heap", async || {
            let now = owner(cluster, 1);
            (now.log_accepted, now.objects) != (before.log_accepted, before.objects)
        })
        .await;
        put_in_log += usize::from(owner(cluster, 1).log_accepted > before.log_accepted);
        number += 1;
        at_rest(cluster, 1).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_logs_a_group_stays_on_all_ranks_while_one_of_its_objects_is_read_at_one() {
    // Where this process does not run, what was read is not copied in time.
    for attempt in 0..20 {
        let base = NodeConfig { quarantine_ms: 1, ..with_log(&format!("group-log{attempt}")) };
        let cluster = Cluster::start(2, base).await.unwrap();
        let client = &cluster.client();
        put(client, "here/", 2, &grouped(logged(0))).await;
        put(client, "there/", 4, &grouped(logged(1))).await;
        put(client, "usual/", 4, &logged(1)).await;
        // Two laps, of 69 objects each.
        for _ in 0..6 {
            if owner(&cluster, 1).groups_lost == 0 {
                read_for_others(client, "here/0", (&cluster, 1)).await;
                flood(client, &cluster, LOG as usize / LEN / 3).await;
            }
        }
        if owner(&cluster, 1).log_lost_reads > 0 {
            continue;
        }
        assert!(left(client, "usual/", 4).await.is_empty());
        assert_eq!(left(client, "there/", 4).await, [0, 1, 2, 3]);
        assert!(owner(&cluster, 1).log_copies >= 4);
        return;
    }
    panic!("what was read was never copied in time");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_that_is_over_on_one_rank_is_over_on_the_others() {
    let base = NodeConfig { quarantine_ms: 1, ..with_log("group-over") };
    let cluster = Cluster::start(2, base).await.unwrap();
    let client = &cluster.client();
    put(client, "log/", 2, &grouped(logged(0))).await;
    // The evictor takes a tenth of the heap at a time.
    put(client, "oldest/", 30, &on(0)).await;
    put(client, "older/", 2, &on(0)).await;
    put(client, "heap/", 2, &grouped(on(0))).await;
    put(client, "there/", 1, &grouped(logged(1))).await;
    // Its objects at rank 0 are read, and then the one at rank 1 is not.
    read_for_others(client, "heap/0", (&cluster, 0)).await;
    eventually("the one at rank 1 is evicted", async || {
        flood(client, &cluster, 30).await;
        owner(&cluster, 1).groups_lost == 1
    })
    .await;
    assert_eq!(left(client, "there/", 1).await, Vec::<usize>::new());
    let mut more = 0;
    while left(client, "heap/", 2).await.len() == 2 {
        fill(client, &cluster, &format!("more/{more}/"), 1).await;
        more += 1;
        assert!(more < 200, "what is left of the group is to go before what is older");
    }
    eventually("all is evicted that is left in the heap", async || {
        left(client, "heap/", 2).await.is_empty()
    })
    .await;
    assert_eq!(left(client, "older/", 2).await, [0, 1]);
    // Nothing is left that knows of the group: a read is a read of no others.
    let before = owner(&cluster, 0);
    client.get(b"log/0").await.unwrap();
    let served = before.gets_served;
    eventually("the read was noted", async || owner(&cluster, 0).gets_served > served).await;
    assert_eq!(owner(&cluster, 0).group_reads, before.group_reads);
}
