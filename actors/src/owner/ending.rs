//! How a plan ends other than by a commit: the one rule of [I10], for every cause. A plan that
//! expired, lost its producer or lost its term is fenced first and then checked: READY is kept as
//! if committed. Every other cause clears LIVE at once, fences, and only then starts quarantine.

use super::Owner;
use super::object_life::{Became, ObjectEnd};
use super::tables::Ending;
use crate::message::{EndCause, Gauges, PlanId, PlanOpened, PlanRef, SlotRef};

impl Owner {
    /// Starts the end of a plan; idempotent. A later cause replaces an earlier one; LIVE that was
    /// cleared stays cleared.
    pub(super) fn end_plan(&mut self, plan: PlanId, at: SlotRef, cause: EndCause) {
        self.begin_end(plan, at, cause);
        self.complete_fences();
    }

    fn begin_end(&mut self, plan: PlanId, at: SlotRef, cause: EndCause) {
        if at.incarnation != self.incarnation {
            return;
        }
        let checks_ready = checks_ready_first(cause);
        let (opened, first, retired) = {
            let mut t = self.durable.tables.lock();
            let Some(p) = t.plans.get_mut(&plan) else {
                drop(t);
                return self.end_unknown(at);
            };
            let before = p.ending;
            let retired = before.is_some_and(|e| e.retired);
            p.ending = Some(Ending { cause, retired });
            (p.opened.clone(), before.is_none(), retired)
        };
        let (producer, token) = (opened.producer, opened.token);
        if first {
            self.open_as_recorded(&opened);
            match cause {
                EndCause::Expired => Gauges::add(&self.durable.tables.gauges.plans_expired, 1),
                EndCause::ProducerGone => {
                    Gauges::add(&self.durable.tables.gauges.producers_lost, 1)
                }
                _ => {}
            }
            self.ending.push(plan);
        }
        if !checks_ready && !retired {
            self.clear_live(plan, at);
        }
        if first {
            let now = self.durable.clock.now_ns();
            self.durable.tables.grants.revoke(token);
            self.durable.tables.attachments.drop_plan(producer, plan, now);
        }
    }

    /// The link records a plan before this actor gets its `PlanOpened`, so the end may come first.
    /// The slot is opened here, so that ending it works as usual; the late `PlanOpened` does not
    /// open it again.
    fn open_as_recorded(&mut self, p: &PlanOpened) {
        if self.slots.is_open(p.at.slot, p.at.epoch) {
            return;
        }
        self.durable.tables.slow_path.ended_unopened.one();
        if let Err(error) = self.open_slot(p) {
            tracing::debug!(%error, plan = ?p.plan, "the slot of an ending plan has moved on");
        }
    }

    /// After a panic: a fence may be recorded and not started. Both steps are idempotent.
    pub(super) fn fence_again(&mut self) {
        let now = self.durable.clock.now_ns();
        for plan in self.ending.clone() {
            let found = {
                let t = self.durable.tables.lock();
                t.plans.get(&plan).map(|p| (p.opened.producer, p.opened.token))
            };
            if let Some((producer, token)) = found {
                self.durable.tables.grants.revoke(token);
                self.durable.tables.attachments.drop_plan(producer, plan, now);
            }
        }
    }

    /// The master ends a plan that is not recorded here: if its object is live, the commit came
    /// first.
    fn end_unknown(&mut self, at: SlotRef) {
        if self.slots.is_live(at.slot, at.epoch) {
            self.retire(&[(at.slot, at.epoch)], ObjectEnd::Removed);
        } else {
            self.ended(&[at], ObjectEnd::Absent);
        }
    }

    fn clear_live(&mut self, plan: PlanId, at: SlotRef) {
        let now = self.durable.clock.now_ns();
        if let Err(error) = self.slots.retire(at.slot, at.epoch, false, now) {
            tracing::warn!(%error, ?plan, "the slot of an ending plan is not open");
        }
        if let Some(p) = self.durable.tables.lock().plans.get_mut(&plan)
            && let Some(e) = p.ending.as_mut()
        {
            e.retired = true;
        }
        self.ended(&[at], ObjectEnd::Reclaimed);
    }

    pub(super) fn expire_plans(&mut self) {
        let now = self.durable.clock.now_ns();
        let due: Vec<_> = {
            let t = self.durable.tables.lock();
            let late = t.plans.iter().filter(|(_, p)| p.ending.is_none() && p.deadline_ns <= now);
            late.map(|(id, p)| (*id, p.opened.at)).collect()
        };
        for (plan, at) in due {
            self.begin_end(plan, at, EndCause::Expired);
        }
        self.complete_fences();
    }

    /// Completes the fence of every ending plan that no producer can write for any more.
    pub(super) fn complete_fences(&mut self) {
        let now = self.durable.clock.now_ns();
        let mut i = 0;
        while i < self.ending.len() {
            let plan = self.ending[i];
            let found = {
                let t = self.durable.tables.lock();
                t.plans.get(&plan).map(|p| (p.opened.clone(), p.ending))
            };
            let Some((opened, Some(ending))) = found else {
                self.ending.swap_remove(i);
                continue;
            };
            let tables = &self.durable.tables;
            let out = tables.grants.is_drained(opened.token)
                && tables.attachments.is_dropped(opened.producer, plan, now);
            if !out {
                tables.slow_path.fences_waited.one();
                i += 1;
                continue;
            }
            let (seq, cause, producer) = (plan.seq, ending.cause, opened.producer);
            tracing::debug!(producer, plan = seq, ?cause, "fenced");
            self.fence_complete(plan, opened.at, ending);
        }
    }

    fn fence_complete(&mut self, plan: PlanId, at: SlotRef, ending: Ending) {
        let now = self.durable.clock.now_ns();
        let may_adopt = checks_ready_first(ending.cause);
        if ending.retired {
            self.slots.fenced(at.slot, at.epoch, now);
        } else if may_adopt
            && self.slots.is_published(at.slot, at.epoch)
            && let Ok(done) = self.slots.commit(at.slot, at.epoch)
        {
            let adopted = PlanRef { plan, at, key: done.key };
            return self.became_live(vec![(adopted, done)], Became::Adopted);
        } else {
            // Nobody can write any more, so quarantine may start with LIVE cleared now.
            if let Err(error) = self.slots.retire(at.slot, at.epoch, true, now) {
                tracing::warn!(%error, ?plan, "the slot of a fenced plan is not open");
            }
            self.ended(&[at], ObjectEnd::Reclaimed);
        }
        self.close_plan(plan);
    }
}

/// Causes that do not invalidate the object: if it is READY once its writer is fenced, it is kept.
fn checks_ready_first(cause: EndCause) -> bool {
    matches!(cause, EndCause::Expired | EndCause::ProducerGone | EndCause::TermOver)
}
