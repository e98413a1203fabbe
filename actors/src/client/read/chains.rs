//! Reads of objects at known locations: header, payload, header again, in one batch per owner;
//! validated by [I7]. A chain that was too slow re-reads the headers strictly.

use super::too_small;
use crate::client::batch::in_one_request;
use crate::client::peer::{Peer, TOUCH_BATCH};
use crate::client::{Client, one, spread};
use crate::error::{Error, ErrorKind, Result};
use crate::message::{ObjMeta, Touch, Via};
use bytes::Bytes;
use nkv_store::object::{Expect, Reading, Unreadable, chain_in_time};
use std::collections::BTreeMap;

/// Objects in one batch of verbs.
const MAX_READS_PER_POST: usize = 256;
/// Payload bytes in one batch of verbs: through RDMA devices a chain is valid without a strict
/// re-read only if it ends within 0.8 Q.
const MAX_BYTES_PER_POST: u64 = 16 << 20;

/// Why a read has no valid result.
pub(in crate::client) enum Miss {
    /// Retired, reused or removed: it may lie elsewhere by now.
    Changed,
    /// Its owner cannot be reached: the object may be elsewhere by now, removed, or have another
    /// replica.
    Unreached(Error),
    /// An error that a retry does not fix.
    Fatal(Error),
}

struct Slot<'a> {
    index: usize,
    meta: &'a ObjMeta,
    /// None: it counts for nothing.
    via: Option<Via>,
    dst: &'a mut [u8],
    reading: Reading,
}

/// Where an object is, and by which way it was found; None: the read counts for nothing.
type FoundBy<'a> = (&'a ObjMeta, Option<Via>);

impl Client {
    /// Reads an object into a buffer of the size that its location states.
    pub(in crate::client) async fn read_whole(
        &self,
        meta: &ObjMeta,
        via: Option<Via>,
    ) -> std::result::Result<Bytes, Miss> {
        let peer = self.peer(meta.at.incarnation).await.map_err(unreached)?;
        // Checked before the buffer is allocated: the size may not exceed the owner's segment.
        peer.check(meta).map_err(Miss::Fatal)?;
        let mut room = self.shared.buffers.take(meta.object.bytes_total as usize);
        let read = self.read_all(&mut [((meta, via), room.bytes_mut())]).await;
        read.into_iter().next().unwrap_or(Err(Miss::Changed)).map(|_| room.into_bytes())
    }

    /// Reads an object by its location. NotFound if it is no longer there: it may have ended, or
    /// its owner may have copied it elsewhere, where its key leads.
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/example.rs")); }
    /// # use nkv_actors::*;
    /// # example::on_one_rank("read-into", async |cache| {
    /// cache.put(b"block/1", b"kv bytes", &PutOptions::default()).await?;
    /// let location = cache.get_location(b"block/1").await?;
    /// let in_memory = location.in_memory().expect("put just now");
    /// let mut buffer = vec![0; in_memory.object.bytes_total as usize];
    /// cache.read_into(in_memory, &mut buffer).await?;
    /// assert_eq!(buffer, b"kv bytes");
    /// # Ok(())
    /// # });
    /// ```
    pub async fn read_into(&self, meta: &ObjMeta, dst: &mut [u8]) -> Result<usize> {
        one(self.read_many_into(&mut [(meta, dst)]).await)
    }

    /// Reads many by location. Touches go from last to first, so the first object is evicted last.
    pub async fn read_many_into(&self, items: &mut [(&ObjMeta, &mut [u8])]) -> Vec<Result<usize>> {
        if let Err(e) = self.check_usable() {
            return spread(items.len(), e);
        }
        let metas: Vec<&ObjMeta> = items.iter().map(|(m, _)| *m).collect();
        let mut located: Vec<_> =
            items.iter_mut().map(|(meta, dst)| ((*meta, Some(Via::Cache)), &mut **dst)).collect();
        let found = self.read_all(&mut located).await;
        let error = |miss: Miss, m: &ObjMeta| match miss {
            Miss::Fatal(e) | Miss::Unreached(e) => e,
            Miss::Changed => Error::not_found(format!(
                "the object {:?} is no longer in slot {} of rank {}",
                m.key, m.at.slot, m.rank
            )),
        };
        found.into_iter().zip(metas).map(|(r, m)| r.map_err(|miss| error(miss, m))).collect()
    }

    pub(in crate::client) async fn read_all(
        &self,
        items: &mut [(FoundBy<'_>, &mut [u8])],
    ) -> Vec<std::result::Result<usize, Miss>> {
        let mut results: Vec<_> = items.iter().map(|_| Err(Miss::Changed)).collect();
        let mut groups: BTreeMap<u64, Vec<Slot<'_>>> = BTreeMap::new();
        let mut of_peers = Vec::new();
        for (index, ((meta, via), dst)) in items.iter_mut().enumerate() {
            if (dst.len() as u64) < meta.object.bytes_total {
                results[index] = Err(Miss::Fatal(too_small(meta.object.bytes_total, dst.len())));
                continue;
            }
            let dst = &mut dst[..meta.object.bytes_total as usize];
            let slot = Slot { index, meta, via: *via, dst, reading: reading_of(meta) };
            groups.entry(meta.at.incarnation).or_default().push(slot);
        }
        for (incarnation, slots) in groups {
            match self.peer(incarnation).await {
                Ok(peer) => of_peers.push((peer, (slots, Vec::new()))),
                Err(e) => slots.iter().for_each(|s| results[s.index] = Err(unreached(e.clone()))),
            }
        }
        self.at_owners(&mut of_peers, |peer, (slots, read)| *read = self.read_group(peer, slots));
        for (peer, (slots, read)) in of_peers {
            for (s, read) in slots.iter().zip(read).rev() {
                if let (Ok(_), Some(via)) = (&read, s.via) {
                    let (slot, epoch) = (s.meta.at.slot, s.meta.at.epoch);
                    let bytes = s.meta.object.bytes_total;
                    peer.note(Some(via), Touch { slot, epoch, bytes, read: true });
                    self.shared.reads.via(via);
                }
                results[s.index] = read;
            }
            peer.flush_touches(TOUCH_BATCH);
        }
        results
    }

    /// Reads objects of one owner; one result for each, in order.
    fn read_group(
        &self,
        peer: &Peer,
        slots: &mut [Slot<'_>],
    ) -> Vec<std::result::Result<usize, Miss>> {
        let (mut rest, mut results) = (slots, Vec::new());
        while !rest.is_empty() {
            let sizes = rest.iter().map(|s| s.meta.object.bytes_total);
            let n = in_one_request(sizes, MAX_READS_PER_POST, MAX_BYTES_PER_POST);
            let (now, later) = rest.split_at_mut(n);
            rest = later;
            let outcome = self.read_chain(peer, now);
            for s in now.iter() {
                let read = match &outcome {
                    Ok(()) => judge(peer, s),
                    Err(e) => Err(unreached(e.clone().at_rank(peer.rank))),
                };
                let counter = match &read {
                    Ok(_) => &self.shared.reads.accepted,
                    Err(Miss::Fatal(_) | Miss::Unreached(_)) => &self.shared.reads.failed,
                    Err(Miss::Changed) => &self.shared.reads.changed,
                };
                counter.one();
                results.push(read);
            }
        }
        results
    }

    /// One chain: header, payload, header of each; re-reads the headers when the chain was slow.
    fn read_chain(&self, peer: &Peer, slots: &mut [Slot<'_>]) -> Result<()> {
        let t0 = self.shared.env.clock.now_ns();
        let mut ops: Vec<_> = slots.iter_mut().flat_map(|s| s.reading.chain(&mut *s.dst)).collect();
        peer.verbs.post(0, &mut ops)?;
        drop(ops);
        let now = self.shared.env.clock.now_ns();
        self.shared.times.reads.record(now.saturating_sub(t0));
        if peer.verbs.reads_in_order() || chain_in_time(t0, now, peer.layout.quarantine_ns()) {
            return Ok(());
        }
        self.shared.reads.strict.one();
        let mut again: Vec<_> = slots.iter_mut().map(|s| s.reading.again()).collect();
        peer.verbs.post(0, &mut again)?;
        Ok(())
    }
}

/// An owner could not be read.
fn unreached(e: Error) -> Miss {
    match e.kind() {
        ErrorKind::Disconnected => Miss::Unreached(e),
        _ => Miss::Fatal(e),
    }
}

/// The read of the object at a location.
fn reading_of(meta: &ObjMeta) -> Reading {
    let expect = Expect {
        key: Some(meta.key),
        epoch: Some(meta.at.epoch),
        payload_base: meta.object.payload_off(),
        bytes_total: meta.object.bytes_total,
    };
    Reading::new(meta.header_off, expect)
}

/// Accepts a read if and only if the header was valid before [I2] and identical after [I7].
fn judge(peer: &Peer, s: &Slot<'_>) -> std::result::Result<usize, Miss> {
    match s.reading.judge(&peer.layout.payloads()) {
        Ok(()) => Ok(s.meta.object.bytes_total as usize),
        Err(Unreadable::Gone | Unreadable::OtherKey | Unreadable::BadExtent) => Err(Miss::Changed),
        Err(Unreadable::NotReady) => Err(Miss::Fatal(Error::not_ready(format!(
            "slot {} of rank {} is still being written",
            s.meta.at.slot, peer.rank
        )))),
    }
}
