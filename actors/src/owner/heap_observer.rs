//! Who follows the objects of a heap: the evictor does. The owner knows this trait alone.

use crate::error::Result;

/// Is told of the objects of a heap, in the order in which the owner changes them. No call blocks.
///
/// # Errors
/// Each call fails if the message was not taken. The owner then sets `evictor_missed` in its
/// tables, and the observer reads the headers.
pub trait HeapObserver: Send + Sync {
    /// Objects became live: (slot, epoch, bytes of the extent), oldest first.
    fn became_live(&self, objects: Vec<(u32, u32, u64)>) -> Result<()>;
    /// Objects were read: (slot, epoch), in the order in which to count the reads.
    fn were_read(&self, objects: Vec<(u32, u32)>) -> Result<()>;
    /// Objects are no longer live: (slot, epoch).
    fn ended(&self, objects: Vec<(u32, u32)>) -> Result<()>;
    /// The master waits for this many contiguous bytes, after `attempt` requests that made no room.
    /// It comes by way of the owner, behind the commits that the master sent before.
    fn room_wanted(&self, bytes: u64, attempt: u32) -> Result<()>;
    /// The master wants at most this many bytes used.
    fn shrink_to(&self, bytes: u64) -> Result<()>;
}
