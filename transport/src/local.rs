//! Verbs over a segment of this very process. Token and gate are the caller's business: code of
//! this process is trusted to enter its plan's gate before it posts.

use crate::error::TransportError;
use crate::mapped::Mapped;
use crate::verbs::{Alive, Kind, Op, Verbs};
use nkv_store::Memory;
use std::sync::Arc;

/// The owner's own memory.
#[derive(Debug, Clone)]
pub struct LocalVerbs {
    mapped: Mapped,
    alive: Alive,
}

impl LocalVerbs {
    /// `alive` is marked dead when the owner in this process stops.
    pub fn new(memory: Arc<dyn Memory>, alive: Alive) -> Self {
        Self {
            mapped: Mapped::new(memory),
            alive,
        }
    }
}

impl Verbs for LocalVerbs {
    fn kind(&self) -> Kind {
        Kind::Local
    }

    fn post(&self, token: u64, ops: &mut [Op<'_>]) -> Result<(), TransportError> {
        self.mapped
            .post(token, ops, &self.alive, &"this process's segment")
    }

    fn is_alive(&self) -> bool {
        self.alive.is_alive()
    }

    fn segment_len(&self) -> u64 {
        self.mapped.len()
    }
}
