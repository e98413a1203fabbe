//! The bulk copy engine of sm_90. Copies into shared memory happen at once and report to their
//! mbarrier; copies out of it read at a random time, or when they are waited for. What they write
//! must be ordered by a wait and a proxy fence.

use super::{BARRIER_BYTES, ExecError, Execution};
use crate::buffer::read;
use crate::instr::{Op, Src};

/// An mbarrier for one arrival: the phase in its lowest bit, whether the arrival has come, and the
/// bytes still expected, plus a bias so that copies may report before the arrival.
#[derive(Clone, Copy)]
struct MBarrier(u64);

const ARRIVED: u64 = 2;
const BIAS: u64 = 1 << 40;

impl MBarrier {
    fn expect(self, bytes: u64) -> MBarrier {
        MBarrier(self.0 | ARRIVED).add(bytes).turn()
    }

    fn copied(self, bytes: u64) -> MBarrier {
        MBarrier(self.0.wrapping_sub(bytes << 2)).turn()
    }

    fn add(self, bytes: u64) -> MBarrier {
        MBarrier(self.0.wrapping_add(bytes << 2))
    }

    fn turn(self) -> MBarrier {
        if self.0 & ARRIVED != 0 && self.0 >> 2 == BIAS {
            return MBarrier((BIAS << 2) | (self.0 & 1 ^ 1));
        }
        self
    }
}

/// A copy out of shared memory that has not read it yet.
#[derive(Debug)]
pub(super) struct Unread {
    to: u64,
    from: u64,
    bytes: u64,
}

impl Execution<'_> {
    fn shared_range(
        &self,
        at: Src,
        thread: usize,
        bytes: usize,
        text: &str,
    ) -> Result<u64, ExecError> {
        let at = self.value(thread, at);
        if at.saturating_add(bytes as u64) <= self.shared_bytes() {
            return Ok(at);
        }
        Err(ExecError::Access { at, text: text.to_owned() })
    }

    fn change(&mut self, thread: usize, at: u64, change: impl FnOnce(MBarrier) -> MBarrier) {
        let old = MBarrier(self.shared_load(thread, at, BARRIER_BYTES as u8));
        self.shared_store(thread, at, change(old).0, BARRIER_BYTES as u8);
    }

    /// # Safety
    ///
    /// As for `run`.
    pub(super) unsafe fn bulk(
        &mut self,
        thread: usize,
        op: &Op,
        text: &str,
    ) -> Result<(), ExecError> {
        match op {
            Op::BarrierInit { at } => {
                let at = self.shared_range(*at, thread, BARRIER_BYTES, text)?;
                self.shared_store(thread, at, BIAS << 2, BARRIER_BYTES as u8);
            }
            Op::BarrierExpect { at, bytes } => {
                let at = self.shared_range(*at, thread, BARRIER_BYTES, text)?;
                let bytes = self.value(thread, *bytes);
                self.change(thread, at, |barrier| barrier.expect(bytes));
            }
            Op::BarrierTry { dst, at, parity } => {
                let at = self.shared_range(*at, thread, BARRIER_BYTES, text)?;
                let phase = self.shared_load(thread, at, BARRIER_BYTES as u8) & 1;
                let passed = phase != self.value(thread, *parity) & 1;
                self.threads[thread].set(*dst, u64::from(passed));
            }
            Op::BulkToShared { to, from, bytes, barrier } => {
                let bytes = self.value(thread, *bytes);
                let to = self.shared_range(*to, thread, bytes as usize, text)?;
                let barrier = self.shared_range(*barrier, thread, BARRIER_BYTES, text)?;
                let from = self.global(*from, thread, bytes, text)?;
                for i in (0..bytes).step_by(8) {
                    // SAFETY: by `run`'s contract; `global` has checked the alignment.
                    let value = unsafe { read(from + i, 8) };
                    self.shared_store(thread, to + i, value, 8);
                }
                // Without a proxy fence the engine may not see that the mbarrier was initialised.
                if self.memory.fenced[thread] || self.rng.below(2) == 0 {
                    self.change(thread, barrier, |barrier| barrier.copied(bytes));
                }
            }
            Op::BulkToGlobal { to, from, bytes } => {
                let bytes = self.value(thread, *bytes);
                let from = self.shared_range(*from, thread, bytes as usize, text)?;
                let to = self.global(*to, thread, bytes, text)?;
                self.unread[thread].push_back(Unread { to, from, bytes });
            }
            Op::BulkWait { left, written } => {
                self.bulk_read(thread, *left);
                if *written {
                    self.memory.bulk_wait(thread);
                }
            }
            Op::ProxyFence => self.memory.proxy_fence(thread),
            _ => {}
        }
        Ok(())
    }

    /// Copies of the thread read shared memory, the oldest first, until `left` have still to.
    pub(super) fn bulk_read(&mut self, thread: usize, left: usize) {
        while self.unread[thread].len() > left {
            let Some(Unread { to, from, bytes }) = self.unread[thread].pop_front() else { return };
            for i in (0..bytes).step_by(8) {
                let value = self.shared_load(thread, from + i, 8);
                self.memory.bulk_store(thread, to + i, value, 8);
            }
        }
    }

    /// An address of the bulk engine: 16-byte aligned, as are its sizes.
    fn global(&self, at: Src, thread: usize, bytes: u64, text: &str) -> Result<u64, ExecError> {
        let at = self.value(thread, at);
        if at != 0 && at.is_multiple_of(16) && bytes.is_multiple_of(16) {
            return Ok(at);
        }
        Err(ExecError::Access { at, text: text.to_owned() })
    }
}
