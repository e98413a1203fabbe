//! How much memory a segment may take here: the least of what the machine and the control groups
//! leave. The size of /dev/shm is no limit: it holds only the links to segments.

use crate::error::StoreError;
use std::path::{Path, PathBuf};

/// v1 controllers report "no limit" as a number near i64::MAX, in pages.
const NO_LIMIT: u64 = 1 << 62;
/// Most control groups read between a process and the root.
const CGROUP_DEPTH: usize = 64;

/// Refuses a segment that does not fit; the error states every number and the remedies.
pub fn check_room(bytes: u64) -> Result<(), StoreError> {
    check_file_size(bytes)?;
    if Headroom::measure(Path::new("/")).least().is_some_and(|room| bytes > room) {
        return Err(not_enough(bytes, "it does not fit"));
    }
    Ok(())
}

/// Refuses a size above the file size limit: the kernel would end the process with SIGXFSZ.
pub(super) fn check_file_size(bytes: u64) -> Result<(), StoreError> {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Fsize);
    file_size_fits(bytes, limit.current, limit.maximum)
}

fn file_size_fits(bytes: u64, soft: Option<u64>, hard: Option<u64>) -> Result<(), StoreError> {
    let Some(limit) = soft.filter(|limit| bytes > *limit) else {
        return Ok(());
    };
    let hard = hard.map_or("unlimited".to_string(), readable);
    Err(StoreError::NotEnoughMemory(format!(
        "shared memory of {} is a file, and this process may make none larger than {} (ulimit -f; \
         hard limit: {hard}). Raise it where the program is started: ulimit -f unlimited, or \
         LimitFSIZE=infinity in a systemd unit; or ask for less",
        readable(bytes),
        readable(limit)
    )))
}

/// Bytes that a segment may take now: the least of MemAvailable and what the control groups leave.
/// 0 if the system reports neither.
pub fn available_bytes() -> u64 {
    Headroom::measure(Path::new("/")).least().unwrap_or(0)
}

/// MemAvailable in bytes; 0 if the system does not report it.
pub fn mem_available() -> u64 {
    meminfo_available(Path::new("/")).unwrap_or(0)
}

/// The error, with the current numbers.
pub(super) fn not_enough(bytes: u64, why: &str) -> StoreError {
    StoreError::NotEnoughMemory(Headroom::measure(Path::new("/")).refuse(bytes, why))
}

/// What each limit leaves, in bytes; `None` if there is no limit or it cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Headroom {
    machine: Option<u64>,
    /// The tightest control group: what it leaves, and its folder.
    cgroup: Option<(u64, PathBuf)>,
}

impl Headroom {
    /// `root` is the root of the proc and sys file systems: another one in tests.
    fn measure(root: &Path) -> Headroom {
        Headroom { machine: meminfo_available(root), cgroup: cgroup_room(root) }
    }

    fn least(&self) -> Option<u64> {
        let cgroup = self.cgroup.as_ref().map(|(room, _)| *room);
        [self.machine, cgroup].into_iter().flatten().min()
    }

    fn refuse(&self, bytes: u64, why: &str) -> String {
        let machine = self.machine.map_or("unlimited".to_string(), readable);
        let group = match &self.cgroup {
            Some((room, path)) => format!("{} (control group {})", readable(*room), path.display()),
            None => "unlimited".to_string(),
        };
        format!(
            "a segment of {}: {why}. MemAvailable: {machine}; left by control groups: {group}. Ask \
             for a smaller heap, or give more: in Docker raise --memory, in Kubernetes the \
             container's memory limit, to at least {} above what is used now; the size of /dev/shm \
             does not matter",
            readable(bytes),
            bytes.next_multiple_of(1 << 20),
        )
    }
}

/// Bytes as text, with GiB or MiB.
fn readable(bytes: u64) -> String {
    let gib = bytes as f64 / (1u64 << 30) as f64;
    if gib >= 1.0 {
        format!("{bytes} bytes ({gib:.2} GiB)")
    } else {
        format!("{bytes} bytes ({:.1} MiB)", bytes as f64 / (1u64 << 20) as f64)
    }
}

fn meminfo_available(root: &Path) -> Option<u64> {
    let text = std::fs::read_to_string(root.join("proc/meminfo")).ok()?;
    meminfo(&text, "MemAvailable:")
}

/// The bytes of the line that begins so, in a file of the kernel with kilobytes.
pub(super) fn meminfo(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    kib.checked_mul(1024)
}

/// The memory controller of one cgroup version.
struct Controller {
    limit: &'static str,
    usage: &'static str,
    /// Page cache that the kernel gives back before it refuses anything.
    reclaimable: &'static str,
}

const V2: Controller =
    Controller { limit: "memory.max", usage: "memory.current", reclaimable: "inactive_file " };
const V1: Controller = Controller {
    limit: "memory.limit_in_bytes",
    usage: "memory.usage_in_bytes",
    reclaimable: "total_inactive_file ",
};

/// The control group of this process, or above it, that leaves least, in both versions.
fn cgroup_room(root: &Path) -> Option<(u64, PathBuf)> {
    let text = std::fs::read_to_string(root.join("proc/self/cgroup")).ok()?;
    let mount = root.join("sys/fs/cgroup");
    let mut tightest: Option<(u64, PathBuf)> = None;
    for line in text.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next())
        else {
            continue;
        };
        let (mounts, files) = match controllers {
            "" => (vec![mount.clone(), mount.join("unified")], V2),
            list if list.split(',').any(|c| c == "memory") => (vec![mount.join("memory")], V1),
            _ => continue,
        };
        for found in mounts.iter().flat_map(|m| walk_up(m, path, &files)) {
            if tightest.as_ref().is_none_or(|(room, _)| found.0 < *room) {
                tightest = Some(found);
            }
        }
    }
    tightest
}

/// What every group from `path` up to the mount leaves. In a container the path may be the host's,
/// of which only the mount's root exists here: missing folders are skipped.
fn walk_up(mount: &Path, path: &str, files: &Controller) -> Vec<(u64, PathBuf)> {
    let inside = path.trim_start_matches('/');
    // A group outside this namespace is shown with "..": only the root is visible here.
    let inside = if inside.split('/').any(|part| part == "..") { "" } else { inside };
    let start = mount.join(inside);
    start
        .ancestors()
        .take_while(|folder| folder.starts_with(mount))
        .take(CGROUP_DEPTH)
        .filter_map(|folder| Some((room_of(folder, files)?, folder.to_path_buf())))
        .collect()
}

fn room_of(folder: &Path, files: &Controller) -> Option<u64> {
    // "max" is not a number: no limit.
    let number = |file: &str| -> Option<u64> {
        std::fs::read_to_string(folder.join(file)).ok()?.trim().parse().ok()
    };
    let limit = number(files.limit).filter(|&limit| limit < NO_LIMIT)?;
    let usage = number(files.usage).unwrap_or(0);
    let stat = std::fs::read_to_string(folder.join("memory.stat")).unwrap_or_default();
    let cache = stat
        .lines()
        .find_map(|line| line.strip_prefix(files.reclaimable)?.trim().parse().ok())
        .unwrap_or(0);
    Some(limit.saturating_sub(usage.saturating_sub(cache)))
}

#[cfg(test)]
mod tests;
