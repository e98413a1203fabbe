//! The hole rule (docs/reference/log.md, section 6): a claim that nobody settled becomes void, but
//! only after every process that could have made it has answered that it has no such claim open, or
//! can write no more [I14]. The types enforce the rule: [`DeviceLog::close_holes`] takes a
//! [`HoleClear`], which only an [`HoleInquiry`] without outstanding producers returns. This file
//! sends no message and has no time limit; the caller fences producers.

use super::{DeviceLog, Directory, Sum};
use crate::error::StoreError;
use std::sync::atomic::{AtomicU64, Ordering};

/// A hole is old enough: the owner must ask every producer. List the producers to ask *after* this
/// value was made: a producer that attaches later claims above.
#[derive(Debug)]
#[must_use = "no other check begins before this one ends"]
pub struct HoleCheck {
    number: u64,
    below: u64,
}

impl HoleCheck {
    /// The position B of the question "have you no claim open below B?".
    pub fn below(&self) -> u64 {
        self.below
    }

    /// Starts the inquiry. `producers` is every process with log rights and every connection that
    /// claims through an agent, including unreachable ones unless they are known to be dead.
    pub fn ask<P: PartialEq>(self, producers: impl IntoIterator<Item = P>) -> HoleInquiry<P> {
        let outstanding = producers.into_iter().collect();
        HoleInquiry { check: self, outstanding, fenced: 0 }
    }
}

/// A hole check in progress: the producers that have not answered yet.
#[derive(Debug)]
#[must_use = "no other check begins before this one ends"]
pub struct HoleInquiry<P> {
    check: HoleCheck,
    outstanding: Vec<P>,
    fenced: u64,
}

impl<P: PartialEq> HoleInquiry<P> {
    /// The position B that the question names.
    pub fn below(&self) -> u64 {
        self.check.below
    }

    /// The producers that have not answered yet.
    pub fn outstanding(&self) -> &[P] {
        &self.outstanding
    }

    /// This producer answered that it has no claim open below (`OpenClaims::clear_below`). The
    /// answer stays true, whatever it claims afterwards.
    pub fn clear(&mut self, producer: &P) {
        self.outstanding.retain(|other| other != producer);
    }

    /// This producer can write no more [I10]: its process is dead, or its connection is revoked
    /// with no operation in flight, or destroyed and drained. A producer that has not answered for
    /// a long time is not fenced.
    pub fn fenced(&mut self, producer: &P) {
        let before = self.outstanding.len();
        self.clear(producer);
        self.fenced += (before - self.outstanding.len()) as u64;
    }

    /// The result, once no producer is outstanding; before that the inquiry itself.
    pub fn all_clear(self) -> Result<HoleClear, HoleInquiry<P>> {
        if self.outstanding.is_empty() {
            Ok(HoleClear { check: self.check, fenced: self.fenced })
        } else {
            Err(self)
        }
    }
}

/// Proof that no producer has a claim open below a position, nor ever will have.
#[derive(Debug)]
pub struct HoleClear {
    check: HoleCheck,
    /// How many producers had to be fenced.
    pub fenced: u64,
}

impl DeviceLog {
    /// Begins a check if the first hole is older than the claim's time to live and no check is in
    /// progress. Only a gap that keeps the tail from moving is a hole; claims that wait above the
    /// limit are not.
    pub fn hole(&mut self, now_ns: u64) -> Result<Option<HoleCheck>, StoreError> {
        static CHECKS: AtomicU64 = AtomicU64::new(0);
        let old = |since: u64| now_ns.saturating_sub(since) > self.rules.claim_ttl_ns;
        let first = self.gaps.first().map(|gap| gap.since_ns);
        if self.check.is_some() || !first.into_iter().chain(self.stuck_since_ns).any(old) {
            return Ok(None);
        }
        let below = self.claimed_bytes()?;
        // Unique in this process: a result about one segment is not valid for another.
        let number = CHECKS.fetch_add(1, Ordering::Relaxed);
        self.check = Some(number);
        self.counts.hole_checks += 1;
        Ok(Some(HoleCheck { number, below }))
    }

    /// Every producer has answered: accepts once more, now reading every unit, and voids what is
    /// still unknown below. Returns the number of ranges voided. A result of another check or of
    /// another segment changes nothing.
    pub fn close_holes<D: Directory + ?Sized>(
        &mut self,
        report: HoleClear,
        now_ns: u64,
        directory: &mut D,
    ) -> Result<Sum, StoreError> {
        if self.check != Some(report.check.number) {
            return Ok(Sum::default());
        }
        self.check = None;
        // The answer stays true: a unit that waits above the limit becomes void once the limit
        // passes it.
        self.clear_below = self.clear_below.max(report.check.below);
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
}
