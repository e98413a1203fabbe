//! A directory that no node uses, opened as it is: nothing is removed to make room or for its age.

use crate::directory::{DESCRIPTION, Directory};
use crate::engine::{Durability, Engine, SsdError, WallClock};
use crate::files::{FilesEngine, FilesOptions};
use crate::slab::{SlabEngine, SlabOptions, slabs_up_to};
use crate::storage::{Disk, Storage, Untouched};
use std::io;
use std::path::Path;
use std::sync::Arc;

/// What may happen to the directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// It stays as it is; what the engine removes is only not listed any more.
    Read,
    /// It is put in order, as by the start of a rank.
    Change,
}

/// Opens the directory of one rank, whatever its engine.
///
/// # Errors
/// `NotFound` if it is none; [`SsdError::Directory`] if it is of another format; `ResourceBusy`
/// while a rank uses it.
pub fn open(dir: &Path, access: Access, clock: WallClock) -> Result<Box<dyn Engine>, SsdError> {
    // Looked at first: a directory of something else gets no lock file.
    if !dir.join(DESCRIPTION).is_file() {
        let text =
            format!("there is no {DESCRIPTION}: name the SSD directory of one rank, as .../rank-0");
        return Err(io::Error::new(io::ErrorKind::NotFound, text).into());
    }
    let disk: Arc<dyn Storage> = Arc::new(Disk::open(dir)?);
    let storage = match access {
        Access::Read => Arc::new(Untouched(disk)),
        Access::Change => disk,
    };
    let directory = Directory::existing(&*storage)?;
    let (durability, ttl_s) = (Durability::Persistent, u64::MAX);
    if directory.engine == "files" {
        // Not written down anywhere; what there is fits.
        let options = FilesOptions { capacity_bytes: u64::MAX, durability, ttl_s, clock };
        return Ok(Box::new(FilesEngine::open(storage, options)?));
    }
    let slab_bytes = directory.slab_bytes;
    let capacity_bytes = slabs_up_to(&*storage)?.max(1).saturating_mul(slab_bytes);
    let options = SlabOptions { capacity_bytes, slab_bytes, durability, ttl_s, clock };
    Ok(Box::new(SlabEngine::open(storage, options)?))
}
