//! Shared memory without a name: sealed to its size, and passed on as a descriptor. Neither a peer
//! that dies nor a malicious one can take pages away, so an access never causes SIGBUS. Its users
//! define the content and pass the descriptor.

use super::mapping::Mapping;
use super::sealed;
use crate::error::StoreError;
use crate::memory::{Export, HostRegion, host_memory};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;

/// Name of the file in /proc.
const SHOWN: &str = "nkv-nameless";
/// A sealed memory file, mapped into this process, with all of its pages allocated.
#[derive(Debug)]
pub struct MemfdMemory {
    region: HostRegion,
    mapping: Mapping,
}

host_memory!(MemfdMemory, |_| Export::Private);

impl MemfdMemory {
    /// Makes one of `bytes` zero bytes.
    pub fn create(bytes: u64) -> Result<Self, StoreError> {
        Self::map(sealed::make(SHOWN, bytes)?, bytes)
    }

    /// Maps memory that another process created and sent. It must have exactly `bytes` and be
    /// sealed.
    pub fn take(fd: OwnedFd, bytes: u64) -> Result<Self, StoreError> {
        let stat = rustix::fs::fstat(&fd).map_err(|e| StoreError::os("fstat", SHOWN, e))?;
        if !sealed::is_regular(&stat) || u64::try_from(stat.st_size) != Ok(bytes) {
            return Err(StoreError::BadSegment(format!(
                "a descriptor of {} bytes was passed where memory of {bytes} was announced",
                stat.st_size
            )));
        }
        sealed::check(&fd, "the memory passed")?;
        Self::map(fd, bytes)
    }

    fn map(fd: OwnedFd, bytes: u64) -> Result<Self, StoreError> {
        let mapping = Mapping::of(fd, bytes, Path::new(SHOWN))?;
        mapping.prefault(Path::new(SHOWN))?;
        Ok(Self { region: mapping.region(), mapping })
    }

    /// The descriptor to pass to the other process; both then share the same bytes.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.mapping.fd()
    }
}

#[cfg(test)]
mod tests {
    use super::sealed::SEALS;
    use super::*;
    use crate::memory::Memory;
    use rustix::fs::{MemfdFlags, SealFlags};

    const BYTES: u64 = 8192;

    fn memfd(bytes: u64, seals: SealFlags) -> OwnedFd {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = rustix::fs::memfd_create("test", flags).unwrap();
        rustix::fs::ftruncate(&fd, bytes).unwrap();
        rustix::fs::fcntl_add_seals(&fd, seals).unwrap();
        fd
    }

    #[test]
    fn both_ends_have_the_same_words() {
        let made = MemfdMemory::create(BYTES).unwrap();
        let taken = MemfdMemory::take(made.fd().try_clone_to_owned().unwrap(), BYTES).unwrap();
        made.store(BYTES - 8, 7).unwrap();
        assert_eq!(taken.load(BYTES - 8).unwrap(), 7);
        taken.write(100, b"there and back").unwrap();
        let mut back = [0; 14];
        made.read(100, &mut back).unwrap();
        assert_eq!(&back, b"there and back");
    }

    #[test]
    fn i19_nobody_can_shrink_what_is_mapped() {
        let made = MemfdMemory::create(BYTES).unwrap();
        let fd = made.fd().try_clone_to_owned().unwrap();
        rustix::fs::ftruncate(&fd, 0).unwrap_err();
        rustix::fs::ftruncate(&fd, 2 * BYTES).unwrap_err();
        rustix::fs::fcntl_add_seals(&fd, SealFlags::WRITE).unwrap_err();
        made.store(BYTES - 8, 1).unwrap();
    }

    #[test]
    fn i19_what_could_lose_its_pages_is_not_mapped() {
        let sealed = SealFlags::SHRINK | SealFlags::GROW;
        for (bytes, seals) in [
            (BYTES, SealFlags::empty()),
            (BYTES, SealFlags::SEAL),
            (BYTES, SealFlags::GROW | SealFlags::SEAL),
            (BYTES, sealed),
            (BYTES - 1, SEALS),
            (BYTES + 1, SEALS),
            (0, SEALS),
            (BYTES, SEALS | SealFlags::WRITE),
        ] {
            let taken = MemfdMemory::take(memfd(bytes, seals), BYTES);
            assert!(taken.is_err(), "{bytes} bytes with {seals:?}");
        }
        let file = tempfile::tempfile().unwrap();
        file.set_len(BYTES).unwrap();
        MemfdMemory::take(file.into(), BYTES).unwrap_err();
        let (pipe, _) = rustix::pipe::pipe().unwrap();
        MemfdMemory::take(pipe, BYTES).unwrap_err();
        MemfdMemory::take(memfd(BYTES, SEALS), BYTES).unwrap();
    }
}
