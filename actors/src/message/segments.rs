//! What a node is sent, or asked, from outside about itself and its segments, and what it answers.
//! It needs no master: a node says what it knows also while its master is gone.

use super::{OwnerGauges, SeenView, Term, View};
use nkv_transport::wire::Address;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The unit of a used ratio: 1000 is a full heap.
pub const PER_MILLE: u32 = 1_000;
/// Between two signs of life of a node that carries out a command. Short beside the least limit of
/// a call that makes sense: whoever waits takes a node without them for stopped.
pub const WORKING: Duration = Duration::from_millis(20);

/// A word to the node that hears it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum SegmentCommand {
    /// Contribute one more segment.
    Mount {
        /// Payload bytes.
        bytes: u64,
    },
    /// Take a mounted segment away, with all it holds.
    Unmount {
        /// Its number.
        segment: u32,
        /// Milliseconds it waits for open plans.
        limit_ms: u64,
    },
    /// Evict from each of its heaps until no more than this is used.
    Evict {
        /// Thousandths of a heap's bytes, at most [`PER_MILLE`].
        until_per_mille: u32,
    },
    /// Say what it knows of itself and of the cluster.
    Report,
}

/// What was done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum SegmentDone {
    /// It is a member, and objects may be placed on it.
    Mounted {
        /// Its number within the rank.
        segment: u32,
        /// Its incarnation.
        incarnation: u64,
        /// Payload bytes: what was asked for, rounded up.
        bytes: u64,
    },
    /// It is gone, and its memory is given back as soon as nobody maps it any more.
    Unmounted(UnmountReport),
    /// What went, for each of its segments.
    Evicted(Vec<EvictReport>),
    /// What it knows.
    Report(Box<NodeReport>),
    /// Nothing yet: it is at work, and says so every [`WORKING`] until it is done.
    Working,
}

/// What an answer is, for the error that it is not the one that was asked for.
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

/// What an unmount found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnmountReport {
    /// Objects that went with it.
    pub objects: u64,
    /// Plans still open at the limit: their puts fail.
    pub plans_left: u64,
    /// Milliseconds it took.
    pub waited_ms: u64,
    /// The master confirmed it. If not, keys that lay there are `Disconnected` until one TTL
    /// passed.
    pub confirmed: bool,
}

/// What an eviction took from the heap of one segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct EvictReport {
    /// Segment of the rank.
    pub segment: u32,
    /// Objects evicted.
    pub objects: u64,
    /// Bytes of the heap that they had.
    pub bytes: u64,
    /// Bytes of the heap used then. More than was asked for if puts are open, or if what went is
    /// still viewed, or held for a writer that has not answered.
    pub heap_used: u64,
    /// Bytes of the heap.
    pub heap_total: u64,
}

/// What a node knows, by itself.
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
    /// Where it looks for the master; none on rank 0, which is the master.
    pub master: Option<Address>,
    /// The term that its first segment obeys.
    pub term: Term,
    /// The view that its first segment keeps for a later master.
    pub seen: SeenView,
    /// The members as its own handle was last told.
    pub view: View,
    /// Its segments, the first one first.
    pub segments: Vec<SegmentReport>,
}

/// What a node knows of one of its segments.
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
    /// Figures of its heap.
    pub owner: OwnerGauges,
}
