//! A directory of a file system. Files are opened past the page cache (`O_DIRECT`) where the file
//! system can, so that a cache of gigabytes does not push out what others use.

use super::{BlockFile, Storage};
use crate::piece::Piece;
use rustix::fs::{self, FallocateFlags, FlockOperation, Mode, OFlags};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

/// A directory that this process has alone.
#[derive(Debug)]
pub struct Disk {
    path: PathBuf,
    folder: OwnedFd,
    direct: bool,
    /// Locked until it is closed.
    _lock: OwnedFd,
}

/// Name of the file that is locked.
pub(crate) const LOCK: &str = "lock";
/// Files are for this user alone: they hold what the segment holds.
const MODE: Mode = Mode::from_raw_mode(0o600);

impl Disk {
    /// Makes the directory if it is absent, and locks it.
    ///
    /// # Errors
    /// `ResourceBusy` if another process has it, of this or of another container on this host; else
    /// what the file system says.
    pub fn open(path: &Path) -> io::Result<Self> {
        std::fs::create_dir_all(path)?;
        let open_folder = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
        let folder = fs::open(path, open_folder, Mode::empty())?;
        let flags = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let lock = fs::openat(&folder, LOCK, flags, MODE)?;
        fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).map_err(
            |error| match error {
                rustix::io::Errno::WOULDBLOCK => io::Error::new(
                    io::ErrorKind::ResourceBusy,
                    format!(
                        "another process uses {}: give each node an SSD directory of its own",
                        path.display()
                    ),
                ),
                other => other.into(),
            },
        )?;
        let direct = fs::openat(&folder, LOCK, flags | OFlags::DIRECT, MODE).is_ok();
        Ok(Self { path: path.to_owned(), folder, direct, _lock: lock })
    }

    /// Whether files bypass the page cache; false on tmpfs, for one.
    pub fn is_direct(&self) -> bool {
        self.direct
    }
}

impl Storage for Disk {
    fn open(&self, name: &str, create: bool) -> io::Result<Box<dyn BlockFile>> {
        let mut flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        flags.set(OFlags::CREATE, create);
        flags.set(OFlags::DIRECT, self.direct);
        let file = File::from(fs::openat(&self.folder, name, flags, MODE)?);
        if !file.metadata()?.is_file() {
            return Err(io::Error::other(format!("{name} is no ordinary file")));
        }
        Ok(Box::new(OnDisk(file)))
    }

    fn list(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in std::fs::read_dir(&self.path)? {
            let entry = entry?;
            if entry.file_type()?.is_file() {
                names.push(entry.file_name().to_string_lossy().into_owned());
            }
        }
        names.sort();
        Ok(names)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        Ok(fs::renameat(&self.folder, from, &self.folder, to)?)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        Ok(fs::unlinkat(&self.folder, name, fs::AtFlags::empty())?)
    }

    fn sync_names(&self) -> io::Result<()> {
        Ok(fs::fsync(&self.folder)?)
    }

    fn free_bytes(&self) -> io::Result<u64> {
        let found = fs::fstatvfs(&self.folder)?;
        Ok(found.f_bavail.saturating_mul(found.f_frsize))
    }

    fn shown(&self) -> String {
        self.path.display().to_string()
    }
}

#[derive(Debug)]
struct OnDisk(File);

/// Most pieces of one call: a header, a payload, its last block, and some to spare.
const MOST_PIECES: usize = 8;

impl BlockFile for OnDisk {
    fn size(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn allocate(&self, len: u64) -> io::Result<()> {
        if len <= self.size()? {
            return self.0.set_len(len);
        }
        match fs::fallocate(&self.0, FallocateFlags::empty(), 0, len) {
            // A file system without it: room is taken as it is written.
            Err(rustix::io::Errno::OPNOTSUPP) => self.0.set_len(len),
            other => Ok(other?),
        }
    }

    fn read(&self, at: u64, into: &mut [Piece<'_>]) -> io::Result<()> {
        whole(
            at,
            into,
            |fd, vectors, count, at| {
                // SAFETY: each vector is a piece, valid for that many bytes, and borrowed.
                unsafe { libc::preadv(fd, vectors, count, at) }
            },
            self.0.as_raw_fd(),
            io::ErrorKind::UnexpectedEof,
        )
    }

    fn write(&self, at: u64, from: &[Piece<'_>]) -> io::Result<()> {
        whole(
            at,
            from,
            |fd, vectors, count, at| {
                // SAFETY: each vector is a piece, valid for that many bytes, and borrowed.
                unsafe { libc::pwritev(fd, vectors, count, at) }
            },
            self.0.as_raw_fd(),
            io::ErrorKind::WriteZero,
        )
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data()
    }
}

/// Repeats a call until all pieces are done. A call may do less than asked: at the end of a full
/// disk, past 2 GiB, or when a signal came.
fn whole(
    at: u64,
    pieces: &[Piece<'_>],
    call: impl Fn(i32, *const libc::iovec, i32, i64) -> isize,
    fd: i32,
    ended: io::ErrorKind,
) -> io::Result<()> {
    let none = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
    let mut vectors = [none; MOST_PIECES];
    assert!(pieces.len() <= MOST_PIECES, "{} pieces", pieces.len());
    let mut count = 0;
    for piece in pieces.iter().filter(|piece| !piece.is_empty()) {
        let base = piece.start().as_ptr().cast();
        vectors[count] = libc::iovec { iov_base: base, iov_len: piece.len() };
        count += 1;
    }
    let (mut first, mut at) = (0, i64::try_from(at).map_err(io::Error::other)?);
    while first < count {
        let done = call(fd, vectors[first..].as_ptr(), (count - first) as i32, at);
        if done < 0 {
            let error = io::Error::last_os_error();
            if error.kind() == io::ErrorKind::Interrupted {
                continue;
            }
            return Err(error);
        }
        if done == 0 {
            return Err(ended.into());
        }
        at += done as i64;
        let mut left = done as usize;
        while first < count && left >= vectors[first].iov_len {
            left -= vectors[first].iov_len;
            first += 1;
        }
        if left > 0 {
            let vector = &mut vectors[first];
            vector.iov_base = vector.iov_base.wrapping_byte_add(left);
            vector.iov_len -= left;
        }
    }
    Ok(())
}
