//! Memory of a device as the caller's buffer of a copy: its driver moves the bytes.

use super::{AnonMemory, HostRegion, Memory};
use crate::error::StoreError;
use crate::words;

/// Bytes copied at a time where the driver cannot copy them all at once.
const PIECE: usize = 256 << 10;

/// Copies between a device's memory and a segment. All bytes have landed when a method returns.
pub trait DeviceMemory: Memory {
    /// Waits until whoever gave it is done with it on the device. Copies do so, too; a put does it
    /// before it claims room.
    ///
    /// # Errors
    /// Those of the device.
    fn wait(&self) -> Result<(), StoreError> {
        Ok(())
    }

    /// Copies `len` bytes to mapped memory of the host.
    ///
    /// # Errors
    /// `OutOfBounds`, and those of the device.
    fn copy_to_host(
        &self,
        offset: u64,
        host: &HostRegion,
        at: u64,
        len: usize,
    ) -> Result<(), StoreError> {
        in_pieces(len, |done, piece| {
            self.read(offset + done, piece)?;
            words::write(host, at + done, piece)
        })
    }

    /// Copies `len` bytes from mapped memory of the host.
    ///
    /// # Errors
    /// As [`DeviceMemory::copy_to_host`].
    fn copy_from_host(
        &self,
        offset: u64,
        host: &HostRegion,
        at: u64,
        len: usize,
    ) -> Result<(), StoreError> {
        in_pieces(len, |done, piece| {
            words::read(host, at + done, piece)?;
            self.write(offset + done, piece)
        })
    }

    /// Copies `len` bytes to an address of the same driver. None: it cannot, and nothing is copied.
    fn copy_to_device(
        &self,
        _offset: u64,
        _address: u64,
        _len: usize,
    ) -> Option<Result<(), StoreError>> {
        None
    }

    /// Copies `len` bytes from an address of the same driver. None: it cannot.
    fn copy_from_device(
        &self,
        _offset: u64,
        _address: u64,
        _len: usize,
    ) -> Option<Result<(), StoreError>> {
        None
    }
}

/// Host memory in the place of a device's, in tests.
impl DeviceMemory for AnonMemory {}

/// Calls `copy` with the offset of each piece and a buffer of its length.
pub(crate) fn in_pieces(
    len: usize,
    mut copy: impl FnMut(u64, &mut [u8]) -> Result<(), StoreError>,
) -> Result<(), StoreError> {
    let mut host = vec![0; len.min(PIECE)];
    for at in (0..len).step_by(PIECE) {
        copy(at as u64, &mut host[..PIECE.min(len - at)])?;
    }
    Ok(())
}
