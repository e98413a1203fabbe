//! Puts through device logs, from READY on: each is accepted, or its key was there already.

use super::{History, Ledger, LogicalTime, Put, PutId, Removal, SlotEpoch};
use crate::content::is_of;
use crate::trace::Trace;
use nkv_store::KeyId;

/// An owner's message about objects that it retired arrives this late at most, in milliseconds: a
/// TTL, and the network's delay.
pub(super) const LAG_MS: u64 = 10_000;

impl History {
    /// The put that wrote these bytes, and whose bytes were nowhere before.
    pub(super) fn fresh(&self, id: KeyId, bytes: &[u8]) -> Option<PutId> {
        let key = *self.by_id.get(&id)?;
        let whose = |p: &&PutId| {
            let put = self.put(**p);
            let fresh = put.spot.or(put.logged).is_none();
            fresh && put.len == bytes.len() && is_of(put.content, bytes)
        };
        self.keys[key].puts.iter().rev().find(whose).copied()
    }

    /// Records that no put wrote these bytes there.
    pub(super) fn of_no_put(
        &mut self,
        trace: &Trace,
        spot: SlotEpoch,
        (rank, id): (u32, KeyId),
        bytes: &[u8],
    ) {
        let Some(&key) = self.by_id.get(&id) else {
            let text = format!("rank {rank} holds an object of a key that nobody put: {id:?}");
            return self.wrong(trace, text);
        };
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

    /// A further replica of a put of which several were asked for: its bytes were READY before.
    pub(super) fn replica(&mut self, id: KeyId, bytes: &[u8]) -> Option<PutId> {
        let key = *self.by_id.get(&id)?;
        let of = |p: &&PutId| {
            let put = self.put(**p);
            put.several && put.len == bytes.len() && is_of(put.content, bytes)
        };
        let first = self.keys[key].puts.iter().find(of).copied()?;
        let put = self.put(first);
        put.spot.or(put.logged)?;
        let made_of = put.logged.or(put.made_of);
        let fresh =
            Put { spot: None, logged: None, made_of, settled: None, gone: None, ..put.clone() };
        let replica = self.puts.len() as PutId;
        self.puts.push(fresh);
        self.keys[key].puts.push(replica);
        self.replicas.entry(first).or_default().push(replica);
        Some(replica)
    }

    /// A replica of a put is served from now on: no removal of it was acknowledged before [I6], and
    /// no plan made another one on its rank.
    pub(super) fn is_served(&mut self, trace: &Trace, replica: PutId, spot: SlotEpoch) {
        let (first, now) = (self.put(replica).content, self.now);
        if let Some(at) = self.beside(replica, true) {
            let name = self.name(self.put(replica).key);
            let text =
                format!("put {first} of {name} has two replicas on a rank: {at:?}, {spot:?}");
            self.wrong(trace, text);
        }
        if first == replica {
            return;
        }
        let put = self.put(first);
        // Not of a rank that was no member any more when the removal was acknowledged.
        let here = |r: &&Removal| !r.late && r.members.contains(&spot.incarnation);
        let mut removals = self.keys[put.key].removals.values().filter(here);
        if removals.any(|r| r.was_done_at(now) && put.was_over_at(r.began) && r.met(put)) {
            let name = self.name(put.key);
            let text = format!(
                "[I6] put {first} of {name} was removed, and then a replica of it became readable \
                 at {spot:?}"
            );
            self.wrong(trace, text);
        }
    }

    /// Where the rank of a replica has another one. `by_plans`: both made by plans. A log may have
    /// one that the master does not list yet when it grants a plan at that rank; of the two the
    /// owner retires one when the plan is committed.
    fn beside(&self, replica: PutId, by_plans: bool) -> Option<SlotEpoch> {
        let put = self.put(replica);
        let member =
            |s: SlotEpoch| self.members.is_empty() || self.members.contains(&s.incarnation);
        let both = |other: &Put| put.logged.is_none() && other.logged.is_none();
        let beside =
            |other: &&Put| other.rank == put.rank && other.is_live() && (!by_plans || both(other));
        self.others(put).filter(beside).filter_map(|other| other.spot).find(|s| member(*s))
    }

    /// The other replicas of a put's content.
    pub(super) fn others<'a>(&'a self, put: &'a Put) -> impl Iterator<Item = &'a Put> {
        let all = std::iter::once(put.content)
            .chain(self.replicas.get(&put.content).into_iter().flatten().copied());
        all.map(|id| self.put(id)).filter(move |other| !std::ptr::eq(*other, put))
    }

    /// The put whose object, served before in this segment, was copied to `spot`.
    fn copied(&self, spot: SlotEpoch, id: KeyId, bytes: &[u8]) -> Option<PutId> {
        let key = *self.by_id.get(&id)?;
        let of = |p: &&PutId| {
            let put = self.put(**p);
            let here = put.spot.is_some_and(|s| s.incarnation == spot.incarnation);
            here && put.len == bytes.len() && is_of(put.content, bytes)
        };
        // One that is live, if there are several: a put may have its object by a plan as well.
        let mut all = self.keys[key].puts.iter().rev().filter(of);
        let live = all.clone().find(|p| self.put(**p).is_live());
        live.or_else(|| all.next()).copied()
    }

    /// True if it is READY in a log and neither accepted nor a duplicate yet.
    pub(super) fn is_unaccepted(&self, put: &Put) -> bool {
        put.logged.is_some_and(|spot| self.unaccepted.contains_key(&spot))
    }

    /// True if another object of its key may have satisfied a put that asked for the log.
    pub(super) fn has_another(&self, put: PutId, now_ms: u64) -> bool {
        let entry = self.put(put);
        let mut others = self.keys[entry.key].puts.iter().filter(|p| **p != put);
        entry.any && others.any(|p| self.was_known(self.put(*p), entry.began, now_ms))
    }

    /// True if the master may still list this object: it learns with a delay that the owner evicted
    /// it, died, or retired it for a removal that was not done by then.
    pub(super) fn was_known(&self, put: &Put, by: LogicalTime, now_ms: u64) -> bool {
        let lately = put.gone.is_none() || put.gone_ms + LAG_MS >= now_ms;
        let mut removals = self.keys[put.key].removals.values();
        let here = put.spot.map(|s| s.incarnation).unwrap_or_default();
        let gone = |r: &Removal| r.was_done_at(by) && put.was_over_at(r.began) && r.met(put);
        let removed = removals.any(|r| gone(r) && !r.came_back.contains(&here));
        put.spot.is_some() && lately && !removed
    }
}

impl Ledger {
    /// A claim was made.
    pub fn claimed(&self, rank: u32, at: u64, bytes: u64) {
        let describe = || format!("{bytes} bytes at {at} of the log of rank {rank}");
        self.trace.event("claimed", (rank, at, bytes), describe);
    }

    /// READY took at this spot of a log.
    pub fn settled(&self, spot: SlotEpoch, rank: u32, id: KeyId, bytes: &[u8]) {
        let mut history = self.lock();
        if self.is_besides(&history, id) {
            history.besides_copied.insert(spot, id);
            return;
        }
        if let Some(put) = history.copied(spot, id, bytes) {
            history.copies.insert(spot, put);
            return self.trace.event("copied", (put, spot), || format!("put {put} to {spot:?}"));
        }
        let fresh = history.fresh(id, bytes);
        let put = fresh.or_else(|| history.replica(id, bytes));
        let Some(put) = put else {
            return history.of_no_put(&self.trace, spot, (rank, id), bytes);
        };
        let now = history.tick();
        let entry = &mut history.puts[put as usize];
        (entry.logged, entry.settled, entry.rank) = (Some(spot), Some(now), rank);
        if entry.ended.is_some() {
            history.excuse(Some("a put over tcp that had failed was still on its way to a log"));
        }
        let below = |s: &&SlotEpoch| (s.incarnation, s.slot) == (spot.incarnation, spot.slot);
        if let Some(passed) = history.unaccepted.keys().find(below).copied() {
            let text = format!("[I14] {passed:?} was READY, is passed by the log and not accepted");
            history.wrong(&self.trace, text);
        }
        history.unaccepted.insert(spot, put);
        self.trace.event("settled", (put, spot), || format!("put {put} at {spot:?}"));
    }

    /// Its owner serves it from here on. `slots`: those of its log.
    pub fn accepted(&self, spot: SlotEpoch, slots: u32) {
        let mut history = self.lock();
        if let Some(id) = history.besides_copied.remove(&spot) {
            history.besides.insert(spot, id);
            return;
        }
        if let Some(put) = history.copies.remove(&spot) {
            // The original ends now, and nobody misses it.
            let entry = &mut history.puts[put as usize];
            let (before, gone) = (entry.spot.replace(spot), entry.gone);
            history.moved_from.extend(before);
            history.at.insert(spot, put);
            if gone.is_some() {
                let text = format!("[I6] put {put} had ended, and its copy at {spot:?} is served");
                history.wrong(&self.trace, text);
            }
            return self.trace.event("moved", (put, spot), || format!("put {put} to {spot:?}"));
        }
        let Some(put) = history.unaccepted.remove(&spot) else {
            let text = format!("[I15] {spot:?} is served, and was never settled");
            return history.wrong(&self.trace, text);
        };
        let twin = |p: &&PutId| {
            let put = history.put(**p);
            let here = put.spot.filter(|s| s.incarnation == spot.incarnation && s.slot < slots);
            here.is_some() && put.is_live()
        };
        let key = history.put(put).key;
        if let Some(twin) = history.keys[key].puts.iter().find(twin).copied() {
            let (name, at) = (history.name(key), history.put(twin).spot);
            let text = format!("[I15] {name} is served twice by one log: at {spot:?} and {at:?}");
            history.wrong(&self.trace, text);
        }
        history.is_served(&self.trace, put, spot);
        history.puts[put as usize].spot = Some(spot);
        history.at.insert(spot, put);
        self.trace.event("accepted", (put, spot), || format!("put {put} at {spot:?}"));
    }

    /// Its owner found it a duplicate.
    pub fn is_duplicate(&self, spot: SlotEpoch) {
        let mut history = self.lock();
        if history.besides_copied.remove(&spot).is_some() {
            return;
        }
        if let Some(put) = history.copies.remove(&spot) {
            // Or it is a late replica of a put of several, and the object here an extra one of it:
            // they have the same bytes.
            let (key, content) = (history.put(put).key, history.put(put).content);
            let late = |p: &PutId| {
                let other = history.put(*p);
                *p != put && other.several && other.content == content
            };
            let may_be_late = history.keys[key].puts.iter().any(late);
            if history.put(put).is_live() && !may_be_late {
                let text = format!("put {put} is live, and its copy at {spot:?} is void");
                history.wrong(&self.trace, text);
            }
            return self.trace.event("stale copy", (put, spot), || format!("put {put}"));
        }
        let Some(put) = history.unaccepted.remove(&spot) else {
            let text = format!("[I15] {spot:?} is one too many, and was never settled");
            return history.wrong(&self.trace, text);
        };
        let first = |p: &PutId| {
            let put = history.put(*p);
            put.is_live() && put.spot.is_some_and(|s| s.incarnation == spot.incarnation)
        };
        let (key, began) = (history.put(put).key, history.put(put).began);
        // A replica that comes after a removal of its put is not served, either.
        let mut removals = history.keys[key].removals.values();
        let removed = history.put(put).several && removals.any(|r| r.may_take(began));
        if !removed && !history.keys[key].puts.iter().any(first) {
            let name = history.name(key);
            let text = format!("[I15] {spot:?} of {name} is void, and nothing of its key is there");
            history.wrong(&self.trace, text);
        }
        self.trace.event("duplicate", (put, spot), || format!("put {put} at {spot:?}"));
    }

    /// Two replicas of one put that are readable on one rank. None is left once all is quiet.
    pub fn twice_on_a_rank(&self) -> Option<String> {
        let history = self.lock();
        let live = history.at.values().filter(|p| history.put(**p).is_live());
        live.copied().find_map(|p| {
            let (at, spot) = (history.beside(p, false)?, history.put(p).spot?);
            let name = history.name(history.put(p).key);
            Some(format!("{name} has two replicas on one rank: {at:?}, {spot:?}"))
        })
    }

    /// Puts to the log of an incarnation that were neither accepted nor duplicates.
    pub fn unaccepted_on(&self, incarnation: u64) -> usize {
        self.lock().unaccepted.keys().filter(|s| s.incarnation == incarnation).count()
    }
}
