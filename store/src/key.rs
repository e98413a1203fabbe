//! Keys and their 128-bit identity [I16]. Two keys never share an object: xxh64 (the source
//! document's `key_hash`) and the low half of XXH3-128 must both agree, and the master also keeps
//! the key string itself.

use crate::error::StoreError;

/// Longest key in bytes.
pub const MAX_KEY_BYTES: usize = 1024;

/// 128-bit identity of a key: what headers, indexes and caches compare.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KeyId {
    /// xxh64 of the key, seed 0.
    pub hash: u64,
    /// Low 64 bits of XXH3-128 of the key, seed 0.
    pub check: u64,
}

impl KeyId {
    /// Identity of the key bytes.
    pub fn of(key: &[u8]) -> Self {
        let check = xxhash_rust::xxh3::xxh3_128(key) as u64;
        Self { hash: xxhash_rust::xxh64::xxh64(key, 0), check }
    }
}

impl std::fmt::Debug for KeyId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:016x}{:016x}", self.hash, self.check)
    }
}

/// A key: 1 to 1,024 bytes of anything, shared cheaply.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(std::sync::Arc<[u8]>);

impl Key {
    /// Checks the length and copies the bytes.
    pub fn new(bytes: &[u8]) -> Result<Self, StoreError> {
        Self::check(bytes)?;
        Ok(Self(bytes.into()))
    }

    /// `BadKey` if these bytes are no key.
    pub fn check(bytes: &[u8]) -> Result<(), StoreError> {
        match bytes.len() {
            1..=MAX_KEY_BYTES => Ok(()),
            len => Err(StoreError::BadKey { len }),
        }
    }

    /// The key's bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Its 128-bit identity.
    pub fn id(&self) -> KeyId {
        KeyId::of(&self.0)
    }
}

impl std::fmt::Display for Key {
    /// UTF-8 where it is, escaped where it is not, cut after 64 bytes.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        const SHOWN: usize = 64;
        let cut = &self.0[..self.0.len().min(SHOWN)];
        write!(f, "{}", cut.escape_ascii())?;
        if self.0.len() > SHOWN {
            write!(f, "... ({} bytes)", self.0.len())?;
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

    #[test]
    fn i16_identity_is_the_two_published_hashes() {
        // Reference values of xxh64("") is irrelevant (empty keys are refused); "a" is published.
        let id = KeyId::of(b"a");
        assert_eq!(id.hash, 0xd24e_c4f1_a98c_6e5b);
        assert_eq!(id.check, xxhash_rust::xxh3::xxh3_128(b"a") as u64);
        assert_ne!(KeyId::of(b"a"), KeyId::of(b"b"));
    }
}
