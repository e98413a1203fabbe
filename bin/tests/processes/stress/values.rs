//! Objects of the stress test: a key made of its writer, that writer's generation and a number; a
//! value that begins with its version, which determines its length and every other byte.

use crate::content;
use crate::random::Random;

/// Keys of a writer that are in use at one time.
pub const KEYS: u64 = 48;
/// Bytes of the version at the beginning of a value.
const VERSION_BYTES: usize = 8;
/// Longest value.
pub const MAX_BYTES: usize = 256 << 10;

/// A writer's key.
pub fn key(writer: u64, generation: u64, number: u64) -> Vec<u8> {
    format!("w{writer}.{generation}/{number}").into_bytes()
}

fn len(version: u64) -> usize {
    let mut random = Random::new(version, 0);
    let longest = if random.percent(80) { 16 << 10 } else { MAX_BYTES - VERSION_BYTES };
    VERSION_BYTES + random.below(longest as u64) as usize
}

/// The value of a version.
pub fn value(key: &[u8], version: u64) -> Vec<u8> {
    let mut value = version.to_le_bytes().to_vec();
    value.extend(content::bytes(key, version, len(version) - VERSION_BYTES));
    value
}

/// The version of a value that was read, or an error if it is no value of this key.
pub fn version(key: &[u8], got: &[u8]) -> Result<u64, String> {
    let shown = String::from_utf8_lossy(key);
    let Some((first, rest)) = got.split_first_chunk::<VERSION_BYTES>() else {
        return Err(format!("{shown} has {} bytes, not even a version", got.len()));
    };
    let version = u64::from_le_bytes(*first);
    match content::wrong(key, version, len(version) - VERSION_BYTES, rest) {
        0 => Ok(version),
        wrong => Err(format!("{wrong} wrong bytes of {} in {shown}, version {version}", got.len())),
    }
}
