//! What one attachment has heard of its owner's term, and the open claims that it answers for.

use crate::message::Term;
use nkv_store::device_log::OpenClaims;
use std::sync::{Arc, Mutex, PoisonError};

/// The term that an owner obeys, as received over an attachment. It changes only under the lock of
/// [`OpenPlans`](super::plans::OpenPlans), so that no plan of a lower term is registered at the
/// same time.
#[derive(Debug)]
pub struct Obeyed {
    incarnation: u64,
    // Shared by all attachments of a handle to that owner: a term received over one holds for all.
    term: Arc<Mutex<Term>>,
    // Open claims in the owner's device log: those of this process if it maps the log, else those
    // of this attachment alone.
    claims: Option<Arc<OpenClaims>>,
}

impl Obeyed {
    pub(super) fn new(
        incarnation: u64,
        term: Arc<Mutex<Term>>,
        claims: Option<Arc<OpenClaims>>,
    ) -> Self {
        Self { incarnation, term, claims }
    }

    /// The owner.
    pub(super) fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// True when no claim that this attachment answers for is open in the owner's log below a
    /// position.
    pub(crate) fn is_clear_below(&self, below: u64) -> bool {
        self.claims.as_ref().is_none_or(|claims| claims.clear_below(below))
    }

    pub(super) fn get(&self) -> Term {
        *self.term.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn raise(&self, to: Term) {
        let mut term = self.term.lock().unwrap_or_else(PoisonError::into_inner);
        *term = to.max(*term);
    }
}
