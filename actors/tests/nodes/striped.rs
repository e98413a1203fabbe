//! Striped objects in whole clusters: where their bytes lie, every way to read them, removal, and
//! what is left of them when a stripe is gone.

use crate::embedding::{bytes, client_by, config, eventually, on, used_is_live};
use nkv_actors::Secret;
use nkv_actors::message::{Existence, Location};
use nkv_actors::tier::{SsdConfig, SsdPolicy};
use nkv_actors::{
    Client, ClientConfig, Cluster, ErrorKind, IfExists, NodeConfig, PutOptions, TransportChoice,
};
use nkv_store::KeyHasher;
use std::time::Duration;

const LEN: usize = 3 * (256 << 10) - 7;

async fn start(job: &str) -> Cluster {
    let cluster =
        Cluster::start(3, NodeConfig { heap_bytes: 64 << 20, ..config(job) }).await.unwrap();
    all_known(&cluster.client()).await;
    cluster
}

/// Until a handle has a view of all ranks.
async fn all_known(client: &Client) {
    eventually("all are members", async || {
        client.membership().await.is_ok_and(|view| view.nodes().count() == 3)
    })
    .await;
}

fn cut() -> PutOptions {
    PutOptions::default().stripes(3)
}

async fn put(client: &Client, key: &str, seed: u8) {
    client.put(key.as_bytes(), &bytes(LEN, seed), &cut()).await.unwrap();
}

fn live_bytes(cluster: &Cluster) -> Vec<u64> {
    (0..3).map(|rank| cluster.node(rank).status().owner.live_bytes).collect()
}

/// Keys of stripes that are stored.
async fn stripes(client: &Client) -> u64 {
    client.stats().await.unwrap().objects
}

/// What is stored under a key itself: the manifest.
async fn stored(client: &Client, key: &str) -> Vec<u8> {
    let Location::Memory(meta) = client.get_location(key.as_bytes()).await.unwrap() else {
        panic!("on disk")
    };
    let mut stored = vec![0; meta.object.bytes_total as usize];
    client.read_into(&meta, &mut stored).await.unwrap();
    stored
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stripes_lie_on_all_ranks_and_every_read_joins_them_by_every_transport() {
    let cluster = start("striped").await;
    let handles = [
        cluster.client(),
        client_by(&cluster, TransportChoice::Tcp).await,
        client_by(&cluster, TransportChoice::Shm).await,
    ];
    for (h, handle) in handles.iter().enumerate() {
        for i in 0..8 {
            put(handle, &format!("h{h}/{i}"), (8 * h + i) as u8).await;
        }
    }
    // Manifests go where the first stripe goes.
    eventually("within 2 % of each other", async || {
        let live = live_bytes(&cluster);
        let (most, least) = (live.iter().max().unwrap(), live.iter().min().unwrap());
        least * 100 >= most * 98
    })
    .await;
    for reader in &handles {
        for h in 0..handles.len() {
            let keys: Vec<String> = (0..8).map(|i| format!("h{h}/{i}")).collect();
            let wanted: Vec<Vec<u8>> = (0..8).map(|i| bytes(LEN, (8 * h + i) as u8)).collect();
            read_every_way(reader, &keys, &wanted).await;
        }
    }
    for handle in &handles[1..] {
        handle.close().await;
    }
    used_is_live(&cluster).await;
    cluster.stop().await;
}

async fn read_every_way(reader: &Client, keys: &[String], wanted: &[Vec<u8>]) {
    let keys: Vec<&[u8]> = keys.iter().map(|key| key.as_bytes()).collect();
    let (limit, first) = (Duration::from_secs(5), keys[0]);
    assert!(reader.get(first).await.unwrap() == wanted[0]);
    for (got, wanted) in reader.get_many(&keys).await.into_iter().zip(wanted) {
        assert!(got.unwrap() == *wanted);
    }
    let mut buffer = vec![0; LEN + 5];
    assert_eq!(reader.get_into(first, &mut buffer).await, Ok(LEN));
    assert!(buffer[..LEN] == wanted[0]);
    let (head, tail) = buffer.split_at_mut(77);
    tail.fill(0);
    assert_eq!(reader.get_into_parts(first, &mut [head, tail]).await, Ok(LEN));
    assert!(buffer[..LEN] == wanted[0]);
    let mut buffers = vec![vec![0; LEN]; keys.len()];
    let mut items: Vec<(&[u8], &mut [u8])> =
        keys.iter().zip(&mut buffers).map(|(key, buffer)| (*key, &mut buffer[..])).collect();
    assert!(reader.get_many_into(&mut items).await.iter().all(|read| *read == Ok(LEN)));
    assert!(buffers == wanted);
    buffers.iter_mut().for_each(|buffer| buffer.fill(0));
    let mut items: Vec<(&[u8], &mut [u8])> =
        keys.iter().zip(&mut buffers).map(|(key, buffer)| (*key, &mut buffer[..])).collect();
    let read = reader.get_many_when_ready_into(&mut items, limit).await;
    assert!(read.iter().all(|read| *read == Ok(LEN)) && buffers == wanted);
    assert!(reader.get_when_ready(first, limit).await.unwrap() == wanted[0]);
    let small = reader.get_into(first, &mut buffer[..LEN - 1]).await.unwrap_err();
    assert_eq!(small.kind(), ErrorKind::InvalidArgument);
    assert!(small.message().contains(&LEN.to_string()), "{small}");
    let view = reader.get_view(first).await.map(drop).unwrap_err();
    assert_eq!(view.kind(), ErrorKind::Unsupported);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i6_removals_take_the_stripes_along_and_listings_show_the_whole() {
    let cluster = start("striped-gone").await;
    let client = &cluster.client();
    for i in 0..6 {
        put(client, &format!("a/{i}"), i).await;
    }
    assert_eq!(stripes(client).await, 6 * 4);
    let listed = client.list(None, None, 100).await.unwrap();
    assert_eq!(listed.len(), 6);
    assert!(listed.iter().all(|row| row.bytes_total == LEN as u64), "{listed:?}");
    client.remove(b"a/0").await.unwrap();
    assert_eq!(client.remove_matching("^a/[12]$").await.unwrap().in_memory, 2);
    eventually("their stripes are gone", async || stripes(client).await == 3 * 4).await;
    for i in 0..3 {
        let gone = client.get(format!("a/{i}").as_bytes()).await.unwrap_err();
        assert_eq!(gone.kind(), ErrorKind::NotFound);
    }
    assert!(client.get(b"a/3").await.unwrap() == bytes(LEN, 3));
    client.remove_all().await.unwrap();
    eventually("nothing is left", async || live_bytes(&cluster) == [0; 3]).await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_is_put_in_stripes_once_and_the_stripes_of_other_puts_are_removed() {
    let cluster = start("striped-twice").await;
    let other = client_by(&cluster, TransportChoice::Tcp).await;
    let client = &cluster.client();
    for round in 0..10u8 {
        let key = format!("k{round}");
        let (one, two) = (bytes(LEN, round), bytes(LEN, 100 + round));
        let opts = cut();
        let (first, second) = tokio::join!(
            client.put(key.as_bytes(), &one, &opts),
            other.put(key.as_bytes(), &two, &opts)
        );
        assert!(first.is_ok() || second.is_ok(), "{first:?} {second:?}");
        let got = client.get(key.as_bytes()).await.unwrap();
        assert!(got == one || got == two, "of no put");
        assert!(other.get(key.as_bytes()).await.unwrap() == got, "values are immutable");
    }
    eventually("one put of each key", async || stripes(client).await == 10 * 4).await;
    let again = client.put_replicas(&[(b"k0", &bytes(LEN, 7))], &cut()).await;
    assert_eq!(again, [Ok(0)]);
    let fails = cut().if_exists(IfExists::Fail);
    let again = client.put(b"k0", &bytes(LEN, 7), &fails).await.unwrap_err();
    assert_eq!((again.kind(), again.key()), (ErrorKind::AlreadyExists, Some(&b"k0"[..])));
    client.put(b"new", &bytes(LEN, 7), &fails).await.unwrap();
    assert!(other.get(b"new").await.unwrap() == bytes(LEN, 7));
    other.close().await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i16_the_bytes_of_a_manifest_under_another_key_are_a_value_like_any_other() {
    let cluster = start("striped-forged").await;
    let client = &cluster.client();
    put(client, "k", 1).await;
    let manifest = stored(client, "k").await;
    client.put(b"other", &manifest, &on(1)).await.unwrap();
    client.put(b"by log", &manifest, &PutOptions::default()).await.unwrap();
    for key in [&b"other"[..], b"by log"] {
        assert!(client.get(key).await.unwrap() == manifest);
        let mut buffer = vec![0; LEN];
        assert_eq!(client.get_into(key, &mut buffer).await, Ok(manifest.len()));
        assert!(client.get_view(key).await.unwrap()[..] == manifest[..]);
    }
    let reserved = [b"\0nkv/stripe/", &[7u8; 36][..]].concat();
    for opts in [PutOptions::default(), cut(), on(1)] {
        let refused = client.put(&reserved, b"v", &opts).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidArgument, "{refused}");
    }
    let refused = client.open_for_write(&reserved, 1, &on(1)).await.map(drop).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidArgument, "{refused}");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_object_that_lost_a_stripe_is_a_miss_and_can_be_put_again() {
    let cluster = start("striped-lost").await;
    let client = &cluster.client();
    let tcp = client_by(&cluster, TransportChoice::Tcp).await;
    // Rank 2 has a stripe of each, and evicts it; rank 0 has the manifests.
    for (i, reader) in [client, &tcp].into_iter().enumerate() {
        for key in ["a", "b"] {
            let opts = cut().preferred_rank(0);
            let (key, value) = (format!("{key}{i}"), bytes(LEN, i as u8));
            client.put(key.as_bytes(), &value, &opts).await.unwrap();
        }
        eventually("they are gone", async || {
            client.evict_rank_until_below(2, 0.0).await.unwrap();
            live_bytes(&cluster)[2] == 0
        })
        .await;
        let key = format!("a{i}");
        let lost = reader.get(key.as_bytes()).await.unwrap_err();
        assert_eq!(lost.kind(), ErrorKind::NotFound, "{lost}");
        // The master ends the rest, where no disk may have the stripe.
        eventually("nothing is left", async || stripes(client).await == 0).await;
        assert_eq!(reader.exists(&[key.as_bytes()]).await.unwrap(), [Existence::Absent]);
        for key in [key, format!("b{i}")] {
            let value = bytes(LEN, 50);
            let again = reader.put_replicas(&[(key.as_bytes(), &value)], &cut()).await;
            assert_eq!(again, [Ok(1)], "{key}");
            assert!(reader.get(key.as_bytes()).await.unwrap() == value);
        }
    }
    tcp.close().await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stripes_come_back_from_disks_and_what_lost_one_there_is_a_miss_and_can_be_put_again() {
    let dir = tempfile::tempdir().unwrap();
    let ssd = SsdConfig { policy: SsdPolicy::EvictOnly, ..SsdConfig::new(dir.path(), 256 << 20) };
    let base = NodeConfig { heap_bytes: 64 << 20, ssd: Some(ssd), ..config("striped-disk") };
    let cluster = Cluster::start(3, base.clone()).await.unwrap();
    let client = &cluster.client();
    all_known(client).await;
    let keys = ["a", "b", "c", "d"];
    for (key, seed) in keys.iter().zip(0..) {
        put(client, key, seed).await;
    }
    let all_leave = async || {
        eventually("memory is empty", async || {
            for rank in 0..3 {
                client.evict_rank_until_below(rank, 0.0).await.unwrap();
            }
            live_bytes(&cluster) == [0; 3]
        })
        .await;
        let pending = |rank| cluster.node(rank).tier().unwrap().figures().kv_demote_pending;
        eventually("all is saved", async || (0..3).all(|rank| pending(rank) == 0)).await;
    };
    all_leave().await;
    assert_eq!(client.exists(&[b"a"]).await.unwrap(), [Existence::OnDisk]);
    for (key, seed) in keys.iter().zip(0..) {
        assert!(client.get(key.as_bytes()).await.unwrap() == bytes(LEN, seed), "{key}");
    }
    all_leave().await;
    // A pattern matches keys of users alone; removed objects do not come back.
    assert_eq!(client.remove_matching("stripe").await.unwrap().on_disk, 0);
    client.remove(b"d").await.unwrap();
    assert_eq!(client.get(b"d").await.unwrap_err().kind(), ErrorKind::NotFound);
    assert!(client.get(b"a").await.unwrap() == bytes(LEN, 0));
    // Of "b" and "c" a stripe is lost, in memory and on disk.
    for key in ["b", "c"] {
        assert_eq!(client.get_size(key.as_bytes()).await.unwrap(), LEN as u64);
        client.remove(&last_stripe(client, key).await).await.unwrap();
    }
    let lost = client.get(b"b").await.unwrap_err();
    assert_eq!(lost.kind(), ErrorKind::NotFound, "{lost}");
    assert!(lost.message().contains("stripe 3 of 3 is gone"), "{lost}");
    assert_eq!(client.exists(&[b"b"]).await.unwrap(), [Existence::Absent]);
    for key in ["b", "c"] {
        let made = client.put_replicas(&[(key.as_bytes(), &bytes(LEN, 60))], &cut()).await;
        assert_eq!(made, [Ok(1)], "{key}");
        assert!(client.get(key.as_bytes()).await.unwrap() == bytes(LEN, 60));
    }
    all_leave().await;
    for key in ["b", "c"] {
        assert!(client.get(key.as_bytes()).await.unwrap() == bytes(LEN, 60), "not the old ones");
    }
    all_leave().await;
    cluster.stop().await;
    // A later job hashes keys by a key of its own.
    let secret = Secret::new(b"a secret of sixteen bytes", "this test").unwrap();
    let cluster = Cluster::start(3, NodeConfig { secret: Some(secret), ..base }).await.unwrap();
    for key in ["b", "c"] {
        assert!(cluster.client().get(key.as_bytes()).await.unwrap() == bytes(LEN, 60), "{key}");
    }
    cluster.stop().await;
}

/// The key of the last stripe of an object: it names the object, and the put that its manifest
/// names.
async fn last_stripe(client: &Client, key: &str) -> Vec<u8> {
    let manifest = stored(client, key).await;
    let object = KeyHasher::new(*b"nkv: its stripes").id(key.as_bytes());
    let (hash, check) = (object.hash.to_le_bytes(), object.check.to_le_bytes());
    let put = &manifest[b"nkv striped object 1\n".len()..][..16];
    [b"\0nkv/stripe/", &hash[..], &check, put, &2u32.to_le_bytes()].concat()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn values_too_small_to_cut_are_stored_whole() {
    let cluster = start("striped-small").await;
    let client = &cluster.client();
    for (i, len) in [0, 1, 4096, 4097].into_iter().enumerate() {
        let key = format!("k{i}");
        client.put(key.as_bytes(), &bytes(len, 1), &cut()).await.unwrap();
        assert!(client.get(key.as_bytes()).await.unwrap() == bytes(len, 1), "{len}");
        assert_eq!(client.stripes_for(len, &cut()), if len > 4096 { 2 } else { 1 });
    }
    assert_eq!(stripes(client).await, 3 + 3);
    let mut short = [0; 9];
    let small = client.get_into(b"k3", &mut short).await.unwrap_err();
    assert!(small.message().contains("4097 bytes"), "{small}");
    let mut ready = client.when_ready(&[b"k3"], Duration::from_secs(5)).unwrap();
    let (n, got) = ready.next().await.unwrap();
    assert!(n == 0 && got.unwrap() == bytes(4097, 1));
    assert_eq!(client.replicate(&[b"k3"], 2).await, [Ok(())]);
    assert!(client.count_replicas(b"k3").await.unwrap() <= 2);
    eventually("two of each stripe", async || {
        let ranks = client.stats().await.unwrap().ranks;
        ranks.iter().map(|r| r.owner.objects).sum::<u64>() == 9
    })
    .await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_values_are_cut_where_the_handle_is_configured_so() {
    let cluster = start("striped-above").await;
    let job = cluster.node(0).config().job.clone();
    let config = ClientConfig { job, stripe_above: 100_000, ..ClientConfig::default() };
    let client = Client::connect(&cluster.node(0).info().control, config).await.unwrap();
    let (large, small) = (bytes(100_001, 1), bytes(100_000, 2));
    let items: [(&[u8], &[u8]); 3] = [(b"a", &large), (b"b", &small), (b"c", &large)];
    let put = client.put_many(&items, &PutOptions::default()).await;
    assert!(put.iter().all(Result::is_ok), "{put:?}");
    client.put(b"whole", &large, &PutOptions::default().stripes(1)).await.unwrap();
    client.put_parts(b"d", &[&large[..9], &large[9..]], &PutOptions::default()).await.unwrap();
    assert_eq!(stripes(&client).await, 3 * 4 + 2);
    let keys: [&[u8]; 5] = [b"a", b"b", b"c", b"whole", b"d"];
    let wanted = [&large, &small, &large, &large, &large];
    for (got, wanted) in client.get_many(&keys).await.into_iter().zip(wanted) {
        assert!(got.unwrap() == *wanted);
    }
    // Replicas of each stripe and of the manifest.
    let twice = PutOptions::default().replicas(2);
    let made = client.put_replicas(&[(b"twice", &large)], &twice).await;
    assert_eq!(made, [Ok(2)]);
    assert_eq!(client.get_replicas(b"twice").await.unwrap().len(), 2);
    client.close().await;
    cluster.stop().await;
}
