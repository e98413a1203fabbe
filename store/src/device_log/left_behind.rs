//! Pinned extents that the tail has passed. A view may last long; it holds its bytes, not the log
//! [I9]. The owner claims the same bytes of the next lap itself, so that no producer writes there,
//! and the tail goes on. At the next lap it looks again.

use super::{DeviceLog, Kind};
use crate::error::StoreError;

/// A pinned extent behind the tail.
#[derive(Debug, Clone, Copy)]
pub(super) struct Left {
    pub(super) bytes: u64,
    pub(super) slot: u32,
    pub(super) epoch: u32,
}

impl DeviceLog {
    /// How many bytes of the claim [x, x + n) at the tail the tail may pass now. `own` is the
    /// claim's object, if it is pinned. A pinned extent is passed if nobody will write it in the
    /// next lap; one that is not pinned any more is forgotten. What is not passed stays a claim.
    pub(super) fn leave_behind(
        &mut self,
        (x, n): (u64, u64),
        own: Option<(u32, u32)>,
        unpinned: &impl Fn(u32, u32) -> bool,
        now_ns: u64,
    ) -> Result<u64, StoreError> {
        if let Some((slot, epoch)) = own {
            self.left.insert(x, Left { bytes: n, slot, epoch });
        }
        while let Some((&at, &left)) = self.left.range(x..x + n).next() {
            if unpinned(left.slot, left.epoch) {
                self.left.remove(&at);
                continue;
            }
            if at > x {
                self.split((x, n), at - x);
                return Ok(at - x);
            }
            let next = x + self.layout.log_bytes();
            if !self.claim_over(next, next + left.bytes, now_ns)? {
                return Ok(0);
            }
            self.stuck_since_ns = None;
            self.left.remove(&at);
            self.left.insert(next, left);
            let bytes = left.bytes.min(n);
            self.split((x, n), bytes);
            return Ok(bytes);
        }
        Ok(n)
    }

    /// The rest of a claim that was never readable is a claim of its own.
    fn split(&mut self, (x, n): (u64, u64), first: u64) {
        if first < n {
            self.known.put(x + first, n - first, Kind::Never);
        }
    }

    /// Up to where everything from `from` on, where the limit stands, is claimed and will not be
    /// written.
    fn void_to(&self, from: u64) -> u64 {
        // What the frontier passed above the limit was given up; nothing above it is settled, so a
        // finished hole check makes void all that it is about.
        let mut at = from.max(self.frontier).max(self.clear_below);
        let before = self.ahead.range(..=at).next_back().map_or(at, |(&p, _)| p);
        for (&p, &bytes) in self.ahead.range(before..) {
            if p > at {
                break;
            }
            at = at.max(p + bytes);
        }
        at
    }

    /// Whether nobody will write [from, to), which begins at the limit. If nobody has claimed it,
    /// the owner does, once producers cannot put an object below it any more. False while they can,
    /// or while a claim in it waits for room.
    fn claim_over(&mut self, from: u64, to: u64, now_ns: u64) -> Result<bool, StoreError> {
        let void_to = self.void_to(from);
        if void_to >= to {
            return Ok(true);
        }
        let word = self.layout.claim_word();
        let bump = self.memory.load(word)?;
        if bump > void_to || !bump.is_multiple_of(self.layout.unit()) {
            // If its producer is dead, nobody gives the claim up: a hole check finds out.
            self.stuck_since_ns.get_or_insert(now_ns);
            return Ok(false);
        }
        let largest = self.demand.largest().max(self.layout.unit());
        let full = from.saturating_sub(bump) < largest;
        // Without a producer that claims, or takes plans instead, nothing has to be passed.
        let wanted = self.wanted || self.passed_to != Some(bump);
        if !full || !wanted || !self.rules.owner_claims {
            return Ok(false);
        }
        if self.memory.compare_swap(word, bump, to)? != bump {
            return Ok(false);
        }
        self.ahead.insert(bump, to - bump);
        self.counts.abandoned.add(to - bump);
        self.counts.passed_over.add(to - bump);
        (self.passed_to, self.wanted) = (Some(to), false);
        Ok(true)
    }
}
