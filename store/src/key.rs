//! Keys and their 128-bit identity [I16]: xxh64 (a header's `key_hash`), which anyone
//! can compute and which selects the rank, and SipHash-2-4 under a key of the job. Two keys with
//! the same xxh64 are easy to construct; without the job's key nobody can construct two keys with
//! the same identity. The master compares the key strings as well.

mod pool;
mod thin_bytes;

pub use pool::KeyPool;

use crate::error::StoreError;
use serde::{Deserialize, Serialize};
use siphasher::sip::SipHasher24;
use std::hash::{Hash, Hasher};
use thin_bytes::ThinBytes;

/// Longest key in bytes.
pub const MAX_KEY_BYTES: usize = 1024;

/// 128-bit identity of a key: what headers, indexes and caches compare.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct KeyId {
    /// [`key_hash`] of the key.
    pub hash: u64,
    /// [`KeyHasher::check`] of the key: it differs from job to job.
    pub check: u64,
}

/// xxh64 of a key, seed 0: the half of its identity that is the same in every job, and selects the
/// hashed rank of a put.
#[inline]
pub fn key_hash(key: &[u8]) -> u64 {
    xxhash_rust::xxh64::xxh64(key, 0)
}

/// Bytes of the key of a [`KeyHasher`].
pub const HASHER_KEY_BYTES: usize = 16;

/// Computes the identities of one job's keys. All members of a job use the same hasher key; several
/// jobs in one process have one each.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct KeyHasher {
    key: [u8; HASHER_KEY_BYTES],
}

impl KeyHasher {
    /// Input of [`Self::fingerprint`].
    const LABEL: &[u8] = b"nkv: fingerprint of the key that hashes keys";

    /// A hasher with this key, which only the job's members may know.
    pub const fn new(key: [u8; HASHER_KEY_BYTES]) -> Self {
        Self { key }
    }

    /// Identity of a key.
    #[inline]
    pub fn id(&self, key: &[u8]) -> KeyId {
        KeyId { hash: key_hash(key), check: self.check(key) }
    }

    /// SipHash-2-4 of a key under the job's key.
    #[inline]
    pub fn check(&self, key: &[u8]) -> u64 {
        SipHasher24::new_with_key(&self.key).hash(key)
    }

    /// Equal if the hasher keys are equal. An observer can test guesses of a job secret against it,
    /// as against a handshake: use a random secret.
    pub fn fingerprint(&self) -> u64 {
        self.check(Self::LABEL)
    }

    /// The hasher key itself, to be sent to a new member.
    pub fn key(&self) -> [u8; HASHER_KEY_BYTES] {
        self.key
    }
}

/// A hasher for the tests of this crate.
#[cfg(test)]
pub(crate) const KEYS: KeyHasher = KeyHasher::new([7; HASHER_KEY_BYTES]);

impl std::fmt::Debug for KeyHasher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "KeyHasher(fingerprint {:016x})", self.fingerprint())
    }
}

impl std::fmt::Debug for KeyId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:016x}{:016x}", self.hash, self.check)
    }
}

/// A key: 1 to 1,024 arbitrary bytes. Clones share the bytes; each takes 8 bytes itself.
#[derive(Clone)]
pub struct Key(ThinBytes);

impl Key {
    /// Checks the length and copies the bytes.
    pub fn new(bytes: &[u8]) -> Result<Self, StoreError> {
        Self::check(bytes)?;
        ThinBytes::new(bytes).map(Self).ok_or(StoreError::BadKey { len: bytes.len() })
    }

    /// `BadKey` unless the length is 1 to [`MAX_KEY_BYTES`].
    pub fn check(bytes: &[u8]) -> Result<(), StoreError> {
        match bytes.len() {
            1..=MAX_KEY_BYTES => Ok(()),
            len => Err(StoreError::BadKey { len }),
        }
    }

    /// The key's bytes.
    pub fn as_bytes(&self) -> &[u8] {
        self.0.as_slice()
    }
}

impl AsRef<[u8]> for Key {
    fn as_ref(&self) -> &[u8] {
        self.as_bytes()
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl Eq for Key {}

impl PartialOrd for Key {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Key {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.as_bytes().cmp(other.as_bytes())
    }
}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_bytes().hash(state);
    }
}

impl std::fmt::Display for Key {
    /// UTF-8 where it is, escaped where it is not, cut after 64 bytes.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        const SHOWN: usize = 64;
        let bytes = self.as_bytes();
        let cut = &bytes[..bytes.len().min(SHOWN)];
        write!(f, "{}", cut.escape_ascii())?;
        if bytes.len() > SHOWN {
            write!(f, "... ({} bytes)", bytes.len())?;
        }
        Ok(())
    }
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "\"{self}\"")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_1_to_1024_bytes_of_anything() {
        assert!(Key::new(b"").is_err());
        assert!(Key::new(&[0xff; 1024]).is_ok());
        assert!(Key::new(&[0; 1025]).is_err());
    }

    /// The key of the published vectors: 00 01 02 ... 0f.
    const PUBLISHED: KeyHasher =
        KeyHasher::new([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]);

    #[test]
    fn i16_the_check_is_siphash_2_4_and_the_hash_xxh64_as_published() {
        // The vectors of the reference implementation: inputs 00 01 ... of that many bytes.
        for (len, vector) in [
            (0, 0x726f_db47_dd0e_0e31),
            (1, 0x74f8_39c5_93dc_67fd),
            (7, 0xab02_00f5_8b01_d137),
            (8, 0x93f5_f579_9a93_2462),
            // The example of the paper.
            (15, 0xa129_ca61_49be_45e5),
            (63, 0x958a_324c_eb06_4572_u64),
        ] {
            let input: Vec<u8> = (0..len).collect();
            assert_eq!(PUBLISHED.check(&input), vector, "{len} bytes");
        }
        let id = PUBLISHED.id(b"a");
        assert_eq!(id.hash, 0xd24e_c4f1_a98c_6e5b);
        assert_eq!(id.check, PUBLISHED.check(b"a"));
    }

    #[test]
    fn i16_another_job_has_other_checks_and_the_same_hashes() {
        let other = KeyHasher::new([7; HASHER_KEY_BYTES]);
        for key in [&b"a"[..], b"b", &[0; 1024]] {
            assert_ne!(PUBLISHED.check(key), other.check(key));
            assert_eq!(PUBLISHED.id(key).hash, other.id(key).hash);
        }
        assert_ne!(PUBLISHED.fingerprint(), other.fingerprint());
        assert_eq!(PUBLISHED, KeyHasher::new(PUBLISHED.key()));
    }

    #[test]
    fn i16_a_hasher_does_not_show_its_key() {
        let shown = format!("{PUBLISHED:?} {PUBLISHED:#?}");
        let fingerprint = format!("{:016x}", PUBLISHED.fingerprint());
        assert_eq!(shown.matches(&fingerprint).count(), 2, "{shown}");
        for part in ["0001020304", "0, 1, 2", "[0", "0706050403020100"] {
            assert!(!shown.contains(part), "{shown}");
        }
    }
}
