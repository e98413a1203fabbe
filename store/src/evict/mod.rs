//! Picks victims. A policy receives admissions, touches and removals and returns the next victim.
//! Watermarks, not the policy, decide when to evict; a policy touches no memory of the segment.

mod list;
mod lru;
mod lru2;
mod prefix;
mod retained;
mod until_read;
mod watermarks;
mod window;

pub use retained::{Candidate, Retained};
pub use watermarks::{Marks, Watermarks};
pub use window::cheapest_window;

use crate::error::StoreError;
use lru::ByAge;
use lru2::Lru2;
use prefix::Prefix;

/// Chooses which object is evicted next. Every call is O(1), some only on average. An object is a
/// slot at an epoch: a call that names another epoch than the admitted one is late and is ignored.
pub trait Policy: Send {
    /// A new object of `bytes`. One of an older epoch in the same slot is replaced.
    fn admit(&mut self, slot: u32, epoch: u32, bytes: u64);
    /// The same for the last object of a batch.
    fn admit_last(&mut self, slot: u32, epoch: u32, bytes: u64) {
        self.admit(slot, epoch, bytes);
    }
    /// An object that was used before all objects held now. One that is already held keeps its
    /// place.
    fn admit_oldest(&mut self, slot: u32, epoch: u32, bytes: u64);
    /// The epoch held of a slot.
    fn epoch_of(&self, slot: u32) -> Option<u32>;
    /// It was used. The blocks of a prefix are touched from its end to its start: the head is then
    /// the most recent. A block is useful only with those before it, so a prefix must lose its tail
    /// first, and this order achieves that without a tree.
    fn touch(&mut self, slot: u32, epoch: u32);
    /// It is removed, or may not be evicted any more.
    fn forget(&mut self, slot: u32, epoch: u32);
    /// Removes and returns the next victim: slot, epoch, bytes.
    fn victim(&mut self) -> Option<(u32, u32, u64)>;
    /// Objects held.
    fn len(&self) -> usize;
    /// Bytes held.
    fn bytes(&self) -> u64;
    /// True if there is no victim.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The policies a setting can name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PolicyKind {
    /// Least recently used first.
    #[default]
    Lru,
    /// Least recently used first; objects used only once go before all others.
    Lru2,
    /// As `Lru2`; the last objects of batches go before all others while few of them are read.
    Prefix,
    /// Oldest first.
    Fifo,
}

impl PolicyKind {
    /// The policy, for slots below `slots`.
    pub fn build(self, slots: u32) -> Box<dyn Policy> {
        match self {
            PolicyKind::Lru => Box::new(ByAge::new(slots, true)),
            PolicyKind::Lru2 => Box::new(Lru2::new(slots, lru2::PROTECTED_PERCENT)),
            PolicyKind::Prefix => Box::new(Prefix::new(slots)),
            PolicyKind::Fifo => Box::new(ByAge::new(slots, false)),
        }
    }
}

impl std::fmt::Display for PolicyKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            PolicyKind::Lru => "lru",
            PolicyKind::Lru2 => "lru2",
            PolicyKind::Prefix => "prefix",
            PolicyKind::Fifo => "fifo",
        })
    }
}

impl std::str::FromStr for PolicyKind {
    type Err = StoreError;

    fn from_str(text: &str) -> Result<Self, StoreError> {
        let kinds = [PolicyKind::Lru, PolicyKind::Lru2, PolicyKind::Prefix, PolicyKind::Fifo];
        kinds.into_iter().find(|kind| kind.to_string() == text).ok_or_else(|| {
            StoreError::InvalidConfig(format!(
                "no eviction policy is called \"{}\": use lru, lru2, prefix or fifo",
                text.escape_debug()
            ))
        })
    }
}

#[cfg(test)]
mod tests;
