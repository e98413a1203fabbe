//! `nkv` against three running ranks: values in and out through different ranks, by files and by
//! streams, and the exit codes and sentences that scripts and people rely on.

mod cluster_process;

use cluster_process::{Ended, ProcessCluster, clean_command, run_to_end, until};
use std::ffi::OsStr;
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(20);

/// Runs `nkv` through a rank.
fn nkv(cluster: &ProcessCluster, rank: u32, args: &[&str]) -> Ended {
    run_to_end(cluster.cli(rank, args), LIMIT)
}

/// Runs it with bytes for stdin, and takes bytes from stdout.
fn piped(mut command: Command, stdin: &[u8]) -> Output {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("nkv starts");
    child.stdin.take().expect("a pipe").write_all(stdin).expect("nkv reads its stdin");
    child.wait_with_output().expect("nkv ends")
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path that is text")
}

/// Bytes of no text and no pattern.
fn bytes(len: usize) -> Vec<u8> {
    let mut x = 1u32;
    let mut next = || {
        x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (x >> 24) as u8
    };
    (0..len).map(|_| next()).collect()
}

#[test]
fn a_file_put_through_one_rank_is_the_file_got_through_another() {
    let cluster = ProcessCluster::start(3, |_| {});
    let folder = tempfile::tempdir().unwrap();
    for (number, len) in [0, 1, 4096, 1_000_003, 5 << 20].into_iter().enumerate() {
        let (from, to) = (folder.path().join("from"), folder.path().join("to"));
        let (key, value) = (format!("file/{number}"), bytes(len));
        std::fs::write(&from, &value).unwrap();
        let rank = number as u32 % 3;
        let put = nkv(&cluster, rank, &["put", &key, text(&from)]);
        assert_eq!(put.code, 0, "{}", put.stderr);
        for rank in 0..3 {
            let got = nkv(&cluster, rank, &["get", &key, "-o", text(&to)]);
            assert_eq!(got.code, 0, "{}", got.stderr);
            assert!(std::fs::read(&to).unwrap() == value, "{len} bytes through rank {rank}");
        }
    }
}

#[test]
fn streams_and_keys_of_any_bytes_work() {
    let cluster = ProcessCluster::start(3, |_| {});
    let value = bytes(100_000);
    let key = OsStr::from_bytes(b"\xff\x01 key");
    let mut put = cluster.cli(0, &["put"]);
    put.arg(key);
    let put = piped(put, &value);
    assert!(put.status.success(), "{put:?}");
    let mut get = cluster.cli(2, &["get"]);
    get.arg(key);
    let got = piped(get, b"");
    assert!(got.status.success() && got.stdout == value);
    let mut exists = cluster.cli(1, &["exists"]);
    exists.arg(key);
    assert_eq!(run_to_end(exists, LIMIT).stdout, "\\xff\\x01 key: ready\n");
}

#[test]
fn exit_codes_tell_there_from_absent_from_wrong() {
    let cluster = ProcessCluster::start(3, |_| {});
    let put = piped(cluster.cli(0, &["put", "a", "--rank", "2"]), b"1");
    assert_eq!(String::from_utf8(put.stdout).unwrap(), "a: 1 B stored on rank 2\n");
    assert!(piped(cluster.cli(0, &["put", "b", "-", "--rank", "1"]), b"2").status.success());

    let both = nkv(&cluster, 1, &["exists", "a", "b"]);
    assert_eq!((both.code, both.stdout.as_str()), (0, "a: ready\nb: ready\n"));
    let one = nkv(&cluster, 2, &["exists", "a", "none"]);
    assert_eq!((one.code, one.stdout.as_str()), (1, "a: ready\nnone: absent\n"));

    let again = piped(cluster.cli(1, &["put", "a"]), b"other");
    assert_eq!(again.status.code(), Some(3));
    let told = String::from_utf8(again.stderr).unwrap();
    assert_eq!(told, "nkv: a exists on rank 2; values never change: nkv rm it first\n");

    let rm = nkv(&cluster, 2, &["rm", "a", "none", "b"]);
    assert_eq!((rm.code, rm.stdout.as_str()), (1, "a: removed\nnone: absent\nb: removed\n"));
    let gone = nkv(&cluster, 0, &["get", "a"]);
    assert_eq!((gone.code, gone.stdout.as_str()), (1, ""));
    assert!(gone.sentence().contains("no key a (never put,"), "{}", gone.stderr);
    assert_eq!(nkv(&cluster, 0, &["rm", "a"]).code, 1);

    for wrong in [&["put"][..], &["frob"], &["get", "a", "--json"], &["put", ""]] {
        assert_eq!(nkv(&cluster, 0, wrong).code, 2, "{wrong:?}");
    }
}

#[test]
fn a_get_that_fails_leaves_the_file_as_it_was() {
    let cluster = ProcessCluster::start(3, |_| {});
    let folder = tempfile::tempdir().unwrap();
    let (old, new) = (folder.path().join("old"), folder.path().join("new"));
    std::fs::write(&old, b"mine").unwrap();
    for file in [&old, &new] {
        assert_eq!(nkv(&cluster, 0, &["get", "none", "-o", text(file)]).code, 1);
    }
    assert_eq!(std::fs::read(&old).unwrap(), b"mine");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}

/// By rdma, where no rank has a device.
#[test]
fn i12_a_put_that_finds_no_way_to_its_owner_leaves_its_key_to_the_next_one() {
    let cluster = ProcessCluster::start(2, |command| {
        command.args(["--rdma-devices", "none"]);
    });
    for n in 0..10 {
        let (key, rank) = (format!("k{n}"), (n % 2).to_string());
        let put = |args: &[&str]| {
            let command = cluster.cli(0, &[args, &["put", &key, "-", "--rank", &rank]].concat());
            piped(command, b"value")
        };
        let failed = put(&["--transport", "rdma"]);
        assert_eq!(failed.status.code(), Some(3), "{}", String::from_utf8_lossy(&failed.stderr));
        let put = put(&[]);
        assert_eq!(put.status.code(), Some(0), "{}", String::from_utf8_lossy(&put.stderr));
    }
}

#[test]
fn what_no_heap_could_hold_is_refused_before_it_is_sent() {
    let cluster = ProcessCluster::start(3, |_| {});
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(17 << 20).unwrap();
    let put = nkv(&cluster, 0, &["put", "big", text(file.path())]);
    assert_eq!(put.code, 3);
    assert!(put.sentence().contains("--heap-bytes"), "{}", put.stderr);
    assert_eq!(nkv(&cluster, 0, &["exists", "big"]).code, 1);
}

#[test]
fn status_and_stats_are_tables_and_json() {
    let cluster = ProcessCluster::start(3, |_| {});
    for key in ["a", "b", "c"] {
        assert!(piped(cluster.cli(0, &["put", key, "--rank", "1"]), b"value").status.success());
    }
    cluster_process::until(LIMIT, "rank 1 has told of its objects", || {
        let status = nkv(&cluster, 2, &["status", "--json"]);
        let status: serde_json::Value = serde_json::from_str(&status.stdout).expect("JSON");
        let ranks = status["ranks"].as_array().unwrap();
        assert_eq!((ranks.len(), &status["world_size"]), (3, &3.into()));
        assert_eq!(ranks[2]["control"], cluster.node(2).control());
        assert_eq!(ranks[2]["segment"], cluster.node(2).segment());
        assert_eq!(ranks[2]["pid"], cluster.node(2).pid());
        ranks[1]["objects"] == 3
    });
    let table = nkv(&cluster, 1, &["status"]).stdout;
    assert!(table.starts_with("rank"), "{table}");
    assert!(table.lines().filter(|l| l.contains("alive")).count() == 3, "{table}");
    assert!(table.ends_with("3 of 3 ranks, 3 objects, 0 plans open\n"), "{table}");

    let stats = nkv(&cluster, 1, &["stats", "--json"]);
    let stats: serde_json::Value = serde_json::from_str(&stats.stdout).expect("JSON");
    assert_eq!(stats["master"]["committed"], 3);
    assert_eq!(stats["ranks"][1]["owner"]["commits"], 3);
    assert!(nkv(&cluster, 1, &["stats"]).stdout.lines().any(|l| l.starts_with("evictions")));

    let exists = nkv(&cluster, 0, &["exists", "a", "none", "--json"]);
    let exists: serde_json::Value = serde_json::from_str(&exists.stdout).expect("JSON");
    assert_eq!(exists["keys"][0], serde_json::json!({ "key": "a", "state": "ready" }));
    assert_eq!(exists["keys"][1], serde_json::json!({ "key": "none", "state": "absent" }));
}

#[test]
fn who_cannot_be_reached_is_named_with_what_to_do() {
    let cluster = ProcessCluster::start(1, |_| {});
    let mut nowhere = clean_command(env!("CARGO_BIN_EXE_nkv"));
    nowhere.args(["status", "--connect", "127.0.0.1:1"]);
    let ended = run_to_end(nowhere, LIMIT);
    assert_eq!(ended.code, 3);
    assert!(ended.sentence().contains("127.0.0.1:1"), "{}", ended.stderr);
    assert!(ended.sentence().contains("start that node, or connect"), "{}", ended.stderr);

    let other = nkv(&cluster, 0, &["status", "--job", "another"]);
    assert_eq!(other.code, 3);
    let remedy = format!("serves job '{0}', not 'another': give --job {0}", cluster.job());
    assert!(other.sentence().contains(&remedy), "{}", other.stderr);

    let mut http = clean_command(env!("CARGO_BIN_EXE_nkv"));
    http.args(["status", "--job", cluster.job(), "--connect", cluster.http(0)]);
    let ended = run_to_end(http, LIMIT);
    assert_eq!(ended.code, 3);
    assert!(ended.sentence().contains("use control= of the ready line"), "{}", ended.stderr);

    let mut unsaid = clean_command(env!("CARGO_BIN_EXE_nkv"));
    unsaid.arg("status");
    let ended = run_to_end(unsaid, LIMIT);
    assert_eq!(ended.code, 2);
    assert!(ended.sentence().contains("NKV_CONNECT"), "{}", ended.stderr);
}

#[test]
fn a_living_rank_is_not_blamed_for_a_master_that_is_gone() {
    let mut cluster = ProcessCluster::start(2, |_| {});
    let master = cluster.node(0).control().to_string();
    cluster.kill9(0);
    let ended = nkv(&cluster, 1, &["get", "k"]);
    assert_eq!(ended.code, 3);
    let asked = cluster.node(1).control();
    let whom = format!("tcp://{asked} answers, but not the master tcp://{master} it names: ");
    let said = ended.sentence();
    assert!(said.contains(&whom), "{said}");
    assert!(said.contains("if rank 0 is down start it again"), "{said}");
}

#[test]
fn a_rank_says_once_that_its_master_is_gone_and_when_it_is_back() {
    let mut cluster = ProcessCluster::start(2, |_| {});
    let told = |cluster: &ProcessCluster, what: &str| {
        cluster.node(1).stderr().lines().filter(|line| line.contains(what)).count()
    };
    cluster.kill9(0);
    until(LIMIT, "rank 1 says so", || told(&cluster, "no link to the master any more") > 0);
    assert_eq!(told(&cluster, "joined again"), 0);
    cluster.restart(0);
    until(LIMIT, "rank 1 says so", || told(&cluster, "joined again") > 0);
    assert_eq!(told(&cluster, "no link to the master any more"), 1);
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let cluster = ProcessCluster::start(1, |_| {});
    // More than a pipe holds, so that the writer is still at it when the reader goes.
    let value = bytes(4 << 20);
    assert!(piped(cluster.cli(0, &["put", "k"]), &value).status.success());
    let mut command = cluster.cli(0, &["get", "k"]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut first = [0; 10];
    let mut stdout = child.stdout.take().unwrap();
    stdout.read_exact(&mut first).unwrap();
    drop(stdout);
    let output = child.wait_with_output().unwrap();
    assert_eq!(first, value[..10]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(output.stderr.is_empty(), "{output:?}");
}
