//! `--report FILE.html`: a run as one page that loads nothing from elsewhere: a template, the
//! plotting library uPlot, and the run as JSON. It measures nothing.

mod latency;
mod throughput;

use crate::report::{OpRow, Report};
use crate::setting::Setting;
use latency::Latency;
use nkv_programs::sizes::show_bytes;
use serde::Serialize;
use throughput::Throughput;

const TEMPLATE: &str = include_str!("html/template.html");
const STYLE: &str = include_str!("html/style.css");
const UPLOT: &str = include_str!("html/uplot/uPlot.iife.min.js");
/// Goes with every copy of the library.
const UPLOT_LICENSE: &str = include_str!("html/uplot/LICENSE");
const UPLOT_STYLE: &str = include_str!("html/uplot/uPlot.min.css");
/// Where the template takes the run.
const RUN: &str = "__RUN__";

/// What the template shows.
#[derive(Serialize)]
struct Run<'a> {
    title: &'a str,
    /// What went wrong; absent if nothing did.
    problems: Option<Problems>,
    /// Figures at the head of the page: name, value.
    totals: Vec<(&'static str, String)>,
    throughput: Option<Throughput>,
    latency: Option<Latency>,
    header: [&'static str; 7],
    rows: Vec<[String; 7]>,
    settings: Vec<&'a (&'static str, String)>,
}

#[derive(Serialize)]
struct Problems {
    wrong_bytes: u64,
    failed: u64,
    lines: Vec<String>,
}

/// The page of a run that took `wall_ns`, with start and end.
///
/// # Errors
/// Never in practice: the run is made of numbers and names.
pub(crate) fn page(report: &Report, setting: &Setting, wall_ns: u64) -> serde_json::Result<String> {
    let (before, after) = TEMPLATE.split_once(RUN).unwrap_or((TEMPLATE, ""));
    let before = before
        .replace("__STYLE__", &[UPLOT_STYLE, STYLE].join("\n"))
        .replace("__UPLOT_LICENSE__", UPLOT_LICENSE)
        .replace("__UPLOT__", UPLOT);
    // In a script element only `</script` and `<!--` mean something: no `<` is left.
    let run = serde_json::to_string(&run(report, setting, wall_ns))?.replace('<', "\\u003c");
    Ok([&before, &run, after].concat())
}

fn run<'a>(report: &'a Report, setting: &'a Setting, wall_ns: u64) -> Run<'a> {
    let tally = &report.tally;
    let problems = (!tally.is_clean()).then(|| Problems {
        wrong_bytes: tally.wrong_bytes,
        failed: tally.failed,
        lines: tally.lines(),
    });
    Run {
        title: &setting.title,
        problems,
        totals: totals(report, wall_ns),
        throughput: Throughput::of(&report.times),
        latency: Latency::of(&report.times),
        header: OpRow::HEADER,
        rows: report.ops.iter().map(OpRow::cells).collect(),
        settings: setting.rows.iter().chain(&report.facts).collect(),
    }
}

fn totals(report: &Report, wall_ns: u64) -> Vec<(&'static str, String)> {
    let moved: u64 = report.ops.iter().map(|row| row.count.saturating_mul(row.bytes)).sum();
    let mut totals = vec![("requests", report.requests.to_string())];
    if report.blocks > 0 {
        totals.push(("hit ratio", format!("{:.4}", report.prefix_hit_ratio())));
        totals.push(("blocks hit", format!("{} of {}", report.hit_blocks, report.blocks)));
    }
    totals.push(("payload moved", show_bytes(moved)));
    totals.push(("wall time", format!("{:.1} s", wall_ns as f64 / 1e9)));
    totals
}

#[cfg(test)]
mod tests;
