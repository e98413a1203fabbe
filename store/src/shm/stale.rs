//! Removes what dead processes of this user left under /dev/shm. Never touches a segment in use: a
//! free lock is the proof of staleness. A dangling link is no such proof: its process may live in
//! another pid namespace.

use super::lock::{self, Found};
use super::name::{LOCK_SUFFIX, SOCKET_SUFFIX, is_segment};
use super::{Registry, SHM_DIR, link, registry};
use rustix::fs::{CWD, FileType};
use std::path::Path;

/// Removes this user's segments whose lock is free, with their locks and sockets, and locks and
/// sockets without a segment. Returns the names removed, a lock's only if it had no segment; each
/// is logged. Costs one open per segment found.
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
    // Held throughout: no thread of this process creates or maps a segment while this one opens
    // files.
    let registry = registry();
    // Segments first, with their locks.
    let segment = |n: &&String| is_segment(n) && remove_segment(dir, n, &registry);
    let lock = |n: &&String| n.ends_with(LOCK_SUFFIX) && remove_lone_lock(dir, n, &registry);
    let socket = |n: &&String| n.ends_with(SOCKET_SUFFIX) && remove_socket(dir, n);
    let removed = names.iter().filter(segment).chain(names.iter().filter(lock));
    let removed: Vec<String> = removed.chain(names.iter().filter(socket)).cloned().collect();
    for name in &removed {
        tracing::info!(name, "removed a file of a dead process");
    }
    removed
}

/// True if opening and closing the segment's lock file, or a segment file that is its own lock,
/// could drop a lock of this process.
fn is_ours(path: &Path, registry: &Registry) -> bool {
    registry.get(path).is_some_and(|mapping| mapping.strong_count() > 0)
}

fn remove_segment(dir: &Path, name: &str, registry: &Registry) -> bool {
    let path = dir.join(name);
    if is_ours(&path, registry) {
        return false;
    }
    let lock_path = lock::path_for(&path);
    match type_of_mine(&path) {
        Some(FileType::Symlink) if link::is_one(&path) => match lock::find(&lock_path) {
            Found::Free(_held) => {
                let removed = rustix::fs::unlink(&path).is_ok();
                // Last, and under its own lock: a link without a lock file would belong to nobody.
                removed && rustix::fs::unlink(&lock_path).is_ok()
            }
            // Somebody removed the lock file by hand.
            Found::None if type_of_mine(&lock_path).is_none() => {
                link::follow(&path).is_err() && rustix::fs::unlink(&path).is_ok()
            }
            Found::None | Found::Held => false,
        },
        // Format of earlier versions: the file itself is the memory and carries the lock.
        Some(FileType::RegularFile) => remove_if_free(&path),
        _ => false,
    }
}

/// Removes what a process left that died between creating the lock and the name.
fn remove_lone_lock(dir: &Path, name: &str, registry: &Registry) -> bool {
    let segment = dir.join(name.strip_suffix(LOCK_SUFFIX).unwrap_or(name));
    let path = dir.join(name);
    let lone = is_gone(&segment) && !is_ours(&segment, registry);
    lone && type_of_mine(&path) == Some(FileType::RegularFile) && remove_if_free(&path)
}

/// Removes a file whose own lock is free, under that lock.
fn remove_if_free(path: &Path) -> bool {
    matches!(lock::find(path), Found::Free(_held) if rustix::fs::unlink(path).is_ok())
}

fn remove_socket(dir: &Path, name: &str) -> bool {
    let segment = dir.join(name.strip_suffix(SOCKET_SUFFIX).unwrap_or(name));
    let path = dir.join(name);
    let socket = type_of_mine(&path) == Some(FileType::Socket);
    is_gone(&segment) && socket && rustix::fs::unlink(&path).is_ok()
}

/// True if nothing has that name, not even a dangling link.
fn is_gone(path: &Path) -> bool {
    rustix::fs::lstat(path).is_err_and(|e| e == rustix::io::Errno::NOENT)
}

/// File type of a name of this user; none for another user's file or a missing one.
fn type_of_mine(path: &Path) -> Option<FileType> {
    let stat = rustix::fs::statat(CWD, path, rustix::fs::AtFlags::SYMLINK_NOFOLLOW).ok()?;
    let mine = stat.st_uid == rustix::process::geteuid().as_raw();
    mine.then(|| FileType::from_raw_mode(stat.st_mode))
}
