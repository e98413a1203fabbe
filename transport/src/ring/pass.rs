//! How a ring comes to be: the node makes its memory, announces it on a unix socket that both ends
//! have proven themselves on, and passes the descriptor.

use super::layout::memory_bytes;
use super::stream::{RingStream, Waiting};
use crate::wire::{BoxStream, pass_descriptor, take_descriptor};
use nkv_store::shm::MemfdMemory;
use std::io;

/// Bytes of a lane: what a batch of some hundred keys takes. Larger frames go through in parts.
const LANE_BYTES: u64 = 64 << 10;
/// A ring that a node made and has not passed yet.
#[derive(Debug)]
pub struct Offer {
    memory: MemfdMemory,
    lane_bytes: u64,
}

impl Offer {
    /// Makes a ring's memory, some 130 KiB.
    ///
    /// # Errors
    /// If the system has no sealed memory, or none left: then the socket serves.
    pub fn new() -> io::Result<Self> {
        let memory = MemfdMemory::create(memory_bytes(LANE_BYTES)?).map_err(io::Error::other)?;
        Ok(Self { memory, lane_bytes: LANE_BYTES })
    }

    /// What the client must be told: bytes of a lane.
    pub fn lane_bytes(&self) -> u64 {
        self.lane_bytes
    }

    /// Passes it to the client at the other end of `stream`, a unix socket. Waits for the client's
    /// word without a limit of its own.
    pub async fn pass(self, stream: BoxStream) -> io::Result<RingStream> {
        let socket = pass_descriptor(stream, self.memory.fd()).await?;
        Ok(RingStream::node(self.memory, socket, self.lane_bytes))
    }
}

/// Takes the ring that the node at the other end of `stream`, a unix socket, has announced with
/// lanes of so many bytes. Waits for it without a limit of its own.
pub async fn take(stream: BoxStream, lane_bytes: u64, waiting: Waiting) -> io::Result<RingStream> {
    let bytes = memory_bytes(lane_bytes)?;
    let (fd, socket) = take_descriptor(stream).await?;
    let memory = MemfdMemory::take(fd, bytes).map_err(io::Error::other)?;
    RingStream::client(memory, socket, lane_bytes, waiting)
}
