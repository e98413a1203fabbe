//! A flood's objects: a number, its key, its bytes; and the set of numbers seen, one bit each.

/// Bytes of every object: one unit of the log.
pub const VALUE_BYTES: usize = 4096;

/// Key of a number.
pub fn key(id: u64) -> [u8; 9] {
    let mut key = [b'f'; 9];
    key[1..].copy_from_slice(&id.to_be_bytes());
    key
}

/// Bytes of a number: itself, then words that follow from it and from their place.
pub fn fill(id: u64, value: &mut [u8; VALUE_BYTES]) {
    let seed = id.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    for (i, word) in value.chunks_exact_mut(8).enumerate() {
        let other = seed.wrapping_add((i as u64).wrapping_mul(0xd134_2543_de82_ef95));
        let right = if i == 0 { id } else { other };
        word.copy_from_slice(&right.to_le_bytes());
    }
}

/// The number that these bytes begin with.
pub fn id_of(value: &[u8; VALUE_BYTES]) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&value[..8]);
    u64::from_le_bytes(word)
}

/// One bit per number.
pub struct Ids {
    words: Vec<u64>,
    total: u64,
}

impl Ids {
    /// None of `total` numbers.
    pub fn new(total: u64) -> Self {
        Self { words: vec![0; total.div_ceil(64) as usize], total }
    }

    /// True if it was added.
    pub fn contains(&self, id: u64) -> bool {
        id < self.total && self.words[(id / 64) as usize] >> (id % 64) & 1 == 1
    }

    /// True if it is below `total`.
    pub fn is_of(&self, id: u64) -> bool {
        id < self.total
    }

    /// Adds it; false if it was there.
    pub fn set(&mut self, id: u64) -> bool {
        let new = !self.contains(id);
        self.words[(id / 64) as usize] |= 1 << (id % 64);
        new
    }
}
