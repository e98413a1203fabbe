//! The memory of one launch. A weak store waits in its thread's buffer and leaves it at a random
//! time, in any order between addresses. A barrier of a block merges the buffers of its threads, a
//! release of scope gpu moves them into a buffer of the device, and one of scope sys into memory;
//! what other blocks released reaches memory with the release of a thread that acquired it. A weak
//! load may return what the memory was before the launch, until its thread acquired at scope sys.
//! Strong accesses and atomic instructions go to memory itself.

use crate::instr::{AtomicOp, Order, Scope};
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering::SeqCst};

/// What a range of memory contained before the launch. Weak loads of it may return this.
#[derive(Debug, Clone)]
pub struct Stale {
    /// Address of its first byte.
    pub base: u64,
    /// The old bytes.
    pub bytes: Vec<u8>,
}

impl Stale {
    fn read(&self, at: u64, width: u8) -> Option<u64> {
        let start = usize::try_from(at.checked_sub(self.base)?).ok()?;
        let bytes = self.bytes.get(start..start.checked_add(usize::from(width))?)?;
        let mut value = [0; 8];
        value[..bytes.len()].copy_from_slice(bytes);
        Some(u64::from_le_bytes(value))
    }
}

/// xorshift64: the same seed schedules the same way on every machine.
#[derive(Debug)]
pub(crate) struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Rng {
        // Neighbouring seeds would begin alike, and 0 would stay 0.
        let mut rng = Rng(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
        for _ in 0..8 {
            rng.next();
        }
        rng
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }
}

#[derive(Debug, Clone, Copy)]
struct Pending {
    at: u64,
    value: u64,
    width: u8,
    /// When it entered the device's buffer.
    entered: u64,
}

impl Pending {
    fn overlaps(&self, at: u64, width: u8) -> bool {
        self.at < at + u64::from(width) && at < self.at + u64::from(self.width)
    }
}

/// Stores not yet visible, oldest first, and a range that contains their addresses.
#[derive(Debug, Default)]
struct Buffer {
    stores: Vec<Pending>,
    low: u64,
    high: u64,
}

impl Buffer {
    fn push(&mut self, store: Pending) {
        if self.stores.is_empty() {
            (self.low, self.high) = (u64::MAX, 0);
        }
        self.low = self.low.min(store.at);
        self.high = self.high.max(store.at + u64::from(store.width));
        self.stores.push(store);
    }

    fn append(&mut self, from: &mut Buffer) {
        from.stores.drain(..).for_each(|store| self.push(store));
    }

    fn touches(&self, at: u64, width: u8) -> bool {
        !self.stores.is_empty() && at < self.high && self.low < at + u64::from(width)
    }

    fn latest(&self, at: u64, width: u8) -> Option<Pending> {
        if !self.touches(at, width) {
            return None;
        }
        self.stores.iter().rev().find(|store| store.overlaps(at, width)).copied()
    }

    /// Makes the stores visible that overlap, oldest first.
    ///
    /// # Safety
    ///
    /// The addresses are valid for writes.
    unsafe fn settle(&mut self, at: u64, width: u8) {
        if !self.touches(at, width) {
            return;
        }
        self.stores.retain(|store| {
            let now = store.overlaps(at, width);
            if now {
                // SAFETY: by this function's contract.
                unsafe { write(store.at, store.value, store.width) };
            }
            !now
        });
    }

    /// # Safety
    ///
    /// The addresses are valid for writes.
    unsafe fn flush(&mut self) {
        for store in self.stores.drain(..) {
            // SAFETY: by this function's contract.
            unsafe { write(store.at, store.value, store.width) };
        }
    }
}

/// What one thread's acquires have shown it.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Seen {
    /// Acquired at scope sys: no weak load is stale.
    fresh: bool,
    /// Stores of other blocks that were released before its last acquire.
    device: u64,
}

#[derive(Debug)]
pub(crate) struct Memory {
    block_threads: usize,
    threads: Vec<Buffer>,
    blocks: Vec<Buffer>,
    device: Buffer,
    /// Bulk stores of each thread: not waited for, and waited for but not fenced.
    bulk: Vec<[Buffer; 2]>,
    seen: Vec<Seen>,
    entered: u64,
    stale: Option<Stale>,
    pub shared: Vec<Vec<u8>>,
}

impl Memory {
    pub fn new(grid: usize, block: usize, shared: usize, stale: Option<Stale>) -> Memory {
        let buffers = |n: usize| (0..n).map(|_| Buffer::default()).collect::<Vec<_>>();
        Memory {
            block_threads: block,
            threads: buffers(grid * block),
            blocks: buffers(grid),
            device: Buffer::default(),
            bulk: (0..grid * block).map(|_| Default::default()).collect(),
            seen: vec![Seen::default(); grid * block],
            entered: 0,
            stale,
            shared: vec![vec![0; shared]; grid],
        }
    }

    fn block(&self, thread: usize) -> usize {
        thread / self.block_threads
    }

    /// # Safety
    ///
    /// `width` bytes at `at` are valid for reads, and every buffered address for writes.
    pub unsafe fn load(
        &mut self,
        thread: usize,
        (at, width): (u64, u8),
        order: Order,
        rng: &mut Rng,
    ) -> u64 {
        let block = self.block(thread);
        let own = self.threads[thread].latest(at, width);
        let own = own.or_else(|| self.blocks[block].latest(at, width));
        if let Some(store) = own.or_else(|| self.device.latest(at, width)) {
            if store.at == at && store.width == width {
                return store.value;
            }
            // Of another width: visible now, which is always permitted.
            // SAFETY: by this function's contract.
            unsafe { self.settle(thread, at, width) };
        }
        if let (false, false, Some(stale)) = (order.strong, self.seen[thread].fresh, &self.stale)
            && let Some(old) = stale.read(at, width)
            && rng.next().is_multiple_of(2)
        {
            return old;
        }
        // SAFETY: by this function's contract.
        let value = unsafe { read(at, width) };
        if order.acquire {
            self.acquire(thread, order.scope);
        }
        value
    }

    /// # Safety
    ///
    /// `width` bytes at `at` are valid for writes, and every buffered address.
    pub unsafe fn store(&mut self, thread: usize, at: u64, value: u64, width: u8, order: Order) {
        if !order.strong {
            self.threads[thread].push(Pending { at, value, width, entered: 0 });
            return;
        }
        // SAFETY: by this function's contract.
        unsafe {
            if order.release {
                self.release(thread, order.scope);
            }
            self.settle(thread, at, width);
            write(at, value, width);
        }
    }

    /// Returns the old value.
    ///
    /// # Safety
    ///
    /// As for `store`; `at` is aligned to `width`, which is 4 or 8.
    pub unsafe fn atomic(
        &mut self,
        thread: usize,
        (at, width): (u64, u8),
        order: Order,
        (op, a, b): (AtomicOp, u64, u64),
    ) -> u64 {
        // SAFETY: by this function's contract.
        let old = unsafe {
            if order.release {
                self.release(thread, order.scope);
            }
            self.settle(thread, at, width);
            if width == 4 {
                let word = &*(at as *const AtomicU32);
                let (a, b) = (a as u32, b as u32);
                u64::from(match op {
                    AtomicOp::Add => word.fetch_add(a, SeqCst),
                    AtomicOp::Exchange => word.swap(a, SeqCst),
                    AtomicOp::CompareExchange => {
                        word.compare_exchange(a, b, SeqCst, SeqCst).unwrap_or_else(|old| old)
                    }
                })
            } else {
                let word = &*(at as *const AtomicU64);
                match op {
                    AtomicOp::Add => word.fetch_add(a, SeqCst),
                    AtomicOp::Exchange => word.swap(a, SeqCst),
                    AtomicOp::CompareExchange => {
                        word.compare_exchange(a, b, SeqCst, SeqCst).unwrap_or_else(|old| old)
                    }
                }
            }
        };
        if order.acquire {
            self.acquire(thread, order.scope);
        }
        old
    }

    /// # Safety
    ///
    /// Every buffered address is valid for writes.
    pub unsafe fn fence(&mut self, thread: usize, order: Order) {
        // SAFETY: by this function's contract.
        unsafe { self.release(thread, order.scope) };
        self.acquire(thread, order.scope);
    }

    fn acquire(&mut self, thread: usize, scope: Scope) {
        let seen = &mut self.seen[thread];
        if scope >= Scope::Gpu {
            seen.device = self.entered;
        }
        seen.fresh |= scope == Scope::Sys;
    }

    unsafe fn release(&mut self, thread: usize, scope: Scope) {
        let block = self.block(thread);
        let mut own = std::mem::take(&mut self.blocks[block]);
        own.append(&mut self.threads[thread]);
        match scope {
            Scope::Cta => self.blocks[block].append(&mut own),
            Scope::Gpu => {
                self.entered += 1;
                own.stores.iter_mut().for_each(|store| store.entered = self.entered);
                self.device.append(&mut own);
            }
            Scope::Sys => {
                let acquired = self.seen[thread].device;
                self.device.stores.retain(|store| {
                    let known = store.entered <= acquired;
                    if known {
                        // SAFETY: by the caller's contract.
                        unsafe { write(store.at, store.value, store.width) };
                    }
                    !known
                });
                // SAFETY: by the caller's contract.
                unsafe { own.flush() };
            }
        }
    }

    /// The barrier of a block: its threads know what each of them knew.
    pub fn barrier(&mut self, block: usize) {
        let threads = block * self.block_threads..(block + 1) * self.block_threads;
        let mut all = Seen::default();
        for thread in threads.clone() {
            self.blocks[block].append(&mut self.threads[thread]);
            all.fresh |= self.seen[thread].fresh;
            all.device = all.device.max(self.seen[thread].device);
        }
        self.seen[threads].fill(all);
    }

    /// A store of the bulk copy engine, which only a wait and then a proxy fence order.
    pub fn bulk_store(&mut self, thread: usize, at: u64, value: u64, width: u8) {
        self.bulk[thread][0].push(Pending { at, value, width, entered: 0 });
    }

    pub fn bulk_wait(&mut self, thread: usize) {
        let [posted, waited] = &mut self.bulk[thread];
        waited.append(posted);
    }

    pub fn proxy_fence(&mut self, thread: usize) {
        self.threads[thread].append(&mut self.bulk[thread][1]);
    }

    /// One buffered store of some thread becomes visible, after older ones to its address.
    ///
    /// # Safety
    ///
    /// Every buffered address is valid for writes.
    pub unsafe fn drain_one(&mut self, rng: &mut Rng) {
        let thread = rng.below(self.threads.len());
        let block = self.block(thread);
        let buffer = match rng.below(8) {
            0 => &self.blocks[block],
            1 => &self.device,
            2 => &self.bulk[thread][1],
            3 => &self.bulk[thread][0],
            _ => &self.threads[thread],
        };
        if buffer.stores.is_empty() {
            return;
        }
        let Pending { at, width, .. } = buffer.stores[rng.below(buffer.stores.len())];
        // SAFETY: by this function's contract.
        unsafe { self.settle(thread, at, width) };
    }

    /// What the thread knows of these bytes becomes visible, oldest first.
    unsafe fn settle(&mut self, thread: usize, at: u64, width: u8) {
        let block = self.block(thread);
        // SAFETY: by the caller's contract.
        unsafe {
            self.device.settle(at, width);
            self.blocks[block].settle(at, width);
            self.threads[thread].settle(at, width);
            self.bulk[thread].iter_mut().rev().for_each(|buffer| buffer.settle(at, width));
        }
    }

    /// The end of the launch: everything is visible.
    ///
    /// # Safety
    ///
    /// Every buffered address is valid for writes.
    pub unsafe fn finish(&mut self) {
        // SAFETY: by this function's contract.
        unsafe {
            self.device.flush();
            self.blocks.iter_mut().for_each(|buffer| buffer.flush());
            self.threads.iter_mut().for_each(|buffer| buffer.flush());
            self.bulk.iter_mut().flatten().rev().for_each(|buffer| buffer.flush());
        }
    }
}

/// # Safety
///
/// `width` bytes at `at` are valid for reads and aligned.
pub(crate) unsafe fn read(at: u64, width: u8) -> u64 {
    // SAFETY: by this function's contract; other processes access the bytes with atomics too.
    unsafe {
        match width {
            1 => u64::from((*(at as *const AtomicU8)).load(SeqCst)),
            2 => u64::from((*(at as *const AtomicU16)).load(SeqCst)),
            4 => u64::from((*(at as *const AtomicU32)).load(SeqCst)),
            _ => (*(at as *const AtomicU64)).load(SeqCst),
        }
    }
}

unsafe fn write(at: u64, value: u64, width: u8) {
    // SAFETY: by the caller's contract the bytes are valid for writes and aligned.
    unsafe {
        match width {
            1 => (*(at as *const AtomicU8)).store(value as u8, SeqCst),
            2 => (*(at as *const AtomicU16)).store(value as u16, SeqCst),
            4 => (*(at as *const AtomicU32)).store(value as u32, SeqCst),
            _ => (*(at as *const AtomicU64)).store(value, SeqCst),
        }
    }
}
