//! Removes what dead processes of this user left under /dev/shm. Never touches a segment in use:
//! the proof of staleness is the free lock, nothing else.

use super::name::{SOCKET_SUFFIX, is_segment};
use super::{Registry, SHM_DIR, registry};
use rustix::fs::{CWD, FileType, FlockOperation, Mode, OFlags, Stat};
use std::path::Path;

/// Removes this user's segments whose lock is free, their sockets, and sockets whose segment is
/// gone. Returns the names removed; each is logged. Costs one open per segment found.
pub fn remove_stale() -> Vec<String> {
    remove_stale_in(Path::new(SHM_DIR))
}

/// [`remove_stale`] in another folder: for tests.
pub fn remove_stale_in(dir: &Path) -> Vec<String> {
    let names = match std::fs::read_dir(dir) {
        Ok(entries) => entries.flatten().filter_map(|e| e.file_name().into_string().ok()),
        Err(error) => {
            tracing::warn!(dir = %dir.display(), %error, "cannot look for stale segments");
            return Vec::new();
        }
    };
    let names: Vec<String> = names.filter(|n| n.starts_with(super::name::PREFIX)).collect();
    // Held throughout: no thread of ours makes or maps a segment while this one opens files.
    let registry = registry();
    let mut removed = Vec::new();
    for name in names.iter().filter(|n| is_segment(n)) {
        if remove_segment(dir, name, &registry) {
            removed.push(name.clone());
        }
    }
    for name in names.iter().filter(|n| n.ends_with(SOCKET_SUFFIX)) {
        if remove_socket(dir, name) {
            removed.push(name.clone());
        }
    }
    for name in &removed {
        tracing::info!(name, "removed what a dead process left");
    }
    removed
}

fn remove_segment(dir: &Path, name: &str, registry: &Registry) -> bool {
    let path = dir.join(name);
    // Opening and closing a segment of our own would drop its lock.
    let ours = registry.get(&path).is_some_and(|mapping| mapping.strong_count() > 0);
    if ours || !mine(&path, FileType::RegularFile) {
        return false;
    }
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let Ok(fd) = rustix::fs::open(&path, flags, Mode::empty()) else {
        return false;
    };
    if rustix::fs::fcntl_lock(&fd, FlockOperation::NonBlockingLockExclusive).is_err() {
        return false;
    }
    // The name may have gone to another file between open and lock.
    let same = |a: Stat, b: Stat| a.st_ino == b.st_ino && a.st_dev == b.st_dev;
    let still = rustix::fs::fstat(&fd)
        .and_then(|opened| Ok(same(opened, rustix::fs::lstat(&path)?)))
        .unwrap_or(false);
    still && rustix::fs::unlink(&path).is_ok()
}

fn remove_socket(dir: &Path, name: &str) -> bool {
    let segment = dir.join(name.strip_suffix(SOCKET_SUFFIX).unwrap_or(name));
    let path = dir.join(name);
    let gone = rustix::fs::lstat(&segment).is_err_and(|e| e == rustix::io::Errno::NOENT);
    gone && mine(&path, FileType::Socket) && rustix::fs::unlink(&path).is_ok()
}

/// True for a file of this user and that type.
fn mine(path: &Path, kind: FileType) -> bool {
    rustix::fs::statat(CWD, path, rustix::fs::AtFlags::SYMLINK_NOFOLLOW).is_ok_and(|stat| {
        stat.st_uid == rustix::process::geteuid().as_raw()
            && FileType::from_raw_mode(stat.st_mode) == kind
    })
}
