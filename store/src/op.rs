//! One-sided verbs as values: what a producer or a reader asks of a segment, near or far, in order.
//! A transport carries them; over memory that is at hand they run here. It decides nothing.

use crate::error::StoreError;
use crate::memory::Memory;

/// One verb of a batch. Offsets are bytes from the start of the segment.
#[derive(Debug)]
pub enum Op<'a> {
    /// Copies `dst.len()` bytes out. Aligned 8-byte reads are one atomic load (acquire) [I1].
    Read {
        /// Where to read.
        offset: u64,
        /// Filled when the batch succeeds; unspecified after an error.
        dst: &'a mut [u8],
    },
    /// Copies `src` in. Aligned 8-byte writes are one atomic store (release) [I1].
    Write {
        /// Where to write.
        offset: u64,
        /// The bytes.
        src: &'a [u8],
    },
    /// Stores an aligned word with release order.
    Store {
        /// Where, a multiple of 8.
        offset: u64,
        /// The word.
        value: u64,
    },
    /// Adds to an aligned word.
    FetchAdd {
        /// Where, a multiple of 8.
        offset: u64,
        /// What to add.
        add: u64,
        /// Result: the word before.
        old: u64,
    },
    /// Replaces an aligned word if it equals `expect`.
    CompareSwap {
        /// Where, a multiple of 8.
        offset: u64,
        /// The word that must be found.
        expect: u64,
        /// Its replacement.
        new: u64,
        /// Result: the word found; the swap was done iff it equals `expect`.
        old: u64,
    },
    /// Everything before it in the batch has landed before anything after it starts (full fence).
    Flush,
}

impl Op<'_> {
    /// Offset and length in bytes of what it touches.
    pub fn range(&self) -> (u64, u64) {
        match self {
            Op::Read { offset, dst } => (*offset, dst.len() as u64),
            Op::Write { offset, src } => (*offset, src.len() as u64),
            Op::Store { offset, .. }
            | Op::FetchAdd { offset, .. }
            | Op::CompareSwap { offset, .. } => (*offset, 8),
            Op::Flush => (0, 0),
        }
    }

    /// True for what needs a token: writes and atomics.
    pub fn changes(&self) -> bool {
        !matches!(self, Op::Read { .. } | Op::Flush)
    }

    /// True for verbs on one aligned word.
    pub fn is_word(&self) -> bool {
        matches!(self, Op::Store { .. } | Op::FetchAdd { .. } | Op::CompareSwap { .. })
    }

    /// Does it, here and now. A batch is its verbs run one after the other [I4].
    #[inline]
    pub fn run<M: Memory + ?Sized>(&mut self, memory: &M) -> Result<(), StoreError> {
        match self {
            Op::Read { offset, dst } => memory.read(*offset, dst),
            Op::Write { offset, src } => memory.write(*offset, src),
            Op::Store { offset, value } => memory.store(*offset, *value),
            Op::FetchAdd { offset, add, old } => {
                memory.fetch_add(*offset, *add).map(|found| *old = found)
            }
            Op::CompareSwap { offset, expect, new, old } => {
                memory.compare_swap(*offset, *expect, *new).map(|found| *old = found)
            }
            Op::Flush => {
                memory.flush();
                Ok(())
            }
        }
    }
}
