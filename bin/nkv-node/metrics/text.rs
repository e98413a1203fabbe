//! Prometheus' text format: metrics in the order in which they are written, each with its help and
//! type, and all samples of one metric together.

use nkv_actors::durations::{BOUNDS_NS, Durations};
use std::fmt::{Display, Write};

/// Type of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sort {
    /// Its value may fall.
    Gauge,
    /// It only grows; its name ends in `_total`.
    Counter,
    /// Durations by bucket; its name ends in `_seconds`.
    Histogram,
}

/// Labels of a sample besides those that all have.
pub(super) type Labels<'a> = &'a [(&'static str, &'a str)];

/// A scrape being written.
pub(super) struct Text {
    out: String,
    rank: String,
}

impl Text {
    /// An empty scrape; every sample will be labelled with the rank.
    pub(super) fn of_rank(rank: u32) -> Self {
        Self { out: String::new(), rank: rank.to_string() }
    }

    /// Begins a metric: its samples follow.
    pub(super) fn metric(&mut self, name: &str, sort: Sort, help: &str) {
        let sort = match sort {
            Sort::Gauge => "gauge",
            Sort::Counter => "counter",
            Sort::Histogram => "histogram",
        };
        let help = help.replace('\\', "\\\\").replace('\n', "\\n");
        self.line(format_args!("# HELP {name} {help}"));
        self.line(format_args!("# TYPE {name} {sort}"));
    }

    /// One sample.
    pub(super) fn sample(&mut self, name: &str, labels: Labels<'_>, value: impl Display) {
        let labels = self.labels(labels, None);
        self.line(format_args!("{name}{labels} {value}"));
    }

    /// A histogram of each of these durations.
    pub(super) fn histogram<'a>(
        &mut self,
        name: &str,
        help: &str,
        all: impl IntoIterator<Item = (Vec<(&'static str, &'a str)>, &'a Durations)>,
    ) {
        self.metric(name, Sort::Histogram, help);
        for (labels, found) in all {
            self.durations(name, &labels, found);
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "Prometheus has no other numbers")]
    fn durations(&mut self, name: &str, labels: Labels<'_>, found: &Durations) {
        let mut count = 0;
        for (bucket, n) in found.counts.iter().enumerate() {
            count += n;
            let bound = BOUNDS_NS.get(bucket);
            let bound = bound.map_or("+Inf".to_string(), |ns| (*ns as f64 / 1e9).to_string());
            let labels = self.labels(labels, Some(&bound));
            self.line(format_args!("{name}_bucket{labels} {count}"));
        }
        let labels = self.labels(labels, None);
        self.line(format_args!("{name}_sum{labels} {}", found.sum_ns as f64 / 1e9));
        self.line(format_args!("{name}_count{labels} {count}"));
    }

    /// The text.
    pub(super) fn into_string(self) -> String {
        self.out
    }

    fn labels(&self, labels: Labels<'_>, bound: Option<&str>) -> String {
        let all = [("rank", self.rank.as_str())].into_iter().chain(labels.iter().copied());
        let all = all.chain(bound.map(|bound| ("le", bound)));
        let shown: Vec<String> =
            all.map(|(name, value)| format!("{name}=\"{}\"", escaped(value))).collect();
        format!("{{{}}}", shown.join(","))
    }

    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.out, "{line}");
    }
}

fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::{BOUNDS_NS, Durations, Text};

    #[test]
    fn labels_are_escaped_and_buckets_add_up() {
        let mut text = Text::of_rank(3);
        let mut found = Durations { sum_ns: 1_500_000_000, ..Durations::default() };
        (found.counts[0], found.counts[BOUNDS_NS.len()]) = (2, 1);
        text.histogram("nkv_x_seconds", "a \\ and\nmore", [(vec![("of", "\"")], &found)]);
        let text = text.into_string();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "# HELP nkv_x_seconds a \\\\ and\\nmore");
        assert_eq!(lines[1], "# TYPE nkv_x_seconds histogram");
        assert_eq!(lines[2], r#"nkv_x_seconds_bucket{rank="3",of="\"",le="0.000001"} 2"#);
        let end = &lines[lines.len() - 3..];
        assert_eq!(end[0], r#"nkv_x_seconds_bucket{rank="3",of="\"",le="+Inf"} 3"#);
        assert_eq!(end[1], r#"nkv_x_seconds_sum{rank="3",of="\""} 1.5"#);
        assert_eq!(end[2], r#"nkv_x_seconds_count{rank="3",of="\""} 3"#);
        assert_eq!(lines.len(), 2 + BOUNDS_NS.len() + 1 + 2);
    }
}
