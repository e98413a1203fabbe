//! The memory of one segment: where it lies, its registration with RDMA devices, and its pinning
//! for GPUs. All of it is undone when the segment ends. It serves nobody.

use super::common::Common;
use super::rights;
use super::{MemoryChoice, NodeConfig, StartError};
use crate::executor::Executor;
use crate::machine::{DevicePayload, Machine, NewSegment, SegmentKind};
use crate::message::{ExportedMemory, SegmentId};
use nkv_store::StoreError;
use nkv_store::fork::ProcessMark;
use nkv_store::heap::{Heap, HeapConfig};
use nkv_store::layout::AtomicDomain;
use nkv_store::shm::{Allocation, SegmentName};
use nkv_transport::fabric::Exported;
use serde::Serialize;
use std::any::Any;
use std::path::PathBuf;
use std::sync::Arc;

/// A segment that is to be made.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wanted {
    pub segment_id: SegmentId,
    /// Payload bytes, if it is not the first one, whose bytes the configuration has.
    pub bytes: u64,
    pub incarnation: u64,
}

/// A segment's memory, with its names.
pub(super) struct Made {
    pub heap: Heap,
    pub exported: ExportedMemory,
    pub payload: Option<Arc<dyn DevicePayload>>,
    /// Its registration with RDMA devices, and which devices.
    pub registered: Option<(Arc<dyn Exported>, String)>,
    /// Its registration with a GPU.
    pub pinned: Option<Pinned>,
    pub socket: Option<SocketFile>,
    pub name: Option<Box<dyn Send + Sync>>,
}

/// The unix socket's file, removed with the node.
#[derive(Debug)]
pub(super) struct SocketFile(pub PathBuf, Arc<dyn Machine>, ProcessMark);

impl Drop for SocketFile {
    fn drop(&mut self) {
        if self.2.is_here() {
            self.1.remove_socket(&self.0);
        }
    }
}

/// Memory of the host that is registered with a GPU, until this is dropped.
pub(super) struct Pinned {
    pub status: PinnedStatus,
    _undoes: Box<dyn Any + Send + Sync>,
}

/// A segment's registration with a GPU, as shown in the status.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct PinnedStatus {
    /// The GPU's number in this process.
    pub gpu: u32,
    /// Bytes.
    pub bytes: u64,
    /// Milliseconds that it took.
    pub took_ms: u64,
}

/// Makes the memory of a segment and registers it with what the configuration asks for.
pub(super) async fn make(
    common: &Common,
    wanted: Wanted,
    executor: &Executor,
) -> Result<Made, StartError> {
    let choice = common.config.memory;
    let MemoryChoice::Auto(ordinal) = choice else {
        return make_in(common, wanted, choice, executor).await;
    };
    let why = match make_in(common, wanted, MemoryChoice::Cuda(ordinal), executor).await {
        Ok(made) => return Ok(made),
        // Kernels claim in VRAM alone: there is nothing to fall back to.
        Err(why) if common.config.atomic_domain == AtomicDomain::Gpu => return Err(why),
        Err(why) => why,
    };
    tracing::info!(%why, "payloads lie in DRAM: no GPU can be used");
    make_in(common, wanted, MemoryChoice::Shm, executor).await
}

async fn make_in(
    common: &Common,
    wanted: Wanted,
    choice: MemoryChoice,
    executor: &Executor,
) -> Result<Made, StartError> {
    // Not on the caller's event loop: prefaulting takes up to seconds per GiB.
    let (config, machine) = (common.config.clone(), common.env.machine.clone());
    let making = move || make_memory(&config, &machine, wanted, choice);
    let mut made = executor.beside(making).await??;
    made.registered = register(common, wanted.segment_id, &made.heap, executor).await?;
    made.pinned = pin(common, wanted.segment_id, &made, executor).await?;
    Ok(made)
}

fn make_memory(
    config: &NodeConfig,
    machine: &Arc<dyn Machine>,
    Wanted { segment_id, bytes, incarnation }: Wanted,
    choice: MemoryChoice,
) -> Result<Made, StartError> {
    let first = segment_id.is_first();
    let (arena_bytes, log_bytes) = if first { config.parts() } else { (bytes, 0) };
    let wanted = HeapConfig {
        arena_bytes,
        log_bytes,
        rank: config.rank,
        segment_id: u64::from(segment_id.segment),
        incarnation,
        boot_id: machine.boot_id(),
        quarantine_ms: config.quarantine_ms,
        watermarks: config.watermarks,
        atomic_domain: config.atomic_domain,
        arena_unit: config.heap_align,
    };
    let internal = |e: StoreError| match e {
        StoreError::NotEnoughMemory(text) => StartError::HeapTooLarge(text),
        StoreError::InvalidConfig(text) | StoreError::Device(text) => StartError::Config(text),
        other => StartError::Internal(other.to_string()),
    };
    wanted.validate().map_err(internal)?;
    let bytes = wanted.segment_bytes();
    let called = SegmentName { job: config.job.clone(), rank: config.rank, incarnation };
    let kind = match choice {
        MemoryChoice::Private => SegmentKind::Private,
        MemoryChoice::Cuda(ordinal) | MemoryChoice::Auto(ordinal) => {
            SegmentKind::Device { name: &called, ordinal, payloads: wanted.control_bytes() }
        }
        MemoryChoice::Shm => SegmentKind::Shared(&called),
    };
    let allocation = Allocation { prefault: config.prefault, numa_node: config.numa_node };
    let made = machine.create(kind, bytes, allocation);
    let NewSegment { memory, file_name, name, payload } = made.map_err(internal)?;
    let heap = Heap::format(memory, &wanted).map_err(internal)?;
    // A node has one socket, named after its first segment.
    let socket = choice != MemoryChoice::Private && first;
    let socket =
        socket.then(|| SocketFile(called.socket_path(), machine.clone(), ProcessMark::here()));
    let exported = match (file_name, &payload) {
        (Some(name), Some(payload)) => ExportedMemory::Device { name, uuid: payload.uuid() },
        (Some(name), None) => ExportedMemory::Shared { name },
        (None, _) => ExportedMemory::Private,
    };
    Ok(Made { heap, name, exported, payload, socket, registered: None, pinned: None })
}

/// Registers a segment's memory with the RDMA devices of this machine. A failure is an error if
/// devices were named or a device counts claims; otherwise it is only logged.
async fn register(
    common: &Common,
    segment_id: SegmentId,
    heap: &Heap,
    executor: &Executor,
) -> Result<Option<(Arc<dyn Exported>, String)>, StartError> {
    let domain = common.config.atomic_domain;
    let by_nic = domain == AtomicDomain::Nic;
    // Devices reach no log in which kernels claim: others read it by tcp.
    let wanted = common.config.fabric.clone().filter(|_| domain != AtomicDomain::Gpu);
    let Some(wanted) = wanted else { return Ok(None) };
    // Without a device nobody could claim in a log whose claims a device counts.
    let named = wanted.is_particular() || by_nic;
    let (machine, memory) = (common.env.machine.clone(), heap.memory().clone());
    let parts = rights::of_others(heap, by_nic);
    // Pins every page: takes seconds per GiB. An error comes with whether there is a device.
    let registering = move || {
        let fabric = machine.fabric(&wanted).map_err(|e| (e, false))?;
        let exported = fabric.export(memory, &parts, by_nic).map_err(|e| (e, true))?;
        Ok((exported, fabric.describe()))
    };
    let (error, is_there) = match executor.beside(registering).await? {
        Ok(exported) => return Ok(Some(exported)),
        Err((e, _)) if named => return Err(StartError::Config(format!("RDMA: {e}"))),
        Err(failed) => failed,
    };
    match is_there {
        true => tracing::warn!(%segment_id, %error, "not reached by rdma"),
        false => tracing::debug!(%segment_id, %error, "not reached by rdma"),
    }
    Ok(None)
}

/// Registers a segment with the GPU that the configuration names, before the rank joins: what was
/// asked for and is not possible ends the start.
async fn pin(
    common: &Common,
    segment_id: SegmentId,
    made: &Made,
    executor: &Executor,
) -> Result<Option<Pinned>, StartError> {
    let Some(gpu) = common.config.pool_pinned else { return Ok(None) };
    if made.heap.memory().payload().is_some() {
        tracing::info!(%segment_id, "payloads lie in a GPU: --pool-pinned has nothing to pin");
        return Ok(None);
    }
    let (machine, memory) = (common.env.machine.clone(), made.heap.memory().clone());
    let (clock, bytes) = (&common.env.clock, memory.len());
    let start_ms = clock.now_ms();
    let undoes = executor.beside(move || machine.pin(memory, gpu)).await?;
    let refused = |e| StartError::Config(format!("--pool-pinned: {bytes} bytes: {e}"));
    let _undoes = undoes.map_err(refused)?;
    let status = PinnedStatus { gpu, bytes, took_ms: clock.now_ms() - start_ms };
    let (gib, seconds) = (bytes as f64 / f64::from(1 << 30), status.took_ms as f64 / 1e3);
    tracing::info!(%segment_id, gpu, "pinned {gib:.2} GiB for GPUs in {seconds:.2} s");
    Ok(Some(Pinned { status, _undoes }))
}
