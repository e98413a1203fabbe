//! `nkv-node --memory cuda` and `auto`, with a stand-in for the driver library and without one.

#[path = "../../../gpu/tests/mock_library.rs"]
mod mock_library;

use crate::cluster_process::{
    Ended, ProcessCluster, clean_command, new_job, node_command, run_to_end,
};
use nkv::{PutOptions, TransportChoice};
use nkv_pace::HANGS;
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;

/// A folder where the linker finds the stand-in.
fn with_driver() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for file in ["libcuda.so", "libcuda.so.1"] {
        std::fs::copy(mock_library::library(), folder.path().join(file)).unwrap();
    }
    folder
}

/// The node looks for libraries in this folder first.
fn finds(folder: &Path) -> impl Fn(&mut Command) + use<> {
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
            assert_eq!(client.get_location(key.as_bytes()).unwrap().rank, rank);
        }
    }
    assert_eq!(client.remove_all().unwrap(), 8);
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
