//! The replicas of one put: a plan for each, which is written and committed by itself. The put is
//! done if one of them is.

use super::Asking;
use crate::client::plans::PlanState;
use crate::client::{Client, PutOptions, one};
use crate::error::{Error, Result};
use crate::message::{CopyPlan, MAX_REPLICAS, PlanDesc, SlotRef};
use nkv_store::Retention;
use std::collections::BTreeSet;
use std::sync::Arc;

/// The plans of one object.
pub(super) type Plans = Vec<Arc<PlanState>>;

/// The plans of an answer, each as one without copies.
pub(super) fn each(mut granted: PlanDesc) -> Result<Vec<PlanDesc>> {
    let copies = std::mem::take(&mut granted.copies);
    let mut owners = BTreeSet::from([granted.meta.at.incarnation]);
    let is_further = |copy: &CopyPlan| {
        copy.meta.key == granted.meta.key && owners.insert(copy.meta.at.incarnation)
    };
    if copies.len() >= usize::from(MAX_REPLICAS) || !copies.iter().all(is_further) {
        return Err(Error::internal("the master granted replicas that cannot be"));
    }
    let write_ttl_ms = granted.write_ttl_ms;
    let copy = |CopyPlan { plan, token, meta }: CopyPlan| PlanDesc {
        plan,
        token,
        meta,
        write_ttl_ms,
        copies: Vec::new(),
    };
    Ok(std::iter::once(granted).chain(copies.into_iter().map(copy)).collect())
}

/// Those that succeeded; the first error if none did.
pub(super) fn any_of<T>(results: Vec<Result<T>>) -> Result<Vec<T>> {
    let (mut done, mut failed) = (Vec::with_capacity(results.len()), None);
    for result in results {
        match result {
            Ok(one) => done.push(one),
            Err(error) => drop(failed.get_or_insert(error)),
        }
    }
    match (done.is_empty(), failed) {
        (true, Some(error)) => Err(error),
        _ => Ok(done),
    }
}

impl Client {
    /// Puts the replicas that the master knows a stored object to lack. It must lie in memory that
    /// this process maps. Returns how many were made.
    pub(crate) async fn add_replicas(&self, key: &[u8]) -> Result<u32> {
        let view = self.view_uncounted(key).await?;
        // The master knows what its replicas have of the evictor.
        let opts = PutOptions::default().replicas(MAX_REPLICAS);
        let asked = Asking { replica_of: Some(view.at()), ..Asking::of(&opts) };
        one(self.put_whole(&[(key, &view)], &[0], asked).await)
    }

    /// Puts an extra replica of what was read at `from`, at the rank of this handle. False if there
    /// is a replica on its host, or the object has as many as there may be.
    pub(in crate::client) async fn put_extra(
        &self,
        key: &[u8],
        value: &[u8],
        from: SlotRef,
    ) -> Result<bool> {
        let opts = PutOptions::default().preferred_rank(self.home()).retention(Retention::Extra);
        let asked = Asking { replica_of: Some(from), ..Asking::of(&opts) };
        one(self.put_whole(&[(key, value)], &[0], asked).await).map(|made| made > 0)
    }

    /// How many replicas of each item are stored. `stored` has a result for each plan, in order.
    pub(super) fn made(
        &self,
        items: Vec<Result<Plans>>,
        stored: Vec<Result<()>>,
        asked_for: u8,
    ) -> Vec<Result<u32>> {
        let mut stored = stored.into_iter();
        let mut made = |plans: Plans| {
            let made = any_of(stored.by_ref().take(plans.len()).collect())?.len() as u32;
            let short = u32::from(asked_for).saturating_sub(made);
            self.shared.writes.replicas_short.add(short as usize);
            Ok(made)
        };
        items.into_iter().map(|plans| plans.and_then(&mut made)).collect()
    }
}
