//! How ranks end, and what they show meanwhile: SIGTERM drains, a second signal ends the process at
//! once, and the HTTP endpoints show each phase.

use crate::cluster_process::{EXIT_LIMIT, ProcessCluster, READY_LIMIT, until};
use nkv::message::RankState;
use nkv::{Blocking, PutOptions, WritePlan};
use nkv_pace::{HANGS, timed};
use rustix::process::Signal;
use std::time::Duration;

/// Bound of waits for what should happen at once.
const SOON: Duration = HANGS;
/// Longest time to end without waiting for plans.
const SOON_MS: u64 = 5_000;
const VALUE: &[u8] = &[7; 10_000];

fn on(rank: u32) -> PutOptions {
    PutOptions::default().preferred_rank(rank)
}

/// A plan in the heap of rank 1 that is written but not published.
fn open_plan(handle: &Blocking, key: &[u8]) -> WritePlan {
    let plan = handle.open_for_write(key, VALUE.len() as u64, &on(1)).expect("a plan");
    plan.write_from(0, VALUE).expect("bytes in place");
    plan
}

/// Starts two ranks, opens a plan on rank 1 and sends it SIGTERM; returns when it drains.
fn draining(drain_ms: &'static str) -> (ProcessCluster, Blocking, WritePlan) {
    let cluster = ProcessCluster::start(2, move |command| {
        command.args(["--drain-ms", drain_ms]);
    });
    let handle = cluster.connect(0);
    let plan = open_plan(&handle, b"in flight");
    // The master sends the plan to the owner: only from then on is it open there.
    until(SOON, "the owner knows the plan", || owner(&cluster, 1)["plans_open"] == 1);
    cluster.term(1);
    until(SOON, "rank 1 drains", || {
        let (code, why) = cluster.get(1, "/readyz");
        code == 503 && why.contains("draining")
    });
    (cluster, handle, plan)
}

fn status(cluster: &ProcessCluster, rank: u32) -> serde_json::Value {
    let (code, body) = cluster.get(rank, "/status");
    assert_eq!(code, 200, "{body}");
    serde_json::from_str(&body).expect("JSON")
}

fn owner(cluster: &ProcessCluster, rank: u32) -> serde_json::Value {
    status(cluster, rank)["owner"].clone()
}

#[test]
fn sigterm_lets_what_is_in_flight_finish_then_ends_with_0_and_leaves_nothing() {
    let (mut cluster, handle, plan) = draining("60000");
    let segment = cluster.node(1).segment().to_string();
    assert!(cluster.left_in_shm().contains(&segment));
    assert_eq!(cluster.get(1, "/healthz").0, 200, "a draining rank is healthy");
    handle.publish(plan).unwrap();
    let ended = cluster.wait_exit(1, EXIT_LIMIT);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    assert!(ended.stderr.contains("1 plans finished, 0 given up"), "{}", ended.stderr);
    assert_eq!(ended.stdout.lines().count(), 1, "one line for programs: {}", ended.stdout);
    assert!(!cluster.left_in_shm().iter().any(|name| name.starts_with(&segment)));
    // The other rank still takes puts.
    handle.put(b"after", VALUE, &on(0)).unwrap();
    assert_eq!(handle.get(b"after").unwrap(), VALUE);
}

#[test]
fn a_draining_rank_takes_no_new_plans() {
    let (mut cluster, handle, plan) = draining("60000");
    until(SOON, "the master knows that rank 1 drains", || {
        let view = handle.membership().unwrap();
        view.ranks.iter().any(|(info, state)| info.rank == 1 && *state == RankState::Draining)
    });
    handle.put(b"new", VALUE, &on(1)).unwrap();
    assert_eq!(handle.get_location(b"new").unwrap().rank(), 0, "placed on a rank that stays");
    handle.publish(plan).unwrap();
    assert_eq!(cluster.wait_exit(1, EXIT_LIMIT).code, 0);
}

#[test]
fn what_is_in_flight_longer_than_the_limit_is_given_up() {
    let (mut cluster, _handle, _plan) = draining("300");
    let (ended, took) = timed(|| cluster.wait_exit(1, EXIT_LIMIT));
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    assert!(ended.stderr.contains("0 plans finished, 1 given up"), "{}", ended.stderr);
    assert!(took.within(SOON_MS), "{took}");
    assert!(!cluster.left_in_shm().iter().any(|name| name.contains(".1.")));
}

#[test]
fn a_second_signal_ends_at_once_with_the_signals_code() {
    for (second, code) in [(Signal::TERM, 143), (Signal::INT, 130)] {
        let (mut cluster, _handle, _plan) = draining("60000");
        let (ended, took) = timed(|| cluster.end_at_once(1, second));
        assert_eq!(ended.code, code, "{}", ended.stderr);
        assert!(took.within(SOON_MS), "{took}");
        assert!(!cluster.left_in_shm().iter().any(|name| name.contains(".1.")));
    }
}

#[test]
fn sigint_drains_as_sigterm_does() {
    let mut cluster = ProcessCluster::start(1, |_| {});
    cluster.node(0).signal(Signal::INT);
    let ended = cluster.wait_exit(0, EXIT_LIMIT);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    assert!(ended.stderr.contains("SIGINT"), "{}", ended.stderr);
}

#[test]
fn a_rank_that_still_looks_for_the_master_ends_with_0_as_well() {
    let held = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = held.local_addr().unwrap().port().to_string();
    let mut command = crate::cluster_process::node_command(&crate::cluster_process::new_job());
    command.args(["--rank", "1", "--world-size", "2", "--heap-bytes", "1MiB", "--port", &port]);
    let mut rank = crate::cluster_process::Process::spawn(command);
    // It listens to signals before it looks for anybody.
    held.accept().expect("it looks for the master");
    rank.signal(Signal::TERM);
    let ended = rank.wait_exit(EXIT_LIMIT);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    assert!(ended.stderr.contains("before joining"), "{}", ended.stderr);
}

#[test]
fn a_rank_is_ready_only_when_every_rank_of_the_world_was_met() {
    let mut cluster = ProcessCluster::none(2, |_, _| {});
    cluster.restart(0);
    let (code, why) = cluster.get(0, "/readyz");
    assert_eq!((code, why.as_str()), (503, "waiting for ranks 1 of 2\n"));
    assert_eq!(cluster.get(0, "/healthz").0, 200);
    cluster.restart(1);
    cluster.wait_ready(READY_LIMIT);
    assert_eq!(cluster.get(0, "/readyz"), (200, "ready\n".to_string()));
}

#[test]
fn the_endpoints_show_heaps_objects_and_actors() {
    let cluster = ProcessCluster::start(2, |_| {});
    let handle = cluster.connect(1);
    for key in [b"a", b"b", b"c"] {
        handle.put(key, VALUE, &on(1)).expect("a plan");
        assert_eq!(handle.get(key).unwrap(), VALUE);
    }
    handle.flush().unwrap();
    until(SOON, "three gets were reported", || owner(&cluster, 1)["gets_served"] == 3);
    // A commit is acknowledged before the master sends it to the owner.
    until(SOON, "the owner has heard of three objects", || owner(&cluster, 1)["objects"] == 3);
    let shown = status(&cluster, 1);
    assert_eq!((&shown["rank"], &shown["job"]), (&1.into(), &cluster.job().into()));
    let actors: Vec<&str> =
        shown["actors"].as_array().unwrap().iter().map(|a| a["name"].as_str().unwrap()).collect();
    assert!(
        ["owner", "evictor", "producer"].iter().all(|name| actors.contains(name)),
        "{actors:?}"
    );

    let metrics = cluster.get(1, "/metrics").1;
    for line in [
        "nkv_objects_ready{rank=\"1\"} 3",
        "nkv_gets_served_total{rank=\"1\"} 3",
        "nkv_bytes_read_total{rank=\"1\"} 30000",
        "nkv_heap_total_bytes{rank=\"1\"} 16777216",
        "nkv_actor_panics_total{rank=\"1\",actor=\"owner\"} 0",
        "# TYPE nkv_evictions_total counter",
        "# HELP nkv_evictions_total Objects evicted",
    ] {
        assert!(metrics.lines().any(|l| l == line), "no {line:?} in\n{metrics}");
    }
    let master = cluster.get(0, "/metrics").1;
    assert!(master.lines().any(|l| l == "nkv_master_objects{rank=\"0\"} 3"), "{master}");
    assert!(!metrics.contains("nkv_master_"), "only rank 0 speaks for the cluster");
    assert_eq!(cluster.get(0, "/nothing").0, 404);
}
