//! Types of a listing and of a removal by pattern. Both pass over the keys in rounds, in the order
//! of the keys' identities; a round is one bounded request, and returns where the next one begins.

use super::{KeyBytes, KeyId};
use crate::error::Error;
use nkv_store::Retention;
use serde::{Deserialize, Serialize};

/// Keys that one round checks, and so the most that one answer contains.
pub const KEYS_PER_ROUND: usize = 4096;
/// Longest pattern in bytes.
pub const MAX_PATTERN_BYTES: usize = 4096;

/// The state of a listed key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum KeyState {
    /// A plan for it is open.
    Writing,
    /// Readable.
    Ready,
    /// Readable once its rank's link to the master is back.
    Unreachable,
    /// Its removal is not confirmed yet.
    Removing,
}

impl std::fmt::Display for KeyState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(&format!("{self:?}").to_lowercase())
    }
}

/// One key of a listing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listed {
    /// The key.
    pub key: KeyBytes,
    /// Logical bytes.
    pub bytes_total: u64,
    /// Owner rank.
    pub rank: u32,
    /// Ranks that have further replicas.
    pub others: Vec<u32>,
    /// Ranks, of all these, whose replicas are extra ones.
    pub extras: Vec<u32>,
    /// What its put asked of the evictors, as far as the master knows.
    pub retention: Retention,
    /// Its state.
    pub state: KeyState,
}

/// Which keys a round covers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Selection {
    /// A regular expression that matches anywhere in the key (not anchored); every key if absent.
    pub pattern: Option<String>,
    /// Where the round begins: `next` of the round before, absent in the first.
    pub from: Option<KeyId>,
}

/// The result of a round of removals.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Swept {
    /// Keys whose removal their owners confirmed.
    pub removed: u64,
    /// Objects that disks removed for it; the first round counts them all.
    pub on_disk: u64,
    /// Keys whose removal was not confirmed.
    pub unconfirmed: u64,
    /// Why the first of these was not confirmed, or why the loss of a rank is not known to the
    /// others.
    pub why: Option<Error>,
    /// Where the next round begins; absent at the end.
    pub next: Option<KeyId>,
}

/// What a removal by pattern, or of all keys, removed. An object that was in memory and on a disk
/// counts as both.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Removed {
    /// Keys that were in memory.
    pub in_memory: u64,
    /// Objects that the disks of ranks held.
    pub on_disk: u64,
}

impl Removed {
    /// Whether there was nothing to remove.
    pub fn is_nothing(&self) -> bool {
        *self == Self::default()
    }
}

/// As users read it: `3 keys removed`, with what disks held if that is anything.
impl std::fmt::Display for Removed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { in_memory, on_disk } = self;
        let keys = if *in_memory == 1 { "key" } else { "keys" };
        match on_disk {
            0 => write!(f, "{in_memory} {keys} removed"),
            1 => write!(f, "{in_memory} {keys} removed from memory, 1 object from disk"),
            n => write!(f, "{in_memory} {keys} removed from memory, {n} objects from disk"),
        }
    }
}
