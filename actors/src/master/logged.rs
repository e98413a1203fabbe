//! Objects of device logs that owners announce, or move: the master lists each under its key, has
//! it retired as a duplicate [I15], or puts it aside until it knows.

use super::Master;
use super::entry::{Entry, Replica, State};
use crate::message::{LogObjectEntry, MasterToOwner, MovedObject, SegmentId, SlotRef};

impl Master {
    pub(super) fn logged_entry(
        &self,
        segment_id: SegmentId,
        at: SlotRef,
        o: &LogObjectEntry,
    ) -> Option<Entry> {
        let replica = Replica { segment_id, at, object: o.object };
        Some(Entry::live(self.durable.key_pool.key(&o.key).ok()?, replica).in_set(o.set))
    }

    /// Lists objects of a log, with their key strings. The object listed first keeps its key [I15].
    pub(super) fn announced(&mut self, segment_id: SegmentId, list: Vec<LogObjectEntry>) {
        // Ignored before the segment's report, which contains these objects as well.
        let Some(allocator) = self.allocators.get(&segment_id).filter(|b| b.reported) else {
            return;
        };
        let incarnation = allocator.info.incarnation;
        let mut duplicates = Vec::new();
        for o in list {
            let at = SlotRef { incarnation, slot: o.slot, epoch: o.epoch };
            if !self.logged(segment_id, at, &o, false) {
                duplicates.push(at);
            }
        }
        if !duplicates.is_empty() {
            self.durable.members.send(segment_id, MasterToOwner::Retire(duplicates));
        }
    }

    /// Objects of a log lie elsewhere in it now. What is listed, or put aside, is listed there.
    pub(super) fn moved(&mut self, segment_id: SegmentId, list: Vec<MovedObject>) {
        let Some(allocator) = self.allocators.get(&segment_id).filter(|b| b.reported) else {
            return;
        };
        let incarnation = allocator.info.incarnation;
        for MovedObject { slot, epoch, to } in list {
            let at = SlotRef { incarnation, slot: to.slot, epoch: to.epoch };
            let from = SlotRef { incarnation, slot, epoch };
            if let Some(aside) = self.aside.get(&to.id).and_then(|a| a.get(&segment_id))
                && aside.at == from
            {
                self.put_aside(to.id, Replica { segment_id, at, object: to.object });
            }
            let Some(entry) = self.objects.get_mut(&to.id).filter(|e| e.is_at(from)) else {
                // Announced, and then listed elsewhere or not any more.
                if !to.key.is_empty() {
                    self.announced(segment_id, vec![to]);
                }
                continue;
            };
            let removing = entry.state() == State::Removing;
            entry.relocate(from, Replica { segment_id, at, object: to.object });
            self.mend_set(to.id, segment_id, at, to.set);
            if let Some(b) = self.allocators.get_mut(&segment_id) {
                b.forget_listed(slot, epoch);
            }
            self.list_at(to.id, segment_id, at);
            self.awaiting.note(to.id);
            if removing {
                // The owner was asked to retire the original, which had ended by then.
                self.durable.members.send(segment_id, MasterToOwner::Retire(vec![at]));
            }
        }
    }

    /// Lists one object of a log; false if it must be retired. `reported`: it comes from the report
    /// after a join.
    pub(super) fn logged(
        &mut self,
        segment_id: SegmentId,
        at: SlotRef,
        o: &LogObjectEntry,
        reported: bool,
    ) -> bool {
        let Some(entry) = self.logged_entry(segment_id, at, o) else { return true };
        let id = self.id_of(entry.key.as_bytes());
        let replica = entry.replica();
        let further = |e: &&Entry| !e.is_at(at) && self.is_replica_of(e, &replica, o.set);
        if let Some(e) = self.objects.get(&id).filter(further) {
            // Fewer may be wanted since, or another one was made instead.
            let asked_for = |r: &Replica| !e.is_extra(r.at) && self.reachable(r.segment_id);
            if e.replicas().filter(asked_for).count() >= usize::from(e.set().wanted) {
                return false;
            }
            if let Some(e) = self.objects.get_mut(&id) {
                e.add_live(replica);
            }
            self.list_at(id, segment_id, at);
            self.mend_set(id, segment_id, at, o.set);
            self.has_others(id);
            self.became_live(id, segment_id);
            return true;
        }
        match self.objects.get(&id).map(|e| {
            let mine = e.replicas().find(|replica| replica.at == at);
            let here = || e.replicas().find(|replica| replica.segment_id == segment_id);
            let replica = mine.or_else(here).unwrap_or_else(|| e.replica());
            (replica.at, e.state(), replica.segment_id)
        }) {
            // Within a segment the owner has decided already: it serves this object, and its report
            // that the other one is retired follows. The same where a reader found the other one
            // gone.
            Some((other, State::Live, there))
                if other != at && (there == segment_id || self.found_gone.contains(&id)) =>
            {
                self.put_aside(id, replica);
                return true;
            }
            Some((other, State::Live, _)) if other != at => {
                // The object listed first is the one that is served, as long as its rank, or that
                // of another replica, can be reached.
                let stays = self.objects.get(&id).is_none_or(|e| !self.is_readable(e));
                if !stays {
                    // A replica of the other one may have gone because this one was served there.
                    self.note_unmade(id);
                }
                return stays;
            }
            // The listed one is being written or removed. This one stays, and is listed once the
            // other has ended. A remove asks the logs in any case.
            Some((other, ..)) if other != at => {
                self.put_aside(id, replica);
                return true;
            }
            Some((_, state, _)) => {
                self.mend_set(id, segment_id, at, o.set);
                return state != State::Removing;
            }
            // The key was put again before that rank had reported, and may be removed since [I6].
            None if reported && self.durable.members.is_older(&id, at.incarnation) => return false,
            None => {}
        }
        if self.allocators.contains_key(&segment_id) {
            self.enter(id, entry);
            self.expect_others(id);
        }
        true
    }
}
