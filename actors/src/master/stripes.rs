//! The stripes of large objects. To the master they are objects like any other, with keys of their
//! own, which name the object and the put. It ends them with that object, and the object with any
//! of them. Handles write and read them.

use super::Master;
use super::entry::{Entry, State};
use super::finish::Retire;
use super::objects::IdentityState;
use crate::striping::{put_of, stripe_of};
use hashbrown::HashMap;
use nkv_store::KeyId;
use std::collections::{BTreeMap, BTreeSet};

/// The listed stripes of each object, with the numbers of their puts.
#[derive(Default)]
pub(super) struct Stripes {
    of: HashMap<KeyId, BTreeMap<KeyId, u32>, IdentityState>,
}

impl Stripes {
    /// Those that `which` picks by the number of the put.
    fn of(&self, object: &KeyId, which: impl Fn(u32) -> bool) -> Vec<KeyId> {
        let known = self.of.get(object).into_iter().flatten();
        known.filter(|(_, put)| which(**put)).map(|(id, _)| *id).collect()
    }

    fn forget(&mut self, object: KeyId, stripe: &KeyId) {
        if let Some(known) = self.of.get_mut(&object) {
            known.remove(stripe);
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
        self.objects.insert(id, entry);
    }

    /// Takes the entry of a key out.
    pub(super) fn take_object(&mut self, id: &KeyId) -> Option<Entry> {
        let entry = self.objects.remove(id)?;
        if !self.stripes.of.is_empty()
            && let Some((object, _)) = stripe_of(entry.key.as_bytes())
        {
            self.stripes.forget(object, id);
        }
        Some(entry)
    }

    /// The put that wrote the object of this key, if that may be a manifest.
    fn put_of(&self, object: &KeyId) -> Option<u32> {
        put_of(&self.objects.get(object)?.replica().object)
    }

    /// Begins to remove the stripes of an object that is being removed: nobody finds them without
    /// it, so nobody waits for that.
    pub(super) fn remove_stripes(&mut self, object: KeyId, retire: &mut Retire) {
        if self.stripes.of.is_empty() {
            return;
        }
        let put = self.put_of(&object);
        let known = self.objects.contains_key(&object);
        for stripe in self.stripes.of(&object, |of| !known || Some(of) == put) {
            self.retire_object(stripe, retire);
        }
    }

    /// A manifest is live: what other puts of its key have written nobody will ever find.
    pub(super) fn remove_other_stripes(&mut self, object: KeyId) {
        if self.stripes.of.is_empty() {
            return;
        }
        let Some(put) = self.put_of(&object) else { return };
        let mut retire = Retire::new();
        for stripe in self.stripes.of(&object, |of| of != put) {
            self.retire_object(stripe, &mut retire);
        }
        self.send_retire(retire);
    }

    /// An object has left memory. If it was a manifest its stripes end, and if it was a stripe the
    /// manifest does; unless a disk may have it still.
    pub(super) fn end_of_striped(&mut self, id: &KeyId, gone: &Entry) {
        let (stripe, put) = (stripe_of(gone.key.as_bytes()), put_of(&gone.replica().object));
        if stripe.is_none() && (put.is_none() || self.stripes.of.is_empty()) || self.has_disks() {
            return;
        }
        let mut retire = Retire::new();
        let ends = match stripe {
            None => *id,
            Some((object, of)) => {
                let listed = self.objects.get(&object);
                let stays = listed.is_none_or(|e| e.state() == State::Removing);
                if stays || self.put_of(&object) != Some(of) {
                    return;
                }
                self.retire_object(object, &mut retire);
                object
            }
        };
        let put = stripe.map_or(put, |(_, of)| Some(of));
        for stripe in self.stripes.of(&ends, |of| Some(of) == put) {
            self.retire_object(stripe, &mut retire);
        }
        self.send_retire(retire);
    }

    /// The bytes of an object's stripes, and the ranks that have one; None if it is in no stripes.
    pub(super) fn stripes_of(&self, object: &KeyId, manifest: &Entry) -> Option<(u64, Vec<u32>)> {
        let put = put_of(&manifest.replica().object)?;
        let stripes = self.stripes.of(object, |of| of == put);
        let stripes = || stripes.iter().filter_map(|id| self.objects.get(id));
        let ranks: BTreeSet<u32> =
            stripes().flat_map(|e| e.replicas().map(|r| r.segment_id.rank)).collect();
        let bytes = stripes().map(|e| e.replica().object.bytes_total).sum();
        (!ranks.is_empty()).then(|| (bytes, ranks.into_iter().collect()))
    }
}
