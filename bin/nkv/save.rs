//! `nkv save`: has keys written to disks, whatever the policy of those disks is.

use crate::Cluster;
use crate::cli_error::CliError;
use crate::keys::shown;
use crate::output;
use clap::Args;
use nkv::message::MAX_REPLICAS;
use nkv::{Blocking, Error, ErrorKind};
use nkv_programs::exit;
use serde_json::json;
use std::ffi::OsString;

/// Writes keys to the disks of ranks, and waits until they are there
///
/// They stay in memory, too. What is on a disk is served again after all ranks were restarted. Exit
/// status 1 if a key is not stored, or on fewer disks than asked for.
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
        let (mut rows, mut text, mut failed, mut missing) =
            (Vec::new(), String::new(), None, false);
        for key in &keys {
            let (saved, name) = (saved_on(cluster, &handle, key, &disks), shown(key));
            let ranks = match saved {
                Ok(ranks) => ranks,
                Err(e) if e.kind() == ErrorKind::NotFound => Vec::new(),
                Err(e) => {
                    failed.get_or_insert((key, e));
                    continue;
                }
            };
            missing |= ranks.len() < disks.len();
            text += &match ranks.is_empty() {
                true => format!("{name}: absent\n"),
                false => {
                    let (n, of, on) = (ranks.len(), disks.len(), output::numbers(&ranks, ", "));
                    format!("{name}: on disk at ranks {on}, {n} of {of}\n")
                }
            };
            rows.push(json!({ "key": name, "disks": ranks }));
        }
        cluster.show(&json!({ "wanted": disks.len(), "keys": rows }), || text)?;
        let status = if missing { exit::ABSENT } else { exit::DONE };
        failed.map_or(Ok(status), |(key, e)| Err(CliError::about(key, e, || None)))
    }
}

/// The ranks whose disks have a key now.
pub(crate) fn saved_on(
    cluster: &Cluster<'_>,
    handle: &Blocking,
    key: &[u8],
    disks: &[Option<u32>],
) -> Result<Vec<u32>, Error> {
    let none = || Err(Error::internal("a save without a result"));
    cluster.retry.call(|| handle.save_to_disk(&[key], disks).pop().unwrap_or_else(none))
}
