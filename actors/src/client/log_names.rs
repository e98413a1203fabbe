//! The key strings of a handle's objects in one log, until the owner has them. A put notes its key;
//! the Producer sends them in batches, and the owner asks for the rest before a listing.

use crate::message::{KeyBytes, KeyReport};
use nkv_store::device_log::LogLayout;
use nkv_store::{Key, KeyId, KeyPool};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Most keys reported to an owner in one frame, and per timer tick of the Producer.
pub(crate) const NAMES_PER_FRAME: usize = 1024;
pub(crate) const NAMES_PER_TICK: usize = 2048;

/// What a put notes of its object.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KeyNote<'a> {
    pub key: &'a [u8],
    /// The group that it belongs to.
    pub group: Option<KeyId>,
}

/// The same, until it is reported.
#[derive(Debug)]
struct Noted {
    position: u64,
    key: Key,
    group: Option<KeyId>,
}

/// See the file's first paragraph.
#[derive(Debug)]
pub(crate) struct LogNames {
    layout: LogLayout,
    // The highest limit of the log that a put has read. What reports keys posts no verbs.
    limit: AtomicU64,
    noted: Mutex<VecDeque<Noted>>,
    // Held from taking keys until they are in the queue to the owner: whoever finds none noted then
    // knows that all are on their way.
    sending: Mutex<()>,
}

impl LogNames {
    pub(crate) fn new(layout: LogLayout) -> Self {
        let (limit, noted, sending) = (AtomicU64::new(0), Mutex::default(), Mutex::default());
        Self { layout, limit, noted, sending }
    }

    pub(crate) fn layout(&self) -> &LogLayout {
        &self.layout
    }

    /// A put has read this limit.
    pub(crate) fn has_read(&self, limit: u64) {
        self.limit.fetch_max(limit, Ordering::Relaxed);
    }

    /// The highest limit read.
    pub(crate) fn limit(&self) -> u64 {
        self.limit.load(Ordering::Relaxed)
    }

    fn noted(&self) -> MutexGuard<'_, VecDeque<Noted>> {
        self.noted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes the key of an object that is READY.
    pub(crate) fn note(&self, position: u64, KeyNote { key, group }: KeyNote<'_>) {
        // Not while the lock is held. The put has checked the length.
        let Ok(key) = Key::new(key) else { return };
        let mut names = self.noted();
        if names.len() >= self.layout.slots() as usize {
            // The log has wrapped since: that object is gone.
            names.pop_front();
        }
        names.push_back(Noted { position, key, group });
    }

    /// Number of keys not reported yet.
    pub(crate) fn len(&self) -> usize {
        self.noted().len()
    }

    /// Puts back keys that could not be reported.
    pub(crate) fn put_back(&self, unsent: Vec<KeyReport>) {
        let mut names = self.noted();
        for n in unsent.into_iter().rev() {
            let key = n.key.into_key(&KeyPool::default());
            if let (Some(position), Ok(key)) = (self.layout.position(n.slot, n.epoch), key) {
                names.push_front(Noted { position, key, group: n.group });
            }
        }
        let excess = names.len().saturating_sub(self.layout.slots() as usize);
        names.drain(..excess);
    }

    /// Takes up to `most` keys to report. Drops keys of objects below the known tail: the log has
    /// overwritten them.
    pub(crate) fn take(&self, most: usize) -> Vec<KeyReport> {
        let tail = self.limit().saturating_sub(self.layout.log_bytes());
        let mut names = self.noted();
        let mut taken = Vec::new();
        while taken.len() < most
            && let Some(Noted { position, key, group }) = names.pop_front()
        {
            if let Some(epoch) = self.layout.epoch(position).filter(|_| position >= tail) {
                let slot = self.layout.slot(position);
                taken.push(KeyReport { slot, epoch, key: KeyBytes::shared(key), group });
            }
        }
        if names.is_empty() {
            // A flood may have made it as long as the log has slots.
            names.shrink_to(NAMES_PER_TICK);
        }
        taken
    }

    fn sending(&self) -> MutexGuard<'_, ()> {
        self.sending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// As `len`, when no `send` is between taking keys and sending them.
    pub(crate) fn len_alone(&self) -> usize {
        let _sending = self.sending();
        self.len()
    }

    /// As `take`, when no `send` is between taking keys and sending them.
    pub(crate) fn take_alone(&self, most: usize) -> Vec<KeyReport> {
        let _sending = self.sending();
        self.take(most)
    }

    /// Sends up to `most` keys in frames, until `queue` refuses one; returns how many it sent.
    pub(crate) fn send(&self, most: usize, queue: impl Fn(Vec<KeyReport>) -> bool) -> usize {
        let _sending = self.sending();
        let mut left = most.min(self.len());
        let mut sent = 0;
        while left > 0 {
            let names = self.take(left.min(NAMES_PER_FRAME));
            left = left.saturating_sub(names.len().max(1));
            if !names.is_empty() && !queue(names.clone()) {
                self.put_back(names);
                break;
            }
            sent += names.len();
        }
        sent
    }
}
