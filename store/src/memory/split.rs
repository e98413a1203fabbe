//! A segment whose payload lies in a memory of its own, such as VRAM, while the control words stay
//! in host memory.

use super::{Export, HostMemory, Memory};
use crate::error::StoreError;
use crate::words;
use std::ptr::NonNull;
use std::sync::Arc;

/// Two memories behind one offset space: control words first, then payloads. The border is where
/// `SegmentLayout::payloads` begins.
#[derive(Debug)]
pub struct SplitMemory {
    control: HostMemory,
    payload: Arc<dyn Memory>,
}

/// The part of an access that lies in one of the two memories: offset there, and range of the
/// caller's bytes.
type Part = (u64, std::ops::Range<usize>);

impl SplitMemory {
    /// None if the CPU cannot access the control words: owners and readers poll them.
    pub fn new(control: Arc<dyn Memory>, payload: Arc<dyn Memory>) -> Option<Self> {
        Some(Self { control: HostMemory::of(control)?, payload })
    }

    fn border(&self) -> u64 {
        self.control.words().len()
    }

    /// The memory in which a word is to be changed, and its offset there. Before a control word
    /// changes, the payload bytes written earlier become visible: each memory orders its own
    /// accesses alone [I4].
    fn changed_word(&self, offset: u64) -> (&dyn Memory, u64) {
        if offset < self.border() {
            self.payload.flush();
        }
        self.of_word(offset)
    }

    /// The memory that a word lies in, and its offset there.
    fn of_word(&self, offset: u64) -> (&dyn Memory, u64) {
        match offset.checked_sub(self.border()) {
            Some(beyond) => (&*self.payload, beyond),
            None => (&**self.control.memory(), offset),
        }
    }

    /// The parts of `len` bytes at an offset in control words and in payloads; out of bounds if
    /// they exceed both.
    fn parts(&self, offset: u64, len: usize) -> Result<(Part, Part), StoreError> {
        StoreError::check_bounds("access", offset, len as u64, self.len())?;
        let within = (self.border().saturating_sub(offset) as usize).min(len);
        let beyond = offset.max(self.border()) - self.border();
        Ok(((offset, 0..within), (beyond, within..len)))
    }
}

impl Memory for SplitMemory {
    fn len(&self) -> u64 {
        self.border() + self.payload.len()
    }

    /// Two memories have no one name or descriptor: each is exported by itself.
    fn export(&self) -> Export {
        Export::Private
    }

    fn host_base(&self) -> Option<NonNull<u8>> {
        Some(self.control.words().base())
    }

    fn host_len(&self) -> u64 {
        self.border()
    }

    fn device_address(&self, offset: u64, len: u64) -> Option<u64> {
        self.payload.device_address(offset.checked_sub(self.border())?, len)
    }

    fn payload(&self) -> Option<&dyn Memory> {
        Some(&*self.payload)
    }

    fn read(&self, offset: u64, dst: &mut [u8]) -> Result<(), StoreError> {
        let ((at, control), (beyond, payload)) = self.parts(offset, dst.len())?;
        if !control.is_empty() {
            words::read(self.control.words(), at, &mut dst[control])?;
        }
        if payload.is_empty() { Ok(()) } else { self.payload.read(beyond, &mut dst[payload]) }
    }

    fn write(&self, offset: u64, src: &[u8]) -> Result<(), StoreError> {
        let ((at, control), (beyond, payload)) = self.parts(offset, src.len())?;
        if !control.is_empty() {
            words::write(self.control.words(), at, &src[control])?;
        }
        if payload.is_empty() { Ok(()) } else { self.payload.write(beyond, &src[payload]) }
    }

    fn load(&self, offset: u64) -> Result<u64, StoreError> {
        let (memory, at) = self.of_word(offset);
        memory.load(at)
    }

    fn store(&self, offset: u64, value: u64) -> Result<(), StoreError> {
        let (memory, at) = self.changed_word(offset);
        memory.store(at, value)
    }

    fn compare_swap(&self, offset: u64, expect: u64, new: u64) -> Result<u64, StoreError> {
        let (memory, at) = self.changed_word(offset);
        memory.compare_swap(at, expect, new)
    }

    fn fetch_add(&self, offset: u64, add: u64) -> Result<u64, StoreError> {
        let (memory, at) = self.changed_word(offset);
        memory.fetch_add(at, add)
    }

    fn flush(&self) {
        self.payload.flush();
        self.control.memory().flush();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::AnonMemory;
    use std::sync::Mutex;

    /// Bytes become visible at a flush alone, as behind a DMA engine.
    #[derive(Debug)]
    struct Late(AnonMemory, Mutex<Vec<(u64, Vec<u8>)>>);

    impl crate::testkit::MemoryDouble for Late {
        fn inner(&self) -> &dyn Memory {
            &self.0
        }
        fn write(&self, offset: u64, src: &[u8]) -> Result<(), StoreError> {
            self.1.lock().unwrap().push((offset, src.to_vec()));
            Ok(())
        }
        fn flush(&self) {
            let written = std::mem::take(&mut *self.1.lock().unwrap());
            written.iter().for_each(|(at, bytes)| self.0.write(*at, bytes).unwrap());
        }
    }

    #[test]
    fn i4_payload_is_visible_before_a_control_word_that_is_changed_after_it() {
        type Change = fn(&SplitMemory) -> Result<u64, StoreError>;
        let changes: [Change; 3] =
            [|m| m.store(8, 1).map(|()| 0), |m| m.compare_swap(8, 0, 1), |m| m.fetch_add(8, 1)];
        for change in changes {
            let control = Arc::new(AnonMemory::new(4096).unwrap());
            let payload = Late(AnonMemory::new(4096).unwrap(), Mutex::default());
            let split = SplitMemory::new(control, Arc::new(payload)).unwrap();
            split.write(4096 + 64, b"page").unwrap();
            change(&split).unwrap();
            let mut seen = [0; 4];
            split.read(4096 + 64, &mut seen).unwrap();
            assert_eq!((&seen, split.load(8).unwrap()), (b"page", 1));
        }
    }
}
