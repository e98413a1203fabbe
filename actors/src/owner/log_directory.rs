//! The index of a segment as its log updates it, and what the owner has to do about that.

use super::OwnerTables;
use super::awaited::AwaitedKeys;
use super::ended_sets::EndedSets;
use nkv_store::KeyId;
use nkv_store::device_log::{Directory, LogObject};
use nkv_store::object::{SetMark, Slots};

/// What a pass over the log changed.
#[derive(Debug, Default)]
pub(super) struct Changes {
    /// Slot and epoch of objects that are not served any more.
    pub(super) ended: Vec<(u32, u32)>,
    /// Objects that are served from a copy now, with slot and epoch before.
    pub(super) moved: Vec<((u32, u32), LogObject)>,
    /// Objects that callers wait for.
    pub(super) awaited: Vec<LogObject>,
    /// Objects that are served now and belong to several replicas.
    pub(super) marked: Vec<((u32, u32), SetMark)>,
}

impl Changes {
    /// Before any of these objects moves or is reported.
    pub(super) fn note_marks(&self, tables: &OwnerTables) {
        if !self.marked.is_empty() {
            tables.lock().note_marks(&self.marked);
        }
    }
}

/// The index of the segment, as the log updates it, and what changed.
pub(super) struct SegmentDirectory<'a> {
    slots: &'a mut Slots,
    pub(super) changes: Changes,
    awaited: Option<&'a AwaitedKeys>,
    ended_sets: &'a EndedSets,
}

impl<'a> SegmentDirectory<'a> {
    pub(super) fn new(
        slots: &'a mut Slots,
        awaited: Option<&'a AwaitedKeys>,
        tables: &'a OwnerTables,
    ) -> Self {
        Self { slots, changes: Changes::default(), awaited, ended_sets: &tables.ended_sets }
    }
}

impl Directory for SegmentDirectory<'_> {
    fn contains(&self, key: &KeyId) -> bool {
        self.slots.serving(*key, |_| true).is_some()
    }

    fn refuses(&self, object: &LogObject) -> bool {
        self.ended_sets.contains(object.key, object.mark)
    }

    fn insert(&mut self, object: &LogObject) {
        self.slots.index_mut().insert(object.key, object.slot, object.epoch);
        if !object.mark.is_none() {
            self.changes.marked.push(((object.slot, object.epoch), object.mark));
        }
        if self.awaited.is_some_and(|awaited| awaited.contains(&object.key)) {
            self.changes.awaited.push(*object);
        }
    }

    fn remove(&mut self, key: &KeyId, slot: u32, epoch: u32) {
        self.slots.index_mut().remove(*key, slot, epoch);
        self.changes.ended.push((slot, epoch));
    }

    fn in_heap(&self, slot: u32, epoch: u32) -> Option<LogObject> {
        let (key, object) = self.slots.live_object(slot, epoch)?;
        Some(LogObject { key, slot, epoch, object, mark: SetMark::NONE })
    }

    fn serves(&self, key: &KeyId, slot: u32) -> bool {
        self.slots.serving(*key, |found| found == slot).is_some()
    }

    fn moved(&mut self, copy: &LogObject, from: (u32, u32)) {
        self.insert(copy);
        self.slots.index_mut().remove(copy.key, from.0, from.1);
        self.changes.moved.push((from, *copy));
    }

    fn expect(&self, hash: u64) {
        self.slots.index().prefetch(hash);
    }
}
