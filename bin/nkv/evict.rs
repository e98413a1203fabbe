//! `nkv evict`: ranks make room in their heaps before a put needs it. The request goes to each
//! rank, which evicts the objects that its policy would have evicted first.

use crate::Cluster;
use crate::cli_error::CliError;
use clap::Args;
use nkv::Error;
use nkv::message::{EvictReport, SegmentId};
use nkv_programs::exit;
use nkv_programs::sizes::show_bytes;
use serde_json::{Value, json};

/// Makes ranks evict until at most this share of each heap is used; prints what was evicted
///
///   nkv evict --until-below 50%             every rank, every segment
///   nkv evict --until-below 50% --rank 1    one rank
///
/// Each rank evicts by its own policy. The command prints what was evicted, and waits a
/// quarantine or two until that is free. Open puts are never evicted, and what is still viewed
/// stays used, so more may be in use than was asked for: the output says so. Device logs make
/// room by themselves and are left alone. Exit status 4 if a rank was not reached.
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Evict {
    /// Share of a heap that may stay in use, such as 50%
    #[arg(long, value_name = "PERCENT", allow_hyphen_values = true, value_parser = percent)]
    until_below: f64,
    /// Which rank [default: all]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    rank: Option<u32>,
}

impl Evict {
    /// One rank: prints its answer. All: prints the answers of those that were reached, then fails
    /// if some were not.
    pub(crate) fn run(&self, cluster: &Cluster<'_>) -> Result<u8, CliError> {
        let handle = cluster.connect()?;
        let ranks = match self.rank {
            Some(rank) => vec![rank],
            None => (0..cluster.retry.call(|| handle.membership())?.world_size).collect(),
        };
        let (mut done, mut failed) = (Vec::new(), Vec::new());
        let answers = handle.evict_ranks_until_below(&ranks, self.until_below);
        for (rank, answer) in ranks.into_iter().zip(answers) {
            match answer {
                Ok(reports) => done.extend(reports.into_iter().map(|report| (rank, report))),
                Err(e) => failed.push((rank, e)),
            }
        }
        let evicted: Vec<_> = done.iter().map(object).collect();
        let missed: Vec<_> = failed.iter().map(missed).collect();
        cluster.show(&json!({ "evicted": evicted, "not_reached": missed }), || {
            done.iter().map(|(rank, report)| line(*rank, report, self.until_below)).collect()
        })?;
        match failed.as_slice() {
            [] => Ok(exit::DONE),
            [(_, e)] if self.rank.is_some() => Err(CliError::segment(e.clone())),
            _ => Err(CliError::NotReached(not_reached(&failed))),
        }
    }
}

/// A ratio from a percentage. 0.5 is refused: it could mean half a percent or a half.
fn percent(text: &str) -> Result<f64, String> {
    let (number, sign) = text.strip_suffix('%').map_or((text, false), |n| (n, true));
    match number.trim().parse::<f64>() {
        Ok(value) if (0.0..=100.0).contains(&value) && (sign || value.fract() == 0.0) => {
            Ok(value / 100.0)
        }
        _ => Err("a percentage is wanted, 0% to 100%, such as 50%".to_string()),
    }
}

fn object((rank, report): &(u32, EvictReport)) -> Value {
    let mut object = json!(report);
    object["rank"] = json!(rank);
    object
}

fn missed((rank, error): &(u32, Error)) -> Value {
    json!({ "rank": rank, "kind": error.kind().to_string(), "message": error.message() })
}

/// Which ranks did not evict, and why.
fn not_reached(failed: &[(u32, Error)]) -> String {
    let each: Vec<_> = failed.iter().map(|(_, e)| e.message()).collect();
    let ranks: Vec<_> = failed.iter().map(|(rank, _)| rank.to_string()).collect();
    let what = if ranks.len() == 1 { "rank" } else { "ranks" };
    format!("{what} {} did not evict: {}", ranks.join(", "), each.join("; "))
}

fn line(rank: u32, report: &EvictReport, ratio: f64) -> String {
    let segment_id = SegmentId { rank, segment: report.segment };
    let used = report.heap_used as f64 / report.heap_total.max(1) as f64;
    let above = if used > ratio {
        "; more than asked for: puts are open, hard pins stay, or what went is still viewed or \
         held for a writer"
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
    use super::{line, not_reached, percent};
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

    #[test]
    fn a_share_is_a_percentage() {
        for (text, ratio) in [("50%", 0.5), ("50", 0.5), ("12.5%", 0.125), ("0%", 0.0)] {
            assert_eq!(percent(text), Ok(ratio), "{text}");
        }
        for text in ["0.5", "101%", "-1%", "half", "", "nan%"] {
            assert!(percent(text).is_err(), "{text}");
        }
    }
}
