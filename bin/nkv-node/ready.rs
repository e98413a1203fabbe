//! Where this rank stands in its life, shared between the thread of control that moves it on and
//! the HTTP handlers that show it; and the one reason why a rank is not ready yet.

use nkv::{Client, Node, NodeStatus};
use std::sync::{Arc, PoisonError, RwLock};

/// A step of a rank's life.
enum Phase {
    /// Looking for the master.
    Joining,
    /// Serving.
    Running(Arc<Node>),
    /// Asked to end; finishes what is in flight.
    Draining(Arc<Node>),
    /// Between two nodes, or at the end.
    Without(&'static str),
}

/// The present step. Readers see the node only while they hold the lock, so that its owner is the
/// last to hold it when it stops.
#[derive(Clone)]
pub(crate) struct Readiness(Arc<RwLock<Phase>>);

impl Readiness {
    /// A rank that has not joined.
    pub(crate) fn joining() -> Self {
        Self(Arc::new(RwLock::new(Phase::Joining)))
    }

    /// It looks for the master (again).
    pub(crate) fn joins(&self) {
        self.set(Phase::Joining);
    }

    /// It serves.
    pub(crate) fn runs(&self, node: &Arc<Node>) {
        self.set(Phase::Running(node.clone()));
    }

    /// It ends, but not yet.
    pub(crate) fn drains(&self, node: &Arc<Node>) {
        self.set(Phase::Draining(node.clone()));
    }

    /// It has no node, and why.
    pub(crate) fn is_without(&self, why: &'static str) {
        self.set(Phase::Without(why));
    }

    /// The node's status, if there is a node.
    pub(crate) fn status(&self) -> Option<NodeStatus> {
        match &*self.0.read().unwrap_or_else(PoisonError::into_inner) {
            Phase::Running(node) | Phase::Draining(node) => Some(node.status()),
            Phase::Joining | Phase::Without(_) => None,
        }
    }

    /// The node's handle where the master is, for the figures of the cluster.
    pub(crate) fn masters_handle(&self) -> Option<Client> {
        match &*self.0.read().unwrap_or_else(PoisonError::into_inner) {
            Phase::Running(node) | Phase::Draining(node) if node.master().is_some() => {
                Some(node.client())
            }
            _ => None,
        }
    }

    /// `Ok` if the rank is ready for work, else the reason why not.
    pub(crate) fn ready(&self) -> Result<(), String> {
        match &*self.0.read().unwrap_or_else(PoisonError::into_inner) {
            Phase::Joining => Err("joining: looking for the master".to_string()),
            Phase::Without(why) => Err((*why).to_string()),
            Phase::Draining(_) => Err("draining: takes no new plans".to_string()),
            Phase::Running(node) if node.is_ready() => Ok(()),
            Phase::Running(node) => Err(reason(&node.status())),
        }
    }

    fn set(&self, phase: Phase) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = phase;
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
