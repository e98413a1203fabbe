//! The owner's table of the claims between the tail and the limit: one entry of 8 bytes per unit,
//! used in the slot of the claim's first unit. It decides nothing.

use super::LogLayout;

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
    /// Reads since the claim was accepted, at most `MOST_READS`.
    reads: u8,
    /// Handed to the thread that copies.
    given: bool,
}

const UNKNOWN: Entry = Entry { units: 0, kind: Kind::Never, reads: 0, given: false };

/// Reads that are counted: so many laps an object stays without being read again. On the
/// conversation trace 2 to 7 differ by a thousandth.
pub(super) const MOST_READS: u8 = 7;

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

    /// Records a claim of `bytes` that begins at `x`; of 0 bytes, that no known claim begins there.
    #[inline]
    pub(super) fn put(&mut self, x: u64, bytes: u64, kind: Kind) {
        let units = (bytes / self.layout.unit()) as u32;
        if let Some(entry) = self.entries.get_mut(self.layout.slot(x) as usize) {
            *entry = Entry { units, kind, reads: 0, given: false };
        }
    }

    /// Counts `more` reads of the claim at `x`.
    pub(super) fn count_reads(&mut self, x: u64, more: u8) {
        if let Some(entry) = self.entries.get_mut(self.layout.slot(x) as usize) {
            entry.reads = entry.reads.saturating_add(more).min(MOST_READS);
        }
    }

    /// The claim at `x` counts as not read.
    pub(super) fn forget_reads(&mut self, x: u64) {
        if let Some(entry) = self.entries.get_mut(self.layout.slot(x) as usize) {
            entry.reads = 0;
        }
    }

    /// Marks the claim at `x` as handed to the thread that copies; false if it was before.
    pub(super) fn give(&mut self, x: u64) -> bool {
        let entry = self.entries.get_mut(self.layout.slot(x) as usize);
        entry.is_some_and(|entry| !std::mem::replace(&mut entry.given, true))
    }

    /// Whether the claim at `x` was handed to the thread that copies.
    pub(super) fn is_given(&self, x: u64) -> bool {
        self.entries.get(self.layout.slot(x) as usize).is_some_and(|entry| entry.given)
    }

    /// Reads of the claim that begins at `x`.
    pub(super) fn reads(&self, x: u64) -> u8 {
        self.entries.get(self.layout.slot(x) as usize).map_or(0, |entry| entry.reads)
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
