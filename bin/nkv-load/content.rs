//! Contents of objects: a stream of bytes computed from the key and its version, so that any reader
//! can tell a right object from a torn, stale, shifted or foreign one without keeping a copy.
//! Generating and comparing must be faster than memory copies. The stream is deterministic: two
//! programs that share only the key compute the same bytes.

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Odd, so that the words of one stream are all different (2^64 divided by the golden ratio).
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
/// Words handled at once: one cache line, and a width that compilers turn into vector code.
const LANES: usize = 8;
/// Bytes handled at once.
const BLOCK: usize = LANES * 8;

/// The contents of one version of one key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stream {
    seed: u64,
}

/// Result of a comparison.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Verdict {
    /// Bytes that differ, or are missing or too many.
    pub(crate) wrong: u64,
    /// Offset of the first of them.
    pub(crate) first: Option<u64>,
}

impl Stream {
    /// The stream of version `version` of `key`.
    pub(crate) fn of(key: &[u8], version: u64) -> Self {
        Self { seed: xxh3_64_with_seed(key, version) }
    }

    /// Writes the stream's first `dst.len()` bytes.
    pub(crate) fn fill(self, dst: &mut [u8]) {
        let mut start = self.seed;
        let (blocks, tail) = dst.as_chunks_mut::<BLOCK>();
        for block in blocks {
            for (lane, word) in block.as_chunks_mut().0.iter_mut().enumerate() {
                *word = word_at(start, lane as u64).to_le_bytes();
            }
            start = start.wrapping_add(STEP.wrapping_mul(LANES as u64));
        }
        for (lane, word) in tail.chunks_mut(8).enumerate() {
            let bytes = word_at(start, lane as u64).to_le_bytes();
            word.copy_from_slice(&bytes[..word.len()]);
        }
    }

    /// Compares the result of a read of an object of `expected_len` bytes with the stream: `read`
    /// bytes, of which `dst` holds as many as fit.
    pub(crate) fn verify(self, dst: &[u8], read: usize, expected_len: usize) -> Verdict {
        let both = dst.len().min(read).min(expected_len);
        let mut verdict = self.compare(&dst[..both]);
        let stray = read.abs_diff(expected_len) as u64;
        if stray > 0 {
            verdict.wrong += stray;
            verdict.first = verdict.first.or(Some(both as u64));
        }
        verdict
    }

    fn compare(self, got: &[u8]) -> Verdict {
        let mut verdict = Verdict::default();
        let mut start = self.seed;
        let (blocks, tail) = got.as_chunks::<BLOCK>();
        for (index, block) in blocks.iter().enumerate() {
            let mut difference = 0;
            for (lane, word) in block.as_chunks().0.iter().enumerate() {
                difference |= u64::from_le_bytes(*word) ^ word_at(start, lane as u64);
            }
            if difference != 0 {
                verdict.count(start, block, index * BLOCK);
            }
            start = start.wrapping_add(STEP.wrapping_mul(LANES as u64));
        }
        verdict.count(start, tail, blocks.len() * BLOCK);
        verdict
    }
}

impl Verdict {
    /// Compares `got` with the bytes `right`.
    pub(crate) fn of(got: &[u8], right: &[u8]) -> Self {
        if got == right {
            return Self::default();
        }
        let differs = |at: &usize| got.get(*at) != right.get(*at);
        let all = 0..got.len().max(right.len());
        let first = all.clone().find(differs).map(|at| at as u64);
        Self { wrong: all.filter(differs).count() as u64, first }
    }

    /// Counts byte by byte: the slow path, taken for blocks that differ and for the last few bytes.
    fn count(&mut self, start: u64, block: &[u8], block_at: usize) {
        for (at, byte) in block.iter().enumerate() {
            if *byte != word_at(start, at as u64 / 8).to_le_bytes()[at % 8] {
                self.wrong += 1;
                self.first = self.first.or(Some((block_at + at) as u64));
            }
        }
    }
}

fn word_at(start: u64, lane: u64) -> u64 {
    let x = start.wrapping_add(STEP.wrapping_mul(lane));
    // Mixes the high bits into the low byte, whose own period would be 256 words.
    x ^ (x >> 29)
}

#[cfg(test)]
mod tests {
    use super::{BLOCK, Stream, Verdict};

    fn filled(key: &[u8], version: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        Stream::of(key, version).fill(&mut bytes);
        bytes
    }

    #[test]
    fn what_was_filled_is_right_at_every_length() {
        for len in (0..3 * BLOCK).chain([4096, 4097, 65_537]) {
            let bytes = filled(b"key", 7, len);
            assert_eq!(Stream::of(b"key", 7).verify(&bytes, len, len), Verdict::default(), "{len}");
        }
    }

    #[test]
    fn a_shorter_stream_is_the_beginning_of_a_longer_one() {
        let long = filled(b"key", 7, 1000);
        for len in [1, 63, 64, 65, 999] {
            assert_eq!(filled(b"key", 7, len), long[..len]);
        }
    }

    #[test]
    fn every_single_flipped_bit_is_one_wrong_byte_at_its_offset() {
        let right = filled(b"key", 1, 2 * BLOCK + 5);
        for at in 0..right.len() {
            for bit in 0..8 {
                let mut bytes = right.clone();
                bytes[at] ^= 1 << bit;
                let found = Stream::of(b"key", 1).verify(&bytes, bytes.len(), bytes.len());
                assert_eq!(found, Verdict { wrong: 1, first: Some(at as u64) });
            }
        }
    }

    #[test]
    fn bytes_that_were_kept_are_compared_one_by_one() {
        assert_eq!(Verdict::of(b"abc", b"abc"), Verdict::default());
        assert_eq!(Verdict::of(b"abc", b"aXcY"), Verdict { wrong: 2, first: Some(1) });
        assert_eq!(Verdict::of(b"abcd", b"abc"), Verdict { wrong: 1, first: Some(3) });
    }

    #[test]
    fn another_key_another_version_and_a_shift_are_wrong_almost_everywhere() {
        let len = 4096;
        let stream = Stream::of(b"key", 1);
        let shifted = &filled(b"key", 1, len + 8)[8..];
        for foreign in [&filled(b"kez", 1, len), &filled(b"key", 2, len), &vec![0; len], shifted] {
            let found = stream.verify(foreign, len, len);
            assert!(found.wrong > len as u64 * 9 / 10, "{found:?}");
        }
    }

    #[test]
    fn missing_and_surplus_bytes_are_wrong_bytes() {
        let bytes = filled(b"key", 1, 100);
        let stream = Stream::of(b"key", 1);
        let ten_from_90 = Verdict { wrong: 10, first: Some(90) };
        assert_eq!(stream.verify(&bytes, 90, 100), ten_from_90);
        assert_eq!(stream.verify(&bytes, 100, 90), ten_from_90);
        assert_eq!(stream.verify(&bytes[..90], 100, 90), ten_from_90);
    }
}
