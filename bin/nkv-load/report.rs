//! The results of a run: a table for people, one JSON object for programs. The names in the JSON
//! are an interface that scripts read; change both together.

use crate::latency::OpTimes;
use crate::tally::ErrorTally;
use anyhow::Context;
use comfy_table::{Cell, CellAlignment, Table, presets};
use nkv_programs::sizes::show_bytes;
use nkv_programs::streams;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

/// One operation at one size.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct OpRow {
    /// put, get, exists, match_prefix.
    pub(crate) op: &'static str,
    /// Payload bytes of one operation; 0 if it moves none.
    pub(crate) bytes: u64,
    /// Operations measured.
    pub(crate) count: u64,
    /// Median time in microseconds.
    pub(crate) p50_us: f64,
    /// 99th percentile in microseconds.
    pub(crate) p99_us: f64,
    /// Payload bytes per nanosecond spent in the operation (10^9 bytes a second).
    pub(crate) gb_per_s: f64,
    /// Median time divided by the median time of a plain copy of the same bytes, measured in
    /// between: 1 is as fast as a copy, larger is slower. None where nothing is copied.
    pub(crate) vs_memcpy: Option<f64>,
    /// Median time divided by the median time of a round trip over the network. None where none was
    /// measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) round_trips: Option<f64>,
}

impl OpRow {
    /// Names of the columns.
    pub(crate) const HEADER: [&str; 7] =
        ["op", "size", "count", "p50 µs", "p99 µs", "GB/s", "x memcpy"];

    /// The cells of the table's row; a dash for an absent value.
    pub(crate) fn cells(&self) -> [String; 7] {
        let dash = || "-".to_string();
        let moves = self.bytes > 0;
        [
            self.op.to_string(),
            if moves { show_bytes(self.bytes) } else { dash() },
            self.count.to_string(),
            micros(self.p50_us),
            micros(self.p99_us),
            if moves { format!("{:.2}", self.gb_per_s) } else { dash() },
            self.vs_memcpy.or(self.round_trips).map_or_else(dash, |r| format!("{r:.2}")),
        ]
    }
}

/// Two decimals below 10 µs, else one.
fn micros(us: f64) -> String {
    if us < 10.0 { format!("{us:.2}") } else { format!("{us:.1}") }
}

/// Operations of one kind a second.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Rate {
    /// The operation.
    pub(crate) op: Cow<'static, str>,
    /// Processes that did it at the same time.
    pub(crate) processes: u32,
    /// Operations per second of all processes together.
    pub(crate) per_s: f64,
}

/// The outcome of a run.
#[derive(Debug, Default)]
pub(crate) struct Report {
    /// Requests of a trace; operations otherwise.
    pub(crate) requests: u64,
    /// Blocks that were requested.
    pub(crate) blocks: u64,
    /// Blocks that were served from the cache (of a trace: within the longest prefix).
    pub(crate) hit_blocks: u64,
    /// Of these, those that only a disk had when they were looked up.
    pub(crate) disk_blocks: u64,
    /// Wrong bytes and failures.
    pub(crate) tally: ErrorTally,
    /// Times.
    pub(crate) ops: Vec<OpRow>,
    /// Operations per second, if the run measures rates.
    pub(crate) rates: Vec<Rate>,
    /// The times behind the rows, in the same order, for plots.
    pub(crate) times: Vec<OpTimes>,
    /// Names and values that the run chose or found; the flags give the rest.
    pub(crate) facts: Vec<(&'static str, String)>,
    /// Whether a byte was damaged on request.
    pub(crate) damaged: bool,
    /// Time of the longest call, whether it failed or not, if the run keeps it.
    pub(crate) longest_call_ns: Option<u64>,
}

#[derive(Serialize)]
struct Json<'a> {
    requests: u64,
    blocks: u64,
    hit_blocks: u64,
    prefix_hit_ratio: f64,
    #[serde(skip_serializing_if = "is_zero")]
    disk_blocks: u64,
    wrong_bytes: u64,
    failed: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    longest_call_ms: Option<f64>,
    ops: &'a [OpRow],
    #[serde(skip_serializing_if = "<[Rate]>::is_empty")]
    rates: &'a [Rate],
}

fn is_zero(n: &u64) -> bool {
    *n == 0
}

impl Report {
    /// Adds the times of one operation at one size, unless nothing was measured. Each operation
    /// counts as a request.
    pub(crate) fn measured(&mut self, times: OpTimes) {
        self.requests += times.count();
        if let Some(row) = times.row() {
            self.ops.push(row);
            self.times.push(times);
        }
    }

    /// Hit blocks per block asked for, over all requests; 0 if none was.
    pub(crate) fn prefix_hit_ratio(&self) -> f64 {
        if self.blocks == 0 { 0.0 } else { self.hit_blocks as f64 / self.blocks as f64 }
    }

    /// The JSON object, in one line.
    ///
    /// # Errors
    /// Never in practice: the object is made of numbers and names.
    pub(crate) fn json(&self) -> serde_json::Result<String> {
        serde_json::to_string(&Json {
            requests: self.requests,
            blocks: self.blocks,
            hit_blocks: self.hit_blocks,
            prefix_hit_ratio: self.prefix_hit_ratio(),
            disk_blocks: self.disk_blocks,
            wrong_bytes: self.tally.wrong_bytes,
            failed: self.tally.failed,
            longest_call_ms: self.longest_call_ns.map(|ns| ns as f64 / 1e6),
            ops: &self.ops,
            rates: &self.rates,
        })
    }

    /// The table.
    pub(crate) fn table(&self) -> String {
        let mut table = Table::new();
        table.load_preset(presets::UTF8_FULL_CONDENSED);
        let mut header = OpRow::HEADER;
        if self.ops.iter().any(|row| row.round_trips.is_some()) {
            header[OpRow::HEADER.len() - 1] = "round trips";
        }
        table.set_header(header);
        for row in &self.ops {
            let [op, figures @ ..] = row.cells();
            let cells = figures.map(|text| Cell::new(text).set_alignment(CellAlignment::Right));
            table.add_row(std::iter::once(Cell::new(op)).chain(cells));
        }
        table.to_string()
    }

    /// One line of counts, below the table.
    pub(crate) fn summary(&self) -> String {
        let mut text = format!("{} requests", self.requests);
        if self.blocks > 0 {
            text += &format!(
                ", {} blocks, {} hit ({:.4})",
                self.blocks,
                self.hit_blocks,
                self.prefix_hit_ratio()
            );
        }
        if self.disk_blocks > 0 {
            text += &format!(", {} of them from disk", self.disk_blocks);
        }
        text + &format!(", wrong_bytes {}, failed {}", self.tally.wrong_bytes, self.tally.failed)
    }

    /// Whether the byte damaged on request was found.
    fn damage(&self) -> Option<&'static str> {
        self.damaged.then_some(match self.tally.wrong_bytes {
            0 => "the byte flipped on request was NOT found: the check is broken",
            _ => "the byte flipped on request was found, as it should be (exit status 1)",
        })
    }

    /// True if at least one operation was done.
    pub(crate) fn did_something(&self) -> bool {
        !self.ops.is_empty() || !self.rates.is_empty()
    }

    /// Prints everything: the table to stdout, or to stderr if the JSON goes to stdout, and
    /// problems to stderr.
    ///
    /// # Errors
    /// If writing to stdout fails.
    pub(crate) fn print(&self, json_to_stdout: bool) -> anyhow::Result<()> {
        let mut text = format!("{}\n{}", self.table(), self.summary());
        for rate in &self.rates {
            text +=
                &format!("\n{}, processes {}: {:.0} a second", rate.op, rate.processes, rate.per_s);
        }
        if json_to_stdout {
            eprintln!("{text}");
        } else {
            streams::write((text + "\n").as_bytes()).context("stdout")?;
        }
        for line in self.tally.lines() {
            eprintln!("nkv-load: {line}");
        }
        if let Some(line) = self.damage() {
            eprintln!("nkv-load: {line}");
        }
        if json_to_stdout {
            streams::write((self.json()? + "\n").as_bytes()).context("stdout")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{OpRow, Rate, Report};

    fn report() -> Report {
        let op = |op, bytes, vs_memcpy| OpRow {
            op,
            bytes,
            count: 3,
            p50_us: 1.5,
            p99_us: 2.25,
            gb_per_s: 2.5,
            vs_memcpy,
            round_trips: None,
        };
        Report {
            requests: 4,
            blocks: 8,
            hit_blocks: 2,
            ops: vec![op("get", 65_536, Some(1.25)), op("match_prefix", 0, None)],
            ..Report::default()
        }
    }

    #[test]
    fn the_json_has_exactly_the_promised_names() {
        let expected = concat!(
            r#"{"requests":4,"blocks":8,"hit_blocks":2,"prefix_hit_ratio":0.25,"#,
            r#""wrong_bytes":0,"failed":0,"ops":["#,
            r#"{"op":"get","bytes":65536,"count":3,"p50_us":1.5,"p99_us":2.25,"#,
            r#""gb_per_s":2.5,"vs_memcpy":1.25},"#,
            r#"{"op":"match_prefix","bytes":0,"count":3,"p50_us":1.5,"p99_us":2.25,"#,
            r#""gb_per_s":2.5,"vs_memcpy":null}]}"#
        );
        assert_eq!(report().json().unwrap(), expected);
    }

    #[test]
    fn rates_stand_behind_the_rows_and_only_where_there_are_any() {
        let rates = vec![Rate { op: "put log".into(), processes: 2, per_s: 1.5e6 }];
        let json = Report { rates, ..report() }.json().unwrap();
        let end =
            r#""vs_memcpy":null}],"rates":[{"op":"put log","processes":2,"per_s":1500000.0}]}"#;
        assert!(json.ends_with(end), "{json}");
    }

    #[test]
    fn the_table_shows_sizes_and_a_dash_where_nothing_moves() {
        let table = report().table();
        assert!(table.contains("64 KiB") && table.contains("1.25"), "{table}");
        let line = table.lines().find(|l| l.contains("match_prefix")).unwrap();
        assert_eq!(line.matches(" - ").count(), 3, "{line:?}");
    }

    #[test]
    fn a_flipped_byte_is_found_as_it_should_be_or_said_to_be_missed() {
        assert_eq!(report().damage(), None);
        let missed = Report { damaged: true, ..report() };
        assert!(missed.damage().unwrap().contains("NOT found"));
        let mut found = Report { damaged: true, ..report() };
        found.tally.wrong_bytes = 1;
        assert!(found.damage().unwrap().contains("found, as it should be"));
    }

    #[test]
    fn no_blocks_is_a_ratio_of_zero_not_a_nan() {
        assert_eq!(Report::default().prefix_hit_ratio(), 0.0);
        assert!(report().summary().contains("2 hit (0.2500)"));
    }
}
