//! Doors: the segments of this process that others may come to. Those of one node stand behind its
//! one control port, by incarnation; those of all nodes of this process are known to its clients,
//! who need no socket. It serves nobody itself.

use crate::cell::CellAddr;
use crate::owner::Owner;
use crate::owner::tables::OwnerTables;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;

/// The way to one segment's owner.
#[derive(Debug, Clone)]
pub(crate) struct Door {
    pub owner: CellAddr<Owner>,
    pub tables: Arc<OwnerTables>,
    // Ends with the segment.
    shut: watch::Receiver<()>,
}

impl Door {
    /// Resolves when the segment is taken down: whoever came through is sent away then.
    pub(crate) async fn shut(&self) {
        let mut shut = self.shut.clone();
        // Nothing is ever sent; the sender goes with the segment.
        while shut.changed().await.is_ok() {}
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
    ) -> OpenDoor {
        let (here, shut) = watch::channel(());
        self.lock().insert(incarnation, Door { owner, tables, shut });
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
    _here: watch::Sender<()>,
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

static LOCAL: Mutex<BTreeMap<u64, LocalOwner>> = Mutex::new(BTreeMap::new());

/// An owner of this process is known to its clients for as long as this lives.
#[derive(Debug)]
pub(crate) struct Published(u64);

impl Drop for Published {
    fn drop(&mut self) {
        LOCAL.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.0);
    }
}

/// Makes an owner of this process known to clients of this process.
pub(crate) fn publish_local(incarnation: u64, owner: LocalOwner) -> Published {
    LOCAL.lock().unwrap_or_else(PoisonError::into_inner).insert(incarnation, owner);
    Published(incarnation)
}

/// An owner of this process.
pub(crate) fn local_owner(incarnation: u64) -> Option<LocalOwner> {
    LOCAL.lock().unwrap_or_else(PoisonError::into_inner).get(&incarnation).cloned()
}

/// Whether an owner is one of this process.
pub(crate) fn is_local_owner(incarnation: u64) -> bool {
    LOCAL.lock().unwrap_or_else(PoisonError::into_inner).contains_key(&incarnation)
}
