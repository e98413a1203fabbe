//! `nkv put`, `get`, `rm`, `exists`: single values. `transfer` reads and writes the bytes; this
//! module sends the requests and prints the answers.

use crate::cli_error::{CliError, CommandOutcome};
use crate::keys::shown;
use crate::output;
use crate::retry_policy::RetryPolicy;
use crate::transfer;
use nkv::message::Existence;
use nkv::{Blocking, Error, ErrorKind, PutOptions};
use nkv_programs::sizes::show_bytes;
use serde_json::json;
use std::io::IsTerminal;
use std::path::Path;

/// `nkv put`.
pub(crate) struct Put<'a> {
    /// The key.
    pub(crate) key: &'a [u8],
    /// The file; `-` or none is stdin.
    pub(crate) file: Option<&'a Path>,
    /// The rank that should own it.
    pub(crate) rank: Option<u32>,
    /// Bytes per page.
    pub(crate) page_bytes: Option<u32>,
}

impl Put<'_> {
    /// Stores the value.
    pub(crate) fn run(
        &self,
        handle: &Blocking,
        retry: &RetryPolicy,
        json: bool,
    ) -> Result<CommandOutcome, CliError> {
        let (largest, ranks) = retry.call(|| largest_heap(handle))?;
        if let Some(rank) = self.rank.filter(|rank| *rank >= ranks) {
            let last = ranks.saturating_sub(1);
            let why = format!("--rank {rank}: there is no rank {rank}; ranks are 0 to {last}");
            return Err(CliError::Usage(why));
        }
        let value = transfer::read(self.file, largest)?;
        let opts = PutOptions::default()
            .preferred_rank(self.rank)
            .page_bytes(self.page_bytes.unwrap_or(0));
        let key = self.key;
        // None if it is already gone: the put was a success all the same.
        let place = || handle.get_location(key).ok().map(|meta| meta.rank);
        retry
            .call(|| handle.put(key, &value, &opts))
            .map_err(|e| CliError::about(shown(self.key), e, place))?;
        let (rank, bytes) = (place(), value.len());
        if json {
            output::json(&json!({ "key": shown(self.key), "bytes": bytes, "rank": rank }))?;
        } else {
            let at = match (rank, self.rank) {
                (Some(rank), Some(asked)) if rank != asked => {
                    format!(" on rank {rank}: rank {asked} is down or has no room")
                }
                (Some(rank), _) => format!(" on rank {rank}"),
                (None, _) => String::new(),
            };
            let size = show_bytes(bytes as u64);
            output::write(format!("{}: {size} stored{at}\n", shown(self.key)).as_bytes())?;
        }
        Ok(CommandOutcome::Found)
    }
}

/// Payload bytes of the largest heap, which no value can exceed, and the number of ranks of the
/// job.
fn largest_heap(handle: &Blocking) -> Result<(u64, u32), Error> {
    let view = handle.membership()?;
    let heaps = view.ranks.iter().map(|(info, _)| info.layout.arena.len);
    let largest = heaps.max();
    let early = || Error::not_ready("the cluster is starting: no rank has joined yet");
    Ok((largest.ok_or_else(early)?, view.world_size))
}

/// Where `nkv get` writes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Output<'a> {
    /// The file; `-` or none is stdout.
    pub(crate) file: Option<&'a Path>,
    /// Write any bytes also to a terminal.
    pub(crate) force: bool,
}

/// `nkv get`.
pub(crate) fn get(
    handle: &Blocking,
    retry: &RetryPolicy,
    key: &[u8],
    to: Output<'_>,
    json: bool,
) -> Result<CommandOutcome, CliError> {
    // `-o -` names stdout, so any bytes are written to it.
    let force = to.force || to.file.is_some();
    let to = to.file.filter(|path| *path != Path::new("-"));
    if json && to.is_none() {
        return Err(CliError::Usage(
            "get --json would mix JSON with the value: give -o FILE for the value".to_string(),
        ));
    }
    let value =
        retry.call(|| handle.get(key)).map_err(|e| CliError::about(shown(key), e, || None))?;
    let Some(path) = to else {
        if !force && std::io::stdout().is_terminal() && !is_text(&value) {
            return Err(CliError::Usage(format!(
                "the {} of key {} are no text and could upset the terminal: give -o FILE, pipe \
                 them on, or write them all the same with --force",
                show_bytes(value.len() as u64),
                shown(key)
            )));
        }
        output::write(&value)?;
        return Ok(CommandOutcome::Found);
    };
    transfer::write(path, &value)?;
    if json {
        let file = path.display().to_string();
        output::json(&json!({ "key": shown(key), "bytes": value.len(), "file": file }))?;
    } else {
        let size = show_bytes(value.len() as u64);
        output::write(format!("{}: {size} to {}\n", shown(key), path.display()).as_bytes())?;
    }
    Ok(CommandOutcome::Found)
}

/// True if it is UTF-8 without control characters but line feeds, carriage returns and tabs.
fn is_text(value: &[u8]) -> bool {
    let harmless = |c: char| !c.is_control() || matches!(c, '\n' | '\r' | '\t');
    std::str::from_utf8(value).is_ok_and(|text| text.chars().all(harmless))
}

/// `nkv rm`: one line per key; the command fails with the first error that is not "absent".
pub(crate) fn rm(
    handle: &Blocking,
    keys: &[Vec<u8>],
    json: bool,
) -> Result<CommandOutcome, CliError> {
    let bytes: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
    let (mut rows, mut answer, mut failed) = (Vec::new(), CommandOutcome::Found, None);
    for (key, result) in keys.iter().zip(handle.remove_many(&bytes)) {
        let state = match result {
            Ok(()) => "removed",
            Err(e) if e.kind() == ErrorKind::NotFound => {
                answer = CommandOutcome::Absent;
                "absent"
            }
            Err(e) => {
                failed.get_or_insert((key, e));
                "failed"
            }
        };
        rows.push((key, state));
    }
    report(&rows, json)?;
    failed.map_or(Ok(answer), |(key, e)| Err(CliError::about(shown(key), e, || None)))
}

/// `nkv exists`: one line per key.
pub(crate) fn exists(
    handle: &Blocking,
    keys: &[Vec<u8>],
    json: bool,
) -> Result<CommandOutcome, CliError> {
    let bytes: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
    let found = handle.exists(&bytes)?;
    let state = |existence: &Existence| match existence {
        Existence::Absent => "absent",
        Existence::Writing => "writing",
        Existence::Ready => "ready",
        Existence::Unreachable => "unreachable",
    };
    let rows: Vec<_> = keys.iter().zip(found.iter().map(state)).collect();
    report(&rows, json)?;
    Ok(match &found {
        all if all.iter().all(|e| *e == Existence::Ready) => CommandOutcome::Found,
        some if some.contains(&Existence::Absent) => CommandOutcome::Absent,
        // It is being written, or its rank is down.
        _ => CommandOutcome::Unreached,
    })
}

/// What happened to each key.
fn report(rows: &[(&Vec<u8>, &str)], json: bool) -> Result<(), CliError> {
    if json {
        let keys: Vec<_> =
            rows.iter().map(|(key, state)| json!({ "key": shown(key), "state": state })).collect();
        return output::json(&json!({ "keys": keys }));
    }
    let text: String =
        rows.iter().map(|(key, state)| format!("{}: {state}\n", shown(key))).collect();
    output::write(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::is_text;

    #[test]
    fn text_is_what_leaves_a_terminal_as_it_is() {
        assert!(is_text(b"") && is_text("a\tü\r\n".as_bytes()));
        for harmful in [&b"\0"[..], b"\x1b[2J", b"\xff", b"\x07", "\u{9b}".as_bytes()] {
            assert!(!is_text(harmful), "{harmful:?}");
        }
    }
}
