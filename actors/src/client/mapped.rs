//! Reads of objects in mapped segments: found by the segments' indexes and copied by this thread
//! with plain loads. No message and no wait. It allocates only for the buffer that a `get` returns,
//! and where a large copy is cut into stripes for several threads. What is not found here is looked
//! up elsewhere.

use super::peer::Peer;
use super::peer::TOUCH_BATCH;
use super::read::too_small;
use super::{Client, Shared, check_keys};
use crate::error::{Error, Result};
use crate::message::{Touch, Via};
use crate::striping::MANIFEST_BYTES;
use bytes::Bytes;
use nkv_store::reader::{Hit, Reader};
use nkv_store::{KeyId, fork};
use nkv_transport::verbs::Fill;
use std::sync::Arc;
use std::sync::atomic::Ordering;
const MANY_TOUCHES: usize = 1024;
/// Keys that are looked up together.
const BATCH: usize = 128;

/// Mapped segments in the order of a key's lookup: most keys are at the rank that their hash
/// selects, or where this process put them.
fn in_order<'a>(
    mapped: &'a [Arc<Peer>],
    shared: &Shared,
    key: KeyId,
) -> impl Iterator<Item = &'a Arc<Peer>> + use<'a> {
    let from = match mapped.len() {
        0 | 1 => 0,
        _ => {
            let owner = shared.first_searched(key.hash);
            mapped.partition_point(|p| p.rank < owner)
        }
    };
    mapped[from..].iter().chain(&mapped[..from])
}

impl Client {
    /// Disconnected if this handle cannot be used: in a child made by fork, or after its close.
    #[inline]
    pub(crate) fn check_usable(&self) -> Result<()> {
        if !self.shared.made.is_here() {
            return Err(Error::disconnected(fork::MESSAGE));
        }
        if self.shared.closed.load(Ordering::Relaxed) {
            Err(Error::handle_closed())
        } else {
            Ok(())
        }
    }

    /// Reads an object of a mapped segment; returns its length. None: not found this way.
    pub(crate) fn read_now(&self, key: &[u8], dst: &mut [u8]) -> Option<Result<usize>> {
        self.with_found(key, |peer, hit| self.copy_now(peer, hit, dst))
    }

    /// As [`Client::read_now`], into a buffer of its own.
    pub(crate) fn get_now(&self, key: &[u8]) -> Option<Result<Bytes>> {
        self.with_found(key, |peer, hit| {
            let mut room = self.shared.buffers.take(hit.header.bytes_total as usize);
            let done = self.copy_now(peer, hit, room.bytes_mut())?;
            Some(done.map(|_| room.into_bytes()))
        })
    }

    /// Tries each mapped segment whose index has the key.
    #[inline]
    fn with_found<T>(
        &self,
        key: &[u8],
        mut read: impl FnMut(&Peer, &Hit) -> Option<Result<T>>,
    ) -> Option<Result<T>> {
        if let Err(e) = self.check_usable().and_then(|()| check_keys(&[key])) {
            return Some(Err(e));
        }
        let mapped = self.shared.peers.mapped();
        let id = self.shared.keys.now().id(key);
        for peer in in_order(&mapped, &self.shared, id) {
            let Some(reader) = &peer.reader else { continue };
            let Some(hit) = reader.find(id) else { continue };
            // Perhaps a manifest, whose stripes must be read then.
            if hit.header.bytes_total == MANIFEST_BYTES as u64 {
                return None;
            }
            reader.prefetch(&hit);
            if let Some(done) = read(peer, &hit) {
                return Some(done);
            }
        }
        None
    }

    /// As [`Client::read_now`], into several buffers, one after another.
    pub(super) fn read_parts_now(
        &self,
        key: &[u8],
        parts: &mut [impl Fill],
    ) -> Option<Result<usize>> {
        let room = parts.iter_mut().map(Fill::room).sum();
        self.with_found(key, |peer, hit| {
            self.copied(peer, hit, room, |reader| reader.copy_parts(hit, parts))
        })
    }

    /// Copies what was found; None if it changed meanwhile.
    fn copy_now(&self, peer: &Peer, hit: &Hit, dst: &mut [u8]) -> Option<Result<usize>> {
        let bytes = hit.header.bytes_total as usize;
        self.copied(peer, hit, dst.len(), |reader| reader.copy(hit, &mut dst[..bytes]))
    }

    /// Copies what was found into a place of `room` bytes, if that is enough.
    fn copied(
        &self,
        peer: &Peer,
        hit: &Hit,
        room: usize,
        copy: impl FnOnce(&Reader) -> bool,
    ) -> Option<Result<usize>> {
        let bytes = hit.header.bytes_total;
        if bytes > room as u64 {
            return Some(Err(too_small(bytes, room)));
        }
        let believed = peer.reader.as_ref().is_some_and(copy);
        // Checked after the copy: the segment of an owner that is gone must not be used.
        if !believed || !peer.is_alive() {
            self.shared.reads.changed.one();
            return None;
        }
        let touch = Touch { slot: hit.slot, epoch: hit.epoch(), bytes, read: true };
        let noted = peer.note(Some(Via::Index), touch);
        self.shared.reads.by_loads.one();
        if noted >= MANY_TOUCHES {
            peer.flush_touches(MANY_TOUCHES);
        }
        Some(Ok(bytes as usize))
    }

    /// Looks up many keys in the mapped segments: per key the owner and the hit, if any.
    pub(super) fn find_mapped(&self, ids: &[KeyId]) -> Vec<Option<(Arc<Peer>, Hit)>> {
        let mapped = self.shared.peers.mapped();
        let mut all = Vec::with_capacity(ids.len());
        let mut found = [None; BATCH];
        for ids in ids.chunks(BATCH) {
            let found = &mut found[..ids.len()];
            let first = all.len();
            all.resize_with(first + ids.len(), || None);
            for peer in mapped.iter().filter(|p| p.is_alive()) {
                let Some(reader) = &peer.reader else { continue };
                found.fill(None);
                reader.find_many(ids, found);
                for (known, hit) in all[first..].iter_mut().zip(found.iter()) {
                    if let (None, Some(hit)) = (&known, hit) {
                        *known = Some((peer.clone(), *hit));
                    }
                }
            }
        }
        all
    }

    /// Looks up keys in mapped segments only. Returns the length of the run of keys found from the
    /// first one; `found` gets the result per key. A key that is not found may still be at another
    /// rank, or missing from a full index.
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/example.rs")); }
    /// # use nkv_actors::*;
    /// # example::on_one_rank("lookup", async |cache| {
    /// cache.put(b"block/1", b"kv bytes", &PutOptions::default()).await?;
    /// let mut found = [false; 2];
    /// let run = cache.lookup_mapped(&[b"block/1", b"block/2"], &mut found)?;
    /// assert!(run <= 1 && !found[1]);
    /// # Ok(())
    /// # });
    /// ```
    pub fn lookup_mapped(&self, keys: &[&[u8]], found: &mut [bool]) -> Result<usize> {
        self.check_usable()?;
        check_keys(keys)?;
        if keys.len() != found.len() {
            return Err(Error::invalid(format!(
                "{} keys and room for {} answers",
                keys.len(),
                found.len()
            )));
        }
        let (mapped, hasher) = (self.shared.peers.mapped(), self.shared.keys.now());
        let (mut ids, mut hits) = ([KeyId { hash: 0, check: 0 }; BATCH], [None; BATCH]);
        for (keys, found) in keys.chunks(BATCH).zip(found.chunks_mut(BATCH)) {
            let (ids, hits) = (&mut ids[..keys.len()], &mut hits[..keys.len()]);
            ids.iter_mut().zip(keys).for_each(|(id, key)| *id = hasher.id(key));
            hits.fill(None);
            for peer in mapped.iter().filter(|p| p.is_alive()) {
                if let Some(reader) = &peer.reader {
                    reader.find_many(ids, hits);
                }
            }
            found.iter_mut().zip(hits.iter()).for_each(|(found, hit)| *found = hit.is_some());
        }
        Ok(found.iter().take_while(|found| **found).count())
    }

    /// Reads those objects of a batch that are in mapped segments; None for the others.
    pub(super) fn read_many_now(
        &self,
        items: &mut [(&[u8], &mut [u8])],
    ) -> Vec<Option<Result<usize>>> {
        let ids = self.ids_of(items.iter().map(|(key, _)| *key));
        let found = self.find_mapped(&ids);
        let mut results = vec![None; items.len()];
        let mut read: Option<Arc<Peer>> = None;
        // From last to first, so that the first of a batch counts as the most recently used.
        let all = items.iter_mut().zip(&mut results).zip(found).rev();
        for (((_, dst), result), found) in all {
            let Some((peer, hit)) = found else { continue };
            // As in `with_found`.
            if hit.header.bytes_total == MANIFEST_BYTES as u64 {
                continue;
            }
            *result = self.copy_now(&peer, &hit, dst);
            if read.as_ref().is_none_or(|last| !Arc::ptr_eq(last, &peer)) {
                read.iter().for_each(|last| last.flush_touches(TOUCH_BATCH));
                read = Some(peer);
            }
        }
        read.iter().for_each(|last| last.flush_touches(TOUCH_BATCH));
        results
    }
}
