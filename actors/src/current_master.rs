//! Where the master is. Whatever asks the master or joins it holds a [`CurrentMaster`]; the place
//! changes when another rank becomes master. It decides nothing.

use crate::actor::ActorAddr;
use crate::master::{Master, Members};
use crate::race::race;
use futures_util::FutureExt;
use nkv_transport::wire::Address;
use std::pin::pin;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};
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
    // With the number of changes so far.
    path: RwLock<(MasterPath, u64)>,
    // A handle follows the master by itself; else a node's election sets this, or nobody does.
    follows: bool,
    // Not a tokio `watch`, which wakes its waiters in any order.
    changed: Notify,
    // A call of a handle failed as if the master were elsewhere.
    doubted: Notify,
}

impl std::fmt::Debug for CurrentMaster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CurrentMaster{}", self.path())
    }
}

impl CurrentMaster {
    /// Of a node: its election sets it.
    pub(crate) fn of_node(path: MasterPath) -> Self {
        Self::new(path, false)
    }

    /// Of a handle that connected by itself. It `follows` if another rank may become master.
    pub(crate) fn of_handle(addresses: Vec<Address>, follows: bool) -> Self {
        Self::new(MasterPath::Remote(addresses.into()), follows)
    }

    fn new(path: MasterPath, follows: bool) -> Self {
        let (changed, doubted) = (Notify::new(), Notify::new());
        Self { path: RwLock::new((path, 0)), follows, changed, doubted }
    }

    /// Whether a handle looks for the master by itself.
    pub(crate) fn is_followed(&self) -> bool {
        self.follows
    }

    /// Where it is believed to be.
    pub(crate) fn path(&self) -> MasterPath {
        self.read().0.clone()
    }

    /// Where it is believed to be, and a number that grows with every change.
    pub(crate) fn path_and_number(&self) -> (MasterPath, u64) {
        self.read().clone()
    }

    fn read(&self) -> RwLockReadGuard<'_, (MasterPath, u64)> {
        self.path.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The master, if it is in this process.
    pub(crate) fn here(&self) -> Option<LocalMaster> {
        self.read().0.here().cloned()
    }

    /// From now on it is there.
    pub(crate) fn set(&self, path: MasterPath) {
        {
            let mut kept = self.path.write().unwrap_or_else(PoisonError::into_inner);
            *kept = (path, kept.1 + 1);
        }
        self.changed.notify_waiters();
    }

    /// A call failed as if the master were elsewhere now.
    pub(crate) fn doubt(&self) {
        if self.follows {
            self.doubted.notify_one();
        }
    }

    /// Returns after a call failed so.
    pub(crate) async fn doubted(&self) {
        self.doubted.notified().await;
    }

    /// Returns once it was set after this number was read.
    pub(crate) async fn changed_since(&self, number: u64) {
        self.until(|| self.read().1 != number).await;
    }

    /// Returns once this process's master is this one no longer.
    pub(crate) async fn ended(&self, master: &LocalMaster) {
        let same = |here: &LocalMaster| Arc::ptr_eq(&here.members, &master.members);
        self.until(|| !self.read().0.here().is_some_and(same)).await;
    }

    /// The work's output, unless this process's master ends before.
    pub(crate) async fn while_here<E>(
        &self,
        master: &LocalMaster,
        work: impl Future<Output = std::result::Result<(), E>>,
    ) -> std::result::Result<(), E> {
        race(work, self.ended(master).map(Ok)).await
    }

    async fn until(&self, so: impl Fn() -> bool) {
        loop {
            let mut changed = pin!(self.changed.notified());
            // Registered before the check, so that a change after it wakes this task.
            changed.as_mut().enable();
            if so() {
                return;
            }
            changed.await;
        }
    }
}
