//! At random, the same for every writer of a key: two puts of one key do not make two objects.

use super::{Candidate, Cost, Strategy, drawn};

/// A rank drawn from a seed and the key.
#[derive(Debug)]
pub(super) struct Random {
    pub seed: u64,
}

impl Strategy for Random {
    fn cost(&self, key: u64, candidate: &Candidate) -> Cost {
        (drawn(self.seed, key, candidate.rank), 0)
    }
}
