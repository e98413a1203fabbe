//! Contents of objects: a stream computed from key and version, so that a torn, stale, shifted or
//! foreign object is detected without a copy of the right one.

use crate::random::Random;
use nkv_store::KeyHasher;

/// Bytes of version `version` of `key`.
pub fn bytes(key: &[u8], version: u64, len: usize) -> Vec<u8> {
    // Hashed under a key of the tests: contents do not depend on the job's key.
    let id = KeyHasher::new([7; 16]).id(key);
    let mut words = Random::new(id.hash ^ id.check, version);
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        bytes.extend_from_slice(&words.next().to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// Bytes of `got` that differ from version `version` of `key`, `len` bytes long.
pub fn wrong(key: &[u8], version: u64, len: usize, got: &[u8]) -> u64 {
    let right = bytes(key, version, len);
    let differ = right.iter().zip(got).filter(|(a, b)| a != b).count();
    differ as u64 + len.abs_diff(got.len()) as u64
}
