//! `nkv` against three running ranks: values in and out through different ranks, by files and by
//! streams, and the exit codes and sentences that scripts and people rely on.

mod cluster_process;

use cluster_process::{Ended, ProcessCluster, Terminal, clean_command, run_to_end, until};
use nkv::message::PutOptions;
use nkv::{ErrorKind, TransportChoice};
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
    assert_eq!(run_to_end(exists, LIMIT).stdout, "\"\\xff\\x01 key\": ready\n");
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
    let (code, told) = get(&["bytes"]);
    assert_eq!(code, Some(2), "{told}");
    assert!(told.contains("--force") && told.contains("-o FILE"), "{told}");
    assert!(!told.contains("beep"), "{told}");
    for asked in [&["bytes", "--force"][..], &["bytes", "-o", "-"]] {
        let (code, told) = get(asked);
        assert!(code == Some(0) && told.contains("beep"), "{told}");
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
    assert_eq!(ended.code, 4);
    assert!(ended.sentence().contains("127.0.0.1:1"), "{}", ended.stderr);
    assert!(ended.sentence().contains("start that node, or connect"), "{}", ended.stderr);

    let other = nkv(&cluster, 0, &["status", "--job", "another"]);
    assert_eq!(other.code, 5);
    let remedy = format!("serves job '{0}', not 'another': give --job {0}", cluster.job());
    assert!(other.sentence().contains(&remedy), "{}", other.stderr);

    let mut http = clean_command(env!("CARGO_BIN_EXE_nkv"));
    http.args(["status", "--job", cluster.job(), "--connect", cluster.http(0)]);
    let ended = run_to_end(http, LIMIT);
    assert_eq!(ended.code, 4);
    assert!(ended.sentence().contains("use control= of the ready line"), "{}", ended.stderr);
}

#[test]
fn a_node_that_is_not_named_is_rank_0_of_this_host_and_of_several_the_first_that_leads_on_serves() {
    let mut cluster = ProcessCluster::start(2, |_| {});
    let through = |nodes: Option<&str>| {
        let mut status = clean_command(env!("CARGO_BIN_EXE_nkv"));
        status.env("NKV_JOB", cluster.job()).env("NKV_PORT", cluster.port().to_string());
        status.args(["status", "--json"]).args(nodes.map(|n| format!("--connect={n}")));
        run_to_end(status, LIMIT)
    };
    for nodes in [None, Some("localhost"), Some("127.0.0.1:1,127.0.0.1")] {
        assert_eq!(through(nodes).code, 0, "{nodes:?}: {}", through(nodes).stderr);
    }
    let rank_1 = cluster.node(1).control().to_string();
    let both = format!("127.0.0.1:1,{rank_1}");
    assert_eq!(through(Some(&both)).code, 0);
    cluster.kill9(0);
    let none = nkv(&cluster, 1, &["get", "k", "--connect", &both]);
    assert_eq!(none.code, 4);
    let said = none.sentence();
    assert!(said.contains("none of 2 nodes leads to the cluster"), "{said}");
    assert!(said.contains("; tcp://127.0.0.1:1: ") && said.contains("answers, but not"), "{said}");
}

#[test]
fn while_the_master_is_gone_status_says_what_each_node_knows() {
    let mut cluster = ProcessCluster::start(3, |_| {});
    let handle = cluster.connect(0);
    let to_rank_1 = PutOptions { preferred_segment: Some(1), ..PutOptions::default() };
    handle.put(b"k", b"value", &to_rank_1).unwrap();
    let (first, rank_1) = (cluster.address(0).to_string(), cluster.address(1).to_string());
    cluster.kill9(0);
    let nodes = format!("{first},{rank_1}");
    let shown = || nkv(&cluster, 1, &["status", "--connect", &nodes, "--json"]);
    until(LIMIT, "rank 1 says that its link is lost, and what it holds", || {
        let shown = shown();
        assert_eq!(shown.code, 4, "{}", shown.stderr);
        let said: serde_json::Value = serde_json::from_str(&shown.stdout).expect("JSON");
        let (rank_0, rank_1) = (&said["nodes"][0], &said["nodes"][1]["rank"]);
        assert!(said["master"].is_null());
        assert_eq!(rank_0["error"]["kind"], "Disconnected", "{rank_0}");
        assert_eq!(rank_1["segments"][0]["owner"]["objects"], 1, "{rank_1}");
        assert_eq!(rank_1["view"]["ranks"].as_array().unwrap().len(), 3, "{rank_1}");
        assert_eq!(rank_1["seen"]["incarnations"].as_array().unwrap().len(), 3, "{rank_1}");
        rank_1["segments"][0]["link"].as_str().unwrap().starts_with("lost: ")
    });
    let text = nkv(&cluster, 1, &["status", "--connect", &nodes]);
    assert_eq!(text.code, 4);
    assert!(text.stdout.contains(&format!("{first}: no answer: ")), "{}", text.stdout);
    assert!(text.stdout.contains(&format!("{rank_1}: rank 1 of 3, ")), "{}", text.stdout);
    assert!(text.stdout.contains(&format!("link to the master {first}, for ")), "{}", text.stdout);
    assert!(text.sentence().starts_with("nkv: none of 2 nodes"), "{}", text.stderr);
    // The master's word is shown again as soon as there is one.
    cluster.restart(0);
    cluster.wait_ready(LIMIT);
    assert_eq!(nkv(&cluster, 1, &["status", "--connect", &nodes]).code, 0);
}

#[test]
fn errors_are_json_where_answers_are() {
    let cluster = ProcessCluster::start(1, |_| {});
    assert!(piped(cluster.cli(0, &["put", "there"]), b"1").status.success());
    let error = |args: &[&str]| {
        let ended = nkv(&cluster, 0, &[args, &["--json"]].concat());
        assert_eq!((ended.stdout.as_str(), ended.stderr.lines().count()), ("", 1), "{args:?}");
        let said: serde_json::Value = serde_json::from_str(&ended.stderr).expect("JSON");
        let error = said["error"].clone();
        assert!(!error["message"].as_str().expect("a message").is_empty(), "{said}");
        let word = |name: &str| error[name].as_str().map(str::to_string);
        (ended.code, word("kind").expect("a kind"), word("key"))
    };
    let of =
        |code, kind: &str, key: Option<&str>| (code, kind.to_string(), key.map(str::to_string));
    let (nothing, file) = ("/dev/null", "/nowhere/f");
    assert_eq!(error(&["get", "none", "-o", nothing]), of(1, "NotFound", Some("none")));
    assert_eq!(error(&["get", r#""\x00""#, "-o", nothing]), of(1, "NotFound", Some(r#""\x00""#)));
    assert_eq!(error(&["put", "there", nothing]), of(3, "AlreadyExists", Some("there")));
    assert_eq!(error(&["frob"]), of(2, "InvalidArgument", None));
    assert_eq!(error(&["ls", "("]), of(2, "InvalidArgument", None));
    assert_eq!(error(&["status", "--job", "another"]), of(5, "Refused", None));
    assert_eq!(error(&["status", "--connect", "127.0.0.1:1"]), of(4, "Disconnected", None));
    assert_eq!(error(&["get", "there", "-o", file]), of(7, "Io", None));
}

#[test]
fn what_is_no_key_is_refused_by_every_command_and_by_every_verb() {
    let cluster = ProcessCluster::start(2, |_| {});
    let long = "k".repeat(1025);
    for key in ["", long.as_str(), r#""""#, r#""\q""#, "\"open"] {
        for command in [&["exists", "a"][..], &["rm", "a"], &["get"], &["put"]] {
            let ended = nkv(&cluster, 0, &[command, &[key]].concat());
            assert_eq!(
                (ended.code, ended.stdout.as_str()),
                (2, ""),
                "{command:?}: {}",
                ended.stderr
            );
        }
    }
    for transport in [TransportChoice::Auto, TransportChoice::Tcp] {
        let handle = cluster.connect_by(0, transport);
        for key in [&b""[..], long.as_bytes()] {
            let keys = [&b"a"[..], key];
            let outcomes = [
                handle.exists(&keys, false).map(drop),
                handle.match_prefix(&keys).map(drop),
                handle.lookup_near(&keys, &mut [false; 2]).map(drop),
                handle.get_location(key).map(drop),
                handle.get(key).map(drop),
                handle.get_into(key, &mut [0; 8]).map(drop),
                handle.get_many_into(&mut [(key, &mut [0; 8])]).pop().unwrap().map(drop),
                handle.get_view(key).map(drop),
                handle.put(key, b"v", &PutOptions::default()),
                handle.open_for_write(key, 1, &PutOptions::default()).map(drop),
                handle.commit(key),
                handle.remove(key),
            ];
            for (n, outcome) in outcomes.into_iter().enumerate() {
                let kind = outcome.map_err(|e| e.kind);
                assert_eq!(kind, Err(ErrorKind::InvalidArgument), "verb {n}, {} bytes", key.len());
            }
        }
    }
}

#[test]
fn evict_makes_room_on_one_rank_or_on_all_and_says_what_went() {
    let cluster = ProcessCluster::start(3, |_| {});
    let handle = cluster.connect(0);
    for n in 0..30u32 {
        let rank = Some(n % 3);
        let to = PutOptions { preferred_segment: rank, ..PutOptions::default() };
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
    // Free after a quarantine, and once the master was told.
    until(LIMIT, "4 MiB of rank 1 are used", || {
        handle.stats().expect("stats").ranks[1].owner.heap_used == 4 << 20
    });

    let all = evict(&["0%", "--json"]);
    let said: serde_json::Value = serde_json::from_str(&all.stdout).expect("JSON");
    let gone: Vec<_> = said["evicted"].as_array().unwrap().iter().map(|r| &r["objects"]).collect();
    assert_eq!((all.code, gone), (0, vec![&10.into(), &4.into(), &10.into()]), "{said}");
    assert!((0..3).all(|rank| objects(rank, &cluster) == 0));
    assert_eq!(nkv(&cluster, 0, &["ls"]).stdout, "");
    assert_eq!(evict(&["50%"]).stdout.matches(": 0 objects evicted").count(), 3);
    let nobody = evict(&["50%", "--rank", "9"]);
    assert_eq!(nobody.code, 4);
    assert!(nobody.sentence().contains("rank 9 is no member"), "{}", nobody.stderr);
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
            (env!("CARGO_BIN_EXE_nkv-load"), "device-alloc"),
        ] {
            assert!(run(program, &["--completions", shell]).contains(flag), "{program} {shell}");
            assert!(run(program, &["--man"]).contains(".TH"), "{program}");
        }
    }
    assert!(run(nkv, &["man"]).contains("Exit status"));
    let folder = tempfile::tempdir().unwrap();
    let pages = folder.path().join("man1");
    run(nkv, &["man", text(&pages)]);
    for page in ["nkv.1", "nkv-evict.1", "nkv-status.1"] {
        assert!(pages.join(page).exists(), "{page}");
    }
}

#[test]
fn a_living_rank_is_not_blamed_for_a_master_that_is_gone() {
    let mut cluster = ProcessCluster::start(2, |_| {});
    let master = cluster.node(0).control().to_string();
    cluster.kill9(0);
    let ended = nkv(&cluster, 1, &["get", "k"]);
    assert_eq!(ended.code, 4);
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
