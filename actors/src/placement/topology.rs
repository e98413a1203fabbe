//! By distance: NUMA node, host, rack and whatever the racks' paths name above it.

use super::{Candidate, Cost, Strategy, drawn};

/// The nearest rank; of equally near ones a drawn one.
#[derive(Debug)]
pub(super) struct Topology;

impl Strategy for Topology {
    fn cost(&self, key: u64, candidate: &Candidate) -> Cost {
        (u64::from(candidate.distance), drawn(0, key, candidate.rank))
    }
}
