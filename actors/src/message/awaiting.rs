//! Waiting for objects that are not READY yet, also for those that nobody has opened.

use super::{KeyBytes, ObjMeta, SlotRef};
use crate::error::Error;
use serde::{Deserialize, Serialize};

/// The longest time that the master keeps such a request, in ms. A caller that waits longer sends
/// it again: so what it missed while a rank or the master was started again does not matter.
pub const MAX_AWAIT_MS: u64 = 5_000;

/// Keys that a caller waits for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AwaitReady {
    /// The keys.
    pub keys: Vec<KeyBytes>,
    /// The request is answered after this time at the latest, in ms.
    pub wait_ms: u64,
    /// Incarnations of the segments that the caller maps: there it can watch a header itself.
    pub mapped: Vec<u64>,
    /// Headers that it watches already.
    pub watched: Vec<SlotRef>,
    /// Locations where it found no valid object.
    pub gone: Vec<SlotRef>,
}

/// What became of a key that a caller waits for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Readiness {
    /// It can be read there: at least one location.
    Ready(Vec<ObjMeta>),
    /// A plan writes it into a segment that the caller maps.
    Writing(ObjMeta),
    /// Its plan ended before it was READY, for this reason.
    Ended(Error),
}
