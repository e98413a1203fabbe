//! Verbs over another process's named shared memory, mapped here. As with `local`, the caller has
//! entered its plan's gate before it posts; the owner detects a dead process by its pidfd [I9]
//! [I10].

use crate::error::TransportError;
use crate::mapped::Mapped;
use crate::verbs::{Alive, Kind, Op, Verbs};
use nkv_store::{Memory, Stripes};
use std::sync::Arc;

/// A segment of another process of this host.
#[derive(Debug, Clone)]
pub struct ShmVerbs {
    mapped: Mapped,
    alive: Alive,
}

impl ShmVerbs {
    /// `alive` is marked dead by the code that watches the owner (pidfd, socket close).
    pub fn new(memory: Arc<dyn Memory>, alive: Alive) -> Self {
        Self { mapped: Mapped::new(memory), alive }
    }

    /// The same, with large reads and writes done by several threads.
    pub fn with_stripes(self, stripes: Stripes) -> Self {
        Self { mapped: self.mapped.with_stripes(stripes), ..self }
    }
}

impl Verbs for ShmVerbs {
    fn kind(&self) -> Kind {
        Kind::Shm
    }

    fn post(&self, token: u64, ops: &mut [Op<'_>]) -> Result<(), TransportError> {
        self.mapped.post(token, ops, &self.alive, &"the shared segment")
    }

    fn is_alive(&self) -> bool {
        self.alive.is_alive()
    }

    fn segment_len(&self) -> u64 {
        self.mapped.len()
    }
}
