//! Who may still need the bytes of a retired object: asked before its extent is used again [I9].

use crate::error::StoreError;
use crate::layout::Region;
use crate::memory::Memory;
use crate::pins;
use hashbrown::HashSet;
use std::fmt::Debug;
use std::sync::Arc;

/// One kind of holder: the pin tables of readers are one, a writer of another tier would be.
///
/// It is asked when an object's quarantine is over, and so after LIVE was cleared: a holder that
/// takes an object only while it is LIVE, and says so from then on, is always asked in time.
pub trait Holders: Send + Sync + Debug {
    /// Adds the (slot, epoch) of every object that is held.
    ///
    /// # Errors
    /// If that cannot be known: everything retired stays where it is until the next time.
    fn held(&self, objects: &mut HashSet<(u32, u32)>) -> Result<(), StoreError>;
}

/// The pins of views, in the segment's own tables.
#[derive(Debug)]
pub(super) struct Pinned {
    pub memory: Arc<dyn Memory>,
    pub region: Region,
}

impl Holders for Pinned {
    fn held(&self, objects: &mut HashSet<(u32, u32)>) -> Result<(), StoreError> {
        objects.extend(pins::scan(&*self.memory, &self.region)?);
        Ok(())
    }
}
