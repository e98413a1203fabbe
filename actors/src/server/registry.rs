//! The registries of segments that this process serves. One per node finds the node's segments for
//! its control port, by incarnation. One per process finds the owners of all its nodes for clients
//! in the process, which need no socket. They serve no requests themselves.

use crate::actor::ActorAddr;
use crate::owner::Owner;
use crate::owner::tables::OwnerTables;
use nkv_store::fork::ProcessMark;
use nkv_transport::fabric::Exported;
use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use tokio::sync::mpsc;

/// What the control port needs to reach one segment.
#[derive(Debug, Clone)]
pub(crate) struct SegmentEndpoint {
    pub owner: ActorAddr<Owner>,
    pub tables: Arc<OwnerTables>,
    /// Its registration with RDMA devices, if there is one.
    pub exported: Option<Arc<dyn Exported>>,
    /// The segment's name in shared memory; empty where it has none.
    pub segment: String,
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
        segment: String,
    ) -> RegisteredSegment {
        let (closed, here) = mpsc::channel(1);
        self.lock()
            .insert(incarnation, SegmentEndpoint { owner, tables, exported, segment, closed });
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

/// An owner of this process, reached without a socket.
#[derive(Debug, Clone)]
pub(crate) struct LocalOwner {
    pub memory: Arc<dyn nkv_store::Memory>,
    pub alive: nkv_transport::Alive,
    pub owner: ActorAddr<Owner>,
    pub tables: Arc<OwnerTables>,
}

/// The owners of one process, by incarnation.
#[derive(Debug, Clone, Default)]
pub(crate) struct LocalOwners(Arc<Mutex<BTreeMap<u64, (LocalOwner, ProcessMark)>>>);

/// Guard: keeps an owner visible to clients of its process.
#[derive(Debug)]
pub(crate) struct Published {
    owners: LocalOwners,
    incarnation: u64,
}

impl Drop for Published {
    fn drop(&mut self) {
        self.owners.lock().remove(&self.incarnation);
    }
}

impl LocalOwners {
    /// Those of all nodes of this process.
    pub(crate) fn of_this_process() -> Self {
        static HERE: LazyLock<LocalOwners> = LazyLock::new(LocalOwners::default);
        HERE.clone()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, (LocalOwner, ProcessMark)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes an owner visible to clients of its process, for as long as the guard lives.
    pub(crate) fn publish(&self, incarnation: u64, owner: LocalOwner) -> Published {
        self.lock().insert(incarnation, (owner, ProcessMark::here()));
        Published { owners: self.clone(), incarnation }
    }

    /// An owner of this process. Owners of a parent process before a fork are not returned.
    pub(crate) fn get(&self, incarnation: u64) -> Option<LocalOwner> {
        let all = self.lock();
        all.get(&incarnation).filter(|(_, made)| made.is_here()).map(|(owner, _)| owner.clone())
    }
}
