//! Counters of the SSD tier, under the names that `/metrics` shows.

use super::{DiskTier, lock};
use crate::durations::{Durations, Histogram};
use serde::{Deserialize, Serialize};
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
    pub save_asked: Count,
    pub save_asked_fail: Count,
    pub demote_unnamed: Count,
    pub demote_dropped: Count,
}

/// What the tier of a node did since it started, and what it has now.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct TierFigures {
    /// Objects saved.
    pub ssd_save_success: u64,
    /// Objects that could not be saved.
    pub ssd_save_fail: u64,
    /// Objects that were on disk already.
    pub ssd_save_dedup_skip: u64,
    /// Entries without a whole record, dropped.
    pub ssd_stale_index_cleaned: u64,
    /// Objects of one key that differ; neither is served from disk.
    pub ssd_hash_collision_detected: u64,
    /// Pages of the journal that were damaged at the start, 1 if it was missing: objects are lost.
    pub ssd_journal_pages_damaged: u64,
    /// Records without an entry, freed at start.
    pub ssd_orphans_cleaned: u64,
    /// Objects read from disk.
    pub ssd_load_success: u64,
    /// Objects that were damaged on disk.
    pub ssd_load_corrupt: u64,
    /// Objects that the disk did not give.
    pub ssd_load_fail: u64,
    /// Objects removed because nobody used them for the time to live.
    pub ssd_expired: u64,
    /// Objects removed from disk to make space.
    pub ssd_evicted: u64,
    /// Objects handed to the writer.
    pub writer_enqueue_total: u64,
    /// Objects whose key waited there already.
    pub writer_enqueue_dedup_skip: u64,
    /// Objects of the writer that are on disk.
    pub writer_save_success: u64,
    /// Objects of the writer that are not.
    pub writer_save_fail: u64,
    /// Objects for which the writer's queue was full.
    pub writer_queue_full_sync_fallback: u64,
    /// Saves tried again.
    pub writer_retry_attempts: u64,
    /// Objects given up after the last retry.
    pub writer_retry_final_fail: u64,
    /// Keys asked for that the disk has.
    pub kv_lookup_hits: u64,
    /// Keys asked for that it does not have.
    pub kv_lookup_miss: u64,
    /// Keys that were to be brought back into memory.
    pub kv_promote_requested: u64,
    /// Of these, those that were being brought back already.
    pub kv_promote_coalesced: u64,
    /// Objects brought back.
    pub kv_promote_hits: u64,
    /// Objects that were not.
    pub kv_promote_fail: u64,
    /// Bytes brought back.
    pub kv_promoted_bytes: u64,
    /// Objects to be saved because somebody asked for that.
    pub kv_save_asked: u64,
    /// Of these, those that were not.
    pub kv_save_asked_fail: u64,
    /// Objects evicted before their key string was known, and lost.
    pub kv_demote_unnamed: u64,
    /// Objects lost because the disk was too slow.
    pub kv_demote_dropped: u64,
    /// Objects on disk.
    pub ssd_objects: u64,
    /// Bytes that they take there.
    pub ssd_used_bytes: u64,
    /// Bytes that they may take.
    pub ssd_capacity_bytes: u64,
    /// Objects on their way to disk.
    pub kv_demote_pending: u64,
    /// Objects on their way back.
    pub kv_promote_pending: u64,
    /// Whether the process before this one saved all that was handed over; false after a kill.
    pub shutdown_clean: bool,
    /// Whether it ended before all was saved.
    pub shutdown_partial_flush: bool,
    /// From a request to an object in memory; not part of `/status`.
    #[serde(skip)]
    pub promote_times: Durations,
}

impl DiskTier {
    /// Counters and gauges.
    pub fn figures(&self) -> TierFigures {
        let (ssd, writer, tier) = (self.engine.stats(), self.writer.stats(), &self.counters);
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        // After a stop, that one counts.
        let ended = lock(&self.shutdown).unwrap_or(self.before);
        TierFigures {
            ssd_save_success: ssd.save_success,
            ssd_save_fail: ssd.save_fail,
            ssd_save_dedup_skip: ssd.save_dedup_skip,
            ssd_stale_index_cleaned: ssd.stale_index_cleaned,
            ssd_hash_collision_detected: ssd.hash_collision_detected,
            ssd_journal_pages_damaged: ssd.journal_pages_damaged,
            ssd_orphans_cleaned: ssd.orphans_cleaned,
            ssd_load_success: ssd.load_success,
            ssd_load_corrupt: ssd.load_corrupt,
            ssd_load_fail: ssd.load_fail,
            ssd_expired: ssd.expired,
            ssd_evicted: ssd.evicted,
            writer_enqueue_total: of(&writer.enqueue_total),
            writer_enqueue_dedup_skip: of(&writer.enqueue_dedup_skip),
            writer_save_success: of(&writer.save_success),
            writer_save_fail: of(&writer.save_fail),
            writer_queue_full_sync_fallback: of(&writer.queue_full_sync_fallback),
            writer_retry_attempts: of(&writer.retry_attempts),
            writer_retry_final_fail: of(&writer.retry_final_fail),
            kv_lookup_hits: tier.lookup_hits.get(),
            kv_lookup_miss: tier.lookup_misses.get(),
            kv_promote_requested: tier.promote_requested.get(),
            kv_promote_coalesced: tier.promote_coalesced.get(),
            kv_promote_hits: tier.promote_hits.get(),
            kv_promote_fail: tier.promote_fail.get(),
            kv_promoted_bytes: tier.promoted_bytes.get(),
            kv_save_asked: tier.save_asked.get(),
            kv_save_asked_fail: tier.save_asked_fail.get(),
            kv_demote_unnamed: tier.demote_unnamed.get(),
            kv_demote_dropped: tier.demote_dropped.get(),
            ssd_objects: ssd.objects,
            ssd_used_bytes: ssd.used_bytes,
            ssd_capacity_bytes: ssd.capacity_bytes,
            kv_demote_pending: self.feed.pending(),
            kv_promote_pending: self.promotions.pending(),
            shutdown_clean: ended.clean,
            shutdown_partial_flush: ended.partial_flush,
            promote_times: tier.promote_times.snapshot(),
        }
    }
}
