//! `nkv put`, `get`, `rm`, `exists`: single values. Bytes come from and go to `transfer`; here is
//! what the cluster is asked, and what is said about the answer.

use crate::output::{self, key as shown};
use crate::patience::Patience;
use crate::sizes::show_bytes;
use crate::transfer;
use crate::trouble::{Answer, Trouble};
use nkv::message::{Existence, PutOptions};
use nkv::{Blocking, Error, ErrorKind};
use serde_json::json;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// `nkv put`.
pub(crate) struct Put<'a> {
    /// The key.
    pub(crate) key: &'a OsStr,
    /// The file; `-` or none is stdin.
    pub(crate) file: Option<&'a Path>,
    /// Who should own it.
    pub(crate) rank: Option<u32>,
    /// Bytes per page.
    pub(crate) page_bytes: Option<u32>,
}

impl Put<'_> {
    /// Stores the value.
    pub(crate) fn run(
        &self,
        handle: &Blocking,
        patience: &Patience,
        json: bool,
    ) -> Result<Answer, Trouble> {
        let value = transfer::read(self.file, patience.call(|| largest_heap(handle))?)?;
        let opts = PutOptions {
            preferred_segment: self.rank,
            page_bytes: self.page_bytes.unwrap_or(0),
            ..PutOptions::default()
        };
        let key = self.key.as_bytes();
        // None if it is gone again by now: it was stored all the same.
        let place = || handle.get_location(key).ok().map(|meta| meta.rank);
        patience
            .call(|| handle.put(key, &value, &opts))
            .map_err(|e| Trouble::about(shown(self.key), e, place))?;
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
        Ok(Answer::Found)
    }
}

/// Payload bytes of the largest heap: no value can be larger.
fn largest_heap(handle: &Blocking) -> Result<u64, Error> {
    let view = handle.view()?;
    let heaps = view.ranks.iter().map(|(info, _)| info.arena_bytes);
    heaps.max().ok_or_else(|| Error::not_ready("the cluster is starting: no rank has joined yet"))
}

/// `nkv get`.
pub(crate) fn get(
    handle: &Blocking,
    patience: &Patience,
    key: &OsStr,
    to: Option<&Path>,
    json: bool,
) -> Result<Answer, Trouble> {
    let to = to.filter(|path| *path != Path::new("-"));
    if json && to.is_none() {
        return Err(Trouble::Usage(
            "get --json would mix JSON with the value: give -o FILE for the value".to_string(),
        ));
    }
    let value = patience
        .call(|| handle.get(key.as_bytes()))
        .map_err(|e| Trouble::about(shown(key), e, || None))?;
    let Some(path) = to else {
        output::write(&value)?;
        return Ok(Answer::Found);
    };
    transfer::write(path, &value)?;
    if json {
        let file = path.display().to_string();
        output::json(&json!({ "key": shown(key), "bytes": value.len(), "file": file }))?;
    } else {
        let size = show_bytes(value.len() as u64);
        output::write(format!("{}: {size} to {}\n", shown(key), path.display()).as_bytes())?;
    }
    Ok(Answer::Found)
}

/// `nkv rm`: one line per key; the first error that is not "absent" is the command's.
pub(crate) fn rm(handle: &Blocking, keys: &[OsString], json: bool) -> Result<Answer, Trouble> {
    let bytes: Vec<&[u8]> = keys.iter().map(|k| k.as_bytes()).collect();
    let (mut rows, mut answer, mut failed) = (Vec::new(), Answer::Found, None);
    for (key, result) in keys.iter().zip(handle.remove_many(&bytes)) {
        let word = match result {
            Ok(()) => "removed",
            Err(e) if e.kind == ErrorKind::NotFound => {
                answer = Answer::Absent;
                "absent"
            }
            Err(e) => {
                failed.get_or_insert(e);
                "failed"
            }
        };
        rows.push((key, word));
    }
    report(&rows, json)?;
    failed.map_or(Ok(answer), |e| Err(e.into()))
}

/// `nkv exists`: one line per key.
pub(crate) fn exists(handle: &Blocking, keys: &[OsString], json: bool) -> Result<Answer, Trouble> {
    let bytes: Vec<&[u8]> = keys.iter().map(|k| k.as_bytes()).collect();
    let found = handle.exists(&bytes, false)?;
    let word = |existence: &Existence| match existence {
        Existence::Absent => "absent",
        Existence::Writing => "writing",
        Existence::Ready => "ready",
        Existence::Unreachable => "unreachable",
    };
    let rows: Vec<_> = keys.iter().zip(found.iter().map(word)).collect();
    report(&rows, json)?;
    let all = found.iter().all(|e| *e == Existence::Ready);
    Ok(if all { Answer::Found } else { Answer::Absent })
}

/// What happened to each key.
fn report(rows: &[(&OsString, &str)], json: bool) -> Result<(), Trouble> {
    if json {
        let keys: Vec<_> =
            rows.iter().map(|(key, word)| json!({ "key": shown(key), "state": word })).collect();
        return output::json(&json!({ "keys": keys }));
    }
    let text: String = rows.iter().map(|(key, word)| format!("{}: {word}\n", shown(key))).collect();
    output::write(text.as_bytes())
}
