//! A cluster whose clients reach its memory through RDMA devices alone. Needs a device:
//! `scripts/rdma-test` runs it in a guest with Soft-RoCE.

mod deaths;
mod vram;

use crate::cluster_process::{ProcessCluster, until};
use nkv::message::Existence;
use nkv::{Blocking, ErrorKind, IfExists, PutOptions, TransportChoice};
use nkv_pace::{HANGS, timed};
use nkv_store::Buffer;
use nkv_transport::Kind;
use std::time::Duration;

/// Bound of waits; the guest is emulated and slow.
const SOON: Duration = HANGS;

fn bytes(seed: u32, len: usize) -> Vec<u8> {
    (0..len as u32)
        .map(|i| (i.wrapping_mul(2_654_435_761).wrapping_add(seed) >> 13) as u8)
        .collect()
}

fn on(rank: u32) -> PutOptions {
    PutOptions::default().preferred_rank(rank)
}

fn by_devices(cluster: &ProcessCluster) -> Blocking {
    cluster.connect_by(0, TransportChoice::Rdma)
}

fn owner(cluster: &ProcessCluster, rank: u32) -> serde_json::Value {
    let (_, body) = cluster.get(rank, "/status");
    serde_json::from_str(&body).unwrap()
}

#[test]
fn values_of_every_size_go_through_devices_and_come_back_whole() {
    let cluster = ProcessCluster::start(3, |_| {});
    let (writer, reader) = (by_devices(&cluster), by_devices(&cluster));
    let sizes = [0, 1, 63, 4096, 65_537, 1 << 20, (3 << 20) + 5];
    for (i, size) in sizes.into_iter().enumerate() {
        let (key, value) = (format!("k{i}"), bytes(i as u32, size));
        writer.put(key.as_bytes(), &value, &on(i as u32 % 3)).unwrap();
        assert!(reader.get(key.as_bytes()).unwrap() == value, "{size} bytes");
        let once = on(0).if_exists(IfExists::Fail);
        let e = writer.put(key.as_bytes(), b"another", &once).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::AlreadyExists);
    }
    let keys: Vec<String> = (0..sizes.len()).map(|i| format!("k{i}")).collect();
    let keys: Vec<&[u8]> = keys.iter().map(String::as_bytes).collect();
    assert_eq!(reader.exists(&keys).unwrap(), vec![Existence::Ready; keys.len()]);
    let values: Vec<Vec<u8>> = (0..40).map(|i| bytes(i, 10_000)).collect();
    let names: Vec<String> = (0..40).map(|i| format!("many/{i}")).collect();
    let items: Vec<(&[u8], &[u8])> =
        names.iter().zip(&values).map(|(n, v)| (n.as_bytes(), v.as_slice())).collect();
    assert!(writer.put_many(&items, &PutOptions::default()).iter().all(Result::is_ok));
    for (name, value) in items {
        assert!(reader.get(name).unwrap() == value, "{}", String::from_utf8_lossy(name));
    }
    writer.remove(b"k3").unwrap();
    assert_eq!(reader.get(b"k3").unwrap_err().kind(), ErrorKind::NotFound);
    let registered = |len| writer.client().register(Buffer::new(len).unwrap()).unwrap();
    // Read into it at odd addresses.
    let (mut from, mut into) = (registered(3 << 20), registered((3 << 20) + 1));
    from.copy_from_slice(&bytes(77, 3 << 20));
    for len in [100, 5_000, 3 << 20] {
        let key = format!("registered {len}");
        writer.put(key.as_bytes(), &from[..len], &on(1)).unwrap();
        assert_eq!(writer.get_into(key.as_bytes(), &mut into[1..]).unwrap(), len);
        assert!(into[1..=len] == from[..len], "{len} bytes");
    }
    let plan = writer.open_for_write(b"by hand", 100, &on(1)).unwrap();
    assert_eq!(plan.transport(), Some(Kind::Rdma));
    plan.write_from(0, &bytes(9, 100)).unwrap();
    writer.publish(plan).unwrap();
    assert!(reader.get(b"by hand").unwrap() == bytes(9, 100));
    for n in 0..6 {
        let brief = by_devices(&cluster);
        (0..3)
            .for_each(|rank| brief.put(format!("{n} {rank}").as_bytes(), b"v", &on(rank)).unwrap());
        // Ending its queue pairs takes a while: the client itself must not count as a producer that
        // still writes.
        let (_, took) = timed(|| brief.close());
        assert!(took.within(1_500), "closing took {took}");
    }
}

#[test]
fn i1_claims_of_hosts_and_of_this_one_are_counted_by_the_device_and_those_by_tcp_take_plans() {
    let cluster = ProcessCluster::start(2, |command| {
        command.args(["--log-bytes", "4MiB", "--atomic-domain", "nic"]);
    });
    let far = [by_devices(&cluster), by_devices(&cluster)];
    let (near, by_tcp) =
        (cluster.connect_by(0, TransportChoice::Shm), cluster.connect_by(0, TransportChoice::Tcp));
    let by_log = |rank| on(rank).device_alloc(true);
    for i in 0..60u32 {
        let (key, value) = (format!("log{i}"), bytes(i, 1 + i as usize * 700));
        let writer = [&far[0], &far[1], &near][i as usize % 3];
        writer.put(key.as_bytes(), &value, &by_log(i % 2)).unwrap();
        let reader = [&near, &far[0], &by_tcp][i as usize % 3];
        assert!(reader.get(key.as_bytes()).unwrap() == value, "{key}");
    }
    by_tcp.put(b"by tcp", b"a plan", &by_log(1)).unwrap();
    for (handle, by_log, by_plan) in
        [(&far[0], 20, 0), (&far[1], 20, 0), (&near, 20, 0), (&by_tcp, 0, 1)]
    {
        let writes = handle.client().write_counters();
        assert_eq!((writes.by_log, writes.by_plan), (by_log, by_plan), "{writes:?}");
    }
    for rank in 0..2 {
        until(SOON, "all are accepted", || owner(&cluster, rank)["owner"]["log_accepted"] == 30);
    }
}

#[test]
fn i10_a_plan_past_its_deadline_is_dropped_by_its_handle_and_takes_no_late_byte() {
    let cluster = ProcessCluster::start(2, |command| {
        // A second, since other puts take a while in a guest.
        command.args(["--write-ttl-ms", "1000"]);
    });
    let producer = by_devices(&cluster);
    let plan = producer.open_for_write(b"late", 4096, &on(1)).unwrap();
    plan.write_from(0, &[1; 2048]).unwrap();
    // After the deadline the owner sends Drop, and the handle acknowledges it, since its gate is
    // empty.
    until(SOON, "the plan ended", || owner(&cluster, 1)["owner"]["plans_open"] == 0);
    let late = plan.write_from(2048, &[2; 2048]).unwrap_err();
    assert_eq!(late.kind(), ErrorKind::Reclaimed, "{late}");
    producer.put(b"late", b"again", &on(1)).unwrap();
    assert_eq!(producer.get(b"late").unwrap(), b"again"[..]);
}
