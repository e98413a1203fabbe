//! Host memory that processes of one user share: files under /dev/shm, mapped. Makes, names, locks,
//! attaches and removes them; what lies inside is the heap's business.
//!
//! A segment's file is locked by the process that made it, with a lock of the process (`F_SETLK`): a
//! child made by fork does not inherit it, and the kernel drops it with the process, so a free
//! lock proves that the owner is gone. Its trap: closing *any* descriptor of the file in the
//! owner's process drops the lock as well. So a registry knows every segment this process has
//! mapped, and nothing here opens one of those a second time. Nothing else may either.

mod limits;
mod mapping;
mod name;
mod nameless;
mod pages;
mod stale;
mod unnamed;

pub use crate::incarnation::boot_id;
pub use limits::{available_bytes, check_room, mem_available};
pub use name::{SegmentName, job_part};
pub use nameless::NamelessMemory;
pub use pages::{Pages, pages};
pub use stale::{remove_stale, remove_stale_in};
pub use unnamed::UnnamedMemory;

use crate::error::StoreError;
use crate::memory::{Export, HostRegion, host_memory};
use mapping::Mapping;
use rustix::fs::{AtFlags, CWD, FileType, FlockOperation, Mode, OFlags};
use std::collections::HashMap;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak};

/// Where segments lie.
pub const SHM_DIR: &str = "/dev/shm";
/// Mode of a segment's file: its user and nobody else.
const MODE: u32 = 0o600;

/// Segments that this process has mapped, by path.
type Registry = HashMap<PathBuf, Weak<Mapping>>;

fn registry() -> MutexGuard<'static, Registry> {
    static MAPPED: LazyLock<Mutex<Registry>> = LazyLock::new(Mutex::default);
    // Only ever inserted to and removed from: a panic while it was held leaves the map whole.
    MAPPED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Named shared memory, mapped into this process. The handle that [`create`] returned removes the
/// name when it is dropped; the mapping lives as long as any handle.
#[derive(Debug)]
pub struct ShmMemory {
    region: HostRegion,
    mapping: Arc<Mapping>,
    file_name: String,
    /// Set in the creator's handle: what to unlink.
    created: Option<PathBuf>,
}

host_memory!(ShmMemory);

impl ShmMemory {
    fn new(mapping: Arc<Mapping>, file_name: &str, created: Option<PathBuf>) -> Self {
        let region = mapping.region();
        Self { region, mapping, file_name: file_name.to_string(), created }
    }

    /// Name of the file under /dev/shm.
    pub fn file_name(&self) -> &str {
        &self.file_name
    }

    fn export_handle(&self) -> Export {
        Export::Shm { name: self.file_name.clone() }
    }
}

impl Drop for ShmMemory {
    fn drop(&mut self) {
        // A forked child that drops its copy must not remove its parent's segment.
        let Some(path) = self.created.take().filter(|_| self.mapping.made_here()) else {
            return;
        };
        let mut registry = registry();
        if let Err(error) = rustix::fs::unlink(&path) {
            tracing::warn!(path = %path.display(), %error, "cannot remove our segment");
        }
        registry.remove(&path);
    }
}

/// Makes a segment of `bytes` zero bytes, locked, mapped and readable only by this user. `prefault`
/// takes every page now (about 1.5 s/GiB, 0.3 in huge pages): a machine short of memory then says so here, and not by
/// SIGBUS later. The name appears last, when the lock is held.
pub fn create(name: &SegmentName, bytes: u64, prefault: bool) -> Result<ShmMemory, StoreError> {
    create_in(Path::new(SHM_DIR), name, bytes, prefault)
}

/// [`create`] in another folder: for tests.
pub fn create_in(
    dir: &Path,
    name: &SegmentName,
    bytes: u64,
    prefault: bool,
) -> Result<ShmMemory, StoreError> {
    let file_name = name.file_name();
    let path = dir.join(&file_name);
    if bytes == 0 {
        return Err(StoreError::InvalidConfig(format!("segment {file_name} would have 0 bytes")));
    }
    limits::check_room_in(dir, bytes)?;
    let fd = unnamed_file(dir, bytes)?;
    let mapping = Mapping::of(fd, bytes, &path)?;
    if prefault {
        mapping.prefault(&path)?;
    }
    let mapping = Arc::new(mapping);
    // Under the registry's lock, so that no thread of ours meets the name before it is registered.
    let mut registry = registry();
    link(&mapping, &path)?;
    registry.insert(path.clone(), Arc::downgrade(&mapping));
    drop(registry);
    Ok(ShmMemory::new(mapping, &file_name, Some(path)))
}

fn unnamed_file(dir: &Path, bytes: u64) -> Result<OwnedFd, StoreError> {
    let at = || format!("an unnamed file in {}", dir.display());
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let mode = Mode::from_raw_mode(MODE);
    let fd = rustix::fs::open(dir, flags, mode).map_err(|e| StoreError::os("open", at(), e))?;
    rustix::fs::fchmod(&fd, mode).map_err(|e| StoreError::os("fchmod", at(), e))?;
    rustix::fs::fcntl_lock(&fd, FlockOperation::NonBlockingLockExclusive)
        .map_err(|e| StoreError::os("fcntl(F_SETLK)", at(), e))?;
    rustix::fs::ftruncate(&fd, bytes).map_err(|e| StoreError::os("ftruncate", at(), e))?;
    Ok(fd)
}

fn link(mapping: &Mapping, path: &Path) -> Result<(), StoreError> {
    let from = format!("/proc/self/fd/{}", mapping.fd().as_raw_fd());
    match rustix::fs::linkat(CWD, from, CWD, path, AtFlags::SYMLINK_FOLLOW) {
        Ok(()) => Ok(()),
        Err(rustix::io::Errno::EXIST) => Err(StoreError::InUse(format!(
            "{} exists already: another node has this job, rank and incarnation",
            path.display()
        ))),
        Err(e) => Err(StoreError::os("linkat", path.display().to_string(), e)),
    }
}

/// Maps a segment that some process of this user made, by the name its `export()` gives. Several
/// attaches of one name share one mapping; a segment that this process made is not opened again.
pub fn attach(file_name: &str, prefault: bool) -> Result<Arc<ShmMemory>, StoreError> {
    attach_in(Path::new(SHM_DIR), file_name, prefault)
}

/// [`attach`] in another folder: for tests.
pub fn attach_in(
    dir: &Path,
    file_name: &str,
    prefault: bool,
) -> Result<Arc<ShmMemory>, StoreError> {
    name::check_file_name(file_name)?;
    let path = dir.join(file_name);
    let mut registry = registry();
    let mapping = match registry.get(&path).and_then(Weak::upgrade).filter(|m| m.made_here()) {
        Some(mapping) => mapping,
        None => {
            let mapping = Arc::new(open_existing(&path)?);
            registry.retain(|_, held| held.strong_count() > 0);
            registry.insert(path.clone(), Arc::downgrade(&mapping));
            mapping
        }
    };
    drop(registry);
    if prefault {
        mapping.prefault(&path)?;
    }
    Ok(Arc::new(ShmMemory::new(mapping, file_name, None)))
}

fn open_existing(path: &Path) -> Result<Mapping, StoreError> {
    let shown = path.display().to_string();
    // NONBLOCK: a fifo of that name must not hold us up.
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let fd = rustix::fs::open(path, flags, Mode::empty())
        .map_err(|e| StoreError::os("open", &shown, e))?;
    let stat = rustix::fs::fstat(&fd).map_err(|e| StoreError::os("fstat", &shown, e))?;
    let euid = rustix::process::geteuid().as_raw();
    let regular = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    if !regular || stat.st_uid != euid || stat.st_mode & 0o7777 != MODE {
        return Err(StoreError::BadSegment(format!(
            "{shown} belongs to user {} with mode {:o}; a segment is a file of this user ({euid}) \
             with mode {MODE:o}",
            stat.st_uid, stat.st_mode
        )));
    }
    if stat.st_size <= 0 {
        return Err(StoreError::BadSegment(format!("{shown} has no bytes")));
    }
    Mapping::of(fd, stat.st_size as u64, path)
}

#[cfg(test)]
mod tests;
