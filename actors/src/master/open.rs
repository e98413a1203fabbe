//! OpenForWrite: chooses a segment and grants a plan. When every segment that an item may go to is
//! full, it waits for the best one (`waiting.rs`).

use super::Master;
use super::allocator::Need;
use super::entry::{Entry, Replica, State};
use super::objects::{Asked, PlanInfo};
use crate::actor::Reply;
use crate::error::{Error, Result};
use crate::message::{
    CopyPlan, KeyBytes, MAX_REPLICAS, MasterToOwner, ObjectDesc, OpenItem, PlanDesc, PlanId,
    PlanOpened, Preferred, ReplicaSet, Response, SegmentId, SlotRef, named_twice,
};
use nkv_store::layout::NOWHERE;
use nkv_store::{Key, KeyId, Retention, StoreError};
use std::collections::BTreeMap;

/// Keys that may be put while a rank that holds objects has not reported; further puts fail until
/// it reports.
const MAX_SUPERSEDED: usize = 1 << 20;
/// Pages per object at most (the header's field is 32 bits).
const MAX_PAGES: u64 = u32::MAX as u64;

/// An item of an open.
#[derive(Debug)]
pub(super) struct Opening {
    pub batch: u64,
    pub asked: Asked,
    pub key: Key,
    pub open: OpenItem,
}

impl Opening {
    /// Its number in the batch.
    pub(super) fn item(&self) -> usize {
        self.asked.2 as usize
    }
}

enum Placed {
    Granted(PlanDesc),
    Wait(SegmentId),
}

impl Master {
    pub(super) fn open(
        &mut self,
        producer: u64,
        request: u64,
        wait_ms: u64,
        items: Vec<OpenItem>,
        reply: Reply<Response>,
    ) {
        let batch = self.batches.plans(items.len(), reply);
        // Where items wait, and the bytes of the first.
        let mut wait_at = BTreeMap::new();
        for (item, open) in items.into_iter().enumerate() {
            match self.durable.key_pool.key(&open.key) {
                Ok(key) => {
                    let asked = (producer, request, item as u32);
                    let opening = Opening { batch, asked, key, open };
                    // Behind all that wait, so that small objects do not overtake a large one
                    // forever.
                    let taken =
                        |master: &Self, segment_id| master.waiting.is_waited_for(segment_id);
                    if let Some(segment_id) = self.try_open(&opening, taken) {
                        wait_at.entry(segment_id).or_insert(opening.open.bytes_total);
                        self.wait(opening, segment_id, wait_ms);
                    }
                }
                Err(e) => self.batches.complete_plan(batch, item, Err(e.into())),
            }
        }
        for (segment_id, bytes) in wait_at {
            self.ask_for_room(segment_id, bytes);
        }
    }

    /// Grants the plan or fails the item; the segment to wait for if none has room. `taken` says
    /// whether another open waits for a segment before this one.
    pub(super) fn try_open(
        &mut self,
        o: &Opening,
        taken: impl Fn(&Self, SegmentId) -> bool,
    ) -> Option<SegmentId> {
        let plan = match self.place(o, taken) {
            Ok(Placed::Wait(segment_id)) => return Some(segment_id),
            Ok(Placed::Granted(plan)) => Ok(plan),
            Err(e) => Err(e),
        };
        self.batches.complete_plan(o.batch, o.item(), plan);
        None
    }

    fn place(&mut self, o: &Opening, taken: impl Fn(&Self, SegmentId) -> bool) -> Result<Placed> {
        self.check_lease()?;
        let Opening { asked, key, open, .. } = o;
        let id = self.id_of(key.as_bytes());
        if open.retention == Retention::Extra && open.replica_of.is_none() {
            return Err(Error::invalid("an extra replica is one of a stored object"));
        }
        if let Some(source) = open.replica_of {
            return self.place_replicas(o, source).map(Placed::Granted);
        }
        if let Some(e) = self.entry(key.as_bytes())? {
            return self.existing(e, *asked, open).map(Placed::Granted);
        }
        self.check_settled()?;
        if !self.durable.members.unreported().is_empty() {
            // Whether this put succeeds or not, an older object that a rank still has to report
            // under this key is superseded.
            let superseded = self.durable.members.lock().superseded.len();
            if superseded >= MAX_SUPERSEDED {
                self.check_all_reported()?;
            }
            self.durable.members.lock().superseded.insert(id);
        }
        check_named(open)?;
        let page_bytes = match open.page_bytes {
            0 => self.durable.settings.page_bytes,
            n => n,
        };
        if open.bytes_total.div_ceil(u64::from(page_bytes)) > MAX_PAGES {
            return Err(Error::invalid(format!(
                "{} bytes in pages of {page_bytes} are more than {MAX_PAGES} pages; use larger \
                 pages",
                open.bytes_total
            )));
        }
        let (ranks, mut best) = self.route(id, open)?;
        let layout = self.allocators.get(&best).map(|b| b.info.layout).unwrap_or_default();
        if open.bytes_total > layout.arena.len {
            let (room, log) = (layout.arena.len, layout.log.len);
            return Err(Error::invalid(format!(
                "key {key} of {} bytes is larger than what {best} can store: it has {room} bytes \
                 for plans, and a log of {log}, for objects of a quarter of it at most; raise \
                 --heap-bytes, or leave plans more of it by a lower --log-bytes",
                open.bytes_total
            ))
            .at_rank(best.rank));
        }
        if open.retention == Retention::HardPin {
            best = self.check_hard_pins(&ranks, Need::of(open))?.unwrap_or(best);
        }
        for rank in ranks {
            if let Some(replica) = self.take(rank, open, page_bytes, &taken)? {
                return self.grant(o, replica).map(Placed::Granted);
            }
        }
        Ok(Placed::Wait(best))
    }

    /// Room for an object on a rank, if one of its segments has some.
    fn take(
        &mut self,
        rank: u32,
        open: &OpenItem,
        page_bytes: u32,
        taken: impl Fn(&Self, SegmentId) -> bool,
    ) -> Result<Option<Replica>> {
        let bytes_total = open.bytes_total;
        for segment_id in self.segments_of(rank, Need::of(open)) {
            if taken(self, segment_id) || !self.may_retain(segment_id, bytes_total, open.retention)
            {
                continue;
            }
            if self.durable.members.is_backlogged(segment_id) {
                self.backlogged.insert(segment_id.rank);
                continue;
            }
            let Some(allocator) = self.allocators.get_mut(&segment_id) else { continue };
            match allocator.take(bytes_total, open.retention) {
                Ok((at, extent)) => {
                    allocator.room_attempt = 0;
                    let object = ObjectDesc { extent, bytes_total, page_bytes };
                    return Ok(Some(Replica { segment_id, at, object }));
                }
                Err(StoreError::ArenaFull { .. }) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(None)
    }

    /// The answer for a key that exists: the same plan for a repeated request, an error otherwise
    /// [I6].
    fn existing(&self, e: &Entry, asked: Asked, open: &OpenItem) -> Result<PlanDesc> {
        match e.state() {
            State::Live => Err(Error::already_exists(format!(
                "key {} is stored on {}; values are immutable, remove it first",
                e.key,
                e.segment_id()
            ))),
            State::Removing => Err(Error::not_ready(format!("key {} is being removed", e.key))),
            State::Writing(plan) => match self.plans.get(&plan) {
                Some(p)
                    if p.asked == asked
                        && e.replica().object.bytes_total == open.bytes_total
                        && p.ending.is_none() =>
                {
                    self.described(e)
                }
                _ => Err(Error::not_ready(format!(
                    "key {} is being written to {} by another put",
                    e.key,
                    e.segment_id()
                ))),
            },
        }
    }

    /// Grants the plan of the first replica, and of others as far as there is room for them.
    fn grant(&mut self, o: &Opening, first: Replica) -> Result<PlanDesc> {
        let wanted = o.open.replicas.clamp(1, MAX_REPLICAS);
        let set = match wanted {
            1 => ReplicaSet::NONE,
            _ => ReplicaSet { id: self.durable.random.u64().max(1), wanted },
        };
        let plan = self.grant_one(o, &first, (set, o.open.retention));
        let entry = Entry::writing(o.key.clone(), first, plan).in_set(set);
        let mut entry = entry.retained(o.open.retention);
        if wanted > 1 {
            for (plan, copy) in self.grant_copies(o, &entry, (wanted.into(), 0)) {
                entry.add_copy(plan, copy);
            }
        }
        self.counters.replicas_short += u64::from(wanted) - entry.places().count() as u64;
        let desc = self.described(&entry);
        self.enter(self.id_of(o.key.as_bytes()), entry);
        desc
    }

    /// Plans for what an entry lacks of so many replicas and extra ones, as far as other ranks have
    /// room.
    fn grant_copies(
        &mut self,
        o: &Opening,
        entry: &Entry,
        wanted: (usize, usize),
    ) -> Vec<(PlanId, Replica)> {
        let mut taken: Vec<_> = entry.places().map(|r| r.segment_id).collect();
        let (mut asked_for, mut extras) = entry.begun();
        let (object, mut granted) = (entry.replica().object, Vec::new());
        // A repair goes where there is room.
        let new = o.open.replica_of.is_none();
        for n in 0..usize::from(MAX_REPLICAS) {
            let (retention, made) = match asked_for < wanted.0 {
                true => (entry.retention(), &mut asked_for),
                false if extras < wanted.1 => (Retention::Extra, &mut extras),
                false => break,
            };
            let wish = o.open.further.get(n).filter(|_| new).copied().unwrap_or_default();
            match self.place_copy(o, (object, retention), &taken, wish) {
                Some(copy) => {
                    *made += 1;
                    taken.push(copy.segment_id);
                    granted.push((self.grant_one(o, &copy, (entry.set(), retention)), copy));
                }
                None if n + 1 < o.open.further.len() && new => {}
                None => break,
            }
        }
        granted
    }

    /// Room for one further replica, where it should go as far as that is possible.
    fn place_copy(
        &mut self,
        o: &Opening,
        (object, retention): (ObjectDesc, Retention),
        taken: &[SegmentId],
        wish: Preferred,
    ) -> Option<Replica> {
        let need = Need { bytes: object.bytes_total, medium: wish.medium };
        let key = (self.id_of(o.key.as_bytes()).hash, o.open.nearest);
        let mut segments = self.route_copies(key, taken, need);
        segments.sort_by_key(|segment_id| Some(segment_id.rank) != wish.rank);
        for segment_id in segments {
            let others = self.segments_of(segment_id.rank, need).into_iter();
            let there = std::iter::once(segment_id).chain(others.filter(|s| *s != segment_id));
            for at in there.collect::<Vec<_>>() {
                let copy = self.take_copy(at, object, retention);
                if copy.is_some() {
                    return copy;
                }
            }
            // A repair evicts nothing.
            if o.open.replica_of.is_none()
                && !self.waiting.is_waited_for(segment_id)
                && self.may_retain(segment_id, object.bytes_total, retention)
            {
                self.ask_for_room(segment_id, object.bytes_total);
            }
        }
        None
    }

    /// Room for a further replica in a segment. Puts that wait for room come first.
    pub(super) fn take_copy(
        &mut self,
        segment_id: SegmentId,
        object: ObjectDesc,
        retention: Retention,
    ) -> Option<Replica> {
        let bytes = object.bytes_total;
        if self.waiting.is_waited_for(segment_id) || !self.may_retain(segment_id, bytes, retention)
        {
            return None;
        }
        let allocator = self.allocators.get_mut(&segment_id)?;
        let (at, extent) = allocator.take(bytes, retention).ok()?;
        allocator.room_attempt = 0;
        Some(Replica { segment_id, at, object: ObjectDesc { extent, ..object } })
    }

    /// Plans for the replicas that a stored object lacks, of which `source` was read.
    fn place_replicas(&mut self, o: &Opening, source: SlotRef) -> Result<PlanDesc> {
        // One that a rank has still to report would be made twice.
        self.check_all_reported()?;
        let id = self.id_of(o.key.as_bytes());
        let is_source = |r: Replica| r.at == source;
        let e = self.entry(o.key.as_bytes())?.filter(|e| e.is_live());
        let e = e.filter(|e| e.replicas().any(is_source)).ok_or_else(|| {
            Error::not_ready(format!("key {} is not stored there any more: read it again", o.key))
        })?;
        let asked = |plan: &PlanId| self.plans.get(plan).is_some_and(|p| p.asked == o.asked);
        let theirs: Vec<_> = e.plans().filter(|(plan, _)| asked(plan)).collect();
        if !theirs.is_empty() {
            return self.described_of(&e.key, theirs.into_iter());
        }
        if e.replica().object.bytes_total != o.open.bytes_total {
            return Err(Error::invalid(format!("key {} has another length", o.key)));
        }
        if o.open.retention == Retention::Extra {
            return self.place_extra(o, id);
        }
        let (e, wanted) = (e.clone(), self.wanted(&id, e));
        let granted = self.grant_copies(o, &e, wanted);
        if granted.is_empty() {
            return Err(Error::out_of_memory(format!(
                "no other rank has room for a replica of key {}, or it has all {}",
                o.key,
                wanted.0 + wanted.1
            )));
        }
        self.add_copies(id, &granted);
        self.described_of(&e.key, granted.into_iter())
    }

    /// Plans that write further replicas of a stored object.
    pub(super) fn add_copies(&mut self, id: KeyId, granted: &[(PlanId, Replica)]) {
        for (plan, copy) in granted {
            let retention = self.plans.get(plan).map(|p| p.retention).unwrap_or_default();
            if let Some(e) = self.objects.get_mut(&id) {
                e.add_copy(*plan, *copy);
                e.keeps(copy.at, retention);
            }
            self.list_at(id, copy.segment_id, copy.at);
        }
    }

    pub(super) fn grant_one(
        &mut self,
        o: &Opening,
        replica: &Replica,
        (set, retention): (ReplicaSet, Retention),
    ) -> PlanId {
        let plan = self.next_plan();
        let Replica { segment_id, at, .. } = *replica;
        let (asked, token) = (o.asked, self.durable.random.u64());
        let opened = self.opened((plan, token, asked), &o.key, replica, (set, retention));
        self.durable.members.send(segment_id, MasterToOwner::PlanOpened(opened));
        let info =
            PlanInfo { segment_id, at, asked, token, retention, reported: false, ending: None };
        self.plans.insert(plan, info);
        self.counters.opened += 1;
        plan
    }

    /// The plans that write an entry, as its producer gets them.
    fn described(&self, e: &Entry) -> Result<PlanDesc> {
        self.described_of(&e.key, e.plans())
    }

    pub(super) fn described_of(
        &self,
        key: &Key,
        plans: impl Iterator<Item = (PlanId, Replica)>,
    ) -> Result<PlanDesc> {
        let write_ttl_ms = self.durable.settings.write_ttl_ms;
        let mut plans = plans.filter_map(|(plan, replica)| {
            let token = self.plans.get(&plan)?.token;
            Some(CopyPlan { plan, token, meta: self.meta(key, &replica) })
        });
        let Some(CopyPlan { plan, token, meta }) = plans.next() else {
            return Err(Error::internal(format!("key {key} has no plan")));
        };
        Ok(PlanDesc { plan, token, meta, write_ttl_ms, copies: plans.collect() })
    }

    /// A plan, as its owner is sent it.
    pub(super) fn opened(
        &self,
        (plan, token, (producer, request, item)): (PlanId, u64, Asked),
        key: &Key,
        replica: &Replica,
        (set, retention): (ReplicaSet, Retention),
    ) -> PlanOpened {
        PlanOpened {
            plan,
            token,
            at: replica.at,
            object: replica.object,
            key: KeyBytes::shared(key.clone()),
            producer,
            request,
            item,
            deadline_ms: self.durable.settings.write_ttl_ms,
            set,
            retention,
        }
    }

    pub(super) fn header_off(&self, segment_id: SegmentId, slot: u32) -> u64 {
        self.allocators.get(&segment_id).map_or(NOWHERE, |b| b.info.layout.header_off(slot))
    }
}

/// `InvalidArgument` if more replicas are named than there may be, or one rank for two.
fn check_named(open: &OpenItem) -> Result<()> {
    if open.further.is_empty() {
        return Ok(());
    }
    if open.further.len() >= usize::from(MAX_REPLICAS) {
        let text = format!("{} replicas: at most {MAX_REPLICAS}", open.further.len() + 1);
        return Err(Error::invalid(text));
    }
    let named = open.further.iter().filter_map(|p| p.rank).chain(open.preferred_rank);
    match named_twice(named) {
        Some(rank) => {
            let text = format!("rank {rank} is named for two replicas: it takes one");
            Err(Error::invalid(text))
        }
        None => Ok(()),
    }
}
