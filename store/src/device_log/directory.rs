//! Who is notified of what becomes of a log's objects, and the numbers kept about them. No
//! decisions.

use crate::key::KeyId;
use crate::layout::ObjHeader;
use crate::object::key_of;

/// A live object of the log: what a location needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogObject {
    /// Identity of its key.
    pub key: KeyId,
    /// Header slot.
    pub slot: u32,
    /// Epoch of the slot.
    pub epoch: u32,
    /// Segment offset of page 0.
    pub payload_base: u64,
    /// Logical bytes.
    pub bytes_total: u64,
    /// Number of pages.
    pub n_pages: u32,
    /// Bytes per page.
    pub page_size: u32,
}

impl LogObject {
    /// What the header of a claim says.
    #[inline]
    pub(super) fn of((slot, epoch): (u32, u32), header: &ObjHeader) -> LogObject {
        LogObject {
            key: key_of(header),
            slot,
            epoch,
            payload_base: header.payload_base,
            bytes_total: header.bytes_total,
            n_pages: header.n_pages,
            page_size: header.page_size,
        }
    }
}

/// What finds the objects of a segment by key: the one-sided index, and with it whoever is notified
/// of every object. Called by the owner alone, in the order that readers rely on: `insert` after
/// the owner word is LIVE, `remove` after it is not.
pub trait Directory {
    /// Whether an object of this key, of the log or not, is served in this segment. Exact: a false
    /// yes refuses a put that was promised, a false no serves two objects of one key [I15].
    fn contains(&self, key: &KeyId) -> bool;
    /// The object is served from now on. After an actor restart again for those that were.
    fn insert(&mut self, object: &LogObject);
    /// The object of that slot and epoch is not served any more. The key is what its header says
    /// now: if they disagree, slot and epoch are right.
    fn remove(&mut self, key: &KeyId, slot: u32, epoch: u32);
    /// A key of this hash will be looked at soon. Only a hint: the header it comes from may be an
    /// old one.
    fn expect(&self, hash: u64) {
        let _nothing_to_fetch = hash;
    }
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

/// What became of the claims since this table was made. The first seven add up, by bytes, to all
/// that is settled.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LogCounts {
    /// Below the tail when the table was made: 0 unless the owner's actor restarted.
    pub before_bytes: u64,
    /// Made LIVE, or found so after an actor restart.
    pub accepted: Sum,
    /// Found retired, or refused, after an actor restart.
    pub found_retired: Sum,
    /// Published, but of a key that was there before.
    pub duplicates: Sum,
    /// Not in one piece, or aborted by its producer.
    pub skipped: Sum,
    /// Given up by its producer while it waited in line.
    pub abandoned: Sum,
    /// Void by the hole rule. Claims cannot be told apart there: ranges are counted.
    pub voided: Sum,
    /// Of those accepted: retired to make room.
    pub evicted: Sum,
    /// Of those accepted: retired because somebody asked.
    pub removed: Sum,
    /// Hole checks begun.
    pub hole_checks: u64,
}

impl LogCounts {
    /// Bytes settled one way or another, of all time.
    pub fn settled_bytes(&self) -> u64 {
        let sums = [
            self.accepted,
            self.found_retired,
            self.duplicates,
            self.skipped,
            self.abandoned,
            self.voided,
        ];
        self.before_bytes + sums.iter().map(|sum| sum.bytes).sum::<u64>()
    }
}

/// What lies in a log now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LogUsage {
    /// Served.
    pub live: Sum,
    /// Retired, in quarantine.
    pub quarantined: Sum,
}
