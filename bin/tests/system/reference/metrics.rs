//! `metrics.md`: every metric that a rank serves, from the scrape of one that has been put to, read
//! and given a second segment, so that every label shows.

use crate::cluster_process::{ProcessCluster, run_to_end};
use crate::reference::page::Page;
use nkv::PutOptions;
use std::collections::BTreeSet;

/// A metric as a scrape describes it.
struct Metric {
    name: String,
    kind: String,
    help: String,
    labels: BTreeSet<String>,
}

#[test]
fn metrics_is_what_a_rank_serves() {
    let dir = tempfile::tempdir().expect("a directory");
    let ssd = dir.path().to_path_buf();
    let cluster = ProcessCluster::start(1, move |command| {
        command.arg("--ssd-dir").arg(&ssd).args(["--ssd-bytes", "64MiB"]);
    });
    let handle = cluster.connect(0);
    handle.put(b"k", b"value", &PutOptions::default()).expect("a put");
    handle.get(b"k").expect("a get");
    let mounted = run_to_end(cluster.cli(0, &["mount", "8MiB", "--rank", "0"]), nkv_pace::HANGS);
    assert_eq!(mounted.code, 0, "{}", mounted.stderr);
    let scrape = cluster.get(0, "/metrics").1;
    let metrics = metrics(&scrape);
    assert!(metrics.iter().any(|m| m.labels.contains("segment")), "{scrape}");

    let mut page = Page::new(
        "metrics.md",
        "Metrics: reference",
        "`/metrics` of a rank, at `http=` of its ready line, in the text format of Prometheus. \
         Lines have the same order in every scrape. Times are in seconds.\n\n\
         | label | meaning |\n|---|---|\n\
         | `rank` | the rank that is asked; every line of nkv's own metrics has it |\n\
         | `segment` | number of a mounted segment; without it: the rank's first one |\n\
         | `actor` | an actor of the rank |\n\
         | `request` | a kind of request to the master; a metric with it has no line, and no \
         labels below, before the first request |\n\
         | `le` | upper bound of a histogram's bucket, 1 µs to 10 s |\n\n\
         Metrics `nkv_master_*` are served by the rank that is master, and `nkv_ssd_*`, \
         `nkv_writer_*`, \
         `nkv_kv_*` and `nkv_shutdown_*` by ranks with an SSD tier. Gets and puts that mapped \
         memory alone answers are in no histogram: reading a clock twice would be a good part of \
         them.",
    );
    let rows = metrics.into_iter().map(|m| {
        let labels: Vec<String> = m.labels.iter().map(|l| format!("`{l}`")).collect();
        vec![format!("`{}`", m.name), m.kind, labels.join(" "), m.help]
    });
    page.table(&["metric", "type", "labels", "meaning"], &rows.collect::<Vec<_>>());
    page.check();
}

/// The metrics of a scrape, in its order.
fn metrics(scrape: &str) -> Vec<Metric> {
    let mut found: Vec<Metric> = Vec::new();
    for line in scrape.lines() {
        if let Some((name, help)) = line.strip_prefix("# HELP ").and_then(|l| l.split_once(' ')) {
            let (kind, labels) = (String::new(), BTreeSet::new());
            found.push(Metric { name: name.into(), kind, help: help.into(), labels });
            continue;
        }
        let last = found.last_mut().unwrap_or_else(|| panic!("no help before {line}"));
        if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|l| l.split_once(' ')) {
            assert_eq!(name, last.name);
            last.kind = kind.to_string();
        } else if let Some((_, labels)) = line.split_once('{') {
            let labels = labels.rsplit_once('}').map_or("", |(labels, _)| labels);
            // Values hold no comma: they are numbers, versions and names.
            let names = labels.split(',').filter_map(|pair| pair.split_once('='));
            last.labels.extend(names.map(|(name, _)| name.to_string()));
        }
    }
    found
}
