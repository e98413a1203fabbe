//! How ranks agree on a master: what one asks the others, and what they answer.

use super::Term;
use nkv_transport::wire::Address;
use serde::{Deserialize, Serialize};

/// Addresses in one answer, at most.
pub const MAX_OTHERS: usize = 1_024;

/// A rank looks for the master, stands for election, or names the master that it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ballot {
    /// Who asks.
    pub rank: u32,
    /// Its control address.
    pub control: Address,
    /// Ranks of its job.
    pub world_size: u32,
    /// Whether it asks for a vote.
    pub stands: bool,
    /// Of how many other ranks it knows the address.
    pub knows: u32,
}

/// The answer to a [`Ballot`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Standing {
    /// Who answers.
    pub rank: u32,
    /// Ranks of its job.
    pub world_size: u32,
    /// The highest term that it obeyed; the default for none.
    pub obeyed: Term,
    /// The master that it obeys now, or is.
    pub master: Option<(Term, Address)>,
    /// It may obey another master now: it has none, and the lease of its last one is over.
    pub free: bool,
    /// It votes for who asked.
    pub granted: bool,
    /// Control addresses of ranks, if it knows more than who asked.
    pub others: Vec<(u32, Address)>,
}
