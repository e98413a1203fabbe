//! A queue that counts what went in and out, so that one can tell when all that was in it at a time
//! is out.

use std::collections::VecDeque;

/// Capacity that an empty queue keeps.
const KEEPS: usize = 2048;

/// See the file's first paragraph.
#[derive(Debug)]
pub(crate) struct CountedQueue<T> {
    queue: VecDeque<T>,
    put: u64,
}

impl<T> Default for CountedQueue<T> {
    fn default() -> Self {
        Self { queue: VecDeque::new(), put: 0 }
    }
}

impl<T> CountedQueue<T> {
    pub(crate) fn push(&mut self, item: T) {
        self.queue.push_back(item);
        self.put += 1;
    }

    pub(crate) fn pop(&mut self) -> Option<T> {
        let item = self.queue.pop_front();
        if item.is_none() {
            self.queue.shrink_to(KEEPS);
        }
        item
    }

    pub(crate) fn len(&self) -> usize {
        self.queue.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Number of items ever put in.
    pub(crate) fn put(&self) -> u64 {
        self.put
    }

    /// Number of items ever taken out.
    pub(crate) fn taken(&self) -> u64 {
        self.put - self.queue.len() as u64
    }
}

impl<T> Extend<T> for CountedQueue<T> {
    fn extend<I: IntoIterator<Item = T>>(&mut self, items: I) {
        items.into_iter().for_each(|item| self.push(item));
    }
}
