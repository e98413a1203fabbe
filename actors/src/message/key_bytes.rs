//! A key in a message. Keys of logged objects come in millions: a key of usual length is stored
//! inline, and needs no allocation when it is decoded, stored or sent on.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use smallvec::SmallVec;
use std::borrow::Cow;
use std::ops::Deref;

/// Longest key that is stored inline, in bytes; longer ones are allocated.
const WITHIN: usize = 40;

/// See the file's first paragraph. Ordered by bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyBytes(SmallVec<[u8; WITHIN]>);

impl Deref for KeyBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl<K: AsRef<[u8]>> From<K> for KeyBytes {
    fn from(key: K) -> Self {
        Self(SmallVec::from_slice(key.as_ref()))
    }
}

impl From<KeyBytes> for Vec<u8> {
    fn from(key: KeyBytes) -> Self {
        key.0.into_vec()
    }
}

impl Serialize for KeyBytes {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_bytes(self)
    }
}

impl<'de> Deserialize<'de> for KeyBytes {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        // Borrowed from a frame, so that a short key is not allocated.
        let key: Cow<'de, [u8]> = serde_bytes::deserialize(from)?;
        Ok(key.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_of_any_length_comes_through_as_bytes_do() {
        for len in [0, 1, WITHIN - 1, WITHIN, WITHIN + 1, 300] {
            let plain: Vec<u8> = (0..len).map(|i| i as u8).collect();
            let key = KeyBytes::from(plain.as_slice());
            assert_eq!(key, KeyBytes::from(plain.clone()));
            let coded = bincode::serialize(&key).unwrap();
            // A length of eight bytes, then the key: what every version wrote.
            assert_eq!(coded[..8], (len as u64).to_le_bytes());
            assert_eq!(coded[8..], plain);
            assert_eq!(bincode::deserialize::<KeyBytes>(&coded).unwrap(), key);
            assert!(bincode::deserialize::<KeyBytes>(&coded[..coded.len() - 1]).is_err());
            assert_eq!(key.to_vec(), plain);
        }
    }
}
