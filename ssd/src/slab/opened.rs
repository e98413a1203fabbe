//! Opening a directory of slabs.

use super::commits::Pending;
use super::journal::{self, Journal};
use super::page::{ADD, REMOVE, Record, USED};
use super::space::{Placed, Space};
use super::{SlabEngine, SlabOptions, State, line_of};
use crate::directory::{DESCRIPTION, Directory, KeyDigest};
use crate::engine::{SsdError, Stats};
use crate::index::{Entry, Index};
use crate::piece::{BLOCK, Buffers};
use crate::storage::{BlockFile, Storage, read_small};
use hashbrown::HashMap;
use nkv_store::Extent;
use std::io;
use std::sync::{Arc, Mutex};

const PREFIX: &str = "slab-";
/// What the journal may take, next to the slabs.
const JOURNAL_ROOM: u64 = 64 << 20;
/// Most slabs: their numbers have 16 bits.
const MOST_SLABS: u64 = 1 << 16;
/// Most objects: those whose order of use is known.
const MOST_OBJECTS: u64 = 0x7fff_ffff;
/// Numbers of records end below this one: a line with a greater one is damaged.
const MOST_SEQ: u64 = journal::MOST_GENERATIONS << SEQ_BITS;
/// Records of one journal.
const SEQ_BITS: u32 = 40;

/// The number in the name of a slab.
fn number_of(found: &str) -> Option<u64> {
    let digits = found.strip_prefix(PREFIX)?.strip_suffix(".dat")?;
    digits.parse().ok().filter(|number| *found == name_of(*number))
}

fn name_of(slab: u64) -> String {
    format!("{PREFIX}{slab:05}.dat")
}

/// How many slabs there are, with those that are missing below the last one.
pub(crate) fn slabs_up_to(storage: &dyn Storage) -> io::Result<u64> {
    let numbers = storage.list()?.iter().filter_map(|name| number_of(name)).max();
    Ok(numbers.map_or(0, |last| last + 1))
}

impl SlabOptions {
    /// Before anything is written.
    fn check(&self, shown: &str) -> Result<(), SsdError> {
        let slab = self.slab_bytes;
        if slab == 0 || !slab.is_multiple_of(BLOCK as u64) || slab > self.capacity_bytes {
            return Err(SsdError::Directory(format!(
                "{shown}: slabs of {slab} bytes in {} bytes: ask for a multiple of 4096, and for \
                 at least one slab",
                self.capacity_bytes
            )));
        }
        Ok(())
    }
}

impl SlabEngine {
    /// Opens a directory, or makes one. What a crash left is put in order: nothing is refused for
    /// it [I23].
    ///
    /// # Errors
    /// [`SsdError::Directory`] for a directory of another format or engine, or too small a
    /// capacity; else what the disk says, `StorageFull` if it has less room than the capacity.
    pub fn open(storage: Arc<dyn Storage>, options: SlabOptions) -> Result<Self, SsdError> {
        options.check(&storage.shown())?;
        let was_used = was_used(&*storage)?;
        let directory = Directory::open(&*storage, "slab", options.slab_bytes)?;
        let slab_bytes = directory.slab_bytes;
        let wanted = options.capacity_bytes / slab_bytes;
        if wanted == 0 || wanted > MOST_SLABS {
            return Err(SsdError::Directory(format!(
                "{}: {} bytes are asked for in slabs of {slab_bytes}: ask for at least one, and \
                 at most {MOST_SLABS}",
                storage.shown(),
                options.capacity_bytes
            )));
        }
        let slabs = open_slabs(&*storage, wanted, slab_bytes)?;
        let mut space = Space::new(slabs.len(), slab_bytes);
        let most = (options.capacity_bytes / BLOCK as u64).min(MOST_OBJECTS);
        let mut index = Index::new(most as u32);
        let mut stats = Stats::default();
        let mut replayed = Replayed::of(&*storage, directory.id_bytes())?;
        if replayed.damaged_pages > 0 && was_used {
            stats.journal_pages_damaged = replayed.damaged_pages;
            replayed.warn(&storage.shown());
        }
        if replayed.generation == 0 && was_used {
            // Records of the journals before are still there: their numbers must not come again.
            replayed.generation = random_generation()?;
        }
        // Above all that earlier starts may have written without a line of the journal.
        let next_seq = (replayed.highest_seq + 1).max((replayed.generation + 1) << SEQ_BITS);
        let mut entries = Vec::with_capacity(replayed.lines.len());
        for line in replayed.newest_first() {
            match entry_of(&line, &mut space) {
                Some(entry) => entries.push(entry),
                None => stats.stale_index_cleaned += 1,
            }
        }
        entries.sort_unstable_by_key(|entry| (entry.used_s, entry.seq));
        entries.into_iter().for_each(|entry| drop(index.insert(entry)));
        let objects: Vec<Record> = index.iter(0).map(|(_, entry)| line_of(entry)).collect();
        let journal =
            Journal::begin(&*storage, directory.id_bytes(), replayed.generation + 1, &objects)?;
        Ok(Self {
            storage,
            directory,
            options,
            slabs,
            state: Mutex::new(State { index, space, next_seq }),
            pending: Mutex::new(Pending::default()),
            journal: Mutex::new(journal),
            buffers: Buffers::default(),
            stats: Mutex::new(stats),
        })
    }
}

/// Whether objects may have been saved here: there is a journal, or slabs that were all made, which
/// a first start does before it makes a journal.
fn was_used(storage: &dyn Storage) -> Result<bool, SsdError> {
    let names = storage.list()?;
    if names.iter().any(|name| journal::generation_of(name).is_some()) {
        return Ok(true);
    }
    let Some(bytes) = read_small(storage, DESCRIPTION)? else { return Ok(false) };
    // One that cannot be read is refused later.
    let slab_bytes = Directory::slab_bytes_of(&bytes);
    let mut slabs = names.iter().filter(|name| number_of(name).is_some()).peekable();
    if slabs.peek().is_none() {
        return Ok(false);
    }
    for slab in slabs {
        if Some(storage.open(slab, false)?.size()?) != slab_bytes {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Above all that a directory has come to by counting, and far from where they end.
fn random_generation() -> Result<u64, SsdError> {
    let mut random = [0; 4];
    getrandom::fill(&mut random).map_err(|error| io::Error::other(error.to_string()))?;
    let least = journal::MOST_GENERATIONS / 16;
    Ok(least + u64::from(u32::from_le_bytes(random)) % (journal::MOST_GENERATIONS / 2))
}

/// Opens the slabs, makes those that are missing, and removes those above the capacity and what an
/// interrupted call left.
fn open_slabs(
    storage: &dyn Storage,
    wanted: u64,
    slab_bytes: u64,
) -> Result<Vec<Box<dyn BlockFile>>, SsdError> {
    for found in &storage.list()? {
        let above = number_of(found).is_some_and(|number| number >= wanted);
        let described = found.strip_suffix(".tmp") == Some(DESCRIPTION);
        if above || described || journal::is_unfinished(found) {
            storage.remove(found)?;
        }
    }
    let mut missing = 0;
    let mut slabs = Vec::new();
    for slab in 0..wanted {
        let file = storage.open(&name_of(slab), true)?;
        missing += slab_bytes.saturating_sub(file.size()?);
        slabs.push(file);
    }
    let free = storage.free_bytes()?;
    if missing > 0 && missing + JOURNAL_ROOM > free {
        return Err(io::Error::new(
            io::ErrorKind::StorageFull,
            format!(
                "{}: {missing} bytes are to be taken, with 64 MiB for the journal, and {free} are \
                 free: ask for less, or make room",
                storage.shown()
            ),
        )
        .into());
    }
    for file in &slabs {
        if file.size()? != slab_bytes {
            file.allocate(slab_bytes)?;
        }
    }
    storage.sync_names()?;
    Ok(slabs)
}

/// What a journal says in the end.
struct Replayed {
    generation: u64,
    damaged_pages: u64,
    highest_seq: u64,
    lines: HashMap<KeyDigest, Record>,
}

impl Replayed {
    fn of(storage: &dyn Storage, directory: [u8; 16]) -> io::Result<Self> {
        let mut lines: HashMap<KeyDigest, Record> = HashMap::new();
        let mut highest_seq = 0;
        let loaded = journal::load(storage, directory, |record| {
            let Some(record) = record else {
                lines.clear();
                return;
            };
            if record.seq >= MOST_SEQ {
                return;
            }
            let digest = KeyDigest(record.digest);
            highest_seq = highest_seq.max(record.seq);
            let held = lines.get(&digest).map(|line| line.seq);
            match record.kind {
                ADD if held.is_none_or(|held| record.seq > held) => {
                    lines.insert(digest, *record);
                }
                REMOVE if held == Some(record.seq) => {
                    lines.remove(&digest);
                }
                USED if held == Some(record.seq) => {
                    if let Some(line) = lines.get_mut(&digest) {
                        line.used_s = record.used_s;
                    }
                }
                _ => {}
            }
        })?;
        let (generation, damaged_pages) = (loaded.generation, loaded.damaged_pages);
        Ok(Self { generation, damaged_pages, highest_seq, lines })
    }

    fn warn(&self, shown: &str) {
        let pages = self.damaged_pages;
        match self.generation {
            0 => tracing::warn!("{shown}: the journal is missing: what its slabs held is lost"),
            _ => tracing::warn!(pages, "{shown}: the journal is damaged: objects are lost"),
        }
    }

    /// Of two that cannot both be, the newer one comes first.
    fn newest_first(&self) -> Vec<Record> {
        let mut lines: Vec<Record> = self.lines.values().copied().collect();
        lines.sort_unstable_by_key(|line| std::cmp::Reverse(line.seq));
        lines
    }
}

/// The entry of a line; None if its place is taken or cannot be.
fn entry_of(line: &Record, space: &mut Space) -> Option<Entry<Arc<Placed>>> {
    let bytes = |blocks: u32| u64::from(blocks) * BLOCK as u64;
    let extent = Extent { offset: bytes(line.first_block), len: bytes(line.blocks) };
    let body = line.len.checked_next_multiple_of(BLOCK as u64)?;
    let record_bytes = bytes(line.header_blocks).checked_add(body)?;
    if line.header_blocks == 0 || record_bytes > extent.len {
        return None;
    }
    let space = space.take_at(line.slab, extent, bytes(line.header_blocks)).ok()?;
    Some(Entry {
        digest: KeyDigest(line.digest),
        seq: line.seq,
        len: line.len,
        layout: line.layout,
        bytes: extent.len,
        used_s: u64::from(line.used_s),
        noted_s: u64::from(line.used_s),
        location: Arc::new(space),
    })
}
