//! Counters of the SSD tier, under the names that `/metrics` shows.

use super::{DiskTier, Shutdown, lock};
use crate::durations::{Durations, Histogram};
use std::sync::atomic::{AtomicU64, Ordering};

/// A counter.
#[derive(Debug, Default)]
pub(super) struct Count(AtomicU64);

impl Count {
    pub fn one(&self) {
        self.add(1);
    }

    pub fn add(&self, n: usize) {
        self.0.fetch_add(n as u64, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[derive(Debug, Default)]
pub(super) struct Counters {
    pub lookup_hits: Count,
    pub lookup_misses: Count,
    pub promote_requested: Count,
    pub promote_coalesced: Count,
    pub promote_hits: Count,
    pub promote_fail: Count,
    pub promoted_bytes: Count,
    pub promote_times: Histogram,
    pub demote_unnamed: Count,
    pub demote_dropped: Count,
}

/// What the tier did since its node started, and what it has now.
#[derive(Debug, Clone)]
pub struct TierFigures {
    /// Counters, by name.
    pub counters: Vec<(&'static str, u64)>,
    /// Gauges, by name.
    pub gauges: Vec<(&'static str, u64)>,
    /// From a request to an object in memory.
    pub promote_times: Durations,
    /// Objects on disk.
    pub objects: u64,
    /// Bytes that they take there.
    pub used_bytes: u64,
    /// Bytes that they may take.
    pub capacity_bytes: u64,
    /// How it was stopped, once it is.
    pub shutdown: Option<Shutdown>,
}

impl DiskTier {
    /// Counters and gauges.
    pub fn figures(&self) -> TierFigures {
        let (ssd, writer, tier) = (self.engine.stats(), self.writer.stats(), &self.counters);
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counters = vec![
            ("ssd_save_success", ssd.save_success),
            ("ssd_save_fail", ssd.save_fail),
            ("ssd_save_dedup_skip", ssd.save_dedup_skip),
            ("ssd_stale_index_cleaned", ssd.stale_index_cleaned),
            ("ssd_hash_collision_detected", ssd.hash_collision_detected),
            ("ssd_orphans_cleaned", ssd.orphans_cleaned),
            ("ssd_load_success", ssd.load_success),
            ("ssd_load_corrupt", ssd.load_corrupt),
            ("ssd_load_fail", ssd.load_fail),
            ("ssd_expired", ssd.expired),
            ("ssd_evicted", ssd.evicted),
            ("writer_enqueue_total", of(&writer.enqueue_total)),
            ("writer_enqueue_dedup_skip", of(&writer.enqueue_dedup_skip)),
            ("writer_save_success", of(&writer.save_success)),
            ("writer_save_fail", of(&writer.save_fail)),
            ("writer_queue_full_sync_fallback", of(&writer.queue_full_sync_fallback)),
            ("writer_retry_attempts", of(&writer.retry_attempts)),
            ("writer_retry_final_fail", of(&writer.retry_final_fail)),
            ("kv_lookup_hits", tier.lookup_hits.get()),
            ("kv_lookup_miss", tier.lookup_misses.get()),
            ("kv_promote_requested", tier.promote_requested.get()),
            ("kv_promote_coalesced", tier.promote_coalesced.get()),
            ("kv_promote_hits", tier.promote_hits.get()),
            ("kv_promote_fail", tier.promote_fail.get()),
            ("kv_promoted_bytes", tier.promoted_bytes.get()),
            ("kv_demote_unnamed", tier.demote_unnamed.get()),
            ("kv_demote_dropped", tier.demote_dropped.get()),
        ];
        let gauges = vec![
            ("ssd_objects", ssd.objects),
            ("ssd_used_bytes", ssd.used_bytes),
            ("ssd_capacity_bytes", ssd.capacity_bytes),
            ("kv_demote_pending", self.feed.pending()),
            ("kv_promote_pending", self.promotions.pending()),
        ];
        TierFigures {
            counters,
            gauges,
            promote_times: tier.promote_times.snapshot(),
            objects: ssd.objects,
            used_bytes: ssd.used_bytes,
            capacity_bytes: ssd.capacity_bytes,
            shutdown: *lock(&self.shutdown),
        }
    }
}
