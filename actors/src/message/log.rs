//! What is said about the device log: by owners to the master, by the master to owners that have
//! one, and by producers to the owner whose log they write to. Nothing of it is waited for by a
//! put.

use super::{KeyBytes, WireKeyId};
use serde::{Deserialize, Serialize};

/// An object of a log, as its owner tells of it. Slots below the segment's `log_slots`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogObjectEntry {
    /// Key string; empty while its producer has not told it.
    pub key: KeyBytes,
    /// Identity of the key.
    pub id: WireKeyId,
    /// Header slot.
    pub slot: u32,
    /// Its epoch.
    pub epoch: u32,
    /// Offset of page 0.
    pub payload_off: u64,
    /// Logical bytes.
    pub bytes_total: u64,
    /// Bytes per page.
    pub page_bytes: u32,
}

/// What the master asks of the owners of logs, where it must not miss what it was not told yet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum LogQuestion {
    /// Which of these do you serve?
    Find(Vec<WireKeyId>),
    /// Take these away; which did you serve?
    Remove(Vec<WireKeyId>),
    /// Take away everything.
    RemoveAll,
}

/// The key of an object that a producer put into a log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyReport {
    /// Header slot.
    pub slot: u32,
    /// Its epoch.
    pub epoch: u32,
    /// The key string.
    pub key: KeyBytes,
}

impl From<Abandoned> for nkv_store::device_log::Abandon {
    fn from(a: Abandoned) -> Self {
        Self { p: a.position, n: a.bytes }
    }
}

/// A claim that a producer gave up before it wrote anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Abandoned {
    /// Position of the claim.
    pub position: u64,
    /// Bytes of the claim.
    pub bytes: u64,
}
