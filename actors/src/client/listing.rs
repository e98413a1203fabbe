//! Removals, and listings and removals by pattern: passes over all keys, one bounded round trip
//! after the other, so that neither the size of the cluster nor a slow pattern meets the limit of a
//! call.

use super::{Client, key_bytes, one, spread};
use crate::error::{Error, Result};
use crate::message::{
    KEYS_PER_ROUND, KeyBytes, Listed, Request, Response, Selection, Swept, WireKeyId,
};
use nkv_store::KeyId;

impl Client {
    /// Takes a key away for good; returns when no reader can find it any more [I6].
    pub async fn remove(&self, key: &[u8]) -> Result<()> {
        one(self.remove_many(&[key]).await)
    }

    /// Takes keys away; one result per key.
    pub async fn remove_many(&self, keys: &[&[u8]]) -> Vec<Result<()>> {
        keys.iter().for_each(|k| self.shared.locations.forget(k));
        match self.call(Request::Remove(key_bytes(keys))).await {
            Ok(Response::Done(list)) if list.len() == keys.len() => list,
            Ok(other) => spread(keys.len(), self.pool.unexpected("Remove", &other)),
            Err(e) => spread(keys.len(), e),
        }
    }

    /// The first `limit` keys that come after `after`, in the order of their bytes: those in which
    /// the regular expression `pattern` is found (anywhere: anchor it with `^` and `$` to match a
    /// whole key), or all of them without one. Keys of plans that are open are listed, too.
    ///
    /// For the next page give the last key as `after`. Every page is a pass over all keys at the
    /// master, in rounds of [`KEYS_PER_ROUND`] keys; this process holds twice `limit` keys, and one
    /// round's, at most.
    /// Keys that come or go during a listing may be in it or not; every other one that matches is
    /// in it, once.
    ///
    /// The syntax is that of the `regex` crate, over bytes: matching takes time linear in the key.
    /// A key may be no text: `(?-u:\xff)` is a byte, and `(?s-u:.)` any byte. InvalidArgument: the
    /// pattern is wrong, or larger than is taken. NotReady: the cluster is starting.
    pub async fn list(
        &self,
        pattern: Option<&str>,
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<Vec<Listed>> {
        self.check_usable()?;
        let mut page = Vec::new();
        if limit == 0 {
            return Ok(page);
        }
        let mut of = Selection { pattern: pattern.map(str::to_string), from: None };
        loop {
            let request = Request::List {
                of: of.clone(),
                after: after.map(KeyBytes::from),
                limit: limit.min(KEYS_PER_ROUND) as u32,
            };
            let (keys, next) = match self.call(request).await? {
                Response::Listed { keys, next } => (keys, next),
                other => return Err(self.pool.unexpected("List", &other)),
            };
            page.extend(keys);
            if page.len() >= limit.saturating_mul(2) || next.is_none() {
                page.sort_unstable_by(|a, b| a.key.cmp(&b.key));
                page.truncate(limit);
            }
            match next {
                Some(next) => of.from = Some(onwards(of.from, next)?),
                None => return Ok(page),
            }
        }
    }

    /// Takes every key away in which the regular expression `pattern` is found (anywhere: anchor it
    /// with `^` and `$` to match a whole key; syntax as in [`Client::list`]), and returns how many.
    /// Keys that are being written are among them: their plans end.
    ///
    /// As with [`Client::remove`], what was removed is not found by any reader any more, and stays
    /// removed [I6]. The keys are passed over once, in rounds of [`KEYS_PER_ROUND`], each within
    /// the limit of a call: a key that is put meanwhile may go or stay, and is not waited for. So
    /// may one that was put into a device log a moment ago: the master learns of it after the put,
    /// and only what it knows is passed over.
    ///
    /// An error names how many keys were removed before it; those not reached by then are still
    /// there, and a repeat takes them. Disconnected: an owner did not confirm a removal in time.
    /// What it was asked to take away is not found through the master any more all the same.
    pub async fn remove_matching(&self, pattern: &str) -> Result<u64> {
        self.sweep(Some(pattern)).await
    }

    /// Takes every key of the cluster away; otherwise as [`Client::remove_matching`].
    pub async fn remove_all(&self) -> Result<u64> {
        self.sweep(None).await
    }

    async fn sweep(&self, pattern: Option<&str>) -> Result<u64> {
        let mut removed = 0;
        let mut of = Selection { pattern: pattern.map(str::to_string), from: None };
        loop {
            let round = match self.call(Request::RemoveMatching(of.clone())).await {
                Ok(Response::Swept(round)) => round,
                Ok(other) => return Err(self.pool.unexpected("RemoveMatching", &other)),
                // Nothing was removed that could be named.
                Err(e) if of.from.is_none() => return Err(e),
                Err(e) => return Err(stopped(removed, 0, &e)),
            };
            let Swept { removed: gone, unconfirmed, why, next } = round;
            removed += gone;
            if let Some(why) = why {
                return Err(stopped(removed, unconfirmed, &why));
            }
            match next {
                Some(next) => of.from = Some(onwards(of.from, next)?),
                None => return Ok(removed),
            }
        }
    }
}

/// Rounds only go forward: then there is an end to them.
fn onwards(from: Option<WireKeyId>, next: WireKeyId) -> Result<WireKeyId> {
    if from.is_none_or(|from| KeyId::from(next) > KeyId::from(from)) {
        return Ok(next);
    }
    Err(Error::internal(format!("the master went back from {from:?} to {next:?} in a listing")))
}

fn stopped(removed: u64, unconfirmed: u64, why: &Error) -> Error {
    let open = match unconfirmed {
        0 => String::new(),
        n => format!(", {n} more not confirmed"),
    };
    let text =
        format!("{} ({removed} keys were removed{open}; a repeat takes the rest)", why.message);
    Error::new(why.kind, text)
}
