//! Follows a log by position, from outside: every header that is settled is counted once, and its
//! bytes are compared. A view held behind its position keeps the log from overwriting positions
//! that it has not read yet [I9], so that no position is missed however slow it is.

use super::ids::{Ids, VALUE_BYTES, fill, id_of, key};
use crate::cluster_process::{ProcessCluster, until};
use nkv::{Blocking, ObjectView, PutOptions, TransportChoice};
use nkv_store::clock::{BootClock, Clock};
use nkv_store::device_log::{BUMP_PTR_OFF, LogLayout};
use nkv_store::key::key_hash;
use nkv_store::layout::{PUBLISH_OFF, epoch_of};
use nkv_store::memory::Memory;
use nkv_store::object::{dead, ready, writing};
use nkv_store::shm;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// Pause after a poll that found nothing.
pub const PAUSE: Duration = Duration::from_micros(200);
/// Positions between two views.
const VIEW_EVERY: u64 = 4096;
/// Positions per poll.
const PER_POLL: u64 = 8192;
/// A claim without a header for this long was probably abandoned, which takes 20 ms: the view no
/// longer waits for it, and it is polled now and then until the log's next lap. If it is settled
/// and overwritten between two polls, its number is missed, and the test fails.
const GIVEN_UP_MS: u64 = 60;
/// Pause between two polls of those.
const LATE_MS: u64 = 5;
/// The object that is put first, and viewed first.
const ANCHOR: &[u8] = b"anchor";
const LIMIT: Duration = nkv_pace::HANGS;

/// Counts, in claims of one unit each.
#[derive(Debug, Clone, Copy, Default)]
pub struct Seen {
    /// Bytes of a unit.
    pub unit: u64,
    /// Positions read.
    pub positions: u64,
    /// READY.
    pub ready: u64,
    /// DEAD.
    pub dead: u64,
    /// Claimed and never written to.
    pub never: u64,
    /// READY with a number that was seen before.
    pub twice: u64,
    /// READY with other bytes than that number has.
    pub damaged: u64,
    /// Views taken.
    pub views: u64,
}

/// See the file's first paragraph.
pub struct Observer {
    memory: Arc<dyn Memory>,
    log: LogLayout,
    client: Blocking,
    view: ObjectView,
    viewed: u64,
    ids: Ids,
    seen: Seen,
    // Positions passed that were not settled then, in order, each with its time.
    open: VecDeque<(u64, u64)>,
    // Those that were probably abandoned.
    late: Vec<u64>,
    late_observed_ms: u64,
    next: u64,
}

/// What a position shows.
enum Shown {
    Nothing,
    Writing,
    // The log's next lap: nothing was ever written at this position.
    Passed,
    Dead,
    Ready(u64),
    // The owner's copy of the object that was put first.
    Anchor,
}

impl Observer {
    /// Puts an object and views it, so that the log cannot pass it.
    pub fn start(cluster: &ProcessCluster, total: u64) -> Self {
        let client = cluster.connect_by(0, TransportChoice::Shm);
        let (info, _) = client.membership().unwrap().ranks.remove(0);
        let memory = shm::attach(info.memory.name().unwrap(), false).unwrap();
        let log = info.layout.device_log().unwrap();
        let opts = PutOptions::default().device_alloc(true);
        // On a busy machine an attachment through devices may come after the first put's limit.
        until(LIMIT, "the log takes a put", || {
            client.put(ANCHOR, &[0; VALUE_BYTES], &opts).unwrap();
            let by_log = client.client().write_counters().by_log == 1;
            if !by_log {
                client.remove(ANCHOR).unwrap();
            }
            by_log
        });
        let mut view = None;
        until(LIMIT, "the first object is served", || {
            view = client.get_view(ANCHOR).ok();
            view.is_some()
        });
        let seen = Seen { unit: log.unit(), positions: 1, ready: 1, ..Seen::default() };
        Self {
            memory,
            log,
            client,
            view: view.unwrap(),
            viewed: 0,
            ids: Ids::new(total),
            seen,
            open: VecDeque::new(),
            late: Vec::new(),
            late_observed_ms: 0,
            next: seen.unit,
        }
    }

    /// The counts so far.
    pub fn seen(&self) -> Seen {
        self.seen
    }

    /// Reads new claims, and again those that were not settled; returns how many were new.
    pub fn observe(&mut self) -> u64 {
        let (unit, now_ms) = (self.log.unit(), BootClock.now_ms());
        let end = self.memory.load(BUMP_PTR_OFF).unwrap().min(self.next + PER_POLL * unit);
        let mut news = self.observe_again(now_ms);
        if now_ms >= self.late_observed_ms + LATE_MS {
            self.late_observed_ms = now_ms;
            news += self.observe_late();
        }
        while self.next < end {
            let p = self.next;
            self.next += unit;
            self.seen.positions += 1;
            match self.shown(p) {
                Shown::Ready(id) => {
                    self.note(id);
                    self.hold(p, id);
                }
                shown if !self.settle(&shown) => self.open.push_back((p, now_ms)),
                _ => {}
            }
            news += 1;
        }
        news
    }

    /// Reads unsettled positions again, in order; those still unsettled stay in order.
    fn observe_again(&mut self, now_ms: u64) -> u64 {
        let mut news = 0;
        for _ in 0..self.open.len() {
            let Some((p, since)) = self.open.pop_front() else { break };
            match self.shown(p) {
                shown if self.settle(&shown) => news += 1,
                Shown::Nothing if now_ms - since > GIVEN_UP_MS => self.late.push(p),
                _ => self.open.push_back((p, since)),
            }
        }
        news
    }

    fn observe_late(&mut self) -> u64 {
        let late = std::mem::take(&mut self.late);
        let before = late.len();
        for p in late {
            let shown = self.shown(p);
            if !self.settle(&shown) {
                self.late.push(p);
            }
        }
        (before - self.late.len()) as u64
    }

    /// Counts a settled claim; false if it is not settled.
    fn settle(&mut self, shown: &Shown) -> bool {
        match shown {
            Shown::Nothing | Shown::Writing => return false,
            Shown::Passed => self.seen.never += 1,
            Shown::Dead => self.seen.dead += 1,
            Shown::Ready(id) => self.note(*id),
            Shown::Anchor => {
                self.seen.ready += 1;
                self.seen.twice += 1;
            }
        }
        true
    }

    fn note(&mut self, id: u64) {
        self.seen.ready += 1;
        if !self.ids.is_of(id) {
            self.seen.damaged += 1;
        } else if !self.ids.set(id) {
            self.seen.twice += 1;
        }
    }

    /// Views this object from now on instead of an earlier one, unless an earlier position is still
    /// open. An object that the log has evicted meanwhile is skipped: a later one follows.
    fn hold(&mut self, p: u64, id: u64) {
        let unit = self.log.unit();
        if p < self.viewed + VIEW_EVERY * unit
            || self.open.front().is_some_and(|(open, _)| *open < p)
        {
            return;
        }
        if let Ok(view) = self.client.get_view(&key(id)) {
            self.view = view;
            self.viewed = p;
            self.seen.views += 1;
        }
    }

    fn shown(&mut self, p: u64) -> Shown {
        let (slot, epoch) = (self.log.slot(p), self.log.epoch(p).unwrap());
        let at = self.log.header_off(slot);
        let publish = self.memory.load(at + PUBLISH_OFF).unwrap();
        if publish == dead(epoch) {
            return Shown::Dead;
        }
        if publish == writing(epoch) {
            return Shown::Writing;
        }
        if publish != ready(epoch) {
            return if epoch_of(publish) > epoch { Shown::Passed } else { Shown::Nothing };
        }
        let (mut value, mut right) = ([0; VALUE_BYTES], [0; VALUE_BYTES]);
        self.memory.read(self.log.payload_off(p), &mut value).unwrap();
        let hash = self.memory.load(at).unwrap();
        if hash == key_hash(ANCHOR) && value == [0; VALUE_BYTES] {
            return Shown::Anchor;
        }
        let id = id_of(&value);
        fill(id, &mut right);
        // Still what it was: nobody wrote over it meanwhile [I9].
        let still = self.memory.load(at + PUBLISH_OFF).unwrap() == publish;
        if !still || value != right || hash != key_hash(&key(id)) {
            self.seen.damaged += 1;
        }
        Shown::Ready(id)
    }

    /// Ends the observation and returns the counts. Positions still open will never be settled.
    pub fn end(mut self) -> (Ids, Seen) {
        until(LIMIT, "what is not settled was given up", || {
            self.observe();
            self.open.is_empty() && self.next == self.memory.load(BUMP_PTR_OFF).unwrap()
        });
        self.seen.never += self.late.len() as u64;
        assert!(!self.view.is_empty(), "held to the end");
        (self.ids, self.seen)
    }
}
