//! What must not be reused before its quarantine is over [I8]: retired slots of the heap, retired
//! claims of a log. Decides nothing and reads no clock.

use std::collections::VecDeque;

/// A queue in the order in which quarantines end.
#[derive(Debug, Default)]
pub(crate) struct Quarantine<T> {
    /// Ends never decrease.
    queue: VecDeque<(u64, T)>,
    /// How many entries at the back were added since the last `restart`.
    unsettled: usize,
}

impl<T> Quarantine<T> {
    pub(crate) fn begin(&mut self, what: T, until_ns: u64) {
        // If the caller's clock went back, a later entry must still not end before an earlier one.
        let last = self.queue.back().map_or(0, |(until, _)| *until);
        self.queue.push_back((until_ns.max(last), what));
        self.unsettled += 1;
    }

    /// Quarantines begun since the last call end no earlier than `until_ns`.
    pub(crate) fn restart(&mut self, until_ns: u64) {
        let from = self.queue.len() - self.unsettled;
        for entry in self.queue.range_mut(from..) {
            entry.0 = entry.0.max(until_ns);
        }
        self.unsettled = 0;
    }

    /// The next whose quarantine is over, and when it ended.
    pub(crate) fn due(&mut self, now_ns: u64) -> Option<(u64, T)> {
        let due = self.queue.pop_front_if(|(until, _)| *until <= now_ns)?;
        self.unsettled = self.unsettled.min(self.queue.len());
        Some(due)
    }

    pub(crate) fn next_due_ns(&self) -> Option<u64> {
        self.queue.front().map(|(until, _)| *until)
    }
}
