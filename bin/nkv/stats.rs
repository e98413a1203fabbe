//! `nkv stats`: every counter of the master and of the ranks, one line each. Names come from the
//! structures themselves, so a new counter shows up without being listed here again.

use crate::cli_error::CliError;
use crate::{Cluster, output};
use nkv::message::ClusterStats;
use serde_json::{Map, Value};

/// Prints them.
pub(crate) fn show(cluster: &Cluster<'_>) -> Result<u8, CliError> {
    let stats = cluster.connect()?.stats()?;
    cluster.show(&stats, || text(&stats))
}

fn text(stats: &ClusterStats) -> String {
    let mut master = output::table(&["master", ""], 1);
    let totals =
        [("objects", stats.objects), ("plans_open", stats.plans_open), ("waiting", stats.waiting)];
    let totals = totals.map(|(name, value)| (name.to_string(), value.into()));
    for (name, value) in totals.into_iter().chain(fields(&stats.master)) {
        master.add_row(vec![name, value.to_string()]);
    }
    let number = |r: &nkv::message::RankStats| match r.segment {
        0 => format!("rank {}", r.rank),
        mounted => format!("rank {}/{mounted}", r.rank),
    };
    let numbers = stats.ranks.iter().map(number);
    let header: Vec<String> = std::iter::once(String::new()).chain(numbers).collect();
    let mut ranks = output::table(&header.iter().map(String::as_str).collect::<Vec<_>>(), 1);
    let columns: Vec<Map<String, Value>> = stats.ranks.iter().map(|r| fields(&r.owner)).collect();
    let names: Vec<&String> = columns.first().map(|c| c.keys().collect()).unwrap_or_default();
    for name in names {
        let cells = columns.iter().map(|c| c.get(name).map_or("-".to_string(), Value::to_string));
        ranks.add_row(std::iter::once(name.clone()).chain(cells).collect::<Vec<_>>());
    }
    format!("{}\n{}", output::lines(&master), output::lines(&ranks))
}

/// The named numbers of a structure.
fn fields(of: &impl serde::Serialize) -> Map<String, Value> {
    match serde_json::to_value(of) {
        Ok(Value::Object(fields)) => fields,
        _ => Map::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::text;
    use nkv::message::{ClusterStats, OwnerGauges, RankStats};

    #[test]
    fn every_rank_is_a_column_and_every_counter_a_line() {
        let rank = |rank, evictions| RankStats {
            rank,
            owner: OwnerGauges { evictions, ..OwnerGauges::default() },
            ..RankStats::default()
        };
        let stats = ClusterStats {
            objects: 3,
            ranks: vec![rank(0, 11), rank(1, 22)],
            ..ClusterStats::default()
        };
        let text = text(&stats);
        let line = text.lines().find(|l| l.starts_with("evictions")).unwrap();
        assert_eq!(line.split_whitespace().collect::<Vec<_>>(), ["evictions", "11", "22"]);
        assert!(text.lines().any(|l| l.starts_with("out_of_memory")), "{text}");
        assert!(text.lines().any(|l| l.starts_with("objects")), "{text}");
    }
}
