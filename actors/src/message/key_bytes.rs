//! A key in a message. Keys of logged objects come in millions: a key of usual length is stored
//! inline, and needs no allocation when it is decoded, stored or sent on.

use serde::de::{Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use smallvec::SmallVec;
use std::fmt;
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

impl From<&[u8]> for KeyBytes {
    fn from(key: &[u8]) -> Self {
        Self(SmallVec::from_slice(key))
    }
}

impl From<Vec<u8>> for KeyBytes {
    fn from(key: Vec<u8>) -> Self {
        Self(SmallVec::from_vec(key))
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
        from.deserialize_bytes(Bytes)
    }
}

struct Bytes;

impl<'de> Visitor<'de> for Bytes {
    type Value = KeyBytes;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the bytes of a key")
    }

    fn visit_bytes<E: serde::de::Error>(self, key: &[u8]) -> Result<KeyBytes, E> {
        Ok(key.into())
    }

    fn visit_byte_buf<E: serde::de::Error>(self, key: Vec<u8>) -> Result<KeyBytes, E> {
        Ok(key.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, _: A) -> Result<KeyBytes, A::Error> {
        Err(A::Error::custom("a key comes as bytes, not one by one"))
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
            assert_eq!(Vec::from(key), plain);
        }
    }
}
