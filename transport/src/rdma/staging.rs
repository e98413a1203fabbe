//! Registered buffers between callers' memory, which the device cannot access, and the device. All
//! posts of a process in one domain share them; their number is bounded, and a post that finds none
//! waits for one. Also the callers' memory that is registered.

use super::lane::LIMIT;
use super::region::{Domain, MemoryLocation, Registration};
use crate::error::TransportError;
use nkv_store::clock::{BootClock, Clock};
use nkv_store::{AnonMemory, Memory};
use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

/// Bytes of one buffer.
pub(super) const BUFFER_BYTES: usize = 1 << 20;
/// Buffers of one domain at most.
const MAX_BUFFERS: usize = 32;

/// A buffer that the device may read and write.
#[derive(Debug)]
pub(super) struct Buffer {
    // Declared first: dropped before the memory.
    registration: Registration,
    base: NonNull<u8>,
    _memory: AnonMemory,
}

// SAFETY: an address in memory that the value owns; one holder at a time uses it.
unsafe impl Send for Buffer {}

impl Buffer {
    fn new(domain: &Arc<Domain>) -> Result<Self, TransportError> {
        let memory = AnonMemory::new(BUFFER_BYTES as u64)?;
        let base = memory.host_base().ok_or_else(|| {
            TransportError::Protocol("anonymous memory without an address".to_string())
        })?;
        // SAFETY: `_memory` keeps the range mapped for longer than the registration, and nobody
        // else looks at it.
        let registration =
            unsafe { Registration::new(domain, MemoryLocation::Host(base), BUFFER_BYTES, None) }?;
        Ok(Self { registration, base, _memory: memory })
    }

    /// The address of byte `at`, which must be inside.
    pub(super) fn address(&self, at: usize) -> *mut u8 {
        assert!(at < BUFFER_BYTES, "{at} is outside a buffer");
        // SAFETY: inside the memory that the value owns.
        unsafe { self.base.as_ptr().add(at) }
    }

    pub(super) fn key(&self) -> u32 {
        self.registration.local_key()
    }
}

#[derive(Debug)]
struct FreeBuffers {
    free: Vec<Buffer>,
    made: usize,
    // Fewer than planned if the limit of locked memory permits no more.
    most: usize,
}

/// All buffers of a domain.
#[derive(Debug)]
pub(super) struct Staging {
    domain: Arc<Domain>,
    stock: Mutex<FreeBuffers>,
    given_back: Condvar,
    // Callers' registered memory: start address -> (end address, registration). Of two that begin
    // at one address the later is used; one within a longer one hides the rest of that.
    known: RwLock<BTreeMap<usize, (usize, Arc<Registration>)>>,
    // Something was registered once; else lookups are skipped.
    any_known: AtomicBool,
}

/// Registration of a caller's memory, until it is dropped; an operation in flight keeps it longer.
#[derive(Debug)]
pub(super) struct Known {
    staging: Arc<Staging>,
    begin: usize,
}

impl Drop for Known {
    fn drop(&mut self) {
        let known = self.staging.known.write();
        known.unwrap_or_else(PoisonError::into_inner).remove(&self.begin);
    }
}

impl Staging {
    pub(super) fn new(domain: &Arc<Domain>) -> Arc<Self> {
        Arc::new(Self {
            domain: domain.clone(),
            stock: Mutex::new(FreeBuffers { free: Vec::new(), made: 0, most: MAX_BUFFERS }),
            given_back: Condvar::new(),
            known: RwLock::default(),
            any_known: AtomicBool::new(false),
        })
    }

    /// Registers a caller's memory with the device.
    ///
    /// # Safety
    /// It must stay mapped until what is returned is dropped.
    pub(super) unsafe fn register(
        self: &Arc<Self>,
        base: NonNull<u8>,
        len: usize,
    ) -> Result<Known, TransportError> {
        // SAFETY: mapped for longer than the registration, by the caller's promise; the device
        // touches it only in operations that borrow it.
        let registration =
            unsafe { Registration::new(&self.domain, MemoryLocation::Host(base), len, None) }?;
        let begin = base.as_ptr() as usize;
        let entry = (begin.saturating_add(len), Arc::new(registration));
        self.known.write().unwrap_or_else(PoisonError::into_inner).insert(begin, entry);
        self.any_known.store(true, Ordering::Release);
        Ok(Known { staging: self.clone(), begin })
    }

    /// The registration of callers' memory. Who keeps it may use its key, also if the caller ends
    /// it meanwhile.
    pub(super) fn known(&self, at: *const u8, len: usize) -> Option<Arc<Registration>> {
        if !self.any_known.load(Ordering::Acquire) {
            return None;
        }
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        let (_, (end, registration)) = known.range(..=at as usize).next_back()?;
        (at as usize + len <= *end).then(|| registration.clone())
    }

    /// Name of the device that uses these buffers.
    pub(super) fn device(&self) -> &str {
        self.domain.context().name()
    }

    fn lock(&self) -> MutexGuard<'_, FreeBuffers> {
        self.stock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A buffer, if one is free or can be created.
    pub(super) fn try_take(self: &Arc<Self>) -> Result<Option<Lease>, TransportError> {
        let mut stock = self.lock();
        if let Some(buffer) = stock.free.pop() {
            return Ok(Some(Lease { buffer: Some(buffer), staging: self.clone() }));
        }
        if stock.made >= stock.most {
            return Ok(None);
        }
        stock.made += 1;
        drop(stock);
        let error = match Buffer::new(&self.domain) {
            Ok(buffer) => return Ok(Some(Lease { buffer: Some(buffer), staging: self.clone() })),
            Err(error) => error,
        };
        let mut stock = self.lock();
        stock.made -= 1;
        if stock.made == 0 {
            return Err(error);
        }
        stock.most = stock.made;
        tracing::warn!(%error, buffers = stock.made, "cannot register more buffers");
        Ok(None)
    }

    /// A buffer; fails if none is returned by `until_ns` or within [`LIMIT`]. Only for callers that
    /// hold none: callers that hold some and wait for more could wait for each other.
    pub(super) fn take(self: &Arc<Self>, until_ns: u64) -> Result<Lease, TransportError> {
        let until_ns = until_ns.min(BootClock.now_ns().saturating_add(LIMIT.as_nanos() as u64));
        loop {
            if let Some(lease) = self.try_take()? {
                return Ok(lease);
            }
            let stock = self.lock();
            if !stock.free.is_empty() {
                continue;
            }
            let left_ns = until_ns.saturating_sub(BootClock.now_ns());
            if left_ns == 0 {
                return Err(TransportError::Timeout(format!(
                    "no registered buffer of {MAX_BUFFERS} came free within {} ms",
                    LIMIT.as_millis()
                )));
            }
            let left = Duration::from_nanos(left_ns);
            drop(self.given_back.wait_timeout(stock, left));
        }
    }
}

/// A buffer that is returned when it is dropped. Drop it only after the device is done with it.
#[derive(Debug)]
pub(super) struct Lease {
    buffer: Option<Buffer>,
    staging: Arc<Staging>,
}

impl std::ops::Deref for Lease {
    type Target = Buffer;

    fn deref(&self) -> &Buffer {
        match &self.buffer {
            Some(buffer) => buffer,
            None => unreachable!("taken by its drop only"),
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some(buffer) = self.buffer.take() {
            self.staging.lock().free.push(buffer);
            self.staging.given_back.notify_one();
        }
    }
}
