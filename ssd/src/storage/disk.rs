//! A directory of a file system. Files are opened past the page cache (`O_DIRECT`) where the file
//! system can, so that a cache of gigabytes does not push out what others use.

use super::uring::Rings;
use super::{BlockFile, Storage, plain};
use crate::piece::{Piece, bytes_of};
use rustix::fs::{self, FallocateFlags, FlockOperation, Mode, OFlags};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A directory that this process has alone.
#[derive(Debug)]
pub struct Disk {
    path: PathBuf,
    folder: OwnedFd,
    direct: bool,
    /// None: reads are calls of `preadv`.
    rings: Option<Arc<Rings>>,
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
                        "another process uses {}: stop it first, or give each node a directory \
                         of its own",
                        path.display()
                    ),
                ),
                other => other.into(),
            },
        )?;
        let direct = fs::openat(&folder, LOCK, flags | OFlags::DIRECT, MODE).is_ok();
        // Through the page cache a ring would only hand reads to threads of the kernel.
        let rings = if direct { Rings::new().map(Arc::new) } else { None };
        Ok(Self { path: path.to_owned(), folder, direct, rings, _lock: lock })
    }

    /// The same, with reads by `preadv` alone.
    #[must_use]
    pub fn without_io_uring(self) -> Self {
        Self { rings: None, ..self }
    }

    /// How large reads are made: `io_uring` or `preadv`.
    pub fn reads_by(&self) -> &'static str {
        if self.rings.is_some() { "io_uring" } else { "preadv" }
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
        Ok(Box::new(OnDisk { file, rings: self.rings.clone() }))
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
struct OnDisk {
    file: File,
    rings: Option<Arc<Rings>>,
}

impl BlockFile for OnDisk {
    fn size(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn allocate(&self, len: u64) -> io::Result<()> {
        if len <= self.size()? {
            return self.file.set_len(len);
        }
        match fs::fallocate(&self.file, FallocateFlags::empty(), 0, len) {
            // A file system without it: room is taken as it is written.
            Err(rustix::io::Errno::OPNOTSUPP) => self.file.set_len(len),
            other => Ok(other?),
        }
    }

    fn read(&self, at: u64, into: &mut [Piece<'_>]) -> io::Result<()> {
        plain::read(self.file.as_fd(), at, into)
    }

    fn read_along(
        &self,
        at: u64,
        into: &mut [Piece<'_>],
        filled: &mut dyn FnMut(u64),
    ) -> io::Result<()> {
        match &self.rings {
            Some(rings) => rings.read_along(self.file.as_fd(), at, into, filled),
            None => {
                plain::read(self.file.as_fd(), at, into)?;
                filled(bytes_of(into));
                Ok(())
            }
        }
    }

    fn write(&self, at: u64, from: &[Piece<'_>]) -> io::Result<()> {
        plain::write(self.file.as_fd(), at, from)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.file.sync_data()
    }
}
