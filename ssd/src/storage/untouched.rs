//! A directory as it is: what is written, renamed and removed is not. So a check finds what there
//! is, and leaves it.

use super::{BlockFile, Storage};
use crate::piece::Piece;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// See the file's first paragraph.
#[derive(Debug)]
pub struct Untouched(pub Arc<dyn Storage>);

impl Storage for Untouched {
    fn open(&self, name: &str, create: bool) -> io::Result<Box<dyn BlockFile>> {
        match self.0.open(name, false) {
            Ok(file) => Ok(Box::new(Kept(file))),
            Err(error) if create && error.kind() == io::ErrorKind::NotFound => {
                Ok(Box::new(Absent(AtomicU64::new(0))))
            }
            Err(error) => Err(error),
        }
    }

    fn list(&self) -> io::Result<Vec<String>> {
        self.0.list()
    }

    fn rename(&self, _: &str, _: &str) -> io::Result<()> {
        Ok(())
    }

    fn remove(&self, _: &str) -> io::Result<()> {
        Ok(())
    }

    fn sync_names(&self) -> io::Result<()> {
        Ok(())
    }

    fn free_bytes(&self) -> io::Result<u64> {
        Ok(u64::MAX)
    }

    fn shown(&self) -> String {
        self.0.shown()
    }
}

/// A file that is there.
#[derive(Debug)]
struct Kept(Box<dyn BlockFile>);

impl BlockFile for Kept {
    fn size(&self) -> io::Result<u64> {
        self.0.size()
    }

    fn allocate(&self, _: u64) -> io::Result<()> {
        Ok(())
    }

    fn read(&self, at: u64, into: &mut [Piece<'_>]) -> io::Result<()> {
        self.0.read(at, into)
    }

    fn write(&self, _: u64, _: &[Piece<'_>]) -> io::Result<()> {
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }
}

/// A file that would be made: its length, and no bytes.
#[derive(Debug)]
struct Absent(AtomicU64);

impl BlockFile for Absent {
    fn size(&self) -> io::Result<u64> {
        Ok(self.0.load(Ordering::Relaxed))
    }

    fn allocate(&self, len: u64) -> io::Result<()> {
        self.0.store(len, Ordering::Relaxed);
        Ok(())
    }

    fn read(&self, _: u64, _: &mut [Piece<'_>]) -> io::Result<()> {
        Err(io::ErrorKind::UnexpectedEof.into())
    }

    fn write(&self, _: u64, _: &[Piece<'_>]) -> io::Result<()> {
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }
}
