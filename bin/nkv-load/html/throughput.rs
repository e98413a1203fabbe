//! Throughput over time for the page: payload and operations a second of each kind of operation,
//! all sizes together. Rates are per wall time: work of the generator between operations (making
//! and comparing contents, copies for the ratio) lowers them.

use crate::latency::OpTimes;
use crate::timeline::Timeline;
use serde::Serialize;

/// Most points of a line: few enough that a run in rounds gives a smooth curve.
const MAX_POINTS: usize = 64;
/// With fewer steps than this the first and the last are shown too, although they are incomplete.
const CUT_FROM: usize = 8;

/// The rates of a run, in common steps.
#[derive(Debug, Serialize)]
pub(super) struct Throughput {
    /// Seconds from the first operation to the middle of each step.
    seconds: Vec<f64>,
    ops: Vec<Rates>,
}

/// Rates of one kind of operation.
#[derive(Debug, Serialize)]
struct Rates {
    op: &'static str,
    /// Operations a second.
    per_s: Vec<f64>,
    /// Payload, in 10^9 bytes a second.
    gb_per_s: Vec<f64>,
}

/// The common steps.
#[derive(Clone, Copy)]
struct Grid {
    start_ns: u64,
    width_ns: u64,
    steps: usize,
}

impl Throughput {
    /// None if nothing was done.
    pub(super) fn of(times: &[OpTimes]) -> Option<Throughput> {
        let grid = Grid::over(times.iter().map(|t| &t.done))?;
        let mut ops: Vec<Rates> = Vec::new();
        for t in times {
            let counts = t.done.resampled(grid.start_ns, grid.width_ns, grid.steps);
            let at = ops.iter().position(|r| r.op == t.op).unwrap_or_else(|| {
                let nothing = vec![0.0; grid.shown().len()];
                ops.push(Rates { op: t.op, per_s: nothing.clone(), gb_per_s: nothing });
                ops.len() - 1
            });
            for (point, step) in grid.shown().enumerate() {
                let per_s = counts[step] as f64 * 1e9 / grid.width_ns as f64;
                ops[at].per_s[point] += per_s;
                ops[at].gb_per_s[point] += per_s * t.bytes as f64 / 1e9;
            }
        }
        Some(Throughput { seconds: grid.shown().map(|step| grid.seconds(step)).collect(), ops })
    }
}

impl Grid {
    fn over<'a>(timelines: impl Iterator<Item = &'a Timeline> + Clone) -> Option<Self> {
        let spans = timelines.clone().filter_map(Timeline::span_ns);
        let (start, end) = spans.reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)))?;
        let mut width_ns = timelines.map(|t| t.width_ns).max()?;
        while (end.div_ceil(width_ns) - start / width_ns) as usize > MAX_POINTS {
            width_ns *= 2;
        }
        let steps = (end.div_ceil(width_ns) - start / width_ns) as usize;
        Some(Self { start_ns: start / width_ns * width_ns, width_ns, steps })
    }

    /// Steps to show: those wholly within the run, or all if there are fewer than [`CUT_FROM`].
    fn shown(self) -> std::ops::Range<usize> {
        if self.steps < CUT_FROM { 0..self.steps } else { 1..self.steps - 1 }
    }

    /// Seconds from the start to the middle of a step.
    fn seconds(self, step: usize) -> f64 {
        (step as f64 + 0.5) * self.width_ns as f64 / 1e9
    }
}

#[cfg(test)]
mod tests {
    use super::{Grid, MAX_POINTS};
    use crate::timeline::Timeline;

    #[test]
    fn a_grid_covers_all_timelines_with_few_steps() {
        let (mut early, mut late) = (Timeline::default(), Timeline::default());
        early.add(7_000_000_000, 1);
        for ms in 0..20_000 {
            late.add(9_000_000_000 + ms * 1_000_000, 1);
        }
        let both = [early, late, Timeline::default()];
        let grid = Grid::over(both.iter()).unwrap();
        assert!(grid.steps <= MAX_POINTS && grid.steps > MAX_POINTS / 3, "{}", grid.steps);
        let counted: u64 =
            both.iter().flat_map(|t| t.resampled(grid.start_ns, grid.width_ns, grid.steps)).sum();
        assert_eq!(counted, 20_001);
        assert!(Grid::over([Timeline::default()].iter()).is_none());
    }
}
