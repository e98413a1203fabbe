//! What two ends that could reach each other's memory through devices of their own tell each other
//! before they do: plain values, which travel in the hello and its answer. The devices themselves
//! are behind these traits and the feature `rdma`; without it nobody makes an offer, and none is
//! taken.

use crate::error::TransportError;
use crate::verbs::{Alive, Verbs};
use nkv_store::{Buffer, Memory};
use serde::{Deserialize, Serialize};
use std::any::Any;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// Which devices and addresses to use.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct FabricConfig {
    /// Devices by name; none: every one with an active port.
    pub devices: Vec<String>,
    /// Which entry of the GID table; none: RoCE v2 over IPv4 first.
    pub gid_index: Option<u8>,
    /// Queue pairs of one way, at most [`MAX_PAIRS`]; 0: one for each device of this end.
    pub pairs: usize,
}

impl FabricConfig {
    /// Whether somebody wants these very devices: then going without is an error.
    pub fn is_particular(&self) -> bool {
        !self.devices.is_empty() || self.gid_index.is_some()
    }
}

/// The devices of this process.
pub trait Fabric: Send + Sync + fmt::Debug {
    /// Devices and addresses in use, for people.
    fn describe(&self) -> String;

    /// Registers a segment with every device, so that others can reach it, each of its `parts` for
    /// what they may do with that one. `counts`: the first device changes words that several
    /// parties count, and no other does [I1].
    ///
    /// # Errors
    /// If the memory has no address, the parts do not make it up, or it cannot be registered (the
    /// limit of locked memory).
    fn export(
        &self,
        memory: Arc<dyn Memory>,
        parts: &[Part],
        counts: bool,
    ) -> Result<Arc<dyn Exported>, TransportError>;

    /// A client's end of a way to an owner.
    ///
    /// # Errors
    /// If a device has no room for it, or the link of none is up.
    fn offer(&self) -> Result<Box<dyn Offering>, TransportError>;

    /// Registers a caller's buffer with every device: what is written out of it or read into it is
    /// not copied on the way. Takes seconds per GiB.
    ///
    /// # Errors
    /// If it cannot be registered (the limit of locked memory).
    fn register(&self, buffer: Buffer) -> Result<RegisteredBuffer, TransportError>;
}

/// A buffer that devices know, for as long as it lives. Works like any other memory, too.
pub struct RegisteredBuffer {
    // What devices know goes before the memory.
    _registered: Box<dyn Any + Send + Sync>,
    buffer: Buffer,
}

impl RegisteredBuffer {
    /// A buffer, and what undoes its registration when it is dropped.
    pub fn new(buffer: Buffer, registered: Box<dyn Any + Send + Sync>) -> Self {
        Self { _registered: registered, buffer }
    }
}

impl fmt::Debug for RegisteredBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RegisteredBuffer({} bytes)", self.buffer.len())
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

/// A segment that others may reach through devices.
pub trait Exported: Send + Sync + fmt::Debug {
    /// Makes the owner's end for an offer, connected to it.
    ///
    /// # Errors
    /// If the offer is none, or none of its pairs can be connected: the client then takes another
    /// way.
    fn accept(&self, offer: &Offer) -> Result<(Arc<dyn RemoteAccess>, Answer), TransportError>;
}

/// A client's way into a segment, until it is severed.
pub trait RemoteAccess: Send + Sync + fmt::Debug {
    /// Ends it: after this the devices execute nothing of that client here [I10]. Idempotent.
    fn sever(&self);

    /// Whether it was severed.
    fn is_severed(&self) -> bool;

    /// The owner's pairs that it is made of, by number.
    fn pairs(&self) -> &[u32];
}

/// A client's end that is connected to nobody yet.
pub trait Offering: Send + fmt::Debug {
    /// What the owner is to be told.
    fn offer(&self) -> Offer;

    /// Connects to an owner that accepted, and tries each pair once; those through which nothing
    /// comes are left out. Blocks for up to 2.5 s.
    ///
    /// # Errors
    /// If the ends cannot be connected, or nothing comes through any pair that could be the first.
    fn connect(
        self: Box<Self>,
        answer: &Answer,
        segment_len: u64,
        alive: Alive,
    ) -> Result<Arc<dyn Verbs>, TransportError>;
}

/// One queue pair, as the other end has to know it. Addresses are of the network's, in its byte
/// order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PairAddress {
    /// Which of its host's devices it belongs to: it meets the other host's device of that number,
    /// if it can.
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
    /// Reads and atomics it takes in at once.
    pub reads_in: u8,
    /// Reads and atomics it has in flight at once.
    pub reads_out: u8,
}

/// What other hosts may do with a part of a segment. Its owner's device refuses the rest, and the
/// pair fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Access {
    /// Read it.
    Read,
    /// Read it, and change its words by atomics: where claims are counted.
    Count,
    /// Read and write it and change its words by atomics, each access in its order: headers.
    Words,
    /// Read and write it, and one write may overtake another on its way to memory [I5].
    Payload,
}

impl Access {
    /// Whether it may be written.
    pub fn writes(self) -> bool {
        matches!(self, Self::Words | Self::Payload)
    }
}

/// The next so many bytes of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// How many.
    pub len: u64,
    /// What others may do with them.
    pub access: Access,
}

impl Part {
    /// A segment of words, then as much payload: for tries and tests.
    pub fn halves(segment: u64) -> [Self; 2] {
        let half = |access| Self { len: segment / 2, access };
        [half(Access::Words), half(Access::Payload)]
    }
}

/// Registered memory of the other end: a part of its segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoteRange {
    /// Where it begins in the segment.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    /// Where it lies for the device there.
    pub address: u64,
    /// What its device wants to be shown.
    pub key: u32,
    /// What its device lets this end do there.
    pub access: Access,
}

/// A client's end: a pair, and which kind of end it is to meet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offer {
    /// Its pairs, one for each way that the two ends are to have between them.
    pub pairs: Vec<PairAddress>,
}

/// An owner's end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// One for each pair offered: whom it is connected to, and what it reaches; or why it is not.
    pub paths: Vec<Result<DataPath, String>>,
    /// One device of the owner counts: without a way to it there is none [I1].
    pub one_counts: bool,
}

/// One connected pair.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataPath {
    /// The owner's pair.
    pub pair: PairAddress,
    /// The segment, whole, in order and without gaps, as that pair's device knows it.
    pub ranges: Vec<RemoteRange>,
    /// That device, and no other of the owner's, changes the words that several parties count [I1].
    pub counts: bool,
}

/// Most pairs of one offer: no more are looked at.
pub const MAX_PAIRS: usize = 8;
