//! How a caller watches mapped memory while it waits, and how long it pauses between two checks.

use super::{Awaited, WhenReady};
use crate::client::PutOptions;
use crate::client::find::meta_of;
use crate::environment::Platform;
use crate::message::Via;
use nkv_store::KeyId;
use std::time::Duration;

/// How long a thread watches words without a pause, while it lets others run; and its pauses after
/// that: a part of the time that it has waited, within these bounds. A task pauses for a
/// millisecond at least.
const SPIN: Duration = Duration::from_millis(1);
const SHORTEST_REST: Duration = Duration::from_micros(20);
const LONGEST_REST: Duration = Duration::from_micros(500);
const SHORTEST_SLEEP: Duration = Duration::from_millis(1);
const LONGEST_SLEEP: Duration = Duration::from_millis(5);
const SHARE_OF_WAIT: u32 = 32;
/// How often a caller that maps nothing checks whether it does now.
const NOTHING_MAPPED: Duration = Duration::from_millis(100);
/// Checks of a thread that spins before it lets others run and serves its connection.
pub(super) const CHECKS_PER_YIELD: usize = 8;
/// Keys that are searched in mapped memory at a time.
pub(super) const KEYS_PER_CHECK: usize = 128;
/// How long a caller waits until it is attached to owners.
const ATTACH_LIMIT: Duration = Duration::from_millis(100);

impl WhenReady {
    /// Searches for keys in mapped memory.
    pub(super) fn check_words(&mut self) {
        let shared = &self.client.shared;
        if shared.peers.mapped().is_empty() {
            return;
        }
        let later = self.pending.range(self.check_from..);
        let all = later.chain(self.pending.range(..self.check_from));
        let checked: Vec<usize> = all.take(KEYS_PER_CHECK).copied().collect();
        self.check_from = checked.last().map_or(0, |n| n + 1);
        let ids: Vec<KeyId> = checked.iter().map(|n| self.keys[*n].id).collect();
        let by_index = self.client.find_mapped(&ids);
        for ((n, id), hit) in checked.into_iter().zip(ids).zip(by_index) {
            let Awaited { gone, writing, .. } = &self.keys[n];
            let written = || {
                let meta = writing.as_ref()?;
                let peer = shared.peers.get(meta.at.incarnation)?;
                let hit = peer.reader.as_ref()?.read_slot(meta.at.slot, id)?;
                (hit.epoch() == meta.at.epoch).then_some((peer, hit))
            };
            let found = hit.or_else(written).map(|(peer, hit)| meta_of(&peer, id, &hit));
            if let Some(meta) = found.filter(|meta| !gone.contains(&meta.at)) {
                self.pending.remove(&n);
                self.found.push_back((n, Ok((meta, Via::Index))));
            }
        }
    }

    fn waited(&self) -> Duration {
        Duration::from_nanos(self.now_ns().saturating_sub(self.waits_from_ns))
    }

    /// Whether the caller is a thread that may be blocked.
    fn is_thread(&self) -> bool {
        let shared = &self.client.shared;
        self.client.pool.is_of_a_thread() && shared.env.platform == Platform::Threads
    }

    /// Whether the caller is a thread that may watch without a pause now.
    pub(super) fn spins(&self) -> bool {
        let shared = &self.client.shared;
        self.is_thread() && self.waited() < SPIN && !shared.peers.mapped().is_empty()
    }

    /// How long to wait for the next check.
    pub(super) fn pause(&self) -> impl Future<Output = ()> + Send + use<> {
        let shared = self.client.shared.clone();
        let (spins, share) = (self.spins(), self.waited() / SHARE_OF_WAIT);
        let left = Duration::from_nanos(self.until_ns.saturating_sub(self.now_ns()));
        let is_thread = self.is_thread();
        async move {
            if shared.peers.mapped().is_empty() {
                tokio::time::sleep(left.clamp(SHORTEST_SLEEP, NOTHING_MAPPED)).await;
            } else if is_thread {
                if spins {
                    std::thread::yield_now();
                } else {
                    shared.env.machine.rest(share.clamp(SHORTEST_REST, LONGEST_REST));
                }
                // The request's connection is served meanwhile.
                tokio::task::yield_now().await;
            } else {
                tokio::time::sleep(share.clamp(SHORTEST_SLEEP, LONGEST_SLEEP)).await;
            }
        }
    }

    /// So that the next check can see what is put where the keys' hashes lead. Not longer than the
    /// caller waits: another rank may hold what it waits for.
    pub(super) fn attach(&self) -> impl Future<Output = ()> + Send + use<> {
        let hashes: Vec<u64> = self.pending.iter().map(|n| self.keys[*n].id.hash).collect();
        let left = Duration::from_nanos(self.until_ns.saturating_sub(self.now_ns()));
        let client = self.client.clone();
        async move {
            let options = PutOptions::default();
            let attaching = client.attach_log_owners(&hashes, &options);
            let _ = tokio::time::timeout(left.min(ATTACH_LIMIT), attaching).await;
        }
    }
}
