//! The stripes of large objects. To the master they are objects like any other, with keys of their
//! own; but it removes them with the object that their keys name, and lists that one with their
//! bytes. Handles write and read them.

use super::Master;
use super::entry::Entry;
use super::objects::IdentityState;
use crate::message::{SegmentId, SlotRef};
use crate::striping::{MANIFEST_BYTES, object_of};
use hashbrown::HashMap;
use nkv_store::KeyId;
use std::collections::{BTreeMap, BTreeSet};

/// The listed stripes of each object.
#[derive(Default)]
pub(super) struct Stripes {
    of: HashMap<KeyId, Vec<KeyId>, IdentityState>,
}

impl Stripes {
    fn of(&self, object: &KeyId) -> &[KeyId] {
        self.of.get(object).map_or(&[], Vec::as_slice)
    }

    fn note(&mut self, object: KeyId, stripe: KeyId) {
        let known = self.of.entry(object).or_default();
        if !known.contains(&stripe) {
            known.push(stripe);
        }
    }

    fn forget(&mut self, object: KeyId, stripe: &KeyId) {
        if let Some(known) = self.of.get_mut(&object) {
            known.retain(|id| id != stripe);
            if known.is_empty() {
                self.of.remove(&object);
            }
        }
    }
}

impl Master {
    /// Adds or replaces the entry of a key.
    pub(super) fn add_object(&mut self, id: KeyId, entry: Entry) {
        if let Some(object) = object_of(entry.key.as_bytes()) {
            self.stripes.note(object, id);
        }
        self.objects.insert(id, entry);
    }

    /// Takes the entry of a key out.
    pub(super) fn take_object(&mut self, id: &KeyId) -> Option<Entry> {
        let entry = self.objects.remove(id)?;
        if !self.stripes.of.is_empty()
            && let Some(object) = object_of(entry.key.as_bytes())
        {
            self.stripes.forget(object, id);
        }
        Some(entry)
    }

    /// Begins to remove the stripes of an object that is being removed: nobody finds them without
    /// it, so nobody waits for that.
    pub(super) fn remove_stripes(
        &mut self,
        object: KeyId,
        retire: &mut BTreeMap<SegmentId, Vec<SlotRef>>,
    ) {
        for stripe in self.stripes.of(&object).to_vec() {
            self.retire_object(stripe, retire);
        }
    }

    /// The bytes of an object's stripes, and the ranks that have one; None if it is in no stripes.
    pub(super) fn stripes_of(&self, object: &KeyId, manifest: &Entry) -> Option<(u64, Vec<u32>)> {
        let stripes = self.stripes.of(object);
        if stripes.is_empty() || manifest.replica().object.bytes_total != MANIFEST_BYTES as u64 {
            return None;
        }
        let stripes = || stripes.iter().filter_map(|id| self.objects.get(id));
        let ranks: BTreeSet<u32> =
            stripes().flat_map(|e| e.replicas().map(|r| r.segment_id.rank)).collect();
        let bytes = stripes().map(|e| e.replica().object.bytes_total).sum();
        Some((bytes, ranks.into_iter().collect()))
    }
}
