//! The runs of `nkv-load` that measure budgets, against a node of its own: every row and rate that
//! `scripts/bench` reads is there, every byte right, and what cannot be measured is refused with
//! the flag to change. Figures are not judged here: a test is no place for times.

use crate::cluster_process::{Ended, ProcessCluster, run_to_end};
use serde_json::Value;
use std::process::Command;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(120);
const SIZES: [u64; 6] = [4 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20];

fn node(heap: &'static str, log: &'static str) -> ProcessCluster {
    ProcessCluster::start(1, move |c| {
        c.args(["--heap-bytes", heap, "--log-bytes", log, "--no-prefault"]);
    })
}

fn load(cluster: &ProcessCluster, args: &[&str]) -> Ended {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nkv-load"));
    let to = ["--connect", cluster.node(0).control(), "--job", cluster.job(), "--json", "-"];
    command.args(to).args(args);
    run_to_end(command, LIMIT)
}

fn outcome(ended: &Ended) -> Value {
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    let json: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!((&json["wrong_bytes"], &json["failed"]), (&Value::from(0), &Value::from(0)));
    json
}

/// True if there is a row for `op` and `bytes` with at least one operation.
fn has_row(json: &Value, op: &str, bytes: u64) -> bool {
    let rows = json["ops"].as_array().unwrap();
    rows.iter().any(|r| r["op"] == op && r["bytes"] == bytes && r["p50_us"].as_f64() > Some(0.0))
}

fn rate(json: &Value, op: &str, processes: u64) -> f64 {
    let all = json["rates"].as_array().unwrap();
    let found = all.iter().find(|r| r["op"] == op && r["processes"] == processes);
    found.unwrap_or_else(|| panic!("no rate of {op}, {processes}: {json}"))["per_s"]
        .as_f64()
        .unwrap()
}

#[test]
fn every_row_of_the_budgets_is_there_with_a_copy_beside_it() {
    // Producers that are faster than a starved owner's log put small objects into the heap by
    // plans: it has room for them and for the ring's large objects.
    let cluster = node("640MiB", "128MiB");
    let json = outcome(&load(&cluster, &["--budgets", "--ring-bytes", "32MiB"]));
    for size in SIZES {
        for op in ["get warm", "get cold", "put log busy"] {
            assert!(has_row(&json, op, size), "{op} {size}: {json}");
        }
    }
    for op in
        ["get jumping", "get under load", "put log isolated", "put plan busy", "put plan idle"]
    {
        assert!(has_row(&json, op, SIZES[0]), "{op}: {json}");
    }
    let rows = json["ops"].as_array().unwrap();
    // Batches are there to compare other clients with.
    let (batches, others): (Vec<_>, Vec<_>) =
        rows.iter().partition(|row| row["op"].as_str().unwrap().ends_with(" batch"));
    assert!(others.iter().all(|row| row["vs_memcpy"].as_f64() > Some(0.0)), "{json}");
    assert_eq!(batches.len(), 2, "{json}");
    assert!(has_row(&json, "put batch", SIZES[2]) && has_row(&json, "get batch", SIZES[2]));
    assert!(rate(&json, "put log", 1) > 0.0 && rate(&json, "put log", 2) > 0.0);
}

#[test]
fn by_tcp_large_copies_are_timed_one_by_one_and_in_batches() {
    let cluster = node("512MiB", "0");
    let json = outcome(&load(&cluster, &["--budgets", "--transport", "tcp"]));
    for op in ["put", "put batch", "get", "get batch"] {
        assert!(SIZES[3..].iter().all(|size| has_row(&json, op, *size)), "{op}: {json}");
    }
}

#[test]
fn lookups_find_all_that_is_there_and_nothing_else_and_a_log_too_small_is_refused() {
    let cluster = node("80MiB", "64MiB");
    let json = outcome(&load(&cluster, &["--lookups", "10000"]));
    let (asked, hits) = (json["blocks"].as_u64().unwrap(), json["hit_blocks"].as_u64().unwrap());
    assert_eq!(asked, 60_000, "three passes over as many there as not");
    assert!(hits > 29_900 && hits <= 30_000, "{hits}");
    assert!(rate(&json, "lookup hit", 1) > 0.0 && rate(&json, "lookup miss", 1) > 0.0);

    let handle = cluster.connect(0);
    assert_eq!(handle.list(None, None, 10).unwrap(), [], "it takes its objects along");

    let ended = load(&cluster, &["--lookups", "20000"]);
    assert_eq!(ended.code, 6, "{}", ended.stderr);
    assert!(ended.stderr.contains("--log-bytes 361MiB"), "{}", ended.stderr);
}

#[test]
fn a_node_without_a_log_or_with_too_small_a_heap_is_refused_with_the_flag_to_change() {
    let cluster = node("64MiB", "0");
    let ended = load(&cluster, &["--budgets", "--ring-bytes", "32MiB"]);
    assert_eq!(ended.code, 6);
    assert!(ended.stderr.contains("--log-bytes 1GiB"), "{}", ended.stderr);
    let ended = load(&cluster, &["--lookups", "5"]);
    assert_eq!(ended.code, 6);
    assert!(ended.stderr.contains("--log-bytes 257MiB"), "{}", ended.stderr);

    let cluster = node("64MiB", "32MiB");
    let ended = load(&cluster, &["--budgets", "--ring-bytes", "32MiB"]);
    assert_eq!(ended.code, 6);
    assert!(ended.stderr.contains("--heap-bytes"), "{}", ended.stderr);
}
