//! Stores that are not visible yet, and accesses to memory itself.

use crate::instr::AtomicOp;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering::SeqCst};

#[derive(Debug, Clone, Copy)]
pub(crate) struct Pending {
    pub at: u64,
    pub value: u64,
    pub width: u8,
    /// When it entered the device's buffer, and the block that released it.
    pub entered: u64,
    pub block: usize,
}

impl Pending {
    fn overlaps(&self, at: u64, width: u8) -> bool {
        self.at < at + u64::from(width) && at < self.at + u64::from(self.width)
    }
}

/// Stores not yet visible, oldest first, and a range that contains their addresses.
#[derive(Debug, Default)]
pub(crate) struct Buffer {
    pub stores: Vec<Pending>,
    low: u64,
    high: u64,
}

impl Buffer {
    pub fn push(&mut self, store: Pending) {
        if self.stores.is_empty() {
            (self.low, self.high) = (u64::MAX, 0);
        }
        self.low = self.low.min(store.at);
        self.high = self.high.max(store.at + u64::from(store.width));
        self.stores.push(store);
    }

    pub fn append(&mut self, from: &mut Buffer) {
        from.stores.drain(..).for_each(|store| self.push(store));
    }

    fn touches(&self, at: u64, width: u8) -> bool {
        !self.stores.is_empty() && at < self.high && self.low < at + u64::from(width)
    }

    pub fn latest(&self, at: u64, width: u8) -> Option<Pending> {
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
    pub unsafe fn drain(&mut self, at: u64, width: u8) {
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
    pub unsafe fn flush(&mut self) {
        for store in self.stores.drain(..) {
            // SAFETY: by this function's contract.
            unsafe { write(store.at, store.value, store.width) };
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

/// # Safety
///
/// `width` bytes at `at` are valid for writes and aligned.
pub(crate) unsafe fn write(at: u64, value: u64, width: u8) {
    // SAFETY: by this function's contract.
    unsafe {
        match width {
            1 => (*(at as *const AtomicU8)).store(value as u8, SeqCst),
            2 => (*(at as *const AtomicU16)).store(value as u16, SeqCst),
            4 => (*(at as *const AtomicU32)).store(value as u32, SeqCst),
            _ => (*(at as *const AtomicU64)).store(value, SeqCst),
        }
    }
}

/// An atomic instruction; returns the old value.
pub(crate) fn change(word: &AtomicU64, op: AtomicOp, a: u64, b: u64) -> u64 {
    match op {
        AtomicOp::Add => word.fetch_add(a, SeqCst),
        AtomicOp::Exchange => word.swap(a, SeqCst),
        AtomicOp::CompareExchange => {
            word.compare_exchange(a, b, SeqCst, SeqCst).unwrap_or_else(|old| old)
        }
        AtomicOp::Max(signed) => {
            let max =
                |old: u64| if signed { (old as i64).max(a as i64) as u64 } else { old.max(a) };
            word.fetch_update(SeqCst, SeqCst, |old| Some(max(old))).unwrap_or_else(|old| old)
        }
    }
}

pub(crate) fn change32(word: &AtomicU32, op: AtomicOp, a: u32, b: u32) -> u64 {
    u64::from(match op {
        AtomicOp::Add => word.fetch_add(a, SeqCst),
        AtomicOp::Exchange => word.swap(a, SeqCst),
        AtomicOp::CompareExchange => {
            word.compare_exchange(a, b, SeqCst, SeqCst).unwrap_or_else(|old| old)
        }
        AtomicOp::Max(signed) => {
            let max =
                |old: u32| if signed { (old as i32).max(a as i32) as u32 } else { old.max(a) };
            word.fetch_update(SeqCst, SeqCst, |old| Some(max(old))).unwrap_or_else(|old| old)
        }
    })
}
