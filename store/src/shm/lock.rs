//! The file beside a segment's name that its creator keeps locked: the proof that the creator
//! lives, also for processes that cannot see its pid. The lock belongs to the process (`F_SETLK`):
//! a child made by fork does not inherit it, and the kernel drops it when the process ends. Note:
//! closing *any* descriptor of the file in the creator's process drops it as well.

use super::name::LOCK_SUFFIX;
use super::sealed::MODE;
use crate::error::StoreError;
use rustix::fs::{AtFlags, CWD, FlockOperation, Mode, OFlags, Stat};
use rustix::io::Errno;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

/// The held lock of a segment of this process; its file exists until [`Lock::remove`].
#[derive(Debug)]
pub(super) struct Lock {
    path: PathBuf,
    _fd: OwnedFd,
}

/// State of a segment's creator according to its lock.
#[derive(Debug)]
pub(super) enum Found {
    /// The creator lives.
    Held,
    /// The creator is gone. The lock is held here while the descriptor is open.
    Free(OwnedFd),
    /// There is no lock file, or it cannot be opened.
    None,
}

/// Path of the lock that belongs to the segment at `path`.
pub(super) fn path_for(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(LOCK_SUFFIX);
    name.into()
}

impl Lock {
    /// Creates the lock of the segment to be named `path`. It is held before that name appears.
    pub(super) fn make(path: &Path) -> Result<Lock, StoreError> {
        let (dir, path) = (path.parent().unwrap_or(path), path_for(path));
        let os = |call, e| StoreError::os(call, path.display().to_string(), e);
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(MODE);
        let fd = rustix::fs::open(dir, flags, mode).map_err(|e| os("open", e))?;
        rustix::fs::fchmod(&fd, mode).map_err(|e| os("fchmod", e))?;
        rustix::fs::fcntl_lock(&fd, FlockOperation::NonBlockingLockExclusive)
            .map_err(|e| os("fcntl(F_SETLK)", e))?;
        let from = format!("/proc/self/fd/{}", fd.as_raw_fd());
        match rustix::fs::linkat(CWD, from, CWD, &path, AtFlags::SYMLINK_FOLLOW) {
            Ok(()) => Ok(Lock { path, _fd: fd }),
            Err(Errno::EXIST) => Err(StoreError::in_use(&path)),
            Err(e) => Err(os("linkat", e)),
        }
    }

    /// Removes its file.
    pub(super) fn remove(self) -> Result<(), StoreError> {
        rustix::fs::unlink(&self.path)
            .map_err(|e| StoreError::os("unlink", self.path.display().to_string(), e))
    }
}

/// Tries the lock of the file at `path`, which this process must not hold.
pub(super) fn find(path: &Path) -> Found {
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let Ok(fd) = rustix::fs::open(path, flags, Mode::empty()) else {
        return Found::None;
    };
    if rustix::fs::fcntl_lock(&fd, FlockOperation::NonBlockingLockExclusive).is_err() {
        return Found::Held;
    }
    // Between open and lock the name may have been given to another file.
    let same = |a: Stat, b: Stat| a.st_ino == b.st_ino && a.st_dev == b.st_dev;
    let still = rustix::fs::fstat(&fd)
        .and_then(|opened| Ok(same(opened, rustix::fs::lstat(path)?)))
        .unwrap_or(false);
    if still { Found::Free(fd) } else { Found::Held }
}
