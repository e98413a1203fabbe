//! Nearest the writer: for readers that mostly read what their own host wrote.

use super::distance::SAME_HOST;
use super::{Candidate, Cost, Strategy, drawn};

/// Ranks of the writer's host, then the others; a drawn one of each.
#[derive(Debug)]
pub(super) struct LocalFirst;

impl Strategy for LocalFirst {
    fn cost(&self, key: u64, candidate: &Candidate) -> Cost {
        let elsewhere = candidate.distance > SAME_HOST;
        (u64::from(elsewhere), drawn(0, key, candidate.rank))
    }
}
