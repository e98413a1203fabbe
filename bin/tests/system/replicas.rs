//! Replicas at ranks as processes: a rank that is killed, and a master that is, cost no get.

use crate::cluster_process::{EXIT_LIMIT, ProcessCluster, run_to_end, until};
use nkv::{Blocking, PutOptions, TransportChoice};
use nkv_pace::HANGS;
use nkv_store::clock::{BootClock, Clock};

const BLOCK: usize = 16 << 10;
const KEYS: usize = 500;
const GETS: usize = 10_000;

fn content(key: usize) -> Vec<u8> {
    let seed = 0x9e37_79b9_7f4a_7c15u64.wrapping_mul(key as u64 + 1);
    (0..BLOCK as u64 / 8).flat_map(|i| seed.wrapping_mul(2 * i + 1).to_le_bytes()).collect()
}

fn name(key: usize) -> Vec<u8> {
    format!("block/{key}").into_bytes()
}

fn put_all(handle: &Blocking) {
    for key in 0..KEYS {
        let (name, content) = (name(key), content(key));
        let opts = PutOptions::default().replicas(2);
        let made = handle.put_replicas(&[(&name, &content)], &opts).remove(0);
        assert_eq!(made.unwrap(), 2, "{key}");
    }
}

fn get(handle: &Blocking, key: usize) {
    let got = handle.get(&name(key));
    let got = got.unwrap_or_else(|e| panic!("block/{key}: {e}"));
    assert!(got == content(key), "block/{key} has other bytes");
}

/// The times of calls are printed, and judged by no test.
#[test]
fn i18_a_holder_is_killed_in_the_middle_of_ten_thousand_gets_and_none_fails() {
    for transport in [TransportChoice::Tcp, TransportChoice::Shm] {
        let mut cluster = ProcessCluster::start(3, |command| {
            command.args(["--heap-bytes", "64MiB"]);
        });
        let handle = cluster.connect_by(0, transport);
        put_all(&handle);
        let mut times = Vec::with_capacity(GETS);
        for i in 0..GETS {
            if i == GETS / 2 {
                cluster.kill9(2);
            }
            let began = BootClock.now_ns();
            get(&handle, i * 7 % KEYS);
            times.push(BootClock.now_ns() - began);
        }
        times.sort_unstable();
        let [p50, p99, most] = [GETS / 2, GETS * 99 / 100, GETS - 1].map(|i| times[i] / 1_000);
        eprintln!("{transport:?}: a get took p50 {p50} us, p99 {p99} us, at most {most} us");
        handle.close();
    }
}

#[test]
fn i6_a_master_that_was_killed_learns_of_replicas_from_their_owners() {
    let mut cluster = ProcessCluster::start(3, |command| {
        command.args(["--heap-bytes", "64MiB"]);
    });
    let handle = cluster.connect(1);
    put_all(&handle);
    handle.remove(&name(0)).unwrap();
    let of_master = |key: &usize| {
        handle.get_replicas(&name(*key)).is_ok_and(|found| found.iter().any(|at| at.rank() == 0))
    };
    let lost = (1..KEYS).filter(of_master).count();
    assert!(lost > 0 && lost < KEYS - 1, "{lost}");
    cluster.kill9(0);
    cluster.restart(0);
    cluster.wait_ready(EXIT_LIMIT);
    let handle = cluster.connect(2);
    (1..KEYS).for_each(|key| get(&handle, key));
    assert!(handle.get(&name(0)).is_err());
    // Those of the lost memory are made again.
    wait_for_replicas(&handle, 2);
    for key in 1..KEYS {
        handle.remove(&name(key)).unwrap();
    }
    until(HANGS, "all memory is free", || {
        handle.stats().unwrap().ranks.iter().all(|r| r.owner.live_bytes == 0)
    });
}

#[test]
fn nkv_put_says_how_many_replicas_it_made_and_ls_where_they_are() {
    let cluster = ProcessCluster::start(2, |_| {});
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), b"kv bytes").unwrap();
    let run = |args: &[&str]| {
        let done = run_to_end(cluster.cli(0, args), HANGS);
        (done.code, done.stdout)
    };
    let path = file.path().to_str().unwrap();
    let (code, text) = run(&["put", "k", path, "--replicas", "3"]);
    assert!(code == 0 && text.contains("2 of 3 replicas"), "{code} {text}");
    let (code, text) = run(&["put", "k2", path, "--replicas", "2", "--json"]);
    let put: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!((code, &put["replicas"]), (0, &2.into()), "{put}");
    let (code, text) = run(&["put", "k2", path, "--replicas", "2"]);
    assert!(code != 0, "{text}");
    let (code, text) = run(&["put", "k2", path, "--replicas", "2", "--if-exists", "keep"]);
    assert!(code == 0 && text.contains("stored before"), "{code} {text}");
    let (_, text) = run(&["ls", "--json"]);
    let listed: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(listed["keys"][0]["ranks"].as_array().unwrap().len(), 2, "{listed}");
    let (code, text) = run(&["put", "k3", path, "--replicas", "9"]);
    assert_eq!(code, 2, "{text}");
    let (code, text) = run(&["put", "named", path, "--at", "1,0:host", "--hard-pin"]);
    assert!(code == 0 && text.contains("on ranks 1, 0"), "{code} {text}");
    let (_, text) = run(&["ls", "--long", "named"]);
    assert!(text.contains("1,0") && text.contains("hard-pin"), "{text}");
    let (code, text) = run(&["put", "one", path, "--at", "1"]);
    assert!(code == 0 && text.contains("on rank 1"), "{code} {text}");
    let (code, text) = run(&["put", "some", path, "--at", "1,device"]);
    assert!(code == 0 && text.contains("1 of 2 replicas"), "{code} {text}");
    for wrong in ["2", "1:vram", "0,1,0,1,0,1,0,1,0"] {
        assert_eq!(run(&["put", "k3", path, "--at", wrong]).0, 2, "{wrong}");
    }
    assert_eq!(run(&["put", "k3", path, "--at", "1", "--rank", "1"]).0, 2);
    let done = run_to_end(cluster.cli(0, &["put", "k3", path, "--at", "device"]), HANGS);
    assert!(done.code != 0 && done.stderr.contains("memory of the kind device"), "{}", done.stderr);
}

/// The replicas of all keys, 1 and on.
fn wait_for_replicas(handle: &Blocking, n: usize) {
    until(HANGS, "so many replicas of each key", || {
        (1..KEYS).all(|key| handle.get_replicas(&name(key)).is_ok_and(|found| found.len() == n))
    });
}

#[test]
fn of_three_ranks_two_die_one_after_the_other_with_a_repair_between_and_nothing_is_lost() {
    let mut cluster = ProcessCluster::start(3, |command| {
        command.args(["--heap-bytes", "64MiB", "--ttl-ms", "3000"]);
    });
    let handle = cluster.connect_by(0, TransportChoice::Shm);
    put_all(&handle);
    cluster.kill9(2);
    wait_for_replicas(&handle, 2);
    assert!(handle.stats().unwrap().master.replicas_repaired > 0);
    cluster.kill9(1);
    // One rank of three is no majority: the master answers nothing, and indexes do.
    (1..KEYS).for_each(|key| get(&handle, key));
    for rank in [1, 2] {
        cluster.restart(rank);
    }
    cluster.wait_ready(EXIT_LIMIT);
    wait_for_replicas(&handle, 2);
    (0..KEYS).for_each(|key| get(&handle, key));
}

#[test]
fn nkv_replicate_gives_a_key_replicas_and_takes_them_back() {
    let cluster = ProcessCluster::start(2, |_| {});
    let run = |args: &[&str]| {
        let done = run_to_end(cluster.cli(0, args), HANGS);
        (done.code, done.stdout)
    };
    let handle = cluster.connect(0);
    handle.put(b"k", &content(1), &PutOptions::default()).unwrap();
    let (code, text) = run(&["replicate", "k", "-n", "2"]);
    assert!(code == 0 && text.contains("k: 2 of 2 replicas"), "{code} {text}");
    let (code, text) = run(&["replicate", "k", "absent", "-n", "3", "--wait", "0"]);
    assert!(code == 1 && text.contains("absent: absent"), "{code} {text}");
    let (code, text) = run(&["replicate", "k", "-n", "3", "--wait", "0"]);
    assert!(code == 0 && text.contains("of 3 replicas"), "{code} {text}");
    let (code, text) = run(&["replicate", "k", "-n", "3", "--wait", "1"]);
    assert!(code == 1 && text.contains("2 of 3 replicas"), "{code} {text}");
    let (code, text) = run(&["replicate", "k", "-n", "1", "--json"]);
    let done: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!((code, done["keys"][0]["ranks"].as_array().unwrap().len()), (0, 1), "{done}");
    assert!(handle.get(b"k").unwrap() == content(1));
}
