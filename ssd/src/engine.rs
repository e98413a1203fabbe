//! What every engine does.

use nkv_store::{Key, Memory, StoreError};
use std::fmt::Debug;
use std::io;
use std::sync::Arc;

/// Bytes of a segment: the payload to save, or the place to load into. While it is used nobody else
/// writes there.
#[derive(Debug, Clone, Copy)]
pub struct Payload<'a> {
    /// The segment.
    pub memory: &'a dyn Memory,
    /// Offset of the first byte.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
}

/// When a save counts as done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Durability {
    /// When the disk took it. Killed processes lose what was saved in the last 100 ms, a power loss
    /// more.
    #[default]
    BestEffort,
    /// When it survives power loss [I22].
    Persistent,
}

/// Seconds since 1970.
pub type WallClock = Arc<dyn Fn() -> u64 + Send + Sync>;

/// An object to save.
#[derive(Debug, Clone, Copy)]
pub struct Object<'a> {
    /// Its key.
    pub key: &'a Key,
    /// Shape, type and the like, as a number that whoever stores it computes. Two objects of one
    /// key that differ in it are a collision.
    pub layout: u64,
    /// Its bytes.
    pub payload: Payload<'a>,
}

/// What became of an object that was to be saved.
#[derive(Debug)]
pub enum Saved {
    /// It is on disk: for good if the directory is durable, else from the next sync on.
    Saved,
    /// It was there already.
    Dedup,
    /// Another call is writing it, and may still fail.
    Busy,
    /// The key is there with another length or layout. Nobody can say which of the two is right:
    /// neither is served from disk, and the key is refused for an hour.
    Collision,
    /// It is not on disk.
    Error(SsdError),
}

/// Takes back what was to be acknowledged, because it could not be made to last.
pub(crate) fn unacknowledge(saved: &mut [Saved], which: impl Fn(&Saved) -> bool, error: &SsdError) {
    for one in saved.iter_mut().filter(|one| which(one)) {
        *one = Saved::Error(io::Error::other(error.to_string()).into());
    }
}

/// What an engine has under a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found {
    /// Length of the payload in bytes.
    pub len: u64,
    /// [`Object::layout`].
    pub layout: u64,
}

/// A fault of the directory or of the disk.
#[derive(Debug, thiserror::Error)]
pub enum SsdError {
    /// What the disk or the file system says.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// A fault of the segment's memory.
    #[error("{0}")]
    Memory(#[from] StoreError),
    /// The directory cannot be used as it is.
    #[error("{0}")]
    Directory(String),
    /// No room in one piece, although objects were removed to make some.
    #[error("no room for {asked} bytes on disk: {used} of {capacity} bytes are in use")]
    NoRoom {
        /// Bytes that it takes with its header.
        asked: u64,
        /// Bytes in use.
        used: u64,
        /// Bytes that there are.
        capacity: u64,
    },
}

/// Why an object could not be loaded. The place that it was to fill holds anything.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// It is not there.
    #[error("not on disk")]
    NotFound,
    /// It has another length than the place: its length.
    #[error("the object has {0} bytes")]
    WrongLength(u64),
    /// Its bytes are not those that were saved. It was removed.
    #[error("damaged on disk, and removed: {0}")]
    Corrupt(String),
    /// It could not be read. It was removed if that is the disk's fault.
    #[error("{0}")]
    Io(#[from] SsdError),
}

/// Counters since the directory was opened, and gauges.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Objects saved.
    pub save_success: u64,
    /// Objects that could not be saved.
    pub save_fail: u64,
    /// Objects that were there already, or are being written.
    pub save_dedup_skip: u64,
    /// Two objects of one key.
    pub hash_collision_detected: u64,
    /// Entries without a whole record, dropped by a check or a load.
    pub stale_index_cleaned: u64,
    /// Pages of the journal that were damaged at the start, 1 if it was missing: what they told of
    /// is lost.
    pub journal_pages_damaged: u64,
    /// Files or ranges without an entry, freed at start.
    pub orphans_cleaned: u64,
    /// Objects loaded.
    pub load_success: u64,
    /// Objects whose checksum or header was wrong.
    pub load_corrupt: u64,
    /// Objects that the disk did not give.
    pub load_fail: u64,
    /// Objects removed because nobody used them for the time to live.
    pub expired: u64,
    /// Objects removed to make space.
    pub evicted: u64,
    /// Objects on disk now.
    pub objects: u64,
    /// Bytes that they take now, headers and rounding with them.
    pub used_bytes: u64,
    /// Bytes that they may take.
    pub capacity_bytes: u64,
}

impl Stats {
    pub(crate) fn count_unread(&mut self, error: &LoadError) {
        match error {
            LoadError::Corrupt(_) => self.load_corrupt += 1,
            _ => self.load_fail += 1,
        }
    }

    pub(crate) fn count(&mut self, saved: &Saved) {
        match saved {
            Saved::Saved => self.save_success += 1,
            Saved::Dedup | Saved::Busy => self.save_dedup_skip += 1,
            Saved::Collision => self.hash_collision_detected += 1,
            Saved::Error(_) => self.save_fail += 1,
        }
    }
}

/// What a check of the whole index found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Validated {
    /// Entries looked at.
    pub checked: u64,
    /// Those without a whole record, which were dropped.
    pub missing_cleaned: u64,
}

/// Objects on the disk of one node. Every call may wait for the disk; calls of several threads run
/// at once.
pub trait Engine: Send + Sync + Debug {
    /// Saves objects; the result of each is at its place.
    fn save(&self, objects: &[Object<'_>]) -> Vec<Saved>;
    /// What is there under a key, without asking the disk.
    fn find(&self, key: &Key) -> Option<Found>;
    /// Reads an object into the place, whose length must be the object's.
    ///
    /// # Errors
    /// See [`LoadError`]; nothing in the place is the object then.
    fn load(&self, key: &Key, into: Payload<'_>) -> Result<Found, LoadError>;
    /// As [`Self::load`], but nothing is dropped, and it counts as no use.
    ///
    /// # Errors
    /// See [`LoadError`]; the object stays.
    fn verify(&self, key: &Key, into: Payload<'_>) -> Result<Found, LoadError>;
    /// Removes objects. From its return on they are not found, also after a restart.
    ///
    /// # Errors
    /// If that cannot be written down: they are not found until the directory is opened again.
    fn remove(&self, keys: &[&Key]) -> Result<u64, SsdError>;
    /// Removes every object, also those that are being saved now.
    ///
    /// # Errors
    /// As [`Self::remove`].
    fn remove_all(&self) -> Result<u64, SsdError>;
    /// Writes down what `save` left for later, removes what is older than the time to live, and
    /// makes room ahead of need. To be called every 100 ms.
    ///
    /// # Errors
    /// What the disk says; tried again at the next call.
    fn maintain(&self) -> Result<(), SsdError>;
    /// Looks at the headers of all records, and drops entries without a whole one.
    ///
    /// # Errors
    /// What the disk says.
    fn validate(&self) -> Result<Validated, SsdError>;
    /// Everything saved survives power loss from its return on.
    ///
    /// # Errors
    /// What the disk says.
    fn sync(&self) -> Result<(), SsdError>;
    /// Keys of up to `most` objects after those of an earlier call, and a place to go on from: 0 at
    /// first, None at the end.
    ///
    /// # Errors
    /// What the disk says.
    fn keys(&self, from: u64, most: usize) -> Result<(Vec<Key>, Option<u64>), SsdError>;
    /// Counters and gauges.
    fn stats(&self) -> Stats;
}
