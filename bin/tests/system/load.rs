//! The run of `nkv-load` without arguments, shortened: every byte is compared, a damaged one is
//! found, and an interrupt still ends with the outcome.

use crate::cluster_process::clean_command;
use serde_json::Value;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

/// Sizes of the embedded run.
const SIZES: usize = 7;
/// Polls of /dev/shm while a run starts, and the pause between them: 30 s in all.
const POLLS: u32 = 600;
const PAUSE: Duration = Duration::from_millis(50);

fn start(flags: &[&str]) -> Child {
    Command::new(env!("CARGO_BIN_EXE_nkv-load"))
        .args(["--json", "-"])
        .args(flags)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

fn outcome(child: Child) -> (Output, Value) {
    let output = child.wait_with_output().unwrap();
    let json = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|e| panic!("no JSON ({e}): {}", String::from_utf8_lossy(&output.stderr)));
    (output, json)
}

/// Segments of the clusters that process `pid` embeds.
fn segments(pid: u32) -> usize {
    let job = format!(".nkv-load-{pid}.");
    let files = std::fs::read_dir("/dev/shm").unwrap().flatten();
    files.filter(|file| file.file_name().to_string_lossy().contains(&job)).count()
}

#[test]
fn a_run_reads_back_every_byte_of_every_size_and_leaves_no_segment() {
    let child = start(&["--duration", "1"]);
    let pid = child.id();
    let (output, json) = outcome(child);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!((&json["wrong_bytes"], &json["failed"]), (&Value::from(0), &Value::from(0)));
    assert_eq!(json["prefix_hit_ratio"], 1.0);
    let rows = |op: &str| {
        let ops = json["ops"].as_array().unwrap().iter();
        ops.filter(|row| row["op"] == op && row["vs_memcpy"].as_f64().unwrap() > 0.0).count()
    };
    assert_eq!((rows("put"), rows("get")), (SIZES, SIZES));
    assert_eq!(segments(pid), 0);
}

#[test]
fn a_run_that_cannot_reach_its_cluster_is_not_one_with_wrong_bytes() {
    let nobody = ["--connect", "127.0.0.1:1", "--duration", "1"];
    let output = start(&nobody).wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(4), "{text}");
    assert!(text.contains("127.0.0.1:1"), "{text}");
}

#[test]
fn a_report_is_one_page_with_every_size_and_an_unwritable_one_fails_before_the_run() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run.html");
    let (output, json) = outcome(start(&["--duration", "1", "--report", path.to_str().unwrap()]));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let page = std::fs::read_to_string(&path).unwrap();
    for row in json["ops"].as_array().unwrap() {
        let cell = format!("\"{}\"", row["count"]);
        assert!(page.contains(&cell), "{row} is not in the table");
    }
    assert_eq!(page.matches("\"at_nines_us\":").count(), 4 * SIZES, "each with its copies");
    assert!(page.contains("16 MiB") && page.contains("Throughput over time"));

    let nowhere = dir.path().join("no/folder.html");
    let output = start(&["--report", nowhere.to_str().unwrap()]).wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("--report") && stderr.contains("no folder"), "{stderr}");
    assert_eq!((output.status.code(), output.stdout.len()), (Some(7), 0), "no run, no outcome");
    let mut command = clean_command(env!("CARGO_BIN_EXE_nkv-load"));
    command.args(["--duration", "600", "--log-format", "json", "--json"]).arg(&nowhere);
    let output = command.output().unwrap();
    let text: Value = serde_json::from_slice(&output.stderr).unwrap();
    assert_eq!((output.status.code(), &text["exit_status"]), (Some(7), &Value::from(7)), "{text}");
    assert!(text["message"].as_str().unwrap().starts_with("--json "), "{text}");
}

#[test]
fn one_damaged_byte_is_found_and_the_run_fails() {
    let (output, json) = outcome(start(&["--duration", "1", "--inject-corruption"]));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert_eq!((&json["wrong_bytes"], &json["failed"]), (&Value::from(1), &Value::from(0)));
    assert!(stderr.contains("1 wrong bytes in load/65536/0"), "{stderr}");
}

#[test]
fn wrong_bytes_decide_the_exit_status_though_the_results_cannot_be_written() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nkv-load"));
    command.args(["--duration", "1", "--inject-corruption", "--json", "/dev/full"]);
    let output = command.output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("--json /dev/full: "), "{stderr}");
    assert_eq!(output.status.code(), Some(1), "{stderr}");
}

#[test]
fn an_interrupt_ends_a_run_with_its_outcome() {
    let child = start(&["--duration", "600"]);
    let pid = child.id();
    // The handlers are installed before the first segment appears.
    assert!((0..POLLS).any(|_| {
        std::thread::sleep(PAUSE);
        segments(pid) > 0
    }));
    let target = rustix::process::Pid::from_raw(pid.try_into().unwrap()).unwrap();
    rustix::process::kill_process(target, rustix::process::Signal::INT).unwrap();
    let (output, json) = outcome(child);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!((&json["wrong_bytes"], &json["failed"]), (&Value::from(0), &Value::from(0)));
    assert_eq!(segments(pid), 0);
}
