//! A directory that no node uses, opened as it is: nothing is removed to make room or for its age.

use crate::directory::{DESCRIPTION, Directory};
use crate::engine::{Durability, Engine, SsdError, WallClock};
use crate::files::{FilesEngine, FilesOptions};
use crate::slab::{SlabEngine, SlabOptions, slabs_of};
use crate::storage::{Disk, Storage};
use std::io;
use std::path::Path;
use std::sync::Arc;

/// Opens the directory of one rank, whatever its engine.
///
/// # Errors
/// `NotFound` if it is none; [`SsdError::Directory`] if it is of another format; `ResourceBusy`
/// while a rank uses it.
pub fn open(dir: &Path, clock: WallClock) -> Result<Box<dyn Engine>, SsdError> {
    // Looked at first: a directory of something else gets no lock file.
    if !dir.join(DESCRIPTION).is_file() {
        let text =
            format!("there is no {DESCRIPTION}: name the directory of a rank, or that above");
        return Err(io::Error::new(io::ErrorKind::NotFound, text).into());
    }
    let storage: Arc<dyn Storage> = Arc::new(Disk::open(dir)?);
    let directory = Directory::existing(&*storage)?;
    let (durability, ttl_s) = (Durability::Persistent, u64::MAX);
    if directory.engine == "files" {
        let options = FilesOptions { capacity_bytes: u64::MAX, durability, ttl_s, clock };
        return Ok(Box::new(FilesEngine::open(storage, options)?));
    }
    let slab_bytes = directory.slab_bytes;
    let capacity_bytes = slabs_of(&*storage)?.saturating_mul(slab_bytes);
    let options = SlabOptions { capacity_bytes, slab_bytes, durability, ttl_s, clock };
    Ok(Box::new(SlabEngine::open(storage, options)?))
}
