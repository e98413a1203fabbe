//! Histograms of durations, cheap enough to be always on: recording adds to one bucket and one sum.
//! They are only shown in `/metrics`; no code decides by them.

use std::sync::atomic::{AtomicU64, Ordering};

/// Upper bounds of the buckets in nanoseconds, from 1 µs to 10 s; the last bucket has none.
pub const BOUNDS_NS: [u64; 22] = bounds();

const fn bounds() -> [u64; 22] {
    let mut bounds = [0; 22];
    let (mut decade, mut i) = (1_000, 0);
    while i < bounds.len() {
        let step = [1_000, 2_500, 5_000][i % 3];
        bounds[i] = decade / 1_000 * step;
        if i % 3 == 2 {
            decade *= 10;
        }
        i += 1;
    }
    bounds
}

/// Counts durations by bucket. Any thread may add to it.
#[derive(Debug, Default)]
pub(crate) struct Histogram {
    buckets: [AtomicU64; BOUNDS_NS.len() + 1],
    sum_ns: AtomicU64,
}

impl Histogram {
    pub(crate) fn record(&self, ns: u64) {
        let bucket = BOUNDS_NS.partition_point(|bound| *bound < ns);
        self.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        self.sum_ns.fetch_add(ns, Ordering::Relaxed);
    }

    pub(crate) fn snapshot(&self) -> Durations {
        let counts = std::array::from_fn(|i| self.buckets[i].load(Ordering::Relaxed));
        Durations { counts, sum_ns: self.sum_ns.load(Ordering::Relaxed) }
    }
}

/// What a histogram counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Durations {
    /// Number of durations in each bucket: up to its bound in [`BOUNDS_NS`] and above the one
    /// before. The last bucket counts those above all bounds.
    pub counts: [u64; BOUNDS_NS.len() + 1],
    /// Sum of all durations in nanoseconds.
    pub sum_ns: u64,
}

/// Histograms with the name of each.
pub(crate) fn named<const N: usize>(
    names: [&'static str; N],
    all: &[Histogram; N],
) -> Vec<(&'static str, Durations)> {
    names.into_iter().zip(all).map(|(name, h)| (name, h.snapshot())).collect()
}

#[cfg(test)]
mod tests {
    use super::{BOUNDS_NS, Histogram};

    #[test]
    fn a_duration_is_counted_in_the_first_bucket_that_it_fits() {
        assert_eq!((BOUNDS_NS[0], BOUNDS_NS[1], BOUNDS_NS[21]), (1_000, 2_500, 10_000_000_000));
        assert!(BOUNDS_NS.is_sorted());
        let histogram = Histogram::default();
        for ns in [0, 1_000, 1_001, 10_000_000_000, 10_000_000_001] {
            histogram.record(ns);
        }
        let found = histogram.snapshot();
        assert_eq!((found.counts[0], found.counts[1]), (2, 1));
        assert_eq!((found.counts[21], found.counts[22]), (1, 1));
        assert_eq!(found.sum_ns, 20_000_002_002);
    }
}
