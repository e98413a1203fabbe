//! Every choice of a simulated run follows from its seed, and each part of it draws from a stream
//! of its own: what one part asks for does not change what another gets.

use nkv_store::Random;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// splitmix64.
#[derive(Debug, Clone)]
pub struct Dice(u64);

impl Dice {
    /// A stream of its own for every (seed, purpose).
    pub fn new(seed: u64, purpose: u64) -> Self {
        let mut apart = Self(seed);
        let start = apart.next() ^ purpose.wrapping_mul(0xd134_2543_de82_ef95);
        Self(start)
    }

    /// A stream that follows from this one.
    pub fn fork(&mut self) -> Self {
        Self(self.next())
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
        self.next() % limit.max(1)
    }

    /// `low` to `high`, both included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// True in so many of a thousand cases.
    pub fn permille(&mut self, permille: u64) -> bool {
        self.below(1000) < permille
    }

    /// A pause of `low` to `high` milliseconds.
    pub fn ms(&mut self, low: u64, high: u64) -> Duration {
        Duration::from_millis(self.between(low, high))
    }

    /// One of these. Panics if there are none.
    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len() as u64) as usize]
    }

    /// An index, each as likely as its weight says.
    pub fn weighted(&mut self, weights: &[u64]) -> usize {
        let mut left = self.below(weights.iter().sum());
        weights
            .iter()
            .position(|w| {
                let hit = left < *w;
                left = left.saturating_sub(*w);
                hit
            })
            .unwrap_or_default()
    }
}

/// What a simulated process gets for the kernel's random bytes.
#[derive(Debug)]
pub struct SimRandom(Mutex<Dice>);

impl SimRandom {
    pub fn new(dice: Dice) -> Self {
        Self(Mutex::new(dice))
    }
}

impl Random for SimRandom {
    fn fill(&self, bytes: &mut [u8]) -> std::io::Result<()> {
        let mut dice = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for part in bytes.chunks_mut(8) {
            part.copy_from_slice(&dice.next().to_le_bytes()[..part.len()]);
        }
        Ok(())
    }
}
