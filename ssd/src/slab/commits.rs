//! Writing down what was saved and removed: by whichever call comes first, for all that wait.

use super::journal::Journal;
use super::page::{ADD, REMOVE, Record};
use super::space::Placed;
use super::{SlabEngine, line_of};
use crate::directory::KeyDigest;
use crate::engine::SsdError;
use crate::sync::lock;
use std::sync::Arc;

/// A journal is begun anew when it is this many times as long as its objects need, and long.
const JOURNAL_GROWTH: u64 = 3;
const JOURNAL_MIN: u64 = 16 << 20;

/// What the journal does not say yet.
#[derive(Debug, Default)]
pub(super) struct Pending {
    pub(super) records: Vec<Record>,
    /// Space of removed objects: free from when the journal says so.
    pub(super) freed: Vec<Arc<Placed>>,
    /// Slabs written to since the last sync.
    written: Vec<bool>,
}

impl Pending {
    pub(super) fn note_write(&mut self, slab: usize) {
        if self.written.len() <= slab {
            self.written.resize(slab + 1, false);
        }
        self.written[slab] = true;
    }

    fn note_writes(&mut self, written: &[bool]) {
        let slabs = written.iter().enumerate().filter(|(_, written)| **written);
        slabs.for_each(|(slab, _)| self.note_write(slab));
    }
}

impl SlabEngine {
    /// Writes down all that is pending: for good, if the directory is durable. Calls that wait
    /// meanwhile find their lines written with those of the next one.
    pub(super) fn commit(&self) -> Result<(), SsdError> {
        self.commit_to(self.is_durable())
    }

    pub(super) fn commit_to(&self, durable: bool) -> Result<(), SsdError> {
        let mut journal = lock(&self.journal);
        let mut taken = std::mem::take(&mut *lock(&self.pending));
        let written = self.write_down(&mut journal, &mut taken, durable);
        if written.is_err() {
            // In front of what came meanwhile; nothing of it is forgotten.
            let mut pending = lock(&self.pending);
            let newer = std::mem::replace(&mut *pending, taken);
            pending.records.extend(newer.records);
            pending.freed.extend(newer.freed);
            pending.note_writes(&newer.written);
        } else if !durable && !taken.written.is_empty() {
            // Still to be synced, by whoever asks for it.
            lock(&self.pending).note_writes(&taken.written);
        }
        written
    }

    fn write_down(
        &self,
        journal: &mut Journal,
        pending: &mut Pending,
        durable: bool,
    ) -> Result<(), SsdError> {
        if durable {
            for slab in 0..pending.written.len() {
                if std::mem::take(&mut pending.written[slab])
                    && let Err(error) = self.slabs[slab].sync_data()
                {
                    // What was written since the last success may be lost, and a later sync that
                    // succeeds says nothing about it.
                    self.give_up_unsynced(pending, slab);
                    return Err(error.into());
                }
            }
        }
        if journal.is_broken() {
            *journal = self.begin_journal(journal.generation() + 1)?;
        }
        if !pending.records.is_empty() {
            journal.append(&pending.records)?;
        }
        if durable && (!pending.records.is_empty() || !journal.is_synced()) {
            journal.sync(&*self.storage)?;
        }
        Ok(())
    }

    /// Drops the objects of a slab whose lines are not written yet.
    fn give_up_unsynced(&self, pending: &mut Pending, slab: usize) {
        let mut state = lock(&self.state);
        let lost = |line: &&mut Record| line.kind == ADD && usize::from(line.slab) == slab;
        for line in pending.records.iter_mut().filter(lost) {
            let digest = KeyDigest(line.digest);
            if state.index.remove_if(&digest, line.seq).is_some() {
                self.count(|stats| stats.stale_index_cleaned += 1);
            }
            // A journal that was begun meanwhile may list it.
            *line = Record::of(REMOVE, digest, line.seq);
        }
    }

    /// Begins a journal with all objects that there are.
    fn begin_journal(&self, generation: u64) -> Result<Journal, SsdError> {
        let state = lock(&self.state);
        let objects: Vec<Record> = state.index.iter(0).map(|(_, entry)| line_of(entry)).collect();
        drop(state);
        let id = self.directory.id_bytes();
        Ok(Journal::begin(&*self.storage, id, generation, &objects)?)
    }

    /// Begins a new journal if this one has grown.
    pub(super) fn shorten_journal(&self) -> Result<(), SsdError> {
        let mut journal = lock(&self.journal);
        let needed = lock(&self.state).index.len() as u64 * size_of::<Record>() as u64;
        if journal.bytes() >= JOURNAL_MIN.max(JOURNAL_GROWTH * needed) {
            *journal = self.begin_journal(journal.generation() + 1)?;
        }
        Ok(())
    }
}
