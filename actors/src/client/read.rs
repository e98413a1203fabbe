//! Reading: an object is found, and read where it is (`chains.rs`). A read that finds the object
//! changed looks it up again, never twice at one location, until the master answers NotFound.
//! Slowness alone is never NotFound.

mod chains;

use super::buffers::ReadBuffer;
use super::fetch::Fetched;
use super::find::{Found, Located, SearchState, moves_on, not_kept, shown};
use super::{Client, about_keys, filled, one, spread};
use crate::error::{Error, ErrorKind, Result};
use crate::message::{MAX_PLACES, ObjMeta, Via};
use crate::striping::is_stripe;
use bytes::Bytes;
pub(super) use chains::Miss;
use nkv_transport::verbs::Fill;

impl Client {
    /// Bytes of an object, in a buffer of their own. After the drop of its last clone, a large
    /// buffer is reused by a later get: see `ClientConfig::get_pool_bytes`.
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/example.rs")); }
    /// # use nkv_actors::*;
    /// # example::on_one_rank("get", async |cache| {
    /// cache.put(b"block/1", b"kv bytes", &PutOptions::default()).await?;
    /// assert_eq!(cache.get(b"block/1").await?, &b"kv bytes"[..]);
    /// let error = cache.get(b"block/2").await.unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::NotFound);
    /// # Ok(())
    /// # });
    /// ```
    pub async fn get(&self, key: &[u8]) -> Result<Bytes> {
        match self.get_now(key) {
            Some(done) => done,
            None => self.get_further(key).await,
        }
    }

    /// Gets an object that the mapped indexes do not resolve.
    pub(super) async fn get_further(&self, key: &[u8]) -> Result<Bytes> {
        let whole = match self.get_stored(key).await {
            Ok(stored) => self.whole(key, stored).await,
            Err(e) => Err(e),
        };
        whole.map_err(|e| e.about(key))
    }

    /// What is stored under a key: of a striped object its manifest.
    #[tracing::instrument(level = "debug", name = "get", skip_all, fields(key = shown(key)))]
    pub(super) async fn get_stored(&self, key: &[u8]) -> Result<Bytes> {
        let mut tried = SearchState::default();
        match self.fetch(key) {
            Fetched::Read(bytes, at) => {
                self.was_read((key, at), bytes.len(), || bytes.clone());
                return Ok(bytes);
            }
            Fetched::Absent => tried.searched = true,
            Fetched::Unknown => {}
        }
        let mut on_disk = false;
        for _ in 0..=MAX_PLACES {
            on_disk = false;
            let located = one(self.locate(&[key], std::slice::from_ref(&tried), true).await);
            let located = match located.inspect_err(|e| self.count_lost(&tried, e))? {
                Found::At(located) => located,
                // It was brought back and evicted again meanwhile.
                Found::OnDisk(_) => {
                    on_disk = true;
                    continue;
                }
            };
            match self.read_whole(&located.meta, Some(located.via)).await {
                Ok(bytes) => {
                    self.was_read((key, located.meta.at), bytes.len(), || bytes.clone());
                    return Ok(bytes);
                }
                Err(miss) => tried = self.try_further(key, located, tried, miss)?,
            }
        }
        Err(if on_disk { not_kept(key) } else { moves_on(key) })
    }

    /// What is stored under a key, and its bytes per page: for a copy of it, or to see what it is.
    /// It counts for nothing and is reported to nobody.
    pub(crate) async fn stored_uncounted(&self, key: &[u8]) -> Result<(Bytes, u32)> {
        let mut tried = SearchState::default();
        for _ in 0..=MAX_PLACES {
            let located = one(self.locate(&[key], std::slice::from_ref(&tried), true).await);
            let located = located?.at(key)?;
            match self.read_whole(&located.meta, None).await {
                Ok(bytes) => return Ok((bytes, located.meta.object.page_bytes)),
                Err(miss) => tried = self.try_further(key, located, tried, miss)?,
            }
        }
        Err(moves_on(key))
    }

    /// What to do after a read that missed: the state to search on with, or the final error.
    fn try_further(
        &self,
        key: &[u8],
        located: Located,
        mut tried: SearchState,
        miss: Miss,
    ) -> Result<SearchState> {
        let Located { meta, via, others } = located;
        match miss {
            Miss::Fatal(e) => return Err(e),
            Miss::Changed if tried.gone.len() + 1 >= MAX_PLACES => return Err(moves_on(key)),
            Miss::Changed => tried.gone.push(meta.at),
            Miss::Unreached(e) if via == Via::Master && others.is_empty() => return Err(e),
            Miss::Unreached(_) => tried.unreached = true,
        }
        (tried.next, tried.searched) = (others, false);
        self.shared.locations.forget(key);
        Ok(tried)
    }

    /// Counts an object that had changed and was found nowhere else.
    fn count_lost(&self, tried: &SearchState, e: &Error) {
        if e.kind() == ErrorKind::NotFound && !tried.gone.is_empty() {
            self.shared.reads.lost.one();
        }
    }

    /// Reads an object into `dst`; returns its length. InvalidArgument if `dst` is too small.
    /// Beyond that length, and after an error, the contents of `dst` are undefined.
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/example.rs")); }
    /// # use nkv_actors::*;
    /// # example::on_one_rank("get-into", async |cache| {
    /// cache.put(b"block/1", b"kv bytes", &PutOptions::default()).await?;
    /// let mut buffer = [0; 64];
    /// let n = cache.get_into(b"block/1", &mut buffer).await?;
    /// assert_eq!(&buffer[..n], b"kv bytes");
    /// # Ok(())
    /// # });
    /// ```
    pub async fn get_into(&self, key: &[u8], dst: &mut [u8]) -> Result<usize> {
        match self.read_now(key, dst) {
            Some(done) => done,
            None => one(self.read_further(&mut [(key, dst)]).await),
        }
    }

    /// Bytes of many objects; one result per key, in order. Those that are not in mapped memory
    /// take a request for their sizes, then one to each owner.
    pub async fn get_many(&self, keys: &[&[u8]]) -> Vec<Result<Bytes>> {
        let found: Vec<_> = keys.iter().map(|key| self.get_now(key)).collect();
        let rest = keys.iter().zip(&found).filter(|(_, found)| found.is_none());
        let rest: Vec<&[u8]> = rest.map(|(key, _)| *key).collect();
        let read = if rest.is_empty() { Vec::new() } else { self.get_sized(&rest).await };
        filled(found, read)
    }

    async fn get_sized(&self, keys: &[&[u8]]) -> Vec<Result<Bytes>> {
        let tried = vec![SearchState::default(); keys.len()];
        let mut sized = Vec::new();
        for located in self.locate(keys, &tried, false).await {
            sized.push(match located {
                Ok(Found::At(located)) => self.room_for(&located.meta).await,
                // Read further below, which brings it back.
                Ok(Found::OnDisk(bytes)) => self.room_on_disk(bytes),
                Err(e) => Err(e),
            });
        }
        let places = keys.iter().zip(&mut sized).filter_map(|(k, r)| Some((*k, r.as_mut().ok()?)));
        let mut items: Vec<_> = places.map(|(key, room)| (key, room.bytes_mut())).collect();
        let mut read = self.read_further(&mut items).await.into_iter();
        let mut all = Vec::new();
        for (key, room) in keys.iter().zip(sized) {
            let room = match room {
                Ok(room) => room,
                // Its owner cannot be reached: another replica may be, or it lies elsewhere by now.
                Err(e) if matches!(e.kind(), ErrorKind::Disconnected | ErrorKind::Timeout) => {
                    all.push(self.get_further(key).await);
                    continue;
                }
                Err(e) => {
                    all.push(Err(e.about(key)));
                    continue;
                }
            };
            let read = read.next().unwrap_or_else(|| Err(moves_on(key)));
            let bytes = read.map(|n| room.into_bytes().slice(..n));
            // Another object of this key, and larger: it was removed and put again meanwhile.
            let larger = |e: &Error| e.kind() == ErrorKind::InvalidArgument;
            all.push(if bytes.as_ref().is_err_and(larger) {
                self.get_further(key).await
            } else {
                bytes
            });
        }
        all
    }

    /// A buffer for an object that is on disk.
    fn room_on_disk(&self, bytes: u64) -> Result<ReadBuffer> {
        // Checked before the buffer is allocated: it has to fit some rank's memory.
        let view = self.shared.view();
        let most = view.ranks.iter().map(|(info, _)| info.layout.payloads().len).max();
        if most.is_some_and(|most| bytes > most) {
            let text = format!("an object of {bytes} bytes on disk, which fits no rank's memory");
            return Err(Error::invalid(text));
        }
        Ok(self.shared.buffers.take(bytes as usize))
    }

    /// A buffer for the object at a location.
    async fn room_for(&self, meta: &ObjMeta) -> Result<ReadBuffer> {
        // Checked before the buffer is allocated: the size may not exceed the owner's segment.
        self.peer(meta.at.incarnation).await?.check(meta)?;
        Ok(self.shared.buffers.take(meta.object.bytes_total as usize))
    }

    /// As [`Client::get_into_parts`] for many objects; one result per key, in order. What is not in
    /// mapped memory is read as by [`Client::get_many`].
    pub async fn get_many_into_parts<P: Fill>(
        &self,
        items: &mut [(&[u8], &mut [P])],
    ) -> Vec<Result<usize>> {
        if items.iter_mut().all(|(_, p)| p.len() == 1 && p[0].host().is_some()) {
            let wholes = items
                .iter_mut()
                .flat_map(|(key, p)| p.iter_mut().filter_map(|whole| Some((*key, whole.host()?))));
            return self.get_many_into(&mut wholes.collect::<Vec<_>>()).await;
        }
        let now = |(key, parts): &mut (&[u8], &mut [P])| self.read_parts_now(key, parts);
        let mut done: Vec<_> = items.iter_mut().map(now).collect();
        let rest: Vec<usize> = (0..items.len()).filter(|i| done[*i].is_none()).collect();
        if !rest.is_empty() {
            let keys: Vec<&[u8]> = rest.iter().map(|i| items[*i].0).collect();
            for (i, bytes) in rest.into_iter().zip(self.get_sized(&keys).await) {
                done[i] = Some(bytes.and_then(|bytes| scatter(&bytes, items[i].1)));
            }
        }
        filled(done, Vec::new())
    }

    /// Reads an object into several buffers, one after another; returns its length. InvalidArgument
    /// if they are too small together. From mapped memory it is copied once, else through a buffer.
    pub async fn get_into_parts<P: Fill>(&self, key: &[u8], parts: &mut [P]) -> Result<usize> {
        match self.read_parts_now(key, parts) {
            Some(done) => done,
            None => scatter(&self.get_further(key).await?, parts),
        }
    }

    /// Reads many; one result per item, in order. What is undefined is as in [`Client::get_into`].
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/example.rs")); }
    /// # use nkv_actors::*;
    /// # example::on_one_rank("get-many", async |cache| {
    /// cache.put(b"block/1", b"first", &PutOptions::default()).await?;
    /// let (mut one, mut two) = ([0; 64], [0; 64]);
    /// let mut items: [(&[u8], &mut [u8]); 2] = [(b"block/1", &mut one), (b"block/2", &mut two)];
    /// let read = cache.get_many_into(&mut items).await;
    /// assert!(read[0] == Ok(5) && read[1].is_err());
    /// # Ok(())
    /// # });
    /// ```
    pub async fn get_many_into(&self, items: &mut [(&[u8], &mut [u8])]) -> Vec<Result<usize>> {
        if let Err(e) = self.check_usable() {
            return spread(items.len(), e);
        }
        let done = self.read_many_now(items);
        let mut rest = undone(items, &done);
        let read = if rest.is_empty() { Vec::new() } else { self.read_further(&mut rest).await };
        filled(done, read)
    }

    /// Reads objects that the mapped indexes do not resolve.
    pub(super) async fn read_further(
        &self,
        items: &mut [(&[u8], &mut [u8])],
    ) -> Vec<Result<usize>> {
        let keys: Vec<&[u8]> = items.iter().map(|(k, _)| *k).collect();
        let mut read = self.read_located(&keys, items).await;
        self.join_all(items, &mut read).await;
        about_keys(read, keys.iter().copied())
    }

    /// Reads what is stored under keys: of striped objects their manifests.
    pub(super) async fn read_stored(&self, items: &mut [(&[u8], &mut [u8])]) -> Vec<Result<usize>> {
        let done = self.read_many_now(items);
        let mut rest = undone(items, &done);
        let keys: Vec<&[u8]> = rest.iter().map(|(k, _)| *k).collect();
        let read = match keys.is_empty() {
            true => Vec::new(),
            false => self.read_located(&keys, &mut rest).await,
        };
        filled(done, read)
    }

    #[tracing::instrument(level = "debug", name = "get_many", skip_all, fields(keys = keys.len()))]
    async fn read_located(
        &self,
        keys: &[&[u8]],
        items: &mut [(&[u8], &mut [u8])],
    ) -> Vec<Result<usize>> {
        // Stripes are where their object's put chose, which the master knows.
        let fetched = match keys.iter().all(|key| is_stripe(key)) {
            true => keys.iter().map(|_| Fetched::Absent).collect(),
            false => self.fetch_many(keys, items),
        };
        let mut results = vec![None; items.len()];
        let mut todo = Vec::new();
        let places = items.iter_mut().map(|(_, dst)| &mut **dst).enumerate();
        for ((place, dst), fetched) in places.zip(fetched) {
            let searched = matches!(fetched, Fetched::Absent);
            match fetched {
                Fetched::Read(n, at) => {
                    self.was_read((keys[place], at), n, || Bytes::copy_from_slice(&dst[..n]));
                    results[place] = Some(Ok(n));
                }
                _ => todo.push(((place, dst), SearchState { searched, ..SearchState::default() })),
            }
        }
        if todo.is_empty() {
            return filled(results, Vec::new());
        }
        let mut rounds = 0;
        while rounds <= MAX_PLACES {
            let wanted: Vec<&[u8]> = todo.iter().map(|((i, _), _)| keys[*i]).collect();
            let (places, tried): (Vec<_>, Vec<_>) = todo.into_iter().unzip();
            let located = self.locate(&wanted, &tried, true).await;
            let (mut found, mut on_disk) = (Vec::new(), Vec::new());
            for ((place, tried), r) in places.into_iter().zip(tried).zip(located) {
                match r {
                    Ok(Found::At(located)) => found.push((place, located, tried)),
                    // Its turn comes when those before it are read.
                    Ok(Found::OnDisk(_)) => on_disk.push((place, tried)),
                    Err(e) => {
                        self.count_lost(&tried, &e);
                        results[place.0] = Some(Err(e));
                    }
                }
            }
            let mut reads: Vec<_> = found
                .iter_mut()
                .map(|((_, dst), at, _)| ((&at.meta, Some(at.via)), &mut **dst))
                .collect();
            let read = self.read_all(&mut reads).await;
            // Each round brings back some: only those that read nothing count.
            let progress = !on_disk.is_empty() && read.iter().any(std::result::Result::is_ok);
            rounds += usize::from(!progress);
            todo = on_disk;
            for (((i, dst), located, tried), r) in found.into_iter().zip(read) {
                let at = located.meta.at;
                match r.map_err(|miss| self.try_further(keys[i], located, tried, miss)) {
                    Ok(n) => {
                        self.was_read((keys[i], at), n, || Bytes::copy_from_slice(&dst[..n]));
                        results[i] = Some(Ok(n));
                    }
                    Err(Ok(tried)) => todo.push(((i, dst), tried)),
                    Err(Err(e)) => results[i] = Some(Err(e)),
                }
            }
            if todo.is_empty() {
                break;
            }
        }
        let left = |((i, _), tried): &((usize, &mut [u8]), SearchState)| {
            Err(if tried.gone.is_empty() { not_kept(keys[*i]) } else { moves_on(keys[*i]) })
        };
        filled(results, todo.iter().map(left).collect())
    }
}

/// The items of a batch that have no result yet.
fn undone<'b, 'k>(
    items: &'b mut [(&'k [u8], &mut [u8])],
    done: &[Option<Result<usize>>],
) -> Vec<(&'k [u8], &'b mut [u8])> {
    let open = items.iter_mut().zip(done).filter(|(_, done)| done.is_none());
    open.map(|((key, dst), _)| (*key, &mut **dst)).collect()
}

/// Copies an object's bytes into buffers, one after another; returns how many there are.
pub(super) fn scatter(bytes: &[u8], parts: &mut [impl Fill]) -> Result<usize> {
    let room = parts.iter_mut().map(Fill::room).sum();
    if bytes.len() > room {
        return Err(too_small(bytes.len() as u64, room));
    }
    let mut left = bytes;
    for part in parts {
        let (now, later) = left.split_at(left.len().min(part.room()));
        part.fill(now)?;
        left = later;
    }
    Ok(bytes.len())
}

pub(super) fn too_small(object: u64, buffer: usize) -> Error {
    Error::invalid(format!(
        "the object has {object} bytes, the buffer {buffer}; get_size returns the size"
    ))
}
