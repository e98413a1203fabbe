//! First reads over tcp in one round trip: the owner's end looks the key up and reads it, where an
//! RDMA device would need a round trip for the index, one for the header and one for the payload.
//! What is not read this way is located and read as over any transport.

use super::batch::in_one_request;
use super::find::meta_of;
use super::peer::{Peer, TOUCH_BATCH};
use super::{Client, check_keys};
use crate::message::{SlotRef, Touch, Via};
use bytes::Bytes;
use nkv_store::KeyId;
use nkv_transport::verbs::{Find, Found, Kind};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Bytes that a get asks for: as many as the last object of that owner had, within these bounds. An
/// object with more takes another round trip.
const LEAST_GUESS: u64 = 16 << 10;
const MOST_GUESS: u64 = 1 << 20;
/// Payload bytes of one request.
const BYTES_PER_REQUEST: u64 = 16 << 20;
/// Keys of one request.
const KEYS_PER_REQUEST: usize = 256;

/// What a first read brought.
#[derive(Debug)]
pub(super) enum Fetched<T> {
    /// The value, and where it was.
    Read(T, SlotRef),
    /// The index of the rank that the key's hash selects does not have it.
    Absent,
    /// Not tried, or it changed, or is larger than what was asked for.
    Unknown,
}

/// Bytes to ask for: after a larger object few, since all of them would be sent in vain.
fn guess(peer: &Peer) -> usize {
    match peer.usual_bytes() {
        usual if usual > MOST_GUESS => LEAST_GUESS as usize,
        usual => usual.max(LEAST_GUESS) as usize,
    }
}

/// What of a batch is asked of one owner.
#[derive(Default)]
struct Wanted<'a> {
    finds: Vec<Find<'a>>,
    /// Of each its position in the caller's batch.
    indexes: Vec<usize>,
    /// How many of them, first to last, the owner's end has answered.
    answered: usize,
}

impl Client {
    /// The owner whose end looks up keys of this hash, if a handle reaches it by tcp.
    fn looks_up(&self, key: &[u8], id: KeyId) -> Option<Arc<Peer>> {
        // A read by a known location is one round trip, too.
        let known = || self.shared.locations.known(key).is_some();
        let peer = self.shared.peers.remote(self.shared.likely_rank(id.hash)?)?;
        let now = self.shared.env.clock.now_ns();
        (peer.kind() == Kind::Tcp && !peer.is_unresponsive(now) && !known()).then_some(peer)
    }

    /// Reads an object of unknown size.
    pub(super) fn fetch(&self, key: &[u8]) -> Fetched<Bytes> {
        let id = self.shared.keys.now().id(key);
        let Some(peer) = self.looks_up(key, id).filter(|_| check_keys(&[key]).is_ok()) else {
            return Fetched::Unknown;
        };
        let mut room = self.shared.buffers.take(guess(&peer));
        let mut find = Find::new(id, room.bytes_mut());
        if !self.fetch_from(&peer, std::slice::from_mut(&mut find)) {
            return Fetched::Unknown;
        }
        match self.fetched(&peer, key, &find) {
            // A small value does not keep a large buffer.
            Fetched::Read(n, at) if n < room.bytes_mut().len() / 2 => {
                Fetched::Read(Bytes::copy_from_slice(&room.bytes_mut()[..n]), at)
            }
            Fetched::Read(n, at) => Fetched::Read(room.into_bytes().slice(..n), at),
            Fetched::Absent => Fetched::Absent,
            Fetched::Unknown => Fetched::Unknown,
        }
    }

    /// Reads many objects; those that are at several owners, from all of them at once.
    pub(super) fn fetch_many(
        &self,
        keys: &[&[u8]],
        items: &mut [(&[u8], &mut [u8])],
    ) -> Vec<Fetched<usize>> {
        let ids = self.ids_of(keys.iter().copied());
        let mut results: Vec<_> = keys.iter().map(|_| Fetched::Unknown).collect();
        let mut by_peer: BTreeMap<u64, (Arc<Peer>, Wanted<'_>)> = BTreeMap::new();
        for (i, (_, dst)) in items.iter_mut().enumerate() {
            let valid = check_keys(&[keys[i]]).is_ok();
            if let Some(peer) = self.looks_up(keys[i], ids[i]).filter(|_| valid) {
                // What is asked for is sent, also if there is less or nothing.
                let asked = dst.len().min(guess(&peer));
                let of_peer = by_peer.entry(peer.incarnation);
                let (_, wanted) = of_peer.or_insert_with(|| (peer, Wanted::default()));
                wanted.finds.push(Find::new(ids[i], &mut dst[..asked]));
                wanted.indexes.push(i);
            }
        }
        let mut all: Vec<_> = by_peer.into_values().collect();
        self.at_owners(&mut all, |peer, wanted| self.fetch_in_parts(peer, wanted));
        for (peer, Wanted { finds, indexes, answered }) in &all {
            // The first object is touched last: it is evicted last.
            for (find, i) in finds.iter().zip(indexes).take(*answered).rev() {
                results[*i] = self.fetched(peer, keys[*i], find);
            }
            peer.flush_touches(TOUCH_BATCH);
        }
        results
    }

    fn fetch_in_parts(&self, peer: &Arc<Peer>, wanted: &mut Wanted<'_>) {
        let mut rest = wanted.finds.as_mut_slice();
        while !rest.is_empty() {
            let sizes = rest.iter().map(|find| find.payload.len() as u64);
            let n = in_one_request(sizes, KEYS_PER_REQUEST, BYTES_PER_REQUEST);
            let (part, later) = rest.split_at_mut(n);
            rest = later;
            if !self.fetch_from(peer, part) {
                return;
            }
            wanted.answered += n;
        }
    }

    /// One request; false if it failed.
    fn fetch_from(&self, peer: &Arc<Peer>, finds: &mut [Find<'_>]) -> bool {
        let began_ns = self.shared.env.clock.now_ns();
        let done = peer.run_blocking(|| peer.verbs.find(finds));
        let now_ns = self.shared.env.clock.now_ns();
        match done {
            Some(Ok(())) => self.shared.times.reads.record(now_ns.saturating_sub(began_ns)),
            // The master knows the locations.
            Some(Err(_)) => peer.mark_unresponsive(now_ns),
            None => {}
        }
        matches!(done, Some(Ok(())))
    }

    /// Judges what a lookup brought, and counts the read.
    fn fetched(&self, peer: &Arc<Peer>, key: &[u8], find: &Find<'_>) -> Fetched<usize> {
        if find.found == Found::Nothing {
            return Fetched::Absent;
        }
        let Some(hit) = find.hit(&peer.layout).filter(|_| peer.is_alive()) else {
            return Fetched::Unknown;
        };
        let meta = meta_of(peer, find.key, &hit);
        self.shared.locations.keep_found(key, &meta);
        let bytes = hit.header.bytes_total;
        if bytes > find.payload.len() as u64 {
            return Fetched::Unknown;
        }
        let touch = Touch { slot: hit.slot, epoch: hit.epoch(), bytes, read: true };
        let _ = peer.note(Some(Via::Index), touch);
        self.shared.reads.via(Via::Index);
        self.shared.reads.accepted.one();
        Fetched::Read(bytes as usize, meta.at)
    }
}
