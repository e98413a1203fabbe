//! Latency: for every operation and size the distribution on one logarithmic axis with the median
//! of a plain copy; and for every operation the curve of its percentiles.

use super::plot::{Axis, Plot, escape, legend, show_ns, svg_text, time_axis};
use super::{figure, op_class, size_class};
use crate::latency::OpTimes;
use hdrhistogram::Histogram;
use nkv_programs::sizes::show_bytes;
use std::fmt::Write;

/// Bars of a distribution per factor of ten.
const BARS_PER_DECADE: f64 = 20.0;
/// Points of a percentile curve per factor of ten of the share above it.
const POINTS_PER_DECADE: u32 = 20;
/// Curves end at 99.999%: beyond, single outliers dominate.
const MOST_NINES: f64 = 5.0;
/// Size of the drawing of distributions in its own units: rows are added to the height.
const WIDTH: f64 = 1160.0;
const LABEL_WIDTH: f64 = 150.0;
const FIGURES_WIDTH: f64 = 190.0;
const ROW_HEIGHT: f64 = 36.0;
const AXIS_HEIGHT: f64 = 40.0;

/// Name of a row or a curve.
fn name(times: &OpTimes) -> String {
    match times.bytes() {
        0 => times.op().to_string(),
        bytes => format!("{} {}", times.op(), show_bytes(bytes)),
    }
}

/// All distributions in one figure; None if nothing was measured.
pub(super) fn distributions(times: &[OpTimes]) -> Option<String> {
    let all = || times.iter().flat_map(|t| [t.times(), t.copies()]).filter(|h| !h.is_empty());
    let least = all().map(Histogram::min).min()?;
    let most = times.iter().map(|t| t.times().max()).max()?;
    let axis = time_axis(least, most, "time of one operation, logarithmic");
    let floor = ROW_HEIGHT * times.len() as f64 + 8.0;
    let mut svg = format!(
        "<svg class=\"plot wide\" viewBox=\"0 0 {WIDTH} {:.0}\" role=\"img\" aria-label=\"latency \
         distributions\">",
        floor + AXIS_HEIGHT
    );
    for (at, text) in &axis.ticks {
        let (x, fine) = (across(&axis, *at), if text.is_empty() { " fine" } else { "" });
        let _ = write!(
            svg,
            "<line class=\"grid{fine}\" x1=\"{x:.1}\" y1=\"0\" x2=\"{x:.1}\" \
             y2=\"{floor:.1}\"></line>"
        );
        svg += &svg_text("tick", (x, floor + 16.0), "middle", text);
    }
    let middle = (LABEL_WIDTH + WIDTH - FIGURES_WIDTH) / 2.0;
    svg += &svg_text("axis", (middle, floor + 34.0), "middle", axis.title);
    svg += &svg_text("axis", (WIDTH - 6.0, floor + 34.0), "end", "median · 99%");
    for (row, t) in times.iter().enumerate() {
        svg += &ridge(t, &op_class(t.op()), &axis, ROW_HEIGHT * (row + 1) as f64);
    }
    svg += "</svg>";
    let keys = "<p class=\"note\">Filled: how often each time was taken. Lines: median and 99th \
                percentile. Diamond: median of a plain copy of the same bytes.</p>";
    Some(figure("Distributions", keys, &svg))
}

/// One row: the distribution above `base`, with its marks and figures.
fn ridge(times: &OpTimes, class: &str, axis: &Axis, base: f64) -> String {
    let bars = bars(times.times(), axis);
    let most = bars.iter().map(|b| b.1).fold(0.0, f64::max).max(f64::MIN_POSITIVE);
    let high = ROW_HEIGHT - 10.0;
    let mut path = format!("M{:.1},{base:.1}", across(axis, axis.lo));
    for (at, share) in &bars {
        let _ = write!(path, "L{:.1},{:.1}", across(axis, *at), base - share / most * high);
    }
    let _ = write!(path, "L{:.1},{base:.1}Z", across(axis, axis.hi));
    let [p50, p99] = [0.5, 0.99].map(|q| times.times().value_at_quantile(q));
    let (name, figures) =
        (name(times), format!("{} · {}", show_ns(p50 as f64), show_ns(p99 as f64)));
    let tip = format!("{name}: {} times, median and 99th percentile {figures}", times.count());
    let mut out = format!(
        "<g><title>{}</title><path class=\"ridge {class}\" d=\"{path}\"></path>",
        escape(&tip)
    );
    for (ns, length) in [(p50, high), (p99, high * 0.6)] {
        let x = across(axis, (ns.max(1) as f64).log10());
        let top = base - length;
        let _ = write!(
            out,
            "<line class=\"mark {class}\" x1=\"{x:.1}\" y1=\"{base:.1}\" x2=\"{x:.1}\" \
             y2=\"{top:.1}\"></line>"
        );
    }
    if !times.copies().is_empty() {
        let copy = times.copies().value_at_quantile(0.5).max(1) as f64;
        let (x, y) = (across(axis, copy.log10()), base - 5.0);
        let _ = write!(
            out,
            "<path class=\"copy\" d=\"M{x:.1},{:.1}l4,4l-4,4l-4,-4Z\"></path>",
            y - 4.0
        );
    }
    out += &svg_text("row", (LABEL_WIDTH - 10.0, base - 6.0), "end", &name);
    out += &svg_text("row figures", (WIDTH - 6.0, base - 6.0), "end", &figures);
    out + "</g>"
}

/// Position on the distributions' axis.
fn across(axis: &Axis, at: f64) -> f64 {
    let part = ((at - axis.lo) / (axis.hi - axis.lo)).clamp(0.0, 1.0);
    LABEL_WIDTH + part * (WIDTH - LABEL_WIDTH - FIGURES_WIDTH)
}

/// (middle of a bar, share of the operations in it), smoothed over neighbours.
fn bars(times: &Histogram<u64>, axis: &Axis) -> Vec<(f64, f64)> {
    let count = ((axis.hi - axis.lo) * BARS_PER_DECADE).ceil().max(1.0) as usize;
    let width = (axis.hi - axis.lo) / count as f64;
    let mut raw = vec![0.0; count];
    for value in times.iter_recorded() {
        let at = (value.value_iterated_to().max(1) as f64).log10() - axis.lo;
        let bar = ((at / width).max(0.0) as usize).min(count - 1);
        raw[bar] += value.count_since_last_iteration() as f64;
    }
    let near = |index: Option<usize>| index.and_then(|i| raw.get(i)).copied().unwrap_or(0.0);
    let smooth =
        |i: usize| 0.25 * near(i.checked_sub(1)) + 0.5 * raw[i] + 0.25 * near(i.checked_add(1));
    (0..count).map(|i| (axis.lo + (i as f64 + 0.5) * width, smooth(i))).collect()
}

/// One figure per operation with a curve for each of its sizes.
pub(super) fn percentiles(times: &[OpTimes]) -> String {
    let mut ops: Vec<&str> = Vec::new();
    for t in times {
        if !ops.contains(&t.op()) {
            ops.push(t.op());
        }
    }
    let of = |op: &str| times.iter().filter(|t| t.op() == op).collect::<Vec<_>>();
    ops.into_iter().map(|op| curves(op, &of(op))).collect()
}

fn curves(op: &str, times: &[&OpTimes]) -> String {
    // With one size, its copies get a curve too. With several sizes these would hide the others.
    let copies = times.len() == 1 && !times[0].copies().is_empty();
    let mut lines: Vec<(String, String, &Histogram<u64>)> = Vec::new();
    for (index, t) in times.iter().enumerate() {
        let class = if times.len() == 1 { op_class(op) } else { size_class(index) };
        lines.push((class, name(t), t.times()));
    }
    if copies {
        lines.push(("copies".to_string(), "plain copy".to_string(), times[0].copies()));
    }
    let nines = |h: &Histogram<u64>| (h.len().max(10) as f64).log10().min(MOST_NINES);
    let most_nines = lines.iter().map(|l| nines(l.2)).fold(1.0, f64::max);
    let least = lines.iter().map(|l| l.2.min()).min().unwrap_or(1);
    let most = lines.iter().map(|l| l.2.value_at_quantile(quantile(nines(l.2)))).max().unwrap_or(1);
    let mut plot = Plot::new(nines_axis(most_nines), time_axis(least, most, "time"));
    for (class, name, histogram) in &lines {
        let steps = (nines(histogram) * f64::from(POINTS_PER_DECADE)) as u32;
        let points: Vec<(f64, f64)> = (0..=steps)
            .map(|step| {
                let at = f64::from(step) / f64::from(POINTS_PER_DECADE);
                let ns = histogram.value_at_quantile(quantile(at)).max(1);
                (at, (ns as f64).log10())
            })
            .collect();
        let at = |q| show_ns(histogram.value_at_quantile(q) as f64);
        let tip = format!("{name}: p50 {}, p99 {}, p99.9 {}", at(0.5), at(0.99), at(0.999));
        plot.line(class, &points, &tip);
    }
    let keys = legend(lines.iter().map(|(class, name, _)| (class.clone(), name.as_str())));
    figure(&format!("Percentiles of {op}"), &keys, &plot.svg(&format!("percentiles of {op}")))
}

/// The quantile with `nines` nines: 0 is the least, 1 is 90%, 2 is 99%.
fn quantile(nines: f64) -> f64 {
    1.0 - 10f64.powf(-nines)
}

fn nines_axis(most: f64) -> Axis {
    let labels = [
        ("min", 0.0),
        ("50%", std::f64::consts::LOG10_2),
        ("90%", 1.0),
        ("99%", 2.0),
        ("99.9%", 3.0),
        ("99.99%", 4.0),
        ("99.999%", 5.0),
    ];
    let ticks = labels.iter().filter(|(_, at)| *at <= most + 1e-9);
    let ticks = ticks.map(|(text, at)| (*at, (*text).to_string())).collect();
    Axis { lo: 0.0, hi: most, ticks, title: "percentile" }
}

#[cfg(test)]
mod tests {
    use super::{bars, nines_axis, quantile};
    use crate::html::plot::time_axis;
    use crate::latency::OpTimes;

    #[test]
    fn every_operation_is_in_a_bar() {
        let mut times = OpTimes::new("get", 1);
        for ns in [900, 1_000, 30_000, 30_000, 5_000_000] {
            times.record(ns);
        }
        let axis = time_axis(900, 5_000_000, "");
        let shares: f64 = bars(times.times(), &axis).iter().map(|b| b.1).sum();
        assert!((shares - 5.0).abs() < 0.6, "{shares}: only the edges' smoothing may be lost");
    }

    #[test]
    fn nines_are_quantiles() {
        assert!((quantile(1.0) - 0.9).abs() < 1e-9 && (quantile(3.0) - 0.999).abs() < 1e-9);
        assert_eq!(quantile(0.0), 0.0);
        assert_eq!(nines_axis(2.0).ticks.last().unwrap().1, "99%");
    }
}
