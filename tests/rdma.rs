//! A cluster whose clients reach its memory through RDMA devices alone. Needs a device: `scripts/rdma-test` runs
//! it in a guest with Soft-RoCE.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod cluster_process;

use cluster_process::{ProcessCluster, clean_command, timed, until};
use nkv::message::{Existence, PutOptions};
use nkv::store::Buffer;
use nkv::store::threads::spawn_named;
use nkv::transport::Kind;
use nkv::{Blocking, ErrorKind, TransportChoice};
use rustix::process::Signal;
use std::process::{Child, Stdio};
use std::time::Duration;

/// Bound of what should happen soon: the guest is emulated.
const SOON: Duration = Duration::from_secs(20);

fn bytes(seed: u32, len: usize) -> Vec<u8> {
    (0..len as u32)
        .map(|i| (i.wrapping_mul(2_654_435_761).wrapping_add(seed) >> 13) as u8)
        .collect()
}

fn on(rank: u32) -> PutOptions {
    PutOptions { preferred_segment: Some(rank), ..PutOptions::default() }
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
        let e = writer.put(key.as_bytes(), b"another", &on(0)).unwrap_err();
        assert_eq!(e.kind, ErrorKind::AlreadyExists);
    }
    let keys: Vec<String> = (0..sizes.len()).map(|i| format!("k{i}")).collect();
    let keys: Vec<&[u8]> = keys.iter().map(String::as_bytes).collect();
    assert_eq!(reader.exists(&keys, false).unwrap(), vec![Existence::Ready; keys.len()]);
    let values: Vec<Vec<u8>> = (0..40).map(|i| bytes(i, 10_000)).collect();
    let names: Vec<String> = (0..40).map(|i| format!("many/{i}")).collect();
    let items: Vec<(&[u8], &[u8])> =
        names.iter().zip(&values).map(|(n, v)| (n.as_bytes(), v.as_slice())).collect();
    assert!(writer.put_many(&items, &PutOptions::default()).iter().all(Result::is_ok));
    for (name, value) in items {
        assert!(reader.get(name).unwrap() == value, "{}", String::from_utf8_lossy(name));
    }
    writer.remove(b"k3").unwrap();
    assert_eq!(reader.get(b"k3").unwrap_err().kind, ErrorKind::NotFound);
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
}

#[test]
fn i1_claims_of_hosts_and_of_this_one_are_counted_by_the_device_and_those_by_tcp_take_plans() {
    let cluster = ProcessCluster::start(2, |command| {
        command.args(["--log-bytes", "4MiB", "--atomic-domain", "nic"]);
    });
    let far = [by_devices(&cluster), by_devices(&cluster)];
    let (near, by_tcp) =
        (cluster.connect_by(0, TransportChoice::Shm), cluster.connect_by(0, TransportChoice::Tcp));
    let by_log = |rank| PutOptions { device_alloc: Some(true), ..on(rank) };
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
        // A second: what else is put takes a while in a guest.
        command.args(["--write-ttl-ms", "1000"]);
    });
    let producer = by_devices(&cluster);
    let plan = producer.open_for_write(b"late", 4096, &on(1)).unwrap();
    plan.write_from(0, &[1; 2048]).unwrap();
    // Past its deadline the owner says Drop, and the handle answers: its gate is empty.
    until(SOON, "the plan ended", || owner(&cluster, 1)["owner"]["plans_open"] == 0);
    let late = plan.write_from(2048, &[2; 2048]).unwrap_err();
    assert_eq!(late.kind, ErrorKind::Reclaimed, "{late}");
    producer.put(b"late", b"again", &on(1)).unwrap();
    assert_eq!(producer.get(b"late").unwrap(), b"again"[..]);
}

#[test]
fn i18_after_an_owners_death_calls_end_in_time_and_the_others_go_on() {
    let mut cluster = ProcessCluster::start(3, |_| {});
    let handle = by_devices(&cluster);
    for rank in 0..3 {
        handle.put(format!("on{rank}").as_bytes(), &bytes(rank, 50_000), &on(rank)).unwrap();
    }
    cluster.kill9(2);
    let (outcome, ms) = timed(|| handle.get(b"on2"));
    let e = outcome.unwrap_err();
    assert!(matches!(e.kind, ErrorKind::Disconnected | ErrorKind::NotFound), "{e}");
    assert!(ms <= 4_000, "{ms} ms");
    assert!(handle.get(b"on1").unwrap() == bytes(1, 50_000));
    cluster.restart(2);
    cluster.wait_ready(SOON);
    handle.put(b"anew", &bytes(7, 50_000), &on(2)).unwrap();
    assert!(handle.get(b"anew").unwrap() == bytes(7, 50_000));
}

fn load(cluster: &ProcessCluster, seconds: &str) -> Child {
    let mut command = clean_command(env!("CARGO_BIN_EXE_nkv-load"));
    let to = ["--connect", cluster.node(0).control(), "--job", cluster.job()];
    let run = ["--transport", "rdma", "--size", "64KiB", "--duration", seconds, "--clients", "2"];
    command.args(to).args(run).stdout(Stdio::null()).stderr(Stdio::piped());
    command.spawn().unwrap()
}

#[test]
fn i10_a_stopped_producer_is_severed_and_its_extent_comes_back_while_it_stands() {
    let cluster = ProcessCluster::start(1, |command| {
        command.args(["--write-ttl-ms", "500"]);
    });
    let mut producer = load(&cluster, "60");
    let pid = rustix::process::Pid::from_child(&producer);
    let signal = |s| rustix::process::kill_process(pid, s).unwrap();
    until(SOON, "it is stopped in the middle of a plan", || {
        signal(Signal::STOP);
        let open = owner(&cluster, 0)["owner"]["plans_open"] != 0;
        if !open {
            signal(Signal::CONT);
        }
        open
    });
    until(SOON, "its plans are over", || {
        let o = &owner(&cluster, 0)["owner"];
        o["plans_open"] == 0 && o["fencing"] == 0
    });
    let checker = by_devices(&cluster);
    checker.put(b"meanwhile", &bytes(3, 200_000), &on(0)).unwrap();
    signal(Signal::CONT);
    let before = owner(&cluster, 0)["owner"]["objects"].as_u64().unwrap();
    until(SOON, "it attaches again and goes on", || {
        owner(&cluster, 0)["owner"]["objects"].as_u64().unwrap() > before
    });
    assert!(checker.get(b"meanwhile").unwrap() == bytes(3, 200_000));
    producer.kill().unwrap();
    producer.wait().unwrap();
}

/// Kills of either side; `NKV_RDMA_KILLS` (5).
fn rounds() -> u64 {
    std::env::var("NKV_RDMA_KILLS").ok().and_then(|n| n.parse().ok()).unwrap_or(5)
}

/// Queue pairs and registrations of this machine, as the kernel counts them.
fn resources() -> (u64, u64) {
    let told = std::process::Command::new("rdma").args(["resource", "show"]).output().unwrap();
    let told = String::from_utf8(told.stdout).unwrap();
    let sum = |name: &str| {
        let words: Vec<&str> = told.split_whitespace().collect();
        words.windows(2).filter(|w| w[0] == name).map(|w| w[1].parse::<u64>().unwrap()).sum()
    };
    (sum("qp"), sum("mr"))
}

#[test]
fn i18_owners_killed_in_the_middle_of_transfers_cost_no_wrong_byte_and_no_pair() {
    let mut cluster = ProcessCluster::start(3, |command| {
        command.args(["--ttl-ms", "2000", "--log-bytes", "1MiB", "--atomic-domain", "nic"]);
    });
    let checker = by_devices(&cluster);
    checker.put(b"stays", &bytes(1, 100_000), &on(1)).unwrap();
    assert!(checker.get(b"stays").unwrap() == bytes(1, 100_000));
    for rank in [0, 2] {
        checker.put(format!("met {rank}").as_bytes(), &bytes(rank, 10), &on(rank)).unwrap();
    }
    let before = resources();
    assert!(before.0 >= 6 && before.1 >= 6, "both ends of three ways: {before:?}");
    for round in 0..rounds() {
        let client = by_devices(&cluster);
        let pid = rustix::process::Pid::from_raw(cluster.node(2).pid() as i32).unwrap();
        let killer = spawn_named("killer", move || {
            std::thread::sleep(Duration::from_millis(50 + 17 * (round % 11)));
            rustix::process::kill_process(pid, Signal::KILL).unwrap();
        });
        let killer = killer.unwrap();
        let mut put = Vec::new();
        // Until it is dead, and a few more.
        let mut left = 4;
        for n in 0u32.. {
            let (key, value) = (format!("{round}/{n}"), bytes(n, 60_000 + n as usize));
            let opts = PutOptions { device_alloc: Some(n % 2 == 0), ..on(n % 3) };
            if client.put(key.as_bytes(), &value, &opts).is_ok() {
                put.push((key, value, n % 3));
            }
            left -= u32::from(killer.is_finished());
            if left == 0 {
                break;
            }
        }
        cluster.kill9(2);
        for (key, value, rank) in &put {
            match checker.get(key.as_bytes()) {
                Ok(found) => assert!(found == *value, "{key}"),
                Err(e) => assert!(*rank == 2, "{key} on rank {rank}: {e}"),
            }
        }
        assert!(checker.get(b"stays").unwrap() == bytes(1, 100_000), "round {round}");
        client.close();
        cluster.restart(2);
        cluster.wait_ready(SOON);
    }
    until(SOON, "no pair and no registration is left of the dead", || {
        let (pairs, registered) = resources();
        pairs <= before.0 && registered <= before.1
    });
}

#[test]
fn i10_i12_producers_killed_in_the_middle_leave_no_pair_and_no_space_behind() {
    let rounds = rounds();
    let cluster = ProcessCluster::start(2, |command| {
        command.args(["--write-ttl-ms", "1000"]);
    });
    let checker = by_devices(&cluster);
    for round in 0..rounds {
        checker.put(b"stays", &bytes(1, 100_000), &on(1)).unwrap();
        let mut producer = load(&cluster, "60");
        until(SOON, "it puts", || owner(&cluster, 1)["owner"]["objects"].as_u64().unwrap() > 3);
        std::thread::sleep(Duration::from_millis(13 * (round % 7)));
        producer.kill().unwrap();
        producer.wait().unwrap();
        for rank in 0..2 {
            until(SOON, "its ways are severed and its plans over", || {
                let status = owner(&cluster, rank);
                let (attached, o) = (status["attachments"].as_u64().unwrap(), &status["owner"]);
                // The nodes' own handles, and the checker.
                attached <= 3 && o["plans_open"] == 0 && o["fencing"] == 0
            });
        }
        assert!(checker.get(b"stays").unwrap() == bytes(1, 100_000), "round {round}");
        checker.remove_all().unwrap();
        for rank in 0..2 {
            until(SOON, "all space is back", || owner(&cluster, rank)["owner"]["heap_used"] == 0);
        }
    }
}
