//! The hole rule (docs/reference/log.md, section 6): a claim that nobody settled becomes void, but
//! only after every process that could have made it has said that it has none open, or can write no
//! more [I14]. The types are the rule: [`DeviceLog::close_holes`] takes an [`HoleClear`], which
//! only an [`HoleInquiry`] without anybody left makes. It sends no question and knows no time
//! limit; fencing is the caller's.

use super::{DeviceLog, Directory, Sum};
use crate::error::StoreError;
use std::sync::atomic::{AtomicU64, Ordering};

/// A hole is old enough: everybody is to be asked. Take the list of those to ask *after* this was
/// made: who comes later claims above.
#[derive(Debug)]
#[must_use = "no other check begins before this one ends"]
pub struct HoleCheck {
    number: u64,
    below: u64,
}

impl HoleCheck {
    /// The question is: "is nothing of yours open below this position?"
    pub fn below(&self) -> u64 {
        self.below
    }

    /// Asks these: every process with log rights, and every connection that claims through an
    /// agent, those that are not heard of any more included unless they are surely dead.
    pub fn ask<P: PartialEq>(self, producers: impl IntoIterator<Item = P>) -> HoleInquiry<P> {
        let outstanding = producers.into_iter().collect();
        HoleInquiry { number: self.number, below: self.below, outstanding, fenced: 0 }
    }
}

/// A check under way: who has not answered yet.
#[derive(Debug)]
#[must_use = "no other check begins before this one ends"]
pub struct HoleInquiry<P> {
    number: u64,
    below: u64,
    outstanding: Vec<P>,
    fenced: u64,
}

impl<P: PartialEq> HoleInquiry<P> {
    /// The position asked about.
    pub fn below(&self) -> u64 {
        self.below
    }

    /// Who is still to answer.
    pub fn outstanding(&self) -> &[P] {
        &self.outstanding
    }

    /// This one answered that nothing of its is open below (`OpenClaims::clear_below`). The answer
    /// stays true, whatever it claims afterwards.
    pub fn clear(&mut self, producer: &P) {
        self.outstanding.retain(|other| other != producer);
    }

    /// This one can write no more [I10]: its process is dead, or its connection is revoked with
    /// nobody inside, or destroyed and drained. Not: "has not answered for long".
    pub fn fenced(&mut self, producer: &P) {
        let before = self.outstanding.len();
        self.clear(producer);
        self.fenced += (before - self.outstanding.len()) as u64;
    }

    /// The report, once nobody is outstanding.
    pub fn all_clear(self) -> Result<HoleClear, HoleInquiry<P>> {
        if self.outstanding.is_empty() {
            Ok(HoleClear { number: self.number, below: self.below, fenced: self.fenced })
        } else {
            Err(self)
        }
    }
}

/// Nobody has a claim open below a position, nor ever will have.
#[derive(Debug)]
pub struct HoleClear {
    number: u64,
    below: u64,
    fenced: u64,
}

impl HoleClear {
    /// How many had to be fenced.
    pub fn fenced(&self) -> u64 {
        self.fenced
    }
}

impl DeviceLog {
    /// Begins a check if the first hole is older than the claim's time to live and no check runs.
    /// Only what keeps the tail from moving is a hole: claims that wait above the limit are not.
    pub fn hole(&mut self, now_ns: u64) -> Result<Option<HoleCheck>, StoreError> {
        static CHECKS: AtomicU64 = AtomicU64::new(0);
        let old = |since: u64| now_ns.saturating_sub(since) > self.times.claim_ttl_ns;
        if self.check.is_some() || !self.gaps.first().is_some_and(|gap| old(gap.since_ns)) {
            return Ok(None);
        }
        let below = self.claimed_bytes()?;
        // Of its own in this process: a report about one segment is none about another.
        let number = CHECKS.fetch_add(1, Ordering::Relaxed);
        self.check = Some(number);
        self.counts.hole_checks += 1;
        Ok(Some(HoleCheck { number, below }))
    }

    /// Everybody answered: accepts once more, now looking at every unit, and voids what is still
    /// unknown below; the ranges voided. A report of another check, or of another segment, changes
    /// nothing.
    pub fn close_holes<D: Directory + ?Sized>(
        &mut self,
        report: HoleClear,
        now_ns: u64,
        directory: &mut D,
    ) -> Result<Sum, StoreError> {
        if self.check != Some(report.number) {
            return Ok(Sum::default());
        }
        self.check = None;
        // The answer stays true: what waits above the limit is void when the limit comes to it.
        self.clear_below = self.clear_below.max(report.below);
        let before = self.counts.voided;
        self.accept(now_ns, directory)?;
        let after = self.counts.voided;
        let voided =
            Sum { claims: after.claims - before.claims, bytes: after.bytes - before.bytes };
        if voided.bytes > 0 {
            tracing::warn!(
                ranges = voided.claims,
                bytes = voided.bytes,
                fenced = report.fenced,
                "claims of the device log became void: their producers are gone"
            );
        }
        Ok(voided)
    }

    /// Forgets the check that runs, so that another may begin: whoever asked has lost track of it.
    pub fn drop_check(&mut self) {
        self.check = None;
    }
}
