//! Who follows the objects of a heap: the evictor does. The owner knows this trait alone.

use crate::error::Result;
use nkv_store::evict::Candidate;

/// What happened to the objects of a heap, or should happen.
#[derive(Debug)]
pub enum HeapEvent {
    /// Objects became live, oldest first.
    BecameLive(Vec<Candidate>),
    /// Objects were read: (slot, epoch), in the order in which to count the reads.
    WereRead(Vec<(u32, u32)>),
    /// Objects are to go before others from now on.
    GoFirst(Vec<Candidate>),
    /// Objects are no longer live: (slot, epoch).
    Ended(Vec<(u32, u32)>),
    /// The master waits for room. It comes by way of the owner, behind the commits that the master
    /// sent before.
    RoomWanted {
        /// Contiguous bytes wanted.
        bytes: u64,
        /// Bytes that all who wait want together.
        all: u64,
        /// Number of earlier requests, which made no room.
        attempt: u32,
    },
    /// The master wants at most this many bytes used.
    Shrink(u64),
}

/// Is notified of the objects of a heap, in the order in which the owner changes them.
pub trait HeapObserver: Send + Sync {
    /// Takes an event; does not block.
    ///
    /// # Errors
    /// Fails if the event was not taken. The owner then sets `evictor_missed` in its tables, and
    /// the observer reads the headers.
    fn notify(&self, event: HeapEvent) -> Result<()>;
}
