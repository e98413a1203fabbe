//! Where the master is. Whatever asks the master or joins it holds a [`CurrentMaster`]; the place
//! changes when another rank becomes master. It decides nothing.

use crate::actor::ActorAddr;
use crate::master::{Master, Members};
use nkv_transport::wire::Address;
use std::pin::pin;
use std::sync::{Arc, PoisonError, RwLock};
use tokio::sync::Notify;

/// A master in this process.
#[derive(Clone)]
pub(crate) struct LocalMaster {
    pub actor: ActorAddr<Master>,
    pub members: Arc<Members>,
    /// Addresses of its node, nearest first.
    pub addresses: Arc<[Address]>,
}

/// Where requests and joins go.
#[derive(Clone)]
pub(crate) enum MasterPath {
    /// In this process.
    Local(LocalMaster),
    /// Over the wire: addresses, nearest first.
    Remote(Arc<[Address]>),
}

impl MasterPath {
    /// A master in this process.
    pub(crate) fn here(&self) -> Option<&LocalMaster> {
        match self {
            Self::Local(here) => Some(here),
            Self::Remote(_) => None,
        }
    }

    /// Where to join it, nearest first.
    pub(crate) fn addresses(&self) -> Arc<[Address]> {
        match self {
            Self::Local(here) => here.addresses.clone(),
            Self::Remote(all) => all.clone(),
        }
    }
}

/// As error texts show it, after "the master".
impl std::fmt::Display for MasterPath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Local(_) => f.write_str("(in this process)"),
            Self::Remote(all) => {
                let shown: Vec<String> = all.iter().map(Address::to_string).collect();
                write!(f, "(at {})", shown.join(" or "))
            }
        }
    }
}

/// See the file's first paragraph.
pub struct CurrentMaster {
    path: RwLock<MasterPath>,
    // It belongs to a handle alone, which sets it itself; else to a node.
    of_handle: bool,
    // Not a tokio `watch`, which wakes its waiters in any order.
    changed: Notify,
}

impl std::fmt::Debug for CurrentMaster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CurrentMaster{}", self.path())
    }
}

impl CurrentMaster {
    /// Of a node: its election sets it.
    pub(crate) fn of_node(path: MasterPath) -> Self {
        Self { path: RwLock::new(path), of_handle: false, changed: Notify::new() }
    }

    /// Of a handle in a process without a node, or in another process than its node.
    pub(crate) fn of_handle(addresses: Vec<Address>) -> Self {
        let path = MasterPath::Remote(addresses.into());
        Self { path: RwLock::new(path), of_handle: true, changed: Notify::new() }
    }

    /// Whether a handle may set it.
    pub(crate) fn is_of_handle(&self) -> bool {
        self.of_handle
    }

    /// Where it is believed to be.
    pub(crate) fn path(&self) -> MasterPath {
        self.path.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The master, if it is in this process.
    pub(crate) fn here(&self) -> Option<LocalMaster> {
        self.path.read().unwrap_or_else(PoisonError::into_inner).here().cloned()
    }

    /// From now on it is there.
    pub(crate) fn set(&self, path: MasterPath) {
        *self.path.write().unwrap_or_else(PoisonError::into_inner) = path;
        self.changed.notify_waiters();
    }

    /// Returns when it is set the next time.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Returns once this process's master is this one no longer.
    pub(crate) async fn ended(&self, master: &LocalMaster) {
        loop {
            let mut changed = pin!(self.changed.notified());
            // Registered before the check, so that a change after it wakes this task.
            changed.as_mut().enable();
            let same = |here: LocalMaster| Arc::ptr_eq(&here.members, &master.members);
            if !self.here().is_some_and(same) {
                return;
            }
            changed.await;
        }
    }
}
