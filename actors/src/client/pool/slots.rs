//! What a pool gives to a worker: places to write, and objects to read in place.

use crate::client::view::ObjectView;
use crate::client::write::InPlace;
use crate::error::Result;
use std::sync::Arc;

/// A place to write one object. Keep it, or a clone, as long as anybody writes there.
#[derive(Debug, Clone)]
pub struct StoreSlot {
    /// Its key, without the layout.
    pub key: Vec<u8>,
    /// File in /dev/shm.
    pub shm_name: Arc<str>,
    /// Offset of its first byte in that file.
    pub offset: u64,
    /// Its length in bytes.
    pub len: u64,
    pub(super) place: Arc<InPlace>,
}

impl StoreSlot {
    /// Where it begins in this process. It may be written until the commit, as long as this slot or
    /// a clone of it lives; after the commit the memory is the object's, and later another one's.
    pub fn address(&self) -> u64 {
        self.place.address()
    }

    /// Copies bytes to an offset of the object; `InvalidArgument` once it is committed.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.place.write(offset, bytes)
    }

    /// Copies out what was written so far.
    pub fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        self.place.read(offset, bytes)
    }
}

/// An object to read in place. Its bytes do not change as long as this slot or a clone of it lives:
/// keep it also where the bytes are read by file and offset.
#[derive(Debug, Clone)]
pub struct ReadSlot {
    /// Its key, without the layout.
    pub key: Vec<u8>,
    /// File in /dev/shm.
    pub shm_name: Arc<str>,
    /// Offset of its first byte in that file.
    pub offset: u64,
    pub(super) view: Arc<ObjectView>,
}

impl ReadSlot {
    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.view
    }
}
