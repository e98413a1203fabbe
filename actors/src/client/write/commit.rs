//! Publishing and committing plans, and giving up those that have no final answer.

use super::{announce, publication};
use crate::client::log_names::NAMES_PER_FRAME;
use crate::client::peer::Peer;
use crate::client::plans::PlanState;
use crate::client::producer::GiveUp;
use crate::client::write::write_plan::Unpublished;
use crate::client::{Client, holds_within, one};
use crate::error::{Error, ErrorKind, Result};
use crate::message::{ClientToOwner, KeyReport, PlanRef, Request};
use nkv_store::layout::{PUBLISH_OFF, epoch_of};
use nkv_store::object::{Publication, ready};
use nkv_store::words;
use nkv_transport::verbs::Op;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Retries of a commit that gets NotReady: how many, the pause between two, and the limit for all.
const COMMIT_RETRIES: u32 = 40;
const COMMIT_PAUSE: Duration = Duration::from_millis(20);
const COMMIT_LIMIT: Duration = Duration::from_millis(1_200);
/// The last retry may wait at the master beyond `COMMIT_LIMIT`, and an abort may follow it. Each of
/// the two may take this long, so that the put ends within little more than two seconds [I18].
const LAST_ANSWER_LIMIT: Duration = Duration::from_millis(450);

impl Client {
    pub(super) async fn publish_and_commit(
        &self,
        plan: &Arc<PlanState>,
    ) -> std::result::Result<(), Unpublished> {
        // A kernel's object may be committed by two calls at once.
        let _one = plan.committing.lock().await;
        if plan.is_committed() {
            return Ok(());
        }
        plan.peer.run_blocking(|| self.publish(plan))?;
        Ok(one(self.commit_plans(std::slice::from_ref(plan)).await)?)
    }

    fn publish(&self, p: &PlanState) -> std::result::Result<(), Unpublished> {
        p.check_whole()?;
        p.seal(&*self.shared.env.machine)?;
        if p.is_for_kernels() && is_ready(p)? {
            // The kernel has ended. Past the deadline, and after a new term, the owner waits for
            // this alone, and adopts the object; the commit waits for it.
            p.let_go();
            return Ok(());
        }
        let _inside = p.enter_sealed(self.shared.env.clock.now_ns())?;
        if is_ready(p)? {
            // The writer's own NIC flipped READY already.
            return Ok(());
        }
        let missing = p.missing();
        if missing > 0 {
            p.unseal();
            let error = Error::invalid(format!(
                "{missing} of {} bytes of key {} were never written; write them or abort",
                p.desc.meta.object.bytes_total, p.key
            ));
            return Err(Unpublished { error, open: true });
        }
        if p.first_write() {
            // An empty object: nothing else wrote the header.
            announce(p).inspect_err(|_| p.break_off())?;
        }
        // The pages may have used several connections: all of them land before READY [I4].
        let object = publication(&p.desc);
        let mut ops = object.publish();
        p.peer.verbs.post(p.desc.token, &mut ops)?;
        Ok(published(&object, &ops, p)?)
    }

    /// Commits plans, and gives up those that end without a final answer: their objects must not
    /// become readable after their puts failed. If a commit was accepted after all, giving up has
    /// no effect: the plan has ended.
    pub(super) async fn commit_plans(&self, plans: &[Arc<PlanState>]) -> Vec<Result<()>> {
        let results = self.commit_or_not(plans).await;
        let open_end = |r: &Result<()>| matches!(r, Err(e) if e.kind() != ErrorKind::Reclaimed);
        let failed: Vec<_> = plans
            .iter()
            .zip(&results)
            .filter(|(_, r)| open_end(r))
            .map(|(p, _)| p.clone())
            .collect();
        plans.iter().for_each(|p| self.shared.plans.close(p));
        self.give_up(&failed, &results).await;
        results
    }

    /// Commits plans, and closes none.
    async fn commit_or_not(&self, plans: &[Arc<PlanState>]) -> Vec<Result<()>> {
        if plans.is_empty() {
            return Vec::new();
        }
        let limit = self.limit().min(COMMIT_LIMIT);
        let until_ns = self.shared.env.clock.now_ns() + limit.as_nanos() as u64;
        let mut results = self.commit_once(plans, self.limit()).await;
        // NotReady is temporary: the owner is still reporting, has not recorded the plan yet, or is
        // checking a plan past its deadline.
        for _ in 0..COMMIT_RETRIES {
            let unsure: Vec<usize> = (0..plans.len())
                .filter(|i| matches!(&results[*i], Err(e) if e.kind() == ErrorKind::NotReady))
                .collect();
            if unsure.is_empty() || self.shared.env.clock.now_ns() >= until_ns {
                break;
            }
            self.shared.slow_path.commits_repeated.one();
            tokio::time::sleep(COMMIT_PAUSE).await;
            let again: Vec<_> = unsure.iter().map(|i| plans[*i].clone()).collect();
            let left_ns = until_ns.saturating_sub(self.shared.env.clock.now_ns());
            let left = Duration::from_nanos(left_ns) + LAST_ANSWER_LIMIT;
            for (i, r) in unsure.into_iter().zip(self.commit_once(&again, left).await) {
                results[i] = r;
            }
        }
        let committed = plans.iter().zip(&results).filter(|(_, r)| r.is_ok()).map(|(p, _)| p);
        note_committed(committed);
        results
    }

    /// One request to commit what a kernel has published. After an error the plan is still open,
    /// unless it was ended by another call.
    pub(super) async fn commit_of_kernel(&self, plan: &Arc<PlanState>) -> Result<()> {
        let _one = plan.committing.lock().await;
        if plan.is_committed() {
            return Ok(());
        }
        if !self.shared.plans.holds(plan.desc.plan) {
            return Err(Error::reclaimed(format!("the plan for key {} was given up", plan.key)));
        }
        plan.peer.run_blocking(|| self.publish(plan)).map_err(|e| e.error)?;
        one(self.commit_once(std::slice::from_ref(plan), LAST_ANSWER_LIMIT).await)?;
        note_committed([plan].into_iter());
        self.shared.plans.close(plan);
        Ok(())
    }

    /// Ends plans whose headers are READY already. After a NotReady, the abort waits for the
    /// master's answer before the put fails: a message still in flight could be lost with this
    /// process, and the object would be kept.
    async fn give_up(&self, plans: &[Arc<PlanState>], results: &[Result<()>]) {
        let unsure = |r: &Result<()>| matches!(r, Err(e) if e.kind() == ErrorKind::NotReady);
        let list: Vec<_> = plans.iter().map(|p| p.reference()).collect();
        if !list.is_empty() && results.iter().any(unsure) {
            let abort = Request::Abort(list);
            let answer = self.call_within(abort, LAST_ANSWER_LIMIT.min(self.limit())).await;
            if self.done("Abort", answer, plans.len()).iter().all(Result::is_ok) {
                self.shared.slow_path.abandoned.add(plans.len());
                return;
            }
        }
        self.abandon(plans);
    }

    async fn commit_once(&self, plans: &[Arc<PlanState>], limit: Duration) -> Vec<Result<()>> {
        let list = plans.iter().map(|p| p.reference()).collect();
        let answer = self.call_within(Request::Commit(list), limit.min(self.limit())).await;
        self.done("Commit", answer, plans.len())
    }

    /// Gives up failed plans in the background; their owner fences and frees them.
    pub(super) fn abandon(&self, plans: &[Arc<PlanState>]) {
        for p in plans {
            self.shared.plans.close(p);
        }
        self.report_abandoned(plans.iter().map(|p| p.reference()).collect());
    }

    pub(super) fn report_abandoned(&self, list: Vec<PlanRef>) {
        self.shared.slow_path.abandoned.add(list.len());
        if !list.is_empty() {
            self.give_up_later(Request::Abort(list));
        }
    }

    /// Sends a request that gives up plans, in the background.
    pub(super) fn give_up_later(&self, request: Request) {
        let sent = self.notify_producer(GiveUp(request, self.shared.abandoning.clone()));
        if let Some(Err(error)) = sent {
            tracing::debug!(%error, "plans not given up; they end at their deadline");
        }
    }

    /// Commits what kernels have published, and aborts all other open plans. False if a write of
    /// another thread is still in flight when the call's limit is over.
    pub(crate) async fn end_open_plans(&self) -> bool {
        // Not what this process itself wrote in part, or still writes.
        let is_whole =
            |p: &PlanState| p.check_whole().is_ok() && p.seal(&*self.shared.env.machine).is_ok();
        let published =
            |p: &Arc<PlanState>| p.is_for_kernels() && is_ready(p).unwrap_or(false) && is_whole(p);
        let (published, plans): (Vec<_>, Vec<_>) =
            self.shared.plans.all().into_iter().partition(published);
        // Their kernels have ended. What the master does not answer about is adopted by its owner:
        // at the plan's deadline, or when a new master asks what the owner has.
        published.iter().for_each(|p| p.let_go());
        self.commit_or_not(&published).await;
        published.iter().chain(&plans).for_each(|p| self.shared.plans.close(p));
        if !plans.is_empty() {
            let list = plans.iter().map(|p| p.reference()).collect();
            // If this fails, the plans end at their deadline.
            let _ = self.call_within(Request::Abort(list), self.limit()).await;
        }
        holds_within(self.limit(), || self.shared.plans.all_drained()).await
    }
}

/// The objects of these plans are stored. Their owners learn of their groups.
fn note_committed<'a>(plans: impl Iterator<Item = &'a Arc<PlanState>>) {
    let mut grouped: BTreeMap<u64, (&Arc<Peer>, Vec<KeyReport>)> = BTreeMap::new();
    for plan in plans {
        plan.note_committed();
        if let Some(report) = plan.group_report() {
            let of_owner = grouped.entry(plan.peer.incarnation);
            of_owner.or_insert_with(|| (&plan.peer, Vec::new())).1.push(report);
        }
    }
    for (peer, reports) in grouped.into_values() {
        // One that is lost is a hint less.
        reports.chunks(NAMES_PER_FRAME).for_each(|part| {
            let _ = peer.send(ClientToOwner::KeysReported(part.to_vec()));
        });
    }
}

/// Whether READY is set, by this handle or by its caller's kernel or NIC.
pub(super) fn is_ready(p: &PlanState) -> Result<bool> {
    let (offset, epoch) = (p.desc.meta.header_off + PUBLISH_OFF, p.desc.meta.at.epoch);
    // Also after the attachment has ended: the mapping stays, and a kernel may still write.
    if let Some(reader) = &p.peer.reader {
        return Ok(words::load(reader.memory().words(), offset)? == ready(epoch));
    }
    let mut now = [0; 8];
    p.peer.verbs.post(0, &mut [Op::Read { offset, dst: &mut now }])?;
    Ok(u64::from_le_bytes(now) == ready(epoch))
}

pub(super) fn published(object: &Publication, batch: &[Op<'_>], p: &PlanState) -> Result<()> {
    object.took(batch).map_err(|found| {
        Error::reclaimed(format!(
            "key {}: the slot moved on to epoch {} while it was written",
            p.key,
            epoch_of(found)
        ))
    })
}
