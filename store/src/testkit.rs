//! What tests of several crates share.

use crate::memory::DeviceMemory;
use crate::{AnonMemory, Export, Memory, StoreError};
use std::fmt::Debug;
use std::ptr::NonNull;

/// A memory for a test that changes some methods of another; the others are passed on. It has no
/// address by default, so that no access goes past it.
pub trait MemoryDouble: Send + Sync + Debug {
    /// The memory behind it.
    fn inner(&self) -> &dyn Memory;
    /// See [`Memory::export`].
    fn export(&self) -> Export {
        self.inner().export()
    }
    /// See [`Memory::host_base`].
    fn host_base(&self) -> Option<NonNull<u8>> {
        None
    }
    /// See [`Memory::host_len`].
    fn host_len(&self) -> u64 {
        self.inner().host_len()
    }
    /// See [`Memory::read`].
    ///
    /// # Errors
    /// As the memory behind it.
    fn read(&self, offset: u64, dst: &mut [u8]) -> Result<(), StoreError> {
        self.inner().read(offset, dst)
    }
    /// See [`Memory::write`].
    ///
    /// # Errors
    /// As the memory behind it.
    fn write(&self, offset: u64, src: &[u8]) -> Result<(), StoreError> {
        self.inner().write(offset, src)
    }
    /// See [`Memory::load`].
    ///
    /// # Errors
    /// As the memory behind it.
    fn load(&self, offset: u64) -> Result<u64, StoreError> {
        self.inner().load(offset)
    }
    /// See [`Memory::store`].
    ///
    /// # Errors
    /// As the memory behind it.
    fn store(&self, offset: u64, value: u64) -> Result<(), StoreError> {
        self.inner().store(offset, value)
    }
    /// See [`Memory::fetch_add`].
    ///
    /// # Errors
    /// As the memory behind it.
    fn fetch_add(&self, offset: u64, add: u64) -> Result<u64, StoreError> {
        self.inner().fetch_add(offset, add)
    }
    /// See [`Memory::flush`].
    fn flush(&self) {
        self.inner().flush();
    }
}

impl<D: MemoryDouble> Memory for D {
    fn len(&self) -> u64 {
        self.inner().len()
    }
    fn export(&self) -> Export {
        MemoryDouble::export(self)
    }
    fn host_base(&self) -> Option<NonNull<u8>> {
        MemoryDouble::host_base(self)
    }
    fn host_len(&self) -> u64 {
        MemoryDouble::host_len(self)
    }
    fn device_address(&self, offset: u64, len: u64) -> Option<u64> {
        self.inner().device_address(offset, len)
    }
    fn read(&self, offset: u64, dst: &mut [u8]) -> Result<(), StoreError> {
        MemoryDouble::read(self, offset, dst)
    }
    fn write(&self, offset: u64, src: &[u8]) -> Result<(), StoreError> {
        MemoryDouble::write(self, offset, src)
    }
    fn load(&self, offset: u64) -> Result<u64, StoreError> {
        MemoryDouble::load(self, offset)
    }
    fn store(&self, offset: u64, value: u64) -> Result<(), StoreError> {
        MemoryDouble::store(self, offset, value)
    }
    fn compare_swap(&self, offset: u64, expect: u64, new: u64) -> Result<u64, StoreError> {
        self.inner().compare_swap(offset, expect, new)
    }
    fn fetch_add(&self, offset: u64, add: u64) -> Result<u64, StoreError> {
        MemoryDouble::fetch_add(self, offset, add)
    }
    fn flush(&self) {
        MemoryDouble::flush(self);
    }
}

/// Memory that the CPU cannot address, as that of a GPU.
#[derive(Debug)]
pub struct Unaddressable(pub AnonMemory);

impl MemoryDouble for Unaddressable {
    fn inner(&self) -> &dyn Memory {
        &self.0
    }
}

impl DeviceMemory for Unaddressable {}
