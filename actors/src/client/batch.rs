//! Batches: how they are divided among owners and requests, and their results, one for each item
//! and in order.

use super::Client;
use super::peer::Peer;
use crate::environment::Platform;
use crate::error::{Error, Result};
use nkv_store::threads::side_by_side;
use nkv_transport::verbs::Kind;
use std::convert::Infallible;
use std::sync::Arc;

/// The result of a batch of one item.
pub(super) fn one<T>(list: Vec<Result<T>>) -> Result<T> {
    list.into_iter().next().unwrap_or_else(|| Err(Error::internal("an empty answer to one item")))
}

/// Each error with the key of its item.
pub(super) fn about_keys<'k, T>(
    mut results: Vec<Result<T>>,
    keys: impl Iterator<Item = &'k [u8]>,
) -> Vec<Result<T>> {
    for (result, key) in results.iter_mut().zip(keys) {
        if let Err(e) = result {
            *e = e.clone().about(key);
        }
    }
    results
}

/// The results of all items: each one without a result takes the next of `further`.
pub(super) fn filled<T>(done: Vec<Option<Result<T>>>, further: Vec<Result<T>>) -> Vec<Result<T>> {
    let mut further = further.into_iter();
    done.into_iter().map(|d| d.or_else(|| further.next()).unwrap_or_else(missing)).collect()
}

/// Each success becomes the next of the `further` results.
pub(super) fn continued<T, U>(results: Vec<Result<T>>, further: Vec<Result<U>>) -> Vec<Result<U>> {
    let mut further = further.into_iter();
    let next = |result: Result<T>| result.and_then(|_| further.next().unwrap_or_else(missing));
    results.into_iter().map(next).collect()
}

fn missing<T>() -> Result<T> {
    Err(Error::internal("an item of a batch without a result"))
}

/// The same error for each of `n` items.
pub(super) fn spread<T>(n: usize, e: Error) -> Vec<Result<T>> {
    (0..n).map(|_| Err(e.clone())).collect()
}

/// How many of the first items go into one request: so many at most, and of so many bytes in all,
/// but one at least.
pub(super) fn in_one_request(sizes: impl Iterator<Item = u64>, most: usize, bytes: u64) -> usize {
    let mut sum = 0u64;
    let fits = sizes.take(most).take_while(|size| {
        sum = sum.saturating_add(*size);
        sum <= bytes
    });
    fits.count().max(1)
}

/// Most threads beside the caller's that wait for other hosts.
const MOST_HELPERS: usize = 7;

impl Client {
    /// Calls `each` for every owner with its part of a batch: over tcp in threads side by side,
    /// since each waits for another host; else, and in a simulation, one after the other.
    pub(super) fn at_owners<P: Send>(
        &self,
        parts: &mut [(Arc<Peer>, P)],
        each: impl Fn(&Arc<Peer>, &mut P) + Sync,
    ) {
        let of_kind = |kind| parts.iter().find(|(peer, _)| peer.kind() == kind);
        // It decides whether the calling thread may block: if any owner is on another host.
        let waits = of_kind(Kind::Tcp).or_else(|| of_kind(Kind::Rdma)).or_else(|| parts.first());
        let Some(waits) = waits.map(|(peer, _)| peer.clone()) else { return };
        let helpers = match (self.shared.env.platform, waits.kind()) {
            (Platform::Threads, Kind::Tcp) => (parts.len() - 1).min(MOST_HELPERS),
            _ => 0,
        };
        let helpers = std::iter::repeat_n((), helpers);
        let Ok(()) = waits.run_blocking(|| {
            side_by_side("nkv-fetch", parts.iter_mut().collect(), (), helpers, |(), part| {
                let (peer, part) = part;
                each(peer, part);
                Ok::<(), Infallible>(())
            })
        });
    }
}
