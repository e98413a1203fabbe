//! `nkv rm`: removes the keys that are named, those that a pattern matches, or all. `--all` needs a
//! confirmation.

use crate::Cluster;
use crate::cli_error::CliError;
use crate::objects::report;
use clap::Args;
use nkv::message::Removed;
use nkv::{Blocking, ErrorKind};
use nkv_programs::exit;
use serde_json::json;
use std::ffi::OsString;
use std::io::{BufRead, IsTerminal, Write};

const RM_USAGE: &str = "\
nkv rm [OPTIONS] <KEY>...
       nkv rm [OPTIONS] --matching <RE>
       nkv rm [OPTIONS] --all [--yes]";

/// Removes keys and their values
#[derive(Debug, Args)]
#[command(override_usage = RM_USAGE)]
pub(crate) struct Rm {
    /// The keys
    #[arg(value_name = "KEY", required_unless_present_any = ["matching", "all"])]
    keys: Vec<OsString>,
    /// Every key in which this regular expression is found; ^ and $ anchor it. Exit status 1 if
    /// there is none
    #[arg(long, value_name = "RE", conflicts_with_all = ["keys", "all"])]
    matching: Option<String>,
    /// Every key of the cluster
    #[arg(long, conflicts_with = "keys")]
    all: bool,
    /// Do not ask before --all
    #[arg(long, requires = "all", conflicts_with_all = ["keys", "matching"])]
    yes: bool,
}

impl Rm {
    /// Removes; of many keys it prints only their number.
    pub(crate) fn run(&self, cluster: &Cluster<'_>) -> Result<u8, CliError> {
        let keys = cluster.keys(&self.keys)?;
        let handle = cluster.connect()?;
        let retry = &cluster.retry;
        let removed = match &self.matching {
            Some(pattern) => {
                retry.call(|| handle.remove_matching(pattern)).map_err(CliError::pattern)?
            }
            None if self.all => {
                if !self.yes && !asked(&handle, &cluster.flags.job)? {
                    return Err(CliError::usage("nothing was removed"));
                }
                retry.call(|| handle.remove_all())?
            }
            None => return named(&keys, &handle, cluster),
        };
        let Removed { in_memory, on_disk } = removed;
        let json = json!({ "removed": in_memory, "removed_from_disk": on_disk });
        cluster.show(&json, || format!("{removed}\n"))?;
        // As for a key that is not there.
        Ok(if removed.is_nothing() && !self.all { exit::ABSENT } else { exit::DONE })
    }
}

/// One line per key; the command fails with the first error that is not "absent".
fn named(keys: &[Vec<u8>], handle: &Blocking, cluster: &Cluster<'_>) -> Result<u8, CliError> {
    let bytes: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
    let (mut rows, mut status, mut failed) = (Vec::new(), exit::DONE, None);
    for (key, result) in keys.iter().zip(handle.remove_many(&bytes)) {
        let state = match result {
            Ok(()) => "removed",
            Err(e) if e.kind() == ErrorKind::NotFound => {
                status = exit::ABSENT;
                "absent"
            }
            Err(e) => {
                failed.get_or_insert((key, e));
                "failed"
            }
        };
        rows.push((key, state));
    }
    report(&rows, cluster)?;
    failed.map_or(Ok(status), |(key, e)| Err(CliError::about(key, e, || None)))
}

fn asked(handle: &Blocking, job: &str) -> Result<bool, CliError> {
    let stdin = std::io::stdin();
    if !stdin.is_terminal() {
        let text = "rm --all removes every key of the cluster: give --yes to confirm";
        return Err(CliError::usage(text));
    }
    let objects = handle.stats()?.objects;
    let mut prompt = std::io::stderr();
    write!(prompt, "Remove all {objects} objects of job '{job}', and all on disk? [y/N] ")
        .and_then(|()| prompt.flush())
        .map_err(|e| CliError::io("stderr", e))?;
    let mut line = String::new();
    stdin.lock().read_line(&mut line).map_err(|e| CliError::io("stdin", e))?;
    Ok(matches!(line.trim(), "y" | "Y" | "yes"))
}
