//! The ring between a client and the node on its host, as processes use it: that it is used at all,
//! and that neither end waits for the other for ever, whatever becomes of it and whenever.

use crate::cluster_process::{ProcessCluster, clean_command, until};
use nkv::message::Existence;
use nkv::{Blocking, Client, ClientConfig, Error, ErrorKind, PutOptions, TransportChoice};
use nkv_pace::{HANGS, Took, timed};
use nkv_store::threads::spawn_named;
use rustix::process::Signal;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// How /proc shows the memory of a ring.
const RING: &str = "/memfd:nkv-nameless";
/// Limit of one call.
const CALL_MS: u64 = 1_000;
/// What a call may take over its limit.
const SLACK_MS: u64 = 1_000;
const LIMIT: Duration = HANGS;
/// Number of kills, each after another delay.
const ROUNDS: u64 = 6;

/// Rings that a rank shares with clients now.
fn rings(cluster: &ProcessCluster) -> usize {
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", cluster.node(0).pid())).unwrap();
    maps.lines().filter(|line| line.contains(RING)).count()
}

fn config(cluster: &ProcessCluster, transport: TransportChoice) -> ClientConfig {
    let job = cluster.job().to_string();
    ClientConfig { job, transport, call_timeout_ms: CALL_MS, ..ClientConfig::default() }
}

fn blocking(cluster: &ProcessCluster) -> Blocking {
    Blocking::connect(&cluster.address(0), config(cluster, TransportChoice::Auto)).unwrap()
}

/// Repeats the call until it fails; returns the error and how long that call took.
fn until_it_fails(mut call: impl FnMut() -> Result<(), Error>) -> (Error, Took) {
    loop {
        if let (Err(e), took) = timed(&mut call) {
            return (e, took);
        }
    }
}

#[test]
fn a_client_on_this_host_has_a_ring_unless_it_wants_tcp() {
    let cluster = ProcessCluster::start(1, |_| {});
    let near = blocking(&cluster);
    let opts = PutOptions::default();
    near.put(b"k", b"through the ring", &opts).unwrap();
    assert_eq!(near.get(b"k").unwrap(), &b"through the ring"[..]);
    assert_eq!(rings(&cluster), 1);
    let far = Blocking::connect(&cluster.address(0), config(&cluster, TransportChoice::Tcp));
    assert_eq!(far.unwrap().get(b"k").unwrap(), &b"through the ring"[..]);
    assert_eq!(rings(&cluster), 1, "who wants tcp shares no memory");
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let config = config(&cluster, TransportChoice::Auto);
        let client = Client::connect(&cluster.address(0), config).await.unwrap();
        client.put(b"l", b"from a task", &opts).await.unwrap();
        assert_eq!(client.get(b"l").await.unwrap(), &b"from a task"[..]);
        assert_eq!(rings(&cluster), 2);
    });
    drop((near, runtime));
    until(LIMIT, "rings of clients that left are unmapped", || rings(&cluster) == 0);
}

#[test]
fn batches_larger_than_a_ring_come_through_both_ways() {
    let cluster = ProcessCluster::start(1, |_| {});
    let handle = blocking(&cluster);
    handle.put(b"there", b"value", &PutOptions::default()).unwrap();
    // Some 2 MiB of request and 160 KiB of answer; a lane has 64 KiB.
    let mut keys: Vec<Vec<u8>> = (0..40_000).map(|i| format!("absent/{i:040}").into()).collect();
    keys.push(b"there".to_vec());
    let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
    let found = handle.exists(&keys).unwrap();
    assert_eq!(found.iter().filter(|e| **e == Existence::Absent).count(), 40_000);
    assert_eq!(found.last(), Some(&Existence::Ready));
    assert_eq!(rings(&cluster), 1);
}

#[test]
fn i18_a_node_killed_at_any_moment_ends_its_clients_calls_with_disconnected() {
    for round in 0..ROUNDS {
        let mut cluster = ProcessCluster::start(1, |_| {});
        let handle = blocking(&cluster);
        let opts = PutOptions::default();
        handle.put(b"first", b"value", &opts).unwrap();
        let client = spawn_named("test-client", move || {
            let mut n = 0;
            until_it_fails(|| {
                n += 1;
                handle.put(format!("k{n}").as_bytes(), b"value", &opts)?;
                handle.exists(&[b"first"]).map(drop)
            })
        });
        std::thread::sleep(Duration::from_micros(20_000 + 317 * round));
        cluster.kill9(0);
        let (error, took) = client.unwrap().join().unwrap();
        assert_eq!(error.kind(), ErrorKind::Disconnected, "{error}");
        assert!(took.within(CALL_MS + SLACK_MS), "{took} in round {round}");
    }
}

#[test]
fn i18_a_stopped_node_ends_a_call_with_timeout_and_serves_the_next_one_when_it_goes_on() {
    let cluster = ProcessCluster::start(1, |_| {});
    let handle = blocking(&cluster);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let config = config(&cluster, TransportChoice::Auto);
    let tasks = runtime.block_on(Client::connect(&cluster.address(0), config)).unwrap();
    let of_a_thread = || handle.exists(&[b"k"]).map(drop);
    let of_a_task = || runtime.block_on(tasks.exists(&[b"k"])).map(drop);
    let calls: [&dyn Fn() -> Result<(), Error>; 2] = [&of_a_thread, &of_a_task];
    for call in calls {
        call().unwrap();
        cluster.node(0).stop();
        let (ended, took) = timed(call);
        cluster.node(0).signal(Signal::CONT);
        assert_eq!(ended.unwrap_err().kind(), ErrorKind::Timeout);
        assert!(took.ms >= CALL_MS && took.within(CALL_MS + SLACK_MS), "{took}");
        until(LIMIT, "served again", || call().is_ok());
    }
}

/// `nkv-load` against a cluster: a process that puts and gets as fast as it can.
fn load(cluster: &ProcessCluster) -> Child {
    let mut command: Command = clean_command(env!("CARGO_BIN_EXE_nkv-load"));
    command.args(["--connect", cluster.node(0).control(), "--job", cluster.job()]);
    command.args(["--size", "4KiB", "--mix", "2:1:1", "--duration", "60"]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().unwrap()
}

#[test]
fn i18_a_client_killed_at_any_moment_leaves_its_ring_and_holds_nobody_up() {
    let cluster = ProcessCluster::start(1, |_| {});
    let handle = blocking(&cluster);
    let opts = PutOptions::default();
    handle.put(b"first", b"value", &opts).unwrap();
    for round in 0..ROUNDS {
        let mut client = load(&cluster);
        until(LIMIT, "a ring of its own", || rings(&cluster) == 2);
        std::thread::sleep(Duration::from_micros(5_000 + 731 * round));
        client.kill().unwrap();
        let (put, took) = timed(|| handle.put(format!("k{round}").as_bytes(), b"value", &opts));
        put.unwrap();
        assert!(took.within(CALL_MS), "{took} beside a client that was killed");
        client.wait().unwrap();
        until(LIMIT, "its ring is gone", || rings(&cluster) == 1);
    }
}

#[test]
fn i18_a_client_that_stands_still_in_a_call_holds_nobody_up() {
    let cluster = ProcessCluster::start(1, |_| {});
    let handle = blocking(&cluster);
    handle.exists(&[b"k"]).unwrap();
    let mut client = load(&cluster);
    until(LIMIT, "a ring of its own", || rings(&cluster) == 2);
    for round in 0..ROUNDS {
        std::thread::sleep(Duration::from_micros(3_000 + 419 * round));
        let pid = rustix::process::Pid::from_child(&client);
        rustix::process::kill_process(pid, Signal::STOP).unwrap();
        for _ in 0..50 {
            let (found, took) = timed(|| handle.exists(&[b"k"]));
            found.unwrap();
            assert!(took.within(CALL_MS), "{took} beside a client that stands still");
        }
        rustix::process::kill_process(pid, Signal::CONT).unwrap();
    }
    client.kill().unwrap();
    client.wait().unwrap();
}
