//! What a lookup knows while it is answered, and what of a request owners are asked.

use crate::error::{Error, Result};
use crate::message::{DiskMeta, DiskSave, KeyBytes, ObjMeta, Request, SegmentId, SlotRef};
use hashbrown::{HashMap, HashSet};
use nkv_store::KeyId;
use std::collections::BTreeMap;

/// What owners have answered about a request so far.
#[derive(Debug, Default)]
pub(super) struct Known {
    /// The limit of the answers from logs.
    pub until_ms: u64,
    /// Keys that the owners were asked to find.
    pub about: Vec<KeyId>,
    /// Objects that a log serves beside the listed one. They are the answer if that one cannot be
    /// read: it is being written or removed, its rank's link is down, the reader found it gone, or
    /// it was retired since.
    pub besides: HashMap<KeyId, ObjMeta>,
    /// What disks have of what is not in memory; None before they were asked.
    pub on_disk: Option<OnDisk>,
    /// What became of objects at the disks that were to save them, by rank, or why none was asked;
    /// None before that.
    pub saves: Option<HashMap<KeyId, Result<BTreeMap<u32, DiskSave>>>>,
    /// Keys that disks have removed: no error if nothing else has them.
    pub removed: HashSet<KeyId>,
    /// Objects that disks have removed for a pattern, or because all are.
    pub removed_count: u64,
    /// The same of logs, for all keys.
    pub from_logs: u64,
    /// Sets of replicas that all logs serve no more.
    pub ended: HashSet<(KeyId, u32)>,
    /// They were those that a round found; and where the next round begins.
    pub swept: Option<Option<KeyId>>,
}

/// What disks have of what is not in memory.
#[derive(Debug, Default)]
pub(super) struct OnDisk {
    /// Segments whose owners answer for the disks that have it, with its bytes.
    pub found: HashMap<KeyId, Vec<(SegmentId, u64)>>,
    /// What was to be brought back, once that was asked for.
    pub asked: Option<HashSet<KeyId>>,
    /// Why that failed.
    pub failed: HashMap<KeyId, Error>,
}

impl OnDisk {
    /// Of two objects of one key nobody knows which is the right one.
    pub(super) fn drop_differing(&mut self) {
        let first = |disks: &[(SegmentId, u64)]| disks.first().map(|(_, bytes)| *bytes);
        self.found.retain(|_, disks| disks.iter().all(|(_, bytes)| Some(*bytes) == first(disks)));
    }

    /// This disk does not have it after all.
    pub(super) fn is_not_at(&mut self, id: &KeyId, segment_id: SegmentId) {
        if let Some(disks) = self.found.get_mut(id) {
            disks.retain(|(at, _)| *at != segment_id);
        }
    }
}

impl Known {
    /// Where a key is on disk.
    pub(super) fn disk_meta(&self, id: &KeyId) -> Option<DiskMeta> {
        let (at, bytes_total) = *self.on_disk.as_ref()?.found.get(id)?.first()?;
        Some(DiskMeta { key: *id, rank: at.rank, bytes_total })
    }
}

/// The keys of a lookup; none for other requests.
pub(super) fn looked_up(request: &Request) -> Option<&[KeyBytes]> {
    match request {
        Request::GetLocation { keys, .. }
        | Request::Exists { keys, .. }
        | Request::SaveToDisk { keys, .. }
        | Request::MatchPrefix(keys) => Some(keys),
        _ => None,
    }
}

/// Whether it must not be confirmed while a rank may still serve one of its keys.
pub(super) fn removes(request: &Request) -> bool {
    matches!(request, Request::Remove(_) | Request::RemoveAt(_) | Request::RemoveMatching(_))
}

/// Locations that the reader was sent to and where it found no valid object.
pub(super) fn gone_slots(request: &Request) -> HashSet<SlotRef> {
    match request {
        Request::GetLocation { gone, .. } => gone.iter().copied().collect(),
        _ => HashSet::new(),
    }
}
