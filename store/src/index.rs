//! The one-sided index of a segment: 64-byte buckets of 8 entries, written by the owner alone and
//! read by any process that can access the memory. An entry is a hint to a header, and the header
//! decides [I2]. So entries are stored and cleared one word at a time, without a lock, and a miss
//! means only "not found here", never "does not exist".

use crate::key::KeyId;
use crate::layout::Region;
use crate::memory::Memory;
use crate::words::{self, Words};
use hashbrown::HashMap;
use std::sync::Arc;
use zerocopy::IntoBytes;

/// Bytes of a bucket: one cache line.
pub const BUCKET_BYTES: u64 = 64;
/// Entries of a bucket.
pub const ENTRIES: usize = 8;
/// Entries per header slot, before the number of buckets is rounded up to a power of two: with
/// every slot in use a quarter to a half of the entries are taken, and at a half one key in a
/// thousand finds its bucket and the neighbour full (research: 0.09%).
const ENTRIES_PER_SLOT: u64 = 2;
/// Fewest buckets: a bucket and its neighbour.
const MIN_BUCKETS: u64 = 2;

const USED: u64 = 1 << 63;
const TAG_SHIFT: u32 = 44;
const TAG_MASK: u64 = (1 << 19) - 1;
const EPOCH_SHIFT: u32 = 32;
const EPOCH_MASK: u64 = (1 << 12) - 1;

/// Bytes of the index of a segment with so many header slots.
pub fn region_bytes(slots: u64) -> u64 {
    let buckets = (slots * ENTRIES_PER_SLOT).div_ceil(ENTRIES as u64);
    buckets.next_power_of_two().max(MIN_BUCKETS) * BUCKET_BYTES
}

/// Whether a region of a control block has a valid length for an index, or is absent.
pub(crate) fn fits(region: &Region) -> bool {
    let buckets = region.len / BUCKET_BYTES;
    region.len == 0 || (buckets >= MIN_BUCKETS && buckets.is_power_of_two())
}

/// Segment offsets of the bucket of a key and of its neighbour, which share 128 bytes. None if the
/// segment has no index.
pub fn buckets_of(index: &Region, key: KeyId) -> Option<[u64; 2]> {
    let mask = (index.len / BUCKET_BYTES).checked_sub(1)?;
    let home = key.hash & mask;
    Some([home, home ^ 1].map(|bucket| index.offset + bucket * BUCKET_BYTES))
}

/// Content of an entry: a slot, and the low bits of its epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// Header slot.
    pub slot: u32,
    epoch_low: u64,
}

impl Entry {
    /// Decodes a word of a bucket; None unless its tag is that of this key.
    #[inline]
    pub fn of_word(word: u64, key: KeyId) -> Option<Entry> {
        let hit = word & !(EPOCH_MASK << EPOCH_SHIFT | u64::from(u32::MAX)) == USED | tag(key);
        let epoch_low = word >> EPOCH_SHIFT & EPOCH_MASK;
        hit.then_some(Entry { slot: word as u32, epoch_low })
    }

    /// True if the entry may belong to this epoch.
    #[inline]
    pub fn is_about(&self, epoch: u32) -> bool {
        u64::from(epoch) & EPOCH_MASK == self.epoch_low
    }
}

#[inline]
fn tag(key: KeyId) -> u64 {
    // Taken from the check, not from the hash, which has already selected the bucket.
    (key.check & TAG_MASK) << TAG_SHIFT
}

fn word_of(key: KeyId, slot: u32, epoch: u32) -> u64 {
    USED | tag(key) | (u64::from(epoch) & EPOCH_MASK) << EPOCH_SHIFT | u64::from(slot)
}

/// The entries of one bucket that may be of this key, in order; none for a bucket outside the
/// segment. Lazy: words after the last entry taken are not read.
#[inline]
pub fn probe<W: Words + ?Sized>(words: &W, bucket: u64, key: KeyId) -> impl Iterator<Item = Entry> {
    let entry = move |at| Entry::of_word(words::load(words, at).ok()?, key);
    words_of(bucket).filter_map(entry)
}

/// The owner's side of the index. Bounded by the slots of the segment: a slot has one entry.
#[derive(Debug)]
pub struct Index {
    memory: Arc<dyn Memory>,
    region: Region,
    /// Entries that did not fit into their pair of buckets, by the offset of its first bucket. Only
    /// the owner finds these.
    overflow: HashMap<u64, Vec<(KeyId, u32, u32)>>,
    overflowed: u64,
}

impl Index {
    /// The index in this region of a segment, emptied.
    pub fn empty(memory: Arc<dyn Memory>, region: Region) -> Index {
        let index = Index { memory, region, overflow: HashMap::new(), overflowed: 0 };
        for at in (region.offset..region.offset + region.len).step_by(8) {
            // Does not write to pages that were never written.
            if index.memory.load(at).is_ok_and(|word| word != 0) {
                index.store(at, 0);
            }
        }
        index
    }

    /// Adds an entry from `key` to a slot, whose header must be READY and LIVE by now. Adding the
    /// same entry twice has no further effect.
    pub fn insert(&mut self, key: KeyId, slot: u32, epoch: u32) {
        let Some(buckets) = buckets_of(&self.region, key) else { return };
        let (entry, words) = (word_of(key, slot, epoch), buckets.map(|at| self.bucket(at)));
        if place_of(&buckets, &words, entry).is_some() {
            return;
        }
        if let Some(place) = place_of(&buckets, &words, 0) {
            return self.store(place, entry);
        }
        let beside = self.overflow.entry(pair(&buckets)).or_default();
        if !beside.contains(&(key, slot, epoch)) {
            beside.push((key, slot, epoch));
            self.overflowed += 1;
        }
    }

    /// Removes the entry; does nothing if there is none.
    pub fn remove(&mut self, key: KeyId, slot: u32, epoch: u32) {
        let Some(buckets) = buckets_of(&self.region, key) else { return };
        let words = buckets.map(|at| self.bucket(at));
        let Some(place) = place_of(&buckets, &words, word_of(key, slot, epoch)) else {
            return self.forget_beside(pair(&buckets), (key, slot, epoch));
        };
        // An overflowed entry takes the free place.
        let next = self.overflow.get(&pair(&buckets)).and_then(|beside| beside.last().copied());
        self.store(place, next.map_or(0, |(key, slot, epoch)| word_of(key, slot, epoch)));
        if let Some(next) = next {
            self.forget_beside(pair(&buckets), next);
        }
    }

    /// The slot of a key, for the owner: `is` checks the header of a candidate. Unlike a reader's
    /// miss, None is exact.
    pub fn find(&self, key: KeyId, mut is: impl FnMut(u32) -> bool) -> Option<u32> {
        let buckets = buckets_of(&self.region, key)?;
        let words = buckets.into_iter().flat_map(|at| self.bucket(at));
        let slots = words.filter_map(|word| Entry::of_word(word, key)).map(|entry| entry.slot);
        let beside = self.overflow.get(&pair(&buckets)).into_iter().flatten();
        let beside = beside.filter(|(k, ..)| *k == key).map(|(_, slot, _)| *slot);
        slots.chain(beside).find(|slot| is(*slot))
    }

    /// Entries that did not fit into their buckets, which no reader finds.
    pub fn overflowed(&self) -> u64 {
        self.overflowed
    }

    /// Prefetches what will be read when a key of this hash is found, inserted or removed.
    pub fn prefetch(&self, hash: u64) {
        if let Some([home, beside]) = buckets_of(&self.region, KeyId { hash, check: 0 }) {
            Words::prefetch(&*self.memory, home.min(beside), 2 * BUCKET_BYTES);
        }
    }

    /// A bucket's words, read by one call to the memory. Memory that cannot be reached (a device
    /// lost) yields no entry; its headers fail for every reader too.
    fn bucket(&self, at: u64) -> [u64; ENTRIES] {
        let mut words = [0; ENTRIES];
        let read = self.memory.read(at, words.as_mut_bytes());
        if read.is_ok() { words } else { [0; ENTRIES] }
    }

    fn store(&self, at: u64, word: u64) {
        if let Err(error) = self.memory.store(at, word) {
            tracing::error!(%error, "cannot write the index");
        }
    }

    fn forget_beside(&mut self, pair: u64, gone: (KeyId, u32, u32)) {
        let Some(beside) = self.overflow.get_mut(&pair) else { return };
        let before = beside.len();
        beside.retain(|entry| *entry != gone);
        self.overflowed -= (before - beside.len()) as u64;
        if beside.is_empty() {
            self.overflow.remove(&pair);
        }
    }
}

/// Offset of the word that equals `wanted` in a pair of buckets with these contents.
fn place_of(buckets: &[u64; 2], words: &[[u64; ENTRIES]; 2], wanted: u64) -> Option<u64> {
    let places = buckets.iter().flat_map(|bucket| words_of(*bucket));
    places.zip(words.iter().flatten()).find(|(_, word)| **word == wanted).map(|(at, _)| at)
}

fn words_of(bucket: u64) -> impl Iterator<Item = u64> {
    (bucket..bucket + BUCKET_BYTES).step_by(8)
}

fn pair(buckets: &[u64; 2]) -> u64 {
    buckets[0].min(buckets[1])
}

#[cfg(test)]
mod tests;
