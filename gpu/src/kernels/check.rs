//! What is checked before a launch: a kernel believes every number that it gets.

use super::{Descriptors, GATHER_BULK, LogPutObject};
use crate::driver::DriverError;
use crate::vram::Span;

/// Where the copies of a launch may read and write.
#[derive(Debug, Clone, Copy)]
pub struct Reach<'a> {
    /// Ranges that may be read.
    pub read: &'a [Span],
    /// Ranges that may be written.
    pub write: &'a [Span],
}

/// The log into which a launch puts: addresses of the device, and offsets of the segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogAddresses {
    /// The claim word, in memory of the GPU.
    pub bump: u64,
    /// `heap_limit`, in host memory.
    pub limit: u64,
    /// The log's first header, in host memory.
    pub headers: u64,
    /// The log's first payload byte, in memory of the GPU.
    pub payload: u64,
    /// Segment offset of that byte.
    pub offset: u64,
    /// Length of the log.
    pub log_bytes: u64,
}

/// Bytes of a unit of the log.
const UNIT: u64 = 4096;

/// An error that names the kernel.
pub fn refuse<T>(kernel: &str, why: &str) -> Result<T, DriverError> {
    Err(DriverError::Invalid(format!("{kernel} is not launched: {why}")))
}

/// A word that the kernel reads or writes.
pub fn word(kernel: &str, what: &str, address: u64) -> Result<(), DriverError> {
    if address != 0 && address.is_multiple_of(8) {
        return Ok(());
    }
    let why = format!("the address {address:#x} of the {what} is 0, or no multiple of 8");
    refuse(kernel, &why)
}

/// Copies, each between two of the ranges.
pub fn copies(kernel: &str, copies: &Descriptors, reach: &Reach<'_>) -> Result<(), DriverError> {
    if u32::try_from(copies.list().len()).is_err() || copies.list().is_empty() {
        return refuse(kernel, &format!("{} copies, of 1 to 2^32 - 1", copies.list().len()));
    }
    for (at, copy) in copies.list().iter().enumerate() {
        let aligned = copy.src.is_multiple_of(16) && copy.dst.is_multiple_of(16);
        let within = |spans: &[Span], address| spans.iter().any(|s| s.covers(address, copy.size));
        if !aligned || !within(reach.read, copy.src) || !within(reach.write, copy.dst) {
            let (read, write) = (reach.read, reach.write);
            let why = format!(
                "copy {at} of {} bytes from {:#x} to {:#x} is not aligned to 16, or not between \
                 the ranges that may be read, {read:x?}, and written, {write:x?}",
                copy.size, copy.src, copy.dst
            );
            return refuse(kernel, &why);
        }
    }
    if kernel == GATHER_BULK && !copies.fits_bulk() {
        return refuse(kernel, "a size is no multiple of 16: use nkv_gather_publish");
    }
    Ok(())
}

/// The log's addresses.
pub fn log(kernel: &str, log: &LogAddresses) -> Result<(), DriverError> {
    word(kernel, "claim word", log.bump)?;
    word(kernel, "limit", log.limit)?;
    word(kernel, "headers", log.headers)?;
    word(kernel, "payload", log.payload)?;
    let whole = log.log_bytes.is_multiple_of(UNIT) && log.log_bytes / UNIT >= 4;
    if !whole || !log.payload.is_multiple_of(16) || !log.headers.is_multiple_of(64) {
        return refuse(kernel, &format!("{log:x?} is no log of whole units of {UNIT} bytes"));
    }
    Ok(())
}

/// Objects for the log.
pub fn objects(
    kernel: &str,
    log: &LogAddresses,
    objects: &[LogPutObject],
    read: &[Span],
) -> Result<(), DriverError> {
    if objects.is_empty() || u32::try_from(objects.len()).is_err() {
        return refuse(kernel, &format!("{} objects, of 1 to 2^32 - 1", objects.len()));
    }
    let most = log.log_bytes / 4 / UNIT * UNIT;
    for (at, object) in objects.iter().enumerate() {
        let claim = object.bytes.max(1).checked_next_multiple_of(UNIT);
        let source = object.src.is_multiple_of(16)
            && read.iter().any(|span| span.covers(object.src, object.bytes));
        if object.bytes > most || claim != Some(object.claim_bytes) || !source {
            let why = format!(
                "object {at} of {} bytes at {:#x} claims {} bytes: its address must be a multiple \
                 of 16 in the ranges that may be read, {read:x?}, and its claim its bytes in whole \
                 units of {UNIT}, at most {most}",
                object.bytes, object.src, object.claim_bytes
            );
            return refuse(kernel, &why);
        }
    }
    Ok(())
}
