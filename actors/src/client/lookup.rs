//! Whether and where keys exist: from the indexes where that needs no message, else from the
//! master. Locations merely seen before are not used here, since no read follows that would check
//! their headers.

use super::locations;
use super::{Client, about_keys, check_keys, key_bytes, one, spread};
use crate::client::producer::AttachTo;
use crate::error::{Error, Result};
use crate::message::{Existence, Location, Promote, Request, Response};
use std::collections::BTreeSet;

/// Keys of a prefix that are looked up at once.
const STEP: usize = 128;
/// Rounds of indexes, then master, until a prefix counts as ended: one of them may have a key that
/// the other does not have yet.
const TURNS: usize = 4;

impl Client {
    /// Whether keys exist; one result per key, in order.
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/example.rs")); }
    /// # use nkv_actors::{message::Existence, *};
    /// # example::on_one_rank("exists", async |cache| {
    /// cache.put(b"block/1", b"kv bytes", &PutOptions::default()).await?;
    /// let found = cache.exists(&[b"block/1", b"block/2"]).await?;
    /// assert_eq!(found, [Existence::Ready, Existence::Absent]);
    /// # Ok(())
    /// # });
    /// ```
    pub async fn exists(&self, keys: &[&[u8]]) -> Result<Vec<Existence>> {
        self.exists_and(keys, Promote::No).await
    }

    /// As [`Client::exists`]; and what only a disk has is brought back into memory, preferably on
    /// this host: a get that follows soon after finds it there. With `wait` that is done before the
    /// answer, which then is `Ready`; else the answer is `OnDisk`, and it goes on behind. What
    /// cannot be brought back exists all the same.
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/example.rs")); }
    /// # use nkv_actors::{message::Existence, *};
    /// # example::on_one_rank("prefetch", async |cache| {
    /// cache.put(b"block/1", b"kv bytes", &PutOptions::default()).await?;
    /// assert_eq!(cache.prefetch(&[b"block/1"], false).await?, [Existence::Ready]);
    /// # Ok(())
    /// # });
    /// ```
    pub async fn prefetch(&self, keys: &[&[u8]], wait: bool) -> Result<Vec<Existence>> {
        let rank = self.home();
        self.exists_and(keys, if wait { Promote::Wait { rank } } else { Promote::Begin { rank } })
            .await
    }

    async fn exists_and(&self, keys: &[&[u8]], promote: Promote) -> Result<Vec<Existence>> {
        self.check_usable()?;
        check_keys(keys)?;
        let known = self.find_by_index(keys);
        let mut found = vec![Existence::Ready; keys.len()];
        let rest: Vec<usize> = (0..keys.len()).filter(|i| known[*i].is_none()).collect();
        if rest.is_empty() {
            return Ok(found);
        }
        let unknown: Vec<&[u8]> = rest.iter().map(|i| keys[*i]).collect();
        match self.call(Request::Exists { keys: key_bytes(&unknown), promote }).await? {
            Response::Existence { list, owners } if list.len() == unknown.len() => {
                rest.into_iter().zip(list).for_each(|(i, e)| found[i] = e);
                self.attach_to(owners);
                Ok(found)
            }
            other => Err(self.pool.unexpected("Exists", &other)),
        }
    }

    /// Locations of the longest run of readable keys from the first one, in memory or on disk.
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/example.rs")); }
    /// # use nkv_actors::*;
    /// # example::on_one_rank("prefix", async |cache| {
    /// cache.put(b"block/1", b"kv bytes", &PutOptions::default()).await?;
    /// let run = cache.match_prefix(&[b"block/1", b"block/2", b"block/3"]).await?;
    /// assert_eq!(run.len(), 1);
    /// # Ok(())
    /// # });
    /// ```
    pub async fn match_prefix(&self, keys: &[&[u8]]) -> Result<Vec<Location>> {
        self.check_usable()?;
        check_keys(keys)?;
        let mut run = Vec::new();
        for _ in 0..TURNS {
            while run.len() < keys.len() {
                let step = &keys[run.len()..keys.len().min(run.len() + STEP)];
                let whole = run.len() + step.len();
                let found = self.find_by_index(step).into_iter().map_while(|meta| meta);
                run.extend(found.map(Location::Memory));
                if run.len() < whole {
                    break;
                }
            }
            if run.len() == keys.len() {
                break;
            }
            let rest = &keys[run.len()..];
            match self.call(Request::MatchPrefix(key_bytes(rest))).await {
                Ok(Response::Prefix(list)) if list.len() <= rest.len() => {
                    if list.is_empty() {
                        break;
                    }
                    let in_memory = list.iter().filter_map(Location::in_memory);
                    self.attach_to(in_memory.map(|m| m.at.incarnation).collect());
                    run.extend(list);
                }
                Ok(other) => return Err(self.pool.unexpected("MatchPrefix", &other)),
                // A shorter run is a correct answer, too.
                Err(e) if locations::unknown(e.kind()) && !run.is_empty() => break,
                Err(e) => return Err(e),
            }
        }
        Ok(run)
    }

    /// The location of a key, in memory or on disk; of a striped object that of its manifest.
    /// NotFound if it is not there.
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/example.rs")); }
    /// # use nkv_actors::*;
    /// # example::on_one_rank("location", async |cache| {
    /// cache.put(b"block/1", b"kv bytes", &PutOptions::default()).await?;
    /// let location = cache.get_location(b"block/1").await?;
    /// assert_eq!((location.rank(), location.bytes_total()), (0, 8));
    /// # Ok(())
    /// # });
    /// ```
    pub async fn get_location(&self, key: &[u8]) -> Result<Location> {
        self.locate_one(key).await.map_err(|e| e.about(key))
    }

    /// Bytes of the value of a key. NotFound if it is not there.
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/example.rs")); }
    /// # use nkv_actors::*;
    /// # example::on_one_rank("size", async |cache| {
    /// cache.put(b"block/1", b"kv bytes", &PutOptions::default()).await?;
    /// assert_eq!(cache.get_size(b"block/1").await?, 8);
    /// # Ok(())
    /// # });
    /// ```
    pub async fn get_size(&self, key: &[u8]) -> Result<u64> {
        let stored = self.get_location(key).await?.bytes_total();
        let manifest = self.manifest_of(key, stored).await.map_err(|e| e.about(key))?;
        Ok(manifest.map_or(stored, |manifest| manifest.bytes_total))
    }

    /// Has keys have so many replicas, 8 at most: the node of a replica makes those that are
    /// missing, soon after this returns, as far as other ranks have room. Of those that are too
    /// many some are given up. [`Client::get_replicas`] says how many there are.
    ///
    /// # Errors
    /// For each key: `NotFound` if it is not in memory.
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/example.rs")); }
    /// # use nkv_actors::*;
    /// # example::on_one_rank("replicate", async |cache| {
    /// cache.put_replicas(&[(b"block/1", b"kv bytes")], &PutOptions::default()).await;
    /// assert_eq!(cache.replicate(&[b"block/1"], 3).await, [Ok(())]);
    /// # Ok(())
    /// # });
    /// ```
    pub async fn replicate(&self, keys: &[&[u8]], wanted: u8) -> Vec<Result<()>> {
        if let Err(e) = self.check_usable().and_then(|()| check_keys(keys)) {
            return spread(keys.len(), e);
        }
        // What a log has just taken is listed once the logs were asked.
        let (asked, promote) = (key_bytes(keys), Promote::No);
        if let Err(e) = self.call(Request::Exists { keys: asked, promote }).await {
            return spread(keys.len(), e);
        }
        let answer = self.call(Request::Replicate { keys: key_bytes(keys), wanted }).await;
        let mut done = self.done("Replicate", answer, keys.len());
        let Ok(list) = self.ask_places(keys).await else {
            return about_keys(done, keys.iter().copied());
        };
        for ((done, key), found) in done.iter_mut().zip(keys).zip(list) {
            let bytes = found.ok().and_then(|list| Some(list.first()?.bytes_total()));
            if let (Ok(()), Some(bytes)) = (&done, bytes) {
                *done = self.replicate_stripes((key, bytes), wanted).await;
            }
        }
        about_keys(done, keys.iter().copied())
    }

    /// Every place where the master knows an object: one for each replica that can be read now.
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/example.rs")); }
    /// # use nkv_actors::*;
    /// # example::on_one_rank("get-replicas", async |cache| {
    /// cache.put_replicas(&[(b"block/1", b"kv bytes")], &PutOptions::default()).await;
    /// assert_eq!(cache.get_replicas(b"block/1").await?.len(), 1);
    /// # Ok(())
    /// # });
    /// ```
    pub async fn get_replicas(&self, key: &[u8]) -> Result<Vec<Location>> {
        self.check_usable()?;
        check_keys(&[key])?;
        let list = self.ask_places(&[key]).await.and_then(one);
        list.map_err(|e| e.about(key))
    }

    /// Of each key the places that the master knows.
    async fn ask_places(&self, keys: &[&[u8]]) -> Result<Vec<Result<Vec<Location>>>> {
        let (asked, gone) = (key_bytes(keys), Vec::new());
        let request = Request::GetLocation { keys: asked, gone, promote: Promote::No };
        match self.call(request).await? {
            Response::Locations(list) if list.len() == keys.len() => Ok(list),
            other => Err(self.pool.unexpected("GetLocation", &other)),
        }
    }

    /// How many replicas of an object can be read now; of a striped object, of the stripe that has
    /// the fewest.
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/example.rs")); }
    /// # use nkv_actors::*;
    /// # example::on_one_rank("count-replicas", async |cache| {
    /// cache.put_replicas(&[(b"block/1", b"kv bytes")], &PutOptions::default()).await;
    /// assert_eq!(cache.count_replicas(b"block/1").await?, 1);
    /// # Ok(())
    /// # });
    /// ```
    pub async fn count_replicas(&self, key: &[u8]) -> Result<usize> {
        let list = self.get_replicas(key).await?;
        let stored = list.first().map_or(0, Location::bytes_total);
        let Some(manifest) = self.manifest_of(key, stored).await? else { return Ok(list.len()) };
        let stripes = manifest.keys();
        let stripes: Vec<&[u8]> = stripes.iter().map(|k| &k[..]).collect();
        let of_stripes = self.ask_places(&stripes).await?;
        let each = of_stripes.iter().map(|found| found.as_ref().map_or(0, Vec::len));
        Ok(each.min().unwrap_or_default().min(list.len()))
    }

    async fn locate_one(&self, key: &[u8]) -> Result<Location> {
        self.check_usable()?;
        check_keys(&[key])?;
        if let Some(Some(meta)) = self.find_by_index(&[key]).pop() {
            return Ok(Location::Memory(meta));
        }
        let (keys, gone, promote) = (key_bytes(&[key]), Vec::new(), Promote::No);
        match self.call(Request::GetLocation { keys, gone, promote }).await {
            Ok(Response::Locations(list)) => one(list)?
                .into_iter()
                .next()
                .ok_or_else(|| Error::internal("the master named no place for a key that it has")),
            Ok(other) => Err(self.pool.unexpected("GetLocation", &other)),
            // The master does not answer: return the last known location, if any.
            Err(e) if locations::unknown(e.kind()) => {
                self.shared.locations.known(key).map(Location::Memory).ok_or(e)
            }
            Err(e) => Err(e),
        }
    }

    /// Attaches, in the background, to those of these owners that are on this host: the next lookup
    /// uses their indexes first.
    fn attach_to(&self, owners: Vec<u64>) {
        let unattached: BTreeSet<u64> =
            owners.into_iter().filter(|o| self.shared.peers.get(*o).is_none()).collect();
        if !unattached.is_empty()
            && let Some(Err(error)) = self.notify_producer(AttachTo(unattached))
        {
            tracing::debug!(%error, "owners not attached to");
        }
    }
}
