//! `nkv-node --memory cuda` and `auto`, with a stand-in for the driver library and without one.

#[path = "../../../gpu/tests/mock_library.rs"]
mod mock_library;

use crate::cluster_process::{
    Ended, ProcessCluster, clean_command, new_job, node_command, run_to_end, until,
};
use nkv::{PutOptions, TransportChoice};
use nkv_pace::HANGS;
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;

/// A folder where the linker finds the stand-in.
pub(crate) fn with_driver() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for file in ["libcuda.so", "libcuda.so.1"] {
        std::fs::copy(mock_library::library(), folder.path().join(file)).unwrap();
    }
    folder
}

/// The node looks for libraries in this folder first.
pub(crate) fn finds(folder: &Path) -> impl Fn(&mut Command) + use<> {
    let folder = folder.to_path_buf();
    move |command| {
        command.env("LD_LIBRARY_PATH", &folder);
    }
}

/// Values go in by tcp and by the ranks' own handles, into both ranks.
fn serves(cluster: &ProcessCluster) {
    let client = cluster.connect_by(0, TransportChoice::Auto);
    for (number, bytes) in [1, 4_096, 70_000, 3 << 20].into_iter().enumerate() {
        for rank in 0..2 {
            let (key, value) = (format!("vram/{rank}/{number}"), vec![number as u8 + 1; bytes]);
            let there = PutOptions::default().preferred_rank(rank);
            client.put(key.as_bytes(), &value, &there).unwrap();
            assert!(client.get(key.as_bytes()).unwrap() == value, "{key}");
            assert_eq!(client.get_location(key.as_bytes()).unwrap().rank(), rank);
        }
    }
    assert_eq!(client.remove_all().unwrap().in_memory, 8);
}

#[test]
fn payloads_lie_in_vram_with_memory_cuda_and_with_auto() {
    let folder = with_driver();
    for memory in ["cuda", "auto"] {
        let finds = finds(folder.path());
        let mut cluster = ProcessCluster::start(2, move |command| {
            finds(command);
            command.args([
                "--memory",
                memory,
                "--heap-bytes",
                "32MiB",
                "--log-bytes",
                "auto",
                "--log",
                "nkv_node=debug",
            ]);
        });
        serves(&cluster);
        let log = cluster.node(1).stderr();
        assert!(log.contains("memory: 32 MiB of a GPU"), "{memory}: {log}");
        for rank in [1, 0] {
            cluster.term(rank);
            assert_eq!(cluster.wait_exit(rank, HANGS).code, 0, "{memory}");
        }
    }
}

/// A run of `nkv-load` by memory that it maps; it compares every byte.
fn load(cluster: &ProcessCluster, libraries: &Path) -> Ended {
    let mut command = clean_command(env!("CARGO_BIN_EXE_nkv-load"));
    finds(libraries)(&mut command);
    command.args(["--job", cluster.job(), "--transport", "shm", "--duration", "1"]);
    command.args(["--size", "96KiB", "--connect", &cluster.address(0).to_string()]);
    run_to_end(command, HANGS)
}

#[test]
fn processes_of_one_host_map_vram_of_both_ranks_where_they_have_the_driver() {
    let (folder, nowhere) = (with_driver(), tempfile::tempdir().unwrap());
    let finds = finds(folder.path());
    let cluster = ProcessCluster::start(2, move |command| {
        finds(command);
        command.args(["--memory", "cuda", "--heap-bytes", "64MiB", "--log-bytes", "auto"]);
    });
    let ended = load(&cluster, folder.path());
    assert_eq!(ended.code, 0, "{}{}", ended.stdout, ended.stderr);
    let refused = load(&cluster, nowhere.path());
    assert_ne!(refused.code, 0, "{}", refused.stdout);
    assert!(refused.stderr.contains("install the NVIDIA driver"), "{}", refused.stderr);
    // The attachments that failed are gone: puts go on, and what is removed comes back.
    serves(&cluster);
}

#[test]
fn auto_serves_dram_and_says_why_where_there_is_no_driver() {
    let nowhere = tempfile::tempdir().unwrap();
    let finds = finds(nowhere.path());
    let cluster = ProcessCluster::start(2, move |command| {
        finds(command);
        command.args(["--memory", "auto", "--heap-bytes", "32MiB"]);
    });
    serves(&cluster);
    let log = cluster.node(0).stderr();
    assert!(log.contains("payloads lie in DRAM"), "{log}");
    assert!(log.contains("install the NVIDIA driver"), "{log}");
}

#[test]
fn cuda_without_a_driver_is_one_sentence_that_says_what_to_install() {
    let nowhere = tempfile::tempdir().unwrap();
    let mut command = node_command(&new_job());
    finds(nowhere.path())(&mut command);
    command.args(["--memory", "cuda"]);
    let ended = run_to_end(command, HANGS);
    assert_ne!(ended.code, 0);
    let sentence = ended.sentence();
    assert!(sentence.contains("CUDA driver library cannot be loaded"), "{sentence}");
    assert!(sentence.contains("install the NVIDIA driver"), "{sentence}");
}

#[test]
fn kernels_claim_in_vram_alone() {
    let nowhere = tempfile::tempdir().unwrap();
    for (memory, parts) in [
        ("dram", ["atomic_domain gpu is about a device log in VRAM", "--memory cuda"]),
        ("private", ["atomic_domain gpu is about a device log in VRAM", "--memory cuda"]),
        // No falling back to DRAM, where kernels could not claim.
        ("auto", ["CUDA driver library cannot be loaded", "install the NVIDIA driver"]),
    ] {
        let mut command = node_command(&new_job());
        finds(nowhere.path())(&mut command);
        command.args(["--memory", memory, "--atomic-domain", "gpu"]);
        let ended = run_to_end(command, HANGS);
        assert_ne!(ended.code, 0, "{memory}");
        let sentence = ended.sentence();
        assert!(parts.iter().all(|part| sentence.contains(part)), "{memory}: {sentence}");
    }
}

#[test]
fn a_gpu_that_is_not_there_is_refused_with_the_number_of_those_that_are() {
    let folder = with_driver();
    let mut command = node_command(&new_job());
    finds(folder.path())(&mut command);
    command.args(["--memory", "cuda", "--gpu", "7"]);
    let ended = run_to_end(command, HANGS);
    assert_ne!(ended.code, 0);
    let sentence = ended.sentence();
    assert!(sentence.contains("there is no GPU 7: this process can use 1"), "{sentence}");
    assert!(sentence.contains("--gpu"), "{sentence}");
}

/// What is left in the stand-in at its process's exit, of one kind.
fn left(file: &Path, kind: &str) -> Option<u64> {
    let text = std::fs::read_to_string(file).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(kind))?;
    line.trim().parse().ok()
}

#[test]
fn a_pool_is_pinned_at_start_and_at_a_mount_is_shown_and_is_released_at_the_end() {
    let folder = with_driver();
    let (calls, leaks) = (folder.path().join("calls"), folder.path().join("leaks"));
    let files = (finds(folder.path()), calls.clone(), leaks.clone());
    let mut cluster = ProcessCluster::start(1, move |command| {
        files.0(command);
        command.env("MOCK_CUDA_LOG", &files.1).env("MOCK_CUDA_LEAKS", &files.2);
        command.args(["--pool-pinned", "--heap-bytes", "32MiB", "--log-bytes", "auto"]);
    });
    let made = |symbol: &str| {
        let calls = std::fs::read_to_string(&calls).unwrap();
        calls.lines().filter(|call| *call == symbol).count()
    };
    let calls_made = || (made("cuMemHostRegister_v2"), made("cuMemHostUnregister"));
    let status =
        || -> serde_json::Value { serde_json::from_str(&cluster.get(0, "/status").1).unwrap() };
    let pinned = status()["pinned"].clone();
    assert_eq!((calls_made(), &pinned["gpu"]), ((1, 0), &0.into()), "{pinned}");
    let bytes = pinned["bytes"].as_u64().unwrap();
    assert!(bytes > 32 << 20 && pinned["took_ms"].is_u64(), "{pinned}");
    let line = "pinned 0.04 GiB for GPUs in ";
    until(HANGS, "the line is there", || cluster.node(0).stderr().contains(line));
    let client = cluster.connect_by(0, TransportChoice::Auto);
    client.put(b"key", &vec![7; 1 << 20], &PutOptions::default()).unwrap();
    assert!(client.get(b"key").unwrap() == vec![7; 1 << 20]);
    let run = |command: &[&str]| {
        let ended = run_to_end(cluster.cli(0, command), HANGS);
        assert_eq!(ended.code, 0, "{command:?}: {}", ended.stderr);
    };
    run(&["mount", "16MiB", "--rank", "0"]);
    assert_eq!(calls_made(), (2, 0));
    assert!(status()["segments"][0]["pinned"]["bytes"].as_u64() > Some(16 << 20));
    run(&["unmount", "1", "--rank", "0"]);
    assert_eq!(calls_made(), (2, 1), "of the segment that is gone");
    cluster.term(0);
    assert_eq!(cluster.wait_exit(0, HANGS).code, 0);
    assert_eq!(calls_made(), (2, 2));
    for kind in ["registered", "contexts"] {
        assert_eq!(left(&leaks, kind), Some(0), "{kind}");
    }
}

#[test]
fn a_pool_that_cannot_be_pinned_ends_the_start_with_one_sentence() {
    let (folder, nowhere) = (with_driver(), tempfile::tempdir().unwrap());
    let start = |libraries: &Path, failure: &str, args: &[&str]| {
        let mut command = node_command(&new_job());
        finds(libraries)(&mut command);
        command.env("MOCK_CUDA_FAIL", failure).args(["--heap-bytes", "16MiB", "--pool-pinned"]);
        let leaks = folder.path().join("failed");
        command.args(args).env("MOCK_CUDA_LEAKS", &leaks);
        let ended = run_to_end(command, HANGS);
        assert_ne!(ended.code, 0, "{failure} {args:?}");
        assert!(matches!(left(&leaks, "registered"), None | Some(0)), "{failure}");
        ended.sentence().to_string()
    };
    let none = start(nowhere.path(), "", &[]);
    assert!(
        none.contains("--pool-pinned: ") && none.contains("install the NVIDIA driver"),
        "{none}"
    );
    for (call, code, remedy) in [
        ("cuInit", 100, "CUDA_VISIBLE_DEVICES"),
        ("cuDeviceGetCount", 999, "cuDeviceGetCount failed"),
        ("cuDevicePrimaryCtxRetain", 2, "OUT_OF_MEMORY"),
        ("cuCtxPushCurrent_v2", 201, "INVALID_CONTEXT"),
        ("cuMemHostRegister_v2", 2, "limit of locked memory (ulimit -l unlimited"),
        ("cuMemHostRegister_v2", 304, "limit of locked memory (ulimit -l unlimited"),
        ("cuMemHostGetDevicePointer_v2", 999, "cuMemHostGetDevicePointer failed"),
    ] {
        let sentence = start(folder.path(), &format!("{call}:{code}"), &[]);
        assert!(sentence.contains("--pool-pinned: "), "{call}: {sentence}");
        assert!(sentence.contains(remedy), "{call}: {sentence}");
    }
    let absent = start(folder.path(), "", &["--gpu", "3"]);
    assert!(absent.contains("there is no GPU 3"), "{absent}");
    let vram = start(folder.path(), "", &["--memory", "cuda"]);
    assert!(vram.contains("pool_pinned pins payloads in host memory"), "{vram}");
}

#[test]
fn the_doctor_copies_to_each_gpu_and_back_or_says_why_there_is_none() {
    let (folder, nowhere) = (with_driver(), tempfile::tempdir().unwrap());
    for (folder, expected) in [(&folder, "copies             work"), (&nowhere, "none: the CUDA")] {
        let mut command = clean_command(env!("CARGO_BIN_EXE_nkv"));
        finds(folder.path())(&mut command);
        command.arg("doctor");
        let ended = run_to_end(command, HANGS);
        assert!(ended.stdout.contains(expected), "{expected}: {}{}", ended.stdout, ended.stderr);
    }
}
