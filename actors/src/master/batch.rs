//! Requests whose items complete at different times: one reply after the last item.

use super::matching::RemovedBefore;
use crate::actor::Reply;
use crate::error::{Error, ErrorKind, Result};
use crate::message::{PlanDesc, Response, Swept};
use nkv_store::KeyId;
use std::collections::BTreeMap;

/// A removal by pattern: where its next round begins, and what was removed before.
type Sweep = (Option<KeyId>, RemovedBefore);

struct Batch<T> {
    results: Vec<Option<Result<T>>>,
    left: usize,
    reply: Reply<Response>,
    // The last item of a sweep is not a key (see `Batches::swept`).
    sweep: Option<Sweep>,
}

/// All requests in progress.
#[derive(Default)]
pub(super) struct Batches {
    next: u64,
    plans: BTreeMap<u64, Batch<PlanDesc>>,
    items: BTreeMap<u64, Batch<()>>,
}

impl<T> Batch<T> {
    fn new(n: usize, reply: Reply<Response>, sweep: Option<Sweep>) -> Self {
        Self { results: (0..n).map(|_| None).collect(), left: n, reply, sweep }
    }
}

fn all<T>(results: Vec<Option<Result<T>>>) -> Vec<Result<T>> {
    let lost = || Error::internal("an item of the batch was never completed");
    results.into_iter().map(|r| r.unwrap_or_else(|| Err(lost()))).collect()
}

/// Records the result of an item, if it has none; takes the batch out once each item has one.
fn complete<T>(
    open: &mut BTreeMap<u64, Batch<T>>,
    batch: u64,
    item: usize,
    result: Result<T>,
) -> Option<Batch<T>> {
    let b = open.get_mut(&batch)?;
    if b.results[item].is_none() {
        b.results[item] = Some(result);
        b.left -= 1;
    }
    if b.left > 0 { None } else { open.remove(&batch) }
}

impl Batches {
    pub(super) fn plans(&mut self, n: usize, reply: Reply<Response>) -> u64 {
        self.next += 1;
        if n == 0 {
            reply.send(Response::Plans(Vec::new()));
        } else {
            self.plans.insert(self.next, Batch::new(n, reply, None));
        }
        self.next
    }

    pub(super) fn done(&mut self, n: usize, reply: Reply<Response>) -> u64 {
        self.next += 1;
        if n == 0 {
            reply.send(Response::Done(Vec::new()));
        } else {
            self.items.insert(self.next, Batch::new(n, reply, None));
        }
        self.next
    }

    /// A batch of `keys` removals, plus those that logs made before. One more item completes when
    /// the other ranks know of the ranks that were lost.
    pub(super) fn swept(&mut self, keys: usize, sweep: Sweep, reply: Reply<Response>) -> u64 {
        self.next += 1;
        self.items.insert(self.next, Batch::new(keys + 1, reply, Some(sweep)));
        self.next
    }

    pub(super) fn complete_plan(&mut self, batch: u64, item: usize, result: Result<PlanDesc>) {
        if let Some(b) = complete(&mut self.plans, batch, item, result) {
            b.reply.send(Response::Plans(all(b.results)));
        }
    }

    pub(super) fn complete_item(&mut self, batch: u64, item: usize, result: Result<()>) {
        if let Some(b) = complete(&mut self.items, batch, item, result) {
            b.reply.send(match b.sweep {
                None => Response::Done(all(b.results)),
                Some(sweep) => Response::Swept(count(all(b.results), sweep)),
            });
        }
    }
}

fn count(mut results: Vec<Result<()>>, (next, taken): Sweep) -> Swept {
    let losses = results.pop().and_then(Result::err);
    let RemovedBefore { from_logs: removed, from_disks: on_disk } = taken;
    let mut swept = Swept { next, removed, on_disk, ..Swept::default() };
    for result in results {
        match result {
            Ok(()) => swept.removed += 1,
            // It was removed between the listing and this removal.
            Err(e) if e.kind() == ErrorKind::NotFound => {}
            Err(e) => {
                swept.unconfirmed += 1;
                swept.why.get_or_insert(e);
            }
        }
    }
    swept.why = swept.why.or(losses);
    swept
}
