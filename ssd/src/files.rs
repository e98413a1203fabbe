//! One safetensors file for each object, written under another name and renamed. Slower than
//! slabs, with nothing to go wrong: the reference of the tests, and for those who want files.

use crate::directory::{Directory, KeyDigest, hex, unhex_any};
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
use hashbrown::HashMap;
use nkv_store::Key;
use std::io;
use std::sync::{Arc, Mutex};

const SUFFIX: &str = ".safetensors";
const UNFINISHED: &str = ".tmp";
/// Most objects: the slots of the order of use.
const MOST: u32 = 1 << 30;

/// How an engine of files keeps objects.
#[derive(Clone)]
pub struct FilesOptions {
    /// Bytes that files may take in all.
    pub capacity_bytes: u64,
    /// When a save counts as done.
    pub durability: Durability,
    /// Objects that nobody used for this long are removed.
    pub ttl_s: u64,
    /// Where the time comes from.
    pub clock: WallClock,
}

/// See the module.
pub struct FilesEngine {
    storage: Arc<dyn Storage>,
    directory: Directory,
    options: FilesOptions,
    /// Locked while files get or lose their names, before the index: so the index, in which objects
    /// are looked up, never waits for the disk.
    names: Mutex<()>,
    index: Mutex<Index<()>>,
    /// Files that could not be removed, of objects that are not listed any more, with their bytes.
    /// Locked after the index.
    left: Mutex<HashMap<KeyDigest, u64>>,
    next_seq: Mutex<u64>,
    buffers: Buffers,
    stats: Mutex<Stats>,
}

impl std::fmt::Debug for FilesEngine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FilesEngine").field("storage", &self.storage).finish_non_exhaustive()
    }
}

fn name(digest: &KeyDigest) -> String {
    format!("{}{SUFFIX}", hex(&digest.0))
}

/// Of two saves of one key, each has a name of its own.
fn unfinished_name(digest: &KeyDigest, seq: u64) -> String {
    format!("{}-{seq:016x}{UNFINISHED}", hex(&digest.0))
}

/// The digest in a name that is one of ours, and whether the file is finished.
fn named(found: &str) -> Option<(KeyDigest, bool)> {
    let digest = KeyDigest(unhex_any(found.get(..32)?)?.try_into().ok()?);
    if found == name(&digest) {
        return Some((digest, true));
    }
    let seq = u64::from_str_radix(found.get(33..49)?, 16).ok()?;
    (found == unfinished_name(&digest, seq)).then_some((digest, false))
}

impl FilesEngine {
    /// Opens a directory, or makes one; reads the header of every file.
    ///
    /// # Errors
    /// [`SsdError::Directory`] for a directory of another format or engine; else what the disk
    /// says.
    pub fn open(storage: Arc<dyn Storage>, options: FilesOptions) -> Result<Self, SsdError> {
        let directory = Directory::open(&*storage, "files", 0)?;
        let engine = Self {
            storage,
            directory,
            options,
            names: Mutex::default(),
            index: Mutex::new(Index::new(MOST)),
            left: Mutex::default(),
            next_seq: Mutex::new(1),
            buffers: Buffers::default(),
            stats: Mutex::new(Stats::default()),
        };
        engine.read_all()?;
        Ok(engine)
    }

    /// Names were removed: under `Persistent` for good.
    fn names_removed(&self) -> Result<(), SsdError> {
        match self.options.durability {
            Durability::Persistent => Ok(self.storage.sync_names()?),
            Durability::BestEffort => Ok(()),
        }
    }

    /// Removes the file of an object that the index does not list any more, with the names locked.
    /// One that stays is tried again, until its key is saved again.
    fn unlink(&self, digest: &KeyDigest, bytes: u64) -> io::Result<()> {
        let removed = match self.storage.remove(&name(digest)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed,
        };
        let mut left = lock(&self.left);
        match &removed {
            Ok(()) => left.remove(digest),
            Err(_) => left.insert(*digest, bytes),
        };
        removed
    }

    fn left_bytes(&self) -> u64 {
        lock(&self.left).values().sum()
    }

    fn unlink_left(&self) -> io::Result<()> {
        let left: Vec<_> = lock(&self.left).keys().copied().collect();
        let mut failed = Ok(());
        for digest in left {
            let _names = lock(&self.names);
            // Its key may have been saved again.
            let bytes = lock(&self.left).get(&digest).copied();
            if let Some(Err(error)) = bytes.map(|bytes| self.unlink(&digest, bytes)) {
                failed = Err(error);
            }
        }
        failed
    }

    fn read_all(&self) -> Result<(), SsdError> {
        let mut found = Vec::new();
        for name in self.storage.list()? {
            let Some((digest, finished)) = named(&name) else { continue };
            match if finished { self.read_one(&name, digest)? } else { None } {
                Some(entry) => found.push(entry),
                None => {
                    self.storage.remove(&name)?;
                    let mut stats = lock(&self.stats);
                    stats.stale_index_cleaned += u64::from(finished);
                    stats.orphans_cleaned += u64::from(!finished);
                }
            }
        }
        found.sort_unstable_by_key(|entry| entry.seq);
        *lock(&self.next_seq) = found.last().map_or(1, |last| last.seq + 1);
        let mut index = lock(&self.index);
        for entry in found {
            index.insert(entry);
        }
        Ok(())
    }

    /// The entry of a file; None if it is no whole record.
    fn read_one(&self, name: &str, digest: KeyDigest) -> Result<Option<Entry<()>>, SsdError> {
        let file = self.storage.open(name, false)?;
        let bytes = file.size()?;
        let header = match self.header_of(&*file) {
            Ok(header) => header,
            Err(Unread::Corrupt(_)) => return Ok(None),
            Err(Unread::Disk(error)) => return Err(error.into()),
            Err(Unread::Failed(error)) => return Err(error),
        };
        let whole = record_bytes(header_bytes(&header.key, header.len), header.len) == bytes;
        let ours = header.directory == self.directory.id
            && self.directory.digest(header.key.as_bytes()) == digest;
        let (seq, len, layout, used_s) =
            (header.seq, header.len, header.layout, (self.options.clock)());
        Ok((whole && ours).then_some(Entry {
            digest,
            seq,
            len,
            layout,
            bytes,
            used_s,
            noted_s: used_s,
            location: (),
        }))
    }

    fn header_of(&self, file: &dyn BlockFile) -> Result<Header, Unread> {
        if file.size()? < BLOCK as u64 {
            return Err(Unread::Corrupt("the file is shorter than a header".to_owned()));
        }
        let mut first = self.buffers.take(BLOCK)?;
        let mut piece = [crate::piece::Piece::of_buffer(&mut first[..BLOCK])];
        file.read(0, &mut piece).map_err(Unread::Disk)?;
        let len =
            Header::bytes_of(&first[..BLOCK]).filter(|len| *len as u64 <= file.size().unwrap_or(0));
        self.buffers.give_back(first);
        let none = || Unread::Corrupt("there is no header".to_owned());
        record_io::read_header(file, 0, len.ok_or_else(none)? as u64, &self.buffers)
    }

    fn begin(&self, object: &Object<'_>) -> Result<Entry<()>, Saved> {
        let digest = self.directory.digest(object.key.as_bytes());
        let found = Found { len: object.payload.len, layout: object.layout };
        let now_s = (self.options.clock)();
        let bytes = record_bytes(header_bytes(object.key, found.len), found.len);
        let _names = lock(&self.names);
        let mut next_seq = lock(&self.next_seq);
        let mut index = lock(&self.index);
        if bytes > self.options.capacity_bytes {
            let (used, capacity) = (index.used_bytes(), self.options.capacity_bytes);
            return Err(Saved::Error(SsdError::NoRoom { asked: bytes, used, capacity }));
        }
        match index.begin(digest, found, (*next_seq, bytes), now_s) {
            Begun::Write => {}
            Begun::Settled(saved) => return Err(saved),
            Begun::Collided(old) => {
                drop(index);
                let removed = self.unlink(&old.digest, old.bytes);
                return Err(removed.map_or_else(|e| Saved::Error(e.into()), |()| Saved::Collision));
            }
        }
        let seq = *next_seq;
        *next_seq += 1;
        let left = self.left_bytes();
        while index.used_bytes() + index.saving_bytes() + left > self.options.capacity_bytes {
            let Some(old) = index.oldest(None) else {
                index.abandon(&digest, seq);
                let (used, capacity) = (index.used_bytes(), self.options.capacity_bytes);
                return Err(Saved::Error(SsdError::NoRoom { asked: bytes, used, capacity }));
            };
            drop(index);
            lock(&self.stats).evicted += 1;
            let unlinked = self.unlink(&old.digest, old.bytes);
            index = lock(&self.index);
            if let Err(error) = unlinked {
                index.abandon(&digest, seq);
                return Err(Saved::Error(error.into()));
            }
        }
        let (len, layout) = (found.len, found.layout);
        Ok(Entry { digest, seq, len, layout, bytes, used_s: now_s, noted_s: now_s, location: () })
    }

    fn write(&self, object: &Object<'_>, entry: &Entry<()>) -> Result<(), SsdError> {
        let unfinished = unfinished_name(&entry.digest, entry.seq);
        let mut header = Header {
            directory: self.directory.id.clone(),
            offset: 0,
            seq: entry.seq,
            key: object.key.clone(),
            layout: object.layout,
            len: object.payload.len,
            sums: Vec::new(),
        };
        let written = (|| {
            let file = self.storage.open(&unfinished, true)?;
            record_io::write(&*file, &mut header, &object.payload, &self.buffers)?;
            file.allocate(entry.bytes)?;
            if self.options.durability == Durability::Persistent {
                file.sync_data()?;
            }
            Ok(())
        })();
        if written.is_err() {
            let _ = self.storage.remove(&unfinished);
            return written;
        }
        // With the names locked: a removal of the key comes before or after both.
        let _names = lock(&self.names);
        if !lock(&self.index).is_saving(&entry.digest, entry.seq) {
            self.storage.remove(&unfinished)?;
            return Ok(());
        }
        if let Err(error) = self.storage.rename(&unfinished, &name(&entry.digest)) {
            let _ = self.storage.remove(&unfinished);
            return Err(error.into());
        }
        lock(&self.left).remove(&entry.digest);
        // Nothing ends a save while the names are locked.
        drop(lock(&self.index).finish(entry.clone()));
        Ok(())
    }

    /// Drops an object that cannot be read; its file goes while no other can take its name.
    fn drop_stale(&self, digest: &KeyDigest, seq: u64) -> bool {
        let _names = lock(&self.names);
        let Some(entry) = lock(&self.index).remove_if(digest, seq) else { return false };
        let _ = self.unlink(digest, entry.bytes);
        lock(&self.stats).stale_index_cleaned += 1;
        true
    }

    fn save_one(&self, object: &Object<'_>) -> Saved {
        let entry = match self.begin(object) {
            Ok(entry) => entry,
            Err(saved) => return saved,
        };
        let abandon = || lock(&self.index).abandon(&entry.digest, entry.seq);
        match undone_by_panic(|| self.write(object, &entry), abandon) {
            Ok(()) => Saved::Saved,
            Err(error) => {
                abandon();
                Saved::Error(error)
            }
        }
    }

    fn read(&self, key: &Key, entry: &Entry<()>, into: &Payload<'_>) -> Result<Header, Unread> {
        let file = self.storage.open(&name(&entry.digest), false).map_err(absent)?;
        let header = record_io::read(&*file, 0, header_bytes(key, entry.len), into, &self.buffers)?;
        let same = header.seq == entry.seq && header.layout == entry.layout;
        let ours = header.directory == self.directory.id && header.key == *key;
        let other = || Unread::Corrupt("its header is that of another record".to_owned());
        (same && ours).then_some(header).ok_or_else(other)
    }
}

/// A file that is gone is lost; one that cannot be opened may be whole.
fn absent(error: io::Error) -> Unread {
    match error.kind() {
        io::ErrorKind::NotFound => Unread::Corrupt("the file is gone".to_owned()),
        _ => Unread::Failed(error.into()),
    }
}

impl Engine for FilesEngine {
    fn save(&self, objects: &[Object<'_>]) -> Vec<Saved> {
        let mut results: Vec<Saved> = objects.iter().map(|object| self.save_one(object)).collect();
        let durable = self.options.durability == Durability::Persistent;
        // Also what an earlier call renamed or removed, and could not sync.
        let is_settled = |saved: &Saved| !matches!(saved, Saved::Error(_) | Saved::Busy);
        if durable
            && results.iter().any(is_settled)
            && let Err(error) = self.storage.sync_names()
        {
            unacknowledge(&mut results, is_settled, &error.into());
        }
        let mut stats = lock(&self.stats);
        results.iter().for_each(|saved| stats.count(saved));
        results
    }

    fn find(&self, key: &Key) -> Option<Found> {
        lock(&self.index).get(&self.directory.digest(key.as_bytes())).map(Entry::found)
    }

    fn load(&self, key: &Key, into: Payload<'_>) -> Result<Found, LoadError> {
        let digest = self.directory.digest(key.as_bytes());
        let entry = {
            let mut index = lock(&self.index);
            index.touch(&digest, (self.options.clock)());
            index.get(&digest).ok_or(LoadError::NotFound)?.clone()
        };
        if entry.len != into.len {
            return Err(LoadError::WrongLength(entry.len));
        }
        let read = self.read(key, &entry, &into);
        if read.as_ref().is_err_and(Unread::is_lost) {
            self.drop_stale(&digest, entry.seq);
        }
        let mut stats = lock(&self.stats);
        match read {
            Ok(_) => {
                stats.load_success += 1;
                Ok(entry.found())
            }
            Err(unread) => {
                let error = unread.into_error();
                stats.count_unread(&error);
                Err(error)
            }
        }
    }

    fn verify(&self, key: &Key, into: Payload<'_>) -> Result<Found, LoadError> {
        let digest = self.directory.digest(key.as_bytes());
        let entry = lock(&self.index).get(&digest).ok_or(LoadError::NotFound)?.clone();
        if entry.len != into.len {
            return Err(LoadError::WrongLength(entry.len));
        }
        self.read(key, &entry, &into).map_err(Unread::into_error)?;
        Ok(entry.found())
    }

    fn remove(&self, keys: &[&Key]) -> Result<u64, SsdError> {
        let mut removed = 0;
        for key in keys {
            let digest = self.directory.digest(key.as_bytes());
            let _names = lock(&self.names);
            let listed = {
                let mut index = lock(&self.index);
                index.cancel(&digest);
                index.remove(&digest).map(|entry| entry.bytes)
            };
            let left = lock(&self.left).get(&digest).copied();
            if let Some(bytes) = listed.or(left) {
                self.unlink(&digest, bytes)?;
                removed += 1;
            }
        }
        self.names_removed()?;
        Ok(removed)
    }

    fn remove_all(&self) -> Result<u64, SsdError> {
        let mut removed = 0;
        let most = lock(&self.index).len();
        for _ in 0..most {
            let _names = lock(&self.names);
            let oldest = {
                let mut index = lock(&self.index);
                index.cancel_all();
                index.oldest(None)
            };
            let Some(entry) = oldest else { break };
            self.unlink(&entry.digest, entry.bytes)?;
            removed += 1;
        }
        self.unlink_left()?;
        self.names_removed()?;
        Ok(removed)
    }

    fn maintain(&self) -> Result<(), SsdError> {
        let before_s = (self.options.clock)().saturating_sub(self.options.ttl_s);
        loop {
            let _names = lock(&self.names);
            let Some(old) = lock(&self.index).oldest(Some(before_s)) else { break };
            lock(&self.stats).expired += 1;
            self.unlink(&old.digest, old.bytes)?;
        }
        Ok(self.unlink_left()?)
    }

    fn validate(&self) -> Result<Validated, SsdError> {
        let mut validated = Validated::default();
        let entries: Vec<_> = lock(&self.index).iter(0).map(|(_, entry)| entry.clone()).collect();
        for entry in entries {
            validated.checked += 1;
            let found = match self.read_one(&name(&entry.digest), entry.digest) {
                Err(SsdError::Io(error)) if error.kind() == io::ErrorKind::NotFound => None,
                other => other?,
            };
            if found.is_none() && self.drop_stale(&entry.digest, entry.seq) {
                validated.missing_cleaned += 1;
            }
        }
        Ok(validated)
    }

    fn sync(&self) -> Result<(), SsdError> {
        let entries: Vec<_> = lock(&self.index).iter(0).map(|(_, entry)| entry.digest).collect();
        for digest in entries {
            match self.storage.open(&name(&digest), false) {
                Ok(file) => file.sync_data()?,
                // Removed meanwhile.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(self.storage.sync_names()?)
    }

    fn keys(&self, from: u64, most: usize) -> Result<(Vec<Key>, Option<u64>), SsdError> {
        let entries: Vec<_> = {
            let index = lock(&self.index);
            let entries = index.iter(from as usize).take(most);
            entries.map(|(slot, entry)| (slot, (entry.digest, entry.seq))).collect()
        };
        let next = entries.last().map(|(slot, _)| *slot as u64 + 1);
        let mut keys = Vec::with_capacity(entries.len());
        for (_, (digest, seq)) in entries {
            let file = match self.storage.open(&name(&digest), false) {
                Ok(file) => file,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(error.into()),
            };
            match self.header_of(&*file) {
                Ok(header) => keys.push(header.key),
                Err(Unread::Failed(error)) => return Err(error),
                Err(_) => drop(self.drop_stale(&digest, seq)),
            }
        }
        Ok((keys, next))
    }

    fn stats(&self) -> Stats {
        let mut stats = *lock(&self.stats);
        let index = lock(&self.index);
        stats.objects = index.len() as u64;
        stats.used_bytes = index.used_bytes() + self.left_bytes();
        stats.capacity_bytes = self.options.capacity_bytes;
        stats
    }
}
