//! Parts of a value, one after another in the object: each in memory of the host or of a device.

use super::{DeviceBuffer, Op};
use crate::error::StoreError;
use crate::memory::Memory;

/// A part that is stored.
#[derive(Debug, Clone, Copy)]
pub enum Source<'a> {
    /// In memory of the host.
    Host(&'a [u8]),
    /// In memory of a device.
    Device(DeviceBuffer<'a>),
}

impl<'a> Source<'a> {
    /// Length in bytes.
    pub fn len(&self) -> usize {
        match self {
            Source::Host(bytes) => bytes.len(),
            Source::Device(buffer) => buffer.len(),
        }
    }

    /// True for a part of no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the host has it.
    pub fn is_host(&self) -> bool {
        matches!(self, Source::Host(_))
    }

    /// Waits until it may be read.
    ///
    /// # Errors
    /// Those of the device.
    pub fn wait(&self) -> Result<(), StoreError> {
        match self {
            Source::Host(_) => Ok(()),
            Source::Device(buffer) => buffer.wait(),
        }
    }

    /// Writes it at an offset of the segment.
    pub fn write_at(self, offset: u64) -> Op<'a> {
        match self {
            Source::Host(src) => Op::Write { offset, src },
            Source::Device(src) => Op::WriteFromDevice { offset, src },
        }
    }

    /// Appends its bytes.
    ///
    /// # Errors
    /// Those of the device.
    pub fn append_to(&self, all: &mut Vec<u8>) -> Result<(), StoreError> {
        match self {
            Source::Host(bytes) => all.extend_from_slice(bytes),
            Source::Device(buffer) => {
                let at = all.len();
                all.resize(at + buffer.len(), 0);
                buffer.load(&mut all[at..])?;
            }
        }
        Ok(())
    }
}

impl<'a> From<&'a [u8]> for Source<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Source::Host(bytes)
    }
}

/// Where a part of an object that is read goes.
pub trait Fill {
    /// How many bytes it takes.
    fn room(&mut self) -> usize;

    /// Reads `len` bytes of a segment into it.
    ///
    /// # Errors
    /// Those of the memories.
    fn read(&mut self, memory: &dyn Memory, offset: u64, len: usize) -> Result<(), StoreError>;

    /// Copies bytes into it.
    ///
    /// # Errors
    /// Those of the memory that it lies in.
    fn fill(&mut self, from: &[u8]) -> Result<(), StoreError>;

    /// Its bytes, if they are in memory of the host.
    fn host(&mut self) -> Option<&mut [u8]>;
}

impl<T: AsMut<[u8]> + ?Sized> Fill for &mut T {
    fn room(&mut self) -> usize {
        (**self).as_mut().len()
    }

    fn read(&mut self, memory: &dyn Memory, offset: u64, len: usize) -> Result<(), StoreError> {
        memory.read(offset, &mut (**self).as_mut()[..len])
    }

    fn fill(&mut self, from: &[u8]) -> Result<(), StoreError> {
        (**self).as_mut()[..from.len()].copy_from_slice(from);
        Ok(())
    }

    fn host(&mut self) -> Option<&mut [u8]> {
        Some((**self).as_mut())
    }
}

/// A place in memory of the host or of a device.
#[derive(Debug)]
pub enum Target<'a> {
    /// In memory of the host.
    Host(&'a mut [u8]),
    /// In memory of a device.
    Device(DeviceBuffer<'a>),
}

impl Fill for Target<'_> {
    fn room(&mut self) -> usize {
        match self {
            Target::Host(bytes) => bytes.len(),
            Target::Device(buffer) => buffer.len(),
        }
    }

    fn read(&mut self, memory: &dyn Memory, offset: u64, len: usize) -> Result<(), StoreError> {
        match self {
            Target::Host(bytes) => bytes.read(memory, offset, len),
            Target::Device(buffer) => buffer.first(len).read_from(memory, offset),
        }
    }

    fn fill(&mut self, from: &[u8]) -> Result<(), StoreError> {
        match self {
            Target::Host(bytes) => bytes.fill(from),
            Target::Device(buffer) => buffer.first(from.len()).fill(from),
        }
    }

    fn host(&mut self) -> Option<&mut [u8]> {
        match self {
            Target::Host(bytes) => Some(bytes),
            Target::Device(_) => None,
        }
    }
}
