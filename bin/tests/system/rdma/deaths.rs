//! Either side is killed or stopped in the middle of a write: no wrong byte, a fence before
//! anything is reused, and no resource left behind.

use crate::cluster_process::{ProcessCluster, clean_command, until};
use crate::rdma::{SOON, by_devices, bytes, on, owner};
use nkv::ErrorKind;
use nkv_pace::timed;
use nkv_store::threads::spawn_named;
use rustix::process::{Pid, Signal, kill_process};
use std::collections::{BTreeMap, BTreeSet};
use std::process::{Child, Stdio};
use std::time::Duration;

#[test]
fn i18_after_an_owners_death_calls_end_in_time_and_the_others_go_on() {
    let mut cluster = ProcessCluster::start(3, |_| {});
    let handle = by_devices(&cluster);
    for rank in 0..3 {
        handle.put(format!("on{rank}").as_bytes(), &bytes(rank, 50_000), &on(rank)).unwrap();
    }
    cluster.kill9(2);
    let (outcome, took) = timed(|| handle.get(b"on2"));
    let e = outcome.unwrap_err();
    assert!(matches!(e.kind(), ErrorKind::Disconnected | ErrorKind::NotFound), "{e}");
    assert!(took.within(4_000), "{took}");
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

/// Log filter of the lines from which the order of fences is read.
const ORDER: &str = "nkv_actors=debug,nkv_transport=debug";

/// Stops a producer while it has a plan open on that rank.
fn stop_in_a_plan(cluster: &ProcessCluster, rank: u32, producer: &Child) {
    let signal = |s| kill_process(Pid::from_child(producer), s).unwrap();
    until(SOON, "it is stopped in the middle of a plan", || {
        signal(Signal::STOP);
        let is_open = || owner(cluster, rank)["owner"]["plans_open"] != 0;
        // A request that it had sent before may still end its plan.
        let open = is_open() && {
            std::thread::sleep(Duration::from_millis(200));
            is_open()
        };
        if !open {
            signal(Signal::CONT);
        }
        open
    });
}

/// Checks in a rank's log that each fence came after its proof: every data path through which the
/// producer writes was severed, or the producer had answered over that data path's own attach
/// connection [I10]. Returns how many were fenced by severing alone.
fn fenced_by_severing(log_text: &str) -> usize {
    let field = |line: &str, name: &str| {
        let at = line.find(&format!("{name}=")).unwrap_or_else(|| panic!("no {name}: {line}"));
        let rest = &line[at + name.len() + 1..];
        let end = if rest.starts_with('[') { rest.find(']') } else { rest.find(' ') };
        rest[..end.unwrap_or(rest.len())].to_string()
    };
    let mut pairs_of: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let (mut words, mut severed) = (BTreeSet::new(), 0);
    for line in log_text.lines() {
        if line.contains(": writes through devices") {
            pairs_of.entry(field(line, "producer")).or_default().insert(field(line, "pairs"));
        } else if line.contains(": severed") {
            let pairs = field(line, "pairs");
            for of in pairs_of.values_mut() {
                of.remove(&pairs);
            }
        } else if line.contains(": dropped by producer") {
            words.insert((field(line, "pairs"), field(line, "plan")));
        } else if line.contains(": fenced") {
            let (producer, plan) = (field(line, "producer"), field(line, "plan"));
            // A producer that attached before this part of the log, or not through a device, is not
            // checked.
            let Some(left) = pairs_of.get(&producer) else { continue };
            if left.is_empty() {
                severed += 1;
            }
            let unproven = |pairs: &&String| !words.contains(&((*pairs).clone(), plan.clone()));
            let writes_on = left.iter().find(unproven);
            assert!(
                writes_on.is_none(),
                "fenced while {producer} writes through {writes_on:?}: {line}"
            );
        }
    }
    severed
}

#[test]
fn i10_a_stopped_producer_is_severed_and_its_extent_comes_back_while_it_stands() {
    let cluster = ProcessCluster::start(1, |command| {
        // The checker's first put attaches.
        command.args(["--write-ttl-ms", "1500", "--log", ORDER]);
    });
    let attached = || owner(&cluster, 0)["attachments"].as_u64().unwrap();
    let mut producer = load(&cluster, "60");
    // It attaches with its first put.
    until(SOON, "it puts", || owner(&cluster, 0)["owner"]["objects"].as_u64().unwrap() > 3);
    stop_in_a_plan(&cluster, 0, &producer);
    let standing = attached();
    until(SOON, "its plans are over", || {
        let o = &owner(&cluster, 0)["owner"];
        o["plans_open"] == 0 && o["fencing"] == 0
    });
    let log_text = cluster.node(0).stderr();
    assert!(fenced_by_severing(&log_text) > 0, "it could not answer:\n{log_text}");
    // One or both of its clients had a plan.
    until(SOON, "the link of what was severed is closed", || attached() < standing);
    let checker = by_devices(&cluster);
    checker.put(b"meanwhile", &bytes(3, 200_000), &on(0)).unwrap();
    kill_process(Pid::from_child(&producer), Signal::CONT).unwrap();
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
    let shown = std::process::Command::new("rdma").args(["resource", "show"]).output().unwrap();
    let shown = String::from_utf8(shown.stdout).unwrap();
    let sum = |name: &str| {
        let words: Vec<&str> = shown.split_whitespace().collect();
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
        let pid = Pid::from_raw(cluster.node(2).pid() as i32).unwrap();
        let killer = spawn_named("killer", move || {
            std::thread::sleep(Duration::from_millis(50 + 17 * (round % 11)));
            kill_process(pid, Signal::KILL).unwrap();
        });
        let killer = killer.unwrap();
        let mut put = Vec::new();
        // Until it is dead, and a few operations more.
        let mut left = 4;
        for n in 0u32.. {
            let (key, value) = (format!("{round}/{n}"), bytes(n, 60_000 + n as usize));
            let opts = on(n % 3).device_alloc(n % 2 == 0);
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
        command.args(["--write-ttl-ms", "1000", "--log", ORDER]);
    });
    let checker = by_devices(&cluster);
    for round in 0..rounds {
        checker.put(b"stays", &bytes(1, 100_000), &on(1)).unwrap();
        let mut producer = load(&cluster, "60");
        until(SOON, "it puts", || owner(&cluster, 1)["owner"]["objects"].as_u64().unwrap() > 3);
        std::thread::sleep(Duration::from_millis(13 * (round % 7)));
        // Half of them certainly in the middle of a plan.
        if round % 2 == 0 {
            stop_in_a_plan(&cluster, 1, &producer);
        }
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
    let log_text = cluster.node(1).stderr();
    let fenced = fenced_by_severing(&log_text);
    assert!(fenced as u64 >= rounds / 2, "{fenced} plans of the dead were fenced by severing");
}
