//! The device log: producers claim payload bytes with one fetch-and-add, without a message, and the
//! owner reclaims them in the order of the claims (docs/reference/log.md). [`LogPut`] is the
//! producer's side, as verbs and decisions. [`OpenClaims`] answers for a process which claims it
//! has open. [`DeviceLog`] is the owner's side: it accepts what producers settled, retires objects
//! ahead of demand, and voids what a dead producer left, but only after every producer has answered
//! or is fenced [I14]. It posts no verb, sends no message and reads no clock: answers and times
//! come in as arguments.
//!
//! Claims are ordered by position. The owner divides the positions so:
//! ```text
//! tail          retired_to          frontier         heap_limit        bump_ptr
//!   | retired, held |  live, gaps between  |  not scanned    |  wait for room  |
//! ```
//!
//! Every unit in [tail, frontier) belongs to exactly one known claim or one gap, whatever the
//! headers contain. A wrong header can make a hole or waste its own bytes, but it cannot put two
//! claims on one unit.

mod accept;
mod claim;
mod copier;
mod demand;
mod directory;
mod hole;
mod known;
mod left_behind;
mod log_layout;
mod moves;
mod open_claims;
mod rebuild;
mod retire;

pub use accept::AbandonReply;
pub use claim::{
    Abandon, Abort, BUMP_PTR_OFF, Claim, ClaimStep, ClaimWrite, ControlLine, HEAP_LIMIT_OFF,
    LogPut, Skip,
};
pub use copier::{Copier, Step};
pub use directory::{Directory, LogCounts, LogObject, LogUsage, Sum};
pub use hole::{HoleCheck, HoleClear, HoleInquiry};
pub use log_layout::{LogLayout, MAX_LOG_UNITS, MIN_LOG_UNITS};
pub use moves::Moves;
pub use open_claims::{Entry, Landing, LaunchClaims, Line, OPEN_CLAIMS, OpenClaim, OpenClaims};
pub use retire::Retire;

use crate::error::StoreError;
use crate::layout::ObjHeader;
use crate::memory::Memory;
use crate::quarantine::Quarantine;
use demand::Demand;
use known::{Kind, KnownClaims};
use left_behind::Left;
use moves::Survey;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use zerocopy::IntoBytes;

/// What the log's rules depend on. Times are in nanoseconds of the caller's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogRules {
    /// Quarantine of objects that were live [I8].
    pub quarantine_ns: u64,
    /// Age at which a hole makes the owner ask every producer. It is longer than any producer waits
    /// for room: a producer that waits has a claim open, and its answer is "not yet" until it
    /// abandons that claim.
    pub claim_ttl_ns: u64,
    /// Bytes kept claimable at least, however little producers claim; None: a 128th of the log.
    /// Never more than a quarter.
    pub least_room: Option<u64>,
    /// What is retired can be read from a disk: then the time of producers, and of reads from that
    /// disk, is worth more than what is kept.
    pub on_disk: bool,
    /// Whether the owner may claim: it is in the atomic domain of the word [I1].
    pub owner_claims: bool,
}

impl LogRules {
    /// Rules with these times that keep a quarter of the log claimable.
    pub const fn with_a_quarter_free(quarantine_ns: u64, claim_ttl_ns: u64) -> Self {
        LogRules {
            quarantine_ns,
            claim_ttl_ns,
            least_room: Some(u64::MAX),
            on_disk: false,
            owner_claims: true,
        }
    }
}

/// A range of units that are not known to be settled.
#[derive(Debug, Clone, Copy)]
struct Gap {
    start: u64,
    end: u64,
    /// Time since which `start` is the first unit of the gap.
    since_ns: u64,
}

/// The log of one segment: the owner's state. Only the owner has one, as the only writer of the
/// log's owner words and of `heap_limit`.
#[derive(Debug)]
pub struct DeviceLog {
    memory: Arc<dyn Memory>,
    layout: LogLayout,
    rules: LogRules,
    known: KnownClaims,
    /// Every position below is free; a claim ends exactly here.
    tail: u64,
    /// Value of the word `heap_limit`.
    limit: u64,
    /// Nothing in [tail, `retired_to`) is live.
    retired_to: u64,
    /// The owner has read no header from here on.
    frontier: u64,
    /// Gaps between tail and frontier, in order; no two of them touch.
    gaps: Vec<Gap>,
    /// Abandoned claims at or above the frontier: position, bytes.
    ahead: BTreeMap<u64, u64>,
    /// Every claim below is settled or its producer is fenced: a unit below that is not settled is
    /// void.
    clear_below: u64,
    /// Number of the hole check in progress.
    check: Option<u64>,
    /// Positions of retired claims.
    quarantine: Quarantine<u64>,
    /// Pinned extents behind the tail, by their position in the lap that the tail is in or comes to
    /// next.
    left: BTreeMap<u64, Left>,
    /// Since when a claim that somebody may still write keeps the tail at a pinned extent.
    stuck_since_ns: Option<u64>,
    /// End of the owner's last claim over a pinned extent.
    passed_to: Option<u64>,
    /// A producer took a plan since, maybe for want of room.
    wanted: bool,
    moves: Arc<Moves>,
    survey: Survey,
    /// Since when retiring waits for copies.
    copying_since_ns: Option<u64>,
    awaits_copy: bool,
    demand: Demand,
    /// Bytes of live objects that were read, each as often as it was.
    read_bytes: u64,
    /// What was claimed when the word was read last.
    claimed_seen: AtomicU64,
    counts: LogCounts,
    usage: LogUsage,
}

impl DeviceLog {
    /// The log of a segment just formatted, all of it claimable. `BadSegment` if something was
    /// claimed before. The log's headers are zero, not armed like heap slots: the owner word of a
    /// claim is never LIVE before the owner has accepted the claim [I15].
    pub fn fresh(
        memory: Arc<dyn Memory>,
        layout: LogLayout,
        rules: LogRules,
        moves: Arc<Moves>,
    ) -> Result<DeviceLog, StoreError> {
        let bump = memory.load(layout.claim_word())?;
        if bump != 0 {
            return Err(StoreError::BadSegment(format!(
                "{bump} bytes of its log are claimed though it is new: make another segment"
            )));
        }
        memory.store(HEAP_LIMIT_OFF, layout.log_bytes())?;
        Ok(DeviceLog::of((memory, layout), rules, moves, 0))
    }

    /// An empty table of a log of which nothing from `tail` on is known.
    fn of(
        (memory, layout): (Arc<dyn Memory>, LogLayout),
        rules: LogRules,
        moves: Arc<Moves>,
        tail: u64,
    ) -> DeviceLog {
        DeviceLog {
            memory,
            layout,
            rules,
            known: KnownClaims::none(layout),
            tail,
            limit: layout.limit(tail),
            retired_to: tail,
            frontier: tail,
            gaps: Vec::new(),
            ahead: BTreeMap::new(),
            clear_below: 0,
            check: None,
            quarantine: Quarantine::default(),
            left: BTreeMap::new(),
            stuck_since_ns: None,
            passed_to: None,
            wanted: false,
            moves,
            survey: Survey::default(),
            copying_since_ns: None,
            awaits_copy: false,
            demand: Demand::new(rules.quarantine_ns, rules.least_room, rules.on_disk),
            read_bytes: 0,
            claimed_seen: AtomicU64::new(tail),
            counts: LogCounts { before_bytes: tail, ..LogCounts::default() },
            usage: LogUsage::default(),
        }
    }

    /// SegmentLayout of the log.
    pub fn layout(&self) -> &LogLayout {
        &self.layout
    }

    /// Bytes claimed so far, waiting claims included, as whole units.
    pub fn claimed_bytes(&self) -> Result<u64, StoreError> {
        let bump = self.memory.load(self.layout.claim_word())?;
        let claimed = bump - bump % self.layout.unit();
        self.claimed_seen.store(claimed, Ordering::Relaxed);
        Ok(claimed)
    }

    /// The same for what may be a pass over the log behind: a word in the memory of a GPU is not
    /// read again.
    pub fn claimed_lately(&self) -> Result<u64, StoreError> {
        match self.layout.claims_by_hosts() {
            true => self.claimed_bytes(),
            false => Ok(self.claimed_seen.load(Ordering::Relaxed)),
        }
    }

    /// The first position of which the owner has read no header: the next new claim begins here.
    pub fn frontier(&self) -> u64 {
        self.frontier
    }

    /// Counts of claims by outcome.
    pub fn counts(&self) -> LogCounts {
        self.counts
    }

    /// Claims and bytes that are in the log now.
    pub fn usage(&self) -> LogUsage {
        self.usage
    }

    /// Claimed bytes that are not settled.
    pub fn unsettled_bytes(&self) -> Result<u64, StoreError> {
        let gaps: u64 = self.gaps.iter().map(|gap| gap.end - gap.start).sum();
        let ahead: u64 = self.ahead.values().sum();
        let beyond = self.claimed_bytes()?.saturating_sub(self.frontier);
        Ok((gaps + beyond).saturating_sub(ahead))
    }

    /// The live object in that slot at that epoch, if there is one.
    pub fn object(&self, slot: u32, epoch: u32) -> Option<LogObject> {
        let x = self.layout.position(slot, epoch).filter(|_| self.is_live(slot, epoch))?;
        Some(LogObject::of((slot, epoch), &self.header(x).ok()?))
    }

    /// True if the slot holds a live object at that epoch.
    pub fn is_live(&self, slot: u32, epoch: u32) -> bool {
        let x = self.layout.position(slot, epoch);
        x.is_some_and(|x| matches!(self.known_at(x), Some((_, Kind::Live))))
    }

    /// Every live object in the order of claims, as its header describes it. For the report to a
    /// new term; walks the whole log.
    pub fn live(&self) -> impl Iterator<Item = LogObject> + '_ {
        let mut x = self.tail;
        std::iter::from_fn(move || {
            while x < self.frontier {
                let at = x;
                let known = self.known_at(at);
                x += known.map_or(self.layout.unit(), |(bytes, _)| bytes);
                let live = matches!(known, Some((_, Kind::Live)));
                if let (true, Some(epoch)) = (live, self.layout.epoch(at)) {
                    let header = self.header(at).ok()?;
                    return Some(LogObject::of((self.layout.slot(at), epoch), &header));
                }
            }
            None
        })
    }

    /// Bytes and kind of the claim that is known to begin at `x`.
    #[inline]
    fn known_at(&self, x: u64) -> Option<(u64, Kind)> {
        // Outside this window a slot belongs to another lap.
        let inside = x >= self.tail && x - self.tail < self.layout.log_bytes();
        if inside { self.known.at(x) } else { None }
    }

    /// The first unit not known to be settled.
    fn first_unknown(&self) -> u64 {
        self.gaps.first().map_or(self.frontier, |gap| gap.start)
    }

    /// The header of a position. The caller has seen its publish word (acquire).
    #[inline]
    fn header(&self, x: u64) -> Result<ObjHeader, StoreError> {
        let mut header = ObjHeader::default();
        let at = self.layout.header_off(self.layout.slot(x));
        self.memory.read(at, header.as_mut_bytes())?;
        Ok(header)
    }
}

impl LogLayout {
    /// The limit that belongs to a tail: L bytes above it, but at most the end of the last epoch
    /// [I3].
    fn limit(&self, tail: u64) -> u64 {
        tail.saturating_add(self.log_bytes()).min(self.end())
    }
}

#[cfg(test)]
mod tests;
