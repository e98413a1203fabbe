//! The owner's table of the claims between the tail and the limit: one entry of 8 bytes per unit,
//! used in the slot of the claim's first unit; and the quarantine of retired claims. It decides
//! nothing.

use super::LogLayout;
use std::collections::VecDeque;

/// Outcome of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Served to readers.
    Live,
    /// Retired; readers may still be copying.
    Quarantined,
    /// Retired, quarantine is over; views may still be pinned.
    Over,
    /// Never was readable: skipped, aborted, abandoned, void, or a duplicate.
    Never,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    /// Units of the claim; 0 where no known claim begins.
    units: u32,
    kind: Kind,
}

const UNKNOWN: Entry = Entry { units: 0, kind: Kind::Never };

/// The known claims by position. Every position passed in lies in the owner's window [tail, tail +
/// L), where each slot stands for one position.
#[derive(Debug)]
pub(super) struct KnownClaims {
    layout: LogLayout,
    entries: Vec<Entry>,
}

impl KnownClaims {
    pub(super) fn none(layout: LogLayout) -> KnownClaims {
        KnownClaims { layout, entries: vec![UNKNOWN; layout.slots() as usize] }
    }

    /// Bytes and kind of the claim that begins at `x`.
    #[inline]
    pub(super) fn at(&self, x: u64) -> Option<(u64, Kind)> {
        let entry = self.entries.get(self.layout.slot(x) as usize)?;
        (entry.units != 0).then(|| (u64::from(entry.units) * self.layout.unit(), entry.kind))
    }

    /// Records a claim of `bytes` that begins at `x`.
    #[inline]
    pub(super) fn put(&mut self, x: u64, bytes: u64, kind: Kind) {
        let units = (bytes / self.layout.unit()) as u32;
        if let Some(entry) = self.entries.get_mut(self.layout.slot(x) as usize) {
            *entry = Entry { units, kind };
        }
    }

    /// Changes the kind of the claim at `x`.
    pub(super) fn turn(&mut self, x: u64, kind: Kind) {
        if let Some(entry) = self.entries.get_mut(self.layout.slot(x) as usize) {
            entry.kind = kind;
        }
    }

    /// Removes the claim at `x`: the tail passes it.
    pub(super) fn forget(&mut self, x: u64) {
        if let Some(entry) = self.entries.get_mut(self.layout.slot(x) as usize) {
            *entry = UNKNOWN;
        }
    }
}

/// Positions in quarantine, in the order in which their quarantines end.
#[derive(Debug, Default)]
pub(super) struct Quarantine {
    /// (end, position), ends never decreasing.
    queue: VecDeque<(u64, u64)>,
    /// How many entries at the back were added since the last `restart_quarantines`.
    unsettled: usize,
}

impl Quarantine {
    pub(super) fn begin(&mut self, x: u64, until_ns: u64) {
        // If the caller's clock went back, a later entry must still not end before an earlier one.
        let last = self.queue.back().map_or(0, |&(until, _)| until);
        self.queue.push_back((until_ns.max(last), x));
        self.unsettled += 1;
    }

    /// Quarantines begun since the last call end no earlier than `until_ns`.
    pub(super) fn restart_quarantines(&mut self, until_ns: u64) {
        let from = self.queue.len() - self.unsettled;
        for entry in self.queue.range_mut(from..) {
            entry.0 = entry.0.max(until_ns);
        }
        self.unsettled = 0;
    }

    /// The next position whose quarantine is over.
    pub(super) fn due(&mut self, now_ns: u64) -> Option<u64> {
        let &(until, x) = self.queue.front()?;
        if until > now_ns {
            return None;
        }
        self.queue.pop_front();
        self.unsettled = self.unsettled.min(self.queue.len());
        Some(x)
    }

    pub(super) fn next_due_ns(&self) -> Option<u64> {
        self.queue.front().map(|&(until, _)| until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_takes_eight_bytes() {
        assert_eq!(size_of::<Entry>(), 8);
    }
}
