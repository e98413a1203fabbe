//! The free ranges of an arena and the bounds of the others, in units. An extent in use costs one
//! bit: its length is where the next extent or free range begins.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Units of one chunk of bits, which is allocated when its first bit is set.
const CHUNK: u32 = 4096;

/// The units at which an extent begins.
#[derive(Debug, Default)]
struct Starts(Vec<Option<Box<[u64; CHUNK as usize / 64]>>>);

impl Starts {
    fn word(&self, unit: u32) -> u64 {
        let chunk = self.0.get((unit / CHUNK) as usize).and_then(Option::as_ref);
        chunk.map_or(0, |chunk| chunk[(unit % CHUNK / 64) as usize])
    }

    fn contains(&self, unit: u32) -> bool {
        self.word(unit) & 1 << (unit % 64) != 0
    }

    fn set(&mut self, unit: u32, starts: bool) {
        let chunk = (unit / CHUNK) as usize;
        if chunk >= self.0.len() {
            self.0.resize(chunk + 1, None);
        }
        let chunk = self.0[chunk].get_or_insert_with(|| Box::new([0; CHUNK as usize / 64]));
        let (word, bit) = (&mut chunk[(unit % CHUNK / 64) as usize], 1 << (unit % 64));
        if starts { *word |= bit } else { *word &= !bit }
    }

    fn any_in(&self, units: Range<u32>) -> bool {
        let mut unit = units.start;
        while unit < units.end {
            let upto = (unit - unit % 64).saturating_add(64).min(units.end);
            let mask = u64::MAX >> (64 - (upto - unit)) << (unit % 64);
            if self.word(unit) & mask != 0 {
                return true;
            }
            unit = upto;
        }
        false
    }
}

/// See the file's first paragraph.
#[derive(Debug)]
pub(super) struct FreeRanges {
    units: u32,
    starts: Starts,
    /// First unit -> length.
    by_first: BTreeMap<u32, u32>,
    /// (Length, first unit).
    by_len: BTreeSet<(u32, u32)>,
}

impl FreeRanges {
    /// Everything is free.
    pub(super) fn new(units: u32) -> Self {
        let (by_first, by_len) = (BTreeMap::new(), BTreeSet::new());
        let mut ranges = Self { units, starts: Starts::default(), by_first, by_len };
        ranges.add(0, units);
        ranges
    }

    fn add(&mut self, first: u32, len: u32) {
        if len > 0 {
            self.by_first.insert(first, len);
            self.by_len.insert((len, first));
        }
    }

    fn remove(&mut self, first: u32, len: u32) {
        self.by_first.remove(&first);
        self.by_len.remove(&(len, first));
    }

    /// Units of the longest free range.
    pub(super) fn longest(&self) -> u32 {
        self.by_len.last().map_or(0, |(len, _)| *len)
    }

    /// Takes `len` units from the shortest free range that has as many, the first of those: what is
    /// longer stays whole for longer objects. Returns the first unit.
    pub(super) fn take(&mut self, len: u32) -> Option<u32> {
        let (found, first) = *self.by_len.range((len, 0)..).next()?;
        self.remove(first, found);
        self.add(first + len, found - len);
        self.starts.set(first, true);
        Some(first)
    }

    /// Takes exactly these units; false if not all are free.
    pub(super) fn take_at(&mut self, first: u32, len: u32) -> bool {
        let Some((&from, &found)) = self.by_first.range(..=first).next_back() else { return false };
        let (end, found_end) = (u64::from(first) + u64::from(len), from + found);
        if end > u64::from(found_end) {
            return false;
        }
        self.remove(from, found);
        self.add(from, first - from);
        self.add(first + len, found_end - (first + len));
        self.starts.set(first, true);
        true
    }

    /// Whether an extent in use has exactly these units: `first + len` is at most `units`.
    fn is_taken(&self, first: u32, len: u32) -> bool {
        let end = first + len;
        let ends =
            end == self.units || self.starts.contains(end) || self.by_first.contains_key(&end);
        let whole =
            !self.starts.any_in(first + 1..end) && self.by_first.range(first..end).next().is_none();
        len > 0 && self.starts.contains(first) && ends && whole
    }

    /// Frees an extent; false if there is none of exactly these units.
    pub(super) fn give_back(&mut self, first: u32, len: u32) -> bool {
        if first.checked_add(len).is_none_or(|end| end > self.units) || !self.is_taken(first, len) {
            return false;
        }
        self.starts.set(first, false);
        let (mut from, mut end) = (first, first + len);
        if let Some((&before, &units)) = self.by_first.range(..first).next_back()
            && before + units == first
        {
            self.remove(before, units);
            from = before;
        }
        if let Some(&units) = self.by_first.get(&end) {
            self.remove(end, units);
            end += units;
        }
        self.add(from, end - from);
        true
    }

    /// Bytes of memory that the bits take.
    #[cfg(test)]
    pub(super) fn bytes_of_bits(&self) -> usize {
        self.starts.0.len() * 8 + self.starts.0.iter().flatten().count() * CHUNK as usize / 8
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn bits_are_a_set_and_ranges_of_them_are_searched(
            units in prop::collection::btree_set(0u32..3 * CHUNK, 0..40),
            gone in prop::collection::vec(0u32..3 * CHUNK, 0..10),
            ranges in prop::collection::vec((0u32..3 * CHUNK, 0u32..300), 1..40),
        ) {
            let mut starts = Starts::default();
            units.iter().for_each(|unit| starts.set(*unit, true));
            gone.iter().for_each(|unit| starts.set(*unit, false));
            let left: BTreeSet<u32> = units.into_iter().filter(|u| !gone.contains(u)).collect();
            for (from, len) in ranges {
                prop_assert_eq!(starts.contains(from), left.contains(&from));
                let range = from..from + len;
                prop_assert_eq!(starts.any_in(range.clone()), left.range(range).next().is_some());
            }
        }
    }
}
