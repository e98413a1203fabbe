//! Making room (docs/reference/log.md, section 5): objects lose LIVE ahead of demand, from the tail
//! on; after quarantine, and when no view is pinned any more, the tail passes them and the limit
//! moves on. Also the end of a single object that somebody asked for. It does not decide who is
//! asked about holes.

use super::{DeviceLog, Directory, HEAP_LIMIT_OFF, Kind};
use crate::error::StoreError;
use crate::layout::{OWNER_OFF, flag, low, word};
use crate::object::key_of;

/// The answer to a retire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retire {
    /// It was live and lost LIVE now. Its space comes back when the tail passes it.
    Done,
    /// It is not served, and never will be again: retired before, evicted, or never accepted.
    Already,
    /// Nothing is known of that slot at that epoch yet: accept first.
    Unknown,
}

impl DeviceLog {
    /// Retires the oldest objects while less than a quarter of the log is claimable or on its way
    /// to be; how many. Never more than that needs: a quarter is the largest claim, so whoever may
    /// use the log finds room. What is on its way takes a quarantine Q to arrive, hence a log
    /// sustains L/4 bytes in Q: size it for that.
    ///
    /// Quarantine begins at `now_ns`; call [`DeviceLog::restart_quarantines`] with the time read
    /// afterwards.
    pub fn retire_ahead<D: Directory + ?Sized>(
        &mut self,
        now_ns: u64,
        directory: &mut D,
    ) -> Result<u64, StoreError> {
        let wanted = self.claimed_bytes()?.saturating_add(self.geometry.max_claim());
        // Retired up to here, the limit comes to be `wanted`.
        let needed = wanted.saturating_sub(self.geometry.log_bytes());
        let stop = self.first_unknown();
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
            // What is looked at from here on, pins to come included, is looked at after it [I9].
            self.memory.flush();
        }
        result.map(|()| retired)
    }

    /// Ends one object, wherever it lies: its owner word loses LIVE before this returns.
    pub fn retire<D: Directory + ?Sized>(
        &mut self,
        slot: u32,
        epoch: u32,
        now_ns: u64,
        directory: &mut D,
    ) -> Result<Retire, StoreError> {
        let Some(x) = self.geometry.position(slot, epoch) else {
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

    /// Restarts, at `now_ns`, the quarantines begun since the last call: Q counts from when the
    /// retired word is visible [I8], but the time of a retire is read before its store, and a
    /// process may be stopped in between.
    pub fn restart_quarantines(&mut self, now_ns: u64) {
        self.quarantine.restart_quarantines(now_ns.saturating_add(self.times.quarantine_ns));
    }

    /// When [`DeviceLog::advance`] next has something to do, pins aside.
    pub fn next_due_ns(&self) -> Option<u64> {
        self.quarantine.next_due_ns()
    }

    /// True while the tail stands at an object whose quarantine is over: only a view that was
    /// looked for and found can hold it there, and nothing is due when that view is dropped.
    pub fn held_by_pin(&self) -> bool {
        self.tail < self.retired_to && matches!(self.known_at(self.tail), Some((_, Kind::Over)))
    }

    /// True while what lies at the tail was never readable: neither a quarantine nor a view is
    /// waited for, so nothing is due when it is to be passed.
    pub fn tail_is_free(&self) -> bool {
        self.tail < self.retired_to && matches!(self.known_at(self.tail), Some((_, Kind::Never)))
    }

    /// Moves tail and limit past everything retired whose quarantine is over and of which
    /// `unpinned(slot, epoch)` says that no view is left; how far, in bytes.
    pub fn advance(
        &mut self,
        now_ns: u64,
        unpinned: impl Fn(u32, u32) -> bool,
    ) -> Result<u64, StoreError> {
        while let Some(x) = self.quarantine.due(now_ns) {
            if let Some((bytes, Kind::Quarantined)) = self.known_at(x) {
                self.known.turn(x, Kind::Over);
                self.usage.quarantined.sub(bytes);
            }
        }
        while self.tail < self.retired_to {
            let free = match self.known_at(self.tail) {
                Some((bytes, Kind::Never)) => Some(bytes),
                Some((bytes, Kind::Over)) if self.unpinned(&unpinned) => Some(bytes),
                _ => None,
            };
            let Some(bytes) = free else {
                break;
            };
            self.known.forget(self.tail);
            self.tail += bytes;
        }
        let limit = self.geometry.limit(self.tail);
        let moved = limit.saturating_sub(self.limit);
        if moved > 0 {
            // Release: whoever claims below the new limit wrote after LIVE went [I13].
            self.memory.store(HEAP_LIMIT_OFF, limit)?;
            self.limit = limit;
        }
        Ok(moved)
    }

    /// Whether the object at the tail is free of views.
    fn unpinned(&self, unpinned: impl Fn(u32, u32) -> bool) -> bool {
        let epoch = self.geometry.epoch(self.tail);
        epoch.is_some_and(|epoch| unpinned(self.geometry.slot(self.tail), epoch))
    }

    /// LIVE goes, then the index entry; the caller flushes. Its quarantine begins.
    fn clear_live<D: Directory + ?Sized>(
        &mut self,
        x: u64,
        bytes: u64,
        now_ns: u64,
        directory: &mut D,
    ) -> Result<(), StoreError> {
        let header = self.header(x)?;
        let Some(epoch) = self.geometry.epoch(x) else {
            return Ok(());
        };
        let slot = self.geometry.slot(x);
        let at = self.geometry.header_off(slot) + OWNER_OFF;
        self.memory.store(at, word(low(header.owner) & !flag::LIVE, epoch))?;
        directory.remove(&key_of(&header), slot, epoch);
        self.usage.live.sub(bytes);
        self.hold(x, bytes, now_ns);
        Ok(())
    }

    /// The claim at `x` is held for Q from `now_ns` on.
    pub(super) fn hold(&mut self, x: u64, bytes: u64, now_ns: u64) {
        self.known.put(x, bytes, Kind::Quarantined);
        self.usage.quarantined.add(bytes);
        self.quarantine.begin(x, now_ns.saturating_add(self.times.quarantine_ns));
    }
}
