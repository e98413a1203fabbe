//! The limit of open files of a program: raised as far as its user may, and too low for the
//! program's work said before it begins. Without this a thread that gets no descriptor panics.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the soft limit to the hard one; how many files may be open then.
///
/// # Errors
/// If those are fewer than `least`: with both numbers and the remedy.
pub(crate) fn raise(least: u64) -> Result<u64, String> {
    let found = getrlimit(Resource::Nofile);
    if found.current != found.maximum {
        // Refused, the limit stays as it is, and is judged below.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: found.maximum, ..found });
    }
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    if limit >= least {
        return Ok(limit);
    }
    Err(format!(
        "this process may open {limit} files at most, and needs {least}: raise the hard limit \
         where it is started, with ulimit -n {least} or more, or LimitNOFILE= in a systemd unit"
    ))
}
