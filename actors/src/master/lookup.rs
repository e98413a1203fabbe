//! GetLocation, MatchPrefix, Exists: reads of the index. Objects on a segment whose link is down
//! are not returned.

use super::Master;
use super::allocator::SegmentAllocator;
use super::entry::{Entry, State};
use super::known::Known;
use crate::error::{Error, Result};
use crate::message::{
    Existence, KeyBytes, Location, ObjMeta, RankState, Response, SegmentId, SlotRef,
};
use hashbrown::HashSet;
use nkv_store::Key;
use std::collections::BTreeMap;

/// Owners listed in one answer to Exists, at most.
const MAX_OWNERS: usize = 16;

/// A segment with the control address of its node, for error texts.
pub(super) fn named(
    allocators: &BTreeMap<SegmentId, SegmentAllocator>,
    segment_id: SegmentId,
) -> String {
    match allocators.get(&segment_id) {
        Some(allocator) => format!("{segment_id} at {}", allocator.info.control),
        None => segment_id.to_string(),
    }
}

impl Master {
    pub(super) fn reachable(&self, segment_id: SegmentId) -> bool {
        matches!(
            self.durable.members.state(segment_id),
            Some(RankState::Alive | RankState::Draining)
        )
    }

    pub(super) fn readable(&self, key: &[u8]) -> Option<&Entry> {
        self.entry(key).ok().flatten().filter(|e| self.is_readable(e))
    }

    pub(super) fn locate(&self, key: &[u8], gone: &HashSet<&SlotRef>) -> Result<Vec<ObjMeta>> {
        let shown = || Key::new(key).map_or_else(|e| e.to_string(), |k| k.to_string());
        Key::check(key)?;
        match self.entry(key)? {
            None => {
                self.check_all_reported()?;
                Err(Error::not_found(format!("no key {}", shown())))
            }
            Some(e) => match e.state() {
                State::Removing => Err(Error::not_found(format!("key {} is being removed", e.key))),
                State::Writing(_) => Err(Error::not_ready(format!(
                    "key {} is being written to {}",
                    e.key,
                    e.segment_id()
                ))),
                State::Live if !self.is_readable(e) => {
                    let whom = named(&self.allocators, e.segment_id());
                    Err(Error::disconnected(format!(
                        "key {} lies on {whom}, whose link is down",
                        e.key
                    )))
                }
                // The reader found it gone, and the owner has not reported it as retired: the
                // reader must ask again.
                State::Live if e.replicas().all(|r| gone.contains(&r.at)) => {
                    Err(Error::not_ready(format!(
                        "key {} is listed in slot {} of {}, where a reader did not find it any \
                         more; its owner has not reported that yet: ask again",
                        e.key,
                        e.at().slot,
                        e.segment_id()
                    )))
                }
                State::Live => Ok(self.metas(e).collect()),
            },
        }
    }

    /// `gone`: locations where the reader found no valid object.
    pub(super) fn locations(
        &mut self,
        keys: &[KeyBytes],
        gone: &[SlotRef],
    ) -> Vec<Result<Vec<ObjMeta>>> {
        let gone = gone.iter().collect();
        let found: Vec<_> = keys.iter().map(|k| self.locate(k, &gone)).collect();
        let hits = found.iter().filter(|r| r.is_ok()).count() as u64;
        self.counters.lookup_hits += hits;
        self.counters.lookup_misses += found.len() as u64 - hits;
        found
    }

    pub(super) fn match_prefix(&mut self, keys: &[KeyBytes], known: &Known) -> Response {
        if let Err(e) = keys.iter().try_for_each(|key| Key::check(key)) {
            return Response::Failed(e.into());
        }
        let mut run = Vec::new();
        for key in keys {
            let listed = self.readable(key).and_then(|e| self.metas(e).next());
            let id = self.id_of(key);
            let meta = listed.or_else(|| known.besides.get(&id).cloned()).map(Location::Memory);
            let Some(location) = meta.or_else(|| known.disk_meta(&id).map(Location::Disk)) else {
                break;
            };
            run.push(location);
        }
        self.counters.lookup_hits += run.len() as u64;
        self.counters.lookup_misses += u64::from(run.len() < keys.len());
        Response::Prefix(run)
    }

    pub(super) fn exists(&mut self, keys: &[KeyBytes], known: &Known) -> Response {
        if let Err(e) = keys.iter().try_for_each(|key| Key::check(key)) {
            return Response::Failed(e.into());
        }
        let mut owners = Vec::new();
        let one = |key: &KeyBytes| {
            let id = self.id_of(key);
            let beside = || known.besides.get(&id).map(|meta| meta.at.incarnation);
            let there = self.readable(key).map(|e| e.at().incarnation).or_else(beside);
            if let Some(owner) = there {
                if owners.len() < MAX_OWNERS && !owners.contains(&owner) {
                    owners.push(owner);
                }
                return Existence::Ready;
            }
            if known.disk_meta(&id).is_some() {
                return Existence::OnDisk;
            }
            match self.entry(key).map(|e| e.map(Entry::state)) {
                Ok(Some(State::Writing(_))) => Existence::Writing,
                Ok(Some(State::Live)) => Existence::Unreachable,
                _ => Existence::Absent,
            }
        };
        let found: Vec<_> = keys.iter().map(one).collect();
        if found.contains(&Existence::Absent)
            && let Err(e) = self.check_all_reported()
        {
            return Response::Failed(e);
        }
        let hit = |e: &&Existence| matches!(e, Existence::Ready | Existence::OnDisk);
        let hits = found.iter().filter(hit).count() as u64;
        self.counters.lookup_hits += hits;
        self.counters.lookup_misses += found.len() as u64 - hits;
        Response::Existence { list: found, owners }
    }
}
