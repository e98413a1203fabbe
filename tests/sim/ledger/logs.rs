//! Puts through device logs, from READY on: each is accepted, or its key was there already.

use super::{Book, Ledger, Put, PutId, Spot};
use crate::content::is_of;
use crate::trace::Trace;
use crate::truth::Cause;
use nkv::store::KeyId;

impl Book {
    /// The put that wrote these bytes; says so if there is none.
    pub(super) fn whose(
        &mut self,
        trace: &Trace,
        spot: Spot,
        (rank, id): (u32, KeyId),
        bytes: &[u8],
    ) -> Option<PutId> {
        let Some(&key) = self.by_id.get(&id) else {
            let text = format!("rank {rank} holds an object of a key that nobody put: {id:?}");
            self.wrong(trace, text);
            return None;
        };
        let whose = |p: &&PutId| {
            let put = self.put(**p);
            let fresh = put.spot.or(put.logged).is_none();
            fresh && put.len == bytes.len() && is_of(**p, bytes)
        };
        let put = self.keys[key].puts.iter().rev().find(whose).copied();
        if put.is_none() {
            let text = format!(
                "[I4] {} became readable on rank {rank}, slot {} at epoch {}, with {} bytes that are \
                 no put's",
                self.name(key),
                spot.slot,
                spot.epoch,
                bytes.len()
            );
            self.wrong(trace, text);
        }
        put
    }

    /// READY in a log, and nothing became of it yet.
    pub(super) fn is_unaccepted(&self, put: &Put) -> bool {
        put.logged.is_some_and(|spot| self.unaccepted.contains_key(&spot))
    }

    /// Another object of its key may have stood for a put that asked for the log. What its owner
    /// evicted, or took along when it died, the master may believe in for a while.
    pub(super) fn has_another(&self, put: PutId) -> bool {
        let entry = self.put(put);
        let stood = |other: &Put| match other.gone {
            None | Some((_, Cause::Evicted | Cause::Died)) => other.spot.is_some(),
            Some((gone, _)) => gone > entry.began,
        };
        let mut others = self.keys[entry.key].puts.iter().filter(|p| **p != put);
        entry.any && others.any(|p| stood(self.put(*p)))
    }
}

impl Ledger {
    /// A claim was made.
    pub fn claimed(&self, rank: u32, at: u64, bytes: u64) {
        let told = || format!("{bytes} bytes at {at} of the log of rank {rank}");
        self.trace.event("claimed", (rank, at, bytes), told);
    }

    /// READY took at this spot of a log.
    pub fn settled(&self, spot: Spot, rank: u32, id: KeyId, bytes: &[u8]) {
        let mut book = self.lock();
        let Some(put) = book.whose(&self.trace, spot, (rank, id), bytes) else { return };
        book.puts[put as usize].logged = Some(spot);
        let below = |s: &&Spot| (s.incarnation, s.slot) == (spot.incarnation, spot.slot);
        if let Some(passed) = book.unaccepted.keys().find(below).copied() {
            let text = format!("[I14] {passed:?} was READY, is passed by the log and not accepted");
            book.wrong(&self.trace, text);
        }
        book.unaccepted.insert(spot, put);
        self.trace.event("settled", (put, spot), || format!("put {put} at {spot:?}"));
    }

    /// Its owner serves it from here on. `slots`: those of its log.
    pub fn accepted(&self, spot: Spot, slots: u32) {
        let mut book = self.lock();
        let Some(put) = book.unaccepted.remove(&spot) else {
            let text = format!("[I15] {spot:?} is served, and was never settled");
            return book.wrong(&self.trace, text);
        };
        let twin = |p: &&PutId| {
            let put = book.put(**p);
            let here = put.spot.filter(|s| s.incarnation == spot.incarnation && s.slot < slots);
            here.is_some() && put.is_live()
        };
        let key = book.put(put).key;
        if let Some(twin) = book.keys[key].puts.iter().find(twin).copied() {
            let (name, at) = (book.name(key), book.put(twin).spot);
            let text = format!("[I15] {name} is served twice by one log: at {spot:?} and {at:?}");
            book.wrong(&self.trace, text);
        }
        book.puts[put as usize].spot = Some(spot);
        book.at.insert(spot, put);
        self.trace.event("accepted", (put, spot), || format!("put {put} at {spot:?}"));
    }

    /// Its owner says that the key was there.
    pub fn is_duplicate(&self, spot: Spot) {
        let mut book = self.lock();
        let Some(put) = book.unaccepted.remove(&spot) else {
            let text = format!("[I15] {spot:?} is one too many, and was never settled");
            return book.wrong(&self.trace, text);
        };
        let first = |p: &PutId| {
            let put = book.put(*p);
            put.is_live() && put.spot.is_some_and(|s| s.incarnation == spot.incarnation)
        };
        let key = book.put(put).key;
        if !book.keys[key].puts.iter().any(first) {
            let name = book.name(key);
            let text = format!("[I15] {spot:?} of {name} is void, and nothing of its key is there");
            book.wrong(&self.trace, text);
        }
        self.trace.event("duplicate", (put, spot), || format!("put {put} at {spot:?}"));
    }

    /// Puts to the log of an incarnation that nothing became of.
    pub fn unaccepted_on(&self, incarnation: u64) -> usize {
        self.lock().unaccepted.keys().filter(|s| s.incarnation == incarnation).count()
    }
}
