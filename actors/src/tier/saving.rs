//! Saving on request. The object is read like by any client, from this host's memory in place, and
//! saved as one that was evicted is: what is in memory stays there.

use super::jobs::{Buffer, Job};
use super::{DiskTier, caught};
use crate::client::Blocking;
use crate::error::{Error, ErrorKind, Result};
use crate::message::Location;
use nkv_ssd::{Found, Object, Payload, Saved, SsdError};
use nkv_store::log_limit::LogLimit;
use nkv_store::{Key, Memory, OwnMemory};
use std::time::Duration;

/// Saves that are in progress at a time.
pub(super) const THREADS: usize = 2;
/// How often a save is tried while another call writes the key, and the pause between.
const BUSY_TRIES: u32 = 20;
const BUSY_PAUSE: Duration = Duration::from_millis(20);

impl DiskTier {
    /// One of the threads.
    pub(super) fn save_all(&self, client: &Blocking) {
        let (mut buffer, mut limit) = (Buffer::default(), LogLimit::default());
        while let Some(Job { key, .. }) = self.saves.next() {
            let done = caught(|| self.save_one(&key, client, &mut buffer)).flatten();
            buffer.let_go();
            if let Err(error) = &done {
                self.counters.save_asked_fail.one();
                tracing::debug!(%error, %key, "an object was not saved on request");
                let is_answer = matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Timeout);
                if !is_answer && limit.is_due((), self.clock.now_ms()) {
                    tracing::warn!(%error, "not saved on request; logged once a minute");
                }
            }
            self.saves.over(&key, &done);
        }
    }

    /// Returns the bytes of the object.
    fn save_one(&self, key: &Key, client: &Blocking, buffer: &mut Buffer) -> Result<u64> {
        self.counters.save_asked.one();
        if !self.feed.wait_for_key(key) {
            return Err(Error::timeout(format!("key {key} is still being written to disk")));
        }
        // A removal that begins from here on waits until this is over [I6].
        if self.removals.covers(key) {
            return Err(is_removed(key));
        }
        match client.stored_in_place(key.as_bytes()) {
            Ok(stored) => {
                let (memory, len) = stored.memory().ok_or_else(|| unread(key))?;
                let payload = Payload { memory, offset: stored.offset, len };
                self.save_from(key, u64::from(stored.page_bytes), payload)
            }
            Err(e) if e.kind() == ErrorKind::NotFound => match self.engine.find(key) {
                Some(found) => self.is_saved(key, found),
                None => Err(e),
            },
            // It lies in memory of another host, or of a device.
            Err(_) => self.save_copy(key, client, buffer),
        }
    }

    /// The same of what this process does not map, or could not view.
    fn save_copy(&self, key: &Key, client: &Blocking, buffer: &mut Buffer) -> Result<u64> {
        if let Location::Memory(meta) = client.get_location(key.as_bytes())? {
            let (len, layout) = (meta.object.bytes_total, u64::from(meta.object.page_bytes));
            if self.engine.find(key) == Some(Found { len, layout }) {
                return self.is_saved(key, Found { len, layout });
            }
        }
        let (bytes, page_bytes) = client.stored_uncounted(key.as_bytes())?;
        let len = bytes.len() as u64;
        let memory = buffer.of(len)?;
        memory.write(0, &bytes)?;
        drop(bytes);
        let own = OwnMemory::of(memory);
        self.save_from(key, page_bytes.into(), Payload { memory: &own, offset: 0, len })
    }

    fn save_from(&self, key: &Key, layout: u64, payload: Payload<'_>) -> Result<u64> {
        let len = payload.len;
        for _ in 0..BUSY_TRIES {
            let object = Object { key, layout, payload };
            match self.engine.save(&[object]).pop() {
                Some(Saved::Saved | Saved::Dedup) => {
                    return self.is_saved(key, Found { len, layout });
                }
                Some(Saved::Busy) => std::thread::sleep(BUSY_PAUSE),
                Some(Saved::Collision) => {
                    return Err(Error::invalid(format!(
                        "another object of key {key} was on this disk, which takes neither for an \
                         hour: remove the key and put it again, or save it at another rank"
                    )));
                }
                Some(Saved::Error(e @ SsdError::NoRoom { .. })) => {
                    return Err(Error::out_of_memory(format!(
                        "key {key} has no room on disk in one piece: {e}; give the rank a larger \
                         --ssd-bytes"
                    )));
                }
                Some(Saved::Error(e)) => {
                    return Err(Error::not_ready(format!("key {key} cannot be written: {e}")));
                }
                None => return Err(Error::internal("a save without a result")),
            }
        }
        Err(Error::timeout(format!("key {key} is still being written to disk")))
    }

    /// It outlives this process from here on.
    fn is_saved(&self, key: &Key, as_it_was: Found) -> Result<u64> {
        let kept = self.engine.maintain();
        kept.map_err(|e| Error::not_ready(format!("the journal cannot be written: {e}")))?;
        match self.engine.find(key) {
            Some(found) if found == as_it_was => Ok(found.len),
            _ => Err(Error::not_ready(format!("key {key} was dropped from disk again"))),
        }
    }
}

/// Why a key that is being removed is not saved.
pub(super) fn is_removed(key: &Key) -> Error {
    Error::not_ready(format!("key {key} is being removed"))
}

fn unread(key: &Key) -> Error {
    Error::internal(format!("key {key} is in view in memory that is not mapped"))
}
