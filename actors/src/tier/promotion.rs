//! From disk to memory. A promotion reads an object and puts it as any other client would: into the
//! log or the heap of its rank, with the usual eviction, and without replacing what is there.

use super::jobs::{Buffer, Job};
use super::{DiskTier, caught};
use crate::client::{Blocking, PutOptions};
use crate::error::{Error, ErrorKind, Result};
use crate::striping::{MANIFEST_BYTES, is_stripe};
use nkv_ssd::{LoadError, Payload};
use nkv_store::{Key, OwnMemory};
use smallvec::SmallVec;

/// Promotions that are in progress at a time.
pub(super) const THREADS: usize = 4;

/// Puts what was read: where it is wanted, else on the disk's own rank, else on any. No rank's log
/// is waited for while another has room.
fn put(
    client: &Blocking,
    key: &Key,
    bytes: &[u8],
    (rank, layout): (Option<u32>, u64),
) -> Result<()> {
    let opts = PutOptions::default().page_bytes(u32::try_from(layout).unwrap_or_default());
    let (key, home) = (key.as_bytes(), client.client().home());
    // By a plan: the master must know of manifests and stripes.
    let of_striped = is_stripe(key) || bytes.len() == MANIFEST_BYTES;
    let opts = opts.restores().device_alloc(of_striped.then_some(false));
    let mut ranks: SmallVec<[Option<u32>; 3]> =
        [rank, home].into_iter().filter(Option::is_some).collect();
    ranks.dedup();
    for rank in &ranks {
        if let Some(done) = client.put_by_log(key, bytes, &opts.clone().preferred_rank(*rank)) {
            return done;
        }
    }
    let first = ranks.first().copied().flatten();
    match client.put(key, bytes, &opts.clone().preferred_rank(first)) {
        // Waited for once already, where there is no other rank.
        Err(e) if e.kind() == ErrorKind::OutOfMemory && !client.client().is_alone() => {
            client.put(key, bytes, &opts)
        }
        done => done,
    }
}

impl DiskTier {
    /// One of the threads.
    pub(super) fn promote_all(&self, client: &Blocking) {
        let mut buffer = Buffer::default();
        while let Some(Job { key, rank, since_ns }) = self.promotions.next() {
            let done = caught(|| self.promote_one(&key, rank, client, &mut buffer));
            let done = done.and_then(|done| done);
            buffer.let_go();
            match &done {
                Ok(bytes) => {
                    self.counters.promote_hits.one();
                    self.counters.promoted_bytes.add(*bytes as usize);
                    let took_ns = self.clock.now_ns().saturating_sub(since_ns);
                    self.counters.promote_times.record(took_ns);
                }
                Err(error) => {
                    self.counters.promote_fail.one();
                    tracing::debug!(%error, %key, "a promotion from disk failed");
                }
            }
            self.promotions.over(&key, &done);
        }
    }

    /// Returns the bytes of the object.
    fn promote_one(
        &self,
        key: &Key,
        rank: Option<u32>,
        client: &Blocking,
        buffer: &mut Buffer,
    ) -> Result<u64> {
        let none = || Error::not_found(format!("key {key} is not on disk any more"));
        // On its way to disk.
        if !self.feed.wait_for_key(key) {
            return Err(Error::not_ready(format!("key {key} is still being written to disk")));
        }
        let found = self.engine.find(key).filter(|_| !self.removals.covers(key));
        let found = found.ok_or_else(none)?;
        let memory = buffer.of(found.len)?;
        let own = OwnMemory::of(memory);
        let into = Payload { memory: &own, offset: 0, len: found.len };
        let loaded = self.engine.load(key, into).map_err(|error| match error {
            LoadError::NotFound => none(),
            LoadError::Corrupt(what) => {
                tracing::warn!(%key, %what, "an object is damaged on disk; it was removed");
                Error::not_found(format!("key {key} was damaged on disk, and removed: {what}"))
            }
            // The disk did not give it, and it was dropped: a miss.
            other if self.engine.find(key).is_none() => {
                tracing::warn!(%key, error = %other, "an object cannot be read from disk");
                Error::not_found(format!("key {key} could not be read from disk: {other}"))
            }
            other => Error::not_ready(format!("key {key} cannot be read from disk: {other}")),
        })?;
        if self.removals.covers(key) {
            return Err(none());
        }
        let bytes = memory.bytes(found.len as usize);
        put(client, key, bytes, (rank, loaded.layout)).map(|()| found.len)
    }
}
