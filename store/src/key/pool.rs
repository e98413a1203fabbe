//! One copy of a key string for two that keep it in one process: the master and the owner of a
//! segment get the string by messages of their own, a moment apart. The first leaves a reference
//! here and the second takes it. Only a matter of memory: what is displaced meanwhile is copied.

use super::{Key, key_hash};
use crate::error::StoreError;
use std::sync::{Mutex, PoisonError};

/// Strings that wait for their second party, at most: several times what is on its way between
/// owner and master at one time.
const WAITING: usize = 1 << 16;
/// Longer ones are not kept, so that what waits in vain has few bytes.
const MAX_SHARED_BYTES: usize = 256;
/// Locks, so that two threads seldom wait for one another.
const LOCKS: usize = 64;

/// See the file's first paragraph.
#[derive(Debug, Default)]
pub struct KeyPool {
    /// By the low bits of the key's hash. Empty: nothing is shared.
    parts: Vec<Mutex<Vec<Option<Key>>>>,
}

impl KeyPool {
    /// For a process with a master and an owner; `KeyPool::default()` shares nothing.
    pub fn shared() -> Self {
        Self { parts: (0..LOCKS).map(|_| Mutex::default()).collect() }
    }

    /// A key of these bytes: the one that waits here, which waits no more, or a new one, which
    /// then waits. `BadKey` as of [`Key::new`].
    pub fn key(&self, bytes: &[u8]) -> Result<Key, StoreError> {
        self.one_of(bytes, || Key::new(bytes))
    }

    /// The same for a key that exists: the one that waits here, or this one, which then waits.
    pub fn unify(&self, key: Key) -> Key {
        self.one_of(key.as_bytes(), || Ok(key.clone())).unwrap_or(key)
    }

    fn one_of(
        &self,
        bytes: &[u8],
        new: impl FnOnce() -> Result<Key, StoreError>,
    ) -> Result<Key, StoreError> {
        let hash = key_hash(bytes) as usize;
        let part = self.parts.get(hash % LOCKS).filter(|_| bytes.len() <= MAX_SHARED_BYTES);
        let Some(part) = part else { return new() };
        let mut waiting = part.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.is_empty() {
            waiting.resize(WAITING / LOCKS, None);
        }
        let cell = &mut waiting[hash / LOCKS % (WAITING / LOCKS)];
        if let Some(same) = cell.take_if(|other| other.as_bytes() == bytes) {
            return Ok(same);
        }
        let key = new()?;
        *cell = Some(key.clone());
        Ok(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_one(a: &Key, b: &Key) -> bool {
        a.as_bytes().as_ptr() == b.as_bytes().as_ptr()
    }

    #[test]
    fn the_second_gets_the_memory_of_the_first_and_the_third_its_own() {
        let pool = KeyPool::shared();
        let [first, other, second, third] =
            ["k", "another", "k", "k"].map(|k| pool.key(k.as_bytes()).unwrap());
        assert!(is_one(&first, &second) && !is_one(&first, &third));
        assert_eq!((first.as_bytes(), other.as_bytes()), (&b"k"[..], &b"another"[..]));
        assert!(pool.key(b"").is_err());
        let given = Key::new(b"given").unwrap();
        let [first, second, third] =
            [given.clone(), Key::new(b"given").unwrap(), given.clone()].map(|key| pool.unify(key));
        assert!(is_one(&first, &given) && is_one(&second, &given) && is_one(&third, &given));
        let (long, none) = (vec![1; MAX_SHARED_BYTES + 1], KeyPool::default());
        assert!(!is_one(&pool.key(&long).unwrap(), &pool.key(&long).unwrap()));
        assert!(!is_one(&none.key(b"k").unwrap(), &none.key(b"k").unwrap()));
    }

    #[test]
    fn what_waits_in_vain_is_displaced() {
        let pool = KeyPool::shared();
        let keys: Vec<_> = (0..4 * WAITING).map(|i| format!("key {i}").into_bytes()).collect();
        let first: Vec<_> = keys.iter().map(|key| pool.key(key).unwrap()).collect();
        let second: Vec<_> = keys.iter().map(|key| pool.key(key).unwrap()).collect();
        assert!(keys.iter().zip(&second).all(|(bytes, key)| key.as_bytes() == bytes));
        // The last ones waited until now.
        let shared = first.iter().zip(&second).filter(|(a, b)| is_one(a, b)).count();
        assert!(shared <= WAITING, "{shared} of {}", keys.len());
        let waiting = |part: &Mutex<Vec<Option<Key>>>| part.lock().unwrap().len();
        assert_eq!(pool.parts.iter().map(waiting).sum::<usize>(), WAITING);
    }
}
