//! Every choice of a run follows from one printed seed: which rank or producer dies, when, by which
//! transport, what is written. The choices are repeatable, the interleaving of threads is not.

use nkv_store::random_u64;

/// Seeds are short enough to be typed again.
const SEED_BITS: u64 = 32;

/// splitmix64.
#[derive(Debug, Clone)]
pub struct Random(u64);

/// The seed of this run: `NKV_CHAOS_SEED`, else a fresh one.
pub fn seed() -> u64 {
    match std::env::var("NKV_CHAOS_SEED") {
        Ok(text) => text.parse().unwrap_or_else(|e| panic!("NKV_CHAOS_SEED={text}: {e}")),
        Err(_) => random_u64() >> (64 - SEED_BITS),
    }
}

/// Rounds of this run: `NKV_CHAOS_ROUNDS`, else 5.
pub fn rounds() -> u64 {
    match std::env::var("NKV_CHAOS_ROUNDS") {
        Ok(text) => text.parse().unwrap_or_else(|e| panic!("NKV_CHAOS_ROUNDS={text}: {e}")),
        Err(_) => 5,
    }
}

impl Random {
    /// A stream of its own for every (seed, purpose).
    pub fn new(seed: u64, purpose: u64) -> Self {
        let mut apart = Self(seed);
        let start = apart.next() ^ purpose.wrapping_mul(0xd134_2543_de82_ef95);
        Self(start)
    }

    /// The next 64 bits.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// 0 to `limit` - 1.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    /// `low` to `high`, both included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// True in so many of a hundred cases.
    pub fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// Another order of `list`.
    pub fn shuffle<T>(&mut self, list: &mut [T]) {
        for last in (1..list.len()).rev() {
            list.swap(last, self.below(last as u64 + 1) as usize);
        }
    }
}
