//! By the key's hash: a reader finds the object at that rank without asking the master.

use super::{Candidate, Cost, Strategy};

/// `hash mod world size`. While that rank takes nothing, the one with most room.
#[derive(Debug)]
pub(super) struct Hash {
    pub world_size: u32,
}

impl Strategy for Hash {
    fn fixed(&self, key: u64) -> Option<u32> {
        key.checked_rem(u64::from(self.world_size)).map(|rank| rank as u32)
    }

    fn cost(&self, key: u64, candidate: &Candidate) -> Cost {
        let other = self.fixed(key) != Some(candidate.rank);
        (u64::from(other), u64::MAX - candidate.free_bytes)
    }
}
