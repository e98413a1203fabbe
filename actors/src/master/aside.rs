//! Keys for which device logs serve objects besides the listed one: where those lie, until one of
//! the two ends.

use super::entry::Replica;
use super::known::Known;
use super::{Ask, Master};
use crate::actor::Reply;
use crate::message::{KeyBytes, MasterToOwner, Promote, Request, SegmentId, SlotRef};
use nkv_store::{Key, KeyId};

impl Master {
    /// Remembers an object that a log serves under a key whose entry is another one.
    pub(super) fn put_aside(&mut self, id: KeyId, served: Replica) {
        self.aside.entry(id).or_default().insert(served.segment_id, served);
        // So that its end is noticed.
        self.list_at(id, served.segment_id, served.at);
    }

    /// An object that is not listed under this key has ended.
    pub(super) fn forget_aside(&mut self, id: KeyId, at: SlotRef) {
        let Some(aside) = self.aside.get_mut(&id) else { return };
        aside.retain(|_, served| served.at != at);
        if aside.is_empty() {
            self.aside.remove(&id);
        }
    }

    /// A removal of this key begins: what logs serve under it goes with its entry, and is waited
    /// for [I6].
    pub(super) fn remove_aside(&mut self, id: KeyId) {
        let Some(mut aside) = self.aside.remove(&id) else { return };
        // What ended while its rank's link was down is listed no more.
        let there = |served: &Replica| {
            self.listed_at(served.segment_id, &served.at) == Some(id)
                && self.objects.get(&id).is_some_and(|e| !e.is_at(served.at))
        };
        let others: Vec<_> = aside.extract_if(.., |_, served| there(served)).collect();
        for (_, served) in others {
            if let Some(e) = self.objects.get_mut(&id) {
                e.add_live(served);
            }
        }
        if !aside.is_empty() {
            self.aside.insert(id, aside);
        }
    }

    /// A plan's object is live now: objects that logs of other segments serve under its key are
    /// duplicates and are retired. Within its own segment the owner decides [I15].
    pub(super) fn became_live(&mut self, id: KeyId, but: SegmentId) {
        self.awaiting.note(id);
        self.remove_other_stripes(id);
        if self.found_gone.contains(&id) {
            return;
        }
        let Some(places) = self.aside.get_mut(&id) else { return };
        for (segment_id, served) in places.extract_if(.., |segment_id, _| *segment_id != but) {
            self.durable.members.send(segment_id, MasterToOwner::Retire(vec![served.at]));
        }
        if places.is_empty() {
            self.aside.remove(&id);
        }
    }

    /// The entry of this key is removed: if a log served another object under it, asks the logs for
    /// it again.
    pub(super) fn list_aside(&mut self, id: KeyId, key: &Key) {
        self.found_gone.remove(&id);
        if self.aside.remove(&id).is_some() {
            let (keys, gone) = (vec![KeyBytes::shared(key.clone())], Vec::new());
            let request = Request::GetLocation { keys, gone, promote: Promote::No };
            // Without an owner to ask there is nothing to list.
            let _ = self.ask_logs_first(
                Ask { producer: 0, request },
                Reply::nobody(),
                Known::default(),
            );
        }
    }

    /// A replica is gone, and others are served: what a log of its segment served under the same
    /// key meanwhile is a duplicate of those.
    pub(super) fn drop_aside(&mut self, id: KeyId, segment_id: Option<SegmentId>) {
        let Some((segment_id, served)) = segment_id.zip(self.aside.get_mut(&id)) else { return };
        let at = served.remove(&segment_id).map(|served| served.at);
        if served.is_empty() {
            self.aside.remove(&id);
        }
        if let Some(at) = at {
            self.durable.members.send(segment_id, MasterToOwner::Retire(vec![at]));
            // It went because of that object, and not since its rank needed room.
            self.note_unmade(id);
        }
    }
}
