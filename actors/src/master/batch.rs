//! Requests whose items complete at different times: one reply after the last item.

use crate::actor::Reply;
use crate::error::{Error, ErrorKind, Result};
use crate::message::{PlanDesc, Response, Swept};
use nkv_store::KeyId;
use std::collections::BTreeMap;

enum Results {
    Plans(Vec<Option<Result<PlanDesc>>>),
    Done(Vec<Option<Result<()>>>),
    // A removal by pattern: where its next round begins, and the removals that logs made before.
    // The last item is not a key (see `swept`).
    Swept(Vec<Option<Result<()>>>, Option<KeyId>, u64),
}

struct Batch {
    results: Results,
    left: usize,
    reply: Reply<Response>,
}

/// All requests in progress.
#[derive(Default)]
pub(super) struct Batches {
    next: u64,
    open: BTreeMap<u64, Batch>,
}

impl Batches {
    fn start(&mut self, n: usize, results: Results, reply: Reply<Response>) -> u64 {
        self.next += 1;
        let batch = Batch { results, left: n, reply };
        if n == 0 {
            finish(batch);
        } else {
            self.open.insert(self.next, batch);
        }
        self.next
    }

    pub(super) fn plans(&mut self, n: usize, reply: Reply<Response>) -> u64 {
        self.start(n, Results::Plans((0..n).map(|_| None).collect()), reply)
    }

    pub(super) fn done(&mut self, n: usize, reply: Reply<Response>) -> u64 {
        self.start(n, Results::Done((0..n).map(|_| None).collect()), reply)
    }

    /// A batch of `keys` removals, plus those that logs made before. One more item completes when
    /// the other ranks know of the ranks that were lost.
    pub(super) fn swept(
        &mut self,
        keys: usize,
        (next, from_logs): (Option<KeyId>, u64),
        reply: Reply<Response>,
    ) -> u64 {
        let n = keys + 1;
        self.start(n, Results::Swept((0..n).map(|_| None).collect(), next, from_logs), reply)
    }

    pub(super) fn complete_plan(&mut self, batch: u64, item: usize, result: Result<PlanDesc>) {
        self.complete(batch, |r| match r {
            Results::Plans(v) if v[item].is_none() => {
                v[item] = Some(result);
                true
            }
            _ => false,
        });
    }

    pub(super) fn complete_item(&mut self, batch: u64, item: usize, result: Result<()>) {
        self.complete(batch, |r| match r {
            Results::Done(v) | Results::Swept(v, ..) if v[item].is_none() => {
                v[item] = Some(result);
                true
            }
            _ => false,
        });
    }

    fn complete(&mut self, batch: u64, put: impl FnOnce(&mut Results) -> bool) {
        let Some(b) = self.open.get_mut(&batch) else {
            return;
        };
        if put(&mut b.results) {
            b.left -= 1;
            if b.left == 0
                && let Some(b) = self.open.remove(&batch)
            {
                finish(b);
            }
        }
    }
}

fn finish(b: Batch) {
    let lost = || Error::internal("an item of the batch was never completed");
    let response = match b.results {
        Results::Plans(v) => {
            Response::Plans(v.into_iter().map(|r| r.unwrap_or_else(|| Err(lost()))).collect())
        }
        Results::Done(v) => {
            Response::Done(v.into_iter().map(|r| r.unwrap_or_else(|| Err(lost()))).collect())
        }
        Results::Swept(v, next, from_logs) => {
            let results = v.into_iter().map(|r| r.unwrap_or_else(|| Err(lost())));
            Response::Swept(count(results.collect(), (next, from_logs)))
        }
    };
    b.reply.send(response);
}

fn count(mut results: Vec<Result<()>>, (next, from_logs): (Option<KeyId>, u64)) -> Swept {
    let losses = results.pop().and_then(Result::err);
    let mut swept = Swept { next, removed: from_logs, ..Swept::default() };
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
