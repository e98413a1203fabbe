//! Removals, and listings and removals by pattern. A pattern is matched against all keys in bounded
//! rounds, one round trip each, so that neither the size of the cluster nor a slow pattern exceeds
//! the limit of a call.

use super::{Client, about_keys, key_bytes, one};
use crate::error::{Error, Result};
use crate::message::{
    KEYS_PER_ROUND, KeyBytes, Listed, Removed, Request, Response, Selection, Swept,
};
use nkv_store::KeyId;

impl Client {
    /// Removes a key; returns when no reader can find it any more [I6].
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/example.rs")); }
    /// # use nkv_actors::*;
    /// # example::on_one_rank("remove", async |cache| {
    /// cache.put(b"block/1", b"kv bytes", &PutOptions::default()).await?;
    /// cache.remove(b"block/1").await?;
    /// assert!(cache.get(b"block/1").await.is_err());
    /// # Ok(())
    /// # });
    /// ```
    pub async fn remove(&self, key: &[u8]) -> Result<()> {
        one(self.remove_many(&[key]).await)
    }

    /// Removes keys; one result per key, in order.
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/example.rs")); }
    /// # use nkv_actors::*;
    /// # example::on_one_rank("remove-many", async |cache| {
    /// cache.put(b"block/1", b"kv bytes", &PutOptions::default()).await?;
    /// let removed = cache.remove_many(&[b"block/1", b"block/2"]).await;
    /// assert!(removed[0].is_ok() && removed[1].is_err());
    /// # Ok(())
    /// # });
    /// ```
    pub async fn remove_many(&self, keys: &[&[u8]]) -> Vec<Result<()>> {
        keys.iter().for_each(|k| self.shared.locations.forget(k));
        let answer = self.call(Request::Remove(key_bytes(keys))).await;
        about_keys(self.done("Remove", answer, keys.len()), keys.iter().copied())
    }

    /// The first `limit` keys after `after`, in the order of their bytes: those in which the
    /// regular expression `pattern` matches (anywhere: anchor it with `^` and `$` to match a whole
    /// key), or all keys without a pattern. Keys of open plans are listed, too.
    ///
    /// For the next page pass the last key as `after`. Every page is a pass over all keys at the
    /// master, in rounds of [`KEYS_PER_ROUND`] keys. This process holds at most twice `limit` keys
    /// plus those of one round. Keys put or removed during a listing may be in it or not; every
    /// other key that matches is in it once.
    ///
    /// The syntax is that of the `regex` crate, over bytes: matching takes time linear in the key.
    /// A key may be binary: `(?-u:\xff)` is a byte, and `(?s-u:.)` any byte. InvalidArgument: the
    /// pattern is wrong or too large. NotReady: the cluster is starting.
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/example.rs")); }
    /// # use nkv_actors::*;
    /// # example::on_one_rank("list", async |cache| {
    /// cache.put(b"block/1", b"kv bytes", &PutOptions::default()).await?;
    /// let first_page = cache.list(Some("^block/"), None, 100).await?;
    /// assert_eq!(&*first_page[0].key, b"block/1");
    /// # Ok(())
    /// # });
    /// ```
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

    /// Removes every key in which the regular expression `pattern` matches (anywhere: anchor it
    /// with `^` and `$` to match a whole key; syntax as in [`Client::list`]), from memory and
    /// disks, and returns how many.
    /// This includes keys that are being written: their plans end.
    ///
    /// As with [`Client::remove`], no reader can find a removed key, and it stays removed [I6]. The
    /// call makes one pass over the keys, in rounds of [`KEYS_PER_ROUND`], each within the limit of
    /// a call. A key put meanwhile may be removed or stay.
    ///
    /// An error states how many keys were removed before it. Keys not reached by then are still
    /// there, and a repeat removes them. Disconnected: an owner did not confirm a removal in time.
    /// The master no longer returns the keys of that removal either way.
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/example.rs")); }
    /// # use nkv_actors::*;
    /// # example::on_one_rank("remove-matching", async |cache| {
    /// cache.put(b"block/1", b"kv bytes", &PutOptions::default()).await?;
    /// assert_eq!(cache.remove_matching("^block/").await?.in_memory, 1);
    /// # Ok(())
    /// # });
    /// ```
    pub async fn remove_matching(&self, pattern: &str) -> Result<Removed> {
        self.sweep(Some(pattern)).await
    }

    /// Removes every key of the cluster; otherwise as [`Client::remove_matching`].
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/example.rs")); }
    /// # use nkv_actors::*;
    /// # example::on_one_rank("remove-all", async |cache| {
    /// cache.put(b"block/1", b"kv bytes", &PutOptions::default()).await?;
    /// assert_eq!(cache.remove_all().await?.in_memory, 1);
    /// # Ok(())
    /// # });
    /// ```
    pub async fn remove_all(&self) -> Result<Removed> {
        self.sweep(None).await
    }

    async fn sweep(&self, pattern: Option<&str>) -> Result<Removed> {
        let mut removed = Removed::default();
        let mut of = Selection { pattern: pattern.map(str::to_string), from: None };
        loop {
            let round = match self.call(Request::RemoveMatching(of.clone())).await {
                Ok(Response::Swept(round)) => round,
                Ok(other) => return Err(self.pool.unexpected("RemoveMatching", &other)),
                // No round was completed: there is no count to report.
                Err(e) if of.from.is_none() => return Err(e),
                Err(e) => return Err(stopped(removed, 0, &e)),
            };
            let Swept { removed: gone, on_disk, unconfirmed, why, next } = round;
            // A master's numbers may be anything.
            removed.in_memory = removed.in_memory.saturating_add(gone);
            removed.on_disk = removed.on_disk.saturating_add(on_disk);
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

/// Rounds must only move forward, so that they end.
fn onwards(from: Option<KeyId>, next: KeyId) -> Result<KeyId> {
    if from.is_none_or(|from| next > from) {
        return Ok(next);
    }
    Err(Error::internal(format!("the master went back from {from:?} to {next:?} in a listing")))
}

fn stopped(removed: Removed, unconfirmed: u64, why: &Error) -> Error {
    let open = match unconfirmed {
        0 => String::new(),
        n => format!(", {n} more not confirmed"),
    };
    let text = format!("{} ({removed}{open}; a repeat takes the rest)", why.message());
    Error::new(why.kind(), text)
}
