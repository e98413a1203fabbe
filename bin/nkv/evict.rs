//! `nkv evict`: ranks make room in their heaps before somebody needs it. Each rank is asked itself;
//! what goes is what its policy would have evicted first.

use crate::cli_error::{CliError, CommandOutcome};
use crate::output;
use crate::retry_policy::RetryPolicy;
use crate::sizes::show_bytes;
use nkv::Blocking;
use nkv::message::{EvictReport, SegmentId};
use serde_json::json;

/// `nkv evict --until-below PERCENT [--rank N]`.
pub(crate) fn evict(
    handle: &Blocking,
    retry: &RetryPolicy,
    (rank, ratio): (Option<u32>, f64),
    json: bool,
) -> Result<CommandOutcome, CliError> {
    let ranks = match rank {
        Some(rank) => vec![rank],
        None => retry.call(|| handle.membership())?.nodes().map(|(info, _)| info.rank).collect(),
    };
    // A rank that cannot be asked keeps the others from nothing.
    let (mut done, mut failed) = (Vec::new(), None);
    for rank in ranks {
        match handle.evict_rank_until_below(rank, ratio) {
            Ok(reports) => done.extend(reports.into_iter().map(|report| (rank, report))),
            Err(e) => {
                failed.get_or_insert(e);
            }
        }
    }
    if json {
        let rows: Vec<_> = done.iter().map(object).collect();
        output::json(&json!({ "evicted": rows }))?;
    } else {
        let lines: String = done.iter().map(|(rank, report)| line(*rank, report, ratio)).collect();
        output::write(lines.as_bytes())?;
    }
    failed.map_or(Ok(CommandOutcome::Found), |e| Err(CliError::segment(e)))
}

fn object((rank, report): &(u32, EvictReport)) -> serde_json::Value {
    json!({
        "rank": rank,
        "segment": report.segment,
        "objects": report.objects,
        "bytes": report.bytes,
        "heap_used": report.heap_used,
        "heap_total": report.heap_total,
    })
}

fn line(rank: u32, report: &EvictReport, ratio: f64) -> String {
    let segment_id = SegmentId { rank, segment: report.segment };
    let used = report.heap_used as f64 / report.heap_total.max(1) as f64;
    let above = if used > ratio {
        "; more than asked for: puts are open, or what went is still viewed or held for a writer"
    } else {
        ""
    };
    format!(
        "{segment_id}: {} objects evicted ({}), {} of {} used ({:.1}%){above}\n",
        report.objects,
        show_bytes(report.bytes),
        show_bytes(report.heap_used),
        show_bytes(report.heap_total),
        used * 100.0
    )
}

#[cfg(test)]
mod tests {
    use super::line;
    use nkv::message::EvictReport;

    #[test]
    fn what_went_and_what_is_left_is_said_and_why_it_is_more_than_asked_for() {
        let (heap_used, heap_total) = (5 << 20, 10 << 20);
        let report = EvictReport { segment: 0, objects: 3, bytes: 3 << 20, heap_used, heap_total };
        assert_eq!(
            line(1, &report, 0.5),
            "rank 1: 3 objects evicted (3 MiB), 5 MiB of 10 MiB used (50.0%)\n"
        );
        let mounted = line(1, &EvictReport { segment: 2, ..report }, 0.4);
        assert!(mounted.starts_with("segment 2 of rank 1: ") && mounted.contains("puts are open"));
    }
}
