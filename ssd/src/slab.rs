//! The default engine: records in a few large files that were made before, and a journal of where
//! they are. A save is one write; a thousand small files would each be four or more.
//!
//! - A save writes its record, then its line of the journal. Under [`Durability::Persistent`] both
//!   are on disk for good before it returns, for all saves that wait at that moment at once.
//! - Space is used again only after the journal says that it is free, so that no entry that may be
//!   read after a crash leads to bytes of another object [I23]; and each record says in which
//!   directory, at which place and as which number it was written [I21].

mod commits;
mod journal;
mod opened;
mod page;
mod space;

use crate::directory::{Directory, KeyDigest};
use crate::engine::{
    Durability, Engine, Found, LoadError, Object, Payload, Saved, SsdError, Stats, Validated,
    WallClock, unacknowledge,
};
use crate::index::{Begun, Entry, Index};
use crate::piece::{BLOCK, Buffers};
use crate::record::{Header, header_bytes};
use crate::record_io::{self, Unread, record_bytes};
use crate::storage::{BlockFile, Storage};
use crate::sync::{lock, undone_by_panic};
use commits::Pending;
use journal::Journal;
use nkv_store::Key;
pub(crate) use opened::slabs_up_to;
use page::{ADD, REMOVE, Record, USED};
use space::{Placed, Space};
use std::fmt;
use std::sync::{Arc, Mutex};

/// How an engine keeps objects.
#[derive(Clone)]
pub struct SlabOptions {
    /// Bytes that slabs may take in all. The journal comes on top: 64 bytes for each object, up to
    /// four times that while it is begun anew, and 16 MiB at least.
    pub capacity_bytes: u64,
    /// Bytes of one slab: the longest record. Fixed when the directory is made.
    pub slab_bytes: u64,
    /// When a save counts as done.
    pub durability: Durability,
    /// Objects that nobody used for this long are removed.
    pub ttl_s: u64,
    /// Where the time comes from.
    pub clock: WallClock,
}

impl fmt::Debug for SlabOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SlabOptions")
            .field("capacity_bytes", &self.capacity_bytes)
            .field("slab_bytes", &self.slab_bytes)
            .field("durability", &self.durability)
            .field("ttl_s", &self.ttl_s)
            .finish_non_exhaustive()
    }
}

/// See the module.
#[derive(Debug)]
pub struct SlabEngine {
    storage: Arc<dyn Storage>,
    directory: Directory,
    options: SlabOptions,
    slabs: Vec<Box<dyn BlockFile>>,
    state: Mutex<State>,
    pending: Mutex<Pending>,
    journal: Mutex<Journal>,
    buffers: Buffers,
    stats: Mutex<Stats>,
}

#[derive(Debug)]
struct State {
    index: Index<Arc<Placed>>,
    space: Space,
    next_seq: u64,
}

/// Lines of the journal that may wait; more of them, and saves are refused until it can be written.
const MOST_PENDING: usize = 65_536;
/// How often room is made before a save is refused.
const TRIES: usize = 8;
/// What is removed at once when there is no room, as a part of the capacity.
const EVICTED_AT_ONCE: u64 = 256;
/// Objects that `remove_all` takes out between two writes of the journal.
const REMOVED_AT_ONCE: u64 = 16_384;
/// Objects whose time to live is looked at in one call of `maintain`.
const EXPIRED_AT_ONCE: usize = 4096;
/// A use is written down if the last one that was is older than this part of the time to live.
const NOTED_PARTS: u64 = 16;
impl SlabEngine {
    fn now_s(&self) -> u64 {
        (self.options.clock)()
    }

    fn count(&self, what: impl FnOnce(&mut Stats)) {
        what(&mut lock(&self.stats));
    }

    fn is_durable(&self) -> bool {
        self.options.durability == Durability::Persistent
    }

    fn read_entry(&self, entry: &Entry<Arc<Placed>>, into: &Payload<'_>) -> Result<Header, Unread> {
        let file = &*self.slabs[usize::from(entry.location.slab)];
        let header_len = entry.location.header_bytes;
        let offset = entry.location.extent.offset;
        let header = record_io::read(file, offset, header_len, into, &self.buffers)?;
        self.is_of(&header, entry).map_err(Unread::Corrupt)?;
        Ok(header)
    }

    /// Decides about an object, and takes a place and a number for it.
    fn begin(&self, object: &Object<'_>) -> Result<Entry<Arc<Placed>>, Saved> {
        let digest = self.directory.digest(object.key.as_bytes());
        let found = Found { len: object.payload.len, layout: object.layout };
        if lock(&self.pending).records.len() > MOST_PENDING {
            let full = std::io::Error::other("the journal cannot be written: see earlier errors");
            return Err(Saved::Error(full.into()));
        }
        let used_s = self.now_s();
        let mut state = lock(&self.state);
        let seq = state.next_seq;
        let header_len = header_bytes(object.key, object.payload.len);
        let bytes = record_bytes(header_len, object.payload.len);
        match state.index.begin(digest, found, (seq, bytes), used_s) {
            Begun::Write => state.next_seq += 1,
            Begun::Settled(saved) => {
                if matches!(saved, Saved::Dedup) {
                    self.note_use(&mut state, digest, used_s);
                }
                return Err(saved);
            }
            Begun::Collided(old) => {
                self.forget(old);
                drop(state);
                let _ = self.commit();
                return Err(Saved::Collision);
            }
        }
        drop(state);
        match self.take_space(header_len, bytes) {
            Ok(space) => Ok(Entry {
                digest,
                seq,
                len: found.len,
                layout: found.layout,
                bytes: space.extent.len,
                used_s,
                noted_s: used_s,
                location: Arc::new(space),
            }),
            Err(error) => {
                lock(&self.state).index.abandon(&digest, seq);
                Err(Saved::Error(error))
            }
        }
    }

    /// Takes room for a record; removes what was used longest ago while there is none.
    fn take_space(&self, header_bytes: u64, bytes: u64) -> Result<Placed, SsdError> {
        for _ in 0..TRIES {
            {
                let mut state = lock(&self.state);
                if let Some(taken) = state.space.take(header_bytes, bytes) {
                    return Ok(taken);
                }
                if bytes > self.directory.slab_bytes {
                    break;
                }
                // What was removed before is free first: a journal that cannot be written does not
                // empty the directory.
                if lock(&self.pending).freed.is_empty() {
                    let part = self.options.capacity_bytes / EVICTED_AT_ONCE;
                    self.evict(&mut state, bytes.max(part));
                }
            }
            self.commit()?;
        }
        let state = lock(&self.state);
        let (used, capacity) = (state.space.used_bytes(), state.space.capacity());
        Err(SsdError::NoRoom { asked: bytes, used, capacity })
    }

    fn evict(&self, state: &mut State, bytes: u64) {
        let mut evicted = 0;
        while evicted < bytes
            && let Some(entry) = state.index.oldest(None)
        {
            evicted += entry.bytes;
            self.count(|stats| stats.evicted += 1);
            self.forget(entry);
        }
    }

    /// Notes a use, and writes it down now and then: the time to live counts days.
    fn note_use(&self, state: &mut State, digest: KeyDigest, now_s: u64) {
        let after_s = self.options.ttl_s / NOTED_PARTS;
        if let Some(seq) = state.index.touch_and_note(&digest, now_s, after_s) {
            let used_s = u32::try_from(now_s).unwrap_or(u32::MAX);
            lock(&self.pending).records.push(Record { used_s, ..Record::of(USED, digest, seq) });
        }
    }

    /// Notes that an object was removed from the index.
    fn forget(&self, entry: Entry<Arc<Placed>>) {
        let mut pending = lock(&self.pending);
        pending.records.push(Record::of(REMOVE, entry.digest, entry.seq));
        pending.freed.push(entry.location);
    }

    /// Writes one record.
    fn write(&self, object: &Object<'_>, entry: &Entry<Arc<Placed>>) -> Result<(), SsdError> {
        let mut header = Header {
            directory: self.directory.id.clone(),
            offset: entry.location.extent.offset,
            seq: entry.seq,
            key: object.key.clone(),
            layout: object.layout,
            len: object.payload.len,
            sums: Vec::new(),
        };
        let slab = usize::from(entry.location.slab);
        record_io::write(&*self.slabs[slab], &mut header, &object.payload, &self.buffers)
    }

    fn save_one(&self, object: &Object<'_>) -> Saved {
        let entry = match self.begin(object) {
            Ok(entry) => entry,
            Err(saved) => return saved,
        };
        let abandon = || lock(&self.state).index.abandon(&entry.digest, entry.seq);
        let written = undone_by_panic(|| self.write(object, &entry), abandon);
        let mut state = lock(&self.state);
        if let Err(error) = written {
            state.index.abandon(&entry.digest, entry.seq);
            return Saved::Error(error);
        }
        let line = line_of(&entry);
        if state.index.finish(entry).is_ok() {
            // Together, and after the write: whoever takes the line syncs the slab first.
            let mut pending = lock(&self.pending);
            pending.note_write(usize::from(line.slab));
            pending.records.push(line);
        }
        Saved::Saved
    }

    /// Drops an object that cannot be read.
    fn drop_stale(&self, digest: &KeyDigest, seq: u64) {
        let mut state = lock(&self.state);
        if let Some(entry) = state.index.remove_if(digest, seq) {
            self.forget(entry);
            self.count(|stats| stats.stale_index_cleaned += 1);
        }
    }

    /// The header of an entry's record. None if it is that of no whole record of this entry, or the
    /// disk does not give it: then it is dropped, as by a load.
    fn header_of(&self, entry: &Entry<Arc<Placed>>) -> Result<Option<Header>, SsdError> {
        let Entry { location, .. } = entry;
        let (file, offset) = (&*self.slabs[usize::from(location.slab)], location.extent.offset);
        match record_io::read_header(file, offset, location.header_bytes, &self.buffers) {
            Ok(header) if self.is_of(&header, entry).is_ok() => return Ok(Some(header)),
            Err(Unread::Failed(error)) => return Err(error),
            _ => self.drop_stale(&entry.digest, entry.seq),
        }
        Ok(None)
    }

    /// Whether a header is that of an entry.
    fn is_of(&self, header: &Header, entry: &Entry<Arc<Placed>>) -> Result<(), String> {
        let same = header.directory == self.directory.id
            && header.offset == entry.location.extent.offset
            && header.seq == entry.seq
            && header.len == entry.len
            && header.layout == entry.layout
            && self.directory.digest(header.key.as_bytes()) == entry.digest;
        same.then_some(()).ok_or_else(|| "its header is that of another record".to_owned())
    }
}

/// The line of the journal that says where an object is.
fn line_of(entry: &Entry<Arc<Placed>>) -> Record {
    let blocks = |bytes: u64| (bytes / BLOCK as u64) as u32;
    Record {
        slab: entry.location.slab,
        header_blocks: blocks(entry.location.header_bytes),
        first_block: blocks(entry.location.extent.offset),
        blocks: blocks(entry.location.extent.len),
        len: entry.len,
        layout: entry.layout,
        used_s: u32::try_from(entry.used_s).unwrap_or(u32::MAX),
        ..Record::of(ADD, entry.digest, entry.seq)
    }
}

impl Engine for SlabEngine {
    fn save(&self, objects: &[Object<'_>]) -> Vec<Saved> {
        let mut results: Vec<Saved> = objects.iter().map(|object| self.save_one(object)).collect();
        // What was there already may have been saved by a call whose commit failed.
        let is_there = |saved: &Saved| matches!(saved, Saved::Saved | Saved::Dedup);
        if results.iter().any(is_there)
            && self.is_durable()
            && let Err(error) = self.commit()
        {
            // They stay in the index and in what is pending, but nobody is promised anything.
            unacknowledge(&mut results, is_there, &error);
        }
        self.count(|stats| results.iter().for_each(|saved| stats.count(saved)));
        results
    }

    fn find(&self, key: &Key) -> Option<Found> {
        let digest = self.directory.digest(key.as_bytes());
        lock(&self.state).index.get(&digest).map(Entry::found)
    }

    fn load(&self, key: &Key, into: Payload<'_>) -> Result<Found, LoadError> {
        let digest = self.directory.digest(key.as_bytes());
        let entry = {
            let mut state = lock(&self.state);
            let entry = state.index.get(&digest).ok_or(LoadError::NotFound)?.clone();
            if entry.len != into.len {
                return Err(LoadError::WrongLength(entry.len));
            }
            let now_s = self.now_s();
            self.note_use(&mut state, digest, now_s);
            entry
        };
        match self.read_entry(&entry, &into) {
            // Two keys with one digest: only the one that was saved is found [I16].
            Ok(header) if header.key != *key => Err(LoadError::NotFound),
            Ok(_) => {
                self.count(|stats| stats.load_success += 1);
                Ok(entry.found())
            }
            Err(unread) => {
                if unread.is_lost() {
                    self.drop_stale(&digest, entry.seq);
                }
                let error = unread.into_error();
                self.count(|stats| stats.count_unread(&error));
                Err(error)
            }
        }
    }

    fn verify(&self, key: &Key, into: Payload<'_>) -> Result<Found, LoadError> {
        let digest = self.directory.digest(key.as_bytes());
        let entry = lock(&self.state).index.get(&digest).ok_or(LoadError::NotFound)?.clone();
        if entry.len != into.len {
            return Err(LoadError::WrongLength(entry.len));
        }
        match self.read_entry(&entry, &into) {
            Ok(header) if header.key != *key => Err(LoadError::NotFound),
            Ok(_) => Ok(entry.found()),
            Err(unread) => Err(unread.into_error()),
        }
    }

    fn remove(&self, keys: &[&Key]) -> Result<u64, SsdError> {
        let mut removed = 0;
        {
            let mut state = lock(&self.state);
            for key in keys {
                let digest = self.directory.digest(key.as_bytes());
                state.index.cancel(&digest);
                if let Some(entry) = state.index.remove(&digest) {
                    removed += 1;
                    self.forget(entry);
                }
            }
        }
        self.commit()?;
        Ok(removed)
    }

    fn remove_all(&self) -> Result<u64, SsdError> {
        let (mut removed, most) = (0, lock(&self.state).index.len() as u64);
        loop {
            {
                let mut state = lock(&self.state);
                state.index.cancel_all();
                let until = most.min(removed + REMOVED_AT_ONCE);
                while removed < until
                    && let Some(entry) = state.index.oldest(None)
                {
                    removed += 1;
                    self.forget(entry);
                }
            }
            self.commit()?;
            if removed >= most || lock(&self.state).index.len() == 0 {
                return Ok(removed);
            }
        }
    }

    fn maintain(&self) -> Result<(), SsdError> {
        let before_s = self.now_s().saturating_sub(self.options.ttl_s);
        {
            let mut state = lock(&self.state);
            for _ in 0..EXPIRED_AT_ONCE {
                let Some(entry) = state.index.oldest(Some(before_s)) else { break };
                self.count(|stats| stats.expired += 1);
                self.forget(entry);
            }
        }
        self.commit()?;
        {
            let mut state = lock(&self.state);
            let reserve = state.space.capacity() / EVICTED_AT_ONCE;
            if state.space.free_bytes() < reserve {
                self.evict(&mut state, reserve);
            }
        }
        self.commit()?;
        self.shorten_journal()
    }

    fn validate(&self) -> Result<Validated, SsdError> {
        let mut validated = Validated::default();
        let mut from = 0;
        while let Some((slot, entry)) = {
            let state = lock(&self.state);
            let next = state.index.iter(from).next();
            next.map(|(slot, entry)| (slot, entry.clone()))
        } {
            from = slot + 1;
            validated.checked += 1;
            validated.missing_cleaned += u64::from(self.header_of(&entry)?.is_none());
        }
        Ok(validated)
    }

    fn sync(&self) -> Result<(), SsdError> {
        self.commit_to(true)
    }

    fn keys(&self, from: u64, most: usize) -> Result<(Vec<Key>, Option<u64>), SsdError> {
        let entries: Vec<_> = {
            let state = lock(&self.state);
            let entries = state.index.iter(from as usize).take(most);
            entries.map(|(slot, entry)| (slot, entry.clone())).collect()
        };
        let next = entries.last().map(|(slot, _)| *slot as u64 + 1);
        let mut keys = Vec::with_capacity(entries.len());
        for (_, entry) in entries {
            keys.extend(self.header_of(&entry)?.map(|header| header.key));
        }
        Ok((keys, next))
    }

    fn stats(&self) -> Stats {
        let mut stats = *lock(&self.stats);
        let state = lock(&self.state);
        stats.objects = state.index.len() as u64;
        stats.used_bytes = state.space.used_bytes();
        stats.capacity_bytes = state.space.capacity();
        stats
    }
}
