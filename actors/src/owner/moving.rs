//! Survivors of log and heap at their owner: which objects are copied to the log's head, and who
//! learns that an object lies elsewhere now. It copies nothing: a thread of the AnnouncePoller
//! does.

use super::Owner;
use crate::message::{KeyBytes, LogObjectEntry, MovedObject, OwnerToMaster};
use crate::owner::object_life::ObjectEnd;
use hashbrown::{HashMap, HashSet};
use nkv_store::device_log::{DeviceLog, LogObject};
use nkv_store::object::SetMark;
use std::collections::VecDeque;

/// Moves in one frame to the master.
const MOVES_PER_FRAME: usize = 2048;
/// Moves that are remembered because the key string is not known yet: its producer reports it under
/// the old slot. A producer reports within a fraction of a second.
const MOST_UNNAMED: usize = 65_536;

/// Where objects without a key string were moved to, by their slot and epoch before.
#[derive(Debug, Default)]
pub(super) struct UnnamedMoves(HashMap<(u32, u32), (u32, u32)>);

impl UnnamedMoves {
    fn add(&mut self, from: (u32, u32), to: (u32, u32)) {
        if self.0.len() >= MOST_UNNAMED {
            // Their keys were never reported: those producers are dead.
            self.0.clear();
        }
        self.0.insert(from, to);
    }

    /// Where the object of a reported key lies now.
    pub(super) fn resolve(&mut self, mut at: (u32, u32)) -> (u32, u32) {
        while let Some(to) = self.0.remove(&at) {
            at = to;
        }
        at
    }
}

/// How long an object that the evictor chose waits to be copied: then it is evicted.
/// Shorter than the pause after which the master asks for room again.
const SPILL_LIMIT_NS: u64 = 15_000_000;
/// Objects that wait so, at most; further ones are evicted at once.
const MOST_SPILLING: usize = 1024;

/// Objects of the heap that are being copied to the log, and when each is evicted all the same.
#[derive(Debug, Default)]
pub(super) struct Spilling {
    by_time: VecDeque<((u32, u32), u64)>,
    objects: HashSet<(u32, u32)>,
}

impl Spilling {
    pub(super) fn is_empty(&self) -> bool {
        self.by_time.is_empty()
    }
}

impl Owner {
    /// Has victims of the evictor copied to the log, which ends them here; returns the others.
    pub(super) fn spill(&mut self, victims: Vec<(u32, u32)>) -> Vec<(u32, u32)> {
        let Some(log) = self.log.as_ref().filter(|log| log.log.copies()) else { return victims };
        let until = self.durable.clock.now_ns().saturating_add(SPILL_LIMIT_NS);
        let (mut evicted, mut copied) = (Vec::new(), Vec::new());
        for (slot, epoch) in victims {
            if self.spilling.objects.contains(&(slot, epoch)) {
                continue;
            }
            let object = self.slots.live_object(slot, epoch);
            let fits = |bytes| log.log.layout().claim_bytes(bytes).is_some();
            match object.filter(|(_, object)| fits(object.bytes_total)) {
                Some((key, object)) if self.spilling.by_time.len() < MOST_SPILLING => {
                    self.spilling.by_time.push_back(((slot, epoch), until));
                    self.spilling.objects.insert((slot, epoch));
                    copied.push(LogObject { key, slot, epoch, object, mark: SetMark::NONE });
                }
                _ => evicted.push((slot, epoch)),
            }
        }
        self.durable.tables.moves.give(copied);
        evicted
    }

    /// What was not copied, for want of room or time.
    pub(super) fn late_spills(&mut self) -> Vec<(u32, u32)> {
        let now = self.durable.clock.now_ns();
        let mut late = self.durable.tables.moves.without_room();
        while let Some(&((slot, epoch), until)) = self.spilling.by_time.front() {
            let live = self.slots.is_live(slot, epoch);
            if live && now < until {
                break;
            }
            self.spilling.by_time.pop_front();
            self.spilling.objects.remove(&(slot, epoch));
            late.extend(live.then_some((slot, epoch)));
        }
        late
    }

    /// Hands the objects that are worth it to the thread that copies.
    pub(super) fn copy_survivors(&self, log: &mut DeviceLog) -> Result<(), nkv_store::StoreError> {
        let survivors = log.survivors()?;
        if !survivors.is_empty() {
            self.durable.tables.moves.give(survivors);
        }
        Ok(())
    }

    /// Counts a read of an object of the log. False if it is not live there.
    pub(super) fn touch_in_log(&mut self, slot: u32, epoch: u32) -> bool {
        self.log.as_mut().is_some_and(|log| log.log.touch(slot, epoch))
    }

    /// An object of the log is worth a copy. False if it is not live there.
    pub(super) fn keep_in_log(&mut self, slot: u32, epoch: u32) -> bool {
        self.log.as_mut().is_some_and(|log| log.log.keep(slot, epoch))
    }

    /// Objects of the log are not worth a copy, unless they are read again.
    pub(super) fn forget_reads_in_log(&mut self, objects: &[(u32, u32)]) {
        if let Some(log) = &mut self.log {
            objects.iter().for_each(|(slot, epoch)| log.log.forget_reads(*slot, *epoch));
        }
    }

    /// Objects are served from their copies now: their key strings move along, and the master
    /// learns the new location of those that it may have listed.
    pub(super) fn objects_moved(
        &mut self,
        log: &DeviceLog,
        unnamed: &mut UnnamedMoves,
        moved: &[((u32, u32), LogObject)],
    ) {
        if moved.is_empty() {
            return;
        }
        let mut list = Vec::with_capacity(moved.len());
        let of_heap = |(from, _): &&((u32, u32), LogObject)| !self.is_of_log(from.0);
        let spilled: Vec<_> = moved.iter().filter(of_heap).copied().collect();
        {
            let mut t = self.durable.tables.lock();
            for (from, to) in moved {
                let here = |held: &u32| *held == from.1;
                let named = t.keys.get(from.0).is_some_and(|(epoch, _)| here(epoch));
                let key = if named { t.keys.remove(from.0).map(|(_, key)| key) } else { None };
                t.groups.moved(*from, (to.slot, to.epoch));
                let set = t.move_set(*from, (to.slot, to.epoch));
                let asked = t.log_reported.get(&from.0).is_some_and(here);
                let of_heap = !self.is_of_log(from.0);
                if asked {
                    t.log_reported.remove(&from.0);
                }
                // The master has it under an identity: it must learn of its end.
                if asked || of_heap {
                    t.log_reported.insert(to.slot, to.epoch);
                }
                match &key {
                    Some(key) => t.keys.insert(to.slot, (to.epoch, key.clone())),
                    None => unnamed.add(*from, (to.slot, to.epoch)),
                }
                if named || asked || of_heap {
                    let LogObject { key: id, slot, epoch, object, .. } = *to;
                    let key = key.map_or_else(KeyBytes::default, KeyBytes::shared);
                    let to = LogObjectEntry { key, id, slot, epoch, object, set };
                    list.push(MovedObject { slot: from.0, epoch: from.1, to });
                }
            }
        }
        for part in list.chunks(MOVES_PER_FRAME) {
            self.send_to_master(OwnerToMaster::Moved(part.to_vec()));
        }
        // Behind the moves, so that the master's entries do not go with their originals.
        let originals: Vec<_> = spilled.iter().map(|(from, _)| *from).collect();
        self.retire(&originals, ObjectEnd::Spilled);
        spilled.iter().for_each(|(_, to)| log.spilled(to.slot, to.epoch));
    }
}
