//! How ranks start, and which configurations they refuse: real `nkv-node` processes with flags,
//! files and the environments of launchers. Every refusal is one clear sentence and an exit code of
//! its own.

use crate::cluster_process::{
    Ended, Process, ProcessCluster, clean_command, left_in_shm, new_job, node_command, run_to_end,
    until,
};
use nkv::PutOptions;
use nkv_pace::{HANGS, timed};
use std::collections::BTreeSet;
use std::io::Write;
use std::net::TcpListener;
use std::process::Command;
use std::time::Duration;

/// Every refusal must come within this time.
const REFUSAL: Duration = HANGS;
const SMALL: &str = "1MiB";

/// Checks code, sentence and that nothing was left behind.
fn refused(job: &str, ended: &Ended, code: i32, expected: &[&str]) {
    assert_eq!(ended.code, code, "{}", ended.stderr);
    assert_eq!(ended.stdout, "", "nothing was ready");
    let sentence = ended.sentence();
    assert!(sentence.starts_with("nkv-node: "), "{}", ended.stderr);
    for word in expected {
        assert!(sentence.contains(word), "no {word:?} in {sentence:?}");
    }
    assert_eq!(left_in_shm(job), Vec::<String>::new());
}

fn alone(args: &[&str], env: &[(&str, &str)]) -> (String, Ended) {
    let job = new_job();
    let mut command = node_command(&job);
    // A flag given later wins over the variable.
    command.env("NKV_PORT", "0");
    command.args(["--heap-bytes", SMALL]).args(args).envs(env.iter().copied());
    (job, run_to_end(command, REFUSAL))
}

/// A port of this host at which nothing accepts, reserved while the listener is held.
fn silent_port() -> (TcpListener, String) {
    // Bound, so no other process gets it; connections are never accepted.
    let held = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = held.local_addr().expect("an address").port().to_string();
    (held, port)
}

#[test]
fn half_a_launcher_environment_is_refused_with_2_and_names_what_is_missing() {
    for (env, missing) in [
        (&[("RANK", "0"), ("WORLD_SIZE", "2")][..], "MASTER_ADDR"),
        (&[("OMPI_COMM_WORLD_RANK", "0")], "OMPI_COMM_WORLD_SIZE"),
        (&[("SLURM_STEP_ID", "0"), ("SLURM_PROCID", "0")], "SLURM_NTASKS"),
        (&[("RANK", "two"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "h")], "RANK"),
    ] {
        let (job, ended) = alone(&[], env);
        refused(&job, &ended, 2, &[missing]);
    }
}

#[test]
fn wrong_flags_and_wrong_files_are_refused_with_2() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(b"heap = 1\nquarantine = 2\n").unwrap();
    let path = file.path().to_str().unwrap();
    for (args, env, expected) in [
        (&["--rank", "3", "--world-size", "2", "--port", "1"][..], &[][..], "rank 3"),
        (&["--watermarks", "80/90"], &[], "--watermarks"),
        (&[], &[("NKV_QUARANTINE_MS", "soon")], "NKV_QUARANTINE_MS"),
        (&["--config", path], &[], "heap, quarantine"),
        (&["--log", "nkv=[loud"], &[], "--log"),
        (&["--listen", "192.0.2.1"], &[], "NKV_SECRET"),
        (
            &["--listen", "192.0.2.1"],
            &[("NKV_SECRET", "of no importance")],
            "--listen 192.0.2.1 is no address of this host",
        ),
        (&["--rank", "1", "--world-size", "2"], &[], "NKV_PORT"),
        (&["--ttl-ms", "100"], &[], "ttl_ms is 400 to "),
    ] {
        let (job, ended) = alone(args, env);
        refused(&job, &ended, 2, &[expected]);
    }
    let unknown = alone(&["--frobnicate"], &[]).1;
    assert_eq!(unknown.code, 2, "{}", unknown.stderr);
}

#[test]
fn another_world_size_than_the_masters_is_refused_with_5() {
    let cluster = ProcessCluster::start(2, |_| {});
    let mut command = node_command(cluster.job());
    command.args(["--rank", "1", "--world-size", "3", "--heap-bytes", SMALL]);
    command.args(["--port", &cluster.port().to_string()]);
    let ended = run_to_end(command, REFUSAL);
    assert_eq!(ended.code, 5, "{}", ended.stderr);
    let sentence = ended.sentence();
    assert!(sentence.contains('3') && sentence.contains('2'), "{sentence}");
    assert_eq!(cluster.get(1, "/readyz").0, 200, "the cluster does not mind");
}

#[test]
fn the_number_of_a_living_rank_is_refused_with_3() {
    let cluster = ProcessCluster::start(2, |_| {});
    let mut command = cluster.command(1);
    command.args(["--heap-bytes", SMALL]);
    let ended = run_to_end(command, REFUSAL);
    assert_eq!(ended.code, 3, "{}", ended.stderr);
    let pid = cluster.node(1).pid().to_string();
    assert!(ended.sentence().contains(&pid), "it names the living one: {}", ended.sentence());
    assert_eq!(cluster.get(1, "/readyz").0, 200, "the living one does not mind");
}

#[test]
fn a_heap_that_does_not_fit_is_refused_with_6_and_the_numbers() {
    let bytes = (nkv_store::shm::mem_available() + (1 << 30)).to_string();
    let job = new_job();
    let mut command = node_command(&job);
    command.args(["--heap-bytes", &bytes]);
    refused(
        &job,
        &run_to_end(command, REFUSAL),
        6,
        &["MemAvailable", "control groups", "--memory"],
    );
}

#[test]
fn no_master_in_time_is_refused_with_4() {
    let (_held, port) = silent_port();
    let args = ["--rank", "1", "--world-size", "2", "--join-timeout-ms", "400", "--port", &port];
    let ((job, ended), took) = timed(|| alone(&args, &[]));
    refused(&job, &ended, 4, &[&port, "400 ms"]);
    assert!(took.within(5_000), "{took}");
}

#[test]
fn a_port_in_use_is_refused_with_7() {
    let (held, port) = silent_port();
    let (job, ended) = alone(&["--port", &port], &[]);
    refused(&job, &ended, 7, &[&port, "in use"]);
    let address = held.local_addr().unwrap().to_string();
    let (job, ended) = alone(&["--http", &address], &[]);
    refused(&job, &ended, 7, &[&address, "in use"]);
}

#[test]
fn a_rank_killed_with_sigkill_and_restarted_joins_at_once() {
    let mut cluster = ProcessCluster::start(3, |_| {});
    let before = cluster.node(1).field("segment").to_string();
    cluster.kill9(1);
    let ((), took) = timed(|| cluster.restart(1));
    // The TTL of 10 s was not waited for.
    assert!(took.within(3_000), "{took}");
    cluster.wait_ready(crate::cluster_process::READY_LIMIT);
    assert_ne!(cluster.node(1).segment(), before);
    assert!(!cluster.left_in_shm().contains(&before), "its old segment was removed");
    let handle = cluster.connect(0);
    let on_1 = PutOptions::default().preferred_rank(1);
    handle.put(b"k", b"after", &on_1).unwrap();
    assert_eq!(handle.get(b"k").unwrap(), &b"after"[..]);
}

#[test]
fn a_rank_that_was_declared_gone_starts_afresh_under_a_random_u64() {
    let mut cluster = ProcessCluster::start(2, |command| {
        command.args(["--ttl-ms", "500"]);
    });
    let (handle, before) = (cluster.connect(0), cluster.node(1).segment().to_string());
    let control = cluster.node(1).control().to_string();
    cluster.node(1).stop();
    until(REFUSAL, "rank 1 is gone", || handle.membership().unwrap().ranks.len() == 1);
    cluster.node(1).signal(rustix::process::Signal::CONT);
    cluster.joined_again(1);
    let after = cluster.node(1).segment();
    assert_ne!(after, before);
    assert_eq!(cluster.node(1).control(), control, "it is found where it was");
    let text = cluster.node(1).stderr();
    assert!(!text.contains("the master was silent"), "it was this process that stood: {text}");
    assert_eq!(text.matches("declared gone; starting afresh").count(), 1, "{text}");
    assert!(cluster.left_in_shm().iter().all(|name| !name.starts_with(&before)));
    let handle = cluster.connect(0);
    let on_1 = PutOptions::default().preferred_rank(1);
    handle.put(b"k", b"after", &on_1).unwrap();
    assert_eq!(handle.get_location(b"k").unwrap().rank(), 1);
    assert_eq!(handle.get(b"k").unwrap(), &b"after"[..]);
}

#[test]
fn two_jobs_on_one_host_never_meet() {
    let (one, other) = (ProcessCluster::start(2, |_| {}), ProcessCluster::start(2, |_| {}));
    let (a, b) = (one.connect(0), other.connect(1));
    a.put(b"key", b"one", &PutOptions::default()).unwrap();
    b.put(b"key", b"other", &PutOptions::default()).unwrap();
    assert_eq!((a.get(b"key").unwrap(), b.get(b"key").unwrap()), ("one".into(), "other".into()));
    // A rank that is sent to the other job's master by mistake is refused there.
    let job = new_job();
    let mut command = node_command(&job);
    command.args(["--rank", "1", "--world-size", "2", "--heap-bytes", SMALL]);
    command.args(["--port", &one.port().to_string()]);
    refused(&job, &run_to_end(command, REFUSAL), 5, &[&job, one.job()]);
    let named = |c: &ProcessCluster| (0..2).map(|r| c.node(r).segment().to_string()).collect();
    let (mine, theirs): (BTreeSet<String>, BTreeSet<String>) = (named(&one), named(&other));
    assert!(mine.is_disjoint(&theirs));
}

#[test]
fn the_printed_configuration_names_every_source_and_can_be_read_back() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(b"ttl_ms = 4000\nquarantine_ms = 9\n").unwrap();
    let mut command = clean_command(env!("CARGO_BIN_EXE_nkv-node"));
    command.env("NKV_QUARANTINE_MS", "7").env("RANK", "0").env("WORLD_SIZE", "1");
    command.env("MASTER_ADDR", "h").args(["--print-config", "--heap-bytes", SMALL, "--config"]);
    let ended = run_to_end_with(command, file.path());
    let table: toml::Table = ended.stdout.parse().expect("valid TOML");
    assert_eq!(table["heap_bytes"].as_integer(), Some(1 << 20));
    let source = |key: &str| {
        let line = ended.stdout.lines().find(|l| l.split_whitespace().next() == Some(key));
        line.and_then(|l| l.split_once("# ")).expect("a source").1.to_string()
    };
    assert_eq!(source("heap_bytes"), "--heap-bytes");
    assert_eq!(source("quarantine_ms"), "NKV_QUARANTINE_MS");
    assert_eq!(source("ttl_ms"), file.path().to_str().unwrap());
    assert_eq!(source("rank"), "torchrun");
    assert_eq!(source("drain_ms"), "default");
}

fn run_to_end_with(mut command: Command, config: &std::path::Path) -> Ended {
    command.arg(config);
    let ended = run_to_end(command, REFUSAL);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    ended
}

/// Starts ranks 0, 1, 2 as a launcher would: with its variables and `NKV_PORT`, without flags.
fn launched(variables: impl Fn(u32) -> Vec<(&'static str, String)>) -> Vec<Process> {
    // The port is released just before rank 0 binds it.
    let port = silent_port().1;
    let start = |rank: u32| {
        let mut command = clean_command(env!("CARGO_BIN_EXE_nkv-node"));
        command.env("NKV_PORT", &port).env("NKV_HEAP_BYTES", SMALL).envs(variables(rank));
        Process::start(command)
    };
    (0..3).map(start).collect()
}

fn check_launched(ranks: &mut [Process], job: &str) {
    for (number, rank) in ranks.iter().enumerate() {
        assert_eq!(rank.field("rank"), number.to_string());
        assert_eq!((rank.field("world"), rank.field("job")), ("3", job));
    }
    let master = ranks[0].control().to_string();
    let mut cli = clean_command(env!("CARGO_BIN_EXE_nkv"));
    cli.args(["status", "--connect", &master, "--job", job, "--json"]);
    let ended = run_to_end(cli, REFUSAL);
    let status: serde_json::Value = serde_json::from_str(&ended.stdout).expect(&ended.stderr);
    assert_eq!(status["members"], 3);
    for rank in ranks.iter_mut().rev() {
        rank.signal(rustix::process::Signal::TERM);
        let ended = rank.wait_exit(crate::cluster_process::EXIT_LIMIT);
        assert_eq!(ended.code, 0, "{}", ended.stderr);
    }
    assert_eq!(left_in_shm(job), Vec::<String>::new());
}

#[test]
fn torchruns_environment_starts_a_cluster() {
    let job = new_job();
    let mut ranks = launched(|rank| {
        vec![
            ("RANK", rank.to_string()),
            ("WORLD_SIZE", "3".to_string()),
            ("LOCAL_RANK", rank.to_string()),
            ("LOCAL_WORLD_SIZE", "3".to_string()),
            // Like a host's external name: with all ranks on this host it is not resolved.
            ("MASTER_ADDR", "host.invalid".to_string()),
            ("MASTER_PORT", "1".to_string()),
            ("TORCHELASTIC_RUN_ID", job.clone()),
        ]
    });
    check_launched(&mut ranks, &job);
}

#[test]
fn a_step_of_slurm_starts_a_cluster() {
    let number = nkv_store::random_u64() as u32;
    let mut ranks = launched(|rank| {
        vec![
            ("SLURM_PROCID", rank.to_string()),
            ("SLURM_NTASKS", "3".to_string()),
            ("SLURM_LOCALID", rank.to_string()),
            ("SLURM_JOB_ID", number.to_string()),
            ("SLURM_STEP_ID", "0".to_string()),
            ("SLURM_STEP_NODELIST", "host[07]".to_string()),
        ]
    });
    check_launched(&mut ranks, &format!("{number}.0"));
}
