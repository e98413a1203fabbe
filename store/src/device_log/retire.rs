//! Makes room (docs/reference/log.md, section 5): objects lose LIVE ahead of demand, from the tail
//! on. After quarantine, and once no view is pinned any more, the tail passes them and the limit
//! moves on. Also retires a single object on request. Hole checks are not started here.

use super::{DeviceLog, Directory, HEAP_LIMIT_OFF, Kind};
use crate::error::StoreError;
use crate::layout::{OWNER_OFF, flag, low, word};
use crate::object::key_of;

/// The answer to a retire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retire {
    /// It was live and has lost LIVE now. Its space becomes free when the tail passes it.
    Done,
    /// It is not served and never will be: retired before, evicted, or never accepted.
    Already,
    /// The table has no claim in that slot at that epoch yet: call `accept` first.
    Unknown,
}

impl DeviceLog {
    /// Retires the oldest objects while less room than wanted is claimable or in quarantine to
    /// become so: see `demand.rs`. Returns how many. Retired space becomes claimable after the
    /// quarantine Q, so a log sustains L/32 bytes per Q: size it for that.
    ///
    /// Quarantine begins at `now_ns`; call [`DeviceLog::restart_quarantines`] with the time read
    /// afterwards.
    pub fn retire_ahead<D: Directory + ?Sized>(
        &mut self,
        now_ns: u64,
        directory: &mut D,
    ) -> Result<u64, StoreError> {
        let wanted = self.claimed_lately()?.saturating_add(self.demand.room(&self.layout));
        // Once everything up to here is retired and free, the limit is `wanted`.
        let needed = wanted.saturating_sub(self.layout.log_bytes());
        let stop = self.first_unknown();
        self.awaits_copy = false;
        let mut retired = 0;
        let mut result = Ok(());
        self.fetch_headers(self.retired_to, needed.min(stop));
        while self.retired_to < stop {
            let Some((bytes, kind)) = self.known_at(self.retired_to) else {
                break;
            };
            if kind == Kind::Live {
                self.prefetch_ahead(self.retired_to, needed.min(stop), directory);
                if self.retired_to >= needed {
                    break;
                }
                self.awaits_copy = self.waits_for_copy(self.retired_to, bytes, now_ns);
                if self.awaits_copy {
                    break;
                }
                if self.known.reads(self.retired_to) > 0 {
                    self.counts.lost_reads.add(bytes);
                }
                result = self.clear_live(self.retired_to, bytes, now_ns, directory);
                if result.is_err() {
                    break;
                }
                self.counts.evicted.add(bytes);
                retired += 1;
            }
            self.retired_to += bytes;
        }
        if retired > 0 {
            // Everything read after this fence, such as a scan of the pins, sees the retires before
            // it [I9].
            self.memory.flush();
        }
        result.map(|()| retired)
    }

    /// An object of so many bytes was put elsewhere: maybe because it found no room here. Room for
    /// such objects is kept from now on, for a lap.
    pub fn put_elsewhere(&mut self, bytes_total: u64) {
        if let Some(n) = self.layout.claim_bytes(bytes_total) {
            self.demand.object(n, self.frontier, self.layout.log_bytes());
            self.wanted = true;
        }
    }

    /// Retires one object at any position: its owner word has lost LIVE when this returns.
    pub fn retire<D: Directory + ?Sized>(
        &mut self,
        slot: u32,
        epoch: u32,
        now_ns: u64,
        directory: &mut D,
    ) -> Result<Retire, StoreError> {
        let Some(x) = self.layout.position(slot, epoch) else {
            return Ok(Retire::Unknown);
        };
        if x < self.tail {
            return Ok(Retire::Already);
        }
        match self.known_at(x) {
            Some((bytes, Kind::Live)) => {
                self.clear_live(x, bytes, now_ns, directory)?;
                self.memory.flush();
                self.counts.removed.add(bytes);
                Ok(Retire::Done)
            }
            Some(_) => Ok(Retire::Already),
            None => Ok(Retire::Unknown),
        }
    }

    /// Restarts, at `now_ns`, the quarantines begun since the last call. Q counts from when the
    /// retired word is visible [I8], but the time of a retire is read before its store, and the
    /// process may be stopped between the two.
    pub fn restart_quarantines(&mut self, now_ns: u64) {
        self.quarantine.restart(now_ns.saturating_add(self.rules.quarantine_ns));
    }

    /// Time at which [`DeviceLog::advance`] has work to do next, apart from pins.
    pub fn next_due_ns(&self) -> Option<u64> {
        self.quarantine.next_due_ns()
    }

    /// Whether the last retiring stopped at an object whose copy is awaited.
    pub fn awaits_copy(&self) -> bool {
        self.awaits_copy
    }

    /// True while the tail stands at an object whose quarantine is over. Only a pinned view, found
    /// by the last `advance`, can hold the tail there, and no timer is due when that view is
    /// dropped.
    pub fn held_by_pin(&self) -> bool {
        let Some((n, kind)) = self.known_at(self.tail).filter(|_| self.tail < self.retired_to)
        else {
            return false;
        };
        kind == Kind::Over || self.left.range(self.tail..self.tail + n).next().is_some()
    }

    /// True while the claim at the tail never was readable: it waits for neither a quarantine nor a
    /// view, so it can be passed at once.
    pub fn tail_is_free(&self) -> bool {
        let at_tail = self.known_at(self.tail).filter(|_| self.tail < self.retired_to);
        let left = |n: u64| self.left.range(self.tail..self.tail + n).next().is_some();
        at_tail.is_some_and(|(n, kind)| kind == Kind::Never && !left(n))
    }

    /// Moves tail and limit past everything that is retired, whose quarantine is over, and for
    /// which `unpinned(slot, epoch)` returns true. Returns the distance in bytes.
    pub fn advance(
        &mut self,
        now_ns: u64,
        unpinned: impl Fn(u32, u32) -> bool,
    ) -> Result<u64, StoreError> {
        while let Some((_, x)) = self.quarantine.due(now_ns) {
            if let Some((bytes, Kind::Quarantined)) = self.known_at(x) {
                self.known.put(x, bytes, Kind::Over);
                self.usage.quarantined.sub(bytes);
            }
        }
        while self.tail < self.retired_to {
            let Some((bytes, kind)) = self.known_at(self.tail) else { break };
            let pinned = match kind {
                Kind::Never => None,
                Kind::Over => self.pinned_at_tail(&unpinned),
                Kind::Live | Kind::Quarantined => break,
            };
            let passed = self.leave_behind((self.tail, bytes), pinned, &unpinned, now_ns)?;
            if passed == 0 {
                break;
            }
            self.known.put(self.tail, 0, Kind::Never);
            self.tail += passed;
        }
        self.forget_moves();
        let limit = self.layout.limit(self.tail);
        let moved = limit.saturating_sub(self.limit);
        if moved > 0 {
            // Release: a producer that claims below the new limit writes after LIVE was cleared
            // [I13].
            self.memory.store(HEAP_LIMIT_OFF, limit)?;
            self.limit = limit;
        }
        Ok(moved)
    }

    /// Slot and epoch of the object at the tail, if it is pinned.
    fn pinned_at_tail(&self, unpinned: &impl Fn(u32, u32) -> bool) -> Option<(u32, u32)> {
        let object = (self.layout.slot(self.tail), self.layout.epoch(self.tail)?);
        (!unpinned(object.0, object.1)).then_some(object)
    }

    /// Clears LIVE, then removes the index entry; the caller flushes. The quarantine begins.
    fn clear_live<D: Directory + ?Sized>(
        &mut self,
        x: u64,
        bytes: u64,
        now_ns: u64,
        directory: &mut D,
    ) -> Result<(), StoreError> {
        let header = self.header(x)?;
        self.end_live(x, bytes, now_ns)?;
        if let Some(epoch) = self.layout.epoch(x) {
            directory.remove(&key_of(&header), self.layout.slot(x), epoch);
        }
        Ok(())
    }

    /// Clears LIVE. The quarantine begins; the caller flushes.
    pub(super) fn end_live(&mut self, x: u64, bytes: u64, now_ns: u64) -> Result<(), StoreError> {
        let Some(epoch) = self.layout.epoch(x) else { return Ok(()) };
        let at = self.layout.header_off(self.layout.slot(x)) + OWNER_OFF;
        let owner = self.memory.load(at)?;
        self.memory.store(at, word(low(owner) & !flag::LIVE, epoch))?;
        self.usage.live.sub(bytes);
        self.hold(x, bytes, now_ns);
        Ok(())
    }

    /// Holds the claim at `x` for Q from `now_ns` on.
    pub(super) fn hold(&mut self, x: u64, bytes: u64, now_ns: u64) {
        self.known.put(x, bytes, Kind::Quarantined);
        self.usage.quarantined.add(bytes);
        self.quarantine.begin(x, now_ns.saturating_add(self.rules.quarantine_ns));
    }
}
