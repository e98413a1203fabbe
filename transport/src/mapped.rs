//! Verbs over memory that this process can access: a segment of its own, a named one of another
//! process of this host, and what the tcp agent serves. It runs them in order, each with the
//! memory order it needs. Permission was checked before: code of this process enters its plan's
//! gate, and the agent checks token and gate; an owner detects a dead process by its pidfd [I9]
//! [I10]. No slice is ever made over shared bytes, since other processes write them meanwhile.

use crate::error::TransportError;
use crate::verbs::{Alive, Kind, Op, Verbs, check_batch};
use nkv_store::memory::HostRegion;
use nkv_store::{Memory, Stripes};
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

/// One segment as this process accesses it.
#[derive(Debug, Clone)]
pub(crate) struct Mapped {
    memory: Arc<dyn Memory>,
    // What of it the CPU can access; VRAM has none.
    host: Option<HostRegion>,
    stripes: Stripes,
}

impl Mapped {
    pub(crate) fn new(memory: Arc<dyn Memory>) -> Self {
        // SAFETY: `host_base` is valid for `host_len` bytes while the memory lives, which `memory`
        // beside it ensures; mappings are page aligned.
        let host = memory.host_base().map(|b| unsafe { HostRegion::new(b, memory.host_len()) });
        Self { memory, host, stripes: Stripes::NONE }
    }

    /// The same, with large reads and writes of a batch done by several threads.
    pub(crate) fn with_stripes(self, stripes: Stripes) -> Self {
        Self { stripes, ..self }
    }

    /// The address of `len` bytes at `offset`, if the CPU can access them and they are in bounds.
    pub(crate) fn at(&self, offset: u64, len: usize) -> Option<*mut u8> {
        let host = self.host?;
        let end = offset.checked_add(len as u64)?;
        // SAFETY: offset + len is inside the region.
        (end <= host.len()).then(|| unsafe { host.base().as_ptr().add(offset as usize) })
    }

    /// Executes a whole batch strictly in order, as [`crate::Verbs::post`] requires.
    pub(crate) fn post(
        &self,
        token: u64,
        ops: &mut [Op<'_>],
        alive: &Alive,
        who: &dyn fmt::Display,
    ) -> Result<(), TransportError> {
        alive.check(who)?;
        check_batch(ops, token, self.len())?;
        for op in ops {
            match op.stripes(&self.stripes) {
                1 => op.run(self.memory.as_ref())?,
                n => op.run_striped(self.memory.as_ref(), n)?,
            }
        }
        // Meanwhile the owner may have died, and its memory may be reused or stale.
        alive.check(who)
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
    mapped: Mapped,
    alive: Alive,
    kind: Kind,
}

impl MappedVerbs {
    /// Over a segment of this process; `alive` is marked dead when its owner stops.
    pub fn local(memory: Arc<dyn Memory>, alive: Alive) -> Self {
        Self { mapped: Mapped::new(memory), alive, kind: Kind::Local }
    }

    /// Over a named segment of another process, mapped here; `alive` is marked dead by the code
    /// that watches that process (pidfd, socket close).
    pub fn shm(memory: Arc<dyn Memory>, alive: Alive) -> Self {
        Self { mapped: Mapped::new(memory), alive, kind: Kind::Shm }
    }

    /// The same, with large reads and writes done by several threads.
    pub fn with_stripes(self, stripes: Stripes) -> Self {
        Self { mapped: self.mapped.with_stripes(stripes), ..self }
    }
}

impl Verbs for MappedVerbs {
    fn kind(&self) -> Kind {
        self.kind
    }

    fn post(&self, token: u64, ops: &mut [Op<'_>]) -> Result<(), TransportError> {
        let who =
            if self.kind == Kind::Local { "this process's segment" } else { "the shared segment" };
        self.mapped.post(token, ops, &self.alive, &who)
    }

    fn is_alive(&self) -> bool {
        self.alive.is_alive()
    }

    fn segment_len(&self) -> u64 {
        self.mapped.len()
    }
}

#[cfg(test)]
mod tests;
