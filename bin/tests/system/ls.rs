//! `nkv ls` and `nkv rm --matching`, `--all` against three running ranks: the output, what scripts
//! may rely on, and the effect of a stopped or dead rank.

use crate::cluster_process::{Ended, ProcessCluster, run_to_end, until};
use nkv::{Blocking, ErrorKind, PutOptions};
use nkv_pace::{HANGS, timed};
use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::process::Stdio;
use std::time::Duration;

const LIMIT: Duration = HANGS;
/// A call to a rank that does not answer ends within two seconds [I18]; the rest is for the start
/// and end of the process.
const ANSWER_MS: u64 = 3_500;

fn nkv(cluster: &ProcessCluster, rank: u32, args: &[&str]) -> Ended {
    run_to_end(cluster.cli(rank, args), LIMIT)
}

fn put(handle: &Blocking, key: &[u8], value: &[u8], rank: u32) {
    let opts = PutOptions::default().preferred_rank(rank);
    handle.put(key, value, &opts).expect("a put");
}

/// `n` keys `PREFIX0000`, in turn on all ranks.
fn fill(handle: &Blocking, prefix: &str, n: u32) {
    for i in 0..n {
        put(handle, format!("{prefix}{i:04}").as_bytes(), b"value", i % 3);
    }
}

#[test]
fn ls_shows_keys_by_lines_by_pattern_as_a_table_and_as_json() {
    let cluster = ProcessCluster::start(3, |_| {});
    let none = nkv(&cluster, 0, &["ls"]);
    assert_eq!((none.code, none.stdout.as_str(), none.stderr.as_str()), (0, "", ""));
    assert_eq!(nkv(&cluster, 0, &["ls", "--json"]).stdout, "{\"keys\":[],\"more\":false}\n");

    let handle = cluster.connect(1);
    put(&handle, b"run-1/b", &[1; 70_000], 2);
    put(&handle, b"run-1/a", b"x", 0);
    put(&handle, b"run-2/a", b"", 1);
    put(&handle, b"\xff\n", b"bytes", 1);
    let all = nkv(&cluster, 2, &["ls"]);
    assert_eq!((all.code, all.stdout.as_str()), (0, "run-1/a\nrun-1/b\nrun-2/a\n\"\\xff\\n\"\n"));
    let some = nkv(&cluster, 1, &["ls", "a$"]);
    assert_eq!((some.code, some.stdout.as_str()), (0, "run-1/a\nrun-2/a\n"));
    let bytes = nkv(&cluster, 0, &["ls", r"(?-u:\xff)"]);
    assert_eq!((bytes.code, bytes.stdout.as_str()), (0, "\"\\xff\\n\"\n"));
    let long = nkv(&cluster, 0, &["ls", "--long", "^run-1/"]).stdout;
    let columns = |line: &str| line.split_whitespace().map(str::to_string).collect::<Vec<_>>();
    let lines: Vec<_> = long.lines().map(columns).collect();
    assert_eq!(
        lines,
        [
            ["bytes", "ranks", "state", "retention", "key"],
            ["1", "0", "ready", "usual", "run-1/a"],
            ["70000", "2", "ready", "usual", "run-1/b"],
        ]
    );
    let json = nkv(&cluster, 0, &["ls", "^run-2", "--json"]).stdout;
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    let row = serde_json::json!({
        "key": "run-2/a", "bytes": 0, "rank": 1, "ranks": [1], "extras": [],
        "retention": "usual", "state": "ready"
    });
    assert_eq!(json, serde_json::json!({ "keys": [row], "more": false }));

    let absent = nkv(&cluster, 0, &["ls", "^a"]);
    assert_eq!((absent.code, absent.stdout.as_str()), (1, ""));
    let cut = nkv(&cluster, 0, &["ls", "--limit", "2"]);
    assert_eq!((cut.code, cut.stdout.as_str()), (0, "run-1/a\nrun-1/b\n"));
    assert_eq!(cut.sentence(), "nkv: only the first 2 shown; there are more");
    assert_eq!(nkv(&cluster, 0, &["ls", "--limit", "4"]).stderr, "");
    let wrong = nkv(&cluster, 0, &["ls", "run-("]);
    assert_eq!(wrong.code, 2);
    assert!(wrong.stderr.contains("unclosed group"), "{}", wrong.stderr);
}

#[test]
fn rm_takes_keys_by_name_by_pattern_or_all_of_them_and_never_all_by_mistake() {
    let cluster = ProcessCluster::start(3, |_| {});
    fill(&cluster.connect(0), "run-1/", 30);
    fill(&cluster.connect(0), "run-2/", 30);
    let some = nkv(&cluster, 1, &["rm", "--matching", "^run-1/"]);
    assert_eq!((some.code, some.stdout.as_str()), (0, "30 keys removed\n"));
    let one = nkv(&cluster, 1, &["rm", "--matching", "/0007$"]);
    assert_eq!((one.code, one.stdout.as_str()), (0, "1 key removed\n"));
    let none = nkv(&cluster, 1, &["rm", "--matching", "^run-1/"]);
    assert_eq!((none.code, none.stdout.as_str()), (1, "0 keys removed\n"));
    assert_eq!(nkv(&cluster, 2, &["rm", "--matching", "run-("]).code, 2);
    assert_eq!(nkv(&cluster, 2, &["ls"]).stdout.lines().count(), 29);

    let mut unsaid = cluster.cli(0, &["rm", "--all"]);
    unsaid.stdin(Stdio::null());
    let unsaid = run_to_end(unsaid, LIMIT);
    assert_eq!((unsaid.code, unsaid.stdout.as_str()), (2, ""));
    assert!(unsaid.sentence().contains("--yes"), "{}", unsaid.stderr);
    assert_eq!(nkv(&cluster, 2, &["ls"]).stdout.lines().count(), 29, "nothing was removed");

    let all = nkv(&cluster, 0, &["rm", "--all", "--yes", "--json"]);
    assert_eq!((all.code, all.stdout.as_str()), (0, "{\"removed\":29,\"removed_from_disk\":0}\n"));
    assert_eq!(nkv(&cluster, 1, &["ls"]).stdout, "");
    let empty = nkv(&cluster, 0, &["rm", "--all", "--yes"]);
    assert_eq!((empty.code, empty.stdout.as_str()), (0, "0 keys removed\n"));
    until(LIMIT, "every byte is free again", || {
        let stats = cluster.connect(0).stats().expect("stats");
        stats.ranks.iter().all(|r| r.allocated_bytes == 0 && r.owner.heap_used == 0)
    });
}

#[test]
fn a_key_given_to_rm_may_be_any_bytes_that_ls_showed() {
    let cluster = ProcessCluster::start(1, |_| {});
    let handle = cluster.connect(0);
    let keys: [&[u8]; 8] = [
        b"\xfe\x01",
        b"\0",
        b"a\nb",
        b"-x",
        b"\"q\"",
        b" blank ",
        b"back\\slash",
        "\u{fc}".as_bytes(),
    ];
    for key in keys {
        handle.put(key, key, &PutOptions::default()).expect("a put");
    }
    let listed = nkv(&cluster, 0, &["ls"]).stdout;
    let lines: Vec<&str> = listed.lines().collect();
    assert_eq!(lines.len(), keys.len(), "{listed}");
    for line in &lines {
        let exists = nkv(&cluster, 0, &["exists", line]);
        assert_eq!(exists.stdout, format!("{line}: ready\n"), "{}", exists.stderr);
    }
    // With --literal-keys an argument in quotes and escapes names the key of exactly those bytes.
    let mut rm = cluster.cli(0, &["rm", "--literal-keys"]);
    rm.arg(OsStr::from_bytes(b"\xfe\x01")).arg("\"q\"");
    assert_eq!(run_to_end(rm, LIMIT).stdout, "\"\\xfe\\x01\": removed\n\"\\\"q\\\"\": removed\n");
    let rest: Vec<&str> =
        lines.into_iter().filter(|l| !l.contains("xfe") && !l.contains('q')).collect();
    assert_eq!(nkv(&cluster, 0, &[&["rm"], rest.as_slice()].concat()).code, 0);
    assert_eq!(nkv(&cluster, 0, &["ls"]).stdout, "");
}

#[test]
fn i6_a_rank_that_stands_still_fails_a_removal_in_time_and_cannot_bring_a_key_back() {
    let cluster = ProcessCluster::start(3, |_| {});
    let handle = cluster.connect(0);
    fill(&handle, "k", 30);
    cluster.node(2).stop();
    let (failed, took) = timed(|| nkv(&cluster, 0, &["rm", "--matching", "^k"]));
    assert_eq!(failed.code, 4);
    assert!(took.within(ANSWER_MS), "{took}");
    let sentence = failed.sentence();
    assert!(sentence.contains("rank 2 did not confirm"), "{sentence}");
    assert!(sentence.contains("20 keys removed, 10 more not confirmed"), "{sentence}");
    let left = nkv(&cluster, 1, &["ls", "--long"]).stdout;
    assert_eq!(left.matches("removing").count(), 10, "{left}");
    cluster.node(2).signal(rustix::process::Signal::CONT);
    until(LIMIT, "the rank does what it was told", || nkv(&cluster, 1, &["ls"]).stdout.is_empty());
    for i in 0..30 {
        let gone = handle.get(format!("k{i:04}").as_bytes()).expect_err("removed");
        assert_eq!(gone.kind(), ErrorKind::NotFound, "{gone}");
    }
    assert_eq!(nkv(&cluster, 0, &["rm", "--matching", "^k"]).code, 1);
}

#[test]
fn the_keys_of_a_killed_rank_are_shown_as_such_until_it_is_gone() {
    let mut cluster = ProcessCluster::start(3, |command| {
        command.args(["--ttl-ms", "4000"]);
    });
    fill(&cluster.connect(0), "k", 30);
    cluster.kill9(1);
    until(LIMIT, "the master sees that the link is down", || {
        let long = nkv(&cluster, 2, &["ls", "-l"]).stdout;
        (long.matches("unreachable").count(), long.matches("ready").count()) == (10, 20)
    });
    until(LIMIT, "the rank is gone", || nkv(&cluster, 2, &["ls"]).stdout.lines().count() == 20);
    assert_eq!(nkv(&cluster, 2, &["rm", "--all", "--yes"]).stdout, "20 keys removed\n");
}

#[test]
fn i6_nothing_is_said_to_be_removed_while_a_log_cannot_be_asked() {
    let mut cluster = ProcessCluster::start(2, |command| {
        command.args(["--ttl-ms", "4000", "--log-bytes", "8MiB"]);
    });
    let handle = cluster.connect(0);
    let by_log = |rank| PutOptions::default().preferred_rank(rank).device_alloc(true);
    handle.put(b"there", b"value", &by_log(0)).expect("room");
    handle.put(b"lost", b"value", &by_log(1)).expect("room");
    handle.put(b"listed", b"value", &PutOptions::default()).expect("room");
    cluster.kill9(1);
    until(LIMIT, "the master sees that the link is down", || {
        handle.stats().expect("a master").ranks.iter().any(|r| r.state == "suspect")
    });
    for how in [&["rm", "there"][..], &["rm", "--all", "--yes"]] {
        let failed = nkv(&cluster, 0, how);
        assert_eq!(failed.code, 4, "{}", failed.stdout);
        let sentence = failed.sentence();
        assert!(sentence.contains("the link of rank 1 is down"), "{sentence}");
        assert!(sentence.contains("nothing was removed"), "{sentence}");
    }
    assert_eq!(handle.get(b"there").expect("not removed"), b"value"[..]);
    until(LIMIT, "the rank is gone", || nkv(&cluster, 0, &["rm", "there"]).code == 0);
    assert_eq!(handle.get(b"there").expect_err("removed").kind(), ErrorKind::NotFound);
    assert_eq!(nkv(&cluster, 0, &["rm", "--all", "--yes"]).code, 0);
    assert_eq!(handle.get(b"lost").expect_err("gone").kind(), ErrorKind::NotFound);
}

#[test]
fn a_reader_of_a_listing_may_go_away() {
    let cluster = ProcessCluster::start(3, |command| {
        command.args(["--heap-bytes", "32MiB"]);
    });
    let handle = cluster.connect(0);
    // More than a pipe holds.
    let keys: Vec<String> = (0..400).map(|i| format!("{i:0>1000}")).collect();
    let items: Vec<_> = keys.iter().map(|k| (k.as_bytes(), &b"v"[..])).collect();
    assert!(handle.put_many(&items, &PutOptions::default()).iter().all(Result::is_ok));
    let mut command = cluster.cli(0, &["ls"]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("nkv starts");
    let mut stdout = child.stdout.take().expect("a pipe");
    stdout.read_exact(&mut [0; 10]).expect("a listing");
    drop(stdout);
    let output = child.wait_with_output().expect("nkv ends");
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
}
