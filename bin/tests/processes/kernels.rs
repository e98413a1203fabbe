//! A log whose claim word lies in VRAM, with the stand-in for the driver library: kernels of other
//! processes put into it, processors read it, and producers are killed.

mod putting;

pub use putting::main;

use crate::cluster_process::{ProcessCluster, clean_command, until};
use crate::mock_library;
use crate::task::{self, Kind};
use nkv::{Blocking, PutOptions, TransportChoice};
use nkv_pace::HANGS;
use nkv_store::layout::{CTL_BYTES, HEADER_BYTES, PUBLISH_OFF, low, state};
use nkv_store::{Memory, shm};
use putting::{is_served, key, value};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::Arc;
use tempfile::TempDir;

/// The log's bytes: some eighty objects.
const LOG: u64 = 1 << 20;
/// Objects of each producer: several laps.
const OBJECTS: u64 = 240;

/// A folder where the linker finds the stand-in.
fn with_driver() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for file in ["libcuda.so", "libcuda.so.1"] {
        std::fs::copy(mock_library::library(), folder.path().join(file)).unwrap();
    }
    folder
}

fn cluster(libraries: &Path) -> ProcessCluster {
    let libraries = libraries.to_path_buf();
    ProcessCluster::start(1, move |command| {
        command.env("LD_LIBRARY_PATH", &libraries).env("MOCK_CUDA_DELAY_US", "20");
        command.args(["--memory", "cuda", "--atomic-domain", "gpu", "--heap-bytes", "3MiB"]);
        command.args(["--log-bytes", &LOG.to_string(), "--log-claim-ttl-ms", "200"]);
    })
}

/// A producer of a seed, whose blocks have so many threads: with few, copies take long.
fn producer(
    cluster: &ProcessCluster,
    libraries: &Path,
    (seed, objects): (u64, u64),
    threads: u32,
) -> Child {
    let address = cluster.address(0);
    let mut command = task::command(
        Kind::Kernels,
        format_args!("{address} {} 0 {seed} {objects} {threads}", cluster.job()),
    );
    let clean = clean_command("");
    for (name, value) in clean.get_envs() {
        if let Some(value) = value {
            command.env(name, value);
        }
    }
    command.env("LD_LIBRARY_PATH", libraries).env("MOCK_CUDA_DELAY_US", "20");
    command.env("MOCK_CUDA_SEED", (seed + 1).to_string());
    command.stdout(Stdio::piped()).spawn().unwrap()
}

pub fn i1_kernels_of_two_processes_put_into_one_log_for_several_laps() {
    let folder = with_driver();
    let cluster = cluster(folder.path());
    let mut producers: Vec<_> =
        (1..=2).map(|seed| producer(&cluster, folder.path(), (seed, OBJECTS), 32)).collect();
    // By tcp, while they put: right bytes or none.
    let client = cluster.connect_by(0, TransportChoice::Tcp);
    let (mut served, mut n) = (0_u64, 0_u64);
    let running = |producers: &mut Vec<Child>| {
        producers.iter_mut().any(|child| child.try_wait().unwrap().is_none())
    };
    while running(&mut producers) {
        for seed in 1..=2 {
            served += u64::from(is_served(&client, seed, n % OBJECTS));
        }
        n += 1;
    }
    for mut child in producers {
        assert!(child.wait().unwrap().success());
    }
    assert!(served > 0, "nothing was read while kernels put");
    let in_the_end = |seed| (0..OBJECTS).filter(|n| is_served(&client, seed, *n)).count();
    let left = [in_the_end(1), in_the_end(2)];
    assert!(left[0] > 0 && left[1] > 0 && left[0] + left[1] < 200, "after several laps: {left:?}");
    // They are listed, since their keys were reported, and can be removed.
    let listed = client.list(Some("^kernel/"), None, 1_000).unwrap().len();
    assert_eq!(listed, left[0] + left[1]);
    // A processor puts by a plan, and reads what it put.
    client.put(b"by a processor", &value(9, 9), &PutOptions::default()).unwrap();
    assert!(client.get(b"by a processor").unwrap() == value(9, 9));
    let last = key(1, OBJECTS - 1);
    client.remove(last.as_bytes()).unwrap();
    assert!(!is_served(&client, 1, OBJECTS - 1));
}

/// The headers of rank 0's log, mapped past any handle.
fn headers(client: &Blocking) -> (Arc<dyn Memory>, u32) {
    let (info, _) = client.membership().unwrap().ranks.remove(0);
    let memory = shm::attach(info.memory.name().unwrap(), false).unwrap();
    assert_eq!(info.layout.header_base, CTL_BYTES);
    (memory, info.layout.log_slots)
}

/// The slots of claims that are being written, with their publish words.
fn half_written((memory, slots): &(Arc<dyn Memory>, u32)) -> Vec<(u32, u64)> {
    let word = |slot: u32| memory.load(CTL_BYTES + u64::from(slot) * HEADER_BYTES + PUBLISH_OFF);
    let all = (0..*slots).map(|slot| (slot, word(slot).unwrap()));
    all.filter(|(_, word)| low(*word) == state::WRITING).collect()
}

pub fn i14_kernels_of_killed_processes_leave_nothing_that_stays() {
    let folder = with_driver();
    let cluster = cluster(folder.path());
    let client = cluster.connect_by(0, TransportChoice::Tcp);
    let headers = headers(&client);
    let mut left = 0;
    for round in 0..20 {
        let before = half_written(&headers);
        let mut child = producer(&cluster, folder.path(), (10 + round, 1 << 19), 1);
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        for _ in 0..5 + round {
            lines.next().unwrap().unwrap();
        }
        let begun = || half_written(&headers).iter().any(|claim| !before.contains(claim));
        until(HANGS, "a kernel is in the middle of a claim", begun);
        child.kill().unwrap();
        child.wait().unwrap();
        left += u64::from(begun());
        if left == 3 {
            break;
        }
    }
    assert_eq!(left, 3, "kernels that were killed in the middle of a claim");
    // Several laps beyond everything that they left.
    let mut child = producer(&cluster, folder.path(), (1, OBJECTS), 32);
    assert!(child.wait().unwrap().success());
    assert!(is_served(&client, 1, OBJECTS - 1));
    let (_, status) = cluster.get(0, "/status");
    assert!(!status.contains("\"log_voided_bytes\":0,"), "{status}");
}
