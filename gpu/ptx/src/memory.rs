//! The memory of one launch. A weak or relaxed store waits in its thread's buffer and leaves it at
//! a random time, in any order between addresses. A barrier of a block merges the buffers of its
//! threads, a release of scope gpu moves them into a buffer of the device, and one of scope sys
//! into memory. What other blocks released reaches memory with the release of a thread that
//! acquired it from the word by which it was released.
//!
//! A weak load may return what the memory was before the launch, until its thread acquired, at
//! scope sys, a word that has changed since. A strong load of the same memory at scope gpu may
//! return what an earlier strong load returned, and one at any scope what the word was at the last
//! barrier, if nothing was acquired since. All other strong accesses go to memory itself, in the
//! order of the program: a store that a GPU executes early is not modelled.

use crate::buffer::{Buffer, Pending, change, change32, read, write};
use crate::instr::{AtomicOp, Order, Scope};
use crate::rng::Rng;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicU64};

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

/// What one thread knows. Numbers are those of the device's buffer, see [`Pending::entered`].
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Seen {
    /// No weak load is stale.
    fresh: bool,
    /// Stores of other blocks that it acquired.
    device: u64,
    /// What an acquiring fence would add: fresh, device.
    observed: (bool, u64),
    /// What its relaxed stores release since its last fence.
    fenced: u64,
}

#[derive(Debug)]
pub(crate) struct Memory {
    block_threads: usize,
    threads: Vec<Buffer>,
    blocks: Vec<Buffer>,
    device: Buffer,
    /// Bulk stores of each thread: not waited for, and waited for but not fenced.
    bulk: Vec<[Buffer; 2]>,
    /// Whether each thread has made a fence of the proxy.
    pub fenced: Vec<bool>,
    /// Words as atomic instructions of scope cta left them, which only their block knows.
    within: HashMap<(usize, u64), AtomicU64>,
    seen: Vec<Seen>,
    entered: u64,
    /// What was released by each word.
    released: HashMap<u64, u64>,
    /// Words of others as strong loads returned them; loads of scope gpu may find them again.
    cached: HashMap<u64, u64>,
    /// The same words as each block's last barrier found them: a load behind it may execute as
    /// early as that, until something acquires.
    early: Vec<HashMap<u64, u64>>,
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
            fenced: vec![false; grid * block],
            within: HashMap::new(),
            seen: vec![Seen::default(); grid * block],
            entered: 0,
            released: HashMap::new(),
            cached: HashMap::new(),
            early: vec![HashMap::new(); grid],
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
            unsafe { self.drain(thread, at, width) };
        }
        if let (false, false, Some(stale)) = (order.strong, self.seen[thread].fresh, &self.stale)
            && let Some(old) = stale.read(at, width)
            && rng.next().is_multiple_of(2)
        {
            return old;
        }
        if !order.strong {
            // SAFETY: by this function's contract.
            return unsafe { read(at, width) };
        }
        let theirs = self.stale.as_ref().is_some_and(|stale| stale.read(at, width).is_some());
        let cached = self.cached.get(&at).filter(|_| order.scope < Scope::Sys);
        let cached = cached.filter(|_| rng.next().is_multiple_of(2));
        let early = || self.early[block].get(&at).filter(|_| rng.next().is_multiple_of(2));
        let value = match cached.or_else(early) {
            // What follows may be as early as this load.
            Some(value) => *value,
            None => {
                // SAFETY: by this function's contract.
                let value = unsafe { read(at, width) };
                if theirs && width == 8 {
                    self.cached.insert(at, value);
                }
                if order.acquire && order.scope >= Scope::Gpu {
                    self.early[block].clear();
                }
                value
            }
        };
        self.observe(thread, (at, width), value, order);
        value
    }

    /// # Safety
    ///
    /// `width` bytes at `at` are valid for writes, and every buffered address.
    pub unsafe fn store(&mut self, thread: usize, at: u64, value: u64, width: u8, order: Order) {
        if !order.release {
            self.threads[thread].push(Pending { at, value, width, entered: 0, block: 0 });
            return;
        }
        // SAFETY: by this function's contract.
        unsafe {
            self.release(thread, order.scope);
            self.drain(thread, at, width);
            write(at, value, width);
        }
        self.released.insert(at, self.entered);
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
            self.drain(thread, at, width);
            if order.scope == Scope::Cta {
                let block = self.block(thread);
                let word = self.within.entry((block, at)).or_insert_with(|| read(at, width).into());
                change(word, op, a, b)
            } else if width == 4 {
                change32(&*(at as *const AtomicU32), op, a as u32, b as u32)
            } else {
                change(&*(at as *const AtomicU64), op, a, b)
            }
        };
        if order.acquire && order.scope >= Scope::Gpu {
            let block = self.block(thread);
            self.early[block].clear();
        }
        self.observe(thread, (at, width), old, order);
        let by = if order.release { self.entered } else { self.seen[thread].fenced };
        let released = self.released.entry(at).or_default();
        *released = by.max(*released);
        old
    }

    /// # Safety
    ///
    /// Every buffered address is valid for writes.
    pub unsafe fn fence(&mut self, thread: usize, order: Order) {
        // SAFETY: by this function's contract.
        unsafe { self.release(thread, order.scope) };
        let entered = self.entered;
        let block = self.block(thread);
        let seen = &mut self.seen[thread];
        if order.scope >= Scope::Gpu {
            self.early[block].clear();
            seen.device = seen.device.max(seen.observed.1);
            seen.fenced = entered;
        }
        seen.fresh |= order.scope == Scope::Sys && seen.observed.0;
    }

    /// A strong read returned `value`.
    fn observe(&mut self, thread: usize, (at, width): (u64, u8), value: u64, order: Order) {
        let old = self.stale.as_ref().and_then(|stale| stale.read(at, width));
        let news = old.is_some_and(|old| old != value);
        let released = self.released.get(&at).copied().unwrap_or_default();
        let seen = &mut self.seen[thread];
        seen.observed = (seen.observed.0 || news, seen.observed.1.max(released));
        if order.acquire && order.scope >= Scope::Gpu {
            seen.device = seen.device.max(released);
        }
        seen.fresh |= order.acquire && order.scope == Scope::Sys && news;
    }

    unsafe fn release(&mut self, thread: usize, scope: Scope) {
        let block = self.block(thread);
        let mut own = std::mem::take(&mut self.blocks[block]);
        own.append(&mut self.threads[thread]);
        match scope {
            Scope::Cta => self.blocks[block].append(&mut own),
            Scope::Gpu => {
                self.entered += 1;
                for store in &mut own.stores {
                    (store.entered, store.block) = (self.entered, block);
                }
                self.device.append(&mut own);
            }
            Scope::Sys => {
                let acquired = self.seen[thread].device;
                self.device.stores.retain(|store| {
                    let known = store.entered <= acquired || store.block == block;
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
    ///
    /// # Safety
    ///
    /// Every address that was loaded is still valid for reads.
    pub unsafe fn barrier(&mut self, block: usize) {
        // SAFETY: by this function's contract.
        let now = |at: &u64| (*at, unsafe { read(*at, 8) });
        self.early[block] = self.cached.keys().map(now).collect();
        let threads = block * self.block_threads..(block + 1) * self.block_threads;
        let mut all = Seen::default();
        for thread in threads.clone() {
            self.blocks[block].append(&mut self.threads[thread]);
            all.fresh |= self.seen[thread].fresh;
            all.device = all.device.max(self.seen[thread].device);
        }
        for seen in &mut self.seen[threads] {
            (seen.fresh, seen.device) = (all.fresh, all.device);
        }
    }

    /// A store of the bulk copy engine, which only a wait and then a proxy fence order.
    pub fn bulk_store(&mut self, thread: usize, at: u64, value: u64, width: u8) {
        self.bulk[thread][0].push(Pending { at, value, width, entered: 0, block: 0 });
    }

    pub fn bulk_wait(&mut self, thread: usize) {
        let [posted, waited] = &mut self.bulk[thread];
        waited.append(posted);
    }

    pub fn proxy_fence(&mut self, thread: usize) {
        self.threads[thread].append(&mut self.bulk[thread][1]);
        self.fenced[thread] = true;
    }

    /// One buffered store of `current` or of some thread becomes visible, after older ones to its
    /// address.
    ///
    /// # Safety
    ///
    /// Every buffered address is valid for writes.
    pub unsafe fn drain_one(&mut self, current: usize, rng: &mut Rng) {
        let other = rng.below(self.threads.len());
        let thread = if rng.below(2) == 0 { current } else { other };
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
        unsafe { self.drain(thread, at, width) };
    }

    /// What the thread knows of these bytes becomes visible, oldest first.
    unsafe fn drain(&mut self, thread: usize, at: u64, width: u8) {
        let block = self.block(thread);
        // SAFETY: by the caller's contract.
        unsafe {
            self.device.drain(at, width);
            self.blocks[block].drain(at, width);
            self.threads[thread].drain(at, width);
            self.bulk[thread].iter_mut().rev().for_each(|buffer| buffer.drain(at, width));
        }
    }

    /// After the last instruction: one more store becomes visible, in no order between addresses.
    /// False if there is none.
    ///
    /// # Safety
    ///
    /// Every buffered address is valid for writes.
    pub unsafe fn drain_end(&mut self, rng: &mut Rng) -> bool {
        for thread in 0..self.threads.len() {
            let mut own = std::mem::take(&mut self.threads[thread]);
            let [mut posted, mut waited] = std::mem::take(&mut self.bulk[thread]);
            let block = self.block(thread);
            for buffer in [&mut waited, &mut posted] {
                self.blocks[block].append(buffer);
            }
            self.blocks[block].append(&mut own);
        }
        let count = |buffer: &Buffer| buffer.stores.len();
        let total = count(&self.device) + self.blocks.iter().map(count).sum::<usize>();
        if total == 0 {
            return false;
        }
        let mut pick = rng.below(total);
        let mut at = None;
        for buffer in self.blocks.iter().chain([&self.device]) {
            if pick < buffer.stores.len() {
                at = Some((buffer.stores[pick].at, buffer.stores[pick].width));
                break;
            }
            pick -= buffer.stores.len();
        }
        if let Some((at, width)) = at {
            // SAFETY: by this function's contract.
            unsafe {
                self.device.drain(at, width);
                self.blocks.iter_mut().for_each(|buffer| buffer.drain(at, width));
            }
        }
        true
    }
}
