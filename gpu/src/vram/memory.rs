//! VRAM as a memory of the store: payloads of a segment whose control words are host memory.

use super::DeviceRange;
use super::lane::Lane;
use super::lanes::Lanes;
use super::span::{Cursor, Span};
use crate::driver::DriverError;
use cudarc::driver::sys::{
    CUflushGPUDirectRDMAWritesScope_enum as Scope, CUflushGPUDirectRDMAWritesTarget_enum as Target,
};
use nkv_store::memory::DmaBuf;
use nkv_store::{Export, Memory, StoreError};
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, OnceLock};

/// Copies to and from it are complete when they return. The CPU has no atomics there.
#[derive(Debug)]
pub struct VramMemory {
    // Dropped before the range that they copy to.
    lanes: Lanes,
    dma_buf: Option<OwnedFd>,
    /// A flush that failed: what was written may be lost, so every later access fails.
    lost: OnceLock<String>,
    range: Arc<dyn DeviceRange>,
}

impl VramMemory {
    /// Memory of all bytes of the range.
    ///
    /// # Errors
    /// Those of the driver, for its first stream and pinned host memory.
    pub fn new(range: Arc<dyn DeviceRange>) -> Result<Self, DriverError> {
        let lanes = Lanes::new(range.device())?;
        let dma_buf = range.dma_buf();
        Ok(Self { lanes, dma_buf, lost: OnceLock::new(), range })
    }

    /// The range itself, for kernels.
    pub fn range(&self) -> &Arc<dyn DeviceRange> {
        &self.range
    }

    /// Runs a copy of `len` bytes at `offset` on a lane of its own.
    fn copy(
        &self,
        what: &'static str,
        (offset, len): (u64, usize),
        copy: impl FnOnce(&Lane, &mut Cursor<'_>) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        StoreError::check_bounds(what, offset, len as u64, self.len())?;
        self.check_not_lost()?;
        if len == 0 {
            return Ok(());
        }
        let span = [Span { address: self.range.address() + offset, bytes: len as u64 }];
        self.lanes.run(|lane| copy(lane, &mut Cursor::new(&span, 0)))
    }

    fn read_bytes(
        &self,
        what: &'static str,
        offset: u64,
        dst: &mut [u8],
    ) -> Result<(), StoreError> {
        let len = dst.len();
        self.copy(what, (offset, len), |lane, span| {
            lane.read(span, len, |at, piece| {
                dst[at as usize..][..piece.len()].copy_from_slice(piece);
                Ok(())
            })
        })
    }

    fn write_bytes(&self, what: &'static str, offset: u64, src: &[u8]) -> Result<(), StoreError> {
        self.copy(what, (offset, src.len()), |lane, span| {
            lane.write(span, src.len(), |at, piece| {
                piece.copy_from_slice(&src[at as usize..][..piece.len()]);
                Ok(())
            })
        })
    }

    /// What RDMA devices wrote before a word that the caller has seen in host memory is seen by
    /// every later copy from here [I4]. Does nothing where the device orders these writes itself.
    /// For a reader, once the word is seen and before it copies; [`Memory::read`] does it.
    ///
    /// # Errors
    /// If the flush failed, now or before.
    pub fn settle_rdma_writes(&self) -> Result<(), StoreError> {
        if let Err(e) = self.flush_rdma_writes() {
            tracing::error!("{e}; no byte of this VRAM is read or written any more");
            let _ = self.lost.set(e.to_string());
        }
        self.check_not_lost()
    }

    fn check_not_lost(&self) -> Result<(), StoreError> {
        self.lost.get().map_or(Ok(()), |why| Err(StoreError::Device(why.clone())))
    }

    fn flush_rdma_writes(&self) -> Result<(), DriverError> {
        let device = self.range.device();
        let attributes = device.attributes();
        if !attributes.needs_flush() || !attributes.host_can_flush() {
            return Ok(());
        }
        // For a scope within the device's own order the call does nothing.
        let scope = match attributes.orders_writes_for_owner() {
            true => Scope::CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_ALL_DEVICES,
            false => Scope::CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER,
        };
        let current = device.enter()?;
        // SAFETY: flushes writes to this device, whose context is current.
        let rc = unsafe {
            (current.api().cuFlushGPUDirectRDMAWrites)(
                Target::CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX,
                scope,
            )
        };
        let about = || format!("for {} bytes of VRAM", self.len());
        current.check("cuFlushGPUDirectRDMAWrites", rc, about)
    }

    fn aligned(offset: u64) -> Result<(), StoreError> {
        if offset.is_multiple_of(8) { Ok(()) } else { Err(StoreError::Misaligned { offset }) }
    }

    fn no_atomics(&self, what: &'static str, offset: u64) -> Result<u64, StoreError> {
        StoreError::check_bounds(what, offset, 8, self.len())?;
        Self::aligned(offset)?;
        Err(StoreError::Unsupported(format!(
            "{what} at offset {offset} of {} bytes of VRAM: the CPU has no atomics there; keep \
             words that it changes in the segment's host memory, or change them in a kernel",
            self.len()
        )))
    }
}

impl Memory for VramMemory {
    fn len(&self) -> u64 {
        self.range.bytes()
    }

    fn export(&self) -> Export {
        Export::Device {
            address: self.range.address(),
            dma_buf: self.dma_buf.as_ref().map(|fd| DmaBuf { fd: fd.as_raw_fd(), offset: 0 }),
            writes_ordered: self.range.device().attributes().orders_writes_for_all(),
        }
    }

    fn host_base(&self) -> Option<NonNull<u8>> {
        None
    }

    fn device_address(&self, offset: u64, len: u64) -> Option<u64> {
        let within = StoreError::check_bounds("address", offset, len, self.len()).is_ok();
        (within && self.lost.get().is_none()).then(|| self.range.address() + offset)
    }

    fn read(&self, offset: u64, dst: &mut [u8]) -> Result<(), StoreError> {
        if !dst.is_empty() {
            self.settle_rdma_writes()?;
        }
        self.read_bytes("read", offset, dst)
    }

    fn write(&self, offset: u64, src: &[u8]) -> Result<(), StoreError> {
        self.write_bytes("write", offset, src)
    }

    fn load(&self, offset: u64) -> Result<u64, StoreError> {
        let mut word = [0; 8];
        StoreError::check_bounds("word", offset, 8, self.len())?;
        Self::aligned(offset)?;
        self.settle_rdma_writes()?;
        self.read_bytes("word", offset, &mut word)?;
        fence(Ordering::Acquire);
        Ok(u64::from_ne_bytes(word))
    }

    fn store(&self, offset: u64, value: u64) -> Result<(), StoreError> {
        StoreError::check_bounds("word", offset, 8, self.len())?;
        Self::aligned(offset)?;
        // Copies that were made before are complete, RDMA writes need not be.
        self.flush();
        self.write_bytes("word", offset, &value.to_ne_bytes())
    }

    fn compare_swap(&self, offset: u64, _: u64, _: u64) -> Result<u64, StoreError> {
        self.no_atomics("compare-and-swap", offset)
    }

    fn fetch_add(&self, offset: u64, _: u64) -> Result<u64, StoreError> {
        self.no_atomics("fetch-and-add", offset)
    }

    /// No stream is waited for: each copy was when it was made.
    fn flush(&self) {
        fence(Ordering::SeqCst);
        // Every later access returns the error.
        let _ = self.settle_rdma_writes();
    }
}
