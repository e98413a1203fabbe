//! `nkv rm --matching` and `--all`: many keys at once, counted and not named. Before all of them go,
//! somebody must have said so.

use crate::output;
use crate::patience::Patience;
use crate::trouble::{Answer, Trouble};
use nkv::Blocking;
use serde_json::json;
use std::io::{BufRead, IsTerminal, Write};

/// `nkv rm --matching RE`: exit status 1 if nothing matched, as for a key that is not there.
pub(crate) fn matching(
    handle: &Blocking,
    patience: &Patience,
    pattern: &str,
    json: bool,
) -> Result<Answer, Trouble> {
    let removed = patience.call(|| handle.remove_matching(pattern)).map_err(Trouble::pattern)?;
    report(removed, json)?;
    Ok(if removed == 0 { Answer::Absent } else { Answer::Found })
}

/// `nkv rm --all`: asks first, unless told not to.
pub(crate) fn all(
    handle: &Blocking,
    patience: &Patience,
    job: &str,
    (yes, json): (bool, bool),
) -> Result<Answer, Trouble> {
    if !yes && !asked(handle, job)? {
        return Err(Trouble::Usage("nothing was removed".to_string()));
    }
    report(patience.call(|| handle.remove_all())?, json)?;
    Ok(Answer::Found)
}

fn asked(handle: &Blocking, job: &str) -> Result<bool, Trouble> {
    let stdin = std::io::stdin();
    if !stdin.is_terminal() {
        let text = "rm --all takes every key of the cluster away: give --yes if you mean it";
        return Err(Trouble::Usage(text.to_string()));
    }
    let objects = handle.stats()?.objects;
    let mut prompt = std::io::stderr();
    write!(prompt, "Remove all {objects} objects of job '{job}'? [y/N] ")
        .and_then(|()| prompt.flush())
        .map_err(|e| Trouble::io("stderr", e))?;
    let mut line = String::new();
    stdin.lock().read_line(&mut line).map_err(|e| Trouble::io("stdin", e))?;
    Ok(matches!(line.trim(), "y" | "Y" | "yes"))
}

fn report(removed: u64, json: bool) -> Result<(), Trouble> {
    if json {
        return output::json(&json!({ "removed": removed }));
    }
    let keys = if removed == 1 { "key" } else { "keys" };
    output::write(format!("{removed} {keys} removed\n").as_bytes())
}
