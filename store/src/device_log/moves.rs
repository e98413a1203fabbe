//! Survivors: objects that were read while they lay in the log, and that the owner copies to the
//! log's head before the tail reaches them; and objects of the heap that the evictor chose, which
//! are copied there before they end (docs/reference/log.md, section 9). The copy is an
//! ordinary claim whose position is noted in [`Moves`]. When the owner accepts it, it replaces the
//! object that it was copied from, if that one is still live; else it is never served [I6]. This
//! file copies nothing: `copier.rs` does, on a thread of its own.

use super::{Abandon, DeviceLog, Directory, Kind, LogObject};
use crate::error::StoreError;
use crate::layout::{LAST_ACCESS_OFF, OWNER_OFF, flag, word};
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Bytes that may be copied for each byte that producers claim. Without a limit, a log full of
/// objects that are all read again and again would be copied in circles.
const COPIED_PER_CLAIMED: u64 = 2;

/// Much is copied if it is more than three of four bytes that producers claim: conversations that
/// share prefixes stay at a third on average, more at times.
const MUCH: (u64, u64) = (3, 4);

/// How long retiring waits for copies at a time: in a burst a copy finds room only once what is
/// retired before it has been through its quarantine, so twice Q and the time that owner and copier
/// take to answer, but less than a put waits for room. While none is accepted it does not wait
/// again.
const COPY_REACTION_NS: u64 = 5_000_000;
const MOST_COPY_WAIT_NS: u64 = 40_000_000;

/// Survivors that wait to be copied, at most; further ones are not copied.
const MOST_WAITING: usize = 65_536;

/// What the owner and the thread that copies share. It outlives the owner's actor: a copy that is
/// READY but not accepted yet must not be taken for a new object, since the object it was copied
/// from may have been removed.
#[derive(Debug, Default)]
pub struct Moves {
    inner: Mutex<Inner>,
    given: Condvar,
    // 0, or 1 more than a position below which no claim of the copying thread is open.
    open_from: AtomicU64,
    claimed_bytes: AtomicU64,
    // One at a time: there is one `open_from`.
    has_copier: AtomicBool,
}

#[derive(Debug, Default)]
struct Inner {
    waiting: VecDeque<LogObject>,
    // Position of a copy -> slot and epoch of the object that it was copied from.
    pending: BTreeMap<u64, (u32, u32)>,
    // Claims given up before anything was written.
    abandoned: Vec<Abandon>,
    // Objects of the heap that found no room: slot and epoch.
    without_room: Vec<(u32, u32)>,
}

impl Moves {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Objects of log or heap to be copied, for [`Moves::next`].
    pub fn give(&self, objects: Vec<LogObject>) {
        let mut inner = self.lock();
        let room = MOST_WAITING.saturating_sub(inner.waiting.len());
        inner.waiting.extend(objects.into_iter().take(room));
        self.given.notify_one();
    }

    /// The next object to copy.
    pub fn next(&self) -> Option<LogObject> {
        self.lock().waiting.pop_front()
    }

    /// Waits until there is an object to copy, at most so long.
    pub fn wait(&self, most: Duration) {
        let inner = self.lock();
        if inner.waiting.is_empty() {
            drop(self.given.wait_timeout(inner, most));
        }
    }

    /// Objects of the heap that are not copied, for want of room: since the last call.
    pub fn without_room(&self) -> Vec<(u32, u32)> {
        std::mem::take(&mut self.lock().without_room)
    }

    pub(super) fn has_no_room(&self, from: &LogObject) {
        self.lock().without_room.push((from.slot, from.epoch));
    }

    /// Takes the place of the copier; false while another has it.
    pub(super) fn take_place(&self) -> bool {
        !self.has_copier.swap(true, Ordering::AcqRel)
    }

    /// Gives it back: nothing is written any more, and a claim that was open is a hole.
    pub(super) fn leave_place(&self) {
        self.leave();
        self.has_copier.store(false, Ordering::Release);
    }

    /// Whether the copying thread has no open claim below a position, and can have none [I14].
    pub fn is_clear_below(&self, below: u64) -> bool {
        let from = self.open_from.load(Ordering::SeqCst);
        from == 0 || from > below
    }

    /// Called with a value of `bump_ptr` that was read before the fetch-and-add.
    pub(super) fn enter(&self, bound: u64) {
        self.open_from.store(bound.saturating_add(1), Ordering::SeqCst);
    }

    /// Called after the last write of the claim.
    pub(super) fn leave(&self) {
        self.open_from.store(0, Ordering::SeqCst);
    }

    /// Called before anything is written to a claim. `again`: it copies an object of the log.
    pub(super) fn note(&self, position: u64, bytes: u64, from: (u32, u32), again: bool) {
        self.lock().pending.insert(position, from);
        if again {
            self.claimed_bytes.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// A noted claim is given up, unwritten.
    pub(super) fn abandon(&self, claim: Abandon) {
        let mut inner = self.lock();
        inner.pending.remove(&claim.p);
        inner.abandoned.push(claim);
    }
}

#[cfg(test)]
impl DeviceLog {
    /// Bytes that producers claimed and bytes that were copied lately.
    pub(super) fn lately(&self) -> (u64, u64) {
        (self.survey.lately_claimed, self.survey.lately_copied)
    }
}

#[cfg(test)]
impl Moves {
    /// Copies that are not accepted yet: position, and what they are copied from.
    pub(super) fn pending(&self) -> Vec<(u64, (u32, u32))> {
        self.lock().pending.iter().map(|(p, from)| (*p, *from)).collect()
    }
}

/// How far the copying is allowed to go, and what was examined.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Survey {
    /// Objects below were examined.
    to: u64,
    /// Bytes that may be copied now.
    credit: u64,
    /// What was claimed in all, and by copies, when `credit` was computed.
    claimed: u64,
    copied: u64,
    /// What producers claimed and what was copied lately: both are halved when the first exceeds
    /// the log.
    lately_claimed: u64,
    lately_copied: u64,
}

impl Survey {
    /// Reads that a copy begins with: one less, but none where much is copied. There the log is
    /// full of what was read often once, and each lap spent on it is lost to what is read now.
    fn carried(&self, reads: u8) -> u8 {
        let copied = self.lately_copied.saturating_mul(MUCH.1);
        if copied > self.lately_claimed.saturating_mul(MUCH.0) {
            0
        } else {
            reads.saturating_sub(1)
        }
    }
}

impl DeviceLog {
    /// Counts a read of the object in that slot at that epoch; false if it is not live here.
    pub fn touch(&mut self, slot: u32, epoch: u32) -> bool {
        let live = self.layout.position(slot, epoch).filter(|_| self.is_live(slot, epoch));
        if let Some(x) = live {
            self.known.count_reads(x, 1);
            self.read_bytes += self.known.at(x).map_or(0, |(bytes, _)| bytes);
        }
        live.is_some()
    }

    /// The object in that slot at that epoch counts as read once, if it was not read; false if it
    /// is not live here. It is no measure of how much is read.
    pub fn keep(&mut self, slot: u32, epoch: u32) -> bool {
        let live = self.layout.position(slot, epoch).filter(|_| self.is_live(slot, epoch));
        if let Some(x) = live.filter(|x| self.known.reads(*x) == 0) {
            self.known.count_reads(x, 1);
        }
        live.is_some()
    }

    /// The object in that slot at that epoch is not worth a copy, unless it is read again.
    pub fn forget_reads(&mut self, slot: u32, epoch: u32) {
        if let Some(x) = self.layout.position(slot, epoch).filter(|_| self.is_live(slot, epoch)) {
            self.known.forget_reads(x);
        }
    }

    /// Objects that will be retired soon and were read since they were accepted, in the order of
    /// claims; each is returned once. At most twice as many bytes as producers claim.
    pub fn survivors(&mut self) -> Result<Vec<LogObject>, StoreError> {
        if !self.rules.owner_claims {
            return Ok(Vec::new());
        }
        let claimed = self.claimed_bytes()?.saturating_sub(self.counts.passed_over.bytes);
        let copied = self.moves.claimed_bytes.load(Ordering::Relaxed);
        let s = &mut self.survey;
        let by_copies = copied.saturating_sub(s.copied);
        let by_producers = claimed.saturating_sub(s.claimed).saturating_sub(by_copies);
        s.credit = (s.credit + by_producers.saturating_mul(COPIED_PER_CLAIMED))
            .min(self.layout.max_claim());
        (s.claimed, s.copied) = (claimed, copied);
        s.lately_claimed = s.lately_claimed.saturating_add(by_producers);
        s.lately_copied = s.lately_copied.saturating_add(by_copies);
        if s.lately_claimed > self.layout.log_bytes() {
            (s.lately_claimed, s.lately_copied) = (s.lately_claimed / 2, s.lately_copied / 2);
        }
        // Half a room further than what is retired next, so that few of its objects have to be
        // waited for.
        let room = self.demand.room(&self.layout);
        let soon = self.claimed_bytes()?.saturating_add(room + room / 2);
        let soon = soon.saturating_sub(self.layout.log_bytes());
        let stop = soon.min(self.first_unknown());
        let mut x = self.survey.to.max(self.retired_to);
        let mut found = Vec::new();
        while x < stop {
            let Some((bytes, kind)) = self.known_at(x) else { break };
            if kind == Kind::Live {
                found.extend(self.survivor(x, bytes));
            }
            x += bytes;
        }
        self.survey.to = x;
        Ok(found)
    }

    /// The live object at `x` if it is to be copied and was not handed out before.
    fn survivor(&mut self, x: u64, bytes: u64) -> Option<LogObject> {
        let wanted = self.known.reads(x) > 0 && self.survey.credit >= bytes;
        if !wanted || !self.known.give(x) {
            return None;
        }
        self.survey.credit -= bytes;
        self.object(self.layout.slot(x), self.layout.epoch(x)?)
    }

    /// Whether retiring waits for the copy of the object at `x`. Hands it to the thread that
    /// copies, if it was read since the survey passed it.
    pub(super) fn waits_for_copy(&mut self, x: u64, bytes: u64, now_ns: u64) -> bool {
        if self.known.reads(x) == 0 || !self.rules.owner_claims {
            return false;
        }
        if let Some(late) = self.survivor(x, bytes) {
            self.moves.give(vec![late]);
        }
        if !self.known.is_given(x) {
            return false;
        }
        let since_ns = *self.copying_since_ns.get_or_insert(now_ns);
        let limit_ns = self.rules.quarantine_ns.saturating_mul(2).saturating_add(COPY_REACTION_NS);
        now_ns < since_ns.saturating_add(limit_ns.min(MOST_COPY_WAIT_NS))
    }

    /// Whether the owner copies objects into the log.
    pub fn copies(&self) -> bool {
        self.rules.owner_claims
    }

    /// Whether the claim at `x` is a copy, and of what.
    pub(super) fn move_to(&self, x: u64) -> Option<(u32, u32)> {
        self.moves.lock().pending.get(&x).copied()
    }

    /// Whether the claim at `x` is a copy of an object of the heap that is live.
    pub(super) fn copies_heap<D: Directory + ?Sized>(&self, x: u64, directory: &D) -> bool {
        let from = self.move_to(x).filter(|from| from.0 >= self.layout.slots());
        from.is_some_and(|(slot, epoch)| directory.in_heap(slot, epoch).is_some())
    }

    /// The copy at `x` is settled. One of the heap is remembered until its original has ended.
    pub(super) fn forget_move(&self, x: u64) {
        let pending = &mut self.moves.lock().pending;
        if pending.get(&x).is_some_and(|from| from.0 < self.layout.slots()) {
            pending.remove(&x);
        }
    }

    /// The object of the heap that was copied to this slot at this epoch has ended.
    pub fn spilled(&self, slot: u32, epoch: u32) {
        if let Some(x) = self.layout.position(slot, epoch) {
            self.moves.lock().pending.remove(&x);
        }
    }

    /// Takes in the claims that the copying thread gave up.
    pub(super) fn take_abandoned(&mut self) -> Result<(), StoreError> {
        let abandoned = std::mem::take(&mut self.moves.lock().abandoned);
        abandoned.into_iter().try_for_each(|claim| self.abandon(claim).map(drop))
    }

    /// Forgets copies below the tail: their claims became void.
    pub(super) fn forget_moves(&self) {
        let pending = &mut self.moves.lock().pending;
        while pending.first_key_value().is_some_and(|(&x, _)| x < self.tail) {
            pending.pop_first();
        }
    }

    /// Settles a copy at `x`: it replaces the object that it was copied from, or, if that is not
    /// live any more, is never served. The index leads to the copy before LIVE leaves the original.
    pub(super) fn settle_move<D: Directory + ?Sized>(
        &mut self,
        (x, n): (u64, u64),
        copy: &LogObject,
        from: (u32, u32),
        now_ns: u64,
        directory: &mut D,
    ) -> Result<(), StoreError> {
        if from.0 >= self.layout.slots() {
            return self.settle_spill((x, n), copy, from, directory);
        }
        // Live until now, so no byte changed while it was copied [I8].
        let original = self.object(from.0, from.1).filter(|o| o.key == copy.key);
        let original = original.filter(|o| o.object.bytes_total == copy.object.bytes_total);
        let x0 = original.and_then(|o| self.layout.position(o.slot, o.epoch));
        // By the table, not by headers: other processes can write those.
        let Some(x0) = x0.filter(|x0| self.known_at(*x0) == Some((n, Kind::Live))) else {
            return self.refuse_copy((x, n), copy);
        };
        self.serve_copy((x, n), copy, from)?;
        self.copying_since_ns = None;
        self.known.count_reads(x, self.survey.carried(self.known.reads(x0)));
        directory.moved(copy, from);
        self.end_live(x0, n, now_ns)?;
        self.memory.flush();
        Ok(())
    }

    /// The same for a copy of an object of the heap.
    fn settle_spill<D: Directory + ?Sized>(
        &mut self,
        (x, n): (u64, u64),
        copy: &LogObject,
        from: (u32, u32),
        directory: &mut D,
    ) -> Result<(), StoreError> {
        let original = directory.in_heap(from.0, from.1).filter(|o| o.key == copy.key);
        let original = original.filter(|o| directory.serves(&o.key, o.slot));
        let bytes = original.map(|o| o.object.bytes_total);
        if bytes != Some(copy.object.bytes_total) {
            return self.refuse_copy((x, n), copy);
        }
        self.serve_copy((x, n), copy, from)?;
        self.counts.spills.add(n);
        self.demand.object(n, x, self.layout.log_bytes());
        directory.moved(copy, from);
        Ok(())
    }

    fn refuse_copy(&mut self, (x, n): (u64, u64), copy: &LogObject) -> Result<(), StoreError> {
        let at = self.layout.header_off(copy.slot);
        self.memory.store(at + OWNER_OFF, word(0, copy.epoch))?;
        self.known.put(x, n, Kind::Never);
        self.counts.stale_copies.add(n);
        Ok(())
    }

    fn serve_copy(
        &mut self,
        (x, n): (u64, u64),
        copy: &LogObject,
        from: (u32, u32),
    ) -> Result<(), StoreError> {
        let (at, old) = (self.layout.header_off(copy.slot), self.layout.any_header_off(from.0));
        self.memory.store(at + LAST_ACCESS_OFF, self.memory.load(old + LAST_ACCESS_OFF)?)?;
        self.memory.store(at + OWNER_OFF, word(flag::LIVE, copy.epoch))?;
        self.known.put(x, n, Kind::Live);
        self.counts.accepted.add(n);
        self.counts.copies.add(n);
        self.usage.live.add(n);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::Survey;

    #[test]
    fn a_copy_begins_with_one_read_less_and_with_none_where_much_is_copied() {
        let survey =
            |lately_copied| Survey { lately_claimed: 400, lately_copied, ..Survey::default() };
        assert_eq!([0, 1, 7].map(|reads| survey(300).carried(reads)), [0, 0, 6]);
        assert_eq!([0, 1, 7].map(|reads| survey(301).carried(reads)), [0, 0, 0]);
    }
}
