//! What a pool has given out, and how often: shared with the thread that ends what its worker
//! forgot.

use super::PoolInfo;
use crate::client::Client;
use crate::client::view::ObjectView;
use crate::client::write::InPlace;
use crate::slow_path::counters;
use hashbrown::HashMap;
use nkv_store::Key;
use nkv_store::clock::Clock;
use serde::Serialize;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

const EXPIRE_EVERY: Duration = Duration::from_secs(1);

counters! {
    /// What a pool did.
    Counts as PoolFigures {
        /// Slots to write that were given.
        prepared,
        /// Keys that were not stored: they are stored already.
        skipped_exists,
        /// Keys that were not stored: they are being written or removed, or the master does not
        /// know yet. A later try may find room for them.
        skipped_busy,
        /// Keys that were not stored: the memory is full.
        skipped_full,
        /// Keys that were not stored because of another error.
        failed,
        /// Slots committed.
        committed,
        /// Slots to read that were given.
        retrieved,
        /// Keys that a retrieve did not find.
        missed,
        /// Slots that were neither committed nor finished within their time to live.
        expired,
        /// How often the rank was found started again.
        restarts,
    }
}

/// Slots that a worker was given, by key, with the time at which they expire; the oldest first.
#[derive(Debug)]
pub(super) struct Given<T>(HashMap<Key, VecDeque<(u64, Arc<T>)>>);

impl<T> Default for Given<T> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<T> Given<T> {
    pub fn add(&mut self, key: Key, until_ns: u64, slot: Arc<T>) {
        self.0.entry(key).or_default().push_back((until_ns, slot));
    }

    /// The oldest one of a key.
    pub fn take(&mut self, key: &Key) -> Option<Arc<T>> {
        self.take_where(key, |_| true)
    }

    /// This one.
    pub fn take_same(&mut self, key: &Key, slot: &Arc<T>) -> Option<Arc<T>> {
        self.take_where(key, |given| Arc::ptr_eq(given, slot))
    }

    fn take_where(&mut self, key: &Key, is_meant: impl Fn(&Arc<T>) -> bool) -> Option<Arc<T>> {
        let slots = self.0.get_mut(key)?;
        let at = slots.iter().position(|(_, slot)| is_meant(slot))?;
        let taken = slots.remove(at);
        if slots.is_empty() {
            self.0.remove(key);
        }
        taken.map(|(_, slot)| slot)
    }

    /// All of a key.
    pub fn take_all(&mut self, key: &Key) -> Vec<Arc<T>> {
        let slots = self.0.remove(key).unwrap_or_default();
        slots.into_iter().map(|(_, slot)| slot).collect()
    }

    /// Takes out those that are meant, by the time at which they expire or by what they are.
    pub fn take_any(&mut self, is_meant: impl Fn(u64, &T) -> bool) -> Vec<Arc<T>> {
        let mut out = Vec::new();
        self.0.retain(|_, slots| {
            slots.retain(|(until_ns, slot)| {
                let stays = !is_meant(*until_ns, slot);
                if !stays {
                    out.push(slot.clone());
                }
                stays
            });
            !slots.is_empty()
        });
        out
    }

    fn earliest_ns(&self) -> Option<u64> {
        self.0.values().filter_map(|slots| Some(slots.front()?.0)).min()
    }

    pub fn len(&self) -> usize {
        self.0.values().map(VecDeque::len).sum()
    }
}

#[derive(Debug, Default)]
pub(super) struct Slots {
    pub stores: Given<InPlace>,
    pub reads: Given<ObjectView>,
    pub info: Option<PoolInfo>,
    /// Nothing expires before it.
    next_ns: u64,
}

impl Slots {
    /// A slot is given out that expires then.
    pub fn expires_at(&mut self, until_ns: u64) {
        self.next_ns = self.next_ns.min(until_ns);
    }
}

#[derive(Debug)]
pub(super) struct GivenOut {
    pub rank: u32,
    pub client: Client,
    pub slots: Mutex<Slots>,
    pub counts: Counts,
    pub clock: Arc<dyn Clock>,
}

impl GivenOut {
    pub fn lock(&self) -> MutexGuard<'_, Slots> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn expire(&self) {
        let now_ns = self.clock.now_ns();
        let (stores, reads) = {
            let mut slots = self.lock();
            if now_ns < slots.next_ns {
                return;
            }
            let stores = slots.stores.take_any(|until_ns, _| until_ns <= now_ns);
            let reads = slots.reads.take_any(|until_ns, _| until_ns <= now_ns);
            let left = slots.stores.earliest_ns().into_iter().chain(slots.reads.earliest_ns());
            slots.next_ns = left.min().unwrap_or(u64::MAX);
            (stores, reads)
        };
        let expired = stores.len() + reads.len();
        if expired > 0 {
            self.counts.expired.add(expired);
            let (writes, rank) = (stores.len(), self.rank);
            tracing::warn!(rank, writes, reads = reads.len(), "slots of a pool expired");
            self.client.give_up_in_place(stores);
        }
    }
}

impl Drop for GivenOut {
    fn drop(&mut self) {
        let stores = self.lock().stores.take_any(|_, _| true);
        self.client.give_up_in_place(stores);
    }
}

pub(super) fn expire_until_dropped(given: &Weak<GivenOut>) {
    while let Some(given) = given.upgrade() {
        given.expire();
        drop(given);
        std::thread::sleep(EXPIRE_EVERY);
    }
}
