//! The owner records what producers settled, in any order (docs/reference/log.md, section 4). Other
//! processes wrote the headers: a header that is not consistent is ignored, and its units stay a
//! hole. This file neither retires nor voids by its own decision: a finished hole check decides
//! what is void.

use super::{Abandon, DeviceLog, Directory, Gap, Kind, LogObject};
use crate::error::StoreError;
use crate::key::KeyId;
use crate::layout::{
    HEADER_BYTES, LAST_ACCESS_OFF, OWNER_OFF, PUBLISH_OFF, epoch_of, flag, low, word,
};
use crate::object::{dead, ready, writing};
use crate::words::Words;
use std::collections::HashSet;

/// Most abandoned claims kept above the frontier. A producer claims above the limit at most once
/// until the limit moves, so correct producers stay far below. A claim beyond this number becomes a
/// hole.
const MAX_AHEAD: usize = 4096;

/// Units ahead of the walk at which a header is prefetched from the cache of the core that wrote
/// it; then (`KEYS_AHEAD`), the header having arrived, at which the directory prefetches by its
/// key.
const HEADERS_AHEAD: u64 = 16;
const KEYS_AHEAD: u64 = 8;

/// Which publish and owner words a pass over unknown units accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pass {
    /// Claims that producers settled.
    Accept,
    /// Claims that the owner itself accepted before its actor restarted.
    Rebuild,
}

/// Content of the header of an unknown unit.
enum Seen {
    /// Nothing in one unit; or a claim of so many bytes is being written, if the header is correct.
    Unsettled(u64),
    /// A claim of so many bytes that is DEAD; or READY: the object, the owner word.
    Settled(u64, Option<(LogObject, u64)>),
}

/// The answer to an [`Abandon`]. In every case the producer needs to do nothing more for its claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AbandonReply {
    /// The claim is settled now.
    Noted,
    /// The claim was settled before.
    Already,
    /// There is no such claim, or no entry is free to record it. If it was a claim, it becomes a
    /// hole.
    Refused,
}

impl DeviceLog {
    /// Accepts every settled claim, and voids what a finished hole check permits. Returns how many
    /// claims and void ranges became known. Cheap if nothing is new. After an error (such as a lost
    /// device) the call may be repeated.
    pub fn accept<D: Directory + ?Sized>(
        &mut self,
        now_ns: u64,
        directory: &mut D,
    ) -> Result<u64, StoreError> {
        self.pass(Pass::Accept, now_ns, directory)
    }

    /// One walk over all unknown units below both the claimed bytes and the limit.
    pub(super) fn pass<D: Directory + ?Sized>(
        &mut self,
        pass: Pass,
        now_ns: u64,
        directory: &mut D,
    ) -> Result<u64, StoreError> {
        let mut walk =
            Walk { pass, now_ns, directory, settled: 0, gaps: Vec::new(), rebuilt: HashSet::new() };
        self.take_abandoned()?;
        let claimed = self.claimed_bytes()?;
        let by_others = claimed.saturating_sub(self.counts.passed_over.bytes);
        let left = self.limit.saturating_sub(claimed);
        let most = self.layout.max_claim();
        self.demand.observe(now_ns, by_others, left, most, self.read_bytes);
        let cap = claimed.min(self.limit);
        let mut gaps = std::mem::take(&mut self.gaps);
        // A gap that ends at the frontier may be the start of a claim that waited there and extends
        // beyond.
        let open_ended = gaps.pop_if(|gap| gap.end == self.frontier);
        let mut result = Ok(());
        for gap in gaps {
            match result {
                Ok(()) => result = self.walk(gap, &mut walk),
                Err(_) => walk.gaps.push(gap),
            }
        }
        let fresh = Gap { start: self.frontier, end: self.frontier, since_ns: now_ns };
        let last = open_ended.unwrap_or(fresh);
        // Also after an error: it keeps as gaps what it did not reach.
        let result = result.and(self.walk_frontier(last, cap, &mut walk));
        self.gaps = walk.gaps;
        let settled = walk.settled;
        result.map(|()| settled)
    }

    /// Walks from the last gap over the units not scanned yet, and skips claims abandoned ahead.
    fn walk_frontier<D: Directory + ?Sized>(
        &mut self,
        mut gap: Gap,
        cap: u64,
        walk: &mut Walk<'_, D>,
    ) -> Result<(), StoreError> {
        loop {
            let ahead = self.ahead.first_key_value().map_or(u64::MAX, |(&p, _)| p);
            gap.end = cap.max(self.frontier).min(ahead);
            self.frontier = gap.end;
            self.walk(gap, walk)?;
            let Some((p, bytes)) = self.ahead.pop_first() else {
                return Ok(());
            };
            if p >= cap {
                self.ahead.insert(p, bytes);
                return Ok(());
            }
            self.known.put(p, bytes, Kind::Never);
            self.frontier = p + bytes;
            gap = Gap { start: self.frontier, end: self.frontier, since_ns: walk.now_ns };
        }
    }

    /// Reads the headers of one gap. What is settled becomes known; the rest stays a gap, or
    /// becomes void below a finished check. After an error the rest stays a gap.
    fn walk<D: Directory + ?Sized>(
        &mut self,
        gap: Gap,
        walk: &mut Walk<'_, D>,
    ) -> Result<(), StoreError> {
        let mut x = gap.start;
        let mut from = x;
        self.fetch_headers(x, gap.end);
        while x < gap.end {
            self.prefetch_ahead(x, gap.end, walk.directory);
            let step = self.read_claim(x, gap.end, walk.pass).and_then(|seen| match seen {
                // Only a hint until the claim is settled: below `clear_below` every unit is read.
                Seen::Unsettled(n) if x >= self.clear_below => Ok(x + n),
                Seen::Unsettled(_) => Ok(x + self.layout.unit()),
                Seen::Settled(n, ready) => {
                    self.unknown(gap, (from, x), walk);
                    from = x;
                    match ready {
                        Some((object, owner)) => self.settle_ready((x, n), &object, owner, walk)?,
                        None => {
                            self.known.put(x, n, Kind::Never);
                            self.counts.skipped.add(n);
                        }
                    }
                    walk.settled += 1;
                    from = x + n;
                    Ok(from)
                }
            });
            match step {
                Ok(next) => x = next,
                Err(error) => {
                    walk.keep(gap, from, gap.end);
                    return Err(error);
                }
            }
        }
        self.unknown(gap, (from, gap.end), walk);
        Ok(())
    }

    /// Units that were read and are not settled: void as far as a finished check permits, else a
    /// gap.
    fn unknown<D: ?Sized>(&mut self, gap: Gap, (from, to): (u64, u64), walk: &mut Walk<'_, D>) {
        let void_to = to.min(self.clear_below);
        if from < void_to {
            self.known.put(from, void_to - from, Kind::Never);
            self.counts.voided.add(void_to - from);
            walk.settled += 1;
        }
        walk.keep(gap, from.max(void_to), to);
    }

    /// Prefetches the headers that a walk from `x` reads first.
    pub(super) fn fetch_headers(&self, x: u64, end: u64) {
        let first = (x..end).step_by(self.layout.unit() as usize).take(HEADERS_AHEAD as usize);
        for x in first {
            let at = self.layout.header_off(self.layout.slot(x));
            Words::prefetch(&*self.memory, at, HEADER_BYTES);
        }
    }

    /// Prefetches what a walk that is at `x` and ends at `end` will read. Does nothing for memory
    /// that the CPU cannot access: a hint does not justify an access to a device.
    #[inline]
    pub(super) fn prefetch_ahead<D: Directory + ?Sized>(&self, x: u64, end: u64, directory: &D) {
        if self.memory.host_base().is_none() {
            return;
        }
        let header_off = |x: u64| self.layout.header_off(self.layout.slot(x));
        let (far, near) =
            (x + HEADERS_AHEAD * self.layout.unit(), x + KEYS_AHEAD * self.layout.unit());
        if far < end {
            Words::prefetch(&*self.memory, header_off(far), HEADER_BYTES);
        }
        if near < end
            && let Ok(hash) = self.memory.load(header_off(near))
        {
            directory.expect(hash);
        }
    }

    /// The claim that begins at `x`, if its header meets the conditions of docs/reference/log.md,
    /// section 4: this epoch, its own position, a size that a claim can have, inside [x, end).
    #[inline]
    fn read_claim(&self, x: u64, end: u64, pass: Pass) -> Result<Seen, StoreError> {
        let nothing = Ok(Seen::Unsettled(self.layout.unit()));
        let Some(epoch) = self.layout.epoch(x) else {
            return nothing;
        };
        let slot = self.layout.slot(x);
        let at = self.layout.header_off(slot);
        let publish = self.memory.load(at + PUBLISH_OFF)?;
        if ![ready(epoch), dead(epoch), writing(epoch)].contains(&publish) {
            return nothing;
        }
        let header = self.header(x)?;
        let n = self.layout.claim_bytes(header.bytes_total).filter(|n| *n <= end - x);
        let Some(n) = n.filter(|_| header.payload_base == self.layout.payload_off(x)) else {
            return nothing;
        };
        if pass == Pass::Rebuild && epoch_of(header.owner) != epoch {
            return nothing;
        }
        match publish {
            p if p == dead(epoch) => Ok(Seen::Settled(n, None)),
            _ if self.layout.wraps(x, n) => nothing,
            p if p == ready(epoch) => {
                let object = LogObject::of((slot, epoch), &header);
                Ok(Seen::Settled(n, Some((object, header.owner))))
            }
            _ => Ok(Seen::Unsettled(n)),
        }
    }

    /// Settles a READY claim: live, a duplicate, or its state from before the actor restarted.
    fn settle_ready<D: Directory + ?Sized>(
        &mut self,
        (x, n): (u64, u64),
        object: &LogObject,
        owner: u64,
        walk: &mut Walk<'_, D>,
    ) -> Result<(), StoreError> {
        let at = self.layout.header_off(object.slot);
        if epoch_of(owner) == object.epoch && low(owner) & flag::LIVE == 0 {
            self.counts.found_retired.add(n);
            self.hold(x, n, walk.now_ns);
            return Ok(());
        }
        if walk.pass == Pass::Accept {
            if let Some(from) = self.move_to(x) {
                self.settle_move((x, n), object, from, walk.now_ns, walk.directory)?;
                // Only now: after an error the claim must still be known as a copy [I6].
                self.forget_move(x);
                return Ok(());
            }
            if walk.directory.contains(&object.key) || walk.directory.refuses(object) {
                self.memory.store(at + OWNER_OFF, word(0, object.epoch))?;
                self.known.put(x, n, Kind::Never);
                self.counts.duplicates.add(n);
                return Ok(());
            }
            self.memory.store(at + LAST_ACCESS_OFF, walk.now_ns / 1_000_000)?;
            self.memory.store(at + OWNER_OFF, word(flag::LIVE, object.epoch))?;
        } else if self.copies_heap(x, walk.directory) || !walk.rebuilt.insert(object.key) {
            // The actor ended between a copy's LIVE and its original's end: one of them is enough.
            self.memory.store(at + OWNER_OFF, word(0, object.epoch))?;
            self.counts.found_retired.add(n);
            self.hold(x, n, walk.now_ns);
            return Ok(());
        }
        self.demand.object(n, x, self.layout.log_bytes());
        walk.directory.insert(object);
        self.known.put(x, n, Kind::Live);
        self.counts.accepted.add(n);
        self.usage.live.add(n);
        Ok(())
    }

    /// Records that a producer gave up a claim without having written to it. Only a whole claim
    /// that is not settled yet is recorded; a repeated call is harmless.
    pub fn abandon(&mut self, claim: Abandon) -> Result<AbandonReply, StoreError> {
        let Abandon { p, n } = claim;
        let end = p.saturating_add(n);
        if !self.layout.is_claim(p, n) || end > self.claimed_bytes()? {
            return Ok(AbandonReply::Refused);
        }
        if p < self.tail {
            return Ok(AbandonReply::Already);
        }
        let reply = if p >= self.frontier {
            self.abandon_ahead(p, n)
        } else if let Some(known) = self.known_at(p) {
            if known == (n, Kind::Never) { AbandonReply::Already } else { AbandonReply::Refused }
        } else {
            self.abandon_in_gap(p, end)
        };
        if reply == AbandonReply::Noted {
            self.counts.abandoned.add(n);
        }
        Ok(reply)
    }

    fn abandon_ahead(&mut self, p: u64, n: u64) -> AbandonReply {
        if self.ahead.get(&p) == Some(&n) {
            return AbandonReply::Already;
        }
        let before = self.ahead.range(..p).next_back();
        let overlaps = before.is_some_and(|(start, bytes)| start + bytes > p)
            || self.ahead.range(p..p + n).next().is_some();
        if overlaps || self.ahead.len() >= MAX_AHEAD {
            return AbandonReply::Refused;
        }
        self.ahead.insert(p, n);
        AbandonReply::Noted
    }

    /// Takes [p, end) out of the gap it lies in. A claim in the last gap may extend above the
    /// frontier, because the limit was there.
    fn abandon_in_gap(&mut self, p: u64, end: u64) -> AbandonReply {
        let Some(i) = self.gaps.iter().position(|gap| (gap.start..gap.end).contains(&p)) else {
            return AbandonReply::Refused;
        };
        let gap = self.gaps[i];
        let free_ahead = self.ahead.range(..end).next().is_none();
        if end > gap.end && !(gap.end == self.frontier && free_ahead) {
            return AbandonReply::Refused;
        }
        let rest = [Gap { end: p, ..gap }, Gap { start: end, ..gap }];
        self.gaps.splice(i..=i, rest.into_iter().filter(|gap| gap.start < gap.end));
        self.frontier = self.frontier.max(end);
        self.known.put(p, end - p, Kind::Never);
        AbandonReply::Noted
    }
}

/// State of one pass: its inputs and its results.
struct Walk<'a, D: ?Sized> {
    pass: Pass,
    now_ns: u64,
    directory: &'a mut D,
    /// Claims and void ranges that became known in this pass.
    settled: u64,
    /// Units that stay unknown, in order.
    gaps: Vec<Gap>,
    /// Keys found LIVE by a rebuild.
    rebuilt: HashSet<KeyId>,
}

impl<D: ?Sized> Walk<'_, D> {
    /// Keeps [start, end) of a gap unknown. It inherits the gap's age only if it starts where the
    /// gap starts: the gap at the frontier grows at one end while claims are settled at the other.
    fn keep(&mut self, gap: Gap, start: u64, end: u64) {
        if start < end {
            let since_ns = if start == gap.start { gap.since_ns } else { self.now_ns };
            self.gaps.push(Gap { start, end, since_ns });
        }
    }
}
