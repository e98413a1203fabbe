//! What an owner and a producer share: each end's side of an attachment as the other sees it, and
//! the owners that handles of the same process reach without a socket. It decides nothing.

use crate::error::Result;
use crate::message::{ClientToOwner, KeyReport, PlanId, Term, TouchBatch};
use nkv_store::Memory;
use nkv_store::fork::ProcessMark;
use nkv_transport::Alive;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::pin::Pin;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

/// Names one attachment of an owner.
pub type AttachId = u64;

/// A future of an object-safe call.
pub type Answer<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The gates before a producer's writes to one owner: its open plans, and its open claims in the
/// owner's log. The owner closes them and asks whether a write is still behind one [I10] [I14].
pub trait ProducerGates: Send + Sync + Debug {
    /// Ends a plan: no write of it starts any more.
    fn drop_plan(&self, plan: PlanId);
    /// True when no write of a dropped plan is in flight.
    fn is_drained(&self, plan: PlanId) -> bool;
    /// The owner obeys this term: no plan of a lower one is started or continued there, not even
    /// one whose grant is still in flight.
    fn obey(&self, term: Term);
    /// The highest term obeyed there.
    fn obeyed(&self) -> Term;
    /// The plans below this term that kernels may still write, once no other write for such a plan
    /// is in flight; None before.
    fn obeys(&self, term: Term) -> Option<Vec<PlanId>>;
    /// True when no claim is open in the owner's log below a position.
    fn is_clear_below(&self, below: u64) -> bool;
    /// Number of keys of objects in the owner's log that were not sent to the owner yet.
    fn names_noted(&self) -> usize;
    /// Takes up to `most` of them. Empty: every key of a put that returned has been taken, or is in
    /// the queue to the owner.
    fn take_names(&self, most: usize) -> Vec<KeyReport>;
}

/// An owner of this process, as a handle in it reaches it.
pub trait LocalOwner: Send + Sync + Debug {
    /// Its segment.
    fn memory(&self) -> Arc<dyn Memory>;
    /// Whether its segment may still be used.
    fn alive(&self) -> Alive;
    /// Adds an attachment; returns its id, and the term that the owner obeyed afterwards. A later
    /// term is told to the gates.
    fn attach(&self, producer: u64, gates: Arc<dyn ProducerGates>) -> (AttachId, Term);
    /// Gives the attachment a pin table; none while all are held.
    fn pin_table(&self, id: AttachId) -> Option<u32>;
    /// Takes a frame without waiting; false if the owner's mailbox is full.
    fn send(&self, frame: ClientToOwner) -> bool;
    /// Takes touches, and waits until the mailbox has room.
    fn touched(&self, batch: TouchBatch) -> Answer<'_, Result<()>>;
    /// Whether a plan is open; waits some time for a plan that is not known yet.
    fn is_open(&self, plan: PlanId) -> Answer<'_, bool>;
    /// Ends an attachment whose producer neither writes nor views any more.
    fn detach(&self, id: AttachId);
}

/// The owners of one process, by incarnation.
#[derive(Debug, Clone, Default)]
pub(crate) struct LocalOwners(Arc<Mutex<ByIncarnation>>);

type ByIncarnation = BTreeMap<u64, (Arc<dyn LocalOwner>, ProcessMark)>;

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

    fn lock(&self) -> MutexGuard<'_, ByIncarnation> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes an owner visible to clients of its process, for as long as the guard lives.
    pub(crate) fn publish(&self, incarnation: u64, owner: Arc<dyn LocalOwner>) -> Published {
        self.lock().insert(incarnation, (owner, ProcessMark::here()));
        Published { owners: self.clone(), incarnation }
    }

    /// An owner of this process. Owners of a parent process before a fork are not returned.
    pub(crate) fn get(&self, incarnation: u64) -> Option<Arc<dyn LocalOwner>> {
        let all = self.lock();
        all.get(&incarnation).filter(|(_, made)| made.is_here()).map(|(owner, _)| owner.clone())
    }
}
