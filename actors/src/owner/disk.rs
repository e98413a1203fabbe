//! The SSD tier at an owner: which objects it hands over, and what it answers for the disk of its
//! node. Nothing here waits for the disk.

use super::Owner;
use crate::error::Result;
use crate::message::{DiskAnswer, DiskQuestion, OwnerToMaster};
use crate::tier::{Candidate, Demotion, Taken};
use nkv_store::Key;
use nkv_store::layout::epoch_of;
use nkv_store::object::{ObjectDesc, key_of};

impl Owner {
    /// Objects that lost LIVE to make room, before their key strings are forgotten: their bytes
    /// stay until the disk has them [I9]. Of those whose key is not known yet the producers are
    /// asked for it.
    pub(super) fn demote(&self, evicted: &[(u32, u32)]) {
        let Some(demotion) = self.durable.demotion.as_ref().filter(|_| !evicted.is_empty()) else {
            return;
        };
        let unnamed = self.hand_over(demotion, evicted);
        demotion.await_names(unnamed);
    }

    /// Objects were accepted in the log, whose key strings come later.
    pub(super) fn accepted_for_disk(&self, n: u64) {
        let through = self.durable.demotion.as_ref().filter(|d| d.writes_through());
        if let Some(demotion) = through.filter(|_| n > 0) {
            demotion.want_names();
        }
    }

    /// Asks producers for the key strings that the disk needs, if it is time to.
    pub(super) fn ask_names_for_disk(&self) {
        let now_ns = self.durable.clock.now_ns();
        if self.durable.demotion.as_ref().is_some_and(|demotion| demotion.asks_now(now_ns)) {
            self.ask_for_names();
        }
    }

    /// Objects that are live, with their key strings known.
    pub(super) fn write_through(&self, live: &[(u32, u32)]) {
        let through = self.durable.demotion.as_ref().filter(|d| d.writes_through());
        if let Some(demotion) = through.filter(|_| !live.is_empty()) {
            self.hand_over(demotion, live);
        }
    }

    /// Whether an object that is not live any more is kept until its key is known.
    pub(super) fn is_awaited_by_disk(&self, at: (u32, u32)) -> bool {
        self.durable.demotion.as_ref().is_some_and(|demotion| demotion.awaits(at))
    }

    /// The keys of such objects are known now.
    pub(super) fn named_late(&self, objects: Vec<((u32, u32), Key)>) {
        let Some(demotion) = self.durable.demotion.as_ref().filter(|_| !objects.is_empty()) else {
            return;
        };
        let at: Vec<_> = objects.iter().map(|(at, _)| *at).collect();
        demotion.take_named(objects.into_iter().filter_map(|(at, key)| self.candidate(at, key)));
        demotion.await_no_longer(&at);
    }

    /// Returns those without a key string.
    fn hand_over(&self, demotion: &Demotion, objects: &[(u32, u32)]) -> Vec<(u32, u32)> {
        let keys: Vec<_> = {
            let t = self.durable.tables.lock();
            objects.iter().map(|(slot, epoch)| t.key(*slot, *epoch).cloned()).collect()
        };
        let unnamed = objects.iter().zip(&keys).filter(|(_, key)| key.is_none());
        let unnamed = unnamed.map(|(at, _)| *at).collect();
        let named = objects.iter().zip(keys).filter_map(|(at, key)| Some((at, key?)));
        demotion.take(named.filter_map(|(at, key)| self.candidate(*at, key)));
        unnamed
    }

    /// Other processes can write headers: the tier checks where the bytes lie, and a header of
    /// another key or epoch is not this object's.
    fn candidate(&self, (slot, epoch): (u32, u32), key: Key) -> Option<Candidate> {
        let header = self.slots.header(slot);
        let same = epoch_of(header.owner) == epoch
            && key_of(&header) == self.durable.hasher.id(key.as_bytes());
        same.then(|| Candidate { slot, epoch, key, object: ObjectDesc::of_header(&header) })
    }

    /// A question of the master for the disk of this node.
    pub(super) fn asked_about_disk(&mut self, number: u64, question: DiskQuestion) {
        if let Some(demotion) = self.durable.demotion.as_ref().filter(|d| d.awaits_any()) {
            demotion.ask_at_once();
            self.process_log();
        }
        let uplink = self.durable.uplink.clone();
        let send = move |answer| uplink.send(OwnerToMaster::DiskAnswer { number, answer });
        let Some(tier) = self.durable.demotion.as_ref().map(|demotion| &demotion.tier) else {
            return send(DiskAnswer::default());
        };
        match question {
            DiskQuestion::Find(keys) => {
                let found = keys.iter().zip(0..);
                let found = found.filter_map(|(key, at)| Some((at, tier.find(key)?)));
                send(DiskAnswer { found: found.collect(), ..DiskAnswer::default() });
            }
            DiskQuestion::Promote { keys, rank, find } => {
                let there = keys.iter().zip(0..).filter(|_| find);
                let there = there.filter_map(|(key, at)| Some((at, tier.find(key)?)));
                let found: Vec<(u32, u64)> = there.collect();
                if find && found.is_empty() {
                    return send(DiskAnswer::default());
                }
                let done = move |results: Vec<Result<u64>>| {
                    send(DiskAnswer { found, ..answer_of(results) });
                };
                tier.promote(&keys, rank, Box::new(done));
            }
            DiskQuestion::Save(keys) => {
                tier.save(&keys, Box::new(move |results| send(answer_of(results))));
            }
            DiskQuestion::Remove { removal, which } => {
                let hasher = self.durable.hasher;
                let done = move |done: Result<Taken>| {
                    let (Taken { keys, count }, failed) = match done {
                        Ok(taken) => (taken, None),
                        Err(error) => (Taken::default(), Some(error)),
                    };
                    let removed = keys.iter().map(|key| hasher.id(key.as_bytes())).collect();
                    send(DiskAnswer { removed, count, failed, ..DiskAnswer::default() });
                };
                tier.remove(removal, &which, Box::new(done));
            }
        }
    }

    pub(super) fn removal_over(&self, removal: u64, again: bool) {
        if let Some(demotion) = &self.durable.demotion {
            demotion.tier.removal_over(removal, again);
        }
    }
}

/// What was done, as found, and what was not.
fn answer_of(results: Vec<Result<u64>>) -> DiskAnswer {
    let mut answer = DiskAnswer::default();
    for (result, at) in results.into_iter().zip(0..) {
        match result {
            Ok(bytes) => answer.found.push((at, bytes)),
            Err(error) => answer.not_done.push((at, error)),
        }
    }
    answer
}
