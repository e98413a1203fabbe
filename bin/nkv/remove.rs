//! `nkv rm --matching` and `--all`: removes many keys with one command and prints only their
//! number. `--all` needs a confirmation.

use crate::cli_error::{CliError, CommandOutcome};
use crate::output;
use crate::retry_policy::RetryPolicy;
use nkv::Blocking;
use serde_json::json;
use std::io::{BufRead, IsTerminal, Write};

/// `nkv rm --matching RE`: exit status 1 if nothing matched, as for a key that is not there.
pub(crate) fn matching(
    handle: &Blocking,
    retry: &RetryPolicy,
    pattern: &str,
    json: bool,
) -> Result<CommandOutcome, CliError> {
    let removed = retry.call(|| handle.remove_matching(pattern)).map_err(CliError::pattern)?;
    report(removed, json)?;
    Ok(if removed == 0 { CommandOutcome::Absent } else { CommandOutcome::Found })
}

/// `nkv rm --all`: asks for a confirmation unless `--yes` is given.
pub(crate) fn all(
    handle: &Blocking,
    retry: &RetryPolicy,
    job: &str,
    (yes, json): (bool, bool),
) -> Result<CommandOutcome, CliError> {
    if !yes && !asked(handle, job)? {
        return Err(CliError::Usage("nothing was removed".to_string()));
    }
    report(retry.call(|| handle.remove_all())?, json)?;
    Ok(CommandOutcome::Found)
}

fn asked(handle: &Blocking, job: &str) -> Result<bool, CliError> {
    let stdin = std::io::stdin();
    if !stdin.is_terminal() {
        let text = "rm --all removes every key of the cluster: give --yes to confirm";
        return Err(CliError::Usage(text.to_string()));
    }
    let objects = handle.stats()?.objects;
    let mut prompt = std::io::stderr();
    write!(prompt, "Remove all {objects} objects of job '{job}'? [y/N] ")
        .and_then(|()| prompt.flush())
        .map_err(|e| CliError::io("stderr", e))?;
    let mut line = String::new();
    stdin.lock().read_line(&mut line).map_err(|e| CliError::io("stdin", e))?;
    Ok(matches!(line.trim(), "y" | "Y" | "yes"))
}

fn report(removed: u64, json: bool) -> Result<(), CliError> {
    if json {
        return output::json(&json!({ "removed": removed }));
    }
    let keys = if removed == 1 { "key" } else { "keys" };
    output::write(format!("{removed} {keys} removed\n").as_bytes())
}
