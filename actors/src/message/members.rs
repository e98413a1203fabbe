//! Ranks as they describe themselves, and the view of all of them.

use super::Term;
use nkv_transport::wire::Address;
use serde::{Deserialize, Serialize};

/// Whether a rank may be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum RankState {
    /// Joined and heard of.
    Alive,
    /// Its link broke; gone after the TTL unless it comes back.
    Suspect,
    /// Shutting down: serves what it has, takes no new plan.
    Draining,
}

impl std::fmt::Display for RankState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Alive => "alive",
            Self::Suspect => "suspect",
            Self::Draining => "draining",
        })
    }
}

/// What a rank tells of itself when it joins.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankInfo {
    /// Rank number.
    pub rank: u32,
    /// Ranks in the job, as this rank was told.
    pub world_size: u32,
    /// Random, new with every segment.
    pub incarnation: u64,
    /// Boot id of the host: equal ids share memory.
    pub boot_id: u64,
    /// Process id, for humans.
    pub pid: u32,
    /// Control address reachable from other hosts.
    pub control: Address,
    /// Unix socket for processes of the same host.
    pub local: Option<Address>,
    /// host:port of the tcp agent.
    pub data: Option<String>,
    /// host:port of the HTTP server with this rank's `/status`, for people's tools.
    pub http: Option<String>,
    /// File name of the shared segment; empty if private to the process.
    pub segment: String,
    /// Length of the segment.
    pub segment_bytes: u64,
    /// Header slots.
    pub slots: u32,
    /// Offset of the header arena.
    pub header_base: u64,
    /// Offset of the payload arena.
    pub arena_offset: u64,
    /// Length of the payload arena.
    pub arena_bytes: u64,
    /// Quarantine of this incarnation.
    pub quarantine_ms: u32,
    /// The owner took every page at start; who maps the segment does the same.
    pub prefault: bool,
}

/// Who was a member when, as owners keep it and report it to a later master [I17].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeenView {
    /// Term of the master that said so.
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

/// The members as the master sees them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct View {
    /// Grows with every change.
    pub number: u64,
    /// Term of the master.
    pub term: Term,
    /// Ranks the job has.
    pub world_size: u32,
    /// The members.
    pub ranks: Vec<(RankInfo, RankState)>,
}
