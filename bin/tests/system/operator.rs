//! What an operator of a cluster meets: limits of the shell, a stopped process, a rank started with
//! wrong numbers, JSON logs, metrics, and a load that cannot work. All in real processes.

use crate::cluster_process::{
    Ended, Process, ProcessCluster, clean_command, holds_within, new_job, node_command, run_to_end,
    until,
};
use rustix::process::Signal;
use std::collections::{BTreeMap, BTreeSet};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Limit of every wait.
const LIMIT: Duration = Duration::from_secs(60);
/// A process that is stopped for this long has missed several checks of its watchdog.
const STOPPED: Duration = Duration::from_secs(3);
/// Limit of a load generator with objects that fit no heap, or with a short run.
const LOAD_LIMIT: Duration = Duration::from_secs(120);

/// `nkv-node` below a limit that the shell sets.
fn limited(job: &str, limit: &str, args: &[&str]) -> Command {
    let mut command = clean_command("/bin/sh");
    let script = format!("{limit} && exec \"$0\" \"$@\"");
    command.args(["-c", &script, env!("CARGO_BIN_EXE_nkv-node"), "--heap-bytes", "4MiB"]);
    command.args(args).env("NKV_JOB", job);
    command
}

fn load(args: &[&str]) -> Command {
    let mut command = clean_command(env!("CARGO_BIN_EXE_nkv-load"));
    command.args(args);
    command
}

#[test]
fn a_stopped_process_says_that_it_did_not_run_and_blames_no_actor() {
    let cluster = ProcessCluster::start(1, |_| {});
    let node = cluster.node(0);
    node.stop();
    assert!(!holds_within(STOPPED, || false), "time passes while it stands");
    node.signal(Signal::CONT);
    until(LIMIT, "it says so", || node.stderr().contains("this process did not run"));
    let (code, status) = cluster.get(0, "/status");
    assert_eq!(code, 200, "{status}");
    let status: serde_json::Value = serde_json::from_str(&status).unwrap();
    for actor in status["actors"].as_array().unwrap() {
        assert_eq!(actor["state"], "running", "{actor}");
    }
    assert!(!node.stderr().contains("frozen in") && !node.stderr().contains("is frozen"));
}

#[test]
fn a_master_that_comes_back_with_another_world_size_is_named_by_both_sides() {
    let mut cluster = ProcessCluster::start(2, |_| {});
    cluster.kill9(0);
    let mut command = node_command(cluster.job());
    command.args(["--world-size", "3", "--port", &cluster.port().to_string()]);
    let master = Process::start({
        command.args(["--heap-bytes", "4MiB"]);
        command
    });
    let why = "rank 1 was started with world size 2, but the master (rank 0) with 3: start every \
               rank of the job with the same --world-size";
    let rank = cluster.node(1);
    until(LIMIT, "the rank says so", || rank.stderr().contains("the master refuses this rank"));
    until(LIMIT, "the master says so", || master.stderr().contains("refused a rank"));
    assert!(rank.stderr().contains(why), "{}", rank.stderr());
    let printed = master.stderr();
    let line = printed.lines().find(|line| line.contains("refused a rank")).unwrap();
    assert!(line.contains(why) && line.contains(rank.control()), "{line}");
    let (code, ready) = cluster.get(1, "/readyz");
    assert_eq!(code, 503);
    assert!(ready.contains(why), "{ready}");

    // The new master reports that the rank runs and is refused.
    let ask = |args: &[&str]| {
        let mut nkv = clean_command(env!("CARGO_BIN_EXE_nkv"));
        nkv.args(["--connect", master.control(), "--job", cluster.job()]).args(args);
        run_to_end(nkv, LIMIT)
    };
    let status = ask(&["status"]);
    assert!(status.stdout.contains("refused") && status.stdout.contains(why), "{status:?}");
    let json: serde_json::Value = serde_json::from_str(&ask(&["status", "--json"]).stdout).unwrap();
    assert_eq!(
        (&json["refused"][0]["rank"], &json["missing"][0]),
        (&1.into(), &1.into()),
        "{json}"
    );
    let get = ask(&["get", "k"]);
    assert_eq!(get.code, 4);
    let printed = format!("rank 1 (pid {}) was refused", cluster.node(1).pid());
    assert!(get.sentence().contains(&printed) && get.sentence().contains(why), "{}", get.stderr);
}

#[test]
fn the_limit_of_open_files_is_raised_and_one_too_low_is_refused_with_the_number_needed() {
    let job = new_job();
    let refused = run_to_end(limited(&job, "ulimit -n 20", &[]), LIMIT);
    assert_eq!(refused.code, 7, "{}", refused.stderr);
    let sentence = refused.sentence();
    assert!(sentence.contains("may open 20 files at most, and needs 68"), "{sentence}");
    assert!(sentence.contains("ulimit -n"), "{sentence}");

    let node = Process::start(limited(&job, "ulimit -Sn 20", &[]));
    let metrics = crate::cluster_process::http_get(node.http(), "/metrics").1;
    let most = metrics.lines().find_map(|l| l.strip_prefix("process_max_fds{rank=\"0\"} "));
    assert!(most.unwrap().parse::<f64>().unwrap() > 20.0, "{most:?}");
    let mut node = node;
    node.signal(Signal::TERM);
    assert_eq!(node.wait_exit(LIMIT).code, 0);
}

#[test]
fn a_segment_above_the_limit_of_file_sizes_is_refused_before_it_is_made() {
    let ended = run_to_end(limited(&new_job(), "ulimit -f 1000", &[]), LIMIT);
    assert_eq!(ended.code, 6, "{}", ended.stderr);
    assert!(ended.sentence().contains("ulimit -f"), "{}", ended.stderr);
}

/// Starts a rank alone and ends it with a signal.
fn ended_alone(args: &[&str]) -> Ended {
    let mut command = node_command(&new_job());
    command.args(["--heap-bytes", "4MiB"]).args(args);
    let mut node = Process::start(command);
    node.signal(Signal::TERM);
    node.wait_exit(LIMIT)
}

#[test]
fn a_start_is_two_lines_of_its_rank_and_every_setting_at_debug_level() {
    let ended = ended_alone(&[]);
    let own = |line: &&str| line.contains("nkv_node::start_lines");
    let printed: Vec<&str> = ended.stderr.lines().filter(own).collect();
    assert_eq!(printed.len(), 2, "{}", ended.stderr);
    assert!(printed[0].contains("rank=0") && printed[0].contains("heap=4 MiB"), "{}", printed[0]);
    assert!(printed[1].contains("control=tcp://127.0.0.1:"), "{}", printed[1]);
    let ended = ended_alone(&["--log", "info,nkv_node=debug"]);
    let setting = "setting heap_bytes value=4194304 source=--heap-bytes";
    assert!(ended.stderr.contains(setting), "{}", ended.stderr);
    assert!(ended.stderr.contains("transports not chosen: "), "{}", ended.stderr);
}

#[test]
fn every_line_of_a_log_for_machines_is_a_json_object() {
    let ended = ended_alone(&["--log-format", "json", "--log", "debug"]);
    assert_eq!(ended.code, 0);
    let mut printed = BTreeMap::new();
    for line in ended.stderr.lines() {
        let object: serde_json::Value =
            serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"));
        assert!(object["timestamp"].is_string() && object["level"].is_string(), "{line}");
        printed.insert(object["message"].as_str().unwrap_or_default().to_string(), object);
    }
    assert_eq!(printed["starting"]["rank"], 0);
    assert!(printed["joined"]["control"].as_str().unwrap().starts_with("tcp://"));

    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().map(|at| (at.to_string(), taken)).unwrap();
    let mut command = node_command(&new_job());
    command.args(["--log-format", "json", "--http", &taken.0, "--heap-bytes", "4MiB"]);
    let failed = run_to_end(command, LIMIT);
    let last: serde_json::Value = serde_json::from_str(failed.sentence()).unwrap();
    assert_eq!(last["exit_status"], failed.code);
    assert!(last["message"].as_str().unwrap().contains(&format!("--http {}", taken.0)), "{last}");
}

#[test]
fn the_three_programs_are_of_one_version_and_commit() {
    let mut versions = BTreeSet::new();
    for (name, program) in [
        ("nkv", env!("CARGO_BIN_EXE_nkv")),
        ("nkv-node", env!("CARGO_BIN_EXE_nkv-node")),
        ("nkv-load", env!("CARGO_BIN_EXE_nkv-load")),
    ] {
        let mut command = clean_command(program);
        let output = command.arg("--version").output().unwrap();
        let printed = String::from_utf8(output.stdout).unwrap();
        let begins = format!("{name} {}", env!("CARGO_PKG_VERSION"));
        assert!(printed.starts_with(&begins), "{printed}");
        versions.insert(printed.replacen(&begins, "", 1));
    }
    assert_eq!(versions.len(), 1, "{versions:?}");
    let commit = env!("NKV_BUILD_COMMIT");
    let printed = versions.first().unwrap();
    assert!(commit.is_empty() || printed.starts_with(&format!(" ({commit}")), "{printed}");
}

/// What a line of a scrape is about: the sample's name and labels, or the comment.
fn about(line: &str) -> &str {
    if line.starts_with('#') { line } else { line.rsplit_once(' ').map_or(line, |(a, _)| a) }
}

#[test]
fn scrapes_have_one_order_and_every_metric_its_help_type_and_a_name_by_the_rules() {
    let cluster = ProcessCluster::start(1, |_| {});
    let handle = cluster.connect(0);
    handle.put(b"k", b"value", &nkv::PutOptions::default()).unwrap();
    let first = cluster.get(0, "/metrics").1;
    let second = cluster.get(0, "/metrics").1;
    let mut later = second.lines().map(about);
    for line in first.lines().map(about) {
        assert!(later.any(|l| l == line), "out of order, or gone: {line}\n{second}");
    }
    let mut types = BTreeMap::new();
    let mut help = "";
    let mut present = "";
    for line in second.lines() {
        if let Some(text) = line.strip_prefix("# HELP ") {
            help = text.split_once(' ').expect("a name and a text").0;
        } else if let Some(text) = line.strip_prefix("# TYPE ") {
            let (name, sort) = text.split_once(' ').unwrap();
            assert_eq!(name, help, "help comes first");
            assert!(types.insert(name, sort).is_none(), "{name} in two places");
            present = name;
        } else {
            let name = line.split(['{', ' ']).next().unwrap();
            let suffix = name.strip_prefix(present).unwrap_or_else(|| panic!("{name}"));
            match types[present] {
                "histogram" => {
                    assert!(["_bucket", "_sum", "_count"].contains(&suffix), "{name}");
                    assert!(present.ends_with("_duration_seconds"), "{present}");
                }
                sort => {
                    assert_eq!(suffix, "", "{name} under {present}");
                    assert_eq!(name.ends_with("_total"), sort == "counter", "{name}");
                    assert!(!name.contains("_ms"), "{name}: seconds are the unit");
                }
            }
        }
    }
    for name in [
        "nkv_build_info",
        "process_cpu_seconds_total",
        "process_resident_memory_bytes",
        "process_open_fds",
        "process_start_time_seconds",
        "nkv_master_request_duration_seconds",
        "nkv_client_request_duration_seconds",
        "nkv_actor_handling_duration_seconds",
    ] {
        assert!(types.contains_key(name), "{name} in {second}");
    }
    // The put of a client in another process: one open and one commit.
    let opened = "nkv_master_request_duration_seconds_count{rank=\"0\",request=\"open\"} 1";
    assert!(second.lines().any(|l| l == opened), "{second}");
}

#[test]
fn a_load_whose_objects_fit_no_heap_fails_with_the_numbers_before_it_starts() {
    let cluster = ProcessCluster::start(1, |_| {});
    let at = ["--connect", cluster.node(0).control(), "--job", cluster.job()];
    let mix = load(&[&at[..], &["--size", "64MiB", "--duration", "2"]].concat());
    let ended = run_to_end(mix, LOAD_LIMIT);
    assert_eq!(ended.code, 6, "{}", ended.stderr);
    for part in ["--size is 64 MiB", "has 16 MiB (rank 0)", "--heap-bytes"] {
        assert!(ended.sentence().contains(part), "{part} in {}", ended.stderr);
    }
    assert_eq!(ended.stdout, "", "no outcome of a run that was not");

    // So short a run does no operation.
    let brief = load(&[&at[..], &["--duration", "0.000001"]].concat());
    let ended = run_to_end(brief, LOAD_LIMIT);
    assert_eq!(ended.code, 4, "{}", ended.stderr);
    assert!(ended.sentence().contains("longer --duration"), "{}", ended.stderr);
}

#[test]
fn a_load_that_meets_a_dead_rank_names_it_and_its_address() {
    let mut cluster = ProcessCluster::start(2, |_| {});
    let at = ["--connect", cluster.node(0).control(), "--job", cluster.job()];
    let rest = ["--mix", "0:0:1", "--size", "4KiB", "--duration", "8", "--pause-us", "1000"];
    let mut mix = load(&[&at[..], &rest].concat());
    let run = mix.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let run = run.spawn().unwrap();
    let objects = || cluster.get(1, "/metrics").1;
    until(LIMIT, "rank 1 holds some", || {
        let found = objects();
        let held = found.lines().find_map(|l| l.strip_prefix("nkv_objects_ready{rank=\"1\"} "));
        held.is_some_and(|n| n.parse::<u64>().is_ok_and(|n| n > 100))
    });
    let dead = cluster.node(1).control().to_string();
    cluster.kill9(1);
    let output = run.wait_with_output().unwrap();
    let printed = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{printed}");
    assert!(
        printed.contains("Disconnected: ") && printed.contains(&format!("rank 1 at tcp://{dead}")),
        "{printed}"
    );
    assert!(!printed.contains("Internal") && !printed.contains("Unreachable"), "{printed}");
}
