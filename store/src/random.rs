//! The randomness interface. Everything that must not repeat or be guessed (incarnations, terms,
//! tokens, nonces) comes from a [`Random`], so that a simulation can repeat a run. Production uses
//! only [`OsRandom`]: nothing may be derived from time, pid or address, which repeat [I3] [I17].

/// A source of random bytes.
pub trait Random: Send + Sync + std::fmt::Debug {
    /// Fills all of `bytes`; an error if no random bytes are available.
    fn fill(&self, bytes: &mut [u8]) -> std::io::Result<()>;

    /// A random number that is never 0. Panics if no random bytes are available: no incarnation and
    /// no token would be safe to use.
    fn u64(&self) -> u64 {
        /// More zeros in a row than this mean a broken generator, not chance.
        const TRIES: usize = 4;
        for _ in 0..TRIES {
            let mut bytes = [0; 8];
            if let Err(e) = self.fill(&mut bytes) {
                panic!("no random bytes ({e}); see getrandom(2)");
            }
            match u64::from_le_bytes(bytes) {
                0 => {}
                n => return n,
            }
        }
        panic!("the random generator returned {TRIES} zeros in a row")
    }
}

/// The kernel's generator.
#[derive(Debug, Clone, Copy, Default)]
pub struct OsRandom;

impl Random for OsRandom {
    fn fill(&self, bytes: &mut [u8]) -> std::io::Result<()> {
        getrandom::fill(bytes).map_err(|e| std::io::Error::other(e.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Broken;

    impl Random for Broken {
        fn fill(&self, bytes: &mut [u8]) -> std::io::Result<()> {
            bytes.fill(0);
            Ok(())
        }
    }

    #[test]
    #[should_panic(expected = "zeros in a row")]
    fn a_generator_that_only_says_zero_is_not_believed() {
        Broken.u64();
    }
}
