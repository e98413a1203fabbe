//! The caller's buffer of a verb when it lies in the memory of a device, such as VRAM. A transport
//! that cannot reach it goes through host memory.

use super::Op;
use crate::error::StoreError;
use crate::memory::{DeviceMemory, HostRegion, Memory, in_pieces};

/// A range of a memory that need not be readable by loads.
#[derive(Debug, Clone, Copy)]
pub struct DeviceBuffer<'a> {
    memory: &'a dyn DeviceMemory,
    offset: u64,
    len: usize,
}

impl<'a> DeviceBuffer<'a> {
    /// `len` bytes at `offset`.
    ///
    /// # Errors
    /// `OutOfBounds` if the memory ends before.
    pub fn new(memory: &'a dyn DeviceMemory, offset: u64, len: usize) -> Result<Self, StoreError> {
        StoreError::check_bounds("device buffer", offset, len as u64, memory.len())?;
        Ok(Self { memory, offset, len })
    }

    /// All of a memory.
    pub fn all(memory: &'a dyn DeviceMemory) -> Self {
        Self { memory, offset: 0, len: memory.len() as usize }
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True for a buffer of no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies it out, into as many bytes of the host.
    pub(super) fn load(&self, into: &mut [u8]) -> Result<(), StoreError> {
        self.memory.read(self.offset, into)
    }

    /// Fills it from as many bytes of the host. They have landed when it returns.
    pub(super) fn fill(&self, from: &[u8]) -> Result<(), StoreError> {
        self.memory.write(self.offset, from)?;
        self.memory.flush();
        Ok(())
    }

    /// See [`DeviceMemory::wait`].
    ///
    /// # Errors
    /// Those of the device.
    pub fn wait(&self) -> Result<(), StoreError> {
        self.memory.wait()
    }

    /// The same without what is beyond `len` bytes.
    #[must_use]
    pub fn first(&self, len: usize) -> Self {
        Self { len: self.len.min(len), ..*self }
    }

    /// The same in parts of `len` bytes; the last one may be shorter.
    pub fn chunks(&self, len: usize) -> impl Iterator<Item = Self> + use<'a> {
        let all = *self;
        let at = (0..all.len).step_by(len.max(1));
        at.map(move |at| Self { offset: all.offset + at as u64, len: len.min(all.len - at), ..all })
    }

    /// Copies it into a segment: by the device's driver where the segment is mapped here, else in
    /// pieces through host memory.
    pub(super) fn write_to<M: Memory + ?Sized>(
        &self,
        segment: &M,
        offset: u64,
    ) -> Result<(), StoreError> {
        let (from, len) = (self.offset, self.len);
        StoreError::check_bounds("write", offset, len as u64, segment.len())?;
        // SAFETY: the segment is borrowed meanwhile.
        if let Some(host) = unsafe { segment.host() }.filter(|host| within(host, offset, len)) {
            return self.memory.copy_to_host(from, &host, offset, len);
        }
        let address = segment.device_address(offset, len as u64);
        let copied = address.and_then(|to| self.memory.copy_to_device(from, to, len));
        copied.unwrap_or_else(|| {
            in_pieces(len, |at, piece| {
                self.memory.read(from + at, piece)?;
                segment.write(offset + at, piece)
            })
        })
    }

    /// Fills it from a segment, likewise. The bytes have landed when it returns.
    pub(super) fn read_from<M: Memory + ?Sized>(
        &self,
        segment: &M,
        offset: u64,
    ) -> Result<(), StoreError> {
        let (into, len) = (self.offset, self.len);
        StoreError::check_bounds("read", offset, len as u64, segment.len())?;
        // SAFETY: the segment is borrowed meanwhile.
        if let Some(host) = unsafe { segment.host() }.filter(|host| within(host, offset, len)) {
            self.memory.copy_from_host(into, &host, offset, len)?;
        } else {
            // What RDMA devices wrote is there before READY, which was seen.
            segment.flush();
            let address = segment.device_address(offset, len as u64);
            let copied = address.and_then(|from| self.memory.copy_from_device(into, from, len));
            copied.unwrap_or_else(|| {
                in_pieces(len, |at, piece| {
                    segment.read(offset + at, piece)?;
                    self.memory.write(into + at, piece)
                })
            })?;
        }
        self.memory.flush();
        Ok(())
    }
}

fn within(host: &HostRegion, offset: u64, len: usize) -> bool {
    host.at("copy", offset, len as u64).is_ok()
}

/// Runs a batch by a transport that reaches host memory alone: what device buffers contain is
/// copied to the host before, and what was read for them is copied from there once the batch has
/// succeeded. It needs as much host memory as these buffers have bytes.
///
/// # Errors
/// Those of `post`, and those of the device.
pub fn through_host<E: From<StoreError>>(
    ops: &mut [Op<'_>],
    post: impl FnOnce(&mut [Op<'_>]) -> Result<(), E>,
) -> Result<(), E> {
    if !ops.iter().any(Op::has_device_buffer) {
        return post(ops);
    }
    let mut hosts: Vec<Vec<u8>> = Vec::with_capacity(ops.len());
    for op in ops.iter() {
        let buffer = op.device_buffer();
        let mut host = vec![0; buffer.map_or(0, |buffer| buffer.len)];
        if let Op::WriteFromDevice { src, .. } = op {
            src.load(&mut host)?;
        }
        hosts.push(host);
    }
    let both = ops.iter_mut().zip(&mut hosts);
    let mut there: Vec<Op<'_>> = both.map(|(op, host)| op.on_host(host)).collect();
    let done = post(&mut there);
    let words: Vec<u64> = there.iter().map(|op| op.result().unwrap_or_default()).collect();
    drop(there);
    for ((op, host), word) in ops.iter_mut().zip(&hosts).zip(words) {
        match op {
            Op::FetchAdd { old, .. } | Op::CompareSwap { old, .. } => *old = word,
            Op::ReadToDevice { dst, .. } if done.is_ok() => dst.fill(host)?,
            _ => {}
        }
    }
    done
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::AnonMemory;

    #[test]
    fn a_buffer_beyond_its_memory_is_refused() {
        let memory = AnonMemory::new(4096).unwrap();
        assert!(DeviceBuffer::new(&memory, 4095, 1).is_ok());
        for (offset, len) in [(4096, 1), (u64::MAX, 2), (0, 4097)] {
            let refused = DeviceBuffer::new(&memory, offset, len).unwrap_err();
            assert!(matches!(refused, StoreError::OutOfBounds { .. }), "{refused}");
        }
    }

    #[test]
    fn nothing_is_copied_to_the_device_if_the_batch_failed() {
        let device = AnonMemory::new(4096).unwrap();
        device.write(0, &[7; 8]).unwrap();
        let dst = DeviceBuffer::new(&device, 0, 8).unwrap();
        let failed = through_host(&mut [Op::ReadToDevice { offset: 0, dst }], |ops| {
            let Op::Read { dst, .. } = &mut ops[0] else { panic!("{ops:?}") };
            dst.fill(1);
            Err(StoreError::Misaligned { offset: 0 })
        });
        assert!(failed.is_err());
        assert_eq!(device.load(0).unwrap(), u64::from_ne_bytes([7; 8]));
    }

    #[test]
    fn words_found_by_a_batch_with_device_buffers_are_returned() {
        let (device, segment) = (AnonMemory::new(64).unwrap(), AnonMemory::new(64).unwrap());
        device.write(0, b"from the device!").unwrap();
        segment.store(32, 5).unwrap();
        let (src, dst) = (DeviceBuffer::new(&device, 0, 16), DeviceBuffer::new(&device, 16, 16));
        let mut ops = [
            Op::WriteFromDevice { offset: 0, src: src.unwrap() },
            Op::FetchAdd { offset: 32, add: 1, old: 0 },
            Op::CompareSwap { offset: 32, expect: 6, new: 9, old: 0 },
            Op::ReadToDevice { offset: 0, dst: dst.unwrap() },
        ];
        through_host(&mut ops, |ops| ops.iter_mut().try_for_each(|op| op.run(&segment))).unwrap();
        assert_eq!([ops[1].result(), ops[2].result()], [Some(5), Some(6)]);
        let mut back = [0; 16];
        device.read(16, &mut back).unwrap();
        assert_eq!((&back, segment.load(32).unwrap()), (b"from the device!", 9));
    }
}
