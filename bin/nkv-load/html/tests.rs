//! The page is complete, shows everything that was measured, and loads nothing from elsewhere.

use super::{RUN, Setting, page};
use crate::latency::OpTimes;
use crate::report::Report;
use nkv::Error;
use serde_json::Value;

/// The page, and the run that it contains.
fn page_of(report: &Report) -> (String, Value) {
    let page = page(report, &setting(), 1_500_000_000).unwrap();
    let (_, rest) = page.split_once("id=\"run\">").expect("the run");
    let (run, _) = rest.split_once("</script>").expect("its end");
    let run = serde_json::from_str(run).expect("JSON");
    (page, run)
}

fn setting() -> Setting {
    Setting { title: "a <test>".to_string(), rows: vec![("trace", "a&b.jsonl".to_string())] }
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
fn a_page_has_every_series_and_the_table() {
    let ops = [("put", 4096), ("put", 65_536), ("get", 4096), ("match_prefix", 0), ("remove", 0)];
    let (_, run) = page_of(&report(&ops));
    let names = |list: &Value, name: &str| -> Vec<String> {
        let text = |of: &Value| of[name].as_str().unwrap().to_string();
        list.as_array().unwrap().iter().map(text).collect()
    };
    let rates = &run["throughput"]["ops"];
    assert_eq!(names(rates, "op"), ["put", "get", "match_prefix", "remove"]);
    let curves = &run["latency"]["curves"];
    assert_eq!(
        names(curves, "name"),
        ["put 4 KiB", "put 64 KiB", "get 4 KiB", "match_prefix", "remove"]
    );
    let copies = curves.as_array().unwrap().iter().filter(|c| !c["copies"].is_null());
    assert_eq!(copies.count(), 3, "where there are copies");
    assert_eq!(run["rows"].as_array().unwrap().len(), ops.len());
    assert_eq!(run["rows"][0][1], "4 KiB");
    assert!(run["problems"].is_null());
    let text = run.to_string();
    for part in ["0.2500", "2 of 8", "1.5 s", "heap of a rank", "16 MiB", "a&b.jsonl", "a <test>"] {
        assert!(text.contains(part), "{part}");
    }
}

#[test]
fn a_page_needs_nothing_from_elsewhere() {
    let (page, _) = page_of(&report(&[("put", 4096), ("get", 4096)]));
    // The library names its home in a comment, and nothing else.
    let page = page.replacen("/*! https://github.com/leeoniya/uPlot", "", 1);
    for reference in ["http:", "https:", "src=", "href=", "@import", "url(", "<link", "fetch("] {
        assert!(!page.contains(reference), "{reference}");
    }
    assert!(page.contains("Permission is hereby granted"), "the library's licence goes with it");
    for left in ["__STYLE__", "__UPLOT__", "__UPLOT_LICENSE__", RUN] {
        assert!(!page.contains(left), "{left}");
    }
}

#[test]
fn a_run_without_measurements_or_with_one_is_a_page_too() {
    let (_, empty) = page_of(&Report::default());
    assert!(empty["latency"].is_null() && empty["throughput"].is_null());
    let mut one = Report::default();
    let mut times = OpTimes::new("exists", 0);
    times.record(1);
    one.measured(times);
    let (_, run) = page_of(&one);
    assert_eq!(run["latency"]["curves"][0]["times"]["shares"], serde_json::json!([1.0]));
}

#[test]
fn problems_are_listed_and_end_no_script() {
    let mut report = report(&[("get", 4096)]);
    report.tally.failed("get", b"</script><script>", &Error::timeout("late"));
    let (page, run) = page_of(&report);
    assert_eq!(page.matches("</script").count(), 3, "library, run, and what draws it");
    assert_eq!(run["problems"]["failed"], 1);
    assert!(run["problems"]["lines"][0].as_str().unwrap().contains("</script>"), "{run}");
}
