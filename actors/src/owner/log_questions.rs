//! What the master asks about the device log: where it serves keys, and to retire them.

use super::Owner;
use super::log::nameless;
use super::object_life::ObjectEnd;
use crate::message::{
    Abandoned, LogObjectEntry, LogQuestion, MAX_BATCH, OwnerToMaster, ReplicaSet,
};
use nkv_store::KeyId;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

/// Fast polls of the log for each millisecond that a caller waits, and at most: of some 25 us each,
/// so for a second at most. Not every wait should keep a processor of every rank awake.
const FAST_POLLS_PER_MS: u64 = 40;
const MAX_FAST_POLLS: u64 = 40_000;

/// Whether it is one of several replicas.
fn in_set(o: &LogObjectEntry) -> bool {
    o.set != ReplicaSet::NONE
}

impl Owner {
    /// Answers a question of the master, after processing the log.
    pub(super) fn answer_about_log(&mut self, number: u64, question: LogQuestion) {
        self.process_log();
        let (mut served, mut removed, mut taken) = (Vec::new(), Vec::new(), 0);
        match question {
            LogQuestion::Find(keys) => {
                let found = keys.into_iter().filter_map(|id| self.find_in_log(id));
                served = found.map(nameless).collect();
                self.report_nameless(&served);
            }
            LogQuestion::Await { keys, wait_ms } => {
                let found = keys.iter().filter_map(|id| self.find_in_log(*id));
                served = found.map(nameless).collect();
                self.report_nameless(&served);
                self.await_in_log(keys, wait_ms);
            }
            LogQuestion::Remove(keys) => {
                let held = keys.into_iter().filter_map(|id| self.find_in_log(id));
                let held: BTreeMap<_, _> = held.map(|o| ((o.slot, o.epoch), o)).collect();
                let gone = self.take_away(&held.keys().copied().collect::<Vec<_>>());
                removed = gone.iter().filter_map(|at| held.get(at).map(|o| o.id)).collect();
                served = held.into_values().filter(in_set).map(nameless).collect();
            }
            LogQuestion::EndSets(sets) => {
                self.durable.tables.ended_sets.add(&sets, self.durable.clock.now_ns());
                let of = |(id, set): &(KeyId, u32)| {
                    self.find_in_log(*id).filter(|o| o.set.id == u64::from(*set))
                };
                let served: Vec<_> =
                    sets.iter().filter_map(of).map(|o| (o.slot, o.epoch)).collect();
                // The master retires those that it lists.
                let unlisted = |(slot, epoch): &(u32, u32)| {
                    !self.durable.tables.lock().is_reported(*slot, *epoch)
                };
                let unlisted: Vec<_> = served.into_iter().filter(unlisted).collect();
                self.take_away(&unlisted);
            }
            // Answered when producers have sent them.
            LogQuestion::AnnounceAll => {}
            LogQuestion::RemoveAll => {
                let all = self.live_in_log();
                // The newest, since the other replicas of the oldest are there.
                let objects = self.log.iter().flat_map(|log| log.log.live());
                served = objects.map(|o| self.entry_of(&o)).filter(in_set).map(nameless).collect();
                served.drain(..served.len().saturating_sub(MAX_BATCH));
                taken = self.take_away(&all).len() as u64;
            }
        }
        self.send_to_master(OwnerToMaster::LogAnswer { number, served, removed, taken });
    }

    /// From now on, what the log accepts under these keys is sent to the master at once.
    fn await_in_log(&mut self, keys: Vec<KeyId>, wait_ms: u64) {
        let until_ns =
            self.durable.clock.now_ns().saturating_add(wait_ms.saturating_mul(1_000_000));
        let absent = keys.into_iter().filter(|id| self.served_in_log(*id).is_none());
        let absent: Vec<_> = absent.collect();
        let Some(log) = &mut self.log else { return };
        absent.into_iter().for_each(|id| log.awaited.insert(id, until_ns));
        if !log.awaited.is_empty() {
            let polls = &self.durable.tables.log_signals.fast_polls;
            let wanted = wait_ms.saturating_mul(FAST_POLLS_PER_MS).min(MAX_FAST_POLLS);
            polls.fetch_max(wanted, Ordering::Relaxed);
        }
    }

    /// Retires objects of the log and reports them; returns those that lost LIVE now or before.
    fn take_away(&mut self, list: &[(u32, u32)]) -> Vec<(u32, u32)> {
        let gone = self.retire_in_log(list);
        let reported: Vec<_> = gone.iter().map(|(slot, epoch)| self.at(*slot, *epoch)).collect();
        self.ended(&reported, ObjectEnd::InLog);
        gone
    }

    /// The slot of the log that serves a key: then an object that a plan wrote under it is the
    /// duplicate [I15]. Log slots only: a plan may have put the same key into the heap.
    pub(super) fn served_in_log(&self, key: KeyId) -> Option<u32> {
        self.slots.serving(key, |slot| self.is_of_log(slot))
    }

    fn find_in_log(&self, key: KeyId) -> Option<LogObjectEntry> {
        let slot = self.served_in_log(key)?;
        let epoch = nkv_store::layout::epoch_of(self.slots.header(slot).owner);
        let object = self.log.as_ref()?.log.object(slot, epoch)?;
        Some(self.entry_of(&object))
    }

    /// A producer abandoned a claim that still waited for room.
    pub(super) fn abandoned(&mut self, claim: Abandoned) {
        if let Some(log) = &mut self.log
            && let Err(error) = log.log.abandon(claim.into())
        {
            tracing::error!(%error, "an abandoned claim cannot be recorded");
        }
        self.process_log();
    }
}
