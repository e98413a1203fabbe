//! What two ends exchange before they access each other's memory through RDMA devices: plain values
//! in the hello and its answer. The devices themselves are behind these traits and the feature
//! `rdma`; without it no offer is made or accepted.

use crate::error::TransportError;
use crate::verbs::{Alive, Verbs};
use nkv_store::{Buffer, Memory};
use serde::{Deserialize, Serialize};
use std::any::Any;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

/// Which devices and addresses to use.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct FabricConfig {
    /// Device names; empty: every device with an active port.
    pub devices: Vec<String>,
    /// Index in the GID table; none: prefer RoCE v2 over IPv4.
    pub gid_index: Option<u8>,
    /// Queue pairs of one data path, at most [`MAX_PAIRS`]; 0: one for each device of this end.
    pub pairs: usize,
}

impl FabricConfig {
    /// Whether specific devices are configured: then failing to use them is an error.
    pub fn is_particular(&self) -> bool {
        !self.devices.is_empty() || self.gid_index.is_some()
    }
}

/// The devices of this process.
pub trait Fabric: Send + Sync + fmt::Debug {
    /// Devices and addresses in use, for people.
    fn describe(&self) -> String;

    /// Registers a segment with every device for remote access, with an access right for each of
    /// its `parts`. `counts`: only the first device changes words with several writers [I1].
    ///
    /// # Errors
    /// If the memory has no address, the parts do not add up to it, or it cannot be registered (the
    /// limit of locked memory).
    fn export(
        &self,
        memory: Arc<dyn Memory>,
        parts: &[Part],
        counts: bool,
    ) -> Result<Arc<dyn Exported>, TransportError>;

    /// The client's end of a data path to an owner.
    ///
    /// # Errors
    /// If a device has no resources for it, or no device has an active link.
    fn offer(&self) -> Result<Box<dyn Offering>, TransportError>;

    /// Registers a caller's memory with every device, so that reads and writes of it need no copy.
    /// Takes seconds per GiB.
    ///
    /// # Errors
    /// If it cannot be registered (the limit of locked memory).
    ///
    /// # Safety
    /// The memory must stay mapped until the result is dropped, and until operations on it that
    /// began before have ended.
    unsafe fn register_range(
        &self,
        at: NonNull<u8>,
        len: usize,
    ) -> Result<RegisteredRange, TransportError>;
}

/// Memory is registered with the devices as long as this lives.
#[derive(Debug)]
pub struct RegisteredRange {
    _undoes: Box<dyn Any + Send + Sync>,
}

impl RegisteredRange {
    /// The value whose drop undoes a registration.
    pub fn new(registered: Box<dyn Any + Send + Sync>) -> Self {
        Self { _undoes: registered }
    }
}

/// A buffer registered with the devices as long as it lives. Otherwise normal memory.
#[derive(Debug)]
pub struct RegisteredBuffer {
    // Declared first: the registration is dropped before the memory.
    _registered: RegisteredRange,
    buffer: Buffer,
}

impl RegisteredBuffer {
    /// Registers a buffer with every device.
    ///
    /// # Errors
    /// As [`Fabric::register_range`].
    pub fn new(fabric: &dyn Fabric, mut buffer: Buffer) -> Result<Self, TransportError> {
        let at = NonNull::new(buffer.as_mut_ptr()).unwrap_or(NonNull::dangling());
        // SAFETY: both go into one value, which drops the registration first; a buffer does not
        // move its memory.
        let registered = unsafe { fabric.register_range(at, buffer.len()) }?;
        Ok(Self { _registered: registered, buffer })
    }
}

impl Deref for RegisteredBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.buffer
    }
}

impl DerefMut for RegisteredBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.buffer
    }
}

/// A segment that remote hosts can access through devices.
pub trait Exported: Send + Sync + fmt::Debug {
    /// Creates the owner's end for an offer and connects it.
    ///
    /// # Errors
    /// If the offer is invalid, or none of its pairs can be connected: the client then uses another
    /// data path.
    fn accept(&self, offer: &Offer) -> Result<(Arc<dyn RemoteAccess>, Answer), TransportError>;
}

/// The owner's end of a client's data path to a segment, until it is severed.
pub trait RemoteAccess: Send + Sync + fmt::Debug {
    /// Ends it: after this the devices execute nothing more of that client here [I10]. Idempotent.
    fn sever(&self);

    /// Whether it was severed.
    fn is_severed(&self) -> bool;

    /// Numbers of the owner's queue pairs.
    fn pairs(&self) -> &[u32];
}

/// A client's end that is not connected yet.
pub trait Offering: Send + fmt::Debug {
    /// The offer to send to the owner.
    fn offer(&self) -> Offer;

    /// Connects to an owner that accepted, and tests each pair once; pairs that do not work are
    /// left out. Blocks for up to 2.5 s.
    ///
    /// # Errors
    /// If the ends cannot be connected, or no pair works that can be the first.
    fn connect(
        self: Box<Self>,
        answer: &Answer,
        segment: SegmentBounds,
        alive: Alive,
    ) -> Result<Arc<dyn Verbs>, TransportError>;
}

/// Address of one queue pair, for the other end. Network addresses are in network byte order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PairAddress {
    /// Number of its device at its host: it is connected to the other host's device of that number,
    /// if possible.
    pub rail: u8,
    /// GID of its port.
    pub gid: [u8; 16],
    /// Address within an InfiniBand subnet; 0 on Ethernet.
    pub lid: u16,
    /// Number of the pair, 24 bits.
    pub number: u32,
    /// Its first packet sequence number, 24 bits.
    pub serial: u32,
    /// Bytes of payload in one packet.
    pub mtu_bytes: u32,
    /// Reads and atomics that it can receive concurrently.
    pub reads_in: u8,
    /// Reads and atomics that it can have in flight.
    pub reads_out: u8,
}

/// What remote hosts may do with a part of a segment. The owner's device refuses everything else,
/// and the pair fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Access {
    /// Read.
    Read,
    /// Read, and change words by atomics: the claim counter.
    Count,
    /// Read, write, and change words by atomics, with ordered accesses: headers.
    Words,
    /// Read and write; writes may be reordered on their way to memory [I5].
    Payload,
    /// Read and write, with ordered accesses: the beginning of a payload that lies in another
    /// memory than headers, such as VRAM. What is written to the payload may land after a header
    /// that is written later, so a producer reads back from here before it changes a publish word
    /// [I4].
    PayloadReadBack,
}

impl Access {
    /// Whether remote writes are permitted.
    pub fn writes(self) -> bool {
        matches!(self, Self::Words | Self::Payload | Self::PayloadReadBack)
    }

    /// Whether it is an access to payload, which no header or other word shares.
    pub fn is_payload(self) -> bool {
        matches!(self, Self::Payload | Self::PayloadReadBack)
    }
}

/// A part of a segment; the parts follow each other from offset 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// Length in bytes.
    pub len: u64,
    /// What remote hosts may do with it.
    pub access: Access,
}

impl Part {
    /// A segment of words, then the same length of payload: for trials and tests.
    pub fn halves(segment: u64) -> [Self; 2] {
        let half = |access| Self { len: segment / 2, access };
        [half(Access::Words), half(Access::Payload)]
    }
}

/// The bounds of a segment that a client knows from its layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentBounds {
    /// Length in bytes.
    pub len: u64,
    /// Where payloads begin; what precedes them are words.
    pub payloads: u64,
}

impl SegmentBounds {
    /// Those of [`Part::halves`].
    pub fn halves(segment: u64) -> Self {
        Self { len: segment, payloads: segment / 2 }
    }

    /// Checks an owner's ranges: whole words, in order, without gaps, as long as the segment, none
    /// of them over the border of words and payload, and each with a right of its side.
    ///
    /// # Errors
    /// What is wrong with them.
    pub fn check(&self, ranges: &[RemoteRange]) -> Result<(), TransportError> {
        let fits = |end: u64, r: &RemoteRange| {
            let even = r.len > 0 && (r.len | r.address).is_multiple_of(8);
            let next = end.checked_add(r.len).filter(|next| *next <= self.len)?;
            let side =
                if r.access.is_payload() { end >= self.payloads } else { next <= self.payloads };
            let known = r.offset == end && even && side && r.address.checked_add(r.len).is_some();
            known.then_some(next)
        };
        let end = ranges.iter().try_fold(0, fits);
        if ranges.len() > MAX_RANGES || end != Some(self.len) {
            return Err(TransportError::Protocol(format!(
                "the ranges of a data path do not add up to a segment of {} bytes whose payloads \
                 begin at {}",
                self.len, self.payloads
            )));
        }
        Ok(())
    }
}

/// Registered memory of the other end: a part of its segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoteRange {
    /// Segment offset.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
    /// Address for the remote device.
    pub address: u64,
    /// Remote key (rkey).
    pub key: u32,
    /// What the remote device permits.
    pub access: Access,
}

/// A client's offer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offer {
    /// Its pairs, one for each connection between the two ends.
    pub pairs: Vec<PairAddress>,
}

/// An owner's answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// For each pair offered: the pair it is connected to and the memory it reaches, or why not.
    pub paths: Vec<Result<DataPath, String>>,
    /// One device of the owner executes the counting atomics: a client that cannot reach it gets no
    /// data path [I1].
    pub one_counts: bool,
}

/// One connected pair.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataPath {
    /// The owner's pair.
    pub pair: PairAddress,
    /// The whole segment, in order and without gaps, with the addresses and keys of that pair's
    /// device.
    pub ranges: Vec<RemoteRange>,
    /// Only this device of the owner executes the atomics on words with several writers [I1].
    pub counts: bool,
}

/// Most ranges of one data path: the control block (before, at and after the claim counter);
/// headers; index and pins; payload (what is read back, and the rest).
const MAX_RANGES: usize = 7;
/// Most pairs of one offer; an offer with more is refused.
pub const MAX_PAIRS: usize = 8;

#[cfg(test)]
mod tests;
