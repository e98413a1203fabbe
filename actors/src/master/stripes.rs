//! The stripes of large objects. To the master they are objects like any other, with keys of their
//! own, which name the object and the put. It ends them with that object, and the object with any
//! of them. Handles write and read them.

use super::Master;
use super::entry::{Entry, State};
use super::finish::Retire;
use super::objects::IdentityState;
use crate::message::KeyBytes;
use crate::striping::{object_of, put_of, stripe_of};
use hashbrown::HashMap;
use nkv_store::KeyId;
use std::collections::{BTreeMap, BTreeSet};

/// By an object's identity in its stripes' keys.
#[derive(Default)]
pub(super) struct Stripes {
    /// The listed stripes, with the numbers of their puts.
    of: HashMap<KeyId, BTreeMap<KeyId, u32>, IdentityState>,
    /// The listed manifest.
    manifests: HashMap<KeyId, KeyId, IdentityState>,
}

impl Stripes {
    /// Those that `which` picks by the number of the put.
    fn of(&self, object: &KeyId, which: impl Fn(u32) -> bool) -> Vec<KeyId> {
        let known = self.of.get(object).into_iter().flatten();
        known.filter(|(_, put)| which(**put)).map(|(id, _)| *id).collect()
    }

    fn forget(&mut self, id: &KeyId, entry: &Entry) {
        if put_of(&entry.replica().object).is_some() {
            self.manifests.remove(&object_of(entry.key.as_bytes()));
        }
        let Some((object, _)) = stripe_of(entry.key.as_bytes()) else { return };
        if let Some(known) = self.of.get_mut(&object) {
            known.remove(id);
            if known.is_empty() {
                self.of.remove(&object);
            }
        }
    }
}

impl Master {
    /// Adds or replaces the entry of a key.
    pub(super) fn add_object(&mut self, id: KeyId, entry: Entry) {
        if let Some((object, put)) = stripe_of(entry.key.as_bytes()) {
            self.stripes.of.entry(object).or_default().insert(id, put);
        }
        if put_of(&entry.replica().object).is_some() {
            self.stripes.manifests.insert(object_of(entry.key.as_bytes()), id);
        }
        self.objects.insert(id, entry);
    }

    /// Takes the entry of a key out.
    pub(super) fn take_object(&mut self, id: &KeyId) -> Option<Entry> {
        let entry = self.objects.remove(id)?;
        if !self.stripes.of.is_empty() || !self.stripes.manifests.is_empty() {
            self.stripes.forget(id, &entry);
        }
        Some(entry)
    }

    /// Begins to remove the stripes of an object that is being removed: nobody finds them without
    /// it, so nobody waits for that.
    pub(super) fn remove_stripes(&mut self, key: &[u8], retire: &mut Retire) {
        for stripe in self.stripes_to_remove(key) {
            self.retire_object(stripe, retire);
        }
    }

    /// The keys of the listed stripes of an object that is to be removed.
    pub(super) fn keys_of_stripes(&self, key: &[u8]) -> Vec<KeyBytes> {
        let stripes = self.stripes_to_remove(key);
        let stripes = stripes.iter().filter_map(|id| self.objects.get(id));
        stripes.map(|e| KeyBytes::shared(e.key.clone())).collect()
    }

    /// The listed stripes of an object: of what is listed under its key, or of all its puts.
    fn stripes_to_remove(&self, key: &[u8]) -> Vec<KeyId> {
        if self.stripes.of.is_empty() {
            return Vec::new();
        }
        let listed = self.objects.get(&self.id_of(key));
        let (known, put) = (listed.is_some(), listed.and_then(|e| put_of(&e.replica().object)));
        self.stripes.of(&object_of(key), |of| !known || Some(of) == put)
    }

    /// A manifest is live: what other puts of its key have written nobody will ever find.
    pub(super) fn remove_other_stripes(&mut self, id: KeyId) {
        if self.stripes.of.is_empty() {
            return;
        }
        let Some(e) = self.objects.get(&id) else { return };
        let Some(put) = put_of(&e.replica().object) else { return };
        let mut retire = Retire::new();
        for stripe in self.stripes.of(&object_of(e.key.as_bytes()), |of| of != put) {
            self.retire_object(stripe, &mut retire);
        }
        self.send_retire(retire);
    }

    /// An object has left memory. If it was a manifest its stripes end, and if it was a stripe the
    /// manifest does; unless a disk may have it still.
    pub(super) fn end_of_striped(&mut self, gone: &Entry) {
        let (stripe, put) = (stripe_of(gone.key.as_bytes()), put_of(&gone.replica().object));
        if stripe.is_none() && (put.is_none() || self.stripes.of.is_empty()) || self.has_disks() {
            return;
        }
        let mut retire = Retire::new();
        let (object, put) = match (stripe, put) {
            (Some((object, of)), _) => {
                let Some(id) = self.stripes.manifests.get(&object).copied() else { return };
                let listed = self.objects.get(&id).filter(|e| e.state() != State::Removing);
                if listed.and_then(|e| put_of(&e.replica().object)) != Some(of) {
                    return;
                }
                self.retire_object(id, &mut retire);
                (object, of)
            }
            (None, Some(put)) => (object_of(gone.key.as_bytes()), put),
            (None, None) => return,
        };
        for stripe in self.stripes.of(&object, |of| of == put) {
            self.retire_object(stripe, &mut retire);
        }
        self.send_retire(retire);
    }

    /// The bytes of an object's stripes, and the ranks that have one; None if it is in no stripes.
    pub(super) fn stripes_of(&self, manifest: &Entry) -> Option<(u64, Vec<u32>)> {
        let put = put_of(&manifest.replica().object)?;
        let stripes = self.stripes.of(&object_of(manifest.key.as_bytes()), |of| of == put);
        let stripes = || stripes.iter().filter_map(|id| self.objects.get(id));
        let ranks: BTreeSet<u32> =
            stripes().flat_map(|e| e.replicas().map(|r| r.segment_id.rank)).collect();
        let bytes = stripes().map(|e| e.replica().object.bytes_total).sum();
        (!ranks.is_empty()).then(|| (bytes, ranks.into_iter().collect()))
    }
}
