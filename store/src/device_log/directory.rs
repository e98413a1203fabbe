//! The interface that is notified of every change of a log's objects, and the counters of those
//! changes. It decides nothing.

use crate::key::KeyId;
use crate::layout::ObjHeader;
use crate::object::{ObjectDesc, SetMark, key_of};

/// A live object of the log: what a location needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogObject {
    /// Identity of its key.
    pub key: KeyId,
    /// Header slot.
    pub slot: u32,
    /// Epoch of the slot.
    pub epoch: u32,
    /// As its header describes it.
    pub object: ObjectDesc,
    /// The replicas to which its producer said that it belongs.
    pub mark: SetMark,
}

impl LogObject {
    /// The object that the header of a claim describes.
    #[inline]
    pub(super) fn of((slot, epoch): (u32, u32), header: &ObjHeader) -> LogObject {
        let (key, object) = (key_of(header), ObjectDesc::of_header(header));
        LogObject { key, slot, epoch, object, mark: SetMark::of_word(header.n_pages) }
    }
}

/// Finds the objects of a segment by key: the one-sided index, together with anything that must be
/// notified of each object. Only the owner calls it, in the order that readers rely on: `insert`
/// after the owner word is LIVE, `remove` after it is no longer LIVE.
pub trait Directory {
    /// Whether an object of this key, in the log or in the heap, is served in this segment. Exact:
    /// a false yes refuses a put that must succeed, a false no serves two objects of one key [I15].
    fn contains(&self, key: &KeyId) -> bool;
    /// Whether an object that was settled now must not be served: it was removed before.
    fn refuses(&self, _object: &LogObject) -> bool {
        false
    }
    /// The object is served from now on. Called again after an actor restart for objects served
    /// before.
    fn insert(&mut self, object: &LogObject);
    /// The object of that slot and epoch is no longer served. `key` is read from the header at this
    /// time: if it disagrees with slot and epoch, slot and epoch are right.
    fn remove(&mut self, key: &KeyId, slot: u32, epoch: u32);
    /// The live object of the heap in that slot at that epoch.
    fn in_heap(&self, _slot: u32, _epoch: u32) -> Option<LogObject> {
        None
    }
    /// Whether the key leads to that slot: not any more once a copy of its object is served.
    fn serves(&self, _key: &KeyId, _slot: u32) -> bool {
        true
    }
    /// The object of `from` (slot, epoch) is served from its copy from now on; its header is LIVE
    /// until this returns. If it is of the heap, the caller of `accept` ends it.
    fn moved(&mut self, copy: &LogObject, from: (u32, u32)) {
        self.insert(copy);
        self.remove(&copy.key, from.0, from.1);
    }
    /// A key of this hash will be looked up soon. Only a hint: the header that it comes from may be
    /// an old one.
    fn expect(&self, _: u64) {}
}

/// A number of claims, and their bytes in whole units.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sum {
    /// How many.
    pub claims: u64,
    /// Bytes of all of them.
    pub bytes: u64,
}

impl Sum {
    pub(super) fn add(&mut self, bytes: u64) {
        self.claims += 1;
        self.bytes += bytes;
    }

    pub(super) fn sub(&mut self, bytes: u64) {
        self.claims = self.claims.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(bytes);
    }
}

/// Counts of claims by outcome since this table was created. The first eight add up, in bytes, to
/// everything that is settled.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LogCounts {
    /// Bytes below the tail when the table was created: 0 unless the owner's actor restarted.
    pub before_bytes: u64,
    /// Made LIVE, or found LIVE after an actor restart.
    pub accepted: Sum,
    /// Found retired or refused after an actor restart.
    pub found_retired: Sum,
    /// READY, but the key was served already.
    pub duplicates: Sum,
    /// Copies of objects that had ended when the owner accepted the copy.
    pub stale_copies: Sum,
    /// DEAD: across the end of the log, or aborted by the producer.
    pub skipped: Sum,
    /// Given up by the producer while it waited for room.
    pub abandoned: Sum,
    /// Void by the hole rule. `claims` counts ranges here, since single claims cannot be
    /// distinguished.
    pub voided: Sum,
    /// Accepted copies of objects, also counted as accepted.
    pub copies: Sum,
    /// Copies of objects of the heap among them.
    pub spills: Sum,
    /// Objects that had been read and were retired all the same: not copied in time.
    pub lost_reads: Sum,
    /// Claims of the owner over pinned extents, also counted as abandoned.
    pub passed_over: Sum,
    /// Accepted claims that were retired to make room.
    pub evicted: Sum,
    /// Accepted claims that were retired on request.
    pub removed: Sum,
    /// Hole checks begun.
    pub hole_checks: u64,
}

/// Claims and bytes that are in a log now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LogUsage {
    /// Served.
    pub live: Sum,
    /// Retired, in quarantine.
    pub quarantined: Sum,
}
