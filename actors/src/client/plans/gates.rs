//! The gates before the writes of a handle to one owner, as an attachment gives them to the owner.

use super::{OpenPlans, PlanState};
use crate::attachment::ProducerGates;
use crate::client::log_names::LogNames;
use crate::message::{KeyReport, MAX_BATCH, PlanId, Term};
use nkv_store::device_log::OpenClaims;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The gates of one producer before one owner, as one attachment to it has them.
#[derive(Debug)]
pub(super) struct OwnerGates {
    pub(super) plans: Arc<OpenPlans>,
    pub(super) incarnation: u64,
    // The term that the owner obeys, as received over any attachment of the handle to it. It
    // changes only under the lock of `plans`, so that no plan of a lower term is registered at the
    // same time.
    pub(super) term: Arc<Mutex<Term>>,
    // Open claims in the owner's device log: those of this process if it maps the log, else those
    // of this attachment alone.
    pub(super) claims: Option<Arc<OpenClaims>>,
    // Keys of objects in that log that the owner does not have yet.
    pub(super) names: Option<Arc<LogNames>>,
}

impl OwnerGates {
    fn term(&self) -> MutexGuard<'_, Term> {
        self.term.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_below(&self, plan: &PlanState, term: Term) -> bool {
        plan.desc.meta.at.incarnation == self.incarnation && plan.desc.plan.term < term
    }
}

impl ProducerGates for OwnerGates {
    fn drop_plan(&self, plan: PlanId) {
        self.plans.drop_plan(plan);
    }

    fn is_drained(&self, plan: PlanId) -> bool {
        let inner = self.plans.lock();
        let out = |p: &Arc<PlanState>| p.gate.is_drained();
        inner.by_plan.get(&plan).is_none_or(out) && inner.leaving.get(&plan).is_none_or(out)
    }

    fn obey(&self, term: Term) {
        let inner = self.plans.lock();
        let mut obeyed = self.term();
        *obeyed = term.max(*obeyed);
        let below = |p: &&Arc<PlanState>| self.is_below(p, term);
        inner.by_plan.values().filter(below).for_each(|p| p.gate.close());
    }

    fn obeyed(&self) -> Term {
        *self.term()
    }

    fn obeys(&self, term: Term) -> Option<Vec<PlanId>> {
        let inner = self.plans.lock();
        if *self.term() < term {
            return None;
        }
        let known = inner.by_plan.values().chain(inner.leaving.values());
        let inside = known.filter(|p| self.is_below(p, term) && !p.gate.is_drained());
        let held = inside.map(|p| p.is_held_alone().then_some(p.desc.plan));
        held.collect::<Option<Vec<_>>>().filter(|held| held.len() <= MAX_BATCH)
    }

    fn is_clear_below(&self, below: u64) -> bool {
        self.claims.as_ref().is_none_or(|claims| claims.clear_below(below))
    }

    fn names_noted(&self) -> usize {
        self.names.as_ref().map_or(0, |names| names.len_alone())
    }

    fn take_names(&self, most: usize) -> Vec<KeyReport> {
        self.names.as_ref().map_or_else(Vec::new, |names| names.take_alone(most))
    }
}
