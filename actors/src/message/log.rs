//! Messages about the device log: from owners to the master, from the master to owners, and from
//! producers to the owner whose log they write to. No put waits for any of them.

use super::{KeyBytes, KeyId, ObjectDesc, ReplicaSet};
use serde::{Deserialize, Serialize};

/// An object of a log, as its owner reports it. Its slot is below the segment's `log_slots`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogObjectEntry {
    /// Key string; empty while its producer has not reported it.
    pub key: KeyBytes,
    /// Identity of the key.
    pub id: KeyId,
    /// Header slot.
    pub slot: u32,
    /// Its epoch.
    pub epoch: u32,
    /// Its bytes.
    pub object: ObjectDesc,
    /// The replicas to which it belongs.
    pub set: ReplicaSet,
}

/// An object of log or heap that is served from a copy in the log of its segment now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MovedObject {
    /// Header slot that it was served from.
    pub slot: u32,
    /// Epoch of that slot.
    pub epoch: u32,
    /// The copy; with the key string, unless its producer has not reported it.
    pub to: LogObjectEntry,
}

/// What the master asks the owners of logs when its answer must include objects that are not
/// announced yet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum LogQuestion {
    /// Which of these keys the log serves.
    Find(Vec<KeyId>),
    /// As `Find`; and for this time from now, what the log accepts under these keys is to be sent
    /// as `Accepted`.
    Await {
        /// The keys.
        keys: Vec<KeyId>,
        /// The time, in ms.
        wait_ms: u64,
    },
    /// Retire the objects of these keys; answer which of them the log served.
    Remove(Vec<KeyId>),
    /// Replicas of these sets, which producers named, are not served from now on, also if they are
    /// written later: the keys are being removed.
    EndSets(Vec<(KeyId, u32)>),
    /// Retire every object of the log.
    RemoveAll,
    /// Announce every object whose put has returned, before the answer.
    AnnounceAll,
}

/// Sets of one `EndSets` at most.
pub const MAX_ENDED_SETS: usize = 4 * super::MAX_BATCH;

/// The key of an object that a producer put into a log. Of one in the heap, whose key its owner
/// has, only the group counts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyReport {
    /// Header slot.
    pub slot: u32,
    /// Its epoch.
    pub epoch: u32,
    /// The key string.
    pub key: KeyBytes,
    /// The group that the object belongs to.
    pub group: Option<KeyId>,
}

impl From<Abandoned> for nkv_store::device_log::Abandon {
    fn from(a: Abandoned) -> Self {
        Self { p: a.position, n: a.bytes }
    }
}

/// A claim that a producer abandoned before it wrote anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Abandoned {
    /// Position of the claim.
    pub position: u64,
    /// Bytes of the claim.
    pub bytes: u64,
}
