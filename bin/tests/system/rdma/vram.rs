//! Ranks whose payloads lie in VRAM, reached through devices. The driver library is the stand-in,
//! whose VRAM is memory of the process: Soft-RoCE refuses it as a dma-buf, and then registers it by
//! its address, as nvidia-peermem lets a NIC do.

use super::{SOON, by_devices, bytes, on, owner};
use crate::cluster_process::{ProcessCluster, until};
use crate::gpu::{finds, with_driver};
use nkv::{Blocking, ErrorKind, TransportChoice};
use tempfile::TempDir;

/// Two ranks with these settings, and the folder of their driver library.
fn in_vram(args: &'static [&'static str]) -> (ProcessCluster, TempDir) {
    let folder = with_driver();
    let finds = finds(folder.path());
    let calls = folder.path().join("calls");
    let cluster = ProcessCluster::start(2, move |command| {
        finds(command);
        // The device orders no RDMA writes: its readers flush.
        command.env("MOCK_CUDA_ATTRIBUTES", "118=0").env("MOCK_CUDA_LOG", &calls);
        command.args(["--heap-bytes", "16MiB"]).args(args);
        command.args(["--log", "info,nkv_node=debug,nkv_transport=debug"]);
    });
    for rank in 0..2 {
        let line = "transports: local, cuda_ipc, rdma (rxe";
        until(SOON, "it says so", || cluster.node(rank).stderr().contains(line));
        let log = cluster.node(rank).stderr();
        assert!(log.contains("memory: 16 MiB of a GPU"), "{log}");
        let refused = log.lines().find(|line| line.contains("VRAM is registered by its address"));
        assert!(refused.is_some_and(|line| line.contains("ibv_reg_dmabuf_mr")), "{log}");
    }
    (cluster, folder)
}

/// Flushes of RDMA writes that the ranks asked their driver for.
fn flushes(folder: &TempDir) -> usize {
    let calls = std::fs::read_to_string(folder.path().join("calls")).unwrap();
    calls.lines().filter(|call| *call == "cuFlushGPUDirectRDMAWrites").count()
}

/// Values of all sizes go in by each of these handles, to each rank, and every handle reads them.
fn put_get_remove(handles: &[(&str, Blocking)], device_alloc: bool) {
    for (seed, size) in [1, 4_096, 70_001, (1 << 20) + 5].into_iter().enumerate() {
        for (name, writer) in handles {
            for rank in 0..2 {
                let (key, value) = (format!("{name}/{rank}/{size}"), bytes(seed as u32, size));
                let how = on(rank).device_alloc(device_alloc);
                writer.put(key.as_bytes(), &value, &how).unwrap();
                assert_eq!(writer.get_location(key.as_bytes()).unwrap().rank(), rank);
                for (reader, handle) in handles {
                    assert!(handle.get(key.as_bytes()).unwrap() == value, "{key} by {reader}");
                }
                writer.remove(key.as_bytes()).unwrap();
                let gone = handles[0].1.get(key.as_bytes()).unwrap_err();
                assert_eq!(gone.kind(), ErrorKind::NotFound, "{key}");
            }
        }
    }
}

#[test]
fn plans_of_devices_and_of_tcp_are_read_by_both_from_vram() {
    let (cluster, folder) = in_vram(&["--memory", "cuda", "--log-bytes", "0"]);
    let by_tcp = cluster.connect_by(0, TransportChoice::Tcp);
    let handles = [("rdma", by_devices(&cluster)), ("tcp", by_tcp)];
    let before = flushes(&folder);
    put_get_remove(&handles, false);
    assert!(flushes(&folder) > before, "agents flush before they copy");
}

#[test]
fn claims_that_a_device_counts_are_written_into_a_log_in_vram_with_devices_by_name() {
    for memory in ["cuda", "auto"] {
        let args: &'static [&'static str] = match memory {
            "cuda" => &["--memory", "cuda", "--log-bytes", "8MiB", "--atomic-domain", "nic"],
            _ => &[
                "--memory",
                "auto",
                "--log-bytes",
                "8MiB",
                "--atomic-domain",
                "nic",
                "--rdma-devices",
                "rxe0",
            ],
        };
        let (cluster, _folder) = in_vram(args);
        let handles = [("one", by_devices(&cluster)), ("two", by_devices(&cluster))];
        put_get_remove(&handles, true);
        for (name, handle) in &handles {
            let writes = handle.client().write_counters();
            assert_eq!((writes.by_log, writes.by_plan), (8, 0), "{name}: {writes:?}");
        }
        for rank in 0..2 {
            until(SOON, "all are accepted", || owner(&cluster, rank)["owner"]["log_accepted"] == 8);
        }
    }
}
