//! Which objects are on disk: what every engine keeps in memory, and how it decides about a save.

use crate::directory::KeyDigest;
use crate::engine::{Found, Saved};
use hashbrown::HashMap;
use nkv_store::{Policy, PolicyKind};

/// How long a key is refused after two different objects of it were seen.
pub const REFUSED_S: u64 = 3600;
/// How many keys are refused at most; later collisions are counted, and not remembered.
const MOST_REFUSED: usize = 65_536;
/// An entry is the only one of its slot while the policy holds it.
const EPOCH: u32 = 0;

/// An object on disk.
#[derive(Debug, Clone)]
pub struct Entry<P> {
    pub digest: KeyDigest,
    /// Of its record: no other record of the directory has it.
    pub seq: u64,
    pub len: u64,
    pub layout: u64,
    /// Bytes that it takes on disk.
    pub bytes: u64,
    /// When it was saved or last used, in seconds since 1970.
    pub used_s: u64,
    /// The last use of which the journal tells.
    pub noted_s: u64,
    /// Where it is.
    pub location: P,
}

impl<P> Entry<P> {
    pub fn found(&self) -> Found {
        Found { len: self.len, layout: self.layout }
    }
}

/// What is to be done with an object that was handed over.
#[derive(Debug)]
pub enum Begun<P> {
    /// Write it, then call [`Index::finish`] or [`Index::abandon`].
    Write,
    /// Nothing more.
    Settled(Saved),
    /// Two objects of one key: this one must be removed from disk, too.
    Collided(Entry<P>),
}

/// All objects on disk, with the order in which they were used.
pub struct Index<P> {
    by_digest: HashMap<KeyDigest, u32>,
    entries: Vec<Option<Entry<P>>>,
    free: Vec<u32>,
    used: Box<dyn Policy>,
    refused_until: HashMap<KeyDigest, u64>,
    saving: HashMap<KeyDigest, Saving>,
}

/// An object that is being written.
struct Saving {
    seq: u64,
    found: Found,
    bytes: u64,
}

impl<P> std::fmt::Debug for Index<P> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Index").field("objects", &self.by_digest.len()).finish()
    }
}

impl<P> Index<P> {
    /// For at most `most` objects.
    pub fn new(most: u32) -> Self {
        Self {
            by_digest: HashMap::new(),
            entries: Vec::new(),
            free: Vec::new(),
            used: PolicyKind::Lru.build(most),
            refused_until: HashMap::new(),
            saving: HashMap::new(),
        }
    }

    /// Decides what to do with an object, whose record would be `seq` and take `bytes`.
    pub fn begin(
        &mut self,
        digest: KeyDigest,
        found: Found,
        (seq, bytes): (u64, u64),
        now_s: u64,
    ) -> Begun<P> {
        if let Some(until) = self.refused_until.get(&digest) {
            if now_s < *until {
                return Begun::Settled(Saved::Collision);
            }
            self.refused_until.remove(&digest);
        }
        let there = self.get(&digest).map(Entry::found);
        let coming = self.saving.get(&digest).map(|saving| saving.found);
        match (there, coming) {
            (Some(there), _) if there == found => {
                self.touch(&digest, now_s);
                Begun::Settled(Saved::Dedup)
            }
            (None, Some(coming)) if coming == found => Begun::Settled(Saved::Busy),
            (None, None) => {
                self.saving.insert(digest, Saving { seq, found, bytes });
                Begun::Write
            }
            _ => {
                self.refuse(digest, now_s);
                self.saving.remove(&digest);
                match self.remove(&digest) {
                    Some(entry) => Begun::Collided(entry),
                    None => Begun::Settled(Saved::Collision),
                }
            }
        }
    }

    fn refuse(&mut self, digest: KeyDigest, now_s: u64) {
        self.refused_until.retain(|_, until| now_s < *until);
        if self.refused_until.len() < MOST_REFUSED {
            self.refused_until.insert(digest, now_s + REFUSED_S);
        }
    }

    /// Ends a save without the object.
    pub fn abandon(&mut self, digest: &KeyDigest, seq: u64) {
        if self.is_saving(digest, seq) {
            self.saving.remove(digest);
        }
    }

    /// Ends any save of a key without the object, because the key is removed.
    pub fn cancel(&mut self, digest: &KeyDigest) {
        self.saving.remove(digest);
    }

    /// As [`Self::cancel`], of every key.
    pub fn cancel_all(&mut self) {
        self.saving.clear();
    }

    /// Whether this save goes on.
    pub fn is_saving(&self, digest: &KeyDigest, seq: u64) -> bool {
        self.saving.get(digest).is_some_and(|saving| saving.seq == seq)
    }

    /// Adds an object that was written; gives it back if its key was removed meanwhile.
    pub fn finish(&mut self, entry: Entry<P>) -> Result<(), Entry<P>> {
        if !self.is_saving(&entry.digest, entry.seq) {
            return Err(entry);
        }
        self.saving.remove(&entry.digest);
        self.insert(entry);
        Ok(())
    }

    /// Adds an object as the one that was used last, in place of an older one of its key.
    pub fn insert(&mut self, entry: Entry<P>) -> Option<Entry<P>> {
        let old = self.remove(&entry.digest);
        let slot = self.free.pop().unwrap_or(self.entries.len() as u32);
        if slot as usize == self.entries.len() {
            self.entries.push(None);
        }
        self.by_digest.insert(entry.digest, slot);
        self.used.admit(slot, EPOCH, entry.bytes);
        self.entries[slot as usize] = Some(entry);
        old
    }

    pub fn get(&self, digest: &KeyDigest) -> Option<&Entry<P>> {
        self.entries[*self.by_digest.get(digest)? as usize].as_ref()
    }

    /// Notes a use. Returns the number of the record if the journal should tell of it: the last use
    /// of which it tells is more than `after_s` ago.
    pub fn touch_and_note(&mut self, digest: &KeyDigest, now_s: u64, after_s: u64) -> Option<u64> {
        let entry = self.touch(digest, now_s)?;
        let noted = now_s.saturating_sub(entry.noted_s) > after_s;
        noted.then(|| {
            entry.noted_s = now_s;
            entry.seq
        })
    }

    /// Notes a use.
    pub fn touch(&mut self, digest: &KeyDigest, now_s: u64) -> Option<&mut Entry<P>> {
        let slot = *self.by_digest.get(digest)?;
        self.used.touch(slot, EPOCH);
        let entry = self.entries[slot as usize].as_mut()?;
        entry.used_s = now_s;
        Some(entry)
    }

    pub fn remove(&mut self, digest: &KeyDigest) -> Option<Entry<P>> {
        let slot = self.by_digest.remove(digest)?;
        self.used.forget(slot, EPOCH);
        self.free.push(slot);
        self.entries[slot as usize].take()
    }

    /// Removes the object with this sequence number, if it is still the one of its key.
    pub fn remove_if(&mut self, digest: &KeyDigest, seq: u64) -> Option<Entry<P>> {
        self.get(digest).filter(|entry| entry.seq == seq)?;
        self.remove(digest)
    }

    /// Removes the object that was used longest ago; only if that was before `before_s`, if given.
    pub fn oldest(&mut self, before_s: Option<u64>) -> Option<Entry<P>> {
        let (slot, epoch, bytes) = self.used.victim()?;
        let entry = self.entries[slot as usize].as_ref()?;
        if before_s.is_some_and(|before| entry.used_s >= before) {
            self.used.admit_oldest(slot, epoch, bytes);
            return None;
        }
        let digest = entry.digest;
        self.remove(&digest)
    }

    pub fn len(&self) -> usize {
        self.by_digest.len()
    }

    pub fn used_bytes(&self) -> u64 {
        self.used.bytes()
    }

    /// Bytes of the records that are being written.
    pub fn saving_bytes(&self) -> u64 {
        self.saving.values().map(|saving| saving.bytes).sum()
    }

    /// Every entry, by slot; from a slot on.
    pub fn iter(&self, from: usize) -> impl Iterator<Item = (usize, &Entry<P>)> {
        let entries = self.entries.iter().enumerate().skip(from);
        entries.filter_map(|(slot, entry)| Some((slot, entry.as_ref()?)))
    }
}
