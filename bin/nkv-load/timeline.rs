//! Operations over time: counts in equal steps of the program's clock, for plots of throughput over
//! time. It has a bounded size: when a run outgrows it, steps are joined in pairs. Steps begin at
//! multiples of their width, so timelines of several threads add up.

use std::collections::BTreeMap;

/// Width of a step at first, in nanoseconds.
const FINEST_NS: u64 = 10_000_000;
/// Most steps between the first and the last.
const MAX_STEPS: u64 = 600;

/// Counts per step.
#[derive(Debug, Clone)]
pub(crate) struct Timeline {
    /// Width of a step in nanoseconds: [`FINEST_NS`] times a power of two.
    pub(crate) width_ns: u64,
    /// By the number of the step: its time divided by the width.
    counts: BTreeMap<u64, u64>,
}

impl Default for Timeline {
    fn default() -> Self {
        Self { width_ns: FINEST_NS, counts: BTreeMap::new() }
    }
}

impl Timeline {
    /// Counts `items` operations done at `at_ns`.
    pub(crate) fn add(&mut self, at_ns: u64, items: u64) {
        while let Some((first, last)) = self.ends() {
            let step = at_ns / self.width_ns;
            if last.max(step) - first.min(step) < MAX_STEPS {
                break;
            }
            self.coarsen();
        }
        *self.counts.entry(at_ns / self.width_ns).or_default() += items;
    }

    /// Adds another thread's timeline.
    pub(crate) fn merge(&mut self, other: &Self) {
        while self.width_ns < other.width_ns {
            self.coarsen();
        }
        for (step, count) in &other.counts {
            self.add(step * other.width_ns, *count);
        }
    }

    /// The first and the last step.
    fn ends(&self) -> Option<(u64, u64)> {
        Some((*self.counts.first_key_value()?.0, *self.counts.last_key_value()?.0))
    }

    /// When the first step begins and the last one ends; None if nothing was done.
    pub(crate) fn span_ns(&self) -> Option<(u64, u64)> {
        let (first, last) = self.ends()?;
        Some((first * self.width_ns, (last + 1) * self.width_ns))
    }

    /// Counts of `steps` steps of `width_ns`, which is a multiple of the own width, from
    /// `start_ns`, which is a multiple of `width_ns`.
    pub(crate) fn resampled(&self, start_ns: u64, width_ns: u64, steps: usize) -> Vec<u64> {
        let mut counts = vec![0; steps];
        for (step, count) in &self.counts {
            let since = (step * self.width_ns).checked_sub(start_ns);
            let at = since.map(|since| (since / width_ns) as usize);
            if let Some(slot) = at.and_then(|at| counts.get_mut(at)) {
                *slot += count;
            }
        }
        counts
    }

    fn coarsen(&mut self) {
        self.width_ns = self.width_ns.saturating_mul(2);
        for (step, count) in std::mem::take(&mut self.counts) {
            *self.counts.entry(step / 2).or_default() += count;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{FINEST_NS, MAX_STEPS, Timeline};

    fn sum(t: &Timeline) -> u64 {
        t.counts.values().sum()
    }

    #[test]
    fn what_was_done_stands_at_its_time() {
        let mut t = Timeline::default();
        t.add(5 * FINEST_NS + 1, 2);
        t.add(5 * FINEST_NS + 2, 1);
        t.add(7 * FINEST_NS, 4);
        assert_eq!(t.span_ns(), Some((5 * FINEST_NS, 8 * FINEST_NS)));
        assert_eq!(t.resampled(4 * FINEST_NS, FINEST_NS, 5), [0, 3, 0, 4, 0]);
        assert_eq!(t.resampled(4 * FINEST_NS, 2 * FINEST_NS, 2), [3, 4]);
    }

    #[test]
    fn a_run_of_any_length_keeps_its_counts_in_bounded_room() {
        let mut t = Timeline::default();
        for second in 0..100_000 {
            t.add(3 + second * 1_000_000_000, 1);
            assert!(t.counts.len() as u64 <= MAX_STEPS);
        }
        assert_eq!(sum(&t), 100_000);
        assert!(t.counts.len() as u64 > MAX_STEPS / 3, "{} steps", t.counts.len());
        t.add(0, 5);
        assert_eq!((sum(&t), t.counts[&0] > 5), (100_005, true));
    }

    #[test]
    fn threads_add_up_whatever_their_widths() {
        let (mut short, mut long) = (Timeline::default(), Timeline::default());
        for step in 0..10 {
            short.add(1_000 * FINEST_NS + step * FINEST_NS, 1);
        }
        for step in 0..2_000 {
            long.add(step * FINEST_NS, 1);
        }
        let width = long.width_ns;
        for (mut a, b) in [(short.clone(), &long), (long.clone(), &short)] {
            a.merge(b);
            assert_eq!((sum(&a), a.width_ns), (2_010, width));
            let at = (1_000 * FINEST_NS) / width * width;
            assert!(a.resampled(at, width, 1)[0] > long.resampled(at, width, 1)[0]);
        }
    }

    #[test]
    fn nothing_done_has_no_span() {
        let mut t = Timeline::default();
        t.merge(&Timeline::default());
        assert_eq!(t.span_ns(), None);
        assert_eq!(t.resampled(0, FINEST_NS, 2), [0, 0]);
    }
}
