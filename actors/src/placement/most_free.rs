//! By room: for ranks with memories of different sizes, or that joined late.

use super::{Candidate, Cost, Strategy, drawn};

/// The rank with most free bytes; of equal ones a drawn one.
#[derive(Debug)]
pub(super) struct MostFree;

impl Strategy for MostFree {
    fn cost(&self, key: u64, candidate: &Candidate) -> Cost {
        (u64::MAX - candidate.free_bytes, drawn(0, key, candidate.rank))
    }
}
