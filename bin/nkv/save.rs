//! `nkv save`: has keys written to disks, whatever the policy of those disks is.

use crate::Cluster;
use crate::cli_error::CliError;
use crate::keys::shown;
use crate::output;
use clap::Args;
use nkv::message::MAX_REPLICAS;
use nkv::{Blocking, Error, ErrorKind, SavedOn};
use nkv_programs::exit;
use serde_json::json;
use std::ffi::OsString;

/// Writes keys to the disks of ranks, and waits until they are there
///
/// They stay in memory, too. What is on a disk is served again after all ranks were restarted,
/// until the disk needs room for others: a disk that is full removes what was used longest ago,
/// also for keys of this very command. Exit status 1 if a key is not stored, and that of the first
/// reason if one is on fewer disks than asked for. It goes on, whatever --timeout-ms is, until no
/// further key has been saved for half a minute; ended early it leaves the disks at work.
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Save {
    /// The keys
    #[arg(required = true)]
    keys: Vec<OsString>,
    /// Disks that are to have each key, of ranks that have it in memory as far as there are any
    #[arg(short = 'n', long, value_name = "N", default_value_t = 1, allow_negative_numbers = true,
        value_parser = clap::value_parser!(u8).range(1..=i64::from(MAX_REPLICAS)))]
    disks: u8,
    /// The ranks whose disks they are
    #[arg(
        long,
        value_name = "RANK,...",
        value_delimiter = ',',
        conflicts_with = "disks",
        allow_negative_numbers = true
    )]
    ranks: Vec<u32>,
}

impl Save {
    /// One line per key; the command fails with the first error that is not "absent".
    pub(crate) fn run(&self, cluster: &Cluster<'_>) -> Result<u8, CliError> {
        let keys = cluster.keys(&self.keys)?;
        let disks: Vec<Option<u32>> = match self.ranks.is_empty() {
            true => vec![None; self.disks.into()],
            false => self.ranks.iter().copied().map(Some).collect(),
        };
        let handle = cluster.connect()?;
        let bytes: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
        let saved = cluster.retry.call(|| first_error(handle.save_to_disk(&bytes, &disks)))?;
        let (mut rows, mut text, mut failed, mut absent) = (Vec::new(), String::new(), None, false);
        for (key, saved) in keys.iter().zip(saved) {
            let (name, of) = (shown(key), disks.len());
            let (ranks, missing) = match saved {
                Ok(saved) => (saved.ranks, saved.missing),
                Err(e) if e.kind() == ErrorKind::NotFound => {
                    absent = true;
                    text += &format!("{name}: absent\n");
                    rows.push(json!({ "key": name, "absent": true, "disks": [] }));
                    continue;
                }
                Err(e) => (Vec::new(), Some(e)),
            };
            let on = match ranks.is_empty() {
                true => "not on disk".to_string(),
                false => format!(
                    "on disk at ranks {} ({} of {of})",
                    output::numbers(&ranks, ", "),
                    ranks.len()
                ),
            };
            let why = missing.as_ref().map(|e| format!("; {}", e.message())).unwrap_or_default();
            text += &format!("{name}: {on}{why}\n");
            let reason = missing.as_ref().map(Error::message);
            rows.push(json!({ "key": name, "disks": ranks, "missing": reason }));
            failed = failed.or(missing.map(|e| e.kind()));
        }
        cluster.show(&json!({ "wanted": disks.len(), "keys": rows }), || text)?;
        Ok(match failed {
            Some(kind) => exit::of(kind),
            None if absent => exit::ABSENT,
            None => exit::DONE,
        })
    }
}

/// The error that all keys have, if it is one of a cluster that is starting.
fn first_error(saved: Vec<Result<SavedOn, Error>>) -> Result<Vec<Result<SavedOn, Error>>, Error> {
    match saved.first() {
        Some(Err(e))
            if saved.iter().all(|one| one.as_ref().is_err_and(|of| of.kind() == e.kind()))
                && e.kind() == ErrorKind::NotReady =>
        {
            Err(e.clone())
        }
        _ => Ok(saved),
    }
}

/// Saves a key on these disks; the ranks whose disks have it now.
pub(crate) fn saved_on(
    handle: &Blocking,
    key: &[u8],
    disks: &[Option<u32>],
) -> Result<SavedOn, Error> {
    let none = || Err(Error::internal("a save without a result"));
    handle.save_to_disk(&[key], disks).pop().unwrap_or_else(none)
}
