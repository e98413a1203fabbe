//! `--report FILE.html`: a run as one page without scripts or external files: results, throughput
//! over time, latency, the table, and the configuration. It only shows the report and measures
//! nothing.

mod latency;
mod plot;
mod throughput;

use crate::report::{OpRow, Report};
use nkv_programs::sizes::show_bytes;
use plot::{escape, show_number};

const STYLE: &str = include_str!("html/style.css");
/// Kinds of operations, in the order of their colours; others follow.
const OPS: [&str; 5] = ["put", "get", "exists", "remove", "match_prefix"];
/// Colours that the style has for sizes.
const SIZE_COLOURS: usize = 8;

/// Description of a run, for the page's head and its last table.
#[derive(Debug, Clone)]
pub(crate) struct Setting {
    /// What kind of run it was, in one sentence.
    pub(crate) title: String,
    /// Name and value of each setting of the run.
    pub(crate) rows: Vec<(String, String)>,
    /// How long it took, in nanoseconds, with start and end.
    pub(crate) wall_ns: u64,
}

/// The colour of a kind of operation.
fn op_class(op: &str) -> String {
    format!("op{}", OPS.iter().position(|o| *o == op).unwrap_or(OPS.len()))
}

/// The colour of the n-th size.
fn size_class(index: usize) -> String {
    format!("size{}", index % SIZE_COLOURS)
}

/// The page.
pub(crate) fn page(report: &Report, setting: &Setting) -> String {
    let nothing = || "<p class=\"note\">Nothing was measured.</p>".to_string();
    let sections = [
        section(
            "Throughput over time",
            &two_columns(throughput::figures(&report.times)),
            "Payload and operations per second of wall time. The generator makes and compares \
             every byte and copies it once more for the ratio, so these rates are lower than those \
             of the table, which count only the time within operations.",
        ),
        section("Latency", &latency::distributions(&report.times).unwrap_or_else(nothing), ""),
        section(
            "Percentiles",
            &two_columns(Some(latency::percentiles(&report.times)).filter(|p| !p.is_empty())),
            "",
        ),
        section("Table", &table(&report.ops), ""),
        section("Configuration", &configuration(report, setting), ""),
    ];
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"/>\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\
         <meta name=\"color-scheme\" content=\"light dark\"/>\
         <title>nkv-load: {title}</title><style>\n{STYLE}</style></head>\n<body><main>\
         <header><h1>nkv-load</h1><p>{title}</p></header>\n{verdict}\n{tiles}\n{sections}\
         </main></body></html>\n",
        title = escape(&setting.title),
        verdict = verdict(report),
        tiles = tiles(report, setting),
        sections = sections.concat(),
    )
}

fn section(title: &str, body: &str, note: &str) -> String {
    let note =
        if note.is_empty() { String::new() } else { format!("<p class=\"note\">{note}</p>") };
    format!("<section><h2>{title}</h2>{note}{body}</section>\n")
}

fn two_columns(figures: Option<String>) -> String {
    match figures {
        Some(figures) => format!("<div class=\"columns\">{figures}</div>"),
        None => "<p class=\"note\">Nothing was measured.</p>".to_string(),
    }
}

/// A chart with its title and legend.
fn figure(title: &str, keys: &str, svg: &str) -> String {
    format!("<figure><figcaption>{}</figcaption>{keys}{svg}</figure>\n", escape(title))
}

/// Whether the run was good, else the first problems.
fn verdict(report: &Report) -> String {
    let tally = &report.tally;
    if tally.is_clean() {
        return "<p class=\"verdict good\">Every byte was right and nothing failed.</p>"
            .to_string();
    }
    let lines: String =
        tally.lines().iter().map(|line| format!("<li>{}</li>", escape(line))).collect();
    format!(
        "<div class=\"verdict bad\"><p>Wrong bytes: {}, failed operations: \
         {}</p><ul>{lines}</ul></div>",
        tally.wrong_bytes, tally.failed
    )
}

fn tiles(report: &Report, setting: &Setting) -> String {
    let moved: u64 = report.ops.iter().map(|row| row.count.saturating_mul(row.bytes)).sum();
    let mut tiles = vec![
        ("requests", show_number(report.requests as f64)),
        ("payload moved", show_bytes(moved)),
        ("wall time", format!("{:.1} s", setting.wall_ns as f64 / 1e9)),
    ];
    if report.blocks > 0 {
        tiles.insert(1, ("hit ratio", format!("{:.4}", report.prefix_hit_ratio())));
        let hits = format!("{} of {}", report.hit_blocks, report.blocks);
        tiles.insert(2, ("blocks hit", hits));
    }
    let tiles = tiles.into_iter().map(|(name, value)| {
        format!("<div class=\"tile\"><b>{}</b><span>{name}</span></div>", escape(&value))
    });
    format!("<div class=\"tiles\">{}</div>", tiles.collect::<String>())
}

fn table(rows: &[OpRow]) -> String {
    let head: String = OpRow::HEADER.iter().map(|name| format!("<th>{name}</th>")).collect();
    let body: String = rows
        .iter()
        .map(|row| {
            let [op, rest @ ..] = row.cells();
            let rest: String =
                rest.iter().map(|cell| format!("<td>{}</td>", escape(cell))).collect();
            format!("<tr><th>{}</th>{rest}</tr>", escape(&op))
        })
        .collect();
    format!(
        "<div class=\"scroll\"><table><thead><tr>{head}</tr></thead>\
         <tbody>{body}</tbody></table></div>\
         <p class=\"note\">GB/s: payload per time within the operation. x memcpy: median time \
         divided by that of a plain copy of the same bytes, made in between.</p>"
    )
}

fn configuration(report: &Report, setting: &Setting) -> String {
    let facts = report.facts.iter().map(|(name, value)| (*name, value.as_str()));
    let rows = setting.rows.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    let rows: String = rows
        .chain(facts)
        .map(|(name, value)| format!("<dt>{}</dt><dd>{}</dd>", escape(name), escape(value)))
        .collect();
    format!("<dl>{rows}</dl>")
}

#[cfg(test)]
mod tests;
