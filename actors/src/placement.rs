//! Which rank gets a new object: strategies behind one trait, one of them for a job. The master
//! uses it for plans, a handle for puts into logs. A strategy orders ranks; it allocates nothing.

mod distance;
mod hash;
mod local_first;
mod most_free;
mod rack;
mod random;
mod spread;
mod topology;

#[cfg(test)]
mod tests;

pub use distance::{FARTHEST, Nearest, Site};
pub use rack::RackPath;
pub use spread::apart;

use serde::{Deserialize, Serialize};
use std::fmt;

/// A rank that may take a new object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Candidate {
    /// The rank.
    pub rank: u32,
    /// From the writer, as [`Site::to`] measures it.
    pub distance: u8,
    /// Bytes for new objects there, as far as they are known.
    pub free_bytes: u64,
}

/// How good a rank is for an object: less is better, and of equal ones the lower rank.
pub type Cost = (u64, u64);

/// Orders ranks for new objects.
pub trait Strategy: fmt::Debug + Send + Sync {
    /// The rank that gets keys of this hash whatever else is known, and is waited for while it is
    /// full; None: it depends on the candidates, and full ones are passed over.
    fn fixed(&self, _key: u64) -> Option<u32> {
        None
    }

    /// The cost of a candidate for a key of this hash.
    fn cost(&self, key: u64, candidate: &Candidate) -> Cost;
}

/// The best of these for a key of this hash.
pub fn best(
    strategy: &dyn Strategy,
    key: u64,
    candidates: impl Iterator<Item = Candidate>,
) -> Option<u32> {
    candidates.map(|c| (strategy.cost(key, &c), c.rank)).min().map(|(_, rank)| rank)
}

/// The strategy of a job; that of the master counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Placement {
    /// The rank that the key's hash selects: readers find it there without asking the master.
    #[default]
    Hash,
    /// A rank drawn from this seed and the key. One that is full is passed over.
    Random(u64),
    /// The rank with most free bytes.
    MostFree,
    /// A rank of the writer's host, else any, drawn by the key.
    LocalFirst,
    /// The nearest rank: on the writer's NUMA node, its host, its rack, and so on; among equally
    /// near ones drawn by the key.
    Topology,
}

impl Placement {
    /// The strategy, for a job of so many ranks.
    pub fn strategy(self, world_size: u32) -> Box<dyn Strategy> {
        match self {
            Self::Hash => Box::new(hash::Hash { world_size }),
            Self::Random(seed) => Box::new(random::Random { seed }),
            Self::MostFree => Box::new(most_free::MostFree),
            Self::LocalFirst => Box::new(local_first::LocalFirst),
            Self::Topology => Box::new(topology::Topology),
        }
    }

    /// Whether it depends on where the writer is.
    pub fn by_distance(self) -> bool {
        matches!(self, Self::LocalFirst | Self::Topology)
    }

    /// Whether it depends on how much room ranks have.
    pub fn by_room(self) -> bool {
        self == Self::MostFree
    }

    /// Whether a reader can tell from a key alone where it most likely is.
    pub fn by_key(self) -> bool {
        !self.by_distance() && !self.by_room()
    }
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hash => f.write_str("hash"),
            Self::Random(seed) => write!(f, "random:{seed}"),
            Self::MostFree => f.write_str("most-free"),
            Self::LocalFirst => f.write_str("local-first"),
            Self::Topology => f.write_str("topology"),
        }
    }
}

impl From<Placement> for String {
    fn from(placement: Placement) -> Self {
        placement.to_string()
    }
}

impl TryFrom<String> for Placement {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl std::str::FromStr for Placement {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Ok(match (text, text.strip_prefix("random:")) {
            ("hash", _) => Self::Hash,
            ("random", _) => Self::Random(0),
            (_, Some(seed)) => Self::Random(
                seed.parse().map_err(|_| format!("'{seed}' is no seed, a number of 64 bits"))?,
            ),
            ("most-free", _) => Self::MostFree,
            ("local-first", _) => Self::LocalFirst,
            ("topology", _) => Self::Topology,
            _ => {
                return Err("hash, random, random:SEED, most-free, local-first or topology is \
                            expected"
                    .to_string());
            }
        })
    }
}

/// A number drawn by a seed, a key and a rank. The least of a key's numbers selects a rank evenly,
/// and a rank that joins or leaves changes no other choice (rendezvous hashing).
pub fn drawn(seed: u64, key: u64, rank: u32) -> u64 {
    // The finalizer of splitmix64, twice: keys and ranks may be neighbours.
    let mixed = |x: u64| {
        let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    };
    let rank = u64::from(rank).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed(mixed(key ^ seed) ^ rank)
}
