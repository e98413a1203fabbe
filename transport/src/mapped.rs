//! Verbs over memory that this process can touch: what `local`, `shm` and the tcp agent have in
//! common. It moves bytes and words and orders them; who may do so was decided before. No slice is
//! ever made over shared bytes: others write them meanwhile.

use crate::error::TransportError;
use crate::verbs::{Alive, Op, check_batch};
use nkv_store::Memory;
use nkv_store::memory::HostRegion;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

/// Aligned copies up to this length are done word by word, each one atomic access: headers and
/// ring records are never seen with half a word changed [I1].
const WORDWISE_BYTES: usize = 64;

/// One segment as this process reaches it.
#[derive(Debug, Clone)]
pub(crate) struct Mapped {
    memory: Arc<dyn Memory>,
    // Present where the CPU may touch the memory; VRAM has none.
    host: Option<HostRegion>,
}

impl Mapped {
    pub(crate) fn new(memory: Arc<dyn Memory>) -> Self {
        // SAFETY: `host_base` is valid for `len` bytes while the memory lives, which `memory`
        // beside it ensures; mappings are page aligned.
        let host = memory.host_base().map(|b| unsafe { HostRegion::new(b, memory.len()) });
        Self { memory, host }
    }

    pub(crate) fn len(&self) -> u64 {
        self.memory.len()
    }

    /// The bytes at `offset` by address, if the CPU may touch them and `len` of them are there.
    pub(crate) fn at(&self, offset: u64, len: usize) -> Option<*mut u8> {
        let host = self.host?;
        let end = offset.checked_add(len as u64)?;
        // SAFETY: offset + len is inside the region.
        (end <= host.len()).then(|| unsafe { host.base().as_ptr().add(offset as usize) })
    }

    /// Copies out. What was read before it is not newer than what it reads [I7].
    pub(crate) fn copy_out(&self, offset: u64, dst: &mut [u8]) -> Result<(), TransportError> {
        if wordwise(offset, dst.len()) {
            for (i, word) in dst.chunks_exact_mut(8).enumerate() {
                word.copy_from_slice(&self.load(offset + 8 * i as u64)?.to_ne_bytes());
            }
            return Ok(());
        }
        match &self.host {
            Some(h) => h.read(offset, dst)?,
            None => self.memory.read(offset, dst)?,
        }
        // The header is read again after the payload [I7]: nothing later moves up before this.
        fence(Ordering::Acquire);
        Ok(())
    }

    /// Copies in. Whatever word is stored later is seen only with these bytes [I4].
    pub(crate) fn copy_in(&self, offset: u64, src: &[u8]) -> Result<(), TransportError> {
        // Nor is any of them seen before a word stored earlier.
        fence(Ordering::Release);
        if wordwise(offset, src.len()) {
            for (i, word) in src.chunks_exact(8).enumerate() {
                let mut bytes = [0; 8];
                bytes.copy_from_slice(word);
                self.store(offset + 8 * i as u64, u64::from_ne_bytes(bytes))?;
            }
            return Ok(());
        }
        // Large copies stream and end with a store fence of their own [I4].
        match &self.host {
            Some(h) => h.write(offset, src)?,
            None => self.memory.write(offset, src)?,
        }
        Ok(())
    }

    pub(crate) fn load(&self, offset: u64) -> Result<u64, TransportError> {
        Ok(match &self.host {
            Some(h) => h.load(offset)?,
            None => self.memory.load(offset)?,
        })
    }

    pub(crate) fn store(&self, offset: u64, value: u64) -> Result<(), TransportError> {
        match &self.host {
            Some(h) => h.store(offset, value)?,
            None => self.memory.store(offset, value)?,
        }
        Ok(())
    }

    pub(crate) fn fetch_add(&self, offset: u64, add: u64) -> Result<u64, TransportError> {
        Ok(match &self.host {
            Some(h) => h.fetch_add(offset, add)?,
            None => self.memory.fetch_add(offset, add)?,
        })
    }

    pub(crate) fn compare_swap(
        &self,
        offset: u64,
        expect: u64,
        new: u64,
    ) -> Result<u64, TransportError> {
        Ok(match &self.host {
            Some(h) => h.compare_swap(offset, expect, new)?,
            None => self.memory.compare_swap(offset, expect, new)?,
        })
    }

    fn execute(&self, op: &mut Op<'_>) -> Result<(), TransportError> {
        match op {
            Op::Read { offset, dst } => self.copy_out(*offset, dst),
            Op::Write { offset, src } => self.copy_in(*offset, src),
            Op::Store { offset, value } => self.store(*offset, *value),
            Op::FetchAdd { offset, add, old } => {
                self.fetch_add(*offset, *add).map(|found| *old = found)
            }
            Op::CompareSwap { offset, expect, new, old } => {
                self.compare_swap(*offset, *expect, *new).map(|found| *old = found)
            }
            Op::Flush => {
                fence(Ordering::SeqCst);
                Ok(())
            }
        }
    }

    /// A whole batch, strictly in order, as [`crate::Verbs::post`] promises.
    pub(crate) fn post(
        &self,
        token: u64,
        ops: &mut [Op<'_>],
        alive: &Alive,
        who: &dyn fmt::Display,
    ) -> Result<(), TransportError> {
        alive.check(who)?;
        check_batch(ops, token, self.len())?;
        for op in ops {
            self.execute(op)?;
        }
        // The owner may have died, and its memory be reused or stale, while we worked.
        alive.check(who)
    }
}

fn wordwise(offset: u64, len: usize) -> bool {
    len <= WORDWISE_BYTES && len.is_multiple_of(8) && offset.is_multiple_of(8)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nkv_store::AnonMemory;
    use nkv_store::streaming::STREAM_FROM_BYTES;

    #[test]
    fn copies_of_any_length_and_alignment_arrive_whole_and_touch_nothing_else() {
        const LEN: usize = 300 << 10;
        let m = Mapped::new(Arc::new(AnonMemory::new(LEN as u64).unwrap()));
        let src: Vec<u8> =
            (0..LEN as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        for len in [
            0,
            1,
            7,
            8,
            16,
            64,
            72,
            4096,
            STREAM_FROM_BYTES - 1,
            STREAM_FROM_BYTES,
            STREAM_FROM_BYTES + 77,
        ] {
            for offset in [0u64, 1, 8, 13, 63, 4095] {
                for shift in [0, 3] {
                    m.copy_in(0, &vec![0xee; LEN]).unwrap();
                    let src = &src[shift..shift + len];
                    m.copy_in(offset, src).unwrap();
                    let mut all = vec![0; LEN];
                    m.copy_out(0, &mut all).unwrap();
                    let (o, end) = (offset as usize, offset as usize + len);
                    assert!(&all[o..end] == src, "{len} at {offset}");
                    assert!(all[..o].iter().chain(&all[end..]).all(|b| *b == 0xee));
                }
            }
        }
        assert!(m.copy_in(LEN as u64 - 8, &[0; 9]).is_err());
        assert!(m.copy_out(u64::MAX, &mut [0; 64]).is_err());
        assert!(m.at(1, LEN).is_none() && m.at(u64::MAX, 2).is_none());
    }
}
