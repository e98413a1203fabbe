//! Work for one thread, or in a simulation for one task: nothing there may run beside it.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

#[derive(Debug)]
struct State<T> {
    waiting: VecDeque<T>,
    closed: bool,
}

/// A bounded queue; its worker sleeps while it is empty.
#[derive(Debug)]
pub(crate) struct WorkQueue<T> {
    state: Mutex<State<T>>,
    most: usize,
    changed: Condvar,
    // The same for a task.
    woken: Notify,
}

impl<T> WorkQueue<T> {
    /// For so many items at most.
    pub fn new(most: usize) -> Self {
        let state = Mutex::new(State { waiting: VecDeque::new(), closed: false });
        Self { state, most, changed: Condvar::new(), woken: Notify::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// False if it is full or closed.
    pub fn push(&self, item: T) -> bool {
        let mut state = self.lock();
        if state.closed || state.waiting.len() >= self.most {
            return false;
        }
        state.waiting.push_back(item);
        drop(state);
        self.changed.notify_one();
        self.woken.notify_one();
        true
    }

    /// What waits is dropped; the worker ends after the item that it has now.
    pub fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        // Dropped without the lock.
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        drop(waiting);
        self.changed.notify_all();
        self.woken.notify_one();
    }

    /// The next item, for a thread; None once it is closed.
    pub fn next_blocking(&self) -> Option<T> {
        let mut state = self.lock();
        while state.waiting.is_empty() && !state.closed {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.waiting.pop_front()
    }

    /// The same for a task.
    pub async fn next(&self) -> Option<T> {
        loop {
            {
                let mut state = self.lock();
                if state.closed || !state.waiting.is_empty() {
                    return state.waiting.pop_front();
                }
            }
            self.woken.notified().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn items_come_in_order_up_to_a_bound_and_none_after_the_close() {
        let queue = WorkQueue::new(2);
        assert!(queue.push(1) && queue.push(2) && !queue.push(3));
        assert_eq!(queue.next_blocking(), Some(1));
        assert_eq!(queue.next().await, Some(2));
        assert!(queue.push(4));
        queue.close();
        assert_eq!((queue.next_blocking(), queue.next().await), (None, None));
        assert!(!queue.push(5));
    }

    #[tokio::test]
    async fn whoever_waits_is_woken_by_an_item_and_by_the_close() {
        let queue = WorkQueue::new(1);
        let work = async { (queue.next().await, queue.next().await) };
        let give = async {
            tokio::task::yield_now().await;
            assert!(queue.push(7));
            tokio::task::yield_now().await;
            queue.close();
        };
        assert_eq!(tokio::join!(work, give).0, (Some(7), None));
    }
}
