//! The end of objects: they are retired for room or on the master's request, held in quarantine and
//! freed. `Freed` is repeated until the master acknowledges it. Victims are not chosen here.

use super::Owner;
use super::object_life::ObjectEnd;
use super::tables::PlanRecord;
use crate::message::{EndCause, Gauges, OwnerToMaster, SLOTS_PER_FRAME, SlotRef};
use hashbrown::HashSet;

impl Owner {
    /// Retires live objects; returns how many, and the bytes that will come back after quarantine.
    pub(super) fn retire(&mut self, victims: &[(u32, u32)], how: ObjectEnd) -> (u64, u64) {
        let now = self.durable.clock.now_ns();
        let (mut bytes, mut gone) = (0, Vec::with_capacity(victims.len()));
        for &(slot, epoch) in victims {
            if self.is_of_log(slot) {
                let of_log = self.retire_in_log(&[(slot, epoch)]);
                gone.extend(of_log.into_iter().map(|(slot, epoch)| self.at(slot, epoch)));
                continue;
            }
            if !self.slots.is_live(slot, epoch) {
                continue;
            }
            if let Ok(extent) = self.slots.retire(slot, epoch, true, now) {
                bytes += extent.len;
                gone.push(self.at(slot, epoch));
            }
        }
        if how == ObjectEnd::Evicted {
            let evicted: Vec<_> = gone.iter().map(|at| (at.slot, at.epoch)).collect();
            self.demote(&evicted);
            let left = self.lose_groups_of(&evicted);
            self.forget_reads_in_log(&left);
        }
        self.ended(&gone, how);
        (gone.len() as u64, bytes)
    }

    pub(super) fn retire_by_master(&mut self, list: Vec<SlotRef>) {
        let mine: Vec<_> = list.into_iter().filter(|r| r.incarnation == self.incarnation).collect();
        let pairs: Vec<_> = mine.iter().map(|r| (r.slot, r.epoch)).collect();
        // Objects whose plan is still open here: their commit was lost with a panic or a link. The
        // plan ends instead.
        let open: Vec<_> = {
            let t = self.durable.tables.lock();
            let wanted: HashSet<_> = mine.iter().collect();
            let hit = |p: &&PlanRecord| wanted.contains(&p.opened.at);
            t.plans.values().filter(hit).map(|p| (p.opened.plan, p.opened.at)).collect()
        };
        for (plan, at) in open {
            self.end_plan(plan, at, EndCause::Removed);
        }
        // What is not live any more was or will be reported as retired; report it again, it is
        // idempotent.
        let already: Vec<_> = mine
            .iter()
            .filter(|r| {
                !self.is_of_log(r.slot)
                    && !self.slots.is_live(r.slot, r.epoch)
                    && !self.slots.is_open(r.slot, r.epoch)
            })
            .copied()
            .collect();
        self.retire(&pairs, ObjectEnd::Removed);
        self.ended(&already, ObjectEnd::Absent);
    }

    pub(super) fn quarantine_over(&mut self) {
        let freed = self.slots.due(self.durable.clock.now_ns());
        if freed.is_empty() {
            return;
        }
        Gauges::add(&self.durable.tables.gauges.freed, freed.len() as u64);
        {
            let mut t = self.durable.tables.lock();
            for f in &freed {
                t.unacked.insert(f.slot, f.epoch);
            }
        }
        self.send_freed(freed.iter().map(|f| self.at(f.slot, f.epoch)).collect());
    }

    pub(super) fn repeat_unacked(&self) {
        let list: Vec<_> = {
            let t = self.durable.tables.lock();
            t.unacked.iter().map(|(s, e)| self.at(*s, *e)).collect()
        };
        self.durable.tables.slow_path.freed_repeated.add(list.len());
        self.send_freed(list);
    }

    pub(super) fn send_freed(&self, list: Vec<SlotRef>) {
        for part in list.chunks(SLOTS_PER_FRAME) {
            self.send_to_master(OwnerToMaster::Freed(part.to_vec()));
        }
    }
}
