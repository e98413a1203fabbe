//! Checks of messages from other processes. A message that decodes may still contain impossible
//! sizes, slots or epochs: a receiver checks it here first, before it allocates, indexes or
//! calculates with any number in it [I19]. Only values that the sender itself is responsible for
//! are refused: what a producer wrote into a header, and an owner passes on, is bounded where it is
//! used.

mod calls;

pub(crate) use calls::check_disks;

use super::{
    Ballot, ClientToOwner, DiskAnswer, DiskQuestion, DiskSelection, GroupNews, LogObjectEntry,
    LogQuestion, MAX_BATCH, MAX_ENDED_SETS, MAX_GROUPS, MAX_OTHERS, MAX_PATTERN_BYTES,
    MAX_REPLICAS, MAX_SEGMENTS, MasterToOwner, OwnerToMaster, PlanOpened, RankInfo, ReplicaSet,
    SeenView, SlotContent, SlotEntry, SlotRef, Standing,
};
use crate::error::{Error, Result};
use crate::message::{KeyBytes, ObjectDesc};
use nkv_store::SegmentLayout;
use nkv_store::arena::Extent;
use nkv_store::key::MAX_KEY_BYTES;
use nkv_store::segment_layout::MAX_ARENA_BYTES;
use nkv_transport::wire::Address;

/// Longest address, file name or device list in a rank's description of itself, in bytes.
pub const MAX_TEXT_BYTES: usize = 1024;
/// Longest time in a message: 30 days. Sums of a few such times cannot overflow.
pub const MAX_TIME_MS: u64 = 30 * 24 * 3_600 * 1_000;
/// Reads in one batch of touches, at most, for each [`super::Via`].
pub const MAX_TOUCHES_SERVED: u64 = 1 << 40;

/// InvalidArgument with this text, unless the value is possible.
fn ensure(possible: bool, why: impl FnOnce() -> String) -> Result<()> {
    if possible { Ok(()) } else { Err(Error::invalid(why())) }
}

fn size(what: &str, n: u64, unit: &str, most: u64) -> Result<()> {
    ensure(n <= most, || format!("{what} of {n} {unit}; at most {most} are accepted"))
}

fn text(what: &str, bytes: usize) -> Result<()> {
    size(what, bytes as u64, "bytes", MAX_TEXT_BYTES as u64)
}

fn address(at: &Address) -> Result<()> {
    match at {
        Address::Tcp(name) => text("an address", name.len()),
        Address::Unix(path) => text("an address", path.as_os_str().len()),
    }
}

fn list(what: &str, len: usize, most: usize) -> Result<()> {
    ensure(len <= most, || format!("{len} {what} in one message; at most {most} are accepted"))
}

fn key(bytes: &[u8]) -> Result<()> {
    size("a key", bytes.len() as u64, "bytes", MAX_KEY_BYTES as u64)
}

fn keys_of(keys: &[KeyBytes]) -> Result<()> {
    list("keys", keys.len(), MAX_BATCH)?;
    keys.iter().try_for_each(|bytes| key(bytes))
}

/// A rank that is named more than once.
pub(crate) fn named_twice(ranks: impl Iterator<Item = u32>) -> Option<u32> {
    let mut ranks: Vec<u32> = ranks.collect();
    ranks.sort_unstable();
    ranks.windows(2).find(|two| two[0] == two[1]).map(|two| two[0])
}

fn slot_at(slots: u32, slot: u32, epoch: u32) -> Result<()> {
    ensure(slot < slots && epoch > 0, || {
        format!(
            "slot {slot} at epoch {epoch}, of a segment whose slots are 0 to {} and whose epochs \
             begin at 1",
            slots.saturating_sub(1)
        )
    })
}

fn time(what: &str, ms: u64) -> Result<()> {
    size(what, ms, "ms", MAX_TIME_MS)
}

impl RankInfo {
    /// Checks a rank's description of itself. `InvalidArgument` if it is impossible.
    pub fn check(&self) -> Result<()> {
        address(&self.control)?;
        self.local.iter().try_for_each(address)?;
        for (what, value) in
            [("a data address", &self.data), ("a device list", &self.fabric), ("a URL", &self.http)]
        {
            text(what, value.as_ref().map_or(0, String::len))?;
        }
        text("a segment's name", self.memory.name().map_or(0, str::len))?;
        ensure(self.incarnation != 0, || "incarnation 0, which means none".to_string())?;
        self.layout.check().map_err(|e| Error::invalid(e.to_string()))?;
        let (slots, unit) = (self.layout.managed_slots().len(), self.layout.arena_unit);
        let units = self.layout.arena.len / unit.bytes();
        ensure(slots as u64 <= units, || {
            format!("{slots} header slots for {units} units of {unit} bytes: there is one for each")
        })?;
        let (segment, last) = (self.segment_id, MAX_SEGMENTS - 1);
        ensure(segment <= last, || format!("segment {segment}; a rank's count from 0 to {last}"))
    }

    /// Checks the list of the other segments of a node, (segment, incarnation).
    pub fn check_siblings(&self, siblings: &[(u32, u64)]) -> Result<()> {
        list("siblings", siblings.len(), MAX_SEGMENTS as usize - 1)?;
        let (own, last) = (self.segment_id, MAX_SEGMENTS - 1);
        siblings.iter().try_for_each(|(n, _)| {
            ensure(*n != own && *n <= last, || {
                format!("segment {n} beside segment {own}; a rank's count from 0 to {last}")
            })
        })
    }

    fn check_slot(&self, slot: u32, epoch: u32) -> Result<()> {
        slot_at(self.layout.slots, slot, epoch)
    }

    fn check_ref(&self, at: &SlotRef) -> Result<()> {
        ensure(at.incarnation == self.incarnation, || {
            format!(
                "a slot of incarnation {:016x}, sent by {:016x}",
                at.incarnation, self.incarnation
            )
        })?;
        self.check_slot(at.slot, at.epoch)
    }

    fn check_refs(&self, refs: &[SlotRef]) -> Result<()> {
        // A batch may name one slot more than once.
        list("slots", refs.len(), (self.layout.slots as usize).max(MAX_BATCH))?;
        refs.iter().try_for_each(|at| self.check_ref(at))
    }

    /// Length 0 stands for an extent that the owner does not know.
    fn check_extent(&self, extent: &Extent) -> Result<()> {
        let (arena, Extent { offset, len }) = (self.layout.arena, extent);
        ensure(*len == 0 || extent.within(&arena), || {
            format!("an extent of {len} bytes at {offset}, outside the arena at {arena:?}")
        })
    }

    fn check_plan(&self, p: &PlanOpened) -> Result<()> {
        self.check_ref(&p.at)?;
        ensure(p.at.slot >= self.layout.log_slots, || {
            format!("a plan in slot {} of the device log", p.at.slot)
        })?;
        let ObjectDesc { extent, bytes_total, .. } = p.object;
        self.check_extent(&extent)?;
        ensure(extent.len > 0 && bytes_total <= extent.len, || {
            format!("a plan of {bytes_total} bytes in an extent of {}", extent.len)
        })?;
        key(&p.key)?;
        p.set.check()?;
        time("a deadline", p.deadline_ms)
    }

    fn check_logged(&self, o: &LogObjectEntry) -> Result<()> {
        self.check_slot(o.slot, o.epoch)?;
        ensure(o.slot < self.layout.log_slots, || {
            format!("slot {} is not the device log's", o.slot)
        })?;
        let log = self.layout.payloads();
        let fits = |end: u64| end <= self.layout.arena.offset;
        let ObjectDesc { extent, bytes_total, .. } = o.object;
        let inside = extent.offset.checked_add(bytes_total).is_some_and(fits);
        // What a header states, and no more: nothing is reserved in a log.
        ensure(extent.offset >= log.offset && inside && extent.len == bytes_total, || {
            format!("an object of {bytes_total} bytes at {extent:?}, outside the device log")
        })?;
        o.set.check()?;
        key(&o.key)
    }

    fn check_entry(&self, e: &SlotEntry) -> Result<()> {
        self.check_slot(e.slot, e.epoch)?;
        let managed = e.slot >= self.layout.log_slots;
        match &e.what {
            SlotContent::Free if managed => Ok(()),
            SlotContent::Held(extent) if managed => self.check_extent(extent),
            SlotContent::Live { key: bytes, object, set, .. } if managed => {
                key(bytes)?;
                set.check()?;
                self.check_extent(&object.extent)
            }
            SlotContent::Open(p) if (p.at.slot, p.at.epoch) == (e.slot, e.epoch) => {
                self.check_plan(p)
            }
            SlotContent::Logged(o) if (o.slot, o.epoch) == (e.slot, e.epoch) => {
                self.check_logged(o)
            }
            other => ensure(false, || format!("slot {} cannot hold {other:?}", e.slot)),
        }
    }

    /// Checks a frame from the owner of this segment at the master.
    pub fn check_to_master(&self, up: &OwnerToMaster) -> Result<()> {
        match up {
            OwnerToMaster::Retired(refs)
            | OwnerToMaster::Freed(refs)
            | OwnerToMaster::Expired(refs) => self.check_refs(refs),
            OwnerToMaster::Adopted(a) => self.check_ref(&a.at),
            OwnerToMaster::Report { slots, .. } => {
                list("slots", slots.len(), MAX_BATCH)?;
                slots.iter().try_for_each(|e| self.check_entry(e))
            }
            OwnerToMaster::Announced(objects) | OwnerToMaster::Accepted(objects) => {
                self.check_objects(objects)
            }
            OwnerToMaster::Moved(moved) => {
                list("objects", moved.len(), MAX_BATCH)?;
                moved.iter().try_for_each(|m| {
                    self.check_slot(m.slot, m.epoch)?;
                    self.check_logged(&m.to)
                })
            }
            OwnerToMaster::OftenRead(objects) => {
                list("objects", objects.len(), MAX_BATCH)?;
                objects.iter().try_for_each(|o| self.check_slot(o.slot, o.epoch))
            }
            OwnerToMaster::LogAnswer { served, removed, taken, .. } => {
                let most = self.layout.log_slots;
                ensure(*taken <= u64::from(most), || {
                    format!("{taken} objects taken from a log of {most} slots")
                })?;
                list("keys", removed.len(), MAX_BATCH)?;
                self.check_objects(served)
            }
            OwnerToMaster::DiskAnswer { answer, .. } => answer.check(),
            OwnerToMaster::Groups(news) => news.check(),
            // The master compares it with the plans that it sent.
            OwnerToMaster::PlansRecorded { .. } => Ok(()),
            // Gauges are only shown, and added with saturation.
            OwnerToMaster::Heartbeat { .. }
            | OwnerToMaster::ViewSeen { .. }
            | OwnerToMaster::Draining
            | OwnerToMaster::Leave => Ok(()),
        }
    }

    fn check_objects(&self, objects: &[LogObjectEntry]) -> Result<()> {
        list("objects", objects.len(), MAX_BATCH)?;
        objects.iter().try_for_each(|o| self.check_logged(o))
    }

    /// Checks a frame from the master at the owner of this segment.
    pub fn check_to_owner(&self, down: &MasterToOwner) -> Result<()> {
        // Messages about an earlier incarnation may still be in flight: they are ignored.
        let slots = |refs: &[SlotRef]| list("slots", refs.len(), MAX_BATCH);
        match down {
            MasterToOwner::PlanOpened(p) if p.at.incarnation == self.incarnation => {
                self.check_plan(p)
            }
            MasterToOwner::PlanOpened(p) => key(&p.key),
            MasterToOwner::Committed(plans) => list("plans", plans.len(), MAX_BATCH),
            MasterToOwner::Retire(refs) | MasterToOwner::FreedAck(refs) => slots(refs),
            MasterToOwner::View(view) => view.check(self.world_size),
            MasterToOwner::Groups(news) => news.check(),
            MasterToOwner::AskLog { question, .. } => match question {
                LogQuestion::Find(keys) | LogQuestion::Remove(keys) => {
                    list("keys", keys.len(), MAX_BATCH)
                }
                LogQuestion::Await { keys, wait_ms } => {
                    time("a wait", *wait_ms)?;
                    list("keys", keys.len(), MAX_BATCH)
                }
                LogQuestion::EndSets(sets) => list("sets", sets.len(), MAX_ENDED_SETS),
                LogQuestion::RemoveAll | LogQuestion::AnnounceAll => Ok(()),
            },
            MasterToOwner::AskDisk { question, .. } => question.check(),
            MasterToOwner::InSet(sets) => {
                list("objects", sets.len(), MAX_BATCH)?;
                sets.iter().try_for_each(|(_, set)| set.check())
            }
            MasterToOwner::MakeReplicas(keys) => {
                list("objects", keys.len(), MAX_BATCH)?;
                keys.iter().try_for_each(|bytes| key(bytes))
            }
            MasterToOwner::Refused(why) => text("a reason", why.len()),
            MasterToOwner::EndPlan { .. }
            | MasterToOwner::RemovalOver { .. }
            | MasterToOwner::MakeRoom { .. }
            | MasterToOwner::EvictTo { .. }
            | MasterToOwner::Heartbeat { .. }
            | MasterToOwner::ReportTaken
            | MasterToOwner::NoMorePlans
            | MasterToOwner::RequestReport { .. } => Ok(()),
        }
    }
}

impl Ballot {
    /// Checks that the question is possible.
    pub fn check(&self) -> Result<()> {
        address(&self.control)
    }
}

impl Standing {
    /// Checks that the answer is possible.
    pub fn check(&self) -> Result<()> {
        list("addresses", self.others.len(), MAX_OTHERS)?;
        self.master
            .iter()
            .map(|(_, at)| at)
            .chain(self.others.iter().map(|(_, at)| at))
            .try_for_each(address)
    }
}

impl ReplicaSet {
    fn check(self) -> Result<()> {
        ensure(self.wanted <= MAX_REPLICAS && (self.id == 0) == (self.wanted == 0), || {
            format!("a set of {} replicas with the number {}", self.wanted, self.id)
        })
    }
}

impl GroupNews {
    fn check(&self) -> Result<()> {
        list("groups", self.used.len(), MAX_GROUPS)?;
        list("groups", self.lost.len(), MAX_GROUPS)
    }
}

impl DiskSelection {
    fn check(&self) -> Result<()> {
        match self {
            Self::Keys(keys) => keys_of(keys),
            Self::Matching(pattern) => {
                size("a pattern", pattern.len() as u64, "bytes", MAX_PATTERN_BYTES as u64)
            }
            Self::All => Ok(()),
        }
    }
}

impl DiskQuestion {
    fn check(&self) -> Result<()> {
        match self {
            Self::Find(keys) | Self::Promote { keys, .. } | Self::Save(keys) => keys_of(keys),
            Self::Remove { which, .. } => which.check(),
        }
    }
}

impl DiskAnswer {
    fn check(&self) -> Result<()> {
        list("objects", self.not_done.len(), MAX_BATCH)?;
        list("objects", self.found.len(), MAX_BATCH)?;
        list("keys", self.removed.len(), MAX_BATCH)?;
        self.found
            .iter()
            .try_for_each(|(_, bytes)| size("an object on disk", *bytes, "bytes", MAX_ARENA_BYTES))
    }
}

impl ClientToOwner {
    /// Checks a frame from an attached client at the owner of this segment.
    pub fn check(&self, segment: &SegmentLayout) -> Result<()> {
        match self {
            ClientToOwner::Touched(batch) => {
                let s = &batch.counts;
                let most = s.by_index.max(s.by_cache).max(s.by_master);
                ensure(most <= MAX_TOUCHES_SERVED, || format!("{most} reads reported at once"))?;
                list("reads", batch.list.len(), MAX_BATCH)?;
                batch.list.iter().try_for_each(|t| {
                    let possible = t.bytes <= segment.payloads().len;
                    ensure(possible, || format!("a read of {} bytes", t.bytes))?;
                    slot_at(segment.slots, t.slot, t.epoch)
                })
            }
            ClientToOwner::KeysReported(names) => names.iter().try_for_each(|n| {
                slot_at(segment.slots, n.slot, n.epoch)?;
                key(&n.key)
            }),
            // Checked against the plans that the owner has.
            ClientToOwner::TermObeyed { held, .. } => list("plans", held.len(), MAX_BATCH),
            // Checked against the log's own counters.
            ClientToOwner::Abandoned(_) | ClientToOwner::ClearBelow(_) => Ok(()),
            ClientToOwner::CheckPlan(_)
            | ClientToOwner::NamesSent(_)
            | ClientToOwner::Dropped(_)
            | ClientToOwner::Detach => Ok(()),
        }
    }
}

impl SeenView {
    /// Checks that the view fits a cluster of `world_size` ranks.
    pub fn check(&self, world_size: u32) -> Result<()> {
        let most = u64::from(world_size) * u64::from(MAX_SEGMENTS);
        list("members", self.incarnations.len(), usize::try_from(most).unwrap_or(usize::MAX))
    }
}

#[cfg(test)]
mod tests;
