//! Commands to a node about itself and its segments, and the answers. They need no master, except
//! that mount and unmount change the membership: a node reports its state also while its master is
//! gone.

use super::{OwnerGauges, SeenView, Term, View};
use nkv_transport::wire::Address;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The unit of a used ratio: 1000 is a full heap.
pub const PER_MILLE: u32 = 1_000;
/// Interval between two `Working` frames of a node that carries out a command. Short compared with
/// any sensible limit of a call: a caller takes a node that sends none for stopped.
pub const WORKING: Duration = Duration::from_millis(20);

/// A command to a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum SegmentCommand {
    /// Contribute one more segment.
    Mount {
        /// Payload bytes.
        bytes: u64,
    },
    /// Remove a mounted segment with all its objects.
    Unmount {
        /// Its number.
        segment: u32,
        /// Milliseconds that it waits for open plans.
        limit_ms: u64,
    },
    /// Evict from each of its heaps until no more than this share is used.
    Evict {
        /// Thousandths of a heap's bytes, at most [`PER_MILLE`].
        until_per_mille: u32,
    },
    /// Report its state and what it has of the cluster's.
    Report,
}

/// The answer to a command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum SegmentDone {
    /// The segment is a member, and objects may be placed on it.
    Mounted {
        /// Its number within the rank.
        segment: u32,
        /// Its incarnation.
        incarnation: u64,
        /// Payload bytes: what was asked for, rounded up.
        bytes: u64,
    },
    /// The segment is gone; its memory is freed as soon as no process maps it any more.
    Unmounted(UnmountReport),
    /// What was evicted, for each of its segments.
    Evicted(Vec<EvictReport>),
    /// The node's report.
    Report(Box<NodeReport>),
    /// The command is still running; sent every [`WORKING`] until it is done.
    Working,
}

/// Describes an answer, for the error text when it does not fit the command.
impl std::fmt::Display for SegmentDone {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Mounted { .. } => "a mount",
            Self::Unmounted(_) => "an unmount",
            Self::Evicted(_) => "an eviction",
            Self::Report(_) => "a report",
            Self::Working => "a sign of life",
        })
    }
}

/// The result of an unmount.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnmountReport {
    /// Objects that were lost with it.
    pub objects: u64,
    /// Plans still open at the limit: their puts fail.
    pub plans_left: u64,
    /// Milliseconds it took.
    pub waited_ms: u64,
    /// The master confirmed it. If not, reads of its keys fail with `Disconnected` until one TTL
    /// has passed.
    pub confirmed: bool,
}

/// The result of an eviction in the heap of one segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct EvictReport {
    /// Segment of the rank.
    pub segment: u32,
    /// Objects evicted.
    pub objects: u64,
    /// Bytes of their extents.
    pub bytes: u64,
    /// Bytes of the heap in use afterwards. More than the target if puts are open, or if evicted
    /// bytes are still pinned by views or held for a writer that has not answered.
    pub heap_used: u64,
    /// Bytes of the heap.
    pub heap_total: u64,
}

/// The state of a node, from itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeReport {
    /// Rank number.
    pub rank: u32,
    /// Ranks in the job, as this rank was told.
    pub world_size: u32,
    /// Process id.
    pub pid: u32,
    /// Milliseconds since its start.
    pub uptime_ms: u64,
    /// Shutting down.
    pub draining: bool,
    /// The address that it uses for the master; none on rank 0, which is the master.
    pub master: Option<Address>,
    /// The term that its first segment obeys.
    pub term: Term,
    /// The view that its first segment keeps for a later master.
    pub seen: SeenView,
    /// The membership view that its own handle received last.
    pub view: View,
    /// Its segments, the first one first.
    pub segments: Vec<SegmentReport>,
}

/// The state of one of a node's segments.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SegmentReport {
    /// Its number within the rank.
    pub segment: u32,
    /// Its incarnation.
    #[serde(with = "super::hex")]
    pub incarnation: u64,
    /// joining, joined, lost (with the reason), gone or left.
    pub link: String,
    /// Milliseconds since its link to the master came up or broke.
    pub link_ms: u64,
    /// Gauges of its owner.
    pub owner: OwnerGauges,
}
