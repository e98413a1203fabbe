//! Into how many stripes one large copy is cut, each done by its own thread (and over tcp its own
//! connection). Arithmetic only: it starts no thread and moves no byte.

/// Most stripes of one copy, whatever the setting.
pub const MAX_STRIPES: usize = 16;
/// Most stripes that are chosen automatically.
const MOST_UNASKED: usize = 4;
/// Processors per automatic stripe: the other end or the rest of the program needs some, too.
const PROCESSORS_EACH: usize = 2;
/// A copy at the threshold can be cut into this many parts, and parts of larger copies are not
/// smaller: each thread has enough work.
const PARTS_AT_THRESHOLD: u64 = 4;
const PAGE_BYTES: usize = 4096;
/// Lowest threshold: a stripe is a page or more. What must be read in one piece is never cut.
const LEAST_THRESHOLD: u64 = PARTS_AT_THRESHOLD * PAGE_BYTES as u64;

/// How copies are cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stripes {
    most: usize,
    from_bytes: u64,
}

impl Stripes {
    /// Nothing is cut.
    pub const NONE: Stripes = Stripes { most: 1, from_bytes: u64::MAX };

    /// Copies of `from_bytes` and more are cut into up to `most` stripes (at most [`MAX_STRIPES`]),
    /// none smaller than a quarter of `from_bytes`. `most` 0: chosen by the machine, one for every
    /// two processors of this process and at most 4. `most` 1: nothing is cut.
    pub fn new(most: usize, from_bytes: u64) -> Self {
        let most = match most {
            0 => of_machine(std::thread::available_parallelism().map_or(1, usize::from)),
            n => n.min(MAX_STRIPES),
        };
        Self { most, from_bytes: from_bytes.max(LEAST_THRESHOLD) }
    }

    /// Stripes of a copy of `bytes`; 1 means that it is not cut.
    #[inline]
    pub fn of(&self, bytes: u64) -> usize {
        if bytes < self.from_bytes || self.most <= 1 {
            return 1;
        }
        let could = bytes / (self.from_bytes / PARTS_AT_THRESHOLD);
        could.min(self.most as u64) as usize
    }
}

fn of_machine(processors: usize) -> usize {
    (processors / PROCESSORS_EACH).clamp(1, MOST_UNASKED)
}

/// Bytes of each of `n` stripes of `len` bytes except the last, which has the rest. Whole pages,
/// since large copies are fastest if they start at a page.
pub(crate) fn stripe_bytes(len: usize, n: usize) -> usize {
    len.div_ceil(n.max(1)).max(1).next_multiple_of(PAGE_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_copies_are_not_cut_and_large_ones_into_no_more_than_is_asked_for() {
        let four = Stripes::new(4, 8 << 20);
        assert_eq!((four.of(0), four.of((8 << 20) - 1)), (1, 1));
        assert_eq!((four.of(8 << 20), four.of(1 << 40)), (4, 4));
        let many = Stripes::new(1_000, 8 << 20);
        assert_eq!((many.of(8 << 20), many.of(9 << 20), many.of(1 << 30)), (4, 4, MAX_STRIPES));
        for none in [Stripes::NONE, Stripes::new(1, 0)] {
            assert_eq!((none.of(0), none.of(u64::MAX)), (1, 1));
        }
        let least = Stripes::new(3, 0);
        assert_eq!((least.of(4 * 4096 - 1), least.of(4 * 4096), least.of(u64::MAX)), (1, 3, 3));
    }

    #[test]
    fn the_machine_gives_one_stripe_for_two_processors_and_at_most_four() {
        let n: Vec<_> = [0, 1, 2, 3, 4, 6, 8, 64].into_iter().map(of_machine).collect();
        assert_eq!(n, [1, 1, 1, 1, 2, 3, 4, 4]);
    }
}
