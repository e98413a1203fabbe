//! The one module that implements an object's life cycle: what the words of a header mean, when an
//! object may be read [I2] [I7], and the owner's transitions from free to open, live, retired,
//! quarantined and free again [I3] [I8] [I10] [I11]. No other module compares states. It neither
//! places payloads nor decides when to evict, and waits for nothing: time comes in as an argument.

mod chain;
mod desc;
mod holders;
mod live;
mod scan;
mod set_mark;
mod slots;
mod transition;
mod unheard;
mod usage;
mod view;

pub use chain::{Publication, Reading, chain_in_time};
pub use desc::ObjectDesc;
pub use holders::Holders;
pub use live::{LiveSlot, live_slot, live_slots};
pub use scan::OpenSlot;
pub use set_mark::SetMark;
pub use slots::{Committed, Freed, Slots};
pub use usage::Usage;
pub use view::{SlotKind, SlotReport};

use crate::error::StoreError;
use crate::heap::Heap;
use crate::key::KeyId;
use crate::layout::{
    HEADER_BYTES, OWNER_OFF, ObjHeader, PRODUCER_FIELDS, PUBLISH_OFF, Region, epoch_of, flag, low,
    state, word,
};
use crate::words::{self, Words};
use zerocopy::IntoBytes;

/// What a reader expects of the object it wants, from a location or a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Expect {
    /// Identity of the key; `None` accepts any.
    pub key: Option<KeyId>,
    /// Epoch of the location; `None` accepts the slot's own.
    pub epoch: Option<u32>,
    /// Segment offset of page 0 from which the copy was made.
    pub payload_base: u64,
    /// Number of bytes that the copy has.
    pub bytes_total: u64,
}

/// Why an object may not be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unreadable {
    /// The right epoch, RESERVED or WRITING: it may become readable.
    NotReady,
    /// Retired, dead, or of another epoch: it will not become readable.
    Gone,
    /// A readable object, but of another key.
    OtherKey,
    /// The payload is not where the copy assumed, or is outside the arena.
    BadExtent,
}

/// Whether the object in this header is readable as expected [I2]. Pure. The caller must order its
/// reads [I7] and check that the mapping belongs to the incarnation that the location names.
pub fn validate(h: &ObjHeader, e: &Expect, arena: &Region) -> Result<(), Unreadable> {
    let epoch = epoch_of(h.owner);
    let served = low(h.owner) & flag::LIVE != 0 && epoch_of(h.publish) == epoch;
    if !served || e.epoch.is_some_and(|wanted| wanted != epoch) {
        return Err(Unreadable::Gone);
    }
    match low(h.publish) {
        state::READY => {}
        state::RESERVED | state::WRITING => return Err(Unreadable::NotReady),
        _ => return Err(Unreadable::Gone),
    }
    if e.key.is_some_and(|key| key != key_of(h)) {
        return Err(Unreadable::OtherKey);
    }
    let as_copied = h.payload_base == e.payload_base && h.bytes_total == e.bytes_total;
    if !as_copied || !arena.covers(h.payload_base, h.bytes_total) {
        return Err(Unreadable::BadExtent);
    }
    Ok(())
}

/// Whether a header read again equals the one read before, except for `last_access` [I7].
pub fn unchanged(before: &ObjHeader, after: &ObjHeader) -> bool {
    ObjHeader { last_access: 0, ..*before } == ObjHeader { last_access: 0, ..*after }
}

/// The key identity in a header.
pub fn key_of(h: &ObjHeader) -> KeyId {
    KeyId { hash: h.key_hash, check: h.key_check }
}

/// The first 40 bytes of a header, which the producer writes with one write, before (WRITING,
/// epoch).
pub fn producer_fields(key: KeyId, object: &ObjectDesc) -> [u8; PRODUCER_FIELDS as usize] {
    let header = ObjHeader {
        key_hash: key.hash,
        key_check: key.check,
        n_pages: object.n_pages().min(SetMark::MOST_PAGES),
        page_size: object.page_bytes,
        payload_base: object.payload_off(),
        bytes_total: object.bytes_total,
        ..ObjHeader::default()
    };
    let mut fields = [0; PRODUCER_FIELDS as usize];
    fields.copy_from_slice(&header.as_bytes()[..PRODUCER_FIELDS as usize]);
    fields
}

/// Publish word of a slot armed by its owner.
pub fn reserved(epoch: u32) -> u64 {
    word(state::RESERVED, epoch)
}

/// Publish word while a producer writes.
pub fn writing(epoch: u32) -> u64 {
    word(state::WRITING, epoch)
}

/// Publish word of a published object.
pub fn ready(epoch: u32) -> u64 {
    word(state::READY, epoch)
}

/// Publish word of a producer's own abort.
pub fn dead(epoch: u32) -> u64 {
    word(state::DEAD, epoch)
}

/// Reads a header by its segment offset, word by word, each an acquire load.
#[inline]
pub(crate) fn header_at<W: Words + ?Sized>(words: &W, at: u64) -> Result<ObjHeader, StoreError> {
    let mut header = ObjHeader::default();
    words::read(words, at, header.as_mut_bytes())?;
    Ok(header)
}

/// A consistent header: its publish and owner words are read before everything else and again
/// after. None if they changed meanwhile.
#[inline]
pub(crate) fn settled_header<W: Words + ?Sized>(
    words: &W,
    at: u64,
) -> Result<Option<ObjHeader>, StoreError> {
    // Refuses a slot that does not exist before the offsets of its words are computed.
    words.check("header", at, HEADER_BYTES)?;
    let publish = words::load(words, at + PUBLISH_OFF)?;
    let owner = words::load(words, at + OWNER_OFF)?;
    let header = header_at(words, at)?;
    let again = words::load(words, at + PUBLISH_OFF)?;
    let same = header.publish == publish && header.owner == owner && again == publish;
    Ok((same && words::load(words, at + OWNER_OFF)? == owner).then_some(header))
}

/// Reads one header, its publish and owner words first (acquire), then its fields [I7].
pub fn read_header(heap: &Heap, slot: u32) -> Result<ObjHeader, StoreError> {
    let (memory, at) = (heap.memory(), heap.layout().header_off(slot));
    let (publish, owner) = (memory.load(at + PUBLISH_OFF)?, memory.load(at + OWNER_OFF)?);
    let mut header = ObjHeader::default();
    memory.read(at, header.as_mut_bytes())?;
    Ok(ObjHeader { publish, owner, ..header })
}

#[cfg(test)]
mod tests;
