//! Values that identify their put: every byte follows from the number of the put that wrote it, so
//! that a byte of another put, or of none, is detected.

/// Number of a put, never used twice in a run.
pub type PutId = u64;

fn word(put: PutId, i: u64) -> u64 {
    let mut z = (put + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (i << 1 | 1);
    z = (z ^ (z >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    z ^ (z >> 32)
}

/// What a put of `len` bytes writes.
pub fn value(put: PutId, len: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(len + 8);
    for i in 0..len.div_ceil(8) as u64 {
        bytes.extend_from_slice(&word(put, i).to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// True if all of these bytes are this put's.
pub fn is_of(put: PutId, bytes: &[u8]) -> bool {
    let mut words = bytes.chunks(8).zip(0..);
    words.all(|(part, i)| part == &word(put, i).to_le_bytes()[..part.len()])
}
