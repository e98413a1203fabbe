//! Statistics of ranks and of the master.

use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicU64, Ordering};

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
    /// Replicas that puts asked for and that no other rank could take.
    pub replicas_short: u64,
    /// Objects that had too few replicas, and have them now.
    pub replicas_repaired: u64,
    /// Times that an object was given a replica because it is read often.
    pub hot_objects: u64,
    /// Objects that have fewer replicas than they should: nobody could make them.
    pub repairs_given_up: u64,
    /// Objects that wait for replicas now.
    pub repairs_waiting: u64,
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

/// Makes the gauges of an owner, as they are sent and as they are counted, from one list.
macro_rules! gauges {
    ($($(#[doc = $doc:literal])+ $name:ident,)+) => {
        /// An owner's gauges: current values first, then counters since its start.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
        pub struct OwnerGauges { $($(#[doc = $doc])+ pub $name: u64),+ }

        /// [`OwnerGauges`] as atomics: written by the owner, read by anyone.
        #[derive(Debug, Default)]
        pub struct Gauges { $($(#[doc = $doc])+ pub $name: AtomicU64),+ }

        impl Gauges {
            /// A copy of all figures.
            pub fn snapshot(&self) -> OwnerGauges {
                OwnerGauges { $($name: self.$name.load(Ordering::Relaxed)),+ }
            }
        }
    };
}

gauges! {
    /// Payload bytes of the heap.
    heap_total,
    /// Bytes of live, open, fencing and quarantined objects.
    heap_used,
    /// Bytes of live objects.
    live_bytes,
    /// Of these, bytes of objects with a hard pin.
    hard_pinned_bytes,
    /// Bytes of objects being written.
    open_bytes,
    /// Bytes fencing or in quarantine.
    held_bytes,
    /// Live (READY and listed) objects.
    objects,
    /// Plans open.
    plans_open,
    /// Slots that wait for a producer to be fenced.
    fencing,
    /// Slots in quarantine.
    quarantined,
    /// Retired objects past their quarantine that only a view holds.
    pinned,
    /// Of these, those that a view has held for longer than 10 s: it may have been leaked.
    pins_suspect,
    /// Live objects for which the index has no room: they are found only through the master.
    index_overflow,
    /// Bytes of the device log.
    log_total,
    /// Bytes of live objects in the log.
    log_live_bytes,
    /// Live objects in the log.
    log_objects,
    /// Bytes claimed in the log so far: accepted + skipped + abandoned + voided + not settled yet,
    /// in whole 4 KiB units.
    log_claimed_bytes,
    /// Bytes of claims that became live objects, or were duplicates.
    log_accepted_bytes,
    /// Bytes that their producers skipped, or aborted after they had begun to write.
    log_skipped_bytes,
    /// Bytes of claims that their producers abandoned while they waited for room.
    log_abandoned_bytes,
    /// Bytes that became void by the hole rule, such as those of producers that died.
    log_voided_bytes,
    /// Claims that became live objects.
    log_accepted,
    /// Duplicates: objects put under a key that existed. They are never readable; their puts
    /// succeeded.
    log_duplicates,
    /// Objects of the log that were retired to make room.
    log_evictions,
    /// Times that all producers were asked about a hole.
    log_hole_checks,
    /// Objects that its owner copied to its head: they were read, or had to leave the heap.
    log_copies,
    /// Copies of objects that had ended when the copy was ready.
    log_stale_copies,
    /// Objects that had been read and were retired all the same: they were not copied in time.
    log_lost_reads,
    /// Objects of the heap among the copies: the evictor had chosen them.
    log_spills,
    /// Bytes that the owner claimed itself, because they are pinned by views.
    log_passed_over_bytes,
    /// Producers that did not answer about a hole, and were proved to write no more.
    log_fenced,
    /// Bytes that the node's disk may take; 0 without one, and for all but a node's first segment.
    disk_total,
    /// Bytes that objects take there.
    disk_used,
    /// Objects there.
    disk_objects,
    /// Objects that count as read because another one of their group was.
    group_reads,
    /// Groups of which an object was evicted here.
    groups_lost,
    /// Objects evicted.
    evictions,
    /// Gets that readers reported.
    gets_served,
    /// Of these, those whose location came from the index, without a message.
    gets_by_index,
    /// Of these, those whose location came from the handle's cache, without a message.
    gets_by_cache,
    /// Of these, those whose location came from the master.
    gets_by_master,
    /// Bytes read, as readers reported them.
    bytes_read,
    /// Objects committed here.
    commits,
    /// Bytes of objects committed here.
    bytes_written,
    /// Plans that reached their deadline.
    plans_expired,
    /// Plans ended because their producer was gone.
    producers_lost,
    /// Ended plans that turned out READY and were kept.
    adopted,
    /// Plans ended before READY: the producer was fenced.
    reclaimed,
    /// Objects retired.
    retired,
    /// Slots freed after quarantine.
    freed,
}
