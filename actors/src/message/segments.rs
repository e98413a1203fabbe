//! What a node is told about its segments from outside, and what it answers.

use serde::{Deserialize, Serialize};

/// A word about the segments of the node that hears it.
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
}

/// What was done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
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
    /// The master confirmed it. If not, keys that lay there are `Disconnected` until one TTL passed.
    pub confirmed: bool,
}
