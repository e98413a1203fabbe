//! The phase of this rank, shared between the main task that changes it and the HTTP handlers that
//! show it; and the reason why a rank is not ready yet.

use nkv::{Node, NodeStatus};
use std::sync::{Arc, PoisonError, RwLock};

/// A phase of a rank.
pub(crate) enum Phase {
    /// Connecting to the master.
    Joining,
    /// Serving.
    Running(Arc<Node>),
    /// Asked to end; finishes open plans.
    Draining(Arc<Node>),
    /// No node: before a new incarnation, or at the end.
    Without(&'static str),
}

/// The present phase. Readers use the node only while they hold the lock, so that the main task has
/// the last reference when it stops the node.
#[derive(Clone)]
pub(crate) struct Readiness(Arc<RwLock<Phase>>);

impl Readiness {
    /// A rank that has not joined.
    pub(crate) fn joining() -> Self {
        Self(Arc::new(RwLock::new(Phase::Joining)))
    }

    /// Begins the next phase.
    pub(crate) fn set(&self, phase: Phase) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = phase;
    }

    /// What `of` says of the node, if there is a node.
    pub(crate) fn node<T>(&self, of: impl FnOnce(&Node) -> T) -> Option<T> {
        match &*self.0.read().unwrap_or_else(PoisonError::into_inner) {
            Phase::Running(node) | Phase::Draining(node) => Some(of(node)),
            Phase::Joining | Phase::Without(_) => None,
        }
    }

    /// `Ok` if the rank is ready for work, else the reason why not.
    pub(crate) fn ready(&self) -> Result<(), String> {
        match &*self.0.read().unwrap_or_else(PoisonError::into_inner) {
            Phase::Joining => Err("joining: connecting to the master".to_string()),
            Phase::Without(why) => Err((*why).to_string()),
            Phase::Draining(_) => Err("draining: takes no new plans".to_string()),
            Phase::Running(node) if node.is_ready() => Ok(()),
            Phase::Running(node) => Err(reason(&node.status())),
        }
    }
}

/// Why a joined rank is not ready.
fn reason(status: &NodeStatus) -> String {
    if status.link != "joined" {
        return format!("the link to the master: {}", status.link);
    }
    let world = status.world_size;
    let met = |rank: &u32| status.view.nodes().any(|(info, _)| info.rank == *rank);
    let missing: Vec<String> =
        (0..world).filter(|rank| !met(rank)).map(|r| r.to_string()).collect();
    if missing.is_empty() {
        return "waiting for the first report of every rank".to_string();
    }
    format!("waiting for ranks {} of {world}", missing.join(", "))
}
