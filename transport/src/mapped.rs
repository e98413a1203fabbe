//! Verbs over memory that this process can access: the common part of `local`, `shm` and the tcp
//! agent. It runs them in order, each with the memory order it needs; permission was checked
//! before. No slice is ever made over shared bytes, since other processes write them meanwhile.

use crate::error::TransportError;
use crate::verbs::{Alive, Op, check_batch};
use nkv_store::memory::HostRegion;
use nkv_store::{Memory, Stripes};
use std::fmt;
use std::sync::Arc;

/// One segment as this process accesses it.
#[derive(Debug, Clone)]
pub(crate) struct Mapped {
    memory: Arc<dyn Memory>,
    // Present if the CPU can access the memory; VRAM has none.
    host: Option<HostRegion>,
    stripes: Stripes,
}

impl Mapped {
    pub(crate) fn new(memory: Arc<dyn Memory>) -> Self {
        // SAFETY: `host_base` is valid for `len` bytes while the memory lives, which `memory`
        // beside it ensures; mappings are page aligned.
        let host = memory.host_base().map(|b| unsafe { HostRegion::new(b, memory.len()) });
        Self { memory, host, stripes: Stripes::NONE }
    }

    /// The same, with large reads and writes of a batch done by several threads.
    pub(crate) fn with_stripes(self, stripes: Stripes) -> Self {
        Self { stripes, ..self }
    }

    pub(crate) fn len(&self) -> u64 {
        self.memory.len()
    }

    /// The address of `len` bytes at `offset`, if the CPU can access them and they are in bounds.
    pub(crate) fn at(&self, offset: u64, len: usize) -> Option<*mut u8> {
        let host = self.host?;
        let end = offset.checked_add(len as u64)?;
        // SAFETY: offset + len is inside the region.
        (end <= host.len()).then(|| unsafe { host.base().as_ptr().add(offset as usize) })
    }

    /// Copies out, as [`Memory::read`].
    pub(crate) fn copy_out(&self, offset: u64, dst: &mut [u8]) -> Result<(), TransportError> {
        Ok(self.memory.read(offset, dst)?)
    }

    /// Copies in, as [`Memory::write`].
    pub(crate) fn copy_in(&self, offset: u64, src: &[u8]) -> Result<(), TransportError> {
        Ok(self.memory.write(offset, src)?)
    }

    pub(crate) fn store(&self, offset: u64, value: u64) -> Result<(), TransportError> {
        Ok(self.memory.store(offset, value)?)
    }

    pub(crate) fn fetch_add(&self, offset: u64, add: u64) -> Result<u64, TransportError> {
        Ok(self.memory.fetch_add(offset, add)?)
    }

    pub(crate) fn compare_swap(
        &self,
        offset: u64,
        expect: u64,
        new: u64,
    ) -> Result<u64, TransportError> {
        Ok(self.memory.compare_swap(offset, expect, new)?)
    }

    pub(crate) fn flush(&self) {
        self.memory.flush();
    }

    /// Executes a whole batch strictly in order, as [`crate::Verbs::post`] requires.
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
            match op.stripes(&self.stripes) {
                1 => op.run(self.memory.as_ref())?,
                n => op.run_striped(self.memory.as_ref(), n)?,
            }
        }
        // Meanwhile the owner may have died, and its memory may be reused or stale.
        alive.check(who)
    }
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
