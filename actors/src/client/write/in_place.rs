//! Objects that this process writes in place: into memory of their owner that it maps.

use super::commit::is_ready;
use super::write_plan::WritePlan;
use crate::client::addresses::MappedSegment;
use crate::client::plans::PlanState;
use crate::client::{Client, PutOptions};
use crate::error::{Error, Result};
use crate::message::{MAX_BATCH, ObjMeta};
use nkv_store::layout::{PUBLISH_OFF, epoch_of};
use nkv_store::object::{ready, writing};
use nkv_store::{Memory, words};
use nkv_transport::gate::Inside;
use std::sync::Arc;

/// A plan that is held: its memory is not reused until it is committed or dropped [I10], also when
/// the handle is closed. The caller drops it once nobody writes there any more.
#[derive(Debug)]
pub(in crate::client) struct InPlace {
    plan: WritePlan,
    address: u64,
    meta: ObjMeta,
}

impl InPlace {
    fn new(plan: WritePlan) -> Result<Self> {
        let meta = plan.state()?.desc.meta.clone();
        let unmapped = || {
            Error::unsupported(format!(
                "this process does not map the payloads of rank {}: run it on that rank's host, \
                 without --transport tcp",
                meta.rank
            ))
        };
        let segment = MappedSegment::of(&plan.state()?.peer).ok_or_else(unmapped)?;
        if segment.control != segment.payload || !plan.announce()? {
            return Err(unmapped());
        }
        plan.state()?.keep_held();
        let address = segment.payload.wrapping_add(meta.object.payload_off());
        Ok(Self { plan, address, meta })
    }

    /// Where the object's first byte is, in this process.
    pub fn address(&self) -> u64 {
        self.address
    }

    pub fn meta(&self) -> &ObjMeta {
        &self.meta
    }

    /// The segment, and the offset there of a part of the object; no commit begins meanwhile.
    fn part(&self, offset: u64, len: u64) -> Result<(Inside, &dyn Memory, u64)> {
        let plan = self.plan.state()?;
        let object = &self.meta.object;
        if offset.checked_add(len).is_none_or(|end| end > object.bytes_total) {
            return Err(Error::invalid(format!(
                "bytes {offset}..{} of an object of {}",
                offset.saturating_add(len),
                object.bytes_total
            )));
        }
        let inside = plan.enter_held()?;
        let reader = plan.peer.reader.as_ref().ok_or_else(unmapped_plan)?;
        Ok((inside, &**reader.memory().memory(), object.payload_off() + offset))
    }

    /// Copies bytes into the object.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let (_inside, memory, at) = self.part(offset, bytes.len() as u64)?;
        Ok(memory.write(at, bytes)?)
    }

    /// Copies out what was written so far.
    pub fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        let (_inside, memory, at) = self.part(offset, bytes.len() as u64)?;
        Ok(memory.read(at, bytes)?)
    }
}

impl Drop for InPlace {
    fn drop(&mut self) {
        let Some(plan) = &self.plan.plan else { return };
        plan.let_go();
        let plans = &self.plan.client.shared.plans;
        // Closed before, with its handle.
        if !plans.holds(plan.desc.plan) {
            plans.close(plan);
        }
    }
}

fn unmapped_plan() -> Error {
    Error::internal("a plan in place without a mapping")
}

/// Sets READY, as a kernel does: what this process wrote before is seen by whoever sees READY [I4].
/// Also past the plan's deadline.
fn set_ready(p: &PlanState) -> Result<()> {
    let (offset, epoch) = (p.desc.meta.header_off + PUBLISH_OFF, p.desc.meta.at.epoch);
    let memory = p.peer.reader.as_ref().ok_or_else(unmapped_plan)?.memory();
    let found = words::compare_swap(memory.words(), offset, writing(epoch), ready(epoch))?;
    if found == writing(epoch) || is_ready(p)? {
        return Ok(());
    }
    Err(Error::reclaimed(format!(
        "key {}: the slot moved on to epoch {} while it was written",
        p.key,
        epoch_of(found)
    )))
}

impl Client {
    /// Opens plans whose objects the caller writes where they lie.
    pub(in crate::client) async fn open_in_place(
        &self,
        items: &[(&[u8], u64)],
        opts: &PutOptions,
    ) -> Result<Vec<Result<InPlace>>> {
        let opened = self.open_many(items, opts).await?;
        let plan = |plan: Arc<PlanState>| InPlace::new(WritePlan::new(self.clone(), plan));
        Ok(opened.into_iter().map(|opened| opened.and_then(plan)).collect())
    }

    /// Gives up objects that are not written after all, in one request. Those that somebody keeps
    /// are given up when they are dropped.
    pub(in crate::client) fn give_up_in_place(&self, list: Vec<Arc<InPlace>>) {
        let plan = |mut object: InPlace| {
            let plan = object.plan.plan.take()?;
            plan.let_go();
            self.shared.plans.forget(&plan);
            match self.shared.plans.holds(plan.desc.plan) {
                true => Some(plan),
                false => {
                    self.shared.plans.close(&plan);
                    None
                }
            }
        };
        let plans: Vec<_> = list.into_iter().filter_map(Arc::into_inner).filter_map(plan).collect();
        plans.chunks(MAX_BATCH).for_each(|part| self.abandon(part));
    }

    /// Commits objects that are whole now, in one request: `MAX_BATCH` at most.
    pub(in crate::client) async fn commit_in_place(
        &self,
        list: &[Arc<InPlace>],
    ) -> Vec<Result<()>> {
        let publish = |object: &Arc<InPlace>| {
            let plan = object.plan.state()?;
            plan.check_whole()?;
            if !self.shared.plans.holds(plan.desc.plan) {
                return Err(Error::reclaimed(format!(
                    "the plan for key {} was ended by rank {}",
                    plan.key, plan.desc.meta.rank
                )));
            }
            // What another thread writes now is in the object, or refused.
            plan.peer.run_blocking(|| plan.seal(&*self.shared.env.machine))?;
            set_ready(plan)?;
            plan.let_go();
            Ok(plan.clone())
        };
        let published: Vec<Result<Arc<PlanState>>> = list.iter().map(publish).collect();
        let plans: Vec<_> = published.iter().flatten().cloned().collect();
        let mut committed = self.commit_plans(&plans).await.into_iter();
        plans.iter().for_each(|plan| self.shared.plans.forget(plan));
        let lost = || Err(Error::internal("a commit without an answer"));
        let each =
            |published: Result<_>| published.and_then(|_| committed.next().unwrap_or_else(lost));
        published.into_iter().map(each).collect()
    }
}
