//! A log whose claim word lies in VRAM, with the stand-in for the driver library: kernels of other
//! processes put into it, processors read it, and producers are killed.

mod putting;

use crate::cluster_process::{ProcessCluster, new_job, until};
use crate::mock_library;
use crate::task::{self, Kind};
use nkv::{Blocking, MemoryChoice, Node, NodeConfig, PutOptions, TransportChoice};
use nkv_pace::HANGS;
use nkv_store::layout::{AtomicDomain, CTL_BYTES, HEADER_BYTES, PUBLISH_OFF, low, state};
use nkv_store::{Memory, shm};
use putting::{is_served, key, value};
use std::io::{BufRead, BufReader};
use std::ops::RangeInclusive;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
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
    let (address, job) = (cluster.address(0), cluster.job());
    let words = format_args!("{address} {job} 0 {seed} {objects} {threads}");
    let mut command = with_stand_in(task::command(Kind::Kernels, words), libraries);
    command.env("MOCK_CUDA_SEED", (seed + 1).to_string());
    command.stdout(Stdio::piped()).spawn().unwrap()
}

/// Streams that are not slow, and the library of that folder.
fn with_stand_in(mut command: Command, libraries: &Path) -> Command {
    command.env("LD_LIBRARY_PATH", libraries).env("MOCK_CUDA_DELAY_US", "20");
    command
}

pub fn i1_kernels_of_two_processes_put_into_one_log_for_several_laps() {
    let folder = with_driver();
    let cluster = cluster(folder.path());
    // By tcp, while they put: right bytes or none.
    let client = cluster.connect_by(0, TransportChoice::Tcp);
    // Other keys each time, until something was read: a busy machine may not run the reader.
    let seeds = (1..6).step_by(2).map(|first| first..=first + 1).find(|seeds| {
        let one = |seed| producer(&cluster, folder.path(), (seed, OBJECTS), 32);
        read_beside(&client, seeds, seeds.clone().map(one).collect()) > 0
    });
    let seeds = seeds.expect("something is read while kernels put");
    // One producer may have ended long before the other.
    let all = seeds.flat_map(|seed| (0..OBJECTS).map(move |n| (seed, n)));
    let left: Vec<_> = all.filter(|(seed, n)| is_served(&client, *seed, *n)).collect();
    assert!((1..200).contains(&left.len()), "after several laps: {left:?}");
    // They are listed, since their keys were reported, and can be removed.
    let listed = client.list(Some("^kernel/"), None, 1_000).unwrap().len();
    assert_eq!(listed, left.len());
    // A processor puts by a plan, and reads what it put.
    client.put(b"by a processor", &value(9, 9), &PutOptions::default()).unwrap();
    assert!(client.get(b"by a processor").unwrap() == value(9, 9));
    let (seed, n) = left[left.len() - 1];
    client.remove(key(seed, n).as_bytes()).unwrap();
    assert!(!is_served(&client, seed, n));
}

/// How many reads found something until all producers had ended.
fn read_beside(client: &Blocking, seeds: &RangeInclusive<u64>, mut producers: Vec<Child>) -> u64 {
    let (mut served, mut n) = (0, 0);
    while producers.iter_mut().any(|child| child.try_wait().unwrap().is_none()) {
        for seed in seeds.clone() {
            // In no order of theirs, or a slow reader would always be behind.
            served += u64::from(is_served(client, seed, n * 89 % OBJECTS));
        }
        n += 1;
    }
    for mut child in producers {
        assert!(child.wait().unwrap().success());
    }
    served
}

/// A process of these tests: a producer, or a node whose own kernels put.
pub fn main(text: &str) -> ExitCode {
    match text {
        "owner" => owner(),
        producer => putting::main(producer),
    }
}

/// A rank and a kernel in one process, over several laps.
fn owner() -> ExitCode {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let config = NodeConfig {
        job: new_job(),
        memory: MemoryChoice::Cuda(0),
        heap_bytes: 3 << 20,
        log_bytes: Some(LOG),
        atomic_domain: AtomicDomain::Gpu,
        ..NodeConfig::default()
    };
    let node = runtime.block_on(async {
        let node = Node::start(config).await.unwrap();
        node.ready().await;
        node
    });
    let client = node.client().blocking().unwrap();
    putting::puts(&client, 0, (1, OBJECTS), 32);
    // A second handle of the process, whose memory is registered already.
    let second = node.client().blocking().unwrap();
    putting::puts(&second, 0, (2, OBJECTS), 32);
    until(HANGS, "all are accepted, and older ones gone", || {
        let log = node.status().owner;
        log.log_accepted >= 2 * OBJECTS && log.log_evictions > 0
    });
    drop((client, second));
    runtime.block_on(node.stop());
    ExitCode::SUCCESS
}

pub fn i1_kernels_of_the_owners_process_put_into_its_log() {
    let folder = with_driver();
    let leaks = folder.path().join("leaks");
    let mut command = with_stand_in(task::command(Kind::Kernels, "owner"), folder.path());
    assert!(command.env("MOCK_CUDA_LEAKS", &leaks).status().unwrap().success());
    let left = std::fs::read_to_string(leaks).unwrap();
    // The node's own memory may still be there: its threads end after it has stopped.
    for of_kernels in ["allocations 0", "registered 0", "events 0", "modules 0"] {
        assert!(left.contains(of_kernels), "not given back: {left}");
    }
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
