//! Two keys whose unkeyed hashes are equal: both halves of an identity were, as long as both were
//! unkeyed (xxh64, and the low half of XXH3-128). Such pairs can be made in microseconds, so only
//! the job's key keeps two keys apart wherever identities are compared [I16].

use crate::embedding::log::{at_rest, logged, with_log};
use crate::embedding::{client_by, config, eventually};
use nkv_actors::{Client, Cluster, ErrorKind, PutOptions, TransportChoice};
use nkv_store::key::key_hash;

const K1: &str = "\
    0b30557a9fc4e90e33587da2c7ec11365b80a5caef14395e83a8cdf2173c6186abd0f51a3f6489aed3f81d42\
    678cb1d6fb20456a8fb4d9fe23486d92b7dc01267c01812c303030307398bde2072c51769bc0e50a2f54799e\
    c3e80d32577ca1c6825ad07d4443424113385d82a7ccf1163b6085aacff4193e6388add2f71c4166ded46de9\
    31303030b3d8fd22476c91b6db00254a6f94b9de03284d7297bce106b80846744443424153789dc2e70c3156\
    7ba0c5ea0f34597ea3c8ed12375c81a6cbf0153a5f84a9cef3183d6287acd1f61b40658aafd4f91e43688db2\
    d7fc21466b90b5daff24496e93b8dd02274c7196bbe0052a4f7499bee3082d52779cc1e60b30557a9fc4e90e\
    33587da2c7ec11365b80a5caef14395e83a8cdf2173c6186abd0f51a3f6489aed3f81d42678cb1d6fb20456a\
    8fb4d9fe23486d92b7dc0126";
const K2: &str = "\
    0b30557a9fc4e90e33587da2c7ec11365b80a5caef14395e83a8cdf2173c6186abd0f51a3f6489aed3f81d42\
    678cb1d6fb20456a8fb4d9fe23486d92b7dc01267c01812cdf7bbd467398bde2072c51769bc0e50a2f54799e\
    c3e80d32577ca1c6825ad07d444342c113385d82a7ccf1163b6085aacff4193e6388add2f71c4166ded46de9\
    82e4a219b3d8fd22476c91b6db00254a6f94b9de03284d7297bce106b8084674444342c153789dc2e70c3156\
    7ba0c5ea0f34597ea3c8ed12375c81a6cbf0153a5f84a9cef3183d6287acd1f61b40658aafd4f91e43688db2\
    d7fc21466b90b5daff24496e93b8dd02274c7196bbe0052a4f7499bee3082d52779cc1e60b30557a9fc4e90e\
    33587da2c7ec11365b80a5caef14395e83a8cdf2173c6186abd0f51a3f6489aed3f81d42678cb1d6fb20456a\
    8fb4d9fe23486d92b7dc0126";
const ONE: &[u8] = b"bytes of key one";
const TWO: &[u8] = b"BYTES OF KEY TWO";

fn bytes_of(hex: &str) -> Vec<u8> {
    let digits = hex.as_bytes().chunks(2).map(|two| std::str::from_utf8(two).unwrap());
    digits.map(|two| u8::from_str_radix(two, 16).unwrap()).collect()
}

/// Two keys, and one xxh64.
fn keys() -> (Vec<u8>, Vec<u8>) {
    let (one, two) = (bytes_of(K1), bytes_of(K2));
    assert_ne!(one, two);
    assert_eq!(key_hash(&one), key_hash(&two), "no pair of one hash any more");
    (one, two)
}

/// The first key exists, and is in the index of its owner; the second was never put.
async fn is_alone(cluster: &Cluster, client: &Client, (one, two): (&[u8], &[u8])) {
    let owners = cluster.client();
    eventually("the index leads to it", async || {
        let before = owners.read_counters().by_index;
        assert_eq!(owners.get(one).await.unwrap(), ONE);
        owners.read_counters().by_index > before
    })
    .await;
    assert_eq!(client.get(one).await.unwrap(), ONE);
    assert_eq!(client.get(two).await.unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(client.remove(two).await.unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(client.get(one).await.unwrap(), ONE, "removed as another key");
}

/// Both keys exist, and one is removed without the other.
async fn are_two(client: &Client, (one, two): (&[u8], &[u8])) {
    assert_eq!(client.get(one).await.unwrap(), ONE);
    assert_eq!(client.get(two).await.unwrap(), TWO);
    client.remove(two).await.unwrap();
    assert_eq!(client.get(two).await.unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(client.get(one).await.unwrap(), ONE);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i16_two_keys_never_share_an_object() {
    let (one, two) = keys();
    let both = (&one[..], &two[..]);
    let cluster = Cluster::start(1, config("collide")).await.unwrap();
    for transport in [TransportChoice::Shm, TransportChoice::Tcp] {
        let client = client_by(&cluster, transport).await;
        client.put(&one, ONE, &PutOptions::default()).await.unwrap();
        is_alone(&cluster, &client, both).await;
        client.put(&two, TWO, &PutOptions::default()).await.unwrap();
        are_two(&client, both).await;
        client.remove(&one).await.unwrap();
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i16_two_keys_never_share_an_object_of_a_log() {
    let (one, two) = keys();
    let both = (&one[..], &two[..]);
    let cluster = Cluster::start(1, with_log("collide-log")).await.unwrap();
    for transport in [TransportChoice::Shm, TransportChoice::Tcp] {
        let client = client_by(&cluster, transport).await;
        // Attaches: what follows goes into the log.
        client.put(b"first", b"put", &logged(0)).await.unwrap();
        client.put(&one, ONE, &logged(0)).await.unwrap();
        at_rest(&cluster, 0).await;
        is_alone(&cluster, &client, both).await;
        client.put(&two, TWO, &logged(0)).await.unwrap();
        at_rest(&cluster, 0).await;
        are_two(&client, both).await;
        assert_eq!(client.write_counters().by_log, 3, "two of them, and the first");
        client.remove(&one).await.unwrap();
        client.remove(b"first").await.unwrap();
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i16_another_job_has_other_checks_of_the_same_keys() {
    let (a, b) = (config("checks-a"), config("checks-b"));
    let (a, b) = (Cluster::start(2, a).await.unwrap(), Cluster::start(1, b).await.unwrap());
    assert_eq!(a.node(0).hasher(), a.node(1).hasher());
    assert_ne!(a.node(0).hasher(), b.node(0).hasher());
    let mut ids = Vec::new();
    for cluster in [&a, &b] {
        // By its own handle, by one that got the hash key over tcp, and by one that got it over a
        // unix socket.
        cluster.client().put(b"k", b"value", &PutOptions::default()).await.unwrap();
        for transport in [TransportChoice::Tcp, TransportChoice::Auto] {
            let client = client_by(cluster, transport).await;
            assert_eq!(client.get(b"k").await.unwrap(), &b"value"[..]);
        }
        ids.push(cluster.client().get_location(b"k").await.unwrap().into_memory().unwrap().key);
    }
    assert_eq!(ids[0].hash, ids[1].hash);
    assert_ne!(ids[0].check, ids[1].check);
    a.stop().await;
    b.stop().await;
}
