//! The descriptions of segments that join, and the membership view.

use super::Term;
use crate::placement::{Placement, RackPath};
use nkv_store::SegmentLayout;
use nkv_transport::wire::Address;
use serde::{Deserialize, Serialize};
use std::cmp::Ordering;

/// Segments a rank may have at once, its first one included.
pub const MAX_SEGMENTS: u32 = 64;

/// One segment of one rank: the unit that joins, holds objects and leaves. A rank's first segment,
/// number 0, exists as long as its node; further ones are mounted and unmounted while it runs.
/// Ordered by rank, then by segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SegmentId {
    /// Rank number.
    pub rank: u32,
    /// Segment of that rank.
    pub segment: u32,
}

impl SegmentId {
    /// A rank's first segment.
    pub fn first(rank: u32) -> Self {
        Self { rank, segment: 0 }
    }

    /// True for a rank's first segment, by which ranks are counted.
    pub fn is_first(self) -> bool {
        self.segment == 0
    }

    /// The range of all segments that a rank can have.
    pub fn of_rank(rank: u32) -> std::ops::RangeInclusive<Self> {
        Self::first(rank)..=Self { rank, segment: u32::MAX }
    }
}

impl std::fmt::Display for SegmentId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.segment {
            0 => write!(f, "rank {}", self.rank),
            n => write!(f, "segment {n} of rank {}", self.rank),
        }
    }
}

/// The state of a segment at the master.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum RankState {
    /// Joined, and its link is up.
    Alive,
    /// Its link is down; it is gone after the TTL unless it comes back.
    Suspect,
    /// Shutting down: serves its objects, takes no new plans.
    Draining,
}

impl std::fmt::Display for RankState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&format!("{self:?}").to_lowercase())
    }
}

/// How a segment's memory is open to other processes of its host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ExportedMemory {
    /// It is private to its process.
    Private,
    /// Shared memory: by this name, and by a descriptor that its node passes on a unix socket.
    Shared {
        /// File name, without a folder.
        name: String,
    },
    /// What precedes the payloads is shared memory, likewise. The payloads are in a GPU, and are
    /// mapped by another descriptor that the node passes.
    Device {
        /// File name, without a folder.
        name: String,
        /// The GPU's id, the same in every process.
        uuid: [u8; 16],
    },
}

impl ExportedMemory {
    /// The name by which it is mapped; none if it cannot be.
    pub fn name(&self) -> Option<&str> {
        match self {
            Self::Private => None,
            Self::Shared { name } | Self::Device { name, .. } => Some(name),
        }
    }
}

impl From<Option<String>> for ExportedMemory {
    fn from(name: Option<String>) -> Self {
        name.map_or(Self::Private, |name| Self::Shared { name })
    }
}

/// A rank's description of one of its segments, sent when it joins.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankInfo {
    /// Rank number.
    pub rank: u32,
    /// Segment of that rank: 0 is the one it started with.
    pub segment_id: u32,
    /// Ranks in the job, as this rank is configured.
    pub world_size: u32,
    /// Random number, new for every life of a segment.
    #[serde(with = "super::hex")]
    pub incarnation: u64,
    /// Boot id of the host: processes with equal ids can share memory.
    #[serde(with = "super::hex")]
    pub boot_id: u64,
    /// The NUMA node to which its memory is bound, if it is bound to one.
    pub numa_node: Option<u32>,
    /// Its host's rack.
    pub rack: RackPath,
    /// Process id, for humans.
    pub pid: u32,
    /// Control address reachable from other hosts.
    pub control: Address,
    /// Unix socket for processes of the same host.
    pub local: Option<Address>,
    /// host:port of the tcp agent.
    pub data: Option<String>,
    /// Devices through which its memory can be reached, as text for people; none if there is no
    /// such device.
    pub fabric: Option<String>,
    /// host:port of the HTTP server with this rank's `/status`, for people's tools.
    pub http: Option<String>,
    /// How other processes of its host can map it.
    pub memory: ExportedMemory,
    /// Where everything lies in the segment, which atomic operations count claims in its log [I1],
    /// and its quarantine.
    pub layout: SegmentLayout,
    /// [`nkv_store::KeyHasher::fingerprint`] of its job, the same at every member [I16].
    #[serde(with = "super::hex")]
    pub key_fingerprint: u64,
    /// The owner touched every memory page at start; a process that maps the segment does the same.
    pub prefault: bool,
    /// Its node has a disk with objects: the owner of this segment answers for it.
    pub disk: bool,
}

impl RankInfo {
    /// Its rank and segment number.
    pub fn id(&self) -> SegmentId {
        SegmentId { rank: self.rank, segment: self.segment_id }
    }
}

/// A membership view, as owners keep it and report it to a later master [I17].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeenView {
    /// Term of the master that sent it.
    pub term: Term,
    /// Grows with every change within the term; 0 for none.
    pub number: u64,
    /// Incarnations that were members.
    pub incarnations: Vec<u64>,
}

impl SeenView {
    /// Later views are greater, across masters.
    pub fn order(&self) -> (Term, u64) {
        (self.term, self.number)
    }
}

/// Whether a view of order `new` is news to a client that keeps one of order `kept`, both sent by
/// whoever was the master. A master that began anew, with no rank left that knew the one before,
/// has the same number of a term and another name, which may be greater or not.
pub fn is_news(new: (Term, u64), kept: (Term, u64)) -> bool {
    match new.0.number.cmp(&kept.0.number) {
        Ordering::Equal => new.0 != kept.0 || new.1 > kept.1,
        other => other == Ordering::Greater,
    }
}

/// The members as the master sees them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct View {
    /// Grows with every change.
    pub number: u64,
    /// Term of the master.
    pub term: Term,
    /// The rank that is the master.
    pub master: u32,
    /// Ranks the job has.
    pub world_size: u32,
    /// Which rank gets a new object.
    pub placement: Placement,
    /// True once every rank has reported or a TTL has passed: then a segment that is not in the
    /// view is gone. Before that it may not have joined yet.
    pub settled: bool,
    /// The members: one entry per segment, in the order of their segments.
    pub ranks: Vec<(RankInfo, RankState)>,
}

/// True if so many ranks may be served: more than half of the world, or half with rank 0.
pub fn is_quorum(n: usize, with_first: bool, world_size: u32) -> bool {
    let world = world_size as usize;
    n * 2 > world || (n * 2 == world && with_first)
}

impl View {
    /// Later views are greater, across masters.
    pub fn order(&self) -> (Term, u64) {
        (self.term, self.number)
    }

    /// One entry per rank that is a member: its first segment.
    pub fn nodes(&self) -> impl Iterator<Item = &(RankInfo, RankState)> {
        self.ranks.iter().filter(|(info, _)| info.id().is_first())
    }

    /// The members whose links to the master were up.
    pub fn linked(&self) -> impl Iterator<Item = &RankInfo> {
        self.nodes().filter(|(_, state)| *state != RankState::Suspect).map(|(info, _)| info)
    }

    /// Whether the master served with these members: an approximation, since it counts answers.
    pub fn has_quorum(&self) -> bool {
        let with_first = self.linked().any(|info| info.rank == 0);
        is_quorum(self.linked().count(), with_first, self.world_size)
    }

    /// The first segment of a rank, if the rank is a member.
    pub fn node(&self, rank: u32) -> Option<&(RankInfo, RankState)> {
        self.nodes().find(|(info, _)| info.rank == rank)
    }

    /// Addresses of a node, nearest first: before its control address, by which it is known, that
    /// for its own host, if that is the one with this boot id.
    pub fn nearest_first(&self, control: Address, boot_id: u64) -> Vec<Address> {
        let here = |info: &&RankInfo| info.control == control && info.boot_id == boot_id;
        let node = self.nodes().map(|(info, _)| info).find(here);
        node.and_then(|info| info.local.clone()).into_iter().chain([control.clone()]).collect()
    }

    /// The segment of an incarnation, if it is a member.
    pub fn member(&self, incarnation: u64) -> Option<&(RankInfo, RankState)> {
        self.ranks.iter().find(|(info, _)| info.incarnation == incarnation)
    }
}

#[cfg(test)]
mod tests {
    use super::{Term, is_news};

    #[test]
    fn a_later_view_is_news_and_so_is_that_of_a_master_that_began_anew() {
        let order = |number, master, n| (Term { number, master }, n);
        for (new, expected) in [
            (order(2, 50, 8), true),
            (order(2, 50, 7), false),
            (order(2, 50, 6), false),
            (order(3, 1, 1), true),
            (order(1, 99, 9), false),
            // As many terms as before, and another name: it knew nobody of them.
            (order(2, 99, 1), true),
            (order(2, 1, 1), true),
        ] {
            assert_eq!(is_news(new, order(2, 50, 7)), expected, "{new:?}");
        }
    }
}
