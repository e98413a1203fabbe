//! Which ranges of the slabs are free.

use crate::piece::BLOCK;
use crate::sync::lock;
use nkv_store::layout::Region;
use nkv_store::{Arena, ArenaUnit, Extent, StoreError};
use std::sync::{Arc, Mutex};

/// Space that was given back, and is not in an arena again yet.
type Returned = Arc<Mutex<Vec<(u16, Extent)>>>;

/// A range of a slab, taken until the last holder drops it: the index, or a read of it.
#[derive(Debug)]
pub struct Placed {
    pub slab: u16,
    pub extent: Extent,
    /// Bytes of the record's header; the payload follows it.
    pub header_bytes: u64,
    returned: Returned,
}

impl Drop for Placed {
    fn drop(&mut self) {
        lock(&self.returned).push((self.slab, self.extent));
    }
}

/// The free ranges of all slabs.
#[derive(Debug)]
pub struct Space {
    arenas: Vec<Arena>,
    /// The slab that gave room last.
    last: usize,
    returned: Returned,
}

impl Space {
    /// Slabs of `slab_bytes`, in which these ranges of records are taken.
    ///
    /// # Errors
    /// If a range cannot be: see [`Arena::rebuild`].
    pub fn new(slabs: usize, slab_bytes: u64) -> Self {
        let region = Region { offset: 0, len: slab_bytes };
        let arenas =
            (0..slabs).map(|_| Arena::new(region, ArenaUnit::default(), u32::MAX)).collect();
        Self { arenas, last: 0, returned: Returned::default() }
    }

    /// Takes exactly this range, as a journal says that it is taken.
    ///
    /// # Errors
    /// If it is taken already, or cannot be.
    pub fn take_at(
        &mut self,
        slab: u16,
        extent: Extent,
        header_bytes: u64,
    ) -> Result<Placed, StoreError> {
        let bad = || StoreError::BadSegment(format!("slab {slab} does not exist"));
        self.arenas.get_mut(usize::from(slab)).ok_or_else(bad)?.take_at(extent)?;
        Ok(Placed { slab, extent, header_bytes, returned: Arc::clone(&self.returned) })
    }

    /// Takes room for a record of so many bytes in all. None if no slab has enough in one piece.
    pub fn take(&mut self, header_bytes: u64, bytes: u64) -> Option<Placed> {
        for (slab, extent) in std::mem::take(&mut *lock(&self.returned)) {
            if let Err(error) = self.arenas[usize::from(slab)].free(extent) {
                tracing::error!(%error, "room on disk was given back twice");
            }
        }
        let slabs = self.arenas.len();
        for slab in (0..slabs).map(|step| (self.last + step) % slabs) {
            let arena = &mut self.arenas[slab];
            if let Ok(extent) = arena.alloc(bytes)
                && extent.len >= bytes
            {
                self.last = slab;
                let (slab, returned) = (slab as u16, Arc::clone(&self.returned));
                return Some(Placed { slab, extent, header_bytes, returned });
            }
        }
        None
    }

    pub fn capacity(&self) -> u64 {
        self.arenas.iter().map(Arena::capacity).sum()
    }

    pub fn free_bytes(&self) -> u64 {
        let returned: u64 = lock(&self.returned).iter().map(|(_, extent)| extent.len).sum();
        self.arenas.iter().map(Arena::free_bytes).sum::<u64>() + returned
    }

    pub fn used_bytes(&self) -> u64 {
        self.capacity() - self.free_bytes()
    }
}

const _: () = assert!(nkv_store::layout::PAYLOAD_ALIGN == BLOCK as u64);
