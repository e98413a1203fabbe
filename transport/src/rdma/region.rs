//! Protection domains and registered memory. Registered memory stays in place, and the device may
//! read and write it, until the registration is dropped.

use super::context::Context;
use super::error::made;
use crate::error::TransportError;
use crate::fabric::Access;
use nkv_store::memory::DmaBuf;
use nkv_store::{Export, Memory};
use rdma_sys as sys;
use rdma_sys::ibv_access_flags as flag;
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
        // The kernel leaves this out where the device does not have it.
        Some(Access::Payload) => here | read | write | flag::IBV_ACCESS_RELAXED_ORDERING,
        // Its answer shows that earlier writes have landed, so nothing overtakes anything.
        Some(Access::PayloadReadBack) => here | read | write,
    }
    .0
}

/// Memory to register.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MemoryLocation {
    /// Memory of this process.
    Host(NonNull<u8>),
    /// Memory of another device (VRAM): its address there, and the dma-buf that it is a part of.
    Device { address: u64, dma_buf: Option<DmaBuf>, writes_ordered: bool },
}

impl MemoryLocation {
    /// The location of `len` bytes of a segment; none if no device could access them, or if they
    /// lie in two memories.
    pub(super) fn of(memory: &dyn Memory, offset: u64, len: u64) -> Option<Self> {
        let (host, end) = (memory.host_len(), offset.checked_add(len)?);
        if end > memory.len() {
            return None;
        }
        if end <= host {
            let first = memory.host_base()?.as_ptr().wrapping_add(offset as usize);
            return NonNull::new(first).map(Self::Host);
        }
        let by = offset.checked_sub(host)?;
        match memory.payload().unwrap_or(memory).export() {
            Export::Device { address, dma_buf, writes_ordered } => {
                let dma_buf = dma_buf.map(|b| DmaBuf { offset: b.offset + by, ..b });
                Some(Self::Device { address: address + by, dma_buf, writes_ordered })
            }
            Export::Private | Export::Shm { .. } => None,
        }
    }

    /// Whether what RDMA devices write there may land after what they write to host memory later.
    pub(super) fn needs_reading_back(self) -> bool {
        matches!(self, Self::Device { writes_ordered: false, .. })
    }

    /// Its address, as used in requests.
    pub(super) fn address(self) -> u64 {
        match self {
            Self::Host(base) => base.as_ptr() as u64,
            Self::Device { address, .. } => address,
        }
    }
}

/// The calls that register memory, each null with an errno if it fails. Tests have their own.
trait RegisterCalls {
    fn by_address(&self, address: u64, len: usize, flags: u32) -> *mut sys::ibv_mr;
    fn by_dma_buf(&self, of: DmaBuf, address: u64, len: usize, flags: u32) -> *mut sys::ibv_mr;
}

/// Those of libibverbs.
struct Libibverbs<'a>(&'a Domain);

impl RegisterCalls for Libibverbs<'_> {
    fn by_address(&self, address: u64, len: usize, flags: u32) -> *mut sys::ibv_mr {
        let base = std::ptr::with_exposed_provenance_mut(address as usize);
        // SAFETY: the domain lives. That the range may be accessed is the promise of the caller of
        // `Registration::new`; the kernel refuses a range that is none.
        unsafe { sys::ibv_reg_mr(self.0.raw(), base, len, flags as i32) }
    }

    fn by_dma_buf(&self, of: DmaBuf, address: u64, len: usize, flags: u32) -> *mut sys::ibv_mr {
        let DmaBuf { fd, offset } = of;
        // SAFETY: as above.
        unsafe { sys::ibv_reg_dmabuf_mr(self.0.raw(), offset, len, address, fd, flags as i32) }
    }
}

/// Registers memory: of a device by its dma-buf, else by its address, which a module of the GPU's
/// driver then resolves. `device`: the RDMA device's name.
fn register(
    calls: &dyn RegisterCalls,
    device: &str,
    location: MemoryLocation,
    len: usize,
    remote: Option<Access>,
) -> Result<NonNull<sys::ibv_mr>, TransportError> {
    let (flags, address) = (flags(remote), location.address());
    let target = format!("{len} bytes for {device}");
    let MemoryLocation::Device { dma_buf, .. } = location else {
        return made("ibv_reg_mr", target, calls.by_address(address, len, flags));
    };
    let by_dma_buf = match dma_buf {
        None => Err(format!(
            "the GPU's driver exports no dma-buf of {len} bytes (Linux 5.12 and NVIDIA's open \
             kernel modules from 515 on do)"
        )),
        Some(of) => {
            let raw = calls.by_dma_buf(of, address, len, flags);
            made("ibv_reg_dmabuf_mr", target.as_str(), raw).map_err(|e| e.to_string())
        }
    };
    by_dma_buf.or_else(|by_dma_buf| {
        tracing::debug!(by_dma_buf, "VRAM is registered by its address");
        let raw = calls.by_address(address, len, flags);
        made("ibv_reg_mr, by nvidia-peermem,", target, raw).map_err(|by_address| {
            TransportError::Protocol(format!(
                "VRAM cannot be registered: {by_dma_buf}; and {by_address}"
            ))
        })
    })
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
        let raw = register(&Libibverbs(domain), domain.context().name(), location, len, remote)?;
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

#[cfg(test)]
pub(super) mod tests;
