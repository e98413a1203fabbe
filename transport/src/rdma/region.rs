//! Protection domains and registered memory. Registered memory stays in place, and the device may
//! read and write it, until the registration is dropped.

use super::context::Context;
use super::error::made;
use crate::error::TransportError;
use crate::fabric::Access;
use nkv_store::{Export, Memory};
use rdma_sys as sys;
use rdma_sys::ibv_access_flags as flag;
use std::os::fd::RawFd;
use std::ptr::NonNull;
use std::sync::Arc;

/// A protection domain: pairs can use only memory of their own domain.
#[derive(Debug)]
pub(super) struct Domain {
    raw: NonNull<sys::ibv_pd>,
    context: Arc<Context>,
}

// SAFETY: libibverbs allows any thread to use a domain, and several at once.
unsafe impl Send for Domain {}
// SAFETY: as above.
unsafe impl Sync for Domain {}

impl Domain {
    pub(super) fn new(context: Arc<Context>) -> Result<Arc<Self>, TransportError> {
        // SAFETY: the device is open.
        let raw = unsafe { sys::ibv_alloc_pd(context.raw()) };
        let raw = made("ibv_alloc_pd", context.name(), raw)?;
        Ok(Arc::new(Self { raw, context }))
    }

    pub(super) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub(super) fn raw(&self) -> *mut sys::ibv_pd {
        self.raw.as_ptr()
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        // SAFETY: allocated by `Domain::new`; its pairs and registrations hold an Arc and are gone.
        self.context.end("ibv_dealloc_pd", || unsafe { sys::ibv_dealloc_pd(self.raw()) });
    }
}

/// The access flags for what remote hosts may do; without it only this host's own requests access
/// the memory.
fn flags(remote: Option<Access>) -> u32 {
    let here = flag::IBV_ACCESS_LOCAL_WRITE;
    let (read, write) = (flag::IBV_ACCESS_REMOTE_READ, flag::IBV_ACCESS_REMOTE_WRITE);
    let atomic = flag::IBV_ACCESS_REMOTE_ATOMIC;
    // By the rules of verbs, remote write access requires local write access.
    match remote {
        None => here,
        Some(Access::Read) => read,
        Some(Access::Count) => here | read | atomic,
        Some(Access::Words) => here | read | write | atomic,
        Some(Access::Payload) => here | read | write | flag::IBV_ACCESS_RELAXED_ORDERING,
    }
    .0
}

/// Memory to register.
#[derive(Debug, Clone, Copy)]
pub(super) enum MemoryLocation {
    /// Memory of this process.
    Host(NonNull<u8>),
    /// Memory of another device (VRAM): a part of a dma-buf, and its address there.
    DmaBuf { fd: RawFd, offset: u64, address: u64 },
}

impl MemoryLocation {
    /// The location of a whole segment; none if no device could access it.
    pub(super) fn of(memory: &dyn Memory) -> Option<Self> {
        match memory.export() {
            Export::DmaBuf { fd, offset, address } => Some(Self::DmaBuf { fd, offset, address }),
            // Of memory of two kinds each part would be registered by itself.
            _ if memory.host_len() < memory.len() => None,
            _ => memory.host_base().map(Self::Host),
        }
    }

    /// The location `by` bytes further on, which must be inside.
    pub(super) fn at(self, by: u64) -> Self {
        match self {
            Self::Host(base) => {
                let further = base.as_ptr().wrapping_add(by as usize);
                Self::Host(NonNull::new(further).unwrap_or(base))
            }
            Self::DmaBuf { fd, offset, address } => {
                Self::DmaBuf { fd, offset: offset + by, address: address + by }
            }
        }
    }

    /// Its address, as used in requests.
    pub(super) fn address(self) -> u64 {
        match self {
            Self::Host(base) => base.as_ptr() as u64,
            Self::DmaBuf { address, .. } => address,
        }
    }
}

/// Registered memory.
#[derive(Debug)]
pub(super) struct Registration {
    raw: NonNull<sys::ibv_mr>,
    domain: Arc<Domain>,
}

// SAFETY: after its making only its keys are read.
unsafe impl Send for Registration {}
// SAFETY: as above.
unsafe impl Sync for Registration {}

impl Registration {
    /// `remote`: what remote hosts may do; none: only this host's own requests use the memory.
    ///
    /// # Safety
    /// `len` bytes at `location` must stay where they are until the registration is dropped, and
    /// whatever the device writes there meanwhile must be expected there.
    pub(super) unsafe fn new(
        domain: &Arc<Domain>,
        location: MemoryLocation,
        len: usize,
        remote: Option<Access>,
    ) -> Result<Self, TransportError> {
        let flags = flags(remote) as i32;
        let base = std::ptr::with_exposed_provenance_mut(location.address() as usize);
        // SAFETY: the range is the caller's promise; the domain lives.
        let by_address = || unsafe { sys::ibv_reg_mr(domain.raw(), base, len, flags) };
        let target = format!("{len} bytes for {}", domain.context().name());
        let raw = match location {
            MemoryLocation::Host(_) => made("ibv_reg_mr", target, by_address())?,
            MemoryLocation::DmaBuf { fd, offset, address } => {
                let pd = domain.raw();
                // SAFETY: as above.
                let raw = unsafe { sys::ibv_reg_dmabuf_mr(pd, offset, len, address, fd, flags) };
                made("ibv_reg_dmabuf_mr", target.as_str(), raw).or_else(|by_buffer| {
                    // If the kernel or the device does not support it, a module of the GPU's driver
                    // may resolve its addresses.
                    let raw = made("ibv_reg_mr, by nvidia-peermem,", target, by_address());
                    raw.map_err(|e| TransportError::Protocol(format!("{by_buffer}; {e}")))
                })?
            }
        };
        Ok(Self { raw, domain: domain.clone() })
    }

    /// Key for this host's own requests (lkey).
    pub(super) fn local_key(&self) -> u32 {
        // SAFETY: registered until it is dropped.
        unsafe { self.raw.as_ref().lkey }
    }

    /// Key for remote hosts' requests (rkey).
    pub(super) fn remote_key(&self) -> u32 {
        // SAFETY: as above.
        unsafe { self.raw.as_ref().rkey }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        if !self.domain.context().is_here() {
            return;
        }
        // SAFETY: made by `Registration::new`; nobody uses its keys here after this.
        let errno = unsafe { sys::ibv_dereg_mr(self.raw.as_ptr()) };
        if errno != 0 {
            tracing::warn!(device = self.domain.context().name(), errno, "ibv_dereg_mr");
        }
    }
}
