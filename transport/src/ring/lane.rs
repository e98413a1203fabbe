//! One direction of a ring: bytes between two counters that only grow, `tail` of its writer and
//! `head` of its reader. Each end keeps its own counter in private memory and accepts the other's
//! only within the range that was possible since the last read [I19]. It neither waits nor wakes.

use super::layout::LaneAt;
use nkv_store::{Memory, StoreError};

/// A word of the other end, or the memory itself, is invalid. Ends the connection.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LaneError {
    /// The other end's counter left its possible range.
    #[error("the peer's counter went from {from} to {to}; up to {most} was possible")]
    Counter {
        /// Value at the last read.
        from: u64,
        /// Value now.
        to: u64,
        /// Highest possible value.
        most: u64,
    },
    /// The lane lies outside its memory: a defect of this end.
    #[error(transparent)]
    Memory(#[from] StoreError),
}

/// Checks the peer's counter: at least the last value and at most what is possible. A 64-bit
/// counter does not wrap in practice, but a peer could write a wrapped value.
fn advanced(from: u64, to: u64, most: u64) -> Result<u64, LaneError> {
    if to.wrapping_sub(from) <= most.wrapping_sub(from) {
        Ok(to)
    } else {
        Err(LaneError::Counter { from, to, most })
    }
}

/// The writing end.
#[derive(Debug)]
pub(crate) struct LaneWriter {
    at: LaneAt,
    tail: u64,
    // As last read.
    head: u64,
}

impl LaneWriter {
    /// For a lane whose words are zero.
    pub(crate) fn new(at: LaneAt) -> Self {
        Self { at, tail: 0, head: 0 }
    }

    /// Bytes that may be written now.
    pub(crate) fn room<M: Memory + ?Sized>(&mut self, memory: &M) -> Result<u64, LaneError> {
        self.head = advanced(self.head, memory.load(self.at.head)?, self.tail)?;
        Ok(self.at.len - self.tail.wrapping_sub(self.head))
    }

    /// Writes as many bytes as there is room for; returns their number. The reader sees all of them
    /// or none.
    pub(crate) fn write<M: Memory + ?Sized>(
        &mut self,
        memory: &M,
        src: &[u8],
    ) -> Result<usize, LaneError> {
        let mut room = self.at.len - self.tail.wrapping_sub(self.head);
        if room < src.len() as u64 {
            room = self.room(memory)?;
        }
        let n = room.min(src.len() as u64);
        if n == 0 {
            return Ok(0);
        }
        let (first, second) = parts(&self.at, self.tail, n);
        memory.write(first.0, &src[..first.1])?;
        if second > 0 {
            memory.write(self.at.bytes, &src[first.1..first.1 + second])?;
        }
        self.tail = self.tail.wrapping_add(n);
        memory.store(self.at.tail, self.tail)?;
        Ok(n as usize)
    }
}

/// The reading end.
#[derive(Debug)]
pub(crate) struct LaneReader {
    at: LaneAt,
    head: u64,
    // As last read.
    tail: u64,
}

impl LaneReader {
    /// For a lane whose words are zero.
    pub(crate) fn new(at: LaneAt) -> Self {
        Self { at, head: 0, tail: 0 }
    }

    /// Bytes that may be read now.
    pub(crate) fn ready<M: Memory + ?Sized>(&mut self, memory: &M) -> Result<u64, LaneError> {
        let most = self.head.wrapping_add(self.at.len);
        self.tail = advanced(self.tail, memory.load(self.at.tail)?, most)?;
        Ok(self.tail.wrapping_sub(self.head))
    }

    /// Copies out what is there, at most `dst.len()` bytes; returns their number. The writer gets
    /// their room back only when everything that was there has been read: see
    /// [`LaneReader::release`].
    pub(crate) fn read<M: Memory + ?Sized>(
        &mut self,
        memory: &M,
        dst: &mut [u8],
    ) -> Result<usize, LaneError> {
        let mut ready = self.tail.wrapping_sub(self.head);
        if ready == 0 {
            ready = self.ready(memory)?;
        }
        let n = ready.min(dst.len() as u64);
        if n == 0 {
            return Ok(0);
        }
        let (first, second) = parts(&self.at, self.head, n);
        memory.read(first.0, &mut dst[..first.1])?;
        if second > 0 {
            memory.read(self.at.bytes, &mut dst[first.1..first.1 + second])?;
        }
        self.head = self.head.wrapping_add(n);
        Ok(n as usize)
    }

    /// Returns the room of the bytes read to the writer, once for all bytes found by one read of
    /// the tail. True if it did: the caller must then wake a writer that waits for room.
    pub(crate) fn release<M: Memory + ?Sized>(&mut self, memory: &M) -> Result<bool, LaneError> {
        let all = self.head == self.tail;
        if all {
            memory.store(self.at.head, self.head)?;
        }
        Ok(all)
    }
}

/// For `n` bytes from a counter on: offset and length up to the lane's end, and how many continue
/// at its start.
fn parts(at: &LaneAt, counter: u64, n: u64) -> ((u64, usize), usize) {
    let from = counter & (at.len - 1);
    let first = n.min(at.len - from);
    ((at.bytes + from, first as usize), (n - first) as usize)
}
