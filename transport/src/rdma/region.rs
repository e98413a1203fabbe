//! Protection domains and registered memory. What is registered stays where it is, and may be read and
//! written by the device, until the registration is dropped.

use super::context::Context;
use super::error::failed;
use crate::error::TransportError;
use rdma_sys as sys;
use rdma_sys::ibv_access_flags as flag;
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

/// What belongs together on a device: pairs may use the memory of their own domain only.
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
        let raw = NonNull::new(unsafe { sys::ibv_alloc_pd(context.raw()) });
        let raw =
            raw.ok_or_else(|| failed("ibv_alloc_pd", context.name(), io::Error::last_os_error()))?;
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
        let errno = unsafe { sys::ibv_dealloc_pd(self.raw()) };
        if errno != 0 {
            tracing::debug!(errno, "ibv_dealloc_pd");
        }
    }
}

/// Who may do what with registered memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rights {
    /// This host's own requests only.
    Here,
    /// Other hosts read, write and count, each access in its order.
    Words,
    /// Other hosts read and write, and one write may overtake another on its way to memory [I5].
    Payload,
}

impl Rights {
    fn flags(self) -> u32 {
        let remote = flag::IBV_ACCESS_REMOTE_READ | flag::IBV_ACCESS_REMOTE_WRITE;
        let all = flag::IBV_ACCESS_LOCAL_WRITE;
        match self {
            Self::Here => all,
            Self::Words => all | remote | flag::IBV_ACCESS_REMOTE_ATOMIC,
            Self::Payload => all | remote | flag::IBV_ACCESS_RELAXED_ORDERING,
        }
        .0
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
    /// # Safety
    /// `len` bytes at `base` must stay mapped until the registration is dropped, and whatever the device
    /// writes there meanwhile must be expected there.
    pub(super) unsafe fn new(
        domain: &Arc<Domain>,
        base: NonNull<u8>,
        len: usize,
        rights: Rights,
    ) -> Result<Self, TransportError> {
        let flags = rights.flags();
        // SAFETY: the range is the caller's promise; the domain lives.
        let raw = unsafe { sys::ibv_reg_mr(domain.raw(), base.as_ptr().cast(), len, flags as i32) };
        let raw = NonNull::new(raw).ok_or_else(|| {
            let target = format!("{len} bytes for {}", domain.context().name());
            failed("ibv_reg_mr", target, io::Error::last_os_error())
        })?;
        Ok(Self { raw, domain: domain.clone() })
    }

    /// For this host's own requests.
    pub(super) fn local_key(&self) -> u32 {
        // SAFETY: registered until it is dropped.
        unsafe { self.raw.as_ref().lkey }
    }

    /// For other hosts' requests.
    pub(super) fn remote_key(&self) -> u32 {
        // SAFETY: as above.
        unsafe { self.raw.as_ref().rkey }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // SAFETY: made by `Registration::new`; nobody uses its keys here after this.
        let errno = unsafe { sys::ibv_dereg_mr(self.raw.as_ptr()) };
        if errno != 0 {
            tracing::warn!(device = self.domain.context().name(), errno, "ibv_dereg_mr");
        }
    }
}
