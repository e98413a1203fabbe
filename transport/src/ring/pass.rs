//! How a ring is set up: the node creates its memory, announces it on a unix socket whose two ends
//! are authenticated, and passes the descriptor.

use super::layout::memory_bytes;
use super::stream::{RingStream, Waiting};
use crate::wire::{BoxStream, pass_descriptor, take_descriptor};
use nkv_store::shm::MemfdMemory;
use std::io;

/// Bytes of a lane: enough for a batch of some hundred keys. Larger frames are transferred in
/// parts.
const LANE_BYTES: u64 = 64 << 10;
/// A ring that a node has created and not passed yet.
#[derive(Debug)]
pub struct Offer {
    memory: MemfdMemory,
}

impl Offer {
    /// Creates a ring's memory, about 130 KiB.
    ///
    /// # Errors
    /// If the system has no sealed memory, or none left: then the socket is used instead.
    pub fn new() -> io::Result<Self> {
        let memory = MemfdMemory::create(memory_bytes(LANE_BYTES)?).map_err(io::Error::other)?;
        Ok(Self { memory })
    }

    /// Bytes of a lane, to be sent to the client.
    pub fn lane_bytes(&self) -> u64 {
        LANE_BYTES
    }

    /// Passes it to the client at the other end of `stream`, a unix socket. Waits for the client's
    /// request without a time limit of its own.
    pub async fn pass(self, stream: BoxStream) -> io::Result<RingStream> {
        let socket = pass_descriptor(stream, self.memory.fd()).await?;
        Ok(RingStream::node(self.memory, socket, LANE_BYTES))
    }
}

/// Receives the ring that the node at the other end of `stream`, a unix socket, has announced with
/// lanes of `lane_bytes` bytes. Waits for it without a time limit of its own.
pub async fn take(stream: BoxStream, lane_bytes: u64, waiting: Waiting) -> io::Result<RingStream> {
    let bytes = memory_bytes(lane_bytes)?;
    let (fd, socket) = take_descriptor(stream).await?;
    let memory = MemfdMemory::take(fd, bytes).map_err(io::Error::other)?;
    RingStream::client(memory, socket, lane_bytes, waiting)
}
