//! A map from the slots of one segment, in chunks that are allocated while they hold anything. A
//! hash table of a million slots takes twice the bytes of its entries; slots are numbered one after
//! the other, so here nearly every cell is used.

/// Slots of a chunk. In a log an object of many units has one slot of as many: it should not pay
/// for a long chunk.
const CHUNK: usize = 32;
/// Chunks of a group: what a rank claims to have as its last slot costs no more than one of them.
const GROUP: usize = 1024;

type Group<T> = Box<[Option<Box<Chunk<T>>>]>;

#[derive(Debug)]
struct Chunk<T> {
    held: u32,
    cells: [Option<T>; CHUNK],
}

/// See the file's first paragraph.
#[derive(Debug)]
pub(crate) struct SlotMap<T> {
    slots: u32,
    groups: Vec<Option<Group<T>>>,
}

/// Group of a slot, its chunk there, and its cell in that.
fn parts(slot: u32) -> (usize, usize, usize) {
    let (chunk, cell) = (slot as usize / CHUNK, slot as usize % CHUNK);
    (chunk / GROUP, chunk % GROUP, cell)
}

impl<T> SlotMap<T> {
    /// For slots below `slots`.
    pub(crate) fn new(slots: u32) -> Self {
        Self { slots, groups: Vec::new() }
    }

    fn chunk(&self, slot: u32) -> Option<&Chunk<T>> {
        let (group, chunk, _) = parts(slot);
        self.groups.get(group)?.as_ref()?[chunk].as_deref()
    }

    pub(crate) fn get(&self, slot: u32) -> Option<&T> {
        self.chunk(slot)?.cells[slot as usize % CHUNK].as_ref()
    }

    pub(crate) fn contains(&self, slot: u32) -> bool {
        self.get(slot).is_some()
    }

    /// Replaces what the slot has. A slot that the segment does not have holds nothing.
    pub(crate) fn insert(&mut self, slot: u32, value: T) {
        if slot >= self.slots {
            return;
        }
        let (group, chunk, cell) = parts(slot);
        if group >= self.groups.len() {
            self.groups.resize_with(group + 1, || None);
        }
        let group = self.groups[group].get_or_insert_with(|| (0..GROUP).map(|_| None).collect());
        let empty = || Box::new(Chunk { held: 0, cells: [const { None }; CHUNK] });
        let chunk = group[chunk].get_or_insert_with(empty);
        chunk.held += u32::from(chunk.cells[cell].replace(value).is_none());
    }

    pub(crate) fn remove(&mut self, slot: u32) -> Option<T> {
        let (group, chunk, cell) = parts(slot);
        let at = &mut self.groups.get_mut(group)?.as_mut()?[chunk];
        let chunk = at.as_deref_mut()?;
        let value = chunk.cells[cell].take()?;
        chunk.held -= 1;
        if chunk.held == 0 {
            *at = None;
        }
        Some(value)
    }

    /// Removes what the slot has if `which` picks it.
    pub(crate) fn remove_if(&mut self, slot: u32, which: impl FnOnce(&T) -> bool) -> Option<T> {
        self.get(slot).is_some_and(which).then(|| self.remove(slot)).flatten()
    }

    /// In the order of the slots.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        let groups = self.groups.iter().enumerate();
        let groups = groups.filter_map(|(n, group)| Some((n * GROUP, group.as_ref()?)));
        let chunks = groups.flat_map(|(first, group)| {
            let chunks = group.iter().enumerate();
            chunks.filter_map(move |(n, chunk)| Some((first + n, chunk.as_deref()?)))
        });
        chunks.flat_map(|(n, chunk)| {
            let cells = chunk.cells.iter().enumerate();
            cells.filter_map(move |(i, cell)| Some(((n * CHUNK + i) as u32, cell.as_ref()?)))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{CHUNK, SlotMap};
    use hashbrown::HashMap;
    use proptest::prelude::*;

    const SLOTS: u32 = 4 * CHUNK as u32 + 3;

    #[test]
    fn i19_the_last_slot_of_the_longest_segment_takes_little_memory() {
        let mut map = SlotMap::new(u32::MAX);
        map.insert(u32::MAX - 1, 7);
        assert_eq!((map.get(u32::MAX - 1), map.groups.len()), (Some(&7), 1 << 17));
        assert_eq!(map.iter().collect::<Vec<_>>(), [(u32::MAX - 1, &7)]);
    }

    proptest! {
        #[test]
        fn it_is_a_map_of_the_slots_that_exist(
            steps in proptest::collection::vec((0..SLOTS + 9, 0..3u8, any::<u32>()), 0..200)
        ) {
            let (mut map, mut model) = (SlotMap::new(SLOTS), HashMap::new());
            for (slot, step, value) in steps {
                match step {
                    0 => prop_assert_eq!(map.remove(slot), model.remove(&slot)),
                    1 => {
                        let even = |value: &u32| value.is_multiple_of(2);
                        let known = model.get(&slot).is_some_and(even);
                        let gone = known.then(|| model.remove(&slot)).flatten();
                        prop_assert_eq!(map.remove_if(slot, even), gone);
                    }
                    _ => {
                        map.insert(slot, value);
                        if slot < SLOTS {
                            model.insert(slot, value);
                        }
                    }
                }
                prop_assert_eq!(map.get(slot), model.get(&slot));
                prop_assert_eq!(map.contains(slot), model.contains_key(&slot));
            }
            let mut all: Vec<_> = model.iter().map(|(slot, value)| (*slot, value)).collect();
            all.sort_unstable();
            prop_assert_eq!(map.iter().collect::<Vec<_>>(), all);
            let groups = map.groups.iter().flatten();
            let chunks = groups.flat_map(|group| group.iter()).flatten().count();
            let used = model.keys().map(|slot| slot / CHUNK as u32);
            let used: std::collections::BTreeSet<_> = used.collect();
            prop_assert_eq!(chunks, used.len(), "an empty chunk is given back");
        }
    }
}
