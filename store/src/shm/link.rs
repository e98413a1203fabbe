//! A segment's name: a symbolic link to its creator's descriptor, /proc/PID/fd/N. The target is
//! checked before anything is opened: the pid may have been reused, or may be another process in
//! the reader's pid namespace.

use super::sealed::{self, MODE};
use crate::error::StoreError;
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

/// Links `path` to a descriptor of this process.
pub(super) fn make(fd: BorrowedFd<'_>, path: &Path) -> Result<(), StoreError> {
    let os = |call, e| StoreError::os(call, path.display().to_string(), e);
    // The pid of this process in the mounted /proc.
    let me = rustix::fs::readlink("/proc/self", Vec::new())
        .map_err(|e| StoreError::os("readlink", "/proc/self", e))?;
    let target = format!("/proc/{}/fd/{}", me.to_string_lossy(), fd.as_raw_fd());
    match rustix::fs::symlink(target, path) {
        Err(Errno::EXIST) => Err(StoreError::in_use(path)),
        done => done.map_err(|e| os("symlink", e)),
    }
}

/// Opens the segment that `path` links to, if this user created it under that name; returns its
/// size, too.
pub(super) fn open(path: &Path) -> Result<(OwnedFd, u64), StoreError> {
    let shown = path.display().to_string();
    let found = follow(path)?;
    let own = format!("/proc/self/fd/{}", found.as_raw_fd());
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let fd = rustix::fs::open(own, flags, Mode::empty())
        .map_err(|e| StoreError::os("open", &shown, e))?;
    let bytes = check(&fd, path)?;
    Ok((fd, bytes))
}

/// Refuses a file that is not the segment of that name created by this user; else returns its size.
pub(super) fn check(fd: &OwnedFd, path: &Path) -> Result<u64, StoreError> {
    let shown = path.display().to_string();
    if !is_named(fd.as_fd(), path)? {
        return Err(StoreError::BadSegment(format!("opening {shown} gave another file")));
    }
    sealed::check(fd, &shown)?;
    let stat = rustix::fs::fstat(fd).map_err(|e| StoreError::os("fstat", &shown, e))?;
    // Sealed: the size cannot change any more.
    match u64::try_from(stat.st_size) {
        Ok(bytes) if bytes > 0 => Ok(bytes),
        _ => Err(StoreError::BadSegment(format!("{shown} has no bytes"))),
    }
}

/// True for a link such as [`make`] creates, whatever its target is now.
pub(super) fn is_one(path: &Path) -> bool {
    let target = rustix::fs::readlink(path, Vec::new());
    target.is_ok_and(|target| target.to_str().is_ok_and(is_descriptor))
}

/// The file that `path` links to, resolved but not opened: opening a descriptor that the number
/// names by chance could have side effects. It is a memory file of this user, created under the
/// name of the link.
pub(super) fn follow(path: &Path) -> Result<OwnedFd, StoreError> {
    let shown = path.display().to_string();
    let os = |call, e| StoreError::os(call, &shown, e);
    let target = match rustix::fs::readlink(path, Vec::new()) {
        Err(Errno::INVAL) => return Err(StoreError::BadSegment(format!("{shown} is not a link"))),
        found => found.map_err(|e| os("readlink", e))?,
    };
    let target = target.to_str().ok().filter(|target| is_descriptor(target));
    let target = target.ok_or_else(|| {
        StoreError::BadSegment(format!("{shown} does not link to a descriptor of a process"))
    })?;
    let found = rustix::fs::open(target, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
    let fd = found.map_err(|e| StoreError::os("open", format!("{shown} ({target})"), e))?;
    if is_named(fd.as_fd(), path)? {
        return Ok(fd);
    }
    Err(StoreError::BadSegment(format!(
        "{shown} links to {target}, which is not the segment of that name that this user made: its \
         process is gone, or in a pid namespace that is not ours"
    )))
}

/// True for a memory file of this user, created under the name of `path`.
fn is_named(fd: BorrowedFd<'_>, path: &Path) -> Result<bool, StoreError> {
    let stat = rustix::fs::fstat(fd)
        .map_err(|e| StoreError::os("fstat", path.display().to_string(), e))?;
    let euid = rustix::process::geteuid().as_raw();
    let of_user = stat.st_uid == euid && stat.st_mode & 0o7777 == MODE;
    let named = path.file_name().and_then(|n| n.to_str()).map(sealed::shown_as);
    let own = format!("/proc/self/fd/{}", fd.as_raw_fd());
    let shown =
        rustix::fs::readlinkat(CWD, own, Vec::new()).ok().and_then(|n| n.into_string().ok());
    Ok(sealed::is_regular(&stat) && of_user && named.is_some() && shown == named)
}

/// True for /proc/PID/fd/N.
fn is_descriptor(target: &str) -> bool {
    let number = |part: &str| !part.is_empty() && part.bytes().all(|c| c.is_ascii_digit());
    let inside = target.strip_prefix("/proc/").and_then(|rest| rest.split_once("/fd/"));
    inside.is_some_and(|(pid, fd)| number(pid) && number(fd))
}
