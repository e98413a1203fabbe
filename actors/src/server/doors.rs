//! Doors: the segments of this process that others may come to. Those of one node stand behind its
//! one control port, by incarnation; those of all nodes of this process are known to its clients,
//! who need no socket. It serves nobody itself.

use crate::cell::CellAddr;
use crate::owner::Owner;
use crate::owner::tables::OwnerTables;
use nkv_store::fork::MadeIn;
use nkv_transport::fabric::Exported;
use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use tokio::sync::mpsc;

/// The way to one segment's owner.
#[derive(Debug, Clone)]
pub(crate) struct Door {
    pub owner: CellAddr<Owner>,
    pub tables: Arc<OwnerTables>,
    /// Its memory as devices know it, where there are any.
    pub exported: Option<Arc<dyn Exported>>,
    /// The segment's name in shared memory; empty where it has none.
    pub segment: String,
    // Closed with the segment. Not a watch, which wakes those who wait in any order.
    shut: mpsc::Sender<()>,
}

impl Door {
    /// Resolves when the segment is taken down: whoever came through is sent away then.
    pub(crate) async fn shut(&self) {
        // Nothing is ever sent; the receiver goes with the segment.
        self.shut.closed().await;
    }
}

type ByIncarnation = BTreeMap<u64, Door>;

/// The doors of one node.
#[derive(Debug, Clone, Default)]
pub(crate) struct Doors(Arc<Mutex<ByIncarnation>>);

impl Doors {
    fn lock(&self) -> MutexGuard<'_, ByIncarnation> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens one for as long as the guard lives.
    pub(crate) fn open(
        &self,
        incarnation: u64,
        owner: CellAddr<Owner>,
        tables: Arc<OwnerTables>,
        exported: Option<Arc<dyn Exported>>,
        segment: String,
    ) -> OpenDoor {
        let (shut, here) = mpsc::channel(1);
        self.lock().insert(incarnation, Door { owner, tables, exported, segment, shut });
        OpenDoor { doors: self.clone(), incarnation, _here: here }
    }

    /// The door to an incarnation.
    pub(crate) fn to(&self, incarnation: u64) -> Option<Door> {
        self.lock().get(&incarnation).cloned()
    }
}

/// An open door.
#[derive(Debug)]
pub(crate) struct OpenDoor {
    doors: Doors,
    incarnation: u64,
    _here: mpsc::Receiver<()>,
}

impl Drop for OpenDoor {
    fn drop(&mut self) {
        self.doors.lock().remove(&self.incarnation);
    }
}

/// Owners of this very process, by incarnation: reached without sockets.
#[derive(Debug, Clone)]
pub(crate) struct LocalOwner {
    pub memory: Arc<dyn nkv_store::Memory>,
    pub alive: nkv_transport::Alive,
    pub owner: CellAddr<Owner>,
    pub tables: Arc<OwnerTables>,
}

/// The owners of one process, by incarnation.
#[derive(Debug, Clone, Default)]
pub(crate) struct LocalOwners(Arc<Mutex<BTreeMap<u64, (LocalOwner, MadeIn)>>>);

/// An owner of this process is known to its clients for as long as this lives.
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

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, (LocalOwner, MadeIn)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes an owner known to clients of its process.
    pub(crate) fn publish(&self, incarnation: u64, owner: LocalOwner) -> Published {
        self.lock().insert(incarnation, (owner, MadeIn::here()));
        Published { owners: self.clone(), incarnation }
    }

    /// An owner of this process; those of one that it was forked from are none here.
    pub(crate) fn get(&self, incarnation: u64) -> Option<LocalOwner> {
        let all = self.lock();
        all.get(&incarnation).filter(|(_, made)| made.is_here()).map(|(owner, _)| owner.clone())
    }
}
