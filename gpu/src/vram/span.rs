//! Ranges of addresses of a device, which may follow one another in an object and not in memory.

use super::DeviceRange;
use crate::kernels::Descriptor;

/// A range of addresses of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// Its first byte, as the driver names it.
    pub address: u64,
    /// Its length.
    pub bytes: u64,
}

impl Span {
    /// The range, as `DeviceRange` describes it.
    pub fn of(range: &dyn DeviceRange) -> Self {
        Self { address: range.address(), bytes: range.bytes() }
    }

    /// Whether `bytes` at `address` lie in it.
    pub fn covers(&self, address: u64, bytes: u64) -> bool {
        let before = address.checked_sub(self.address);
        before.is_some_and(|before| before <= self.bytes && bytes <= self.bytes - before)
    }
}

/// Walks through spans, from the first byte that is wanted.
#[derive(Debug)]
pub struct Cursor<'a> {
    spans: &'a [Span],
    /// Bytes of the first span that are passed.
    at: u64,
}

impl<'a> Cursor<'a> {
    /// Of spans, from the byte at `offset` on.
    pub fn new(mut spans: &'a [Span], offset: u64) -> Self {
        let mut at = offset;
        while let [first, rest @ ..] = spans
            && at >= first.bytes
        {
            (spans, at) = (rest, at - first.bytes);
        }
        Self { spans, at }
    }

    /// The next bytes, at most `most` and as far as they follow one another. There must be some.
    pub fn take(&mut self, most: u64) -> Span {
        let Some(first) = self.spans.first() else { return Span { address: 0, bytes: most } };
        let left = first.bytes - self.at;
        let taken = Span { address: first.address + self.at, bytes: left.min(most) };
        self.at += taken.bytes;
        while let [first, rest @ ..] = self.spans
            && self.at >= first.bytes
        {
            (self.spans, self.at) = (rest, self.at - first.bytes);
        }
        taken
    }
}

/// The copies of `len` bytes from some spans to others.
pub fn pairs(into: &mut Cursor<'_>, from: &mut Cursor<'_>, len: u64) -> Vec<Descriptor> {
    let (mut done, mut list) = (0, Vec::new());
    while done < len {
        let to = into.take(len - done);
        let mut filled = 0;
        while filled < to.bytes {
            let Span { address: src, bytes: size } = from.take(to.bytes - filled);
            list.push(Descriptor { dst: to.address + filled, src, size });
            filled += size;
        }
        done += to.bytes;
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_cursor_passes_each_byte_once_and_in_order(
            lengths in proptest::collection::vec(0u64..9, 1..12),
            skip in 0usize..40,
            steps in proptest::collection::vec(1u64..7, 1..80),
        ) {
            let spans: Vec<Span> = lengths
                .iter()
                .enumerate()
                .map(|(i, bytes)| Span { address: 1000 * (i as u64 + 1), bytes: *bytes })
                .collect();
            let each = |s: &Span| (0..s.bytes).map(|at| s.address + at).collect::<Vec<_>>();
            let all: Vec<u64> = spans.iter().flat_map(each).collect();
            let skip = skip.min(all.len());
            let (mut cursor, mut seen) = (Cursor::new(&spans, skip as u64), Vec::new());
            for step in steps {
                let left = (all.len() - skip - seen.len()) as u64;
                if left > 0 {
                    let taken = cursor.take(step.min(left));
                    prop_assert!(taken.bytes > 0 && taken.bytes <= step);
                    seen.extend(each(&taken));
                }
            }
            prop_assert_eq!(&seen[..], &all[skip..skip + seen.len()]);
        }
    }
}
