//! Results of a batch, one for each of its items and in their order.

use crate::environment::Platform;
use crate::error::{Error, Result};
use nkv_store::threads::side_by_side;
use nkv_transport::verbs::Kind;

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

/// Most threads beside the caller's that wait for other hosts.
const MOST_HELPERS: usize = 7;

/// Calls `each` for all work: over tcp in threads side by side if there is more than one piece,
/// since each waits for another host; else, and in a simulation, one after the other.
pub(super) fn at_once<W: Send>(
    platform: Platform,
    kind: Kind,
    work: Vec<W>,
    each: impl Fn(W) + Sync,
) {
    let helpers = match (platform, kind) {
        (Platform::Threads, Kind::Tcp) => work.len().saturating_sub(1).min(MOST_HELPERS),
        _ => 0,
    };
    let helpers = std::iter::repeat_n((), helpers);
    let never = side_by_side("nkv-fetch", work, (), helpers, |(), piece| {
        each(piece);
        Ok::<(), std::convert::Infallible>(())
    });
    let Ok(()) = never;
}
