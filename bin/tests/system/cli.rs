//! `nkv` against three running ranks: values are put and read through different ranks, by files and
//! by streams; exit codes and messages are those that scripts and people rely on.

mod reaching;
mod refusing;
mod streams;

use crate::cluster_process::{Ended, ProcessCluster, Terminal, clean_command, run_to_end, until};
use nkv::PutOptions;
use std::ffi::OsStr;
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

const LIMIT: Duration = nkv_pace::HANGS;
/// How long a command at a terminal may take.
const TERMINAL_LIMIT: Duration = nkv_pace::HANGS;

/// Runs `nkv` through a rank.
fn nkv(cluster: &ProcessCluster, rank: u32, args: &[&str]) -> Ended {
    run_to_end(cluster.cli(rank, args), LIMIT)
}

/// Runs it with `stdin` as its stdin; returns its output.
fn piped(mut command: Command, stdin: &[u8]) -> Output {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("nkv starts");
    child.stdin.take().expect("a pipe").write_all(stdin).expect("nkv reads its stdin");
    child.wait_with_output().expect("nkv ends")
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path that is text")
}

/// Bytes that are no text and have no pattern.
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
    assert_eq!(run_to_end(exists, LIMIT).stdout, "\"\\xff\\x01 key\": ready\n");
}

#[test]
fn what_is_no_text_is_written_to_a_terminal_only_if_that_is_asked_for() {
    let cluster = ProcessCluster::start(1, |_| {});
    for (key, value) in [("text", &b"plain text\n"[..]), ("bytes", b"beep\x07\xff beep")] {
        assert!(piped(cluster.cli(0, &["put", key]), value).status.success());
    }
    let get = |args: &[&str]| {
        let mut terminal = Terminal::new();
        let mut get = terminal.start(cluster.cli(0, &[&["get"], args].concat()));
        let status = get.wait(&mut terminal, TERMINAL_LIMIT);
        (status.code(), terminal.seen())
    };
    assert_eq!(get(&["text"]), (Some(0), "plain text\r\n".to_string()));
    let (code, shown) = get(&["bytes"]);
    assert_eq!(code, Some(2), "{shown}");
    assert!(shown.contains("--force") && shown.contains("-o FILE"), "{shown}");
    assert!(!shown.contains("beep"), "{shown}");
    for asked in [&["bytes", "--force"][..], &["bytes", "-o", "-"]] {
        let (code, shown) = get(asked);
        assert!(code == Some(0) && shown.contains("beep"), "{shown}");
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

/// With --transport rdma, where no rank has a device.
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
        assert_eq!(failed.status.code(), Some(7), "{}", String::from_utf8_lossy(&failed.stderr));
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
    assert_eq!(put.code, 6);
    assert!(put.sentence().contains("--heap-bytes"), "{}", put.stderr);
    assert_eq!(nkv(&cluster, 0, &["exists", "big"]).code, 1);
}

#[test]
fn status_and_stats_are_tables_and_json() {
    let cluster = ProcessCluster::start(3, |_| {});
    for key in ["a", "b", "c"] {
        assert!(piped(cluster.cli(0, &["put", key, "--rank", "1"]), b"value").status.success());
    }
    crate::cluster_process::until(LIMIT, "rank 1 has told of its objects", || {
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
    assert!(
        table.ends_with(
            "3 of 3 ranks, 3 objects, 0 plans open; master: rank 0, term 1; placement: hash\n"
        ),
        "{table}"
    );

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
fn evict_makes_room_on_one_rank_or_on_all_and_says_what_went() {
    let cluster = ProcessCluster::start(3, |_| {});
    let handle = cluster.connect(0);
    for n in 0..30u32 {
        let rank = Some(n % 3);
        let to = PutOptions::default().preferred_rank(rank);
        handle.put(&n.to_le_bytes(), &[7; 1 << 20], &to).unwrap();
    }
    let objects = |rank: usize, cluster: &ProcessCluster| {
        let (_, page) = cluster.get(rank as u32, "/status");
        let page: serde_json::Value = serde_json::from_str(&page).expect("JSON");
        page["owner"]["objects"].as_u64().expect("a number")
    };
    let evict = |args: &[&str]| nkv(&cluster, 1, &[&["evict", "--until-below"], args].concat());
    let one = evict(&["25%", "--rank", "1"]);
    assert_eq!(one.code, 0, "{}", one.stderr);
    assert!(one.stdout.starts_with("rank 1: 6 objects evicted (6 MiB), "), "{}", one.stdout);
    let left: Vec<u64> = (0..3).map(|rank| objects(rank, &cluster)).collect();
    assert_eq!(left, [10, 4, 10], "of rank 1 alone");
    // Free after a quarantine, and once the owner has reported it to the master.
    until(LIMIT, "4 MiB of rank 1 are used", || {
        handle.stats().expect("stats").ranks[1].owner.heap_used == 4 << 20
    });

    let all = evict(&["0%", "--json"]);
    let printed: serde_json::Value = serde_json::from_str(&all.stdout).expect("JSON");
    let gone: Vec<_> =
        printed["evicted"].as_array().unwrap().iter().map(|r| &r["objects"]).collect();
    assert_eq!((all.code, gone), (0, vec![&10.into(), &4.into(), &10.into()]), "{printed}");
    assert!((0..3).all(|rank| objects(rank, &cluster) == 0));
    assert_eq!(nkv(&cluster, 0, &["ls"]).stdout, "");
    assert_eq!(evict(&["50%"]).stdout.matches(": 0 objects evicted").count(), 3);
    let nobody = evict(&["50%", "--rank", "9"]);
    assert_eq!(nobody.code, 2);
    assert!(nobody.sentence().contains("ranks are 0 to 2"), "{}", nobody.stderr);
}

#[test]
fn completions_and_man_pages_come_from_every_program() {
    let run = |program: &str, args: &[&str]| {
        let mut command = clean_command(program);
        command.args(args);
        let ended = run_to_end(command, LIMIT);
        assert_eq!((ended.code, ended.stderr.as_str()), (0, ""), "{program} {args:?}");
        ended.stdout
    };
    let nkv = env!("CARGO_BIN_EXE_nkv");
    for shell in ["bash", "zsh", "fish"] {
        assert!(run(nkv, &["completions", shell]).contains("evict"), "{shell}");
        for (program, flag) in [
            (env!("CARGO_BIN_EXE_nkv-node"), "heap-bytes"),
            (env!("CARGO_BIN_EXE_nkv-load"), "by-plan"),
        ] {
            assert!(run(program, &["--completions", shell]).contains(flag), "{program} {shell}");
            assert!(run(program, &["--man"]).contains(".TH"), "{program}");
        }
    }
    let (node, load) = (env!("CARGO_BIN_EXE_nkv-node"), env!("CARGO_BIN_EXE_nkv-load"));
    for page in [run(nkv, &["man"]), run(node, &["--man"]), run(load, &["--man"])] {
        assert!(page.contains(".SH \"EXIT STATUS\""), "{page}");
    }
    assert!(run(node, &["--man"]).contains("nkv\\-node \\- Runs one rank of an nkv cluster"));
    for (program, args) in [(nkv, "help"), (node, "--help"), (load, "--help")] {
        assert!(run(program, &[args]).contains(nkv_programs::exit::TABLE), "{program}");
    }
    for (program, args) in [
        (nkv, &["completions", "bash"][..]),
        (node, &["--completions", "bash"]),
        (load, &["--completions", "bash"]),
    ] {
        let script = run(program, args);
        let names = if program == nkv { "auto shm tcp rdma" } else { "lru lru2 prefix fifo" };
        assert!(script.contains(names), "{program}");
    }
    let folder = tempfile::tempdir().unwrap();
    let pages = folder.path().join("man1");
    run(nkv, &["man", text(&pages)]);
    for page in ["nkv.1", "nkv-evict.1", "nkv-status.1"] {
        assert!(pages.join(page).exists(), "{page}");
    }
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let cluster = ProcessCluster::start(1, |_| {});
    // More than a pipe holds, so that the writer still writes when the reader ends.
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
