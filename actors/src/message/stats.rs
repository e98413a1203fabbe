//! Statistics of ranks and of the master.

use serde::{Deserialize, Serialize};

/// Statistics of the whole cluster.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ClusterStats {
    /// Objects listed by the master.
    pub objects: u64,
    /// Plans open.
    pub plans_open: u64,
    /// Opens waiting for room.
    pub waiting: u64,
    /// Counters of the master itself.
    pub master: MasterCounters,
    /// One row per segment, in the order of their segments.
    pub ranks: Vec<RankStats>,
    /// Ranks that run and were refused, at most one entry per rank number.
    pub refused: Vec<RefusedRank>,
}

/// A rank that the master refused, and that has not joined since.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedRank {
    /// Its number.
    pub rank: u32,
    /// Its process.
    pub pid: u32,
    /// The reason, as it was sent to the rank.
    pub why: String,
    /// Milliseconds since its last attempt: a rank that still runs tries twice a second.
    pub ago_ms: u64,
}

/// The master's own counters.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MasterCounters {
    /// Plans granted.
    pub opened: u64,
    /// Commits accepted.
    pub committed: u64,
    /// Commits refused as Reclaimed.
    pub commit_refused: u64,
    /// Plans that ended without a commit.
    pub plans_ended: u64,
    /// Objects that an owner found READY when their plan ended, and kept.
    pub adopted: u64,
    /// Opens that failed because there was no room.
    pub out_of_memory: u64,
    /// Keys found by GetLocation or MatchPrefix.
    pub lookup_hits: u64,
    /// Keys not found.
    pub lookup_misses: u64,
    /// Keys removed.
    pub removed: u64,
}

/// One segment of a rank in [`ClusterStats`].
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct RankStats {
    /// Rank number.
    pub rank: u32,
    /// Segment of that rank: 0 is the one it started with.
    pub segment: u32,
    /// Its incarnation.
    #[serde(with = "super::hex")]
    pub incarnation: u64,
    /// alive, suspect or draining.
    pub state: String,
    /// Milliseconds since its last heartbeat.
    pub heard_ms: u64,
    /// Bytes that the master has allocated on it.
    pub allocated_bytes: u64,
    /// Largest free range of its arena at the master, in bytes.
    pub largest_hole: u64,
    /// The owner's own figures, as of its last heartbeat.
    pub owner: OwnerGauges,
}

/// An owner's gauges: current values first, then counters since its start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnerGauges {
    /// Payload bytes of the heap.
    pub heap_total: u64,
    /// Bytes of live, open, fencing and quarantined objects.
    pub heap_used: u64,
    /// Bytes of live objects.
    pub live_bytes: u64,
    /// Bytes of objects being written.
    pub open_bytes: u64,
    /// Bytes fencing or in quarantine.
    pub held_bytes: u64,
    /// Live (READY and listed) objects.
    pub objects: u64,
    /// Plans open.
    pub plans_open: u64,
    /// Slots that wait for a producer to be fenced.
    pub fencing: u64,
    /// Slots in quarantine.
    pub quarantined: u64,
    /// Retired objects past their quarantine that only a view holds.
    pub pinned: u64,
    /// Of these, those that a view has held for longer than 10 s: it may have been leaked.
    pub pins_suspect: u64,
    /// Live objects for which the index has no room: they are found only through the master.
    pub index_overflow: u64,
    /// Bytes of the device log.
    pub log_total: u64,
    /// Bytes of live objects in the log.
    pub log_live_bytes: u64,
    /// Live objects in the log.
    pub log_objects: u64,
    /// Bytes claimed in the log so far: accepted + skipped + abandoned + voided + not settled yet,
    /// in whole 4 KiB units.
    pub log_claimed_bytes: u64,
    /// Bytes of claims that became live objects, or were duplicates.
    pub log_accepted_bytes: u64,
    /// Bytes that their producers skipped, or aborted after they had begun to write.
    pub log_skipped_bytes: u64,
    /// Bytes of claims that their producers abandoned while they waited for room.
    pub log_abandoned_bytes: u64,
    /// Bytes that became void by the hole rule, such as those of producers that died.
    pub log_voided_bytes: u64,
    /// Claims that became live objects.
    pub log_accepted: u64,
    /// Duplicates: objects put under a key that existed. They are never readable; their puts
    /// succeeded.
    pub log_duplicates: u64,
    /// Objects of the log that were retired to make room.
    pub log_evictions: u64,
    /// Times that all producers were asked about a hole.
    pub log_hole_checks: u64,
    /// Producers that did not answer about a hole, and were proved to write no more.
    pub log_fenced: u64,
    /// Objects evicted.
    pub evictions: u64,
    /// Gets that readers reported.
    pub gets_served: u64,
    /// Of these, those whose location came from the index, without a message.
    pub gets_by_index: u64,
    /// Of these, those whose location came from the handle's cache, without a message.
    pub gets_by_cache: u64,
    /// Of these, those whose location came from the master.
    pub gets_by_master: u64,
    /// Bytes read, as readers reported them.
    pub bytes_read: u64,
    /// Objects committed here.
    pub commits: u64,
    /// Bytes of objects committed here.
    pub bytes_written: u64,
    /// Plans that reached their deadline.
    pub plans_expired: u64,
    /// Plans ended because their producer was gone.
    pub producers_lost: u64,
    /// Ended plans that turned out READY and were kept.
    pub adopted: u64,
    /// Plans ended before READY: the producer was fenced.
    pub reclaimed: u64,
    /// Objects retired.
    pub retired: u64,
    /// Slots freed after quarantine.
    pub freed: u64,
}
