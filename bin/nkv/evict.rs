//! `nkv evict`: ranks make room in their heaps before a put needs it. The request goes to each
//! rank, which evicts the objects that its policy would have evicted first.

use crate::cli_error::{CliError, CommandOutcome};
use crate::output;
use crate::retry_policy::RetryPolicy;
use nkv::message::{EvictReport, SegmentId};
use nkv::{Blocking, Error};
use nkv_programs::sizes::show_bytes;
use serde_json::json;

/// `nkv evict --until-below PERCENT [--rank N]`. One rank: prints its answer. All: prints the
/// answers of those that were reached, then fails if some were not.
pub(crate) fn evict(
    handle: &Blocking,
    retry: &RetryPolicy,
    (rank, ratio): (Option<u32>, f64),
    json: bool,
) -> Result<CommandOutcome, CliError> {
    let ranks = match rank {
        Some(rank) => vec![rank],
        None => (0..retry.call(|| handle.membership())?.world_size).collect(),
    };
    let (mut done, mut failed) = (Vec::new(), Vec::new());
    let answers = handle.evict_ranks_until_below(&ranks, ratio);
    for (rank, answer) in ranks.into_iter().zip(answers) {
        match answer {
            Ok(reports) => done.extend(reports.into_iter().map(|report| (rank, report))),
            Err(e) => failed.push((rank, e)),
        }
    }
    if json {
        let rows: Vec<_> = done.iter().map(object).collect();
        let missed: Vec<_> = failed.iter().map(missed).collect();
        output::json(&json!({ "evicted": rows, "not_reached": missed }))?;
    } else {
        let lines: String = done.iter().map(|(rank, report)| line(*rank, report, ratio)).collect();
        output::write(lines.as_bytes())?;
    }
    match failed.as_slice() {
        [] => Ok(CommandOutcome::Found),
        [(_, e)] if rank.is_some() => Err(CliError::segment(e.clone())),
        _ => Err(CliError::NotReached(not_reached(&failed))),
    }
}

fn missed((rank, error): &(u32, Error)) -> serde_json::Value {
    json!({ "rank": rank, "kind": error.kind().to_string(), "message": error.message() })
}

/// Which ranks did not evict, and why.
fn not_reached(failed: &[(u32, Error)]) -> String {
    let each: Vec<_> = failed.iter().map(|(_, e)| e.message()).collect();
    let ranks: Vec<_> = failed.iter().map(|(rank, _)| rank.to_string()).collect();
    let what = if ranks.len() == 1 { "rank" } else { "ranks" };
    format!("{what} {} did not evict: {}", ranks.join(", "), each.join("; "))
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
    use super::{line, not_reached};
    use nkv::Error;
    use nkv::message::EvictReport;

    #[test]
    fn ranks_that_did_not_evict_are_named_with_the_reason() {
        let gone = (1, Error::disconnected("rank 1 is no member of the cluster now"));
        assert_eq!(
            not_reached(std::slice::from_ref(&gone)),
            "rank 1 did not evict: rank 1 is no member of the cluster now"
        );
        let text = not_reached(&[gone, (2, Error::timeout("rank 2 gave no sign of life"))]);
        assert!(text.starts_with("ranks 1, 2 did not evict: rank 1 is"), "{text}");
    }

    #[test]
    fn a_line_shows_what_was_evicted_and_why_more_than_requested_is_used() {
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
