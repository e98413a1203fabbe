//! Shared memory without a name: sealed to its size, and passed on as a descriptor. Neither a peer
//! that dies nor one that means harm can take pages away, so touching it is never SIGBUS. What lies
//! inside, and how the descriptor travels, is its users' business.

use super::mapping::Mapping;
use super::sealed;
use crate::error::StoreError;
use crate::memory::{Export, HostRegion, host_memory};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;

/// What the kernel shows in /proc for it.
const SHOWN: &str = "nkv-nameless";
/// A sealed file in memory, mapped into this process, all of its pages taken.
#[derive(Debug)]
pub struct MemfdMemory {
    region: HostRegion,
    mapping: Mapping,
}

host_memory!(MemfdMemory);

impl MemfdMemory {
    /// Makes one of `bytes` zero bytes.
    pub fn create(bytes: u64) -> Result<Self, StoreError> {
        Self::map(sealed::make(SHOWN, bytes)?, bytes)
    }

    /// Maps what another process made and sent: exactly `bytes` long, and sealed to that.
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

    /// To be passed to the other process; both then have the same bytes.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.mapping.fd()
    }

    fn export_handle(&self) -> Export {
        Export::Private
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
