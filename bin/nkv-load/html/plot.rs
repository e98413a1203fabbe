//! One chart as inline SVG: a frame with axes, and lines or areas in it. It handles positions and
//! labels only. Colours come from the page's style by class, so one drawing serves light and dark
//! mode.

use std::fmt::Write;

/// Size of a chart in its own units; the page scales it.
const WIDTH: f64 = 560.0;
const HEIGHT: f64 = 270.0;
/// Room around the plot for labels.
const LEFT: f64 = 62.0;
const RIGHT: f64 = 30.0;
const TOP: f64 = 12.0;
const BOTTOM: f64 = 44.0;

/// An axis in whatever unit the positions have (for a logarithmic one, their logarithms).
#[derive(Debug, Clone)]
pub(super) struct Axis {
    /// Position of its start.
    pub(super) lo: f64,
    /// Position of its end, above `lo`.
    pub(super) hi: f64,
    /// Positions with a label; an empty label is a fine line.
    pub(super) ticks: Vec<(f64, String)>,
    /// What it shows.
    pub(super) title: &'static str,
}

impl Axis {
    fn part(&self, at: f64) -> f64 {
        ((at - self.lo) / (self.hi - self.lo)).clamp(0.0, 1.0)
    }
}

/// A chart being drawn.
#[derive(Debug)]
pub(super) struct Plot {
    x: Axis,
    y: Axis,
    body: String,
}

impl Plot {
    /// An empty chart.
    pub(super) fn new(x: Axis, y: Axis) -> Self {
        Self { x, y, body: String::new() }
    }

    /// A line through `points`, with a tooltip. A single point is a dot.
    pub(super) fn line(&mut self, class: &str, points: &[(f64, f64)], tip: &str) {
        let tip = escape(tip);
        if let [point] = points {
            let (x, y) = self.place(*point);
            let dot = format!(
                "<circle class=\"dot {class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" \
                 r=\"3\"><title>{tip}</title></circle>"
            );
            self.body.push_str(&dot);
            return;
        }
        let path = self.path(points);
        let line = format!("<path class=\"line {class}\" d=\"{path}\"><title>{tip}</title></path>");
        self.body.push_str(&line);
    }

    /// The area below a line.
    pub(super) fn area(&mut self, class: &str, points: &[(f64, f64)]) {
        let (Some(first), Some(last)) = (points.first(), points.last()) else { return };
        let path = self.path(points);
        let floor = HEIGHT - BOTTOM;
        let (start, end) = (self.place(*first).0, self.place(*last).0);
        let area = format!(
            "<path class=\"area {class}\" \
             d=\"{path}L{end:.1},{floor:.1}L{start:.1},{floor:.1}Z\"></path>"
        );
        self.body.push_str(&area);
    }

    /// The drawing; `label` describes it for screen readers.
    pub(super) fn svg(&self, label: &str) -> String {
        let mut out = format!(
            "<svg class=\"plot\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}\">",
            escape(label)
        );
        let (right, floor) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
        for (at, text) in &self.x.ticks {
            let x = self.place((*at, self.y.lo)).0;
            let fine = if text.is_empty() { " fine" } else { "" };
            let line = (x, TOP, x, floor);
            out += &grid(fine, line);
            out += &svg_text("tick", (x, floor + 16.0), "middle", text);
        }
        for (at, text) in &self.y.ticks {
            let y = self.place((self.x.lo, *at)).1;
            let fine = if text.is_empty() { " fine" } else { "" };
            out += &grid(fine, (LEFT, y, right, y));
            out += &svg_text("tick", (LEFT - 7.0, y + 3.5), "end", text);
        }
        out += &svg_text("axis", ((LEFT + right) / 2.0, HEIGHT - 8.0), "middle", self.x.title);
        let middle = (TOP + floor) / 2.0;
        let _ = write!(
            out,
            "<text class=\"axis\" text-anchor=\"middle\" transform=\"translate(13 {middle:.1}) \
             rotate(-90)\">{}</text>",
            escape(self.y.title)
        );
        out += &self.body;
        out + "</svg>"
    }

    fn place(&self, (x, y): (f64, f64)) -> (f64, f64) {
        let wide = WIDTH - LEFT - RIGHT;
        let high = HEIGHT - TOP - BOTTOM;
        (LEFT + self.x.part(x) * wide, TOP + (1.0 - self.y.part(y)) * high)
    }

    fn path(&self, points: &[(f64, f64)]) -> String {
        let mut path = String::new();
        for (index, point) in points.iter().enumerate() {
            let (x, y) = self.place(*point);
            let verb = if index == 0 { 'M' } else { 'L' };
            let _ = write!(path, "{verb}{x:.1},{y:.1}");
        }
        path
    }
}

fn grid(fine: &str, (x1, y1, x2, y2): (f64, f64, f64, f64)) -> String {
    format!(
        "<line class=\"grid{fine}\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" \
         y2=\"{y2:.1}\"></line>"
    )
}

/// Text at a place; nothing if it is empty.
pub(super) fn svg_text(class: &str, (x, y): (f64, f64), anchor: &str, text: &str) -> String {
    if text.is_empty() {
        return String::new();
    }
    format!(
        "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{}</text>",
        escape(text)
    )
}

/// Escapes text for use between tags and in attributes.
pub(super) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            c if c.is_control() => out.push(' '),
            c => out.push(c),
        }
    }
    out
}

/// A legend: each entry's name and colour class.
pub(super) fn legend<'a>(entries: impl Iterator<Item = (String, &'a str)>) -> String {
    let items: String = entries
        .map(|(class, text)| {
            format!("<li><span class=\"key {class}\"></span>{}</li>", escape(text))
        })
        .collect();
    format!("<ul class=\"legend\">{items}</ul>")
}

/// An axis of times: positions are decimal logarithms of nanoseconds, from `least` to `most`.
pub(super) fn time_axis(least_ns: u64, most_ns: u64, title: &'static str) -> Axis {
    let lo = (least_ns.max(1) as f64).log10();
    let hi = (most_ns.max(least_ns.max(1)) as f64).log10();
    // At least half a decade wide, so that equal times appear in the middle and not at the edge.
    let (lo, hi) = if hi - lo < 0.5 { (lo - 0.25, hi + 0.25) } else { (lo - 0.05, hi + 0.05) };
    let wide = hi - lo > 1.5;
    let mut ticks = Vec::new();
    for decade in lo.floor() as i32..=hi.ceil() as i32 {
        for factor in [1.0, 2.0, 5.0] {
            let at = f64::from(decade) + f64::log10(factor);
            if (lo..=hi).contains(&at) {
                let labelled = factor == 1.0 || !wide;
                let ns = factor * 10f64.powi(decade);
                ticks.push((at, if labelled { show_ns(ns) } else { String::new() }));
            }
        }
    }
    Axis { lo, hi, ticks, title }
}

/// An axis from 0 to a bit above `most`, with round labels.
pub(super) fn linear_axis(most: f64, title: &'static str) -> Axis {
    let most = if most > 0.0 { most } else { 1.0 };
    let rough = most / 5.0;
    let decade = 10f64.powf(rough.log10().floor());
    let factors = [1.0, 2.0, 5.0, 10.0];
    let step = factors.map(|f| f * decade).into_iter().find(|s| *s >= rough).unwrap_or(rough);
    let steps = (most / step).ceil().max(1.0) as u32;
    let ticks = (0..=steps).map(|n| (f64::from(n) * step, show_number(f64::from(n) * step)));
    Axis { lo: 0.0, hi: f64::from(steps) * step, ticks: ticks.collect(), title }
}

/// A time with its unit.
pub(super) fn show_ns(ns: f64) -> String {
    let (value, unit) = match ns {
        ns if ns < 1e3 => (ns, "ns"),
        ns if ns < 1e6 => (ns / 1e3, "µs"),
        ns if ns < 1e9 => (ns / 1e6, "ms"),
        ns => (ns / 1e9, "s"),
    };
    format!("{} {unit}", show_number(value))
}

/// Three significant digits, with k, M or G for large numbers.
pub(super) fn show_number(value: f64) -> String {
    let (value, unit) = match value {
        v if v >= 1e9 => (v / 1e9, " G"),
        v if v >= 1e6 => (v / 1e6, " M"),
        v if v >= 1e4 => (v / 1e3, " k"),
        v => (v, ""),
    };
    let digits = match value {
        v if v >= 100.0 || v == 0.0 => 0,
        v if v >= 10.0 => 1,
        v if v >= 1.0 => 2,
        _ => 3,
    };
    let text = format!("{value:.digits$}");
    let short =
        if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    format!("{short}{unit}")
}

#[cfg(test)]
mod tests {
    use super::{Axis, Plot, escape, linear_axis, show_ns, show_number, time_axis};

    fn axis(lo: f64, hi: f64) -> Axis {
        Axis { lo, hi, ticks: vec![(lo, "low".into()), (hi, "high".into())], title: "unit" }
    }

    #[test]
    fn what_lies_outside_the_axes_is_drawn_at_the_edge_not_over_the_labels() {
        let mut plot = Plot::new(axis(0.0, 1.0), axis(0.0, 1.0));
        plot.line("c0", &[(-5.0, 0.0), (9.0, 9.0)], "tip");
        let svg = plot.svg("x");
        assert!(svg.contains("M62.0,226.0L530.0,12.0"), "{svg}");
    }

    #[test]
    fn one_point_is_a_dot_and_none_is_nothing() {
        let mut plot = Plot::new(axis(0.0, 1.0), axis(0.0, 1.0));
        plot.line("c0", &[(0.5, 0.5)], "tip");
        plot.area("c0", &[]);
        let svg = plot.svg("x");
        assert!(svg.contains("<circle") && !svg.contains("area"), "{svg}");
    }

    #[test]
    fn text_cannot_become_markup() {
        assert_eq!(escape("<a href=\"x\">&\n"), "&lt;a href=&quot;x&quot;&gt;&amp; ");
    }

    #[test]
    fn numbers_are_short_and_have_units() {
        for (value, text) in [
            (0.0, "0"),
            (0.25, "0.25"),
            (1.5, "1.5"),
            (30.0, "30"),
            (100.0, "100"),
            (9999.0, "9999"),
        ] {
            assert_eq!(show_number(value), text);
        }
        assert_eq!(show_number(123_456.0), "123 k");
        assert_eq!([3.0, 1500.0, 2e6, 1e9].map(show_ns), ["3 ns", "1.5 µs", "2 ms", "1 s"]);
    }

    #[test]
    fn axes_hold_what_they_are_for_and_have_labels() {
        for most in [0.0, 0.003, 1.0, 7.3, 12_345.0, 9e9] {
            let axis = linear_axis(most, "");
            assert!(axis.hi >= most && axis.hi <= most.max(1.0) * 2.0, "{most}: {axis:?}");
            assert!((3..=8).contains(&axis.ticks.len()), "{most}: {axis:?}");
        }
        for (least, most) in [(0, 0), (1000, 1000), (3000, 9000), (100, 60_000_000_000)] {
            let axis = time_axis(least, most, "");
            let labels = axis.ticks.iter().filter(|(_, text)| !text.is_empty()).count();
            assert!(axis.hi > axis.lo && (1..=12).contains(&labels), "{least} {most}: {axis:?}");
        }
    }
}
