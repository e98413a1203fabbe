//! Values at numbers of 32 bits that stay theirs. A hash table that holds the numbers wastes less,
//! where it is half empty, than one that holds the values; and nothing is moved when it grows.

use std::num::NonZeroU32;

/// Values of a chunk: a slab grows by so many.
const CHUNK: usize = 256;

/// The number of a value in its slab.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Number(NonZeroU32);

impl Number {
    fn index(self) -> (usize, usize) {
        let index = self.0.get() as usize - 1;
        (index / CHUNK, index % CHUNK)
    }
}

enum Cell<T> {
    Used(T),
    /// The number of the next free cell.
    Free(Option<NonZeroU32>),
}

/// See the file's first paragraph.
pub(super) struct Slab<T> {
    chunks: Vec<Vec<Cell<T>>>,
    free: Option<NonZeroU32>,
    len: usize,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self { chunks: Vec::new(), free: None, len: 0 }
    }
}

impl<T> Slab<T> {
    pub(super) fn get(&self, number: Number) -> Option<&T> {
        let (chunk, cell) = number.index();
        match self.chunks.get(chunk)?.get(cell)? {
            Cell::Used(value) => Some(value),
            Cell::Free(_) => None,
        }
    }

    pub(super) fn get_mut(&mut self, number: Number) -> Option<&mut T> {
        let (chunk, cell) = number.index();
        match self.chunks.get_mut(chunk)?.get_mut(cell)? {
            Cell::Used(value) => Some(value),
            Cell::Free(_) => None,
        }
    }

    /// Panics beyond 2^32 - 1 values, as a table does that has no memory left: they would take
    /// hundreds of GiB.
    pub(super) fn insert(&mut self, value: T) -> Number {
        self.len += 1;
        if let Some(free) = self.free {
            let number = Number(free);
            let (chunk, cell) = number.index();
            let cell = &mut self.chunks[chunk][cell];
            if let Cell::Free(next) = cell {
                self.free = *next;
            }
            *cell = Cell::Used(value);
            return number;
        }
        if self.chunks.last().is_none_or(|chunk| chunk.len() == CHUNK) {
            self.chunks.push(Vec::with_capacity(CHUNK));
        }
        let full = self.chunks.len() - 1;
        let chunk = &mut self.chunks[full];
        chunk.push(Cell::Used(value));
        let number = u32::try_from(full * CHUNK + chunk.len()).ok().and_then(NonZeroU32::new);
        Number(number.expect("less than 2^32 values"))
    }

    pub(super) fn remove(&mut self, number: Number) -> Option<T> {
        let (chunk, cell) = number.index();
        let cell = self.chunks.get_mut(chunk)?.get_mut(cell)?;
        if matches!(cell, Cell::Free(_)) {
            return None;
        }
        let removed = std::mem::replace(cell, Cell::Free(self.free));
        self.free = Some(number.0);
        self.len -= 1;
        if self.len == 0 {
            // All memory goes back at once: a slab that was filled once stays small afterwards.
            *self = Self::default();
        }
        match removed {
            Cell::Used(value) => Some(value),
            Cell::Free(_) => None,
        }
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &T> {
        self.chunks.iter().flatten().filter_map(|cell| match cell {
            Cell::Used(value) => Some(value),
            Cell::Free(_) => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{CHUNK, Slab};

    #[test]
    fn a_number_is_its_values_until_it_is_removed_and_then_used_again() {
        let mut slab = Slab::default();
        let n = 3 * CHUNK + 1;
        let numbers: Vec<_> = (0..n).map(|i| slab.insert(i)).collect();
        assert!(numbers.iter().enumerate().all(|(i, number)| slab.get(*number) == Some(&i)));
        assert!(slab.values().copied().eq(0..n));
        for i in [5, n - 1, 0] {
            assert_eq!((slab.remove(numbers[i]), slab.remove(numbers[i])), (Some(i), None));
            assert!(slab.get(numbers[i]).is_none() && slab.get_mut(numbers[i]).is_none());
        }
        assert_eq!(slab.values().count(), n - 3);
        let again: Vec<_> = (0..3).map(|i| slab.insert(n + i)).collect();
        assert_eq!(again, [numbers[0], numbers[n - 1], numbers[5]]);
        assert_eq!(slab.insert(0).index(), (3, 1), "and then a new one");
        *slab.get_mut(again[0]).unwrap() = 7;
        assert_eq!(slab.get(numbers[0]), Some(&7));
    }

    #[test]
    fn the_last_value_takes_the_memory_along() {
        let mut slab = Slab::default();
        let numbers: Vec<_> = (0..2 * CHUNK).map(|i| slab.insert(i)).collect();
        for number in &numbers {
            assert!(slab.remove(*number).is_some());
        }
        assert!(slab.chunks.is_empty() && slab.remove(numbers[0]).is_none());
        assert_eq!(slab.insert(1), numbers[0]);
    }
}
