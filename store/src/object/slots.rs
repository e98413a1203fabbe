//! The owner's slot table: applies what `transition` decides, to the table and to the words in
//! memory, in the order that readers rely on. The only writer of owner words. Every operation is
//! O(1), 16 bytes a slot.

use super::transition::{Decision, Event, PackedExtent, Slot, State, decide, refusal};
use super::view::Usage;
use super::{arm, key_of, read_header, ready};
use crate::arena::Extent;
use crate::error::StoreError;
use crate::heap::{FIRST_EPOCH, Heap};
use crate::index::Index;
use crate::key::KeyId;
use crate::layout::{LAST_ACCESS_OFF, OWNER_OFF, flag, low, word};
use crate::pins;
use std::collections::VecDeque;

/// The answer to a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Committed {
    /// False if it had been committed before.
    pub newly: bool,
    /// Identity the producer wrote; the caller compares it with the key it was told.
    pub key: KeyId,
    /// Logical bytes the producer wrote.
    pub bytes_total: u64,
    /// Where the payload lies.
    pub extent: Extent,
}

/// The answer to a retire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retired {
    /// Where the payload lies.
    pub extent: Extent,
    /// What it was before.
    pub was: RetiredState,
}

/// What a retired slot was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RetiredState {
    /// A committed object.
    Live,
    /// An open plan.
    Open,
}

/// A slot whose quarantine is over. Its extent may be placed again by whoever placed it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Freed {
    /// Header slot.
    pub slot: u32,
    /// The epoch that ended.
    pub epoch: u32,
    /// Its extent; of length 0 if the table was rebuilt and could not tell. Whoever placed it
    /// frees what it remembers for this slot and epoch.
    pub extent: Extent,
}

impl Freed {
    /// The epoch the slot is armed at now; `None` if it was the last and the slot is lost [I3].
    pub fn next_epoch(&self) -> Option<u32> {
        self.epoch.checked_add(1)
    }
}

/// The managed slots of one segment, as their owner knows them; those of its device log are not
/// here.
#[derive(Debug)]
pub struct Slots {
    heap: Heap,
    /// The first one is the first behind the log's.
    slots: Vec<Slot>,
    usage: Usage,
    index: Index,
    /// (end of quarantine, slot, epoch), ends never decreasing.
    quarantine: VecDeque<(u64, u32, u32)>,
    /// How many at the back of `quarantine` began since the last `settle`.
    unsettled: usize,
    /// Past their quarantine, but some process holds a pin: (since, slot, epoch) [I9].
    pinned: Vec<(u64, u32, u32)>,
}

impl Slots {
    /// The table of a segment just formatted: every slot free at epoch 1.
    pub fn fresh(heap: Heap) -> Slots {
        let free = Slot { epoch: FIRST_EPOCH, state: State::Free };
        let managed = heap.geometry().managed_slots();
        Slots::of(vec![free; managed.len()], heap)
    }

    /// The index is made anew and leads to every live slot.
    pub(super) fn of(slots: Vec<Slot>, heap: Heap) -> Slots {
        let mut usage = Usage::default();
        for slot in &slots {
            count(&mut usage, slot.state, Sign::In);
        }
        let index = Index::empty(&heap);
        let (quarantine, pinned) = (VecDeque::new(), Vec::new());
        let mut table = Slots { heap, slots, usage, index, quarantine, unsettled: 0, pinned };
        let live: Vec<_> =
            table.all().filter(|(_, at)| matches!(at.state, State::Live(_))).collect();
        for (slot, at) in live {
            let key = key_of(&table.header(slot));
            table.index.insert(key, slot, at.epoch);
        }
        table
    }

    /// Gives a free slot and an extent to a plan. Refused (`WrongState`) at any other epoch or
    /// state; the same call again is fine. An extent outside the arena is `OutOfBounds`.
    pub fn open(&mut self, slot: u32, epoch: u32, extent: Extent) -> Result<(), StoreError> {
        let arena = self.heap.geometry().arena;
        let Some(packed) = PackedExtent::of(extent, &arena) else {
            return Err(StoreError::OutOfBounds {
                what: "extent of a plan",
                offset: extent.offset,
                len: extent.len,
                segment_len: arena.offset + arena.len,
            });
        };
        self.step(slot, epoch, Event::Open(packed), "open").map(drop)
    }

    /// Makes a published plan a committed object. `WrongState` if the slot is past that epoch or
    /// retired ([`StoreError::is_already_retired`]: the caller answers `Reclaimed` [I11]), not
    /// READY, or if the header's payload is not the plan's.
    pub fn commit(&mut self, slot: u32, epoch: u32) -> Result<Committed, StoreError> {
        let arena = self.heap.geometry().arena;
        let at = self.at(slot);
        let refuse = |what: &str| Err(refusal(slot, at, epoch, what));
        let held = at.filter(|at| at.epoch == epoch).and_then(|at| match at.state {
            State::Open(packed) | State::Live(packed) => Some(packed),
            _ => None,
        });
        let Some(packed) = held else {
            return refuse("commit");
        };
        let extent = packed.extent(&arena);
        let header = read_header(&self.heap, slot)?;
        if header.publish != ready(epoch) || header.owner != word(flag::LIVE, epoch) {
            return refuse("commit of a plan that is not READY");
        }
        if header.payload_base != extent.offset || header.bytes_total > extent.len {
            return refuse("commit of a payload that is not the plan's");
        }
        let newly = self.step(slot, epoch, Event::Commit, "commit")?;
        self.index.insert(key_of(&header), slot, epoch);
        Ok(Committed { newly, key: key_of(&header), bytes_total: header.bytes_total, extent })
    }

    /// Ends a committed object or an open plan: its owner word loses LIVE at once, so no reader
    /// accepts it any more. With `fenced` no producer can write and quarantine begins at `now_ns`
    /// (see [`Slots::restart_quarantines`]); without, the slot is held until [`Slots::fenced`]
    /// [I10]. Again, or at an epoch past: [`StoreError::is_already_retired`].
    pub fn retire(
        &mut self,
        slot: u32,
        epoch: u32,
        fenced: bool,
        now_ns: u64,
    ) -> Result<Retired, StoreError> {
        let before = self.at(slot);
        let event = Event::Retire { fenced };
        let (was, packed) = match before.map(|at| (at, decide(at, epoch, event))) {
            Some((Slot { state: State::Live(p), .. }, Decision::Become(_))) => {
                (RetiredState::Live, p)
            }
            Some((Slot { state: State::Open(p), .. }, Decision::Become(_))) => {
                (RetiredState::Open, p)
            }
            _ => return Err(refusal(slot, before, epoch, "retire")),
        };
        self.clear_live(slot, epoch)?;
        if was == RetiredState::Live {
            self.index.remove(key_of(&self.header(slot)), slot, epoch);
        }
        // What is looked at from here on, pins to come included, is looked at after it [I9].
        self.heap.memory().flush();
        self.step(slot, epoch, event, "retire")?;
        if fenced {
            self.begin_quarantine(slot, epoch, now_ns);
        }
        Ok(Retired { extent: packed.extent(&self.heap.geometry().arena), was })
    }

    /// The producer of a retired plan can write no more: its quarantine begins. False if the slot
    /// is not waiting for that at this epoch.
    pub fn fenced(&mut self, slot: u32, epoch: u32, now_ns: u64) -> bool {
        let done = self.step(slot, epoch, Event::Fenced, "fence").is_ok();
        if done {
            self.begin_quarantine(slot, epoch, now_ns);
        }
        done
    }

    /// Restarts, at `now_ns`, the quarantines begun since the last call. Q counts from when the
    /// retired word is visible [I8], but the `now_ns` of a retire is read before its store, and a
    /// process may be stopped in between. An owner that reads its clock once more after a batch
    /// of retires, and calls this, closes that gap.
    pub fn restart_quarantines(&mut self, now_ns: u64) {
        let from = self.quarantine.len() - self.unsettled;
        let until = now_ns.saturating_add(self.heap.geometry().quarantine_ns());
        for entry in self.quarantine.range_mut(from..) {
            entry.0 = entry.0.max(until);
        }
        self.unsettled = 0;
    }

    /// Arms every slot whose quarantine is over, and that nobody has pinned [I9], with the next
    /// epoch and returns them [I8] [I3].
    pub fn due(&mut self, now_ns: u64) -> Vec<Freed> {
        let mut waiting = std::mem::take(&mut self.pinned);
        while let Some(&(until, slot, epoch)) = self.quarantine.front() {
            if until > now_ns {
                break;
            }
            self.quarantine.pop_front();
            self.unsettled = self.unsettled.min(self.quarantine.len());
            waiting.push((until, slot, epoch));
        }
        if waiting.is_empty() {
            return Vec::new();
        }
        // One look, after the fences of all these retires: whoever pinned one of them before its
        // LIVE was gone is seen here for as long as he holds it [I9].
        let pinned = match pins::scan(&**self.heap.memory(), &self.heap.geometry().pins) {
            Ok(pinned) => pinned,
            Err(error) => {
                tracing::error!(%error, "cannot read the pins: everything retired is held");
                self.pinned = waiting;
                return Vec::new();
            }
        };
        let mut freed = Vec::new();
        for (since, slot, epoch) in waiting {
            if pinned.contains(&(slot, epoch)) {
                self.pinned.push((since, slot, epoch));
                continue;
            }
            match self.arm_next(slot, epoch) {
                Ok(Some(extent)) => freed.push(Freed { slot, epoch, extent }),
                Ok(None) => {}
                Err(error) => {
                    // Memory that cannot be written (a device lost): held, tried again after Q.
                    tracing::error!(slot, epoch, %error, "cannot arm a slot");
                    self.begin_quarantine(slot, epoch, now_ns);
                }
            }
        }
        freed
    }

    /// When [`Slots::due`] next has something to return. What is pinned has no such moment.
    pub fn next_due_ns(&self) -> Option<u64> {
        self.quarantine.front().map(|&(until, ..)| until)
    }

    /// Retired objects that only a pin still holds, and how many of them for longer than
    /// `suspect_ns`.
    pub fn held_by_pins(&self, now_ns: u64, suspect_ns: u64) -> (u64, u64) {
        let long = |(since, ..): &&(u64, u32, u32)| now_ns.saturating_sub(*since) > suspect_ns;
        (self.pinned.len() as u64, self.pinned.iter().filter(long).count() as u64)
    }

    /// Writes the access time, in milliseconds, of an object live at that epoch.
    pub fn touch(&mut self, slot: u32, epoch: u32, now_ms: u64) -> bool {
        let at = self.heap.geometry().header_off(slot);
        self.is_live(slot, epoch) && self.heap.memory().store(at + LAST_ACCESS_OFF, now_ms).is_ok()
    }

    /// The counters, O(1).
    pub fn usage(&self) -> Usage {
        Usage { index_overflow: self.index.overflowed(), ..self.usage }
    }

    /// The segment.
    pub fn heap(&self) -> &Heap {
        &self.heap
    }

    /// A slot that serves a key in this segment, of those that `among` says yes to; slots of the
    /// log are asked about, too.
    pub fn serving(&self, key: KeyId, among: impl Fn(u32) -> bool) -> Option<u32> {
        self.index.find(key, |slot| {
            let header = among(slot).then(|| read_header(&self.heap, slot).ok()).flatten();
            header.is_some_and(|h| key_of(&h) == key && low(h.owner) & flag::LIVE != 0)
        })
    }

    /// What leads readers to slots.
    pub fn index(&self) -> &Index {
        &self.index
    }

    /// Leads readers to what the device log serves, which is not in this table.
    pub fn index_mut(&mut self) -> &mut Index {
        &mut self.index
    }

    pub(super) fn at(&self, slot: u32) -> Option<Slot> {
        self.slots.get(self.index_of(slot)?).copied()
    }

    pub(super) fn all(&self) -> impl Iterator<Item = (u32, Slot)> + '_ {
        self.heap.geometry().managed_slots().zip(self.slots.iter().copied())
    }

    /// Where a slot is in the table; None for one of the log.
    fn index_of(&self, slot: u32) -> Option<usize> {
        slot.checked_sub(self.heap.geometry().log_slots).map(|index| index as usize)
    }

    pub(super) fn count_unheard(&mut self) {
        self.usage.unheard += 1;
    }

    pub(super) fn begin_quarantine(&mut self, slot: u32, epoch: u32, now_ns: u64) {
        let q = self.heap.geometry().quarantine_ns();
        // A clock of the caller that went back must not let a later entry overtake.
        let last = self.quarantine.back().map_or(0, |&(until, ..)| until);
        self.quarantine.push_back((now_ns.saturating_add(q).max(last), slot, epoch));
        self.unsettled += 1;
    }

    pub(super) fn clear_live(&self, slot: u32, epoch: u32) -> Result<(), StoreError> {
        let at = self.heap.geometry().header_off(slot) + OWNER_OFF;
        let flags = low(self.heap.memory().load(at)?);
        self.heap.memory().store(at, word(flags & !flag::LIVE, epoch))
    }

    /// Ends a quarantine. `None` if the slot is not in quarantine at that epoch.
    fn arm_next(&mut self, slot: u32, epoch: u32) -> Result<Option<Extent>, StoreError> {
        let Some(at) = self.at(slot) else {
            return Ok(None);
        };
        let (Some(packed), Decision::Become(next)) =
            (at.state.extent(), decide(at, epoch, Event::Elapsed))
        else {
            return Ok(None);
        };
        if next.state == State::Free {
            let header = self.heap.geometry().header_off(slot);
            arm(self.heap.memory().as_ref(), header, next.epoch)?;
        }
        self.put(slot, next);
        Ok(Some(packed.extent(&self.heap.geometry().arena)))
    }

    /// Decides and applies one event; true if something changed.
    pub(super) fn step(
        &mut self,
        slot: u32,
        epoch: u32,
        event: Event,
        asked: &str,
    ) -> Result<bool, StoreError> {
        let at = self.at(slot);
        match at.map(|at| decide(at, epoch, event)) {
            Some(Decision::Become(next)) => {
                self.put(slot, next);
                Ok(true)
            }
            Some(Decision::Already) => Ok(false),
            Some(Decision::Refused) | None => Err(refusal(slot, at, epoch, asked)),
        }
    }

    fn put(&mut self, slot: u32, next: Slot) {
        if let Some(at) = self.index_of(slot).and_then(|index| self.slots.get_mut(index)) {
            count(&mut self.usage, at.state, Sign::Out);
            count(&mut self.usage, next.state, Sign::In);
            *at = next;
        }
    }
}

#[derive(Clone, Copy)]
enum Sign {
    In,
    Out,
}

/// Adds a slot's state to the counters, or takes it out.
fn count(usage: &mut Usage, state: State, sign: Sign) {
    let add = |counter: &mut u64, n: u64| match sign {
        Sign::In => *counter += n,
        Sign::Out => *counter -= n,
    };
    match state {
        State::Free => {}
        State::Open(p) => {
            add(&mut usage.open_plans, 1);
            add(&mut usage.open_bytes, p.bytes());
        }
        State::Live(p) => {
            add(&mut usage.live_objects, 1);
            add(&mut usage.live_bytes, p.bytes());
        }
        State::Fencing(p) => {
            add(&mut usage.fencing, 1);
            add(&mut usage.held_bytes, p.bytes());
        }
        State::Quarantined(p) => {
            add(&mut usage.quarantined, 1);
            add(&mut usage.held_bytes, p.bytes());
        }
        State::Spent => add(&mut usage.spent, 1),
    }
}
