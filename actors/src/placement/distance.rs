//! How far a process is from a rank's memory.

use super::rack::{MAX_LEVELS, RackPath};
use crate::message::RankInfo;
use serde::{Deserialize, Serialize};

pub(super) const SAME_NODE: u8 = 0;
pub(super) const SAME_HOST: u8 = 1;
const SAME_RACK: u8 = 2;
/// Of two that share no level of their racks' paths.
pub const FARTHEST: u8 = SAME_RACK + MAX_LEVELS as u8;

/// Where a process or a rank's memory is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Site<'a> {
    /// Boot id of its host.
    pub boot_id: u64,
    /// The NUMA node to which it is bound, if any.
    pub numa_node: Option<u32>,
    /// The host's rack.
    pub rack: &'a RackPath,
}

impl<'a> Site<'a> {
    /// Where a rank's memory is.
    pub fn of(info: &'a RankInfo) -> Self {
        Self { boot_id: info.boot_id, numa_node: info.numa_node, rack: &info.rack }
    }

    /// From one to the other: 0 on one NUMA node, 1 on one host, 2 in one rack, and one more for
    /// each level that racks share less. Of the three distances between three sites the two largest
    /// are equal.
    pub fn to(self, other: Site<'_>) -> u8 {
        if self.boot_id == other.boot_id {
            return if self.numa_node == other.numa_node { SAME_NODE } else { SAME_HOST };
        }
        if self.rack == other.rack {
            return SAME_RACK;
        }
        FARTHEST - self.rack.shared_levels(other.rack).min(MAX_LEVELS - 1) as u8
    }
}

/// Where a writer is, as a master needs it: the nearest rank, and how far it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Nearest {
    /// The rank.
    pub rank: u32,
    /// From the writer.
    pub distance: u8,
}

impl Nearest {
    /// From the writer to a rank that is so far from the nearest one: exact, because none is nearer
    /// than that one, and of three distances the two largest are equal.
    pub fn distance(self, from_nearest: u8) -> u8 {
        self.distance.max(from_nearest)
    }
}
