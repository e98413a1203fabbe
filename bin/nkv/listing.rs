//! `nkv ls`: lists keys page by page, so that any number of them can be printed. It holds one page
//! at a time and reads no values.

use crate::cli_error::CliError;
use crate::keys::shown;
use crate::{Cluster, output};
use clap::Args;
use nkv::message::Listed;
use nkv_programs::exit;
use serde_json::json;
use std::io::Write;

/// Keys asked for at once. Every page costs the master a pass over all keys, so pages are large.
const PAGE_KEYS: usize = 1 << 18;

/// Lists the keys in the order of their bytes
#[derive(Debug, Args)]
pub(crate) struct Ls {
    /// Only keys in which this regular expression is found; ^ and $ anchor it. Exit status 1 if
    /// there is none
    pattern: Option<String>,
    /// Bytes, state, retention and the ranks of the replicas, or of the stripes, of each, too;
    /// those of extra replicas in parentheses
    #[arg(short, long)]
    long: bool,
    /// At most so many
    #[arg(long, value_name = "N", allow_negative_numbers = true,
        value_parser = clap::value_parser!(u64).range(1..))]
    limit: Option<u64>,
}

impl Ls {
    /// Prints the keys.
    pub(crate) fn run(&self, cluster: &Cluster<'_>) -> Result<u8, CliError> {
        let (handle, json) = (cluster.connect()?, cluster.flags.json);
        let pattern = self.pattern.as_deref();
        let fetch = |after: Option<&[u8]>, n: usize| {
            cluster.retry.call(|| handle.list(pattern, after, n)).map_err(CliError::pattern)
        };
        let mut printed = 0;
        let more = pages(self.limit.map(|n| n as usize), PAGE_KEYS, fetch, |page| {
            output::write(self.text(json, printed == 0, page).as_bytes())?;
            printed += page.len();
            Ok(())
        })?;
        if json {
            let head = if printed == 0 { "{\"keys\":[" } else { "" };
            output::write(format!("{head}],\"more\":{more}}}\n").as_bytes())?;
        } else if more {
            // A closed stderr loses only this note.
            let _ =
                writeln!(std::io::stderr(), "nkv: only the first {printed} shown; there are more");
        }
        let none = printed == 0 && self.pattern.is_some();
        Ok(if none { exit::ABSENT } else { exit::DONE })
    }

    fn text(&self, json: bool, first: bool, page: &[Listed]) -> String {
        let mut text = String::new();
        if self.long && !json && first && !page.is_empty() {
            let (ranks, state) = ("ranks", "state");
            text +=
                &format!("{:>12}  {ranks:>7}  {state:<11}  {:<14}  key\n", "bytes", "retention");
        }
        for (i, row) in page.iter().enumerate() {
            let (key, bytes) = (shown(&row.key), row.bytes_total);
            let ranks: Vec<u32> = std::iter::once(row.rank).chain(row.others.clone()).collect();
            text += &if json {
                let head = if first && i == 0 { "{\"keys\":[" } else { "," };
                let state = row.state.to_string();
                let row = json!({
                    "key": key, "bytes": bytes, "rank": row.rank, "ranks": ranks,
                    "extras": row.extras, "retention": row.retention.to_string(), "state": state
                });
                format!("{head}{row}")
            } else if self.long {
                let extra = |rank: &u32| row.extras.contains(rank);
                let named = ranks.iter().map(|rank| match extra(rank) {
                    true => format!("({rank})"),
                    false => rank.to_string(),
                });
                let (ranks, kept) =
                    (named.collect::<Vec<_>>().join(","), row.retention.to_string());
                format!("{bytes:>12}  {ranks:>7}  {:<11}  {kept:<14}  {key}\n", row.state)
            } else {
                key + "\n"
            };
        }
        text
    }
}

/// Fetches keys, at most `step` at once and `limit` in all, and shows each page; true if there are
/// more than `limit`.
fn pages(
    limit: Option<usize>,
    step: usize,
    mut fetch: impl FnMut(Option<&[u8]>, usize) -> Result<Vec<Listed>, CliError>,
    mut show: impl FnMut(&[Listed]) -> Result<(), CliError>,
) -> Result<bool, CliError> {
    let mut left = limit.unwrap_or(usize::MAX);
    let mut after: Option<Vec<u8>> = None;
    loop {
        // One key more than is shown tells whether there are more.
        let wanted = left.saturating_add(1).min(step);
        let mut page = fetch(after.as_deref(), wanted)?;
        let full = page.len() >= wanted;
        let more = page.len() > left;
        page.truncate(left);
        left -= page.len();
        show(&page)?;
        if more || !full {
            return Ok(more);
        }
        after = page.pop().map(|row| row.key.into());
    }
}

#[cfg(test)]
mod tests {
    use super::{Ls, pages};
    use nkv::message::{KeyBytes, KeyState, Listed};

    fn row(key: &[u8]) -> Listed {
        let (bytes_total, rank, state) = (5, 1, KeyState::Ready);
        let (key, others, extras) = (KeyBytes::from(key), vec![3], vec![3]);
        let retention = nkv::Retention::HardPin;
        Listed { key, bytes_total, rank, others, extras, retention, state }
    }

    fn fetched(limit: Option<usize>, step: usize, there: u8) -> (Vec<u8>, bool) {
        let all: Vec<Listed> = (0..there).map(|k| row(&[k])).collect();
        let fetch = |after: Option<&[u8]>, n: usize| {
            assert!((1..=step).contains(&n));
            let later = all.iter().filter(|r| after.is_none_or(|a| *r.key > *a));
            Ok(later.take(n).cloned().collect())
        };
        let mut got = Vec::new();
        let more = pages(limit, step, fetch, |page| {
            got.extend(page.iter().map(|r| r.key[0]));
            Ok(())
        });
        (got, more.unwrap())
    }

    #[test]
    fn pages_show_every_key_once_up_to_the_limit_and_say_if_there_are_more() {
        for step in [1, 2, 3, 7, 100] {
            for there in [0, 1, 6, 7, 8] {
                assert_eq!(fetched(None, step, there), ((0..there).collect(), false));
                for limit in 1..9 {
                    let expected = (0..there.min(limit)).collect::<Vec<_>>();
                    let got = fetched(Some(limit.into()), step, there);
                    assert_eq!(got, (expected, there > limit), "{limit} of {there} by {step}");
                }
            }
        }
    }

    #[test]
    fn keys_are_lines_or_a_table_or_json() {
        let text = |long, json, first, page: &[Listed]| {
            Ls { pattern: None, long, limit: None }.text(json, first, page)
        };
        let page = [row(b"a"), row(b"\xff\n")];
        assert_eq!(text(false, false, true, &page), "a\n\"\\xff\\n\"\n");
        let table = text(true, false, true, &page[..1]);
        let (head, line) = table.split_once('\n').unwrap();
        assert_eq!(head, "       bytes    ranks  state        retention       key");
        assert_eq!(line, "           5    1,(3)  ready        hard-pin        a\n");
        assert_eq!(text(true, false, false, &page[..1]).lines().count(), 1);
        let (one, two) = (text(false, true, true, &page), text(false, true, false, &page[..1]));
        let text = format!("{one}{two}]}}");
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["keys"][1]["key"], "\"\\xff\\n\"");
        assert_eq!(value["keys"][2]["state"], "ready");
    }
}
