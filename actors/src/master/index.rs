//! The table of keys, in parts by the leading bits of their identity: a pass over the table can
//! stop after any part and continue later, and a growing table rehashes one part at a time, so
//! neither blocks the master for long. The parts hold numbers of entries, which lie in a slab. It
//! does not depend on the type of the entries.

use super::slab::{Number, Slab};
use hashbrown::HashTable;
use nkv_store::KeyId;

/// Parts are a power of two: about a thousand keys each when there are a million.
const PART_BITS: u32 = 10;

/// See the file's first paragraph.
pub(super) struct Index<T> {
    parts: Vec<HashTable<Number>>,
    entries: Slab<(KeyId, T)>,
}

impl<T> Default for Index<T> {
    fn default() -> Self {
        let parts = (0..1 << PART_BITS).map(|_| HashTable::new()).collect();
        Self { parts, entries: Slab::default() }
    }
}

fn part_of(id: &KeyId) -> usize {
    (id.hash >> (u64::BITS - PART_BITS)) as usize
}

/// An identity is a hash already. Its `check` is part of it: nobody outside the job can choose keys
/// that collide.
fn spread(id: &KeyId) -> u64 {
    id.hash.rotate_left(32) ^ id.check
}

/// The lowest identity of a part; None past the last one.
fn first_of(part: usize) -> Option<KeyId> {
    let hash = (part as u64) << (u64::BITS - PART_BITS);
    (part < 1 << PART_BITS).then_some(KeyId { hash, check: 0 })
}

impl<T> Index<T> {
    /// The number of the entry of a key.
    pub(super) fn number(&self, id: &KeyId) -> Option<Number> {
        let same = |number: &Number| self.entries.get(*number).is_some_and(|(its, _)| its == id);
        self.parts[part_of(id)].find(spread(id), same).copied()
    }

    /// The entry of a number, with its key. Numbers are used again after a removal.
    pub(super) fn at(&self, number: Number) -> Option<&(KeyId, T)> {
        self.entries.get(number)
    }

    pub(super) fn get(&self, id: &KeyId) -> Option<&T> {
        self.entries.get(self.number(id)?).map(|(_, entry)| entry)
    }

    pub(super) fn get_mut(&mut self, id: &KeyId) -> Option<&mut T> {
        let number = self.number(id)?;
        self.entries.get_mut(number).map(|(_, entry)| entry)
    }

    pub(super) fn contains_key(&self, id: &KeyId) -> bool {
        self.number(id).is_some()
    }

    /// Adds or replaces the entry of a key; returns its number.
    pub(super) fn insert(&mut self, id: KeyId, entry: T) -> Number {
        if let Some(number) = self.number(&id) {
            if let Some(known) = self.entries.get_mut(number) {
                known.1 = entry;
            }
            return number;
        }
        let number = self.entries.insert((id, entry));
        let entries = &self.entries;
        let hash = |number: &Number| entries.get(*number).map_or(0, |(id, _)| spread(id));
        self.parts[part_of(&id)].insert_unique(spread(&id), number, hash);
        number
    }

    pub(super) fn remove(&mut self, id: &KeyId) -> Option<T> {
        let entries = &self.entries;
        let same = |number: &Number| entries.get(*number).is_some_and(|(its, _)| its == id);
        let found = self.parts[part_of(id)].find_entry(spread(id), same).ok()?;
        let (number, _) = found.remove();
        self.entries.remove(number).map(|(_, entry)| entry)
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&KeyId, &T)> {
        self.entries.values().map(|(id, entry)| (id, entry))
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &T> {
        self.entries.values().map(|(_, entry)| entry)
    }

    /// At most `limit` entries, unordered, and the identity to continue at (None at the end): these
    /// are all entries between `from` and that identity. `limit` is at least 1.
    pub(super) fn slice(&self, from: KeyId, limit: usize) -> (Vec<(KeyId, &T)>, Option<KeyId>) {
        let mut found = Vec::new();
        let mut next = None;
        for part in part_of(&from)..self.parts.len() {
            let entries = self.parts[part].iter().filter_map(|number| self.entries.get(*number));
            let entries = entries.filter(|(id, _)| *id >= from);
            found.extend(entries.map(|(id, entry)| (*id, entry)));
            next = first_of(part + 1);
            if found.len() >= limit {
                break;
            }
        }
        if found.len() > limit {
            let (_, first_left, _) = found.select_nth_unstable_by_key(limit, |(id, _)| *id);
            next = Some(first_left.0);
            found.truncate(limit);
        }
        (found, next)
    }
}

#[cfg(test)]
mod tests {
    use super::Index;
    use nkv_store::{KeyHasher, KeyId};

    const KEYS: KeyHasher = KeyHasher::new([7; 16]);

    fn index(n: u64) -> Index<u64> {
        let mut index = Index::default();
        for i in 0..n {
            index.insert(KEYS.id(&i.to_le_bytes()), i);
        }
        index
    }

    /// Every entry that slices of `limit` return, with `between` called between two slices.
    fn pass(
        index: &mut Index<u64>,
        limit: usize,
        mut between: impl FnMut(&mut Index<u64>),
    ) -> Vec<u64> {
        let (mut all, mut from) = (Vec::new(), KeyId { hash: 0, check: 0 });
        loop {
            let (found, next) = index.slice(from, limit);
            assert!(found.len() <= limit && found.iter().all(|(id, _)| *id >= from));
            assert!(next.is_none_or(|n| n > from && found.iter().all(|(id, _)| *id < n)));
            all.extend(found.iter().map(|(_, i)| **i));
            match next {
                Some(n) => from = n,
                None => return all,
            }
            between(index);
        }
    }

    #[test]
    fn a_pass_of_any_step_shows_every_entry_once() {
        for (n, limit) in [(0, 1), (1, 1), (3_000, 1), (3_000, 7), (20_000, 64), (20_000, 100_000)]
        {
            let mut seen = pass(&mut index(n), limit, |_| {});
            seen.sort_unstable();
            assert!(seen.into_iter().eq(0..n), "{n} by {limit}");
        }
    }

    #[test]
    fn what_stays_is_shown_once_while_others_come_and_go() {
        let mut turn = 0;
        let mut seen = pass(&mut index(2_000), 16, |index| {
            turn += 1;
            // Odd ones are removed and new ones inserted, independent of the order of the pass.
            index.remove(&KEYS.id(&(2 * turn + 1u64).to_le_bytes()));
            index.insert(KEYS.id(&(10_000 + turn).to_le_bytes()), 10_000 + turn);
        });
        seen.retain(|i| *i < 10_000 && i % 2 == 0);
        seen.sort_unstable();
        assert!(seen.into_iter().eq((0..2_000).step_by(2)));
    }

    #[test]
    fn parts_are_one_table() {
        let mut index = index(5_000);
        let id = KEYS.id(&42u64.to_le_bytes());
        assert_eq!((index.get(&id), index.contains_key(&id)), (Some(&42), true));
        *index.get_mut(&id).unwrap() = 7;
        let number = index.number(&id).unwrap();
        assert_eq!((index.insert(id, 8), index.at(number)), (number, Some(&(id, 8))));
        assert_eq!((index.remove(&id), index.remove(&id)), (Some(8), None));
        assert_eq!((index.at(number), index.number(&id)), (None, None));
        assert_eq!((index.iter().count(), index.values().count()), (4_999, 4_999));
        index.clear();
        assert_eq!(index.values().count(), 0);
    }
}
