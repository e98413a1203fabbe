//! The registry of the segments that a node serves: its control port finds them by incarnation. It
//! serves no requests itself.

use crate::actor::ActorAddr;
use crate::machine::DevicePayload;
use crate::message::ExportedMemory;
use crate::owner::Owner;
use crate::owner::tables::OwnerTables;
use nkv_transport::fabric::Exported;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::mpsc;

/// What the control port needs to reach one segment.
#[derive(Debug, Clone)]
pub(crate) struct SegmentEndpoint {
    pub owner: ActorAddr<Owner>,
    pub tables: Arc<OwnerTables>,
    /// Its registration with RDMA devices, if there is one.
    pub exported: Option<Arc<dyn Exported>>,
    /// How processes of this host map it.
    pub memory: ExportedMemory,
    /// Its payloads, if they are in a device.
    pub payload: Option<Arc<dyn DevicePayload>>,
    // Closed with the segment. Not a `watch`, which wakes its waiters in no fixed order.
    closed: mpsc::Sender<()>,
}

impl SegmentEndpoint {
    /// Resolves when the segment is taken down: its connections are closed then.
    pub(crate) async fn closed(&self) {
        // Nothing is ever sent; the receiver is dropped with the segment.
        self.closed.closed().await;
    }
}

type ByIncarnation = BTreeMap<u64, SegmentEndpoint>;

/// The registry of one node.
#[derive(Debug, Clone, Default)]
pub(crate) struct SegmentRegistry(Arc<Mutex<ByIncarnation>>);

impl SegmentRegistry {
    fn lock(&self) -> MutexGuard<'_, ByIncarnation> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a segment for as long as the guard lives.
    pub(crate) fn register(
        &self,
        incarnation: u64,
        owner: ActorAddr<Owner>,
        tables: Arc<OwnerTables>,
        exported: Option<Arc<dyn Exported>>,
        (memory, payload): (ExportedMemory, Option<Arc<dyn DevicePayload>>),
    ) -> RegisteredSegment {
        let (closed, here) = mpsc::channel(1);
        self.lock().insert(
            incarnation,
            SegmentEndpoint { owner, tables, exported, memory, payload, closed },
        );
        RegisteredSegment { registry: self.clone(), incarnation, _here: here }
    }

    /// The endpoint of an incarnation.
    pub(crate) fn get(&self, incarnation: u64) -> Option<SegmentEndpoint> {
        self.lock().get(&incarnation).cloned()
    }
}

/// An entry of the registry.
#[derive(Debug)]
pub(crate) struct RegisteredSegment {
    registry: SegmentRegistry,
    incarnation: u64,
    _here: mpsc::Receiver<()>,
}

impl Drop for RegisteredSegment {
    fn drop(&mut self) {
        self.registry.lock().remove(&self.incarnation);
    }
}
