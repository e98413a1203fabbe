//! Host memory that processes of one user share: memory files (memfd), sealed to their size,
//! mapped. Creates, names, locks, attaches and removes them; `heap` defines their content.
//!
//! A segment's name under /dev/shm is a symbolic link to its creator's descriptor, so no other
//! process can take pages away through the name. Beside it lies a file that the creator keeps
//! locked: a free lock proves that the creator is gone. Closing *any* descriptor of that file in
//! the creator's process drops the lock. Therefore a registry records every segment this process
//! has mapped, and nothing here opens the lock file of one of those. No other code may do so
//! either.

mod anon;
mod limits;
mod link;
mod lock;
mod mapping;
mod memfd;
mod name;
mod numa;
mod pages;
mod sealed;
mod stale;

pub use crate::incarnation::boot_id;
pub use anon::AnonPages;
pub use limits::{available_bytes, check_room, mem_available};
pub use memfd::MemfdMemory;
pub use name::{SegmentName, job_part};
pub use pages::{Pages, pages};
pub use stale::{remove_stale, remove_stale_in};

use crate::error::StoreError;
use crate::memory::{Export, HostRegion, host_memory};
use lock::Lock;
use mapping::Mapping;
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak};

/// Folder of the segments' names.
pub const SHM_DIR: &str = "/dev/shm";

/// Segments that this process has mapped, by path.
type Registry = HashMap<PathBuf, Weak<Mapping>>;

fn registry() -> MutexGuard<'static, Registry> {
    static MAPPED: LazyLock<Mutex<Registry>> = LazyLock::new(Mutex::default);
    // Only ever inserted to and removed from: a panic under the lock leaves the map consistent.
    MAPPED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Named shared memory, mapped into this process. The handle that [`create`] returned removes the
/// name when it is dropped; the mapping lives as long as any handle.
#[derive(Debug)]
pub struct ShmMemory {
    region: HostRegion,
    mapping: Arc<Mapping>,
    file_name: String,
    /// Set in the creator's handle: the files to unlink.
    created: Option<Created>,
}

#[derive(Debug)]
struct Created {
    path: PathBuf,
    lock: Lock,
}

host_memory!(ShmMemory, |m| Export::Shm { name: m.file_name.clone() });

impl ShmMemory {
    fn new(mapping: Arc<Mapping>, file_name: &str, created: Option<Created>) -> Self {
        let region = mapping.region();
        Self { region, mapping, file_name: file_name.to_string(), created }
    }

    /// Its name under /dev/shm.
    pub fn file_name(&self) -> &str {
        &self.file_name
    }
}

impl Drop for ShmMemory {
    fn drop(&mut self) {
        // A forked child that drops its copy must not remove its parent's segment.
        let Some(created) = self.created.take() else {
            return;
        };
        if !self.mapping.made_here() {
            return;
        }
        let Created { path, lock } = created;
        let mut registry = registry();
        let unlinked = rustix::fs::unlink(&path)
            .map_err(|e| StoreError::os("unlink", path.display().to_string(), e));
        if let Err(error) = unlinked.and_then(|()| lock.remove()) {
            tracing::warn!(%error, "cannot remove our segment");
        }
        registry.remove(&path);
    }
}

/// How the memory pages of a new segment are allocated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Allocation {
    /// Every page now, in huge pages as far as the kernel has them (about 0.5 s/GiB; 1.5 to 3 s/GiB
    /// in small ones): a lack of memory is then an error at once, and not a SIGBUS later.
    pub prefault: bool,
    /// All from this NUMA node; None: each from that of the processor which touches it first.
    pub numa_node: Option<u32>,
}

impl Allocation {
    /// Every page now.
    pub const NOW: Self = Self { prefault: true, numa_node: None };
    /// Each page when it is touched.
    pub const LATER: Self = Self { prefault: false, numa_node: None };
}

/// Creates a segment of `bytes` zero bytes, locked, mapped and readable only by this user. The name
/// appears last, when the lock is held.
pub fn create(
    name: &SegmentName,
    bytes: u64,
    allocation: Allocation,
) -> Result<ShmMemory, StoreError> {
    create_in(Path::new(SHM_DIR), name, bytes, allocation)
}

/// [`create`] in another folder: for tests.
pub fn create_in(
    dir: &Path,
    name: &SegmentName,
    bytes: u64,
    allocation: Allocation,
) -> Result<ShmMemory, StoreError> {
    let file_name = name.file_name();
    let path = dir.join(&file_name);
    if bytes == 0 {
        return Err(StoreError::InvalidConfig(format!("segment {file_name} would have 0 bytes")));
    }
    limits::check_room(bytes)?;
    let mapping = Mapping::of(sealed::make(&file_name, bytes)?, bytes, &path)?;
    if let Some(node) = allocation.numa_node {
        numa::bind(&mapping.region(), node)?;
    }
    if allocation.prefault
        && let Some(error) = mapping.prefault_huge(&path)?
    {
        let huge = mapping.huge_bytes();
        tracing::info!(file_name, bytes, huge, %error, "not all pages are of 2 MiB");
    }
    let mapping = Arc::new(mapping);
    // Under the registry's lock, so that no other thread of this process finds the names before
    // they are registered.
    let mut registry = registry();
    let lock = Lock::make(&path)?;
    if let Err(error) = link::make(mapping.fd(), &path) {
        // No name needs the lock file. If another segment has the name, that is the error to
        // return.
        let _ = lock.remove();
        return Err(error);
    }
    registry.insert(path.clone(), Arc::downgrade(&mapping));
    drop(registry);
    Ok(ShmMemory::new(mapping, &file_name, Some(Created { path, lock })))
}

/// Maps a segment that a process of this user created, by the name that its `export()` returns.
/// Several attaches of one name share one mapping; a segment that this process created is not
/// opened again. Fails if the file is not such a segment, and in another pid namespace than the
/// creator's (see [`adopt`]).
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
    let mapping = mapped_once(&path, || {
        let (fd, bytes) = link::open(&path)?;
        Mapping::of(fd, bytes, &path)
    })?;
    if prefault {
        mapping.prefault(&path)?;
    }
    Ok(Arc::new(ShmMemory::new(mapping, file_name, None)))
}

/// Paths of the files of a segment of that name: its link, then its lock.
pub fn files(file_name: &str) -> [PathBuf; 2] {
    let path = Path::new(SHM_DIR).join(file_name);
    let lock = lock::path_for(&path);
    [path, lock]
}

/// A descriptor of a segment that this process has mapped: to be passed to a process in which the
/// name does not resolve to it.
pub fn descriptor(file_name: &str) -> Option<OwnedFd> {
    let path = Path::new(SHM_DIR).join(file_name);
    let mapping = registry().get(&path).and_then(Weak::upgrade).filter(|m| m.made_here())?;
    mapping.fd().try_clone_to_owned().ok()
}

/// Maps a segment by a descriptor that its creator passed; it must be the segment of that name.
/// Later attaches of the name share the mapping.
pub fn adopt(file_name: &str, fd: OwnedFd) -> Result<Arc<ShmMemory>, StoreError> {
    name::check_file_name(file_name)?;
    let path = Path::new(SHM_DIR).join(file_name);
    let bytes = link::check(&fd, &path)?;
    let mapping = mapped_once(&path, || Mapping::of(fd, bytes, &path))?;
    Ok(Arc::new(ShmMemory::new(mapping, file_name, None)))
}

/// The existing mapping of a segment in this process, or a new one.
fn mapped_once(
    path: &Path,
    map: impl FnOnce() -> Result<Mapping, StoreError>,
) -> Result<Arc<Mapping>, StoreError> {
    // Held until the new mapping is registered.
    let mut registry = registry();
    if let Some(mapping) = registry.get(path).and_then(Weak::upgrade).filter(|m| m.made_here()) {
        return Ok(mapping);
    }
    let mapping = Arc::new(map()?);
    registry.retain(|_, held| held.strong_count() > 0);
    registry.insert(path.to_path_buf(), Arc::downgrade(&mapping));
    Ok(mapping)
}

#[cfg(test)]
mod tests;
