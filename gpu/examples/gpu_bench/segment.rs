//! A segment with objects in it: headers in registered host memory, payload in VRAM, and a cache
//! of pages beside it. Whoever uses it acts as the owner.

use crate::Bench;
use nkv_gpu::kernels::{
    Descriptors, KvDims, KvLayout, KvShape, KvStrides, LayoutError, Publish, Span, Wanted,
};
use nkv_gpu::registered::RegisteredHost;
use nkv_gpu::vram::{DeviceRange, Vram};
use nkv_store::layout::{HEADER_BYTES, OWNER_OFF, PUBLISH_OFF, flag, state, word};
use nkv_store::{AnonMemory, Memory, StoreError};
use std::sync::Arc;

const HASH: u64 = 0x1111_2222_3333_4444;
const CHECK: u64 = 0x5555_6666_7777_8888;

/// Headers of a segment.
pub struct Headers {
    /// The host's view.
    pub memory: Arc<AnonMemory>,
    registered: RegisteredHost,
    /// Reads of a header by one that waits: some seconds on a GPU.
    spins: u64,
}

impl Headers {
    /// So many, all zero.
    pub fn new(bench: &Bench, count: u64) -> Result<Self, Box<dyn std::error::Error>> {
        let bytes = (count * HEADER_BYTES).next_multiple_of(4096);
        let memory = Arc::new(AnonMemory::new(bytes)?);
        let registered = RegisteredHost::new(&bench.device, memory.clone())?;
        Ok(Self { memory, registered, spins: bench.either(2_000_000, 200_000) })
    }

    /// Address of a header for kernels.
    pub fn address(&self, slot: u64) -> u64 {
        self.registered.address() + slot * HEADER_BYTES
    }

    /// Writes fields, LIVE and WRITING, as an owner and a producer do before a launch.
    pub fn arm(&self, slot: u64, epoch: u32, bytes: u64) -> Result<(), StoreError> {
        let at = slot * HEADER_BYTES;
        for (offset, word) in [(0, HASH), (16, 0), (24, bytes), (32, CHECK)] {
            self.memory.store(at + offset, word)?;
        }
        self.memory.store(at + OWNER_OFF, word(flag::LIVE, epoch))?;
        self.memory.store(at + PUBLISH_OFF, word(state::WRITING, epoch))
    }

    /// What publishes it.
    pub fn publish(&self, slot: u64, epoch: u32) -> Publish {
        Publish {
            word: self.address(slot) + PUBLISH_OFF,
            expect: word(state::WRITING, epoch),
            ready: word(state::READY, epoch),
        }
    }

    /// What a reader waits for.
    pub fn wanted(&self, slot: u64, epoch: u32, bytes: u64) -> Wanted {
        Wanted {
            header: self.address(slot),
            key_hash: HASH,
            key_check: CHECK,
            epoch,
            payload_base: 0,
            bytes,
            spins: self.spins,
        }
    }
}

fn greatest_divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { greatest_divisor(b, a % b) }
}

/// Pages of one size in VRAM, of which each second is used, in no order.
pub struct Pages {
    /// Its memory.
    pub vram: Arc<Vram>,
    shape: KvShape,
    list: Vec<u32>,
    /// Bytes of one page.
    pub bytes: u64,
}

impl Pages {
    /// `count` pages.
    pub fn new(bench: &Bench, count: u32, bytes: u64) -> Result<Self, Box<dyn std::error::Error>> {
        let vram = Arc::new(Vram::allocate(&bench.device, u64::from(2 * count) * bytes)?);
        let head_bytes = u32::try_from(bytes / 2)?;
        let dims = KvDims { layers: 1, pages: 2 * count, page_tokens: 1, heads: 1, head_bytes };
        let layout = KvLayout::PagedNhd;
        let shape = KvShape::new(layout, dims, KvStrides::contiguous(layout, &dims)?)?;
        // Such a step visits every page once.
        let n = u64::from(count);
        let step = (n * 5 / 8..).find(|step| greatest_divisor(*step, n) == 1).unwrap_or(1);
        let list = (0..n).map(|i| (i * step % n) as u32 * 2);
        Ok(Self { vram, shape, list: list.collect(), bytes })
    }

    /// Copies of all of them into an object.
    pub fn gather(&self, object: u64) -> Result<Descriptors, LayoutError> {
        Descriptors::gather(object, self.vram.address(), &self.shape, &self.list)
    }

    /// Copies of an object into all of them.
    pub fn scatter(&self, object: u64) -> Result<Descriptors, LayoutError> {
        Descriptors::scatter(object, self.vram.address(), &self.shape, &self.list)
    }

    /// Where each lies in `vram`, in the object's order.
    pub fn offsets(&self) -> impl Iterator<Item = u64> {
        self.list.iter().map(|page| u64::from(*page) * self.bytes)
    }

    /// All of it.
    pub fn span(&self) -> Span {
        Span::of(&*self.vram)
    }
}
