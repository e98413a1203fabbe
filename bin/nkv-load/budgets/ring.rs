//! The memory that plain copies use beside the operations, and the order in which both walk theirs.
//! Objects lie in the node's memory; this is as much again, of the same kind.

use crate::content::Stream;
use crate::memcpy::{copy, faulted};
use nkv_store::Buffer;
use nkv_store::shm::AnonPages;

/// A ring of as many bytes as the objects have, a cold source for puts, and one buffer of the
/// caller.
pub(super) struct RingCopy {
    /// Takes the place of the segment.
    segment: AnonPages,
    /// Source of puts and of copies into the ring.
    source: Buffer,
    /// Target of gets and of copies out of the ring.
    pub(super) target: Buffer,
}

impl RingCopy {
    /// Maps and touches twice `bytes`.
    ///
    /// # Errors
    /// If the memory is not available.
    pub(super) fn new(bytes: usize) -> anyhow::Result<Self> {
        let mut source = Buffer::new(bytes)?;
        Stream::of(b"budgets", 0).fill(&mut source);
        let target = faulted(bytes.min(super::SIZES[super::SIZES.len() - 1]));
        Ok(Self { segment: AnonPages::new(bytes)?, source, target })
    }

    /// Number of objects of a size in the ring.
    pub(super) fn objects(&self, size: usize) -> usize {
        (self.source.len() / size).max(1)
    }

    /// Where object `index` lies.
    fn range(&self, size: usize, index: usize) -> std::ops::Range<usize> {
        let at = index % self.objects(size) * size;
        at..at + size
    }

    /// The value of object `index`: cold, if the ring is walked in order.
    pub(super) fn value(&self, size: usize, index: usize) -> &[u8] {
        &self.source[self.range(size, index)]
    }

    /// Copies object `index` of the ring into the caller's buffer; returns nanoseconds.
    pub(super) fn copy_out(&mut self, size: usize, index: usize) -> u64 {
        copy(&self.segment[self.range(size, index)], &mut self.target[..size])
    }

    /// Copies value `index` to its place in the ring; returns nanoseconds.
    pub(super) fn copy_in(&mut self, size: usize, index: usize) -> u64 {
        let at = self.range(size, index);
        copy(&self.source[at.clone()], &mut self.segment[at])
    }
}

/// A stride for `n` places: `n` steps from any start, modulo `n`, visit each place once.
pub(super) fn stride(n: usize) -> usize {
    // About the golden section, so that a few steps never return near their start.
    let from = n / 100 * 62 + 1;
    (from..from + n).find(|s| gcd(*s, n) == 1).unwrap_or(1)
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::{RingCopy, stride};

    #[test]
    fn copies_go_to_their_place_and_come_back() {
        let mut walk = RingCopy::new(64 << 20).unwrap();
        for index in [0, 5, 63, 64 + 7] {
            walk.copy_in(1 << 20, index);
            walk.copy_out(1 << 20, index);
            assert!(walk.target[..1 << 20] == *walk.value(1 << 20, index));
        }
        assert_eq!(walk.objects(16 << 20), 4);
    }

    #[test]
    fn a_walk_that_jumps_comes_everywhere_once() {
        for n in [1, 2, 47, 48, 1000, 4096, 196_608] {
            let mut seen = vec![false; n];
            (0..n).for_each(|step| seen[step * stride(n) % n] = true);
            assert!(seen.iter().all(|seen| *seen), "{n}");
        }
        assert!(stride(196_608) > 64 && 196_608 - stride(196_608) > 64);
    }
}
