//! The limit of open files of a program: it is raised to the hard limit, and a limit that is too
//! low for the program is an error before it begins. Without this a thread that gets no descriptor
//! panics.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Files that a rank itself has open, with room for some clients.
const OWN_FILES: u64 = 64;
/// Files for each other rank: its link, and its handle's connections.
const FILES_PER_RANK: u64 = 4;

/// Files that a rank needs when all other ranks of such a job and some clients are connected.
pub fn of_rank(world_size: u32) -> u64 {
    OWN_FILES + FILES_PER_RANK * u64::from(world_size)
}

/// Raises the soft limit to the hard one; returns how many files may be open then.
///
/// # Errors
/// If that is fewer than `least`: one sentence with both numbers and the remedy.
pub fn raise(least: u64) -> Result<u64, String> {
    let found = getrlimit(Resource::Nofile);
    if found.current != found.maximum {
        // If this fails, the limit stays as it is, and is checked below.
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
