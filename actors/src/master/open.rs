//! OpenForWrite: chooses a segment and grants a plan. When every segment of the routed rank is
//! full, the master asks the owner of the one with most room to evict, and the item waits for that
//! segment. Waiting items are bounded in number and time, and served first come, first served per
//! segment.

use super::objects::{Entry, PlanInfo, Replica, State};
use super::{Master, MasterDurable};
use crate::actor::Reply;
use crate::error::{Error, Result};
use crate::message::{
    KeyBytes, MasterToOwner, ObjMeta, ObjectDesc, OpenItem, PlanDesc, PlanOpened, Response,
    SegmentId, SlotRef,
};
use hashbrown::HashSet;
use nkv_store::arena::Extent;
use nkv_store::layout::NOWHERE;
use nkv_store::{Key, StoreError};
use std::collections::BTreeSet;

/// Items waiting for room on all ranks together.
const MAX_WAITING: usize = 65_536;
/// Shortest default wait of an open for room: on a loaded machine less is too short to free any.
const MIN_FULL_WAIT_MS: u64 = 1_000;
/// From here on a tick is late: the process was stopped or got no processor.
const LATE_TICK_MS: u64 = 50;
/// Keys that may be put while a rank that holds objects has not reported; further puts fail until
/// it reports.
const MAX_SUPERSEDED: usize = 1 << 20;
/// Pages per object at most (the header's field is 32 bits).
const MAX_PAGES: u64 = u32::MAX as u64;

/// An item that waits for room.
#[derive(Debug)]
pub(super) struct Waiting {
    batch: u64,
    item: usize,
    producer: u64,
    request: u64,
    key: Key,
    open: OpenItem,
    segment_id: SegmentId,
    asked_ms: u64,
    deadline_ms: u64,
    // The caller's own limit: it wants an answer by then.
    until_ms: u64,
}

impl Waiting {
    /// Its batch and its item number in the batch.
    pub(super) fn names(&self) -> (u64, usize) {
        (self.batch, self.item)
    }
}

/// (producer, request, item): identifies an open, so that a repeated request is recognised [I11].
type Asked = (u64, u64, u32);

/// Behind which waiting opens a new one is placed, so that small objects do not overtake a large
/// one forever.
#[derive(Clone, Copy)]
enum QueuePosition<'a> {
    /// Behind all that wait.
    Last,
    /// Behind those that wait for these segments.
    Behind(&'a HashSet<SegmentId>),
    /// Behind none.
    First,
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
        let now = self.now_ms();
        for (item, open) in items.into_iter().enumerate() {
            let key = match Key::new(&open.key) {
                Ok(k) => k,
                Err(e) => {
                    self.batches.complete_plan(batch, item, Err(e.into()));
                    continue;
                }
            };
            match self.place((producer, request, item as u32), &key, &open, QueuePosition::Last) {
                Ok(Placed::Granted(plan)) => self.batches.complete_plan(batch, item, Ok(plan)),
                Err(e) => self.batches.complete_plan(batch, item, Err(e)),
                Ok(Placed::Wait(segment_id)) => {
                    let limit =
                        wait_ms.min(full_wait_ms(&self.durable, self.quarantine_of(segment_id)));
                    let deadline_ms = now + limit;
                    let w = Waiting {
                        batch,
                        item,
                        producer,
                        request,
                        key,
                        open,
                        segment_id,
                        asked_ms: now,
                        deadline_ms,
                        until_ms: now.saturating_add(wait_ms),
                    };
                    self.wait(w);
                }
            }
        }
    }

    fn quarantine_of(&self, segment_id: SegmentId) -> u64 {
        self.allocators.get(&segment_id).map_or(0, |b| u64::from(b.info.layout.quarantine_ms))
    }

    fn wait(&mut self, w: Waiting) {
        if self.waiting.len() >= MAX_WAITING {
            let text = format!("{MAX_WAITING} puts already wait for room; try again later");
            return self.batches.complete_plan(w.batch, w.item, Err(Error::out_of_memory(text)));
        }
        self.ask_for_room(w.segment_id, w.open.bytes_total);
        self.waiting.push_back(w);
    }

    /// Asks the owner to make room, at most once per quarantine.
    fn ask_for_room(&mut self, segment_id: SegmentId, bytes: u64) {
        let now = self.now_ms();
        if self.durable.members.is_backlogged(segment_id) {
            return;
        }
        let Some(allocator) = self.allocators.get_mut(&segment_id) else {
            return;
        };
        let pause = u64::from(allocator.info.layout.quarantine_ms) + 10;
        if allocator.room_attempt > 0 && now < allocator.room_asked_ms + pause {
            return;
        }
        allocator.room_asked_ms = now;
        let attempt = allocator.room_attempt;
        allocator.room_attempt += 1;
        self.durable.members.send(segment_id, MasterToOwner::MakeRoom { bytes, attempt });
    }

    fn place(
        &mut self,
        asked: Asked,
        key: &Key,
        open: &OpenItem,
        position: QueuePosition<'_>,
    ) -> Result<Placed> {
        let id = self.id_of(key.as_bytes());
        if let Some(e) = self.entry(key.as_bytes())? {
            return self.existing(e, asked, open).map(Placed::Granted);
        }
        self.check_settled()?;
        if !self.durable.members.unreported().is_empty() {
            // Whether this put succeeds or not, an older object that a rank still has to report
            // under this key is superseded.
            if self.durable.members.superseded() >= MAX_SUPERSEDED {
                self.check_all_reported()?;
            }
            self.durable.members.supersede(id);
        }
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
        let segment_ids = self.route(id, open)?;
        let Some(best) = segment_ids.first().copied() else {
            return Err(Error::internal("no segment was chosen for an object"));
        };
        self.check_size(best, key, open)?;
        for segment_id in segment_ids {
            if self.is_taken(segment_id, position) {
                continue;
            }
            if self.durable.members.is_backlogged(segment_id) {
                self.backlogged.insert(segment_id.rank);
                continue;
            }
            let Some(allocator) = self.allocators.get_mut(&segment_id) else { continue };
            match allocator.take(open.bytes_total, id) {
                Ok((at, extent)) => {
                    allocator.room_attempt = 0;
                    let plan = self.grant(asked, key, open, (segment_id, at, extent, page_bytes));
                    return Ok(Placed::Granted(plan));
                }
                Err(StoreError::ArenaFull { .. }) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(Placed::Wait(best))
    }

    /// True if another open waits for this segment before this one.
    fn is_taken(&self, segment_id: SegmentId, position: QueuePosition<'_>) -> bool {
        match position {
            QueuePosition::Last => self.waiting.iter().any(|w| w.segment_id == segment_id),
            QueuePosition::Behind(segment_ids) => segment_ids.contains(&segment_id),
            QueuePosition::First => false,
        }
    }

    fn check_size(&self, best: SegmentId, key: &Key, open: &OpenItem) -> Result<()> {
        let room = self.allocators.get(&best).map_or(0, |b| b.info.layout.arena.len);
        if open.bytes_total <= room {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "key {key} of {} bytes is larger than the heap of {best} ({room} bytes); raise \
             --heap-bytes",
            open.bytes_total
        )))
    }

    /// The answer for a key that exists: the same plan for a repeated request, an error otherwise
    /// [I6].
    fn existing(&self, e: &Entry, asked: Asked, open: &OpenItem) -> Result<PlanDesc> {
        match e.state {
            State::Live => Err(Error::already_exists(format!(
                "key {} is stored on {}; values are immutable, remove it first",
                e.key, e.replica.segment_id
            ))),
            State::Removing => Err(Error::not_ready(format!("key {} is being removed", e.key))),
            State::Writing(plan) => match self.plans.get(&plan) {
                Some(p)
                    if (p.producer, p.request, p.item) == asked
                        && e.replica.object.bytes_total == open.bytes_total
                        && p.ending.is_none() =>
                {
                    Ok(PlanDesc {
                        plan,
                        token: p.token,
                        meta: self.meta(&e.key, &e.replica),
                        write_ttl_ms: self.durable.settings.write_ttl_ms,
                    })
                }
                _ => Err(Error::not_ready(format!(
                    "key {} is being written to {} by another put",
                    e.key, e.replica.segment_id
                ))),
            },
        }
    }

    fn grant(
        &mut self,
        (producer, request, item): Asked,
        key: &Key,
        open: &OpenItem,
        (segment_id, at, extent, page_bytes): (SegmentId, SlotRef, Extent, u32),
    ) -> PlanDesc {
        let plan = self.next_plan();
        let token = self.durable.random.u64();
        let id = self.id_of(key.as_bytes());
        let header_off = self.header_off(segment_id, at.slot);
        let object = ObjectDesc { extent, bytes_total: open.bytes_total, page_bytes };
        let replica = Replica { segment_id, at, header_off, object };
        let entry = Entry::new(key.clone(), replica, State::Writing(plan), Some(plan));
        let write_ttl_ms = self.durable.settings.write_ttl_ms;
        let desc = PlanDesc { plan, token, meta: self.meta(key, &replica), write_ttl_ms };
        let opened = opened(&desc, key, (producer, request, item));
        self.durable.members.send(segment_id, MasterToOwner::PlanOpened(opened));
        let (reported, ending) = (false, None);
        let info = PlanInfo { segment_id, at, producer, request, item, token, reported, ending };
        self.plans.insert(plan, info);
        self.objects.insert(id, entry);
        self.counters.opened += 1;
        desc
    }

    pub(super) fn header_off(&self, segment_id: SegmentId, slot: u32) -> u64 {
        self.allocators.get(&segment_id).map_or(NOWHERE, |b| b.info.layout.header_off(slot))
    }

    /// A rank has room again, or one segment more or less: serves the opens that wait there, in
    /// order. One that still waits keeps its place before all later ones of its segment.
    pub(super) fn retry_waiting(&mut self, rank: u32) {
        let mut still = std::collections::VecDeque::with_capacity(self.waiting.len());
        let mut full: HashSet<SegmentId> = HashSet::new();
        while let Some(w) = self.waiting.pop_front() {
            if w.segment_id.rank != rank {
                still.push_back(w);
                continue;
            }
            let asked = (w.producer, w.request, w.item as u32);
            match self.place(asked, &w.key, &w.open, QueuePosition::Behind(&full)) {
                Ok(Placed::Granted(plan)) => self.batches.complete_plan(w.batch, w.item, Ok(plan)),
                Err(e) => self.batches.complete_plan(w.batch, w.item, Err(e)),
                Ok(Placed::Wait(best)) => {
                    // Stay at the same segment: its owner is making room already.
                    let segment_id =
                        if self.may_hold(w.segment_id, &w.open) { w.segment_id } else { best };
                    full.insert(segment_id);
                    still.push_back(Waiting { segment_id, ..w });
                }
            }
        }
        self.waiting = still;
    }

    /// The caller of a request withdrew it or is gone: its waiting items fail, and its batch ends.
    pub(super) fn give_up_waiting(&mut self, producer: u64, request: u64) {
        let (gone, still): (Vec<_>, Vec<_>) = std::mem::take(&mut self.waiting)
            .into_iter()
            .partition(|w| (w.producer, w.request) == (producer, request));
        self.waiting = still.into();
        for w in gone {
            let text = format!("the put of key {} was given up by its caller", w.key);
            self.batches.complete_plan(w.batch, w.item, Err(Error::reclaimed(text)));
        }
    }

    /// The last tick was `since` milliseconds ago. While the master did not run, no room could be
    /// granted: waiting requests get that time again.
    pub(super) fn forgive_waiting(&mut self, since: u64) {
        if since < LATE_TICK_MS {
            return;
        }
        let now = self.now_ms();
        for w in &mut self.waiting {
            let waited_ms = now.saturating_sub(w.asked_ms);
            w.deadline_ms = (w.deadline_ms + since.min(waited_ms)).min(w.until_ms);
        }
    }

    pub(super) fn expire_waiting(&mut self) {
        for rank in std::mem::take(&mut self.backlogged) {
            self.retry_waiting(rank);
        }
        let now = self.now_ms();
        let (late, still): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.waiting).into_iter().partition(|w| w.deadline_ms <= now);
        self.waiting = still.into();
        let after: BTreeSet<u32> = late.iter().map(|w| w.segment_id.rank).collect();
        for w in late {
            // It may have waited only behind a larger one: try once more before it is refused.
            let asked = (w.producer, w.request, w.item as u32);
            match self.place(asked, &w.key, &w.open, QueuePosition::First) {
                Ok(Placed::Granted(plan)) => {
                    self.batches.complete_plan(w.batch, w.item, Ok(plan));
                    continue;
                }
                Err(e) => {
                    self.batches.complete_plan(w.batch, w.item, Err(e));
                    continue;
                }
                Ok(Placed::Wait(_)) => {}
            }
            if self.durable.members.is_backlogged(w.segment_id) {
                let text = format!(
                    "no plan for key {} in time: the owner of {} has a queue of thousands of \
                     earlier plans; put more slowly, or give its node more CPU time",
                    w.key, w.segment_id
                );
                self.batches.complete_plan(w.batch, w.item, Err(Error::not_ready(text)));
                continue;
            }
            self.counters.out_of_memory += 1;
            let (free, hole) = self
                .allocators
                .get(&w.segment_id)
                .map_or((0, 0), |b| (b.arena.free_bytes(), b.arena.largest_hole()));
            let text = format!(
                "no room for key {} ({} bytes) on {} in time: {free} bytes free, largest hole \
                 {hole}",
                w.key, w.open.bytes_total, w.segment_id
            );
            self.batches.complete_plan(w.batch, w.item, Err(Error::out_of_memory(text)));
        }
        // Opens that waited behind a large one that failed may fit now.
        for rank in after {
            self.retry_waiting(rank);
        }
        let asks: Vec<_> =
            self.waiting.iter().map(|w| (w.segment_id, w.open.bytes_total)).collect();
        let mut asked = HashSet::new();
        for (segment_id, bytes) in asks {
            if asked.insert(segment_id) {
                self.ask_for_room(segment_id, bytes);
            }
        }
    }
}

/// The plan as its owner is sent it.
fn opened(desc: &PlanDesc, key: &Key, (producer, request, item): Asked) -> PlanOpened {
    let m: &ObjMeta = &desc.meta;
    PlanOpened {
        plan: desc.plan,
        token: desc.token,
        at: m.at,
        object: m.object,
        key: KeyBytes::from(key.as_bytes()),
        producer,
        request,
        item,
        deadline_ms: desc.write_ttl_ms,
    }
}

fn full_wait_ms(durable: &MasterDurable, quarantine_ms: u64) -> u64 {
    match durable.full_wait_ms {
        0 => (3 * quarantine_ms).max(MIN_FULL_WAIT_MS),
        n => n,
    }
}
