//! Replicas for objects that are read often. Owners say which those are. A hot object gets one more
//! replica at a time, up to a bound, and loses them when no owner has called it warm for a while.
//! They are evicted before all others, and a repair makes them like any that is missing. What is
//! hot is not recorded: a later master keeps such replicas until they are evicted.

use super::Master;
use super::entry::Entry;
use crate::message::{KeyBytes, MAX_REPLICAS, OftenRead, ReplicaSet, SegmentId, SlotRef};
use nkv_store::KeyId;
use std::collections::BTreeMap;

/// Hot objects at most; further ones get no replicas.
const MOST_HOT: usize = 4096;
/// How long a further replica is given to take its share of the reads.
const NEXT_MS: u64 = 2_000;
/// How long an object is hot after the last report.
const COLD_MS: u64 = 10_000;

#[derive(Debug)]
struct Hot {
    /// Replicas besides those that were asked for.
    more: u8,
    next_ms: u64,
    until_ms: u64,
}

/// See the file's first paragraph.
#[derive(Debug, Default)]
pub(super) struct HotObjects(BTreeMap<KeyId, Hot>);

impl HotObjects {
    /// Somebody says how many replicas an object should have: it has no others for now.
    pub(super) fn forget(&mut self, id: &KeyId) {
        self.0.remove(id);
    }

    fn more(&self, id: &KeyId) -> u8 {
        self.0.get(id).map_or(0, |hot| hot.more)
    }
}

impl Master {
    /// How many replicas an object should have now, and how many besides.
    pub(super) fn wanted(&self, id: &KeyId, e: &Entry) -> (usize, usize) {
        match e.set() {
            // What is made of an object without a set is no replica of it.
            ReplicaSet::NONE => (1, 0),
            set => {
                let more = self.hot.more(id).min(MAX_REPLICAS.saturating_sub(set.wanted));
                (set.wanted.into(), more.into())
            }
        }
    }

    /// An owner has counted reads of these.
    pub(super) fn often_read(&mut self, segment_id: SegmentId, list: Vec<OftenRead>) {
        let incarnation = self.allocators.get(&segment_id).map(|b| b.info.incarnation);
        let Some(incarnation) = incarnation.filter(|_| self.check_quorum().is_ok()) else {
            return;
        };
        for OftenRead { slot, epoch, hot } in list {
            let at = SlotRef { incarnation, slot, epoch };
            let Some(id) = self.listed_at(segment_id, &at) else { continue };
            let here = self.objects.get(&id).filter(|e| e.is_live() && e.is_at(at));
            if let Some(key) = here.map(|e| e.key.clone()) {
                self.is_warm(id, KeyBytes::shared(key), hot);
            }
        }
    }

    fn is_warm(&mut self, id: KeyId, key: KeyBytes, wants_more: bool) {
        let now = self.now_ms();
        let most = self.durable.hot_replicas.min(MAX_REPLICAS);
        let full = self.hot.0.len() >= MOST_HOT;
        if let Some(hot) = self.hot.0.get_mut(&id) {
            hot.until_ms = now + COLD_MS;
        }
        let (more, next_ms) = self.hot.0.get(&id).map_or((0, 0), |hot| (hot.more, hot.next_ms));
        let asked_for = self.objects.get(&id).map_or(0, |e| e.set().wanted.max(1));
        let enough = asked_for.saturating_add(more) >= most;
        if !wants_more || enough || now < next_ms || more == 0 && full {
            return;
        }
        // Gives it a set. Where it has one this would retire what it has for being hot.
        let has_set = self.objects.get(&id).is_some_and(|e| e.set() != ReplicaSet::NONE);
        if !has_set && self.replicate(&[key], asked_for).iter().any(Result::is_err) {
            return;
        }
        let hot = Hot { more: more + 1, next_ms: now + NEXT_MS, until_ms: now + COLD_MS };
        self.hot.0.insert(id, hot);
        self.note_short(id);
    }

    /// Takes the further replicas of what is hot no more; called at every tick.
    pub(super) fn cool(&mut self) {
        if self.hot.0.is_empty()
            || self.check_all_reported().is_err()
            || self.check_quorum().is_err()
        {
            return;
        }
        let now = self.now_ms();
        let cold: Vec<KeyId> =
            self.hot.0.extract_if(.., |_, hot| hot.until_ms <= now).map(|(id, _)| id).collect();
        for id in cold {
            let listed = self.objects.get(&id).map(|e| (e.key.clone(), e.set()));
            if let Some((key, set)) = listed.filter(|(_, set)| *set != ReplicaSet::NONE) {
                if self.objects.get(&id).is_none_or(|e| e.made().1 == 0) {
                    continue;
                }
                // One whose ranks cannot be reached now is looked at again.
                if self.replicate(&[KeyBytes::shared(key)], set.wanted).iter().any(Result::is_err) {
                    let again = Hot { more: 0, next_ms: 0, until_ms: now + COLD_MS };
                    self.hot.0.insert(id, again);
                }
            }
        }
    }

    /// Whether an object has, or is to have, more replicas than were asked for.
    pub(super) fn is_hot(&self, id: &KeyId) -> bool {
        self.hot.more(id) > 0
    }
}
