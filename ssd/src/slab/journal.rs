//! The journal: which objects are where, written page by page. A journal begins with all objects
//! that there are; when it has grown, a new one takes its place.

use super::page::{self, PageInfo, RECORDS, Record};
use crate::piece::{BLOCK, Piece};
use crate::storage::{BlockFile, Storage};
use nkv_store::Buffer;
use std::io;

/// Pages written or read at once.
const BATCH: u64 = 256;
/// Pages by which the file grows, filled with zeros: a page written into a hole takes longer to
/// become durable.
const GROWTH: u64 = 256;
const PREFIX: &str = "journal-";
const UNFINISHED: &str = ".tmp";

/// A journal that is written.
#[derive(Debug)]
pub struct Journal {
    file: Box<dyn BlockFile>,
    directory: [u8; 16],
    generation: u64,
    next: u64,
    synced: u64,
    filled: u64,
    snapshot_pages: u64,
    buffer: Buffer,
    /// The journal's name may be lost with the power.
    names_unsynced: bool,
    /// A write or a sync failed: what was appended since the last success may be lost, also if a
    /// later sync succeeds.
    broken: bool,
}

/// What was read.
#[derive(Debug, Default)]
pub struct Loaded {
    /// The number of the newest journal that there is; 0 if there is none.
    pub generation: u64,
    /// Pages that were on disk for good and are not whole any more. All objects that were saved
    /// before them are given up: a removal may have been written there.
    pub damaged_pages: u64,
}

fn name(generation: u64) -> String {
    format!("{PREFIX}{generation:016x}")
}

/// Journals have numbers below this one, which leaves 40 bits for the records of each.
pub const MOST_GENERATIONS: u64 = 1 << 23;

/// The number of a journal, if that is its name.
pub fn generation_of(found: &str) -> Option<u64> {
    let number = u64::from_str_radix(found.strip_prefix(PREFIX)?, 16).ok()?;
    (found == name(number) && number < MOST_GENERATIONS).then_some(number)
}

/// Whether this is what an interrupted [`Journal::begin`] left.
pub fn is_unfinished(found: &str) -> bool {
    found.strip_suffix(UNFINISHED).and_then(generation_of).is_some()
}

/// Numbers of the journals in a directory, newest first.
fn generations(storage: &dyn Storage) -> io::Result<Vec<u64>> {
    let mut found: Vec<_> = storage.list()?.iter().filter_map(|name| generation_of(name)).collect();
    found.sort_unstable_by(|one, other| other.cmp(one));
    Ok(found)
}

/// Reads the newest journal; one that is missing or empty counts as one damaged page. `each` gets
/// the records in order; None means that all before it are void.
///
/// # Errors
/// What the disk says.
pub fn load(
    storage: &dyn Storage,
    directory: [u8; 16],
    mut each: impl FnMut(Option<&Record>),
) -> io::Result<Loaded> {
    let mut loaded = Loaded::default();
    let Some(generation) = generations(storage)?.first().copied() else {
        loaded.damaged_pages = 1;
        return Ok(loaded);
    };
    loaded.generation = generation;
    let file = storage.open(&name(generation), false)?;
    let pages = file.size()? / BLOCK as u64;
    let mut buffer = Buffer::new(BATCH as usize * BLOCK).map_err(io::Error::other)?;
    let mut snapshot_pages = None;
    // Pages that could not be read since the last whole one: damaged if a later page was written
    // when they were on disk for good, else the end of what was written before a crash.
    let mut lost: Vec<u64> = Vec::new();
    let mut empty = 0;
    for first in (0..pages).step_by(BATCH as usize) {
        let some = BATCH.min(pages - first);
        let part = &mut buffer[..some as usize * BLOCK];
        file.read(first * BLOCK as u64, &mut [Piece::of_buffer(part)])?;
        for (number, bytes) in (first..).zip(part.chunks_exact(BLOCK)) {
            let read = page::decode(bytes, directory, generation);
            let Some((info, records)) = read.filter(|(info, _)| info.page == number) else {
                lost.push(number);
                empty += 1;
                continue;
            };
            let durable = lost.iter().filter(|lost| **lost < info.synced).count() as u64;
            let snapshot = *snapshot_pages.get_or_insert(info.snapshot_pages);
            if lost.iter().any(|lost| (snapshot..info.synced).contains(lost)) {
                each(None);
            }
            loaded.damaged_pages += durable;
            if durable < lost.len() as u64 {
                return Ok(loaded);
            }
            lost.clear();
            empty = 0;
            records.iter().for_each(|record| each(Some(record)));
        }
        // Nothing is written this far ahead.
        if empty > 2 * GROWTH {
            break;
        }
    }
    // A journal has its name only when all objects with which it begins are in it.
    let snapshot = snapshot_pages.unwrap_or(1);
    loaded.damaged_pages += lost.iter().filter(|lost| **lost < snapshot).count() as u64;
    if snapshot_pages.is_none() {
        loaded.damaged_pages = loaded.damaged_pages.max(1);
    }
    Ok(loaded)
}

impl Journal {
    /// Begins a journal with these records, and removes the older ones.
    ///
    /// # Errors
    /// What the disk says; the older journal is still there then.
    pub fn begin(
        storage: &dyn Storage,
        directory: [u8; 16],
        generation: u64,
        objects: &[Record],
    ) -> io::Result<Journal> {
        if generation >= MOST_GENERATIONS {
            return Err(io::Error::other(format!(
                "the directory had {MOST_GENERATIONS} journals: name another directory"
            )));
        }
        let finished = name(generation);
        let unfinished = format!("{finished}{UNFINISHED}");
        let file = storage.open(&unfinished, true)?;
        file.allocate(0)?;
        // One at least, so that an empty journal differs from a damaged one.
        let snapshot_pages = objects.len().div_ceil(RECORDS).max(1) as u64;
        let buffer = Buffer::new(BATCH as usize * BLOCK).map_err(io::Error::other)?;
        let mut journal = Self {
            file,
            directory,
            generation,
            next: 0,
            synced: 0,
            filled: 0,
            snapshot_pages,
            buffer,
            names_unsynced: true,
            broken: false,
        };
        // Whole until the first page after it says otherwise: a journal is renamed when it is.
        journal.synced = snapshot_pages;
        match objects {
            [] => journal.append_empty_page()?,
            _ => journal.append(objects)?,
        }
        journal.fill()?;
        journal.file.sync_data()?;
        journal.synced = journal.next;
        storage.rename(&unfinished, &finished)?;
        // From here on this is the journal that a start reads, whatever fails.
        journal.replace_older(storage);
        Ok(journal)
    }

    /// Makes the journal's name last, and removes older journals; tried again with the next sync.
    fn replace_older(&mut self, storage: &dyn Storage) {
        let done = (|| {
            storage.sync_names()?;
            self.names_unsynced = false;
            let older = generations(storage)?.into_iter().filter(|older| *older < self.generation);
            older.map(name).try_for_each(|older| storage.remove(&older))
        })();
        if let Err(error) = done {
            tracing::warn!(%error, "{}: an older journal is still there", storage.shown());
        }
    }

    /// True after an error: a new journal is to be begun.
    pub fn is_broken(&self) -> bool {
        self.broken
    }

    /// Its number.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Bytes written.
    pub fn bytes(&self) -> u64 {
        self.next * BLOCK as u64
    }

    /// True if everything that was appended is on disk for good.
    pub fn is_synced(&self) -> bool {
        self.synced == self.next && !self.names_unsynced
    }

    /// Writes records. After an error the journal is broken.
    ///
    /// # Errors
    /// What the disk says.
    pub fn append(&mut self, records: &[Record]) -> io::Result<()> {
        let appended = self.append_pages(records);
        self.broken |= appended.is_err();
        appended
    }

    fn append_pages(&mut self, records: &[Record]) -> io::Result<()> {
        let (directory, generation) = (self.directory, self.generation);
        let (synced, snapshot_pages) = (self.synced, self.snapshot_pages);
        for batch in records.chunks(BATCH as usize * RECORDS) {
            let pages = batch.len().div_ceil(RECORDS);
            for (at, (into, records)) in
                self.buffer.chunks_exact_mut(BLOCK).zip(batch.chunks(RECORDS)).enumerate()
            {
                let page = self.next + at as u64;
                let info = PageInfo { generation, page, synced, snapshot_pages };
                page::encode(into, directory, info, records);
            }
            if self.next + pages as u64 > self.filled && self.filled > 0 {
                self.grow(pages as u64)?;
            }
            let part = &mut self.buffer[..pages * BLOCK];
            self.file.write(self.next * BLOCK as u64, &[Piece::of_buffer(part)])?;
            self.next += pages as u64;
        }
        Ok(())
    }

    fn append_empty_page(&mut self) -> io::Result<()> {
        let Self { generation, next: page, synced, snapshot_pages, .. } = *self;
        let part = &mut self.buffer[..BLOCK];
        page::encode(
            part,
            self.directory,
            PageInfo { generation, page, synced, snapshot_pages },
            &[],
        );
        self.file.write(page * BLOCK as u64, &[Piece::of_buffer(part)])?;
        self.next += 1;
        Ok(())
    }

    /// What was appended survives power loss from its return on.
    ///
    /// # Errors
    /// What the disk says; the journal is broken then, unless only its name is not synced.
    pub fn sync(&mut self, storage: &dyn Storage) -> io::Result<()> {
        let synced = self.file.sync_data();
        self.broken |= synced.is_err();
        synced?;
        if self.names_unsynced {
            storage.sync_names()?;
            self.names_unsynced = false;
        }
        self.synced = self.next;
        Ok(())
    }

    /// Takes room on disk ahead, from the first page that is not written.
    fn fill(&mut self) -> io::Result<()> {
        self.filled = self.next;
        self.grow(0)
    }

    fn grow(&mut self, pages: u64) -> io::Result<()> {
        let mut zeros = Buffer::new(BATCH as usize * BLOCK).map_err(io::Error::other)?;
        let until = self.next + pages + GROWTH;
        while self.filled < until {
            let part = &mut zeros[..(BATCH.min(until - self.filled) as usize) * BLOCK];
            let grown = part.len() as u64 / BLOCK as u64;
            self.file.write(self.filled * BLOCK as u64, &[Piece::of_buffer(part)])?;
            self.filled += grown;
        }
        Ok(())
    }
}
