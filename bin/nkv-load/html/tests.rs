//! The page is complete, shows everything that was measured, and loads nothing from elsewhere.

use super::{Setting, page};
use crate::latency::OpTimes;
use crate::report::Report;
use nkv::Error;

/// Checks that every element is closed, by an end tag or `/>`.
fn assert_well_formed(page: &str) {
    let body = page.strip_prefix("<!DOCTYPE html>").expect("a document type");
    let (mut open, mut rest) = (Vec::new(), body);
    while let Some(start) = rest.find('<') {
        let text = &rest[..start];
        assert!(!text.contains('>'), "a stray > in {text:?}");
        let end = start + rest[start..].find('>').expect("every tag ends");
        let tag = &rest[start + 1..end];
        assert_eq!(tag.matches('"').count() % 2, 0, "quotes of <{tag}>");
        rest = &rest[end + 1..];
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name), "after {text:?}");
        } else if !tag.ends_with('/') {
            let name = tag.split_whitespace().next().unwrap();
            open.push(name);
            if name == "style" {
                rest = &rest[rest.find("</style>").expect("the style ends")..];
            }
        }
    }
    assert!(open.is_empty(), "left open: {open:?}");
}

fn setting() -> Setting {
    Setting {
        title: "a <test>".to_string(),
        rows: vec![("trace".to_string(), "a&b.jsonl".to_string())],
        wall_ns: 1_500_000_000,
    }
}

fn measured(op: &'static str, bytes: u64) -> OpTimes {
    let mut times = OpTimes::new(op, bytes);
    for ns in 1..=1_000 {
        times.record(ns * 700);
        if bytes > 0 {
            times.record_memcpy(ns * 100);
        }
    }
    times
}

fn report(ops: &[(&'static str, u64)]) -> Report {
    let mut report = Report { requests: 7, blocks: 8, hit_blocks: 2, ..Report::default() };
    ops.iter().for_each(|(op, bytes)| report.measured(measured(op, *bytes)));
    report.facts.push(("heap of a rank", "16 MiB".to_string()));
    report
}

#[test]
fn a_page_has_every_series_in_every_plot_and_the_table() {
    let ops = [("put", 4096), ("put", 65_536), ("get", 4096), ("match_prefix", 0), ("remove", 0)];
    let page = page(&report(&ops), &setting());
    assert_well_formed(&page);
    for (series, least) in [("put 4 KiB", 2), ("put 64 KiB", 2), ("get 4 KiB", 2)] {
        assert!(page.matches(series).count() >= least, "{series} is not everywhere");
    }
    // Throughput: three operations without payload in one chart, those with payload in both.
    for op in ["put", "get"] {
        assert_eq!(page.matches(&format!("<title>{op}: mean ")).count(), 2, "{op}");
    }
    assert_eq!(page.matches("<title>match_prefix: mean ").count(), 1);
    for op in ["put", "get", "match_prefix", "remove"] {
        assert!(page.contains(&format!("Percentiles of {op}")), "{op}");
        assert!(page.contains(&format!("<th>{op}</th>")), "{op} in the table");
    }
    assert_eq!(page.matches("class=\"ridge ").count(), ops.len());
    assert_eq!(page.matches("class=\"copy\"").count(), 3, "where there are copies");
    assert_eq!(page.matches("plain copy</li>").count(), 1, "get has one size");
    for text in
        ["0.2500", "2 of 8", "1.5 s", "heap of a rank", "16 MiB", "a&amp;b.jsonl", "a &lt;test&gt;"]
    {
        assert!(page.contains(text), "{text}");
    }
    assert!(page.contains("Every byte was right"));
}

#[test]
fn a_page_needs_nothing_from_elsewhere() {
    let page = page(&report(&[("put", 4096), ("get", 4096)]), &setting());
    for reference in
        ["http:", "https:", "//", "src=", "href=", "@import", "url(", "<script", "<link"]
    {
        assert!(!page.contains(reference), "{reference}");
    }
}

#[test]
fn a_run_without_measurements_or_with_one_is_a_page_too() {
    let empty = page(&Report::default(), &setting());
    assert_well_formed(&empty);
    assert!(empty.contains("Nothing was measured") && !empty.contains("NaN"));
    let mut one = Report::default();
    let mut times = OpTimes::new("exists", 0);
    times.record(1);
    one.measured(times);
    let page = page(&one, &setting());
    assert_well_formed(&page);
    assert!(!page.contains("NaN") && !page.contains("inf"));
}

#[test]
fn problems_are_listed_and_escaped() {
    let mut report = report(&[("get", 4096)]);
    report.tally.failed("get", b"<script>", &Error::timeout("late"));
    let page = page(&report, &setting());
    assert_well_formed(&page);
    assert!(page.contains("&lt;script&gt;") && page.contains("failed operations: 1"));
    assert!(!page.contains("Every byte was right"));
}
