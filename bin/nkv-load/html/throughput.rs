//! Throughput over time: payload and operations a second of each kind of operation, all sizes
//! together. Rates are per wall time: work of the generator between operations (making and
//! comparing contents, copies for the ratio) lowers them.

use super::plot::{Axis, Plot, legend, linear_axis, show_number};
use super::{figure, op_class};
use crate::latency::OpTimes;
use crate::timeline::Timeline;

/// Most points of a line: few enough that a run in rounds gives a smooth curve.
const MAX_POINTS: usize = 64;
/// With fewer steps than this the first and the last are shown too, although they are incomplete.
const CUT_FROM: usize = 8;

/// Rates of one kind of operation in equal steps.
struct Rates {
    op: &'static str,
    class: String,
    /// Operations in each step.
    done: Vec<u64>,
    /// Payload bytes in each step.
    bytes: Vec<u64>,
}

/// The common steps of all lines.
#[derive(Clone, Copy)]
struct Grid {
    start_ns: u64,
    width_ns: u64,
    steps: usize,
}

/// Both charts; None if nothing was done.
pub(super) fn figures(times: &[OpTimes]) -> Option<String> {
    let grid = Grid::over(times.iter().map(OpTimes::done))?;
    let rates = rates(times, grid);
    let payload: Vec<&Rates> = rates.iter().filter(|r| r.bytes.iter().any(|b| *b > 0)).collect();
    let mut out = String::new();
    if !payload.is_empty() {
        let unit = |r: &Rates, at: usize| grid.per_second(r.bytes[at]) / 1e9;
        out += &chart("Payload", "GB/s", &payload, grid, unit);
    }
    let all: Vec<&Rates> = rates.iter().collect();
    let unit = |r: &Rates, at: usize| grid.per_second(r.done[at]);
    out += &chart("Operations", "operations/s", &all, grid, unit);
    Some(out)
}

impl Grid {
    fn over<'a>(timelines: impl Iterator<Item = &'a Timeline> + Clone) -> Option<Self> {
        let spans = timelines.clone().filter_map(Timeline::span_ns);
        let (start, end) = spans.reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)))?;
        let mut width_ns = timelines.map(Timeline::width_ns).max()?;
        while (end.div_ceil(width_ns) - start / width_ns) as usize > MAX_POINTS {
            width_ns *= 2;
        }
        let steps = (end.div_ceil(width_ns) - start / width_ns) as usize;
        Some(Self { start_ns: start / width_ns * width_ns, width_ns, steps })
    }

    fn per_second(self, count: u64) -> f64 {
        count as f64 * 1e9 / self.width_ns as f64
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

fn rates(times: &[OpTimes], grid: Grid) -> Vec<Rates> {
    let mut rates: Vec<Rates> = Vec::new();
    for t in times {
        let counts = t.done().resampled(grid.start_ns, grid.width_ns, grid.steps);
        let at = rates.iter().position(|r| r.op == t.op()).unwrap_or_else(|| {
            let class = op_class(t.op());
            let (done, bytes) = (vec![0; grid.steps], vec![0; grid.steps]);
            rates.push(Rates { op: t.op(), class, done, bytes });
            rates.len() - 1
        });
        for (step, count) in counts.iter().enumerate() {
            rates[at].done[step] += count;
            rates[at].bytes[step] += count * t.bytes();
        }
    }
    rates
}

fn chart(
    title: &str,
    unit: &'static str,
    rates: &[&Rates],
    grid: Grid,
    value: impl Fn(&Rates, usize) -> f64,
) -> String {
    let points = |r: &Rates| -> Vec<(f64, f64)> {
        grid.shown().map(|step| (grid.seconds(step), value(r, step))).collect()
    };
    let lines: Vec<(&Rates, Vec<(f64, f64)>)> = rates.iter().map(|r| (*r, points(r))).collect();
    let most = lines.iter().flat_map(|(_, p)| p).map(|p| p.1).fold(0.0, f64::max);
    let mut plot = Plot::new(seconds_axis(grid), linear_axis(most, unit));
    for (rates, points) in &lines {
        plot.area(&rates.class, points);
    }
    for (rates, points) in &lines {
        let mean = points.iter().map(|p| p.1).sum::<f64>() / points.len().max(1) as f64;
        let peak = points.iter().map(|p| p.1).fold(0.0, f64::max);
        let (op, mean, peak) = (rates.op, show_number(mean), show_number(peak));
        plot.line(&rates.class, points, &format!("{op}: mean {mean}, peak {peak} {unit}"));
    }
    let keys = legend(rates.iter().map(|r| (r.class.clone(), r.op)));
    figure(title, &keys, &plot.svg(&format!("{title} over time in {unit}")))
}

fn seconds_axis(grid: Grid) -> Axis {
    let end = grid.steps as f64 * grid.width_ns as f64 / 1e9;
    let mut axis = linear_axis(end, "seconds since the first operation");
    axis.hi = end;
    axis.ticks.retain(|(at, _)| *at <= end);
    axis
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
