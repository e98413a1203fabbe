//! Where an object of this owner begins and ends: counters, key strings, the evictor and the master
//! learn of it here, and nowhere else.

use super::{HeapEvent, Owner};
use crate::message::{Gauges, OwnerToMaster, PlanRef, SLOTS_PER_FRAME, SlotRef};
use nkv_store::Retention;
use nkv_store::evict::Candidate;
use nkv_store::object::{Committed, live_slot};

/// How the object of a plan became live.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Became {
    /// Its commit was accepted.
    Committed,
    /// Its writer had set READY, and then the plan ended in another way than by a commit.
    Adopted,
}

/// How an object, or the slot of a plan, ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ObjectEnd {
    /// The evictor chose it, or the owner, to make contiguous room.
    Evicted,
    /// The evictor chose it, and it is served from the log now.
    Spilled,
    /// It was removed, or another object of its key is served.
    Removed,
    /// Its plan ended before it was live.
    Reclaimed,
    /// An object of the log. The log counts these itself, and the evictor does not know them.
    InLog,
    /// It is not here, or has ended before: the master may not know.
    Absent,
}

impl Owner {
    /// Plans are over and their objects live, in the order of their commits.
    pub(super) fn became_live(&mut self, objects: Vec<(PlanRef, Committed)>, how: Became) {
        let (mut admitted, mut second) = (Vec::with_capacity(objects.len()), Vec::new());
        // Before the commit came.
        let mut read = Vec::new();
        for (object, done) in objects {
            let (at, gauges) = (object.at, &self.durable.tables.gauges);
            match how {
                Became::Committed => {
                    Gauges::add(&gauges.commits, 1);
                    Gauges::add(&gauges.bytes_written, done.bytes_total);
                }
                Became::Adopted => Gauges::add(&gauges.adopted, 1),
            }
            // An object of a lower term is listed by the report that waits for its fence, but for
            // those that kernels held during the report.
            if how == Became::Adopted && !self.is_to_be_reported(object.plan) {
                self.send_to_master(OwnerToMaster::Adopted(object));
            }
            self.close_plan(object.plan);
            // Where log and heap have the same key, the object accepted first is served [I15].
            if self.served_in_log(done.key).is_some() {
                second.push((at.slot, at.epoch));
            } else {
                let (bytes, retention) = (done.extent.len, done.retention);
                let SlotRef { slot, epoch, .. } = at;
                match retention {
                    // It begins now: an evictor that panicked finds it in the header.
                    Retention::SoftPin(_) => {
                        self.slots.touch(slot, epoch, self.durable.clock.now_ms());
                    }
                    Retention::UntilRead(_) if self.was_read(slot) => read.push((slot, epoch)),
                    _ => {}
                }
                admitted.push(Candidate { slot, epoch, bytes, retention });
            }
        }
        let live: Vec<_> = admitted.iter().map(|c| (c.slot, c.epoch)).collect();
        self.write_through(&live);
        if !admitted.is_empty() {
            // Tail to head, like touches: the head of a prefix stays longest.
            admitted.reverse();
            self.notify_evictor(HeapEvent::BecameLive(admitted));
        }
        if !read.is_empty() {
            self.notify_evictor(HeapEvent::WereRead(read));
        }
        if !second.is_empty() {
            self.retire(&second, ObjectEnd::Removed);
        }
    }

    /// Whether an object until read was read.
    fn was_read(&self, slot: u32) -> bool {
        live_slot(&self.durable.heap, slot).is_some_and(|object| object.last_access_ms > 0)
    }

    /// Objects or slots ended.
    pub(super) fn ended(&self, gone: &[SlotRef], how: ObjectEnd) {
        if gone.is_empty() {
            return;
        }
        let (gauges, count) = (&self.durable.tables.gauges, gone.len() as u64);
        match how {
            ObjectEnd::Evicted => {
                Gauges::add(&gauges.retired, count);
                Gauges::add(&gauges.evictions, count);
            }
            ObjectEnd::Removed | ObjectEnd::Spilled => Gauges::add(&gauges.retired, count),
            ObjectEnd::Reclaimed => Gauges::add(&gauges.reclaimed, count),
            ObjectEnd::InLog | ObjectEnd::Absent => {}
        }
        // A slot that is not known to have ended keeps its key string: its plan may still be open.
        if how != ObjectEnd::Absent {
            let mut t = self.durable.tables.lock();
            gone.iter().for_each(|r| t.forget(r.slot, r.epoch));
        }
        // Also of what the evictor chose: a reading of the headers may have listed it again.
        if matches!(how, ObjectEnd::Evicted | ObjectEnd::Spilled | ObjectEnd::Removed) {
            let ended = gone.iter().map(|r| (r.slot, r.epoch)).collect();
            self.notify_evictor(HeapEvent::Ended(ended));
        }
        for part in gone.chunks(SLOTS_PER_FRAME) {
            self.send_to_master(OwnerToMaster::Retired(part.to_vec()));
        }
    }
}
