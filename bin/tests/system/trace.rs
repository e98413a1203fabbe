//! The first requests of a published workload, replayed by the real `nkv-load`, against the
//! arithmetic of a plain set: with room for all blocks a cache may not hit one block more or less.
//! With little room each eviction policy is held to what the policy alone, without any node, would
//! hit. Without the published trace the tests make one of the same shape.

use nkv::message::OwnerGauges;
use nkv::{Cluster, NodeConfig};
use nkv_store::PolicyKind;
use serde_json::Value;
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;
use tempfile::TempDir;
use tokio::runtime::Runtime;

/// Requests that are replayed.
const REQUESTS: usize = 1000;
/// Bytes of a block: the unit of placement, so that a test needs little memory.
const BLOCK_BYTES: u64 = 4096;
/// Payload bytes of each of three ranks: all blocks fit even if one rank gets half of them.
const HEAP_BYTES: u64 = 64 << 20;
/// Fraction of a trace's blocks that fits where room is little: one in this many.
const LITTLE_ROOM: usize = 5;
/// How far the hit ratio of three real ranks may be from that of one policy without any node: their
/// blocks are spread by hash, and retired memory is held for a quarantine.
const TOLERANCE: f64 = 0.005;
/// Hit ratios of the whole published trace with a tenth of its blocks, simulated independently.
const PUBLISHED: [(PolicyKind, f64); 4] = [
    (PolicyKind::Lru, 0.278),
    (PolicyKind::Fifo, 0.248),
    (PolicyKind::Lru2, 0.288),
    (PolicyKind::Prefix, 0.290),
];
/// How long the nodes' counters may take to show what was read.
const COUNTERS_LIMIT: Duration = nkv_pace::HANGS;
const COUNTERS_PAUSE: Duration = Duration::from_millis(20);

/// Expected counts, computed from the trace alone.
#[derive(Debug, Default, PartialEq)]
struct Arithmetic {
    requests: u64,
    blocks: u64,
    hit_blocks: u64,
    unique: u64,
}

fn arithmetic(requests: &[Vec<u64>]) -> Arithmetic {
    let mut seen = HashSet::new();
    let mut sums = Arithmetic::default();
    for ids in requests {
        sums.requests += 1;
        sums.blocks += ids.len() as u64;
        sums.hit_blocks += ids.iter().take_while(|id| seen.contains(*id)).count() as u64;
        seen.extend(ids.iter().copied());
    }
    Arithmetic { unique: seen.len() as u64, ..sums }
}

/// The hit ratio of one policy in a cache with room for `room` blocks.
fn hit_ratio(requests: &[Vec<u64>], room: usize, kind: PolicyKind) -> f64 {
    let mut policy = kind.build(room as u32);
    let (mut slot_of, mut blocks, mut hits) = (HashMap::new(), Vec::new(), 0);
    let mut epoch = 0;
    for ids in requests {
        let run: Vec<(u32, u32)> = ids.iter().map_while(|id| slot_of.get(id).copied()).collect();
        hits += run.len();
        run.iter().rev().for_each(|&(slot, epoch)| policy.touch(slot, epoch));
        for id in ids[run.len()..].iter().rev() {
            if slot_of.contains_key(id) {
                continue;
            }
            epoch += 1;
            let slot = if blocks.len() < room {
                blocks.push(*id);
                blocks.len() as u32 - 1
            } else {
                let (slot, ..) = policy.victim().unwrap();
                slot_of.remove(&std::mem::replace(&mut blocks[slot as usize], *id));
                slot
            };
            match ids.last() == Some(id) {
                true => policy.admit_last(slot, epoch, BLOCK_BYTES),
                false => policy.admit(slot, epoch, BLOCK_BYTES),
            }
            slot_of.insert(*id, (slot, epoch));
        }
    }
    hits as f64 / requests.iter().map(Vec::len).sum::<usize>() as f64
}

/// The trace beside the repository, or a made one in `dir`.
fn trace(dir: &Path) -> (PathBuf, Vec<Vec<u64>>) {
    let path = published().unwrap_or_else(|| made_trace(dir));
    let requests = requests_of(&path, REQUESTS);
    (path, requests)
}

/// The published trace, where it lies beside the repository.
fn published() -> Option<PathBuf> {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/traces/conversation_trace.jsonl");
    path.is_file().then_some(path)
}

/// The blocks of the first `limit` requests of a trace.
fn requests_of(path: &Path, limit: usize) -> Vec<Vec<u64>> {
    let text = std::fs::read_to_string(path).unwrap();
    let ids_of = |line: &str| {
        let request: Value = serde_json::from_str(line).unwrap();
        serde_json::from_value(request["hash_ids"].clone()).unwrap()
    };
    text.lines().take(limit).map(ids_of).collect()
}

/// Conversations that go on: a request repeats the blocks of an earlier one, a recent one more
/// likely, and adds some of its own; all begin with the same block.
fn made_trace(dir: &Path) -> PathBuf {
    let mut random = 1u64;
    let mut draw = |limit: usize| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        ((random >> 33) as usize) % limit
    };
    let (mut conversations, mut next, mut text) = (Vec::<Vec<u64>>::new(), 1, String::new());
    for timestamp in 0..REQUESTS {
        // How far back: heavy-tailed, like the distance between two turns of a conversation.
        let recent = conversations.len();
        let back = if recent == 0 { 0 } else { recent / (1 + draw(recent)) };
        let goes_on = back > 0 && draw(100) < 40;
        let mut ids = if goes_on { conversations[recent - back].clone() } else { vec![0] };
        for _ in 0..1 + draw(30) {
            ids.push(next);
            next += 1;
        }
        text += &format!("{{\"timestamp\": {timestamp}, \"hash_ids\": {ids:?}}}\n");
        conversations.push(ids);
    }
    let path = dir.join("made_trace.jsonl");
    std::fs::write(&path, text).unwrap();
    path
}

/// Runs `nkv-load` to its end.
fn run(trace: &Path, flags: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_nkv-load"))
        .arg("--trace")
        .arg(trace)
        .args(["--requests", &REQUESTS.to_string(), "--json", "-"])
        .args(["--block-bytes", &BLOCK_BYTES.to_string()])
        .args(flags)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

/// The same; its outcome as JSON.
fn replay(trace: &Path, flags: &[&str]) -> (Output, Value) {
    let output = run(trace, flags);
    let json = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|e| panic!("no JSON ({e}): {}", String::from_utf8_lossy(&output.stderr)));
    (output, json)
}

fn assert_agrees(output: &Output, json: &Value, expected: &Arithmetic) {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    let figure = |name: &str| json[name].as_u64();
    assert_eq!(figure("wrong_bytes"), Some(0), "{stderr}");
    assert_eq!(figure("failed"), Some(0), "{stderr}");
    assert_eq!(figure("requests"), Some(expected.requests));
    assert_eq!(figure("blocks"), Some(expected.blocks));
    assert_eq!(figure("hit_blocks"), Some(expected.hit_blocks), "{stderr}");
    let ratio = expected.hit_blocks as f64 / expected.blocks as f64;
    assert!((json["prefix_hit_ratio"].as_f64().unwrap() - ratio).abs() < 1e-9);
}

/// Figures of all owners once they show `gets`, or at the end of a bounded wait.
fn owners(rt: &Runtime, cluster: &Cluster, gets: u64) -> Vec<OwnerGauges> {
    let client = cluster.client();
    rt.block_on(async {
        let poll = async {
            loop {
                let stats = client.stats().await.unwrap();
                let all: Vec<OwnerGauges> = stats.ranks.iter().map(|r| r.owner).collect();
                let settled = all.iter().map(|o| o.gets_served).sum::<u64>() >= gets
                    && all.iter().map(|o| o.objects + o.log_objects).sum::<u64>() >= stats.objects;
                if settled {
                    return;
                }
                tokio::time::sleep(COUNTERS_PAUSE).await;
            }
        };
        let _ = tokio::time::timeout(COUNTERS_LIMIT, poll).await;
        client.stats().await.unwrap().ranks.iter().map(|r| r.owner).collect()
    })
}

#[test]
fn with_an_ssd_the_replay_hits_all_that_can_be_hit_though_memory_has_little_room() {
    let dir = TempDir::new().unwrap();
    let (path, requests) = trace(dir.path());
    let expected = arithmetic(&requests);
    for policy in ["write_through", "evict_only"] {
        let ssd = dir.path().join(policy);
        let flags = ["--heap-percent", "10", "--ssd-policy", policy];
        let (output, json) =
            replay(&path, &[&flags[..], &["--ssd-dir", ssd.to_str().unwrap()]].concat());
        assert_agrees(&output, &json, &expected);
        assert!(json["disk_blocks"].as_u64() > Some(0), "{policy}");
    }
    let ssd = dir.path().join("evict_only");
    let again = run(&path, &["--ssd-dir", ssd.to_str().unwrap()]);
    let stderr = String::from_utf8_lossy(&again.stderr);
    assert!(!again.status.success() && stderr.contains("name an empty one"), "{stderr}");
}

/// What was put in the last milliseconds before the kill may be lost; nothing else is.
#[test]
fn ranks_that_are_killed_in_the_middle_go_on_with_what_is_on_disk() {
    let dir = TempDir::new().unwrap();
    let (path, requests) = trace(dir.path());
    let expected = arithmetic(&requests);
    let (half, ssd) = ((REQUESTS / 2).to_string(), dir.path().join("ssd"));
    let flags = [
        "--heap-percent",
        "20",
        "--ssd-policy",
        "write_through",
        "--ssd-durability",
        "persistent",
        "--restart-at",
        &half,
        "--ssd-dir",
        ssd.to_str().unwrap(),
    ];
    let (output, json) = replay(&path, &flags);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    assert!(stderr.contains("killed and started again"), "{stderr}");
    assert_eq!((json["wrong_bytes"].as_u64(), json["failed"].as_u64()), (Some(0), Some(0)));
    let hits = json["hit_blocks"].as_u64().unwrap();
    assert!(hits <= expected.hit_blocks && hits >= expected.hit_blocks / 10 * 9, "{hits} {stderr}");
}

#[test]
fn over_running_ranks_the_replay_hits_what_the_arithmetic_says_and_the_owners_agree() {
    replayed_over_running_ranks("auto");
}

/// Needs a device: `scripts/rdma-test`.
#[cfg(feature = "rdma")]
#[test]
fn through_devices_the_replay_hits_what_the_arithmetic_says_and_the_owners_agree() {
    replayed_over_running_ranks("rdma");
}

fn replayed_over_running_ranks(transport: &str) {
    let dir = TempDir::new().unwrap();
    let (path, requests) = trace(dir.path());
    let expected = arithmetic(&requests);
    assert!(expected.hit_blocks > expected.blocks / 10, "{expected:?} shares too little");

    let job = format!("trace-test-{}", std::process::id());
    let rt = Runtime::new().unwrap();
    // Devices may not claim in a log of the processors' domain: their puts take plans, which then
    // have all the room.
    let log_bytes = (transport == "rdma").then_some(0);
    let config =
        NodeConfig { job: job.clone(), heap_bytes: HEAP_BYTES, log_bytes, ..NodeConfig::default() };
    let cluster = rt.block_on(Cluster::start(3, config)).unwrap();
    let address = cluster.node(0).info().control.to_string();
    let to = ["--connect", &address, "--job", &job, "--transport", transport];
    let (output, json) = replay(&path, &to);
    assert_agrees(&output, &json, &expected);

    let owners = owners(&rt, &cluster, expected.hit_blocks);
    let sum = |figure: fn(&OwnerGauges) -> u64| owners.iter().map(figure).sum::<u64>();
    assert_eq!(sum(|o| o.gets_served), expected.hit_blocks);
    assert_eq!(sum(|o| o.bytes_read), expected.hit_blocks * BLOCK_BYTES);
    assert_eq!(sum(|o| o.objects + o.log_objects), expected.unique);
    assert_eq!(sum(|o| o.evictions + o.log_evictions), 0);
    for owner in &owners {
        let percent = (owner.objects + owner.log_objects) * 100 / expected.unique;
        assert!((25..=45).contains(&percent), "a rank holds {percent}% of the blocks");
    }
    rt.block_on(cluster.stop());
}

#[test]
fn embedded_with_room_for_all_the_replay_hits_what_the_arithmetic_says() {
    let dir = TempDir::new().unwrap();
    let (path, requests) = trace(dir.path());
    let expected = arithmetic(&requests);
    let page = dir.path().join("replay.html");
    let heap_bytes = HEAP_BYTES.to_string();
    let flags = ["--heap-bytes", &heap_bytes, "--report", page.to_str().unwrap()];
    let (output, json) = replay(&path, &flags);
    assert_agrees(&output, &json, &expected);
    let page = std::fs::read_to_string(page).unwrap();
    for text in ["\"op\":\"match_prefix\"", "\"op\":\"get\"", "\"op\":\"put\"", "lru"] {
        assert!(page.contains(text), "the report lacks {text}");
    }
}

#[test]
fn with_little_room_each_policy_hits_what_it_hits_without_any_node_and_no_byte_is_wrong() {
    let dir = TempDir::new().unwrap();
    let (path, requests) = trace(dir.path());
    let expected = arithmetic(&requests);
    let room = expected.unique as usize / LITTLE_ROOM;
    let heap_bytes = (room as u64 * BLOCK_BYTES / 3).to_string();
    let flags = ["--heap-bytes", &heap_bytes, "--log-bytes", "0", "--watermarks", "100/99"];
    let flags = [&flags[..], &["--quarantine-ms", "5"]].concat();
    for (kind, _) in PUBLISHED {
        let name = kind.to_string();
        let (output, json) = replay(&path, &[&flags[..], &["--policy", &name]].concat());
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{name}: {stderr}");
        assert_eq!(json["wrong_bytes"], 0, "{name}: {stderr}");
        let hits = json["hit_blocks"].as_u64().unwrap();
        assert!(hits < expected.hit_blocks, "{name}, {hits}: nothing was evicted");
        let (ratio, alone) =
            (json["prefix_hit_ratio"].as_f64().unwrap(), hit_ratio(&requests, room, kind));
        assert!((ratio - alone).abs() < TOLERANCE, "{name}: {ratio} with nodes, {alone} without");
    }
}

#[test]
fn a_policy_hits_of_the_published_trace_what_it_did_elsewhere_and_two_segments_most() {
    let dir = TempDir::new().unwrap();
    let ratios_of = |requests: &[Vec<u64>]| {
        let room = arithmetic(requests).unique as usize / 10;
        PUBLISHED.map(|(kind, _)| hit_ratio(requests, room, kind))
    };
    let [lru, fifo, lru2, prefix] = ratios_of(&requests_of(&made_trace(dir.path()), REQUESTS));
    assert!(fifo < lru && lru < lru2 && lru < prefix, "made: {fifo} {lru} {lru2} {prefix}");
    let Some(path) = published() else {
        return eprintln!("the published trace is not beside the repository: only a made one");
    };
    let ratios = ratios_of(&requests_of(&path, usize::MAX));
    for ((kind, elsewhere), ratio) in PUBLISHED.into_iter().zip(ratios) {
        assert!((ratio - elsewhere).abs() < 0.002, "{kind}: {ratio}, elsewhere {elsewhere}");
    }
}

#[test]
fn the_made_trace_shares_prefixes_and_replays_like_the_published_one() {
    let dir = TempDir::new().unwrap();
    let path = made_trace(dir.path());
    let expected = arithmetic(&requests_of(&path, REQUESTS));
    let ratio = expected.hit_blocks as f64 / expected.blocks as f64;
    assert!((0.15..0.75).contains(&ratio), "{ratio}");
    assert!(expected.unique * BLOCK_BYTES < 3 * HEAP_BYTES / 2, "{expected:?} is too large");
    let (output, json) = replay(&path, &["--heap-bytes", &HEAP_BYTES.to_string()]);
    assert_agrees(&output, &json, &expected);
}

#[test]
fn a_made_up_workload_hits_all_that_can_be_hit_where_there_is_room_and_less_where_there_is_little()
{
    // Of the blocks of the requests that are replayed, half fill ranks that have a log.
    let workload = Path::new("generated:documents,sessions=700");
    let ratio = |room: &str| {
        let (output, json) = replay(workload, &["--heap-percent", room]);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{stderr}");
        assert_eq!((&json["wrong_bytes"], &json["failed"]), (&0.into(), &0.into()), "{stderr}");
        (json["prefix_hit_ratio"].as_f64().unwrap(), stderr)
    };
    let (all, stderr) = ratio("200");
    assert!(stderr.contains(&format!("the ratio would be {all:.4}")), "{all}: {stderr}");
    let (some, stderr) = ratio("50");
    assert!(all / 2.0 < some && some < all, "{some} of {all}: {stderr}");
    assert!(stderr.contains("objects at the tails of logs"), "{stderr}");
}
