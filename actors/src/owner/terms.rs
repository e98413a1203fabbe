//! A new term at its owner: plans of lower terms are fenced and checked, every attached process
//! confirms that it writes for none of them, and only then is the segment reported. One-sided reads
//! are not affected.

use super::Owner;
use super::attachments::AttachId;
use super::object_life::ObjectEnd;
use crate::message::{EndCause, PlanId, SlotRef, Term};
use nkv_store::arena::Extent;
use std::collections::{BTreeMap, BTreeSet};

impl Owner {
    /// Starts the change to a new term; idempotent, also after a panic.
    pub(super) fn begin_term(&mut self) {
        let (term, old) = {
            let t = self.durable.tables.lock();
            if t.fenced == t.term {
                return;
            }
            let old = t.plans.values().filter(|p| p.opened.plan.term < t.term);
            let old: Vec<_> = old.map(|p| (p.opened.plan, p.opened.at, p.ending)).collect();
            (t.term, old)
        };
        self.durable.tables.slow_path.terms_obeyed.one();
        if !old.is_empty() {
            tracing::info!(term = term.number, plans = old.len(), "a new term: earlier plans end");
        }
        for (plan, at, ending) in old {
            if ending.is_none() {
                self.end_plan(plan, at, EndCause::TermOver);
            }
        }
        self.durable.tables.attachments.new_term(term, self.durable.clock.now_ns());
        self.complete_term();
    }

    /// A producer obeys a term, and writes for no plan of a lower one but those it holds.
    pub(super) fn term_obeyed(&mut self, who: (AttachId, u64), term: Term, held: Vec<PlanId>) {
        let known = self.plans_below_term();
        self.durable.tables.attachments.term_obeyed(who, (term, held), &known);
        self.complete_term();
    }

    /// Completes the change of terms once no producer can write for a lower one, but by kernels
    /// whose plans this owner has: these slots are reported as open, and fenced when the kernels
    /// have ended.
    pub(super) fn complete_term(&mut self) {
        if !self.term_pending() {
            return;
        }
        let (known, now) = (self.plans_below_term(), self.durable.clock.now_ns());
        let term = self.durable.tables.term();
        let held = self.durable.tables.attachments.all_obey(term, &known, now);
        if !held.is_some_and(|held| known.is_subset(&held)) {
            self.durable.tables.slow_path.terms_waited.one();
            return;
        }
        if !known.is_empty() {
            tracing::info!(plans = known.len(), "plans of the last term are held for kernels");
        }
        self.retire_unheard();
        self.durable.tables.lock().fenced = term;
        if let Some(number) = self.report_wanted.take() {
            self.report(number);
        }
    }

    /// The plans of lower terms.
    fn plans_below_term(&self) -> BTreeSet<PlanId> {
        let t = self.durable.tables.lock();
        t.plans.keys().copied().filter(|plan| plan.term < t.term).collect()
    }

    /// True while a writer of a lower term may be left, other than kernels.
    pub(super) fn term_pending(&self) -> bool {
        let t = self.durable.tables.lock();
        t.fenced != t.term
    }

    /// True for a plan of a lower term while the report waits for its fence.
    pub(super) fn is_to_be_reported(&self, plan: PlanId) -> bool {
        let t = self.durable.tables.lock();
        t.fenced != t.term && plan.term < t.term
    }

    /// Reports, or notes that a report is wanted as soon as the term is fenced.
    pub(super) fn report_when_fenced(&mut self, number: u64) {
        if self.term_pending() {
            self.report_wanted = Some(number);
        } else {
            self.report(number);
        }
    }

    /// Retires slots that a producer wrote for a plan that this owner never received: the master
    /// that granted it is gone, and with it the key string. Readers that this master sent here may
    /// still be reading, so the extent in the header is held through quarantine.
    fn retire_unheard(&mut self) {
        let now = self.durable.clock.now_ns();
        let mut taken: BTreeMap<u64, u64> =
            self.slots.extents(|_| false).map(|(.., e, _)| (e.offset, e.offset + e.len)).collect();
        let mut gone = Vec::new();
        for (slot, epoch, claimed) in self.slots.written_but_free() {
            let free = |e: &Extent| {
                let before = taken.range(..e.offset + e.len).next_back();
                before.is_none_or(|(_, end)| *end <= e.offset)
            };
            // If the extent overlaps another one, nothing is held: a read by this header is
            // refused.
            let extent = claimed.filter(free);
            if let Some(e) = extent {
                taken.insert(e.offset, e.offset + e.len);
            }
            match self.slots.retire_unheard(slot, epoch, extent, now) {
                Ok(()) => gone.push(SlotRef { incarnation: self.incarnation, slot, epoch }),
                Err(error) => tracing::error!(slot, epoch, %error, "a slot cannot be retired"),
            }
        }
        if !gone.is_empty() {
            self.durable.tables.slow_path.unheard_retired.add(gone.len());
            tracing::warn!(slots = gone.len(), "retired slots written for unknown plans");
            self.ended(&gone, ObjectEnd::Absent);
        }
    }
}
