//! One segment as seen by a reader on its host: finds an object through the index and copies it
//! out, with loads alone. It sends no message, and waits or allocates only for a copy that is cut
//! into stripes for several threads. A miss does not prove that the object does not exist.

use crate::heap::Heap;
use crate::index::{self, BUCKET_BYTES};
use crate::key::KeyId;
use crate::layout::{HEADER_BYTES, ObjHeader, epoch_of};
use crate::memory::{HostMemory, HostRegion};
use crate::object::{Expect, header_at, settled_header, unchanged, validate};
use crate::op::{Fill, Op};
use crate::segment_layout::SegmentLayout;
use crate::stripes::Stripes;
use crate::words::{self, Words};

/// Payload bytes that are prefetched into the cache while the header is checked: more than the
/// hardware prefetches by itself before the copy has begun.
const PREFETCH_BYTES: u64 = 8 * 64;

/// A segment mapped by this process: all of it, or what precedes its payloads.
#[derive(Debug, Clone)]
pub struct Reader {
    memory: HostMemory,
    layout: SegmentLayout,
    stripes: Stripes,
}

/// An object that was readable when its header was checked [I2].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hit {
    /// Header slot.
    pub slot: u32,
    /// The header, against which a copy is validated.
    pub header: ObjHeader,
}

impl Hit {
    /// The object that a consistent snapshot of a slot's header describes, if it has this key and
    /// is readable [I2] [I16]. Every lookup accepts by this rule, however it fetched the header.
    #[inline]
    pub fn of(layout: &SegmentLayout, slot: u32, header: ObjHeader, key: KeyId) -> Option<Hit> {
        let expect = Expect {
            key: Some(key),
            epoch: None,
            payload_base: header.payload_base,
            bytes_total: header.bytes_total,
        };
        validate(&header, &expect, &layout.payloads()).ok()?;
        Some(Hit { slot, header })
    }

    /// The epoch that was found.
    pub fn epoch(&self) -> u32 {
        epoch_of(self.header.owner)
    }
}

/// The object in a slot, if it has this key and is readable. The header is a consistent snapshot.
#[inline]
pub fn read_slot<W: Words + ?Sized>(
    words: &W,
    layout: &SegmentLayout,
    slot: u32,
    key: KeyId,
) -> Option<Hit> {
    let header = settled_header(words, layout.header_off(slot)).ok()??;
    Hit::of(layout, slot, header, key)
}

/// Finds a key through the index of a segment.
#[inline]
pub fn find<W: Words + ?Sized>(words: &W, layout: &SegmentLayout, key: KeyId) -> Option<Hit> {
    for bucket in index::buckets_of(&layout.index, key)? {
        for entry in index::probe(words, bucket, key) {
            let hit = read_slot(words, layout, entry.slot, key);
            if let Some(hit) = hit.filter(|hit| entry.is_about(hit.epoch())) {
                return Some(hit);
            }
        }
    }
    None
}

/// Copies an object that was found; `dst` must have its length. Returns false if it changed before
/// or during the copy: the content of `dst` is then invalid. The second header check comes after
/// the last byte: strict [I7].
#[inline]
pub fn copy<W: Words + ?Sized>(
    words: &W,
    layout: &SegmentLayout,
    hit: &Hit,
    dst: &mut [u8],
) -> bool {
    debug_assert_eq!(dst.len() as u64, hit.header.bytes_total, "dst of another length");
    let copied = words::read(words, hit.header.payload_base, dst).is_ok();
    copied && still(words, layout, hit)
}

/// Whether an object is unchanged since it was found, so still readable: the second header check of
/// a pin [I9].
pub fn still<W: Words + ?Sized>(words: &W, layout: &SegmentLayout, hit: &Hit) -> bool {
    let now = header_at(words, layout.header_off(hit.slot));
    now.is_ok_and(|now| unchanged(&hit.header, &now))
}

impl Reader {
    /// None for memory whose headers and index the CPU cannot access.
    pub fn of(heap: &Heap) -> Option<Reader> {
        let layout = *heap.layout();
        let memory = heap.host_control()?;
        Some(Reader { memory, layout, stripes: Stripes::NONE })
    }

    /// The same, with large copies made by several threads.
    pub fn with_stripes(self, stripes: Stripes) -> Reader {
        Reader { stripes, ..self }
    }

    /// SegmentLayout of the segment.
    pub fn layout(&self) -> &SegmentLayout {
        &self.layout
    }

    /// Whether the CPU can load payloads, and not headers and index alone.
    #[inline]
    pub fn maps_payloads(&self) -> bool {
        self.words().len() >= self.layout.segment_bytes
    }

    /// The memory, for pins.
    pub fn memory(&self) -> &HostMemory {
        &self.memory
    }

    fn words(&self) -> &HostRegion {
        self.memory.words()
    }

    /// Finds a key; None does not prove that it does not exist.
    #[inline]
    pub fn find(&self, key: KeyId) -> Option<Hit> {
        find(self.words(), &self.layout, key)
    }

    /// Prefetches the part of the index that `find` of this key will read.
    #[inline]
    pub fn expect(&self, key: KeyId) {
        // Both buckets: a key that is not in its own is searched in the neighbour, too.
        if let Some([home, beside]) = index::buckets_of(&self.layout.index, key) {
            self.words().prefetch(home.min(beside), 2 * BUCKET_BYTES);
        }
    }

    /// Finds those keys for which `found` has no hit yet; faster than one by one, because all
    /// buckets, then all headers, are fetched from memory in parallel.
    pub fn find_many(&self, keys: &[KeyId], found: &mut [Option<Hit>]) {
        debug_assert_eq!(keys.len(), found.len());
        keys.iter().for_each(|key| self.expect(*key));
        for key in keys {
            let Some([home, _]) = index::buckets_of(&self.layout.index, *key) else { continue };
            if let Some(entry) = index::probe(self.words(), home, *key).next() {
                self.words().prefetch(self.layout.header_off(entry.slot), HEADER_BYTES);
            }
        }
        for (key, found) in keys.iter().zip(found).filter(|(_, found)| found.is_none()) {
            *found = self.find(*key);
        }
    }

    /// Checks a slot that is reported to hold a key.
    #[inline]
    pub fn read_slot(&self, slot: u32, key: KeyId) -> Option<Hit> {
        read_slot(self.words(), &self.layout, slot, key)
    }

    /// Prefetches the bytes of an object that is about to be copied.
    #[inline]
    pub fn prefetch(&self, hit: &Hit) {
        let bytes = hit.header.bytes_total.min(PREFETCH_BYTES);
        self.words().prefetch(hit.header.payload_base, bytes);
    }

    /// Copies an object out; see [`copy`].
    #[inline]
    pub fn copy(&self, hit: &Hit, dst: &mut [u8]) -> bool {
        match self.stripes.of(dst.len() as u64) {
            1 if self.maps_payloads() => copy(self.words(), &self.layout, hit, dst),
            n => self.copy_through(hit, dst, n),
        }
    }

    /// As [`Reader::copy`], into several buffers, one after another. Together they must have its
    /// length at least.
    pub fn copy_parts(&self, hit: &Hit, parts: &mut [impl Fill]) -> bool {
        let (mut at, mut left) = (hit.header.payload_base, hit.header.bytes_total);
        for part in parts {
            let bytes = left.min(part.room() as u64);
            if part.read(&**self.memory.memory(), at, bytes as usize).is_err() {
                return false;
            }
            (at, left) = (at + bytes, left - bytes);
        }
        left == 0 && self.still(hit)
    }

    /// As [`copy`], by several threads, or from a payload that the CPU cannot load: the second
    /// header check comes after the last byte of all of them [I7].
    #[cold]
    fn copy_through(&self, hit: &Hit, dst: &mut [u8], n: usize) -> bool {
        let mut all = Op::Read { offset: hit.header.payload_base, dst };
        all.run_striped(self.memory.memory().as_ref(), n).is_ok() && self.still(hit)
    }

    /// See [`still`].
    pub fn still(&self, hit: &Hit) -> bool {
        still(self.words(), &self.layout, hit)
    }
}

#[cfg(test)]
mod tests;
