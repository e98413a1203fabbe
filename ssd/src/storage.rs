//! Files as the engines use them: whole reads and writes at multiples of 4 KiB.

mod disk;
mod plain;
mod untouched;
mod uring;

use crate::piece::{Piece, bytes_of};
use std::fmt::Debug;
use std::io;

pub use disk::Disk;
pub use untouched::Untouched;

/// The directory of one node.
pub trait Storage: Send + Sync + Debug {
    /// Opens a file for reading and writing; makes it if `create`.
    ///
    /// # Errors
    /// `NotFound` if it is absent and not to be made; else what the file system says.
    fn open(&self, name: &str, create: bool) -> io::Result<Box<dyn BlockFile>>;
    /// Names of the files in it, without those of folders below.
    ///
    /// # Errors
    /// What the file system says.
    fn list(&self) -> io::Result<Vec<String>>;
    /// Renames a file over another one.
    ///
    /// # Errors
    /// What the file system says.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Removes a file.
    ///
    /// # Errors
    /// `NotFound` if there is none; else what the file system says.
    fn remove(&self, name: &str) -> io::Result<()>;
    /// Names that were made, renamed or removed survive power loss from its return on.
    ///
    /// # Errors
    /// What the file system says.
    fn sync_names(&self) -> io::Result<()>;
    /// Bytes that can still be written.
    ///
    /// # Errors
    /// What the file system says.
    fn free_bytes(&self) -> io::Result<u64>;
    /// The directory, for messages.
    fn shown(&self) -> String;
}

/// One open file.
pub trait BlockFile: Send + Sync + Debug {
    /// Its length in bytes.
    ///
    /// # Errors
    /// What the file system says.
    fn size(&self) -> io::Result<u64>;
    /// Makes it `len` bytes long, and takes the room on disk if it grows.
    ///
    /// # Errors
    /// `StorageFull` if there is no room; else what the file system says.
    fn allocate(&self, len: u64) -> io::Result<()>;
    /// Fills all pieces, one after the other, from offset `at` on.
    ///
    /// # Errors
    /// `UnexpectedEof` if the file ends before; else what the disk says. The pieces then hold
    /// anything.
    fn read(&self, at: u64, into: &mut [Piece<'_>]) -> io::Result<()>;
    /// As [`Self::read`]; meanwhile `filled` is called with the number of bytes, from the first one
    /// on, that will not change any more. It never falls, and is all of them at the end.
    ///
    /// # Errors
    /// Those of [`Self::read`].
    fn read_along(
        &self,
        at: u64,
        into: &mut [Piece<'_>],
        filled: &mut dyn FnMut(u64),
    ) -> io::Result<()> {
        self.read(at, into)?;
        filled(bytes_of(into));
        Ok(())
    }
    /// Writes all pieces, one after the other, from offset `at` on.
    ///
    /// # Errors
    /// What the disk says. The range then holds anything.
    fn write(&self, at: u64, from: &[Piece<'_>]) -> io::Result<()>;
    /// What was written survives power loss from its return on.
    ///
    /// # Errors
    /// What the disk says. What was written since the last success may be lost.
    fn sync_data(&self) -> io::Result<()>;
}

/// Reads a small file whole. None if it is absent.
pub(crate) fn read_small(storage: &dyn Storage, name: &str) -> io::Result<Option<Vec<u8>>> {
    let file = match storage.open(name, false) {
        Ok(file) => file,
        Err(absent) if absent.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let len = file.size()?;
    if len > MOST_SMALL {
        return Err(io::Error::other(format!("{name} has {len} bytes, at most {MOST_SMALL}")));
    }
    let padded = (len as usize).next_multiple_of(crate::piece::BLOCK);
    if padded as u64 != len {
        return Err(io::Error::other(format!("{name} has {len} bytes: no multiple of 4096")));
    }
    let mut buffer = nkv_store::Buffer::new(padded).map_err(io::Error::other)?;
    file.read(0, &mut [Piece::of_buffer(&mut buffer)])?;
    Ok(Some(buffer.to_vec()))
}

/// Writes a small file, padded with spaces: after power loss it is there whole or not at all.
pub(crate) fn write_small(storage: &dyn Storage, name: &str, bytes: &[u8]) -> io::Result<()> {
    let unfinished = format!("{name}.tmp");
    let file = storage.open(&unfinished, true)?;
    let padded = bytes.len().next_multiple_of(crate::piece::BLOCK);
    let mut buffer = nkv_store::Buffer::new(padded).map_err(io::Error::other)?;
    buffer[..bytes.len()].copy_from_slice(bytes);
    buffer[bytes.len()..].fill(b' ');
    file.write(0, &[Piece::of_buffer(&mut buffer)])?;
    file.sync_data()?;
    storage.rename(&unfinished, name)?;
    storage.sync_names()
}

/// Longest file that [`read_small`] reads.
const MOST_SMALL: u64 = 1 << 20;
