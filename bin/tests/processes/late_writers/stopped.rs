//! Ranks that are stopped for longer than the TTL and run again: the master, which then must not
//! declare other ranks gone, and an owner, which then gets a new incarnation.

use super::scene::{
    CALL_MS, SLACK, SMALL_BYTES, Times, cluster, expect, expect_all, kind_in_time, put, put_some,
    settled,
};
use super::writer::{signal, stop};
use crate::cluster_process::until;
use nkv::message::Existence;
use nkv::{Blocking, ErrorKind, TransportChoice};
use nkv_store::clock::{BootClock, Clock};
use rustix::process::Signal;
use std::collections::BTreeMap;

const TIMES: Times = Times { ttl_ms: 1_000, write_ttl_ms: 2_000 };
/// How long rank 0 is stopped, at least.
const STANDS_MS: u64 = 5 * TIMES.ttl_ms / 2;

fn incarnations(client: &Blocking) -> BTreeMap<u32, u64> {
    let view = client.membership().expect("a view");
    view.ranks.into_iter().map(|(info, _)| (info.rank, info.incarnation)).collect()
}

pub fn a_master_that_stood_for_longer_than_the_ttl_declares_nobody_gone() {
    let cluster = cluster(3, TIMES);
    let client = cluster.connect(1);
    let keys: Vec<Vec<String>> =
        (0..3).map(|rank| put_some(&client, &format!("of/{rank}"), 8, rank)).collect();
    keys.iter().for_each(|k| expect_all(&client, k));
    client.remove(keys[1][0].as_bytes()).unwrap();
    let before = incarnations(&client);

    let since = BootClock.now_ms();
    stop(cluster.node(0).pid());
    // Located objects are still read; calls that need the master fail in time.
    expect_all(&client, &keys[1][1..]);
    expect_all(&client, &keys[2]);
    let mut round = 0;
    while BootClock.now_ms() - since < STANDS_MS {
        round += 1;
        let key = format!("meanwhile/{round}");
        let kind = kind_in_time("put", || put(&client, &key, SMALL_BYTES, 1, 0));
        assert!(
            matches!(kind, Some(ErrorKind::Timeout | ErrorKind::Disconnected)),
            "a put without the master: {kind:?}"
        );
        let read = kind_in_time("get of a key on rank 0", || client.get(keys[0][0].as_bytes()));
        assert!(
            matches!(read, Some(ErrorKind::Timeout | ErrorKind::Disconnected)),
            "a get from a rank that stands: {read:?}"
        );
        expect_all(&client, &keys[2]);
    }
    signal(cluster.node(0).pid(), Signal::CONT);

    until(SLACK, "puts on every rank", || {
        (0..3).all(|rank| {
            round += 1;
            put(&client, &format!("after/{round}"), SMALL_BYTES, rank, 0).is_ok()
        })
    });
    assert_eq!(incarnations(&client), before, "nobody lost anything");
    expect_all(&client, &keys[0]);
    expect_all(&client, &keys[1][1..]);
    expect_all(&client, &keys[2]);
    let gone = client.exists(&[keys[1][0].as_bytes()]).unwrap();
    assert_eq!(gone, [Existence::Absent], "what was removed stays removed");
    (0..3).for_each(|rank| settled(&client, rank, SLACK));
}

pub fn an_owner_that_stood_for_longer_than_the_ttl_comes_back_as_another_and_empty() {
    let mut cluster = cluster(2, TIMES);
    let by_shm = cluster.connect_by(0, TransportChoice::Shm);
    let by_tcp = cluster.connect_by(0, TransportChoice::Tcp);
    let keys = put_some(&by_tcp, "stood", 8, 1);
    for client in [&by_shm, &by_tcp] {
        // Not from rank 0's private memory: both clients can reach rank 1.
        expect_all(client, &keys);
    }
    let located = keys.iter().map(|k| by_tcp.get_location(k.as_bytes()).unwrap());
    let metas: Vec<_> = located.filter_map(nkv::message::Location::into_memory).collect();
    let before = incarnations(&by_tcp)[&1];

    stop(cluster.node(1).pid());
    until(SLACK, "it is declared gone", || by_tcp.stats().unwrap().ranks.len() == 1);
    for key in &keys {
        let kind = kind_in_time("get", || by_tcp.get(key.as_bytes()));
        assert_eq!(kind, Some(ErrorKind::NotFound), "{key}, whose owner is gone");
    }
    put(&by_tcp, &keys[0], SMALL_BYTES, 0, 1).expect("its key is free");
    signal(cluster.node(1).pid(), Signal::CONT);

    cluster.joined_again(1);
    until(SLACK, "it is a member again", || incarnations(&by_tcp).contains_key(&1));
    assert_ne!(incarnations(&by_tcp)[&1], before, "an incarnation once gone is gone for good");
    expect(&by_tcp, &keys[0], SMALL_BYTES, 1);
    let names: Vec<&[u8]> = keys[1..].iter().map(|k| k.as_bytes()).collect();
    let found = by_tcp.exists(&names).unwrap();
    assert!(found.iter().all(|f| *f == Existence::Absent), "it comes back empty: {found:?}");
    for (client, meta) in
        [&by_shm, &by_tcp].into_iter().flat_map(|c| metas.iter().map(move |m| (c, m)))
    {
        let mut dst = vec![0; SMALL_BYTES];
        let kind = kind_in_time("read where it lay", || client.read_into(meta, &mut dst));
        assert!(
            matches!(kind, Some(ErrorKind::Disconnected | ErrorKind::NotFound)),
            "a location of an incarnation that is gone: {kind:?} (limit {CALL_MS} ms)"
        );
    }
    put(&by_shm, "new", SMALL_BYTES, 1, 0).expect("it takes objects");
    expect(&by_shm, "new", SMALL_BYTES, 0);
    settled(&by_tcp, 1, SLACK);
}
