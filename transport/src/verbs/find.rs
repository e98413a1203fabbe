//! A lookup that the owner's end makes, and how its result is judged.

use nkv_store::layout::ObjHeader;
use nkv_store::object::unchanged;
use nkv_store::reader::Hit;
use nkv_store::{KeyId, SegmentLayout};

/// What a lookup found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Found {
    /// No readable object of this key.
    #[default]
    Nothing,
    /// One, in this header slot at this epoch.
    At(u32, u32),
    /// One, but fewer bytes than were asked for lie between it and the segment's end.
    NotRead,
}

/// A lookup that the owner's end makes. Its header is read, then the payload, then the header once
/// more, strictly in this order; the caller judges them as those of any read [I2] [I7].
#[derive(Debug)]
pub struct Find<'a> {
    /// The wanted key.
    pub key: KeyId,
    /// Gets the first bytes of the payload; may be empty, or longer than the object: then its end
    /// is filled with something else.
    pub payload: &'a mut [u8],
    /// Result of the lookup. What was read lies where the object of this slot and epoch had it: a
    /// header of another epoch says nothing about it.
    pub found: Found,
    /// Results: the slot's header before and after the payload was read.
    pub headers: [ObjHeader; 2],
}

impl<'a> Find<'a> {
    /// A lookup of a key that reads as many bytes as `payload` has.
    pub fn new(key: KeyId, payload: &'a mut [u8]) -> Self {
        Self { key, payload, found: Found::default(), headers: Default::default() }
    }

    /// The object that was found, if it did not change meanwhile: then all of its payload that was
    /// read is its own, since it was read between the two headers [I7], from where the object of
    /// that epoch lies [I3].
    pub fn hit(&self, layout: &SegmentLayout) -> Option<Hit> {
        let Found::At(slot, epoch) = self.found else { return None };
        let [before, after] = self.headers;
        let hit = Hit::of(layout, slot, before, self.key)?;
        let same = hit.epoch() == epoch && unchanged(&before, &after);
        (slot < layout.slots && same).then_some(hit)
    }
}
