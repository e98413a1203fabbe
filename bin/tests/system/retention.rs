//! `nkv put` with pins, and values that go first, at a rank that is filled many times over.

use crate::cluster_process::{ProcessCluster, run_to_end, until};
use nkv::message::Existence::{Absent, Ready};
use nkv::{PutOptions, TransportChoice};
use nkv_pace::HANGS;

const LEN: usize = 100_000;

#[test]
fn nkv_put_pins_values_and_has_others_evicted_first() {
    let cluster = ProcessCluster::start(1, |command| {
        command.args(["--heap-bytes", "8MiB"]);
    });
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), vec![7; LEN]).unwrap();
    let path = file.path().to_str().unwrap();
    let put = |key: &str, args: &[&str]| {
        let done = run_to_end(cluster.cli(0, &[&["put", key, path], args].concat()), HANGS);
        done.code
    };
    assert_eq!(put("hard", &["--hard-pin"]), 0);
    assert_eq!(put("soft", &["--soft-pin", "3600"]), 0);
    assert_eq!(put("first", &["--evict-first"]), 0);
    let handle = cluster.connect_by(0, TransportChoice::Auto);
    let opts = PutOptions::default().device_alloc(false);
    for i in 0..400 {
        handle.put(format!("flood/{i}").as_bytes(), &vec![1; LEN], &opts).unwrap();
    }
    let found = handle.exists(&[b"hard", b"soft", b"first", b"flood/399"]).unwrap();
    assert_eq!(found, [Ready, Ready, Absent, Ready]);
    assert!(handle.get(b"hard").unwrap() == vec![7; LEN]);
    let larger = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(larger.path(), vec![7; 5 << 20]).unwrap();
    let text = larger.path().to_str().unwrap();
    let done = run_to_end(cluster.cli(0, &["put", "larger", text, "--hard-pin"]), HANGS);
    assert!(done.code != 0 && done.stderr.contains("hard pins have"), "{}", done.stderr);
    assert_eq!(put("once", &["--until-read", "1"]), 0);
    assert!(handle.get(b"once").unwrap() == vec![7; LEN]);
    until(HANGS, "it is removed", || handle.exists(&[b"once"]).unwrap() == [Absent]);
    let wrong: [&[&str]; 5] = [
        &["--hard-pin", "--evict-first"],
        &["--soft-pin", "0"],
        &["--soft-pin", "16777216"],
        &["--until-read", "0"],
        &["--until-read", "1", "--hard-pin"],
    ];
    for args in wrong {
        assert_eq!(put("wrong", args), 2, "{args:?}");
    }
}
