//! Copies on the disks of nodes, on request: whatever the policy of those disks is.

use super::{Client, about_keys, check_keys, key_bytes, spread};
use crate::error::{Error, ErrorKind, Result};
use crate::message::{Request, Response};
use crate::striping::MANIFEST_BYTES;
use std::time::Duration;

/// Keys in one request: its disks have 1.6 s for them before it is asked again.
const AT_ONCE: usize = 16;
/// How long one such request is repeated while its disks are still at work, and the pause between.
const LIMIT: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(20);

impl Client {
    /// Saves keys on as many disks of ranks as are named, each the one of that rank, or any: first
    /// those of ranks that have the object in memory. What a disk has already is not written again.
    /// Returns for each key the ranks whose disks have it: fewer than were asked for if there are
    /// no more. It is there until it is removed, or the disk needs room; it outlives its process
    /// from then on, and a power loss where the rank has `--ssd-durability persistent`.
    ///
    /// # Errors
    /// For each key: `NotFound` if it is not stored; `InvalidArgument` if no rank has a disk, or
    /// not the one that was named; `Timeout` if none has written it in half a minute.
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/example.rs")); }
    /// # use nkv_actors::*;
    /// # example::on_one_rank("save-to-disk", async |cache| {
    /// cache.put(b"block/1", b"kv bytes", &PutOptions::default()).await?;
    /// let saved = cache.save_to_disk(&[b"block/1"], &[None]).await.remove(0);
    /// // This rank was started without --ssd-dir.
    /// assert_eq!(saved.unwrap_err().kind(), ErrorKind::InvalidArgument);
    /// # Ok(())
    /// # });
    /// ```
    pub async fn save_to_disk(
        &self,
        keys: &[&[u8]],
        disks: &[Option<u32>],
    ) -> Vec<Result<Vec<u32>>> {
        if let Err(e) = self.check_usable().and_then(|()| check_keys(keys)) {
            return spread(keys.len(), e);
        }
        let mut done = Vec::with_capacity(keys.len());
        for some in keys.chunks(AT_ONCE) {
            let mut saved = self.save_some(some, disks).await;
            for (saved, key) in saved.iter_mut().zip(some) {
                if let Ok(ranks) = saved {
                    let stripes = self.save_stripes(key, disks).await;
                    *saved = stripes.map(|()| std::mem::take(ranks));
                }
            }
            done.extend(saved);
        }
        about_keys(done, keys.iter().copied())
    }

    /// The stripes of an object, if it has stripes.
    async fn save_stripes(&self, key: &[u8], disks: &[Option<u32>]) -> Result<()> {
        let stored = self.get_location(key).await?.bytes_total();
        if stored != MANIFEST_BYTES as u64 {
            return Ok(());
        }
        let Some(manifest) = self.manifest_of(key, stored).await? else { return Ok(()) };
        let stripes = manifest.keys();
        let stripes: Vec<&[u8]> = stripes.iter().map(|k| &k[..]).collect();
        for some in stripes.chunks(AT_ONCE) {
            for saved in self.save_some(some, disks).await {
                saved.map_err(|e| {
                    let text = format!("a stripe of it is not on disk: {}", e.message());
                    e.with_message(text)
                })?;
            }
        }
        Ok(())
    }

    /// Asks again while disks are at work.
    async fn save_some(&self, keys: &[&[u8]], disks: &[Option<u32>]) -> Vec<Result<Vec<u32>>> {
        let clock = &self.shared.env.clock;
        let until_ns = clock.now_ns().saturating_add(LIMIT.as_nanos() as u64);
        let mut done: Vec<Option<Result<Vec<u32>>>> = vec![None; keys.len()];
        loop {
            let left: Vec<usize> = (0..keys.len()).filter(|i| done[*i].is_none()).collect();
            let asked: Vec<&[u8]> = left.iter().map(|i| keys[*i]).collect();
            let over = clock.now_ns() >= until_ns;
            for (i, saved) in left.into_iter().zip(self.ask_to_save(&asked, disks).await) {
                let goes_on = saved.as_ref().is_err_and(|e| e.kind() == ErrorKind::Timeout);
                if !goes_on || over {
                    done[i] = Some(saved);
                }
            }
            if done.iter().all(Option::is_some) {
                return done.into_iter().flatten().collect();
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn ask_to_save(&self, keys: &[&[u8]], disks: &[Option<u32>]) -> Vec<Result<Vec<u32>>> {
        let request = Request::SaveToDisk { keys: key_bytes(keys), disks: disks.to_vec() };
        match self.call(request).await {
            Ok(Response::OnDisks(list)) if list.len() == keys.len() => list,
            Ok(other) => spread(keys.len(), self.pool.unexpected("SaveToDisk", &other)),
            Err(e) => spread(keys.len(), e),
        }
    }

    /// Saves what was put, on as many disks as the put asks for.
    pub(super) async fn save_what_was_put<T>(
        &self,
        keys: &[&[u8]],
        put: Vec<Result<T>>,
        disks: &[Option<u32>],
    ) -> Vec<Result<T>> {
        let stored: Vec<&[u8]> =
            keys.iter().zip(&put).filter(|(_, put)| put.is_ok()).map(|(key, _)| *key).collect();
        let mut saved = match stored.is_empty() {
            true => Vec::new(),
            false => self.save_to_disk(&stored, disks).await,
        }
        .into_iter();
        let after = |put: Result<T>| {
            let put = put?;
            match saved.next() {
                Some(Ok(ranks)) if ranks.len() >= disks.len() => Ok(put),
                Some(Ok(ranks)) => Err(on_fewer(&ranks, disks.len())),
                Some(Err(e)) => {
                    let text = format!("stored in memory, but not on disk: {}", e.message());
                    Err(e.with_message(text))
                }
                None => Err(Error::internal("a save without a result")),
            }
        };
        put.into_iter().map(after).collect()
    }
}

fn on_fewer(ranks: &[u32], wanted: usize) -> Error {
    let on = ranks.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
    Error::not_ready(format!(
        "stored in memory, and on {} of {wanted} disks, those of ranks {on}: no other disk takes it \
         now",
        ranks.len()
    ))
}
