//! A key in a message. Keys of logged objects come in millions: one of usual length is stored
//! inline, and needs no allocation when it is decoded or sent on; one that this process keeps
//! already is shared.

use nkv_store::{Key, KeyPool, StoreError};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::borrow::Cow;
use std::hash::{Hash, Hasher};
use std::ops::Deref;

/// Longest key that is stored inline, in bytes.
const WITHIN: usize = 46;

/// See the file's first paragraph. Compared and ordered by bytes.
#[derive(Clone)]
pub struct KeyBytes(Bytes);

#[derive(Clone)]
enum Bytes {
    Inline { len: u8, bytes: [u8; WITHIN] },
    Shared(Key),
    // Longer than `WITHIN`; as decoded it may be longer than a key can be.
    Long(Box<[u8]>),
}

impl KeyBytes {
    /// The bytes of a key, which are not copied.
    pub(crate) fn shared(key: Key) -> Self {
        Self(Bytes::Shared(key))
    }

    /// The key, which may wait in the pool or be taken from it. `BadKey` as of [`Key::new`].
    pub(crate) fn into_key(self, pool: &KeyPool) -> Result<Key, StoreError> {
        match self.0 {
            Bytes::Shared(key) => Ok(pool.unify(key)),
            _ => pool.key(&self),
        }
    }
}

impl Deref for KeyBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Bytes::Inline { len, bytes } => &bytes[..usize::from(*len)],
            Bytes::Shared(key) => key.as_bytes(),
            Bytes::Long(bytes) => bytes,
        }
    }
}

impl Default for KeyBytes {
    fn default() -> Self {
        Self(Bytes::Inline { len: 0, bytes: [0; WITHIN] })
    }
}

impl<K: AsRef<[u8]>> From<K> for KeyBytes {
    fn from(key: K) -> Self {
        let key = key.as_ref();
        let mut bytes = [0; WITHIN];
        Self(match bytes.get_mut(..key.len()) {
            Some(within) => {
                within.copy_from_slice(key);
                Bytes::Inline { len: key.len() as u8, bytes }
            }
            None => Bytes::Long(key.into()),
        })
    }
}

impl From<KeyBytes> for Vec<u8> {
    fn from(key: KeyBytes) -> Self {
        key.to_vec()
    }
}

impl std::fmt::Debug for KeyBytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("KeyBytes").field(&&**self).finish()
    }
}

impl PartialEq for KeyBytes {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for KeyBytes {}

impl PartialOrd for KeyBytes {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for KeyBytes {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (**self).cmp(&**other)
    }
}

impl Hash for KeyBytes {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (**self).hash(state);
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
        assert_eq!(size_of::<KeyBytes>(), 48);
    }

    #[test]
    fn a_shared_key_is_the_same_bytes_and_stays_shared() {
        let (key, pool) = (Key::new(b"layer/0").unwrap(), KeyPool::default());
        let (shared, inline) = (KeyBytes::shared(key.clone()), KeyBytes::from(b"layer/0"));
        assert_eq!(shared, inline);
        assert_eq!(bincode::serialize(&shared).unwrap(), bincode::serialize(&inline).unwrap());
        let again = shared.clone().into_key(&pool).unwrap();
        assert_eq!(again.as_bytes().as_ptr(), key.as_bytes().as_ptr());
        assert_eq!(inline.into_key(&pool).unwrap(), key);
        assert!(KeyBytes::default().into_key(&pool).is_err());
    }
}
