//! The device log: payloads claimed by one fetch-and-add, without a message, and reclaimed in the
//! order of their claims (docs/reference/log.md). [`LogPut`] is a producer's side, as verbs and
//! decisions; [`OpenClaims`] answers for a process what it has open; [`DeviceLog`] is the owner's:
//! it accepts what producers settled, evicts ahead of demand, and voids what a dead producer left,
//! never without having asked everybody [I14]. It posts no verb, sends no message and reads no
//! clock: answers and times come in as arguments.
//!
//! All claims lie in one order, that of positions. For the owner it is
//!
//! ```text
//! tail          retired_to          frontier         heap_limit        bump_ptr
//!   | retired, held |  live, gaps between  |  not looked at  |  waiting in line |
//! ```
//!
//! and every unit in [tail, frontier) belongs to exactly one known claim or one gap, whatever the
//! headers say: a header that lies can make a hole, or waste its own bytes, but not two claims of
//! one unit.

mod accept;
mod claim;
mod directory;
mod geometry;
mod hole;
mod known;
mod open_claims;
mod rebuild;
mod retire;

pub use accept::AbandonReply;
pub use claim::{
    Abandon, Abort, BUMP_PTR_OFF, Claim, ClaimStep, ClaimWrite, ControlLine, HEAP_LIMIT_OFF,
    LogPut, PlanPath, Skip,
};
pub use directory::{Directory, LogCounts, LogObject, LogUsage, Sum};
pub use geometry::{LogGeometry, MAX_LOG_UNITS, MIN_LOG_UNITS};
pub use hole::{HoleCheck, HoleClear, HoleInquiry};
pub use open_claims::{Entry, Landing, Line, OPEN_CLAIMS, OpenClaim, OpenClaims, Ticket};
pub use retire::Retire;

use crate::error::StoreError;
use crate::layout::{HEADER_BYTES, ObjHeader};
use crate::memory::Memory;
use known::{Kind, KnownClaims, Quarantine};
use std::collections::BTreeMap;
use std::sync::Arc;
use zerocopy::IntoBytes;

/// The spans that the log's rules wait for, in nanoseconds of the clock that the caller asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogTimes {
    /// Quarantine of what was live [I8].
    pub quarantine_ns: u64,
    /// How old a hole is when everybody is asked about it. Longer than any producer waits in line:
    /// who waits has a claim open, and no answer is complete before it gave that up.
    pub claim_ttl_ns: u64,
}

/// Units that nobody is known to have settled.
#[derive(Debug, Clone, Copy)]
struct Gap {
    start: u64,
    end: u64,
    /// Since when its first unit is the first.
    since_ns: u64,
}

/// The log of one segment, as its owner knows it. Only the owner has one: it is the only writer of
/// the log's owner words and of `heap_limit`.
#[derive(Debug)]
pub struct DeviceLog {
    memory: Arc<dyn Memory>,
    geometry: LogGeometry,
    times: LogTimes,
    known: KnownClaims,
    /// Everything below is free; a whole claim ends here.
    tail: u64,
    /// What `heap_limit` says.
    limit: u64,
    /// Nothing in [tail, here) is live.
    retired_to: u64,
    /// Nothing from here on was looked at.
    frontier: u64,
    /// Between tail and frontier, in order, apart.
    gaps: Vec<Gap>,
    /// Abandoned claims at or above the frontier: where, and bytes.
    ahead: BTreeMap<u64, u64>,
    /// Whoever had a claim below has settled it, or writes no more: what is not settled is void.
    clear_below: u64,
    /// The hole check that runs.
    check: Option<u64>,
    quarantine: Quarantine,
    counts: LogCounts,
    usage: LogUsage,
}

impl DeviceLog {
    /// The log of a segment just formatted: makes all of it claimable. `BadSegment` if something
    /// was claimed before. The log's headers are zero, not armed like managed ones: the owner word
    /// of a claim is never LIVE before its owner has accepted it [I15].
    pub fn fresh(
        memory: Arc<dyn Memory>,
        geometry: LogGeometry,
        times: LogTimes,
    ) -> Result<DeviceLog, StoreError> {
        let bump = memory.load(BUMP_PTR_OFF)?;
        if bump != 0 {
            return Err(StoreError::BadSegment(format!(
                "{bump} bytes of its log are claimed though it is new: make another segment"
            )));
        }
        memory.store(HEAP_LIMIT_OFF, geometry.log_bytes())?;
        Ok(DeviceLog::of(memory, geometry, times, 0))
    }

    /// The table of a log of which nothing from `tail` on is known.
    fn of(memory: Arc<dyn Memory>, geometry: LogGeometry, times: LogTimes, tail: u64) -> DeviceLog {
        DeviceLog {
            memory,
            geometry,
            times,
            known: KnownClaims::none(geometry),
            tail,
            limit: geometry.limit(tail),
            retired_to: tail,
            frontier: tail,
            gaps: Vec::new(),
            ahead: BTreeMap::new(),
            clear_below: 0,
            check: None,
            quarantine: Quarantine::default(),
            counts: LogCounts { before_bytes: tail, ..LogCounts::default() },
            usage: LogUsage::default(),
        }
    }

    /// Where the log lies.
    pub fn geometry(&self) -> &LogGeometry {
        &self.geometry
    }

    /// Bytes claimed so far, waiting claims included, as whole units.
    pub fn claimed_bytes(&self) -> Result<u64, StoreError> {
        let bump = self.memory.load(BUMP_PTR_OFF)?;
        Ok(bump - bump % self.geometry.unit())
    }

    /// Bytes that may be claimed, of all time: what `heap_limit` says.
    pub fn heap_limit(&self) -> u64 {
        self.limit
    }

    /// Bytes passed by the tail, of all time.
    pub fn tail(&self) -> u64 {
        self.tail
    }

    /// Positions from here on were not looked at: the next claim that is news begins here.
    pub fn frontier(&self) -> u64 {
        self.frontier
    }

    /// What became of the claims.
    pub fn counts(&self) -> LogCounts {
        self.counts
    }

    /// What lies in the log now.
    pub fn usage(&self) -> LogUsage {
        self.usage
    }

    /// Claimed bytes that are not settled. `counts().settled_bytes()` plus this is
    /// `claimed_bytes()`, at any time.
    pub fn unsettled_bytes(&self) -> Result<u64, StoreError> {
        let gaps: u64 = self.gaps.iter().map(|gap| gap.end - gap.start).sum();
        let ahead: u64 = self.ahead.values().sum();
        let beyond = self.claimed_bytes()?.saturating_sub(self.frontier);
        Ok((gaps + beyond).saturating_sub(ahead))
    }

    /// The object that the slot serves at that epoch, if it does.
    pub fn object(&self, slot: u32, epoch: u32) -> Option<LogObject> {
        let x = self.geometry.position(slot, epoch).filter(|_| self.is_live(slot, epoch))?;
        Some(LogObject::of((slot, epoch), &self.header(x).ok()?))
    }

    /// True if the slot holds a live object at that epoch.
    pub fn is_live(&self, slot: u32, epoch: u32) -> bool {
        let x = self.geometry.position(slot, epoch);
        x.is_some_and(|x| matches!(self.known_at(x), Some((_, Kind::Live))))
    }

    /// Every live object in the order of claims, as its header describes it. For a report after a
    /// new term; walks the whole log.
    pub fn live(&self) -> impl Iterator<Item = LogObject> + '_ {
        let mut x = self.tail;
        std::iter::from_fn(move || {
            while x < self.frontier {
                let at = x;
                let known = self.known_at(at);
                x += known.map_or(self.geometry.unit(), |(bytes, _)| bytes);
                let live = matches!(known, Some((_, Kind::Live)));
                if let (true, Some(epoch)) = (live, self.geometry.epoch(at)) {
                    let header = self.header(at).ok()?;
                    return Some(LogObject::of((self.geometry.slot(at), epoch), &header));
                }
            }
            None
        })
    }

    /// Bytes and kind of the claim that is known to begin at `x`.
    #[inline]
    fn known_at(&self, x: u64) -> Option<(u64, Kind)> {
        // Outside this window a slot belongs to another lap.
        let inside = x >= self.tail && x - self.tail < self.geometry.log_bytes();
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
        let at = self.geometry.header_off(self.geometry.slot(x));
        self.memory.read(at, header.as_mut_bytes())?;
        Ok(header)
    }
}

impl LogGeometry {
    /// The limit that goes with a tail: a lap further, but never past the last epoch [I3].
    fn limit(&self, tail: u64) -> u64 {
        tail.saturating_add(self.log_bytes()).min(self.end())
    }
}

const _: () = assert!(size_of::<ObjHeader>() == HEADER_BYTES as usize);

#[cfg(test)]
mod tests;
