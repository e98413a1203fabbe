//! Opens that wait for room: the owner of the segment that each waits for is asked to evict. They
//! are bounded in number and time, and served first come, first served per segment.

use super::Master;
use super::allocator::{Need, SegmentAllocator};
use super::open::Opening;
use crate::error::Error;
use crate::message::{MasterToOwner, SegmentId};
use hashbrown::HashMap;
use std::collections::{BTreeMap, BTreeSet};

/// Items waiting for room on all ranks together.
const MAX_WAITING: usize = 65_536;
/// Shortest default wait of an open for room: on a loaded machine less is too short to free any.
const MIN_FULL_WAIT_MS: u64 = 1_000;
/// From here on a tick is late: the process was stopped or got no processor.
const LATE_TICK_MS: u64 = 50;
/// Items of one segment that find no room in one retry; those behind them are not tried.
const FAILED_PER_RETRY: usize = 64;

/// An item that waits for room.
#[derive(Debug)]
pub(super) struct Waiting {
    pub opening: Opening,
    segment_id: SegmentId,
    // Bytes that it takes there.
    placed: u64,
    asked_ms: u64,
    deadline_ms: u64,
    // The caller's own limit: it wants an answer by then.
    until_ms: u64,
}

/// All items that wait, in their order.
#[derive(Debug, Default)]
pub(super) struct WaitingOpens {
    list: Vec<Waiting>,
    // How many wait for each segment, and the bytes that they want.
    at: HashMap<SegmentId, (usize, u64)>,
}

impl WaitingOpens {
    /// Whether an item waits for a segment.
    pub fn is_waited_for(&self, segment_id: SegmentId) -> bool {
        self.at.contains_key(&segment_id)
    }

    /// Bytes that those which wait for a segment want together.
    fn bytes_at(&self, segment_id: SegmentId) -> u64 {
        self.at.get(&segment_id).map_or(0, |(_, bytes)| *bytes)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.list.len()
    }

    fn push(&mut self, w: Waiting) {
        let (n, bytes) = self.at.entry(w.segment_id).or_default();
        *n += 1;
        *bytes = bytes.saturating_add(w.placed);
        self.list.push(w);
    }

    /// Removes those that are meant, and returns them in their order.
    fn remove(&mut self, meant: impl FnMut(&mut Waiting) -> bool) -> Vec<Waiting> {
        let removed: Vec<_> = self.list.extract_if(.., meant).collect();
        for w in &removed {
            if let Some((n, bytes)) = self.at.get_mut(&w.segment_id) {
                *n -= 1;
                *bytes = bytes.saturating_sub(w.placed);
            }
        }
        self.at.retain(|_, (n, _)| *n > 0);
        removed
    }

    /// Removes all.
    pub fn take(&mut self) -> Vec<Waiting> {
        self.at.clear();
        std::mem::take(&mut self.list)
    }
}

impl Master {
    /// The caller asks for room, when all of its items wait.
    pub(super) fn wait(&mut self, opening: Opening, segment_id: SegmentId, wait_ms: u64) {
        if self.waiting.len() >= MAX_WAITING {
            let text = format!("{MAX_WAITING} puts already wait for room; try again later");
            let error = Error::out_of_memory(text);
            return self.batches.complete_plan(opening.batch, opening.item(), Err(error));
        }
        let asked_ms = self.now_ms();
        let deadline_ms = asked_ms + wait_ms.min(self.full_wait_ms(segment_id));
        let until_ms = asked_ms.saturating_add(wait_ms);
        let layout = self.allocators.get(&segment_id).map(|b| b.info.layout).unwrap_or_default();
        let placed = layout.placed_bytes(opening.open.bytes_total);
        let w = Waiting { opening, segment_id, placed, asked_ms, deadline_ms, until_ms };
        self.waiting.push(w);
    }

    fn full_wait_ms(&self, segment_id: SegmentId) -> u64 {
        let quarantine = |b: &SegmentAllocator| u64::from(b.info.layout.quarantine_ms);
        match self.durable.full_wait_ms {
            0 => {
                let quarantine_ms = self.allocators.get(&segment_id).map_or(0, quarantine);
                (3 * quarantine_ms).max(MIN_FULL_WAIT_MS)
            }
            n => n,
        }
    }

    /// Asks the owner to make room, at most once per quarantine.
    pub(super) fn ask_for_room(&mut self, segment_id: SegmentId, bytes: u64) {
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
        let all = self.waiting.bytes_at(segment_id).max(bytes);
        self.durable.members.send(segment_id, MasterToOwner::MakeRoom { bytes, all, attempt });
    }

    /// A rank has room again, or one segment more or less: serves the opens that wait there, in
    /// order. One that still waits keeps its place before all later ones of its segment.
    pub(super) fn retry_waiting(&mut self, rank: u32) {
        let mut full: HashMap<SegmentId, usize> = HashMap::new();
        for w in self.waiting.remove(|w| w.segment_id.rank == rank) {
            // What has room on another rank is for those that wait there.
            let taken = |master: &Self, s: SegmentId| {
                full.contains_key(&s) || (s.rank != rank && master.waiting.is_waited_for(s))
            };
            if full.get(&w.segment_id).is_some_and(|failed| *failed >= FAILED_PER_RETRY) {
                self.waiting.push(w);
            } else if let Some(best) = self.try_open(&w.opening, taken) {
                // Stay at the same segment: its owner is making room already.
                let stays = self.may_hold(w.segment_id, Need::of(&w.opening.open));
                let segment_id = if stays { w.segment_id } else { best };
                *full.entry(segment_id).or_default() += 1;
                self.waiting.push(Waiting { segment_id, ..w });
            }
        }
    }

    /// The caller of a request withdrew it or is gone: its waiting items fail, and its batch ends.
    pub(super) fn give_up_waiting(&mut self, producer: u64, request: u64) {
        let theirs =
            |w: &mut Waiting| (w.opening.asked.0, w.opening.asked.1) == (producer, request);
        for Waiting { opening: o, .. } in self.waiting.remove(theirs) {
            let text = format!("the put of key {} was given up by its caller", o.key);
            self.batches.complete_plan(o.batch, o.item(), Err(Error::reclaimed(text)));
        }
    }

    /// The last tick was `since` milliseconds ago. While the master did not run, no room could be
    /// granted: waiting requests get that time again.
    pub(super) fn forgive_waiting(&mut self, since: u64) {
        if since < LATE_TICK_MS {
            return;
        }
        let now = self.now_ms();
        for w in &mut self.waiting.list {
            let waited_ms = now.saturating_sub(w.asked_ms);
            w.deadline_ms = (w.deadline_ms + since.min(waited_ms)).min(w.until_ms);
        }
    }

    pub(super) fn expire_waiting(&mut self) {
        for rank in std::mem::take(&mut self.backlogged) {
            self.retry_waiting(rank);
        }
        let now = self.now_ms();
        let late: Vec<_> = self.waiting.remove(|w| w.deadline_ms <= now);
        let after: BTreeSet<u32> = late.iter().map(|w| w.segment_id.rank).collect();
        for Waiting { opening: o, segment_id, .. } in late {
            // It may have waited only behind a larger one: try once more before it is refused.
            let taken = |master: &Self, s: SegmentId| {
                s.rank != segment_id.rank && master.waiting.is_waited_for(s)
            };
            if self.try_open(&o, taken).is_some() {
                let error = self.no_room(&o, segment_id);
                self.batches.complete_plan(o.batch, o.item(), Err(error));
            }
        }
        // Opens that waited behind a large one that failed may fit now.
        for rank in after {
            self.retry_waiting(rank);
        }
        let mut asks = BTreeMap::new();
        for w in &self.waiting.list {
            asks.entry(w.segment_id).or_insert(w.opening.open.bytes_total);
        }
        for (segment_id, bytes) in asks {
            self.ask_for_room(segment_id, bytes);
        }
    }

    /// The error of an open that waited for room in vain.
    fn no_room(&mut self, Opening { key, open, .. }: &Opening, segment_id: SegmentId) -> Error {
        if self.durable.members.is_backlogged(segment_id) {
            return Error::not_ready(format!(
                "no plan for key {key} in time: the owner of {segment_id} has a queue of thousands \
                 of earlier plans; put more slowly, or give its node more CPU time"
            ));
        }
        self.counters.out_of_memory += 1;
        let (free, hole) = self
            .allocators
            .get(&segment_id)
            .map_or((0, 0), |b| (b.arena.free_bytes(), b.arena.largest_hole()));
        Error::out_of_memory(format!(
            "no room for key {key} ({} bytes) on {segment_id} in time: {free} bytes free, largest \
             hole {hole}",
            open.bytes_total
        ))
    }
}
