//! Verbs over memory that this process can access: a segment of its own, a named one of another
//! process of this host, and what the tcp agent serves. It runs them in order, each with the
//! memory order it needs. Permission was checked before: code of this process enters its plan's
//! gate, and the agent checks token and gate; an owner detects a dead process by its pidfd [I9]
//! [I10]. No slice is ever made over shared bytes, since other processes write them meanwhile.

use crate::error::TransportError;
use crate::verbs::{Alive, Kind, Op, Verbs, check_batch};
use nkv_store::memory::HostRegion;
use nkv_store::{Memory, Stripes};
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;

/// One segment as the tcp agent accesses it.
#[derive(Debug, Clone)]
pub(crate) struct Mapped {
    memory: Arc<dyn Memory>,
    // What of it the CPU can access; VRAM has none.
    host: Option<HostRegion>,
}

impl Mapped {
    pub(crate) fn new(memory: Arc<dyn Memory>) -> Self {
        // SAFETY: `memory` beside it lives as long.
        Self { host: unsafe { memory.host() }, memory }
    }

    /// The address of `len` bytes at `offset`, if the CPU can access them and they are in bounds.
    pub(crate) fn at(&self, offset: u64, len: usize) -> Option<*mut u8> {
        self.host?.at("address", offset, len as u64).ok().map(NonNull::as_ptr)
    }
}

impl Deref for Mapped {
    type Target = dyn Memory;

    fn deref(&self) -> &Self::Target {
        self.memory.as_ref()
    }
}

/// A segment that this process has mapped, as its clients use it.
#[derive(Debug, Clone)]
pub struct MappedVerbs {
    memory: Arc<dyn Memory>,
    stripes: Stripes,
    alive: Alive,
    kind: Kind,
}

impl MappedVerbs {
    /// Over a segment of this process; `alive` is marked dead when its owner stops.
    pub fn local(memory: Arc<dyn Memory>, alive: Alive) -> Self {
        Self { memory, stripes: Stripes::NONE, alive, kind: Kind::Local }
    }

    /// Over a named segment of another process, mapped here; `alive` is marked dead by the code
    /// that watches that process (pidfd, socket close).
    pub fn shm(memory: Arc<dyn Memory>, alive: Alive) -> Self {
        // Payloads that the CPU cannot access were mapped apart.
        let kind = if memory.host_len() == memory.len() { Kind::Shm } else { Kind::CudaIpc };
        Self { kind, ..Self::local(memory, alive) }
    }

    /// The same, with large reads and writes of a batch done by several threads.
    pub fn with_stripes(self, stripes: Stripes) -> Self {
        Self { stripes, ..self }
    }
}

impl Verbs for MappedVerbs {
    fn kind(&self) -> Kind {
        self.kind
    }

    fn post(&self, token: u64, ops: &mut [Op<'_>]) -> Result<(), TransportError> {
        let who =
            if self.kind == Kind::Local { "this process's segment" } else { "the shared segment" };
        self.alive.check(&who)?;
        check_batch(ops, token, self.segment_len())?;
        for op in ops {
            match op.stripes(&self.stripes) {
                1 => op.run(self.memory.as_ref())?,
                n => op.run_striped(self.memory.as_ref(), n)?,
            }
        }
        // Meanwhile the owner may have died, and its memory may be reused or stale.
        self.alive.check(&who)
    }

    fn is_alive(&self) -> bool {
        self.alive.is_alive()
    }

    fn segment_len(&self) -> u64 {
        self.memory.len()
    }
}

#[cfg(test)]
mod tests;
