//! Groups: objects that their producers want kept, or evicted, together. A read of one counts as a
//! read of all. When one is evicted the group is over: what is left of it here is evicted before
//! other objects. The master passes both on to the other ranks. Hints alone: no answer depends on
//! them, and what is lost with a message costs nothing but a worse choice.

use super::{HeapEvent, Owner};
use crate::message::{Gauges, GroupNews, KeyBytes, MAX_GROUPS, OwnerToMaster, ReplicaSet, Touch};
use hashbrown::HashMap;
use nkv_store::KeyId;
use nkv_store::Retention;
use nkv_store::evict::Candidate;
use nkv_store::object::live_slot;
use std::collections::{BTreeMap, BTreeSet};

/// An object that was used so lately is not used again because another one of its group is.
const APART_MS: u64 = 500;
/// Objects of one group at this rank; a further one belongs to none.
const MOST_MEMBERS: usize = 4096;
/// Objects that are looked at for one batch of reads, of evictions, or one message of the master.
/// The groups beyond it are left alone.
const MOST_AT_ONCE: usize = 65_536;

/// Objects of plans that are not recorded yet, at most.
const MOST_EARLY: usize = 4096;

/// Slot and epoch.
type At = (u32, u32);

/// The groups of one owner's objects. It outlives the actor.
#[derive(Debug, Default)]
pub struct Groups {
    // By slot: at most as many as there are slots.
    of: HashMap<u32, (u32, KeyId)>,
    groups: HashMap<KeyId, Group>,
    // Of objects whose plans are not recorded yet, with their keys: a master in this process may
    // answer their commits before.
    early: BTreeMap<At, (KeyBytes, KeyId)>,
    // What the master is to learn.
    used: BTreeSet<KeyId>,
    lost: BTreeSet<KeyId>,
}

#[derive(Debug, Default)]
struct Group {
    // When they were used last, or 0.
    members: BTreeMap<At, u64>,
    // When all of them were used last.
    used_ms: u64,
}

impl Groups {
    fn of(&self, (slot, epoch): At) -> Option<KeyId> {
        self.of.get(&slot).filter(|(held, _)| *held == epoch).map(|(_, group)| *group)
    }

    /// An object belongs to a group.
    pub(super) fn add(&mut self, at: At, group: KeyId) {
        self.add_used(at, group, 0);
    }

    fn add_used(&mut self, at: At, group: KeyId, used_ms: u64) {
        if let Some((epoch, before)) = self.of.remove(&at.0) {
            self.drop_member(&before, (at.0, epoch));
        }
        let members = &mut self.groups.entry(group).or_default().members;
        if members.len() < MOST_MEMBERS {
            members.insert(at, used_ms);
            self.of.insert(at.0, (at.1, group));
        }
    }

    /// An object of this key will belong to a group, once its plan is recorded.
    pub(super) fn add_early(&mut self, at: At, key: KeyBytes, group: KeyId) {
        if self.early.len() >= MOST_EARLY {
            // Plans that never come.
            self.early.clear();
        }
        self.early.insert(at, (key, group));
    }

    /// A plan is recorded.
    pub(super) fn plan_recorded(&mut self, at: At, key: &[u8]) {
        if self.early.is_empty() {
            return;
        }
        if let Some((_, group)) = self.early.remove(&at).filter(|(named, _)| named[..] == *key) {
            self.add(at, group);
        }
    }

    /// An object ended.
    pub(super) fn forget(&mut self, at: At) {
        if let Some(group) = self.of(at) {
            self.of.remove(&at.0);
            self.drop_member(&group, at);
        }
    }

    /// An object lies elsewhere now.
    pub(super) fn moved(&mut self, from: At, to: At) {
        let Some(group) = self.of(from) else { return };
        let used_ms = self.groups.get(&group).and_then(|g| g.members.get(&from)).copied();
        self.forget(from);
        self.add_used(to, group, used_ms.unwrap_or_default());
    }

    fn drop_member(&mut self, group: &KeyId, at: At) {
        let Some(g) = self.groups.get_mut(group) else { return };
        g.members.remove(&at);
        if g.members.is_empty() {
            self.groups.remove(group);
        }
    }

    /// Objects were used: those that are used because of that.
    fn read(&mut self, list: &[Touch], now_ms: u64) -> Vec<At> {
        if self.of.is_empty() {
            return Vec::new();
        }
        let mut groups = BTreeSet::new();
        for at in list.iter().map(|touch| (touch.slot, touch.epoch)) {
            let Some(group) = self.of(at) else { continue };
            let member = self.groups.get_mut(&group).and_then(|g| g.members.get_mut(&at));
            member.into_iter().for_each(|used_ms| *used_ms = now_ms);
            groups.insert(group);
            if self.used.len() < MAX_GROUPS {
                self.used.insert(group);
            }
        }
        self.with(groups.iter(), now_ms)
    }

    /// The objects of these groups that were not used lately.
    fn with<'a>(&mut self, groups: impl Iterator<Item = &'a KeyId>, now_ms: u64) -> Vec<At> {
        let (mut used, mut looked_at) = (Vec::new(), 0);
        for group in groups {
            let Some(g) = self.groups.get_mut(group) else { continue };
            if now_ms.saturating_sub(g.used_ms) < APART_MS {
                continue;
            }
            looked_at += g.members.len();
            if looked_at > MOST_AT_ONCE {
                break;
            }
            g.used_ms = now_ms;
            for (at, used_ms) in &mut g.members {
                if now_ms.saturating_sub(*used_ms) >= APART_MS {
                    *used_ms = now_ms;
                    used.push(*at);
                }
            }
        }
        used
    }

    /// These groups are over: what is left of them.
    fn end(&mut self, groups: &[KeyId]) -> Vec<At> {
        let mut left = Vec::new();
        for group in groups {
            let members = self.groups.get(group).map_or(0, |g| g.members.len());
            if left.len() + members > MOST_AT_ONCE {
                break;
            }
            let ended = self.groups.remove(group).unwrap_or_default();
            left.extend(ended.members.into_keys());
        }
        for (slot, _) in &left {
            self.of.remove(slot);
        }
        left
    }

    /// What the master is to learn, once.
    fn take_news(&mut self) -> Option<GroupNews> {
        if self.used.is_empty() && self.lost.is_empty() {
            return None;
        }
        let of = |groups: &mut BTreeSet<KeyId>| std::mem::take(groups).into_iter().collect();
        Some(GroupNews { used: of(&mut self.used), lost: of(&mut self.lost) })
    }
}

impl Owner {
    /// Objects were read.
    pub(super) fn use_groups_of(&mut self, list: &[Touch], now_ms: u64) {
        let others = self.durable.tables.lock().groups.read(list, now_ms);
        self.use_with_group(&others, now_ms);
    }

    fn use_with_group(&mut self, objects: &[At], now_ms: u64) {
        let (mut fresh, mut used) = (Vec::new(), 0);
        for &(slot, epoch) in objects {
            if self.is_of_log(slot) {
                used += u64::from(self.keep_in_log(slot, epoch));
            } else if self.is_until_read(slot) {
                // Nobody has read it.
            } else if self.slots.touch(slot, epoch, now_ms) {
                fresh.push((slot, epoch));
            }
        }
        Gauges::add(&self.durable.tables.gauges.group_reads, used + fresh.len() as u64);
        if !fresh.is_empty() {
            self.notify_evictor(HeapEvent::WereRead(fresh));
        }
    }

    /// These objects are being evicted; call before their owner forgets them. One that was put with
    /// several replicas may have others elsewhere, and ends no group. Returns what is left of their
    /// groups in the log.
    #[must_use]
    pub(super) fn lose_groups_of(&self, evicted: &[At]) -> Vec<At> {
        let left = {
            let mut t = self.durable.tables.lock();
            if t.groups.of.is_empty() {
                return Vec::new();
            }
            let alone = evicted.iter().filter(|at| t.set(at.0, at.1) == ReplicaSet::NONE);
            let mut lost: Vec<_> = alone.filter_map(|at| t.groups.of(*at)).collect();
            lost.sort_unstable();
            lost.dedup();
            Gauges::add(&self.durable.tables.gauges.groups_lost, lost.len() as u64);
            let left = t.groups.end(&lost);
            let room = MAX_GROUPS.saturating_sub(t.groups.lost.len());
            t.groups.lost.extend(lost.into_iter().take(room));
            left
        };
        self.evict_soon(left)
    }

    /// What is left of groups that are over goes before other objects, as far as it is in the heap.
    /// Returns the others.
    fn evict_soon(&self, left: Vec<At>) -> Vec<At> {
        let (in_log, others): (Vec<_>, Vec<_>) =
            left.into_iter().partition(|(slot, _)| self.is_of_log(*slot));
        let mut in_heap = Vec::new();
        for (slot, epoch) in others {
            let live = live_slot(&self.durable.heap, slot).filter(|o| o.epoch == epoch);
            let usual = live.is_some_and(|o| o.retention.is_usual());
            let object = self.slots.live_object(slot, epoch).filter(|_| usual);
            in_heap.extend(object.map(|(_, object)| {
                let (bytes, retention) = (object.extent.len, Retention::EvictFirst);
                Candidate { slot, epoch, bytes, retention }
            }));
        }
        for part in in_heap.chunks(MOST_MEMBERS) {
            self.notify_evictor(HeapEvent::GoFirst(part.to_vec()));
        }
        in_log
    }

    /// What the master has of other ranks.
    pub(super) fn groups_elsewhere(&mut self, news: &GroupNews) {
        let now_ms = self.durable.clock.now_ms();
        let (used, left) = {
            let groups = &mut self.durable.tables.lock().groups;
            (groups.with(news.used.iter(), now_ms), groups.end(&news.lost))
        };
        self.use_with_group(&used, now_ms);
        let in_log = self.evict_soon(left);
        self.forget_reads_in_log(&in_log);
    }

    /// Sends the master what happened since the last time.
    pub(super) fn report_groups(&self) {
        let news = self.durable.tables.lock().groups.take_news();
        news.into_iter().for_each(|news| self.send_to_master(OwnerToMaster::Groups(news)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(n: u64) -> KeyId {
        KeyId { hash: n, check: n }
    }

    fn read(slot: u32) -> Touch {
        Touch { slot, epoch: 1, bytes: 1, read: true }
    }

    fn sorted(mut list: Vec<At>) -> Vec<At> {
        list.sort_unstable();
        list
    }

    #[test]
    fn a_read_of_one_is_a_read_of_the_others_but_not_twice_at_a_time() {
        let mut groups = Groups::default();
        (1..=3).for_each(|slot| groups.add((slot, 1), group(1)));
        groups.add((4, 1), group(2));
        assert_eq!(sorted(groups.read(&[read(1)], 5_000)), [(2, 1), (3, 1)]);
        assert_eq!(groups.read(&[read(2), read(3), read(4)], 5_400), []);
        assert_eq!(sorted(groups.with([group(1)].iter(), 5_500)), [(1, 1)]);
        let news = groups.take_news().expect("two groups were used");
        assert_eq!(news.used.len(), 2);
        assert_eq!(groups.take_news(), None);
    }

    #[test]
    fn what_ended_or_moved_is_where_it_is_now() {
        let mut groups = Groups::default();
        (1..=3).for_each(|slot| groups.add((slot, 1), group(1)));
        groups.forget((1, 1));
        groups.forget((2, 9));
        groups.moved((2, 1), (7, 4));
        // The slot has an object of a later epoch, in another group.
        groups.add((3, 2), group(2));
        assert_eq!(sorted(groups.with([group(1)].iter(), 9_000)), [(7, 4)]);
        assert_eq!(groups.end(&[group(1)]), [(7, 4)]);
        assert_eq!(groups.end(&[group(1)]), []);
        assert_eq!(groups.end(&[group(2)]), [(3, 2)]);
        assert!(groups.of.is_empty() && groups.groups.is_empty());
    }
}
