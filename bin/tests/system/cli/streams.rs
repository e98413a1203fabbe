//! Streams and files that refuse writes, end the program by a signal, or were closed at the start.

use super::{LIMIT, bytes, nkv, piped, text};
use crate::cluster_process::{ProcessCluster, clean_command, run_to_end, until};
use nkv_store::clock::{BootClock, Clock};
use rustix::process::{Pid, Signal, kill_process};
use std::process::{Command, Stdio};

/// `script` in a shell whose `$0` is `nkv`, with these arguments.
fn shell(nkv: &Command, script: &str) -> Command {
    let mut command = clean_command("/bin/sh");
    command.args(["-c", script]).arg(nkv.get_program()).args(nkv.get_args());
    for (name, value) in nkv.get_envs() {
        command.env(name, value.unwrap_or_default());
    }
    command
}

#[test]
fn a_stream_that_is_closed_or_full_is_no_success() {
    let cluster = ProcessCluster::start(1, |_| {});
    assert!(piped(cluster.cli(0, &["put", "k"]), &bytes(100)).status.success());
    for (args, script, text) in [
        (&["get", "k"][..], "\"$0\" \"$@\" >&-", "stdout: Bad file descriptor"),
        (&["get", "k"], "\"$0\" \"$@\" >/dev/full", "stdout: No space left"),
        (&["put", "new"], "\"$0\" \"$@\" <&-", "stdin: Bad file descriptor"),
    ] {
        let ended = run_to_end(shell(&cluster.cli(0, args), script), LIMIT);
        assert_eq!(ended.code, 7, "{script}: {}", ended.stderr);
        assert!(ended.sentence().contains(text), "{script}: {}", ended.stderr);
    }
    assert_eq!(nkv(&cluster, 0, &["exists", "new"]).code, 1, "nothing was put");
    for program in
        [env!("CARGO_BIN_EXE_nkv"), env!("CARGO_BIN_EXE_nkv-node"), env!("CARGO_BIN_EXE_nkv-load")]
    {
        for script in ["\"$0\" --help >/dev/full", "\"$0\" --version >&-"] {
            let ended = run_to_end(shell(&Command::new(program), script), LIMIT);
            assert_eq!(ended.code, 7, "{program} {script}: {}", ended.stderr);
        }
    }
}

#[test]
fn a_file_past_the_limit_of_sizes_is_an_error_and_leaves_nothing() {
    let cluster = ProcessCluster::start(1, |_| {});
    assert!(piped(cluster.cli(0, &["put", "k"]), &bytes(1 << 20)).status.success());
    let folder = tempfile::tempdir().unwrap();
    let to = folder.path().join("f");
    let get = cluster.cli(0, &["get", "k", "-o", text(&to)]);
    let ended = run_to_end(shell(&get, "ulimit -f 8; \"$0\" \"$@\""), LIMIT);
    assert_eq!(ended.code, 7, "{}", ended.stderr);
    assert!(ended.sentence().contains("File too large"), "{}", ended.stderr);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn a_get_that_a_signal_ends_leaves_nothing_beside_its_file() {
    let cluster = ProcessCluster::start(1, |command| {
        command.args(["--heap-bytes", "64MiB"]);
    });
    assert!(piped(cluster.cli(0, &["put", "k"]), &bytes(32 << 20)).status.success());
    let folder = tempfile::tempdir().unwrap();
    let to = folder.path().join("f");
    let mut met = 0;
    let end_ms = BootClock.now_ms() + LIMIT.as_millis() as u64;
    // Runs that end before the signal arrives prove nothing.
    while met < 3 {
        assert!(BootClock.now_ms() < end_ms, "no signal came while a file was written");
        let signal = [Signal::INT, Signal::TERM, Signal::HUP][met % 3];
        let mut get = cluster.cli(0, &["get", "k", "-o", text(&to)]);
        let mut get = get.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let there = || std::fs::read_dir(folder.path()).unwrap().count() > 0;
        until(LIMIT, "something is written", || there() || get.try_wait().unwrap().is_some());
        let pid = Pid::from_raw(get.id().try_into().unwrap()).unwrap();
        let _ = kill_process(pid, signal);
        let status = get.wait().unwrap();
        met += usize::from(status.code() == Some(128 + signal.as_raw()));
        let _ = std::fs::remove_file(&to);
        let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().collect();
        assert!(left.is_empty(), "{signal:?}: {left:?}");
    }
}

#[test]
fn variables_that_are_wrong_or_unknown_are_reported() {
    for (program, args) in [
        (env!("CARGO_BIN_EXE_nkv"), &["status"][..]),
        (env!("CARGO_BIN_EXE_nkv-load"), &["--connect", "127.0.0.1:1", "--duration", "1"]),
    ] {
        let mut command = clean_command(program);
        command.args(args).env("NKV_PORT", "70000");
        let ended = run_to_end(command, LIMIT);
        assert_eq!(ended.code, 2, "{}", ended.stderr);
        assert!(ended.sentence().contains("NKV_PORT \"70000\": a port"), "{}", ended.stderr);
    }
    let mut command = clean_command(env!("CARGO_BIN_EXE_nkv"));
    command.args(["status", "--connect", "127.0.0.1:1", "--timeout-ms", "1"]);
    let ended = run_to_end(slip(command), LIMIT);
    assert!(ended.stderr.contains("NKV_CONECT is read by no program"), "{}", ended.stderr);
    assert!(ended.stderr.contains("is NKV_CONNECT meant?"), "{}", ended.stderr);
    let mut load = clean_command(env!("CARGO_BIN_EXE_nkv-load"));
    load.env("RUST_LOG", "nkv=[loud");
    let ended = run_to_end(load, LIMIT);
    assert_eq!(ended.code, 2, "{}", ended.stderr);
    assert!(ended.sentence().contains("RUST_LOG \"nkv=[loud\""), "{}", ended.stderr);

    // The usage line does not show flags that variables set.
    let mut get = clean_command(env!("CARGO_BIN_EXE_nkv"));
    get.arg("get").env("NKV_JOB", "j").env("NKV_CONNECT", "h:1");
    let ended = run_to_end(get, LIMIT);
    assert!(ended.stderr.contains("Usage: nkv get [OPTIONS] <KEY>"), "{}", ended.stderr);
}

fn slip(mut command: Command) -> Command {
    command.env("NKV_CONECT", "h:1");
    command
}
