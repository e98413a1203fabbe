//! Memory files that are sealed to their size: no process that has one, of the same user either,
//! can take pages away, so an access to its mapping never causes SIGBUS.

use super::limits::check_file_size;
use crate::error::StoreError;
use rustix::fs::{FileType, MemfdFlags, Mode, SealFlags, Stat};
use rustix::io::Errno;
use std::os::fd::{AsFd, OwnedFd};

/// Neither the size nor the seals can be changed.
pub(super) const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);
/// `f_type` of the file system of small pages (linux/magic.h). The one of huge pages has seals as
/// well, but a page of it can be missing when it is touched.
const TMPFS: u64 = 0x0102_1994;
/// Mode of such a file: access for its user only.
pub(super) const MODE: u32 = 0o600;

/// Creates one of `bytes` zero bytes. /proc shows it by `name`.
pub(super) fn make(name: &str, bytes: u64) -> Result<OwnedFd, StoreError> {
    let os = |call, e| StoreError::os(call, name, e);
    check_file_size(bytes)?;
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // Some hosts refuse files that could be made executable; kernels before 6.3 do not know the
    // flag.
    let made = match rustix::fs::memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL) {
        Err(Errno::INVAL) => rustix::fs::memfd_create(name, flags),
        made => made,
    };
    let fd = made.map_err(|e| os("memfd_create", e))?;
    rustix::fs::fchmod(&fd, Mode::from_raw_mode(MODE)).map_err(|e| os("fchmod", e))?;
    rustix::fs::ftruncate(&fd, bytes).map_err(|e| os("ftruncate", e))?;
    rustix::fs::fcntl_add_seals(&fd, SEALS).map_err(|e| os("fcntl(F_ADD_SEALS)", e))?;
    Ok(fd)
}

/// Name in /proc of a file that [`make`] created by this name.
pub(super) fn shown_as(name: &str) -> String {
    format!("/memfd:{name} (deleted)")
}

/// True for a regular file.
pub(super) fn is_regular(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
}

/// Refuses a file whose pages could be removed: one without the seals, or of another file system.
pub(super) fn check(fd: impl AsFd, name: &str) -> Result<(), StoreError> {
    let os = |call, e| StoreError::os(call, name, e);
    let seals = rustix::fs::fcntl_get_seals(&fd).map_err(|e| os("fcntl(F_GET_SEALS)", e))?;
    let fs = rustix::fs::fstatfs(&fd).map_err(|e| os("fstatfs", e))?;
    if seals.contains(SEALS) && fs.f_type as u64 == TMPFS {
        return Ok(());
    }
    Err(StoreError::BadSegment(format!(
        "{name} has seals {seals:?} on a file system {:#x}; {SEALS:?} on {TMPFS:#x} are needed, \
         else its pages could go",
        fs.f_type
    )))
}
