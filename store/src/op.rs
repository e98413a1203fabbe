//! One-sided verbs as values: an ordered batch that a producer or a reader executes on a segment,
//! mapped or remote. A transport carries them; on mapped memory they run here. It decides nothing.

mod device;
mod part;

use crate::error::StoreError;
use crate::memory::Memory;
use crate::stripes::{Stripes, stripe_bytes};
use crate::threads::side_by_side;
pub use device::{DeviceBuffer, through_host};
pub use part::{Fill, Source, Target};

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
    /// Copies out into memory of a device.
    ReadToDevice {
        /// Where to read.
        offset: u64,
        /// Filled when the batch succeeds; unspecified after an error.
        dst: DeviceBuffer<'a>,
    },
    /// Copies in from memory of a device.
    WriteFromDevice {
        /// Where to write.
        offset: u64,
        /// The bytes.
        src: DeviceBuffer<'a>,
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
            Op::ReadToDevice { offset, dst: buffer }
            | Op::WriteFromDevice { offset, src: buffer } => (*offset, buffer.len() as u64),
            Op::Store { offset, .. }
            | Op::FetchAdd { offset, .. }
            | Op::CompareSwap { offset, .. } => (*offset, 8),
            Op::Flush => (0, 0),
        }
    }

    /// True for verbs that need a token: writes and atomics.
    pub fn changes(&self) -> bool {
        !matches!(self, Op::Read { .. } | Op::ReadToDevice { .. } | Op::Flush)
    }

    /// True for verbs on one aligned word.
    pub fn is_word(&self) -> bool {
        matches!(self, Op::Store { .. } | Op::FetchAdd { .. } | Op::CompareSwap { .. })
    }

    /// The word that an atomic found.
    pub fn result(&self) -> Option<u64> {
        match self {
            Op::FetchAdd { old, .. } | Op::CompareSwap { old, .. } => Some(*old),
            _ => None,
        }
    }

    /// The caller's buffer, if it lies in a device.
    fn device_buffer(&self) -> Option<&DeviceBuffer<'_>> {
        match self {
            Op::ReadToDevice { dst: buffer, .. } | Op::WriteFromDevice { src: buffer, .. } => {
                Some(buffer)
            }
            _ => None,
        }
    }

    /// Whether the caller's buffer lies in a device.
    pub fn has_device_buffer(&self) -> bool {
        self.device_buffer().is_some()
    }

    /// The same verb for `host` in place of a device buffer.
    fn on_host<'b>(&'b mut self, host: &'b mut [u8]) -> Op<'b> {
        match self {
            Op::ReadToDevice { offset, .. } => Op::Read { offset: *offset, dst: host },
            Op::WriteFromDevice { offset, .. } => Op::Write { offset: *offset, src: host },
            Op::Read { offset, dst } => Op::Read { offset: *offset, dst },
            Op::Write { offset, src } => Op::Write { offset: *offset, src },
            Op::Store { offset, value } => Op::Store { offset: *offset, value: *value },
            Op::FetchAdd { offset, add, old } => {
                Op::FetchAdd { offset: *offset, add: *add, old: *old }
            }
            Op::CompareSwap { offset, expect, new, old } => {
                Op::CompareSwap { offset: *offset, expect: *expect, new: *new, old: *old }
            }
            Op::Flush => Op::Flush,
        }
    }

    /// Number of stripes into which it is to be cut; 1 for all but reads and writes of host memory.
    pub fn stripes(&self, by: &Stripes) -> usize {
        match self {
            Op::Read { .. } | Op::Write { .. } => by.of(self.range().1),
            _ => 1,
        }
    }

    /// Cuts a read or a write into at most `n` stripes, in order, which together cover the same
    /// bytes; empty for any other verb.
    pub fn cut(&mut self, n: usize) -> Vec<Op<'_>> {
        let place = |i: usize, each: usize, offset: &u64| *offset + (i * each) as u64;
        match self {
            Op::Read { offset, dst } => {
                let each = stripe_bytes(dst.len(), n);
                let stripes = dst.chunks_mut(each).enumerate();
                stripes.map(|(i, dst)| Op::Read { offset: place(i, each, offset), dst }).collect()
            }
            Op::Write { offset, src } => {
                let each = stripe_bytes(src.len(), n);
                let stripes = src.chunks(each).enumerate();
                stripes.map(|(i, src)| Op::Write { offset: place(i, each, offset), src }).collect()
            }
            _ => Vec::new(),
        }
    }

    /// Executes a read or a write with `n` threads, including the calling one. When it returns, all
    /// of them have ended and what each wrote is in memory, so a later store is ordered after it
    /// [I4].
    pub fn run_striped(&mut self, memory: &dyn Memory, n: usize) -> Result<(), StoreError> {
        let helpers = std::iter::repeat_n((), n.saturating_sub(1));
        side_by_side("nkv-copy", self.cut(n), (), helpers, |(), mut part| part.run(memory))
    }

    /// Executes the verb on this memory. A batch is its verbs run one after the other [I4].
    #[inline]
    pub fn run<M: Memory + ?Sized>(&mut self, memory: &M) -> Result<(), StoreError> {
        match self {
            Op::Read { offset, dst } => memory.read(*offset, dst),
            Op::Write { offset, src } => memory.write(*offset, src),
            Op::ReadToDevice { offset, dst } => dst.read_from(memory, *offset),
            Op::WriteFromDevice { offset, src } => src.write_to(memory, *offset),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_and_writes_alone_are_cut_by_their_length() {
        let by = Stripes::new(3, 0);
        let (mut large, small) = (vec![0; 4 * 4096], vec![0; 4096]);
        assert_eq!(Op::Write { offset: 8, src: &large }.stripes(&by), 3);
        assert_eq!(Op::Read { offset: 8, dst: &mut large }.stripes(&by), 3);
        assert_eq!(Op::Write { offset: 8, src: &small }.stripes(&by), 1);
        assert_eq!(Op::Store { offset: 8, value: 1 }.stripes(&by), 1);
        assert_eq!(Op::Flush.stripes(&by), 1);
    }

    #[test]
    fn stripes_are_the_whole_in_order_without_gap_or_overlap() {
        let bytes: Vec<u8> = (0..100_000u32).map(|i| (i / 7) as u8).collect();
        for (len, n) in [(100_000, 4), (4096, 4), (4097, 2), (1, 16), (0, 3), (65_536, 1)] {
            let mut op = Op::Write { offset: 13, src: &bytes[..len] };
            let stripes = op.cut(n);
            assert!(stripes.len() <= n);
            let mut at = 0;
            for stripe in &stripes {
                let Op::Write { offset, src } = stripe else { panic!("{stripe:?}") };
                assert_eq!(*offset, 13 + at as u64);
                assert!(*src == &bytes[at..at + src.len()]);
                at += src.len();
            }
            assert_eq!(at, len);
        }
        let mut dst = vec![0; 10_000];
        let mut op = Op::Read { offset: 5, dst: &mut dst };
        let ranges: Vec<_> = op.cut(2).iter().map(Op::range).collect();
        assert_eq!(ranges, [(5, 8192), (5 + 8192, 10_000 - 8192)]);
        assert!(Op::Flush.cut(4).is_empty());
        assert_eq!(Op::Store { offset: 0, value: 1 }.stripes(&Stripes::new(4, 0)), 1);
    }
}
