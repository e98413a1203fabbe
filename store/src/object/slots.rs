//! The owner's slot table: applies what `transition` decides, to the table and to the words in
//! memory, in the order that readers rely on. The only writer of owner words of heap slots. Every
//! operation is O(1); the table takes 16 bytes a slot.

use super::holders::{Holders, Pinned};
use super::transition::{Decision, Event, Slot, State, decide, refusal};
use super::usage::{Usage, count};
use super::{key_of, read_header, ready};
use crate::arena::{Extent, PackedExtent};
use crate::arming::arm;
use crate::error::StoreError;
use crate::heap::{FIRST_EPOCH, Heap};
use crate::index::Index;
use crate::key::KeyId;
use crate::layout::{LAST_ACCESS_OFF, OWNER_OFF, flag, is_live, low, word};
use crate::quarantine::Quarantine;
use crate::retention::Retention;
use hashbrown::HashSet;
use std::ops::{AddAssign, SubAssign};
use std::sync::Arc;

/// The answer to a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Committed {
    /// False if it had been committed before.
    pub newly: bool,
    /// Key identity that the producer wrote; the caller compares it with the key in the request.
    pub key: KeyId,
    /// Logical bytes the producer wrote.
    pub bytes_total: u64,
    /// Extent of the payload.
    pub extent: Extent,
    /// What the put asked for.
    pub retention: Retention,
}

/// A slot whose quarantine is over. Its extent may be allocated again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Freed {
    /// Header slot.
    pub slot: u32,
    /// The epoch that ended.
    pub epoch: u32,
    /// Its extent; of length 0 if a rebuilt table does not know it. The allocator then frees the
    /// extent that it has recorded for this slot and epoch.
    pub extent: Extent,
}

/// The heap slots of one segment: the owner's state. The slots of its device log are not in it.
#[derive(Debug)]
pub struct Slots {
    heap: Heap,
    /// Element 0 is the first slot after the log's slots.
    slots: Vec<Slot>,
    pub(super) usage: Usage,
    index: Index,
    /// (slot, epoch).
    quarantine: Quarantine<(u32, u32)>,
    /// Quarantine is over, but somebody holds the object: since when, (slot, epoch) [I9].
    held: Vec<(u64, (u32, u32))>,
    /// Whom to ask; the pins first.
    holders: Vec<Arc<dyn Holders>>,
}

impl Slots {
    /// The table of a segment just formatted: every slot free at epoch 1.
    pub fn fresh(heap: Heap) -> Slots {
        let free = Slot { epoch: FIRST_EPOCH, state: State::Free };
        let managed = heap.layout().managed_slots();
        Slots::of(vec![free; managed.len()], heap)
    }

    /// Rebuilds the index, with an entry for every live slot.
    pub(super) fn of(slots: Vec<Slot>, heap: Heap) -> Slots {
        let mut usage = Usage::default();
        for slot in &slots {
            count(&mut usage, slot.state, u64::add_assign);
        }
        let index = Index::empty(heap.memory().clone(), heap.layout().index);
        let (memory, region) = (heap.memory().clone(), heap.layout().pins);
        let holders: Vec<Arc<dyn Holders>> = vec![Arc::new(Pinned { memory, region })];
        let (quarantine, held) = (Quarantine::default(), Vec::new());
        let mut table = Slots { heap, slots, usage, index, quarantine, held, holders };
        let live: Vec<_> =
            table.all().filter(|(_, at)| matches!(at.state, State::Live(_))).collect();
        for (slot, at) in live {
            let header = table.header(slot);
            table.index.insert(key_of(&header), slot, at.epoch);
            let packed = at.state.extent().unwrap_or(PackedExtent::UNKNOWN);
            table.usage.hard_bytes += hard_bytes(Retention::of_word(header.owner), packed);
        }
        table
    }

    /// Gives a free slot and an extent to a plan. Refused (`WrongState`) at any other epoch or
    /// state; repeating the same call is harmless. An extent outside the arena is `OutOfBounds`.
    pub fn open(&mut self, slot: u32, epoch: u32, extent: Extent) -> Result<(), StoreError> {
        let arena = self.heap.layout().arena;
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

    /// Notes in the header of an open plan how long an evictor is to keep its object. Refused
    /// (`WrongState`) at any other epoch or state.
    pub fn retain(
        &mut self,
        slot: u32,
        epoch: u32,
        retention: Retention,
    ) -> Result<(), StoreError> {
        if !self.is_open(slot, epoch) {
            return Err(refusal(slot, self.at(slot), epoch, "retention"));
        }
        let header = self.heap.layout().header_off(slot);
        let at = header + OWNER_OFF;
        if matches!(retention, Retention::UntilRead(_)) {
            // The slot may have had another object, which was read.
            self.heap.memory().store(header + LAST_ACCESS_OFF, 0)?;
        }
        // Its plan may have lost LIVE already.
        let live = low(self.heap.memory().load(at)?) & flag::LIVE;
        self.heap.memory().store(at, word(live | retention.bits(), epoch))
    }

    /// Makes a published plan a committed object. `WrongState` if the slot is past that epoch or
    /// retired (the caller answers `Reclaimed` [I11]), if it is not READY, or if the header's
    /// payload is not the plan's.
    pub fn commit(&mut self, slot: u32, epoch: u32) -> Result<Committed, StoreError> {
        let arena = self.heap.layout().arena;
        let at = self.at(slot);
        let refuse = |what: &str| Err(refusal(slot, at, epoch, what));
        let Some(State::Open(packed) | State::Live(packed)) = self.state_at(slot, epoch) else {
            return refuse("commit");
        };
        let extent = packed.extent(&arena);
        let header = read_header(&self.heap, slot)?;
        if header.publish != ready(epoch) || !is_live(header.owner, epoch) {
            return refuse("commit of a plan that is not READY");
        }
        if header.payload_base != extent.offset || header.bytes_total > extent.len {
            return refuse("commit of a payload that is not the plan's");
        }
        let retention = Retention::of_word(header.owner);
        let newly = self.step(slot, epoch, Event::Commit, "commit")?;
        if newly {
            self.usage.hard_bytes += hard_bytes(retention, packed);
        }
        self.index.insert(key_of(&header), slot, epoch);
        let (key, bytes_total) = (key_of(&header), header.bytes_total);
        Ok(Committed { newly, key, bytes_total, extent, retention })
    }

    /// Ends a committed object or an open plan, and returns its extent: its owner word loses LIVE
    /// at once, so no reader accepts it any more. With `fenced` no producer can write and
    /// quarantine begins at `now_ns` (see [`Slots::restart_quarantines`]). Without, the slot is
    /// held until [`Slots::fenced`] [I10]. `WrongState` if it was retired before or the epoch is
    /// past.
    pub fn retire(
        &mut self,
        slot: u32,
        epoch: u32,
        fenced: bool,
        now_ns: u64,
    ) -> Result<Extent, StoreError> {
        let Some(State::Live(packed) | State::Open(packed)) = self.state_at(slot, epoch) else {
            return Err(refusal(slot, self.at(slot), epoch, "retire"));
        };
        self.clear_live(slot, epoch)?;
        if self.is_live(slot, epoch) {
            let header = self.header(slot);
            self.index.remove(key_of(&header), slot, epoch);
            let hard = hard_bytes(Retention::of_word(header.owner), packed);
            self.usage.hard_bytes = self.usage.hard_bytes.saturating_sub(hard);
        }
        // Everything read after this fence, such as a scan of the pins, sees the retires before it
        // [I9].
        self.heap.memory().flush();
        self.step(slot, epoch, Event::Retire { fenced }, "retire")?;
        if fenced {
            self.begin_quarantine(slot, epoch, now_ns);
        }
        Ok(packed.extent(&self.heap.layout().arena))
    }

    /// The producer of a retired plan can write no more: its quarantine begins. Returns false if
    /// the slot is not waiting for this at this epoch.
    pub fn fenced(&mut self, slot: u32, epoch: u32, now_ns: u64) -> bool {
        let done = self.step(slot, epoch, Event::Fenced, "fence").is_ok();
        if done {
            self.begin_quarantine(slot, epoch, now_ns);
        }
        done
    }

    /// Restarts, at `now_ns`, the quarantines begun since the last call. Q counts from when the
    /// retired word is visible [I8], but the `now_ns` of a retire is read before its store, and the
    /// process may be stopped between the two. An owner that reads its clock once more after a
    /// batch of retires, and calls this, closes that gap.
    pub fn restart_quarantines(&mut self, now_ns: u64) {
        self.quarantine.restart(now_ns.saturating_add(self.heap.layout().quarantine_ns()));
    }

    /// One more holder to ask from now on.
    pub fn ask_as_well(&mut self, holders: Arc<dyn Holders>) {
        self.holders.push(holders);
    }

    /// The (slot, epoch) of every object that somebody holds, in heap and log [I9].
    ///
    /// # Errors
    /// If one holder cannot say.
    pub fn held(&self) -> Result<HashSet<(u32, u32)>, StoreError> {
        let mut objects = HashSet::new();
        self.holders.iter().try_for_each(|holders| holders.held(&mut objects))?;
        Ok(objects)
    }

    /// Arms with its next epoch every slot whose quarantine is over and that nobody holds [I9],
    /// and returns these slots [I8] [I3].
    pub fn due(&mut self, now_ns: u64) -> Vec<Freed> {
        let mut waiting = std::mem::take(&mut self.held);
        waiting.extend(std::iter::from_fn(|| self.quarantine.due(now_ns)));
        if waiting.is_empty() {
            return Vec::new();
        }
        // Asked once, after the fences of all these retires: a pin set before LIVE was cleared is
        // seen here for as long as it is held [I9].
        let held = match self.held() {
            Ok(held) => held,
            Err(error) => {
                tracing::error!(%error, "cannot read who holds what: everything retired is held");
                self.held = waiting;
                return Vec::new();
            }
        };
        let mut freed = Vec::new();
        for (since, (slot, epoch)) in waiting {
            if held.contains(&(slot, epoch)) {
                self.held.push((since, (slot, epoch)));
                continue;
            }
            match self.arm_next(slot, epoch) {
                Ok(Some(extent)) => freed.push(Freed { slot, epoch, extent }),
                Ok(None) => {}
                Err(error) => {
                    // Memory that cannot be written (a device lost): held, and tried again after Q.
                    tracing::error!(slot, epoch, %error, "cannot arm a slot");
                    self.begin_quarantine(slot, epoch, now_ns);
                }
            }
        }
        freed
    }

    /// Time at which [`Slots::due`] next has something to return. Held slots have no such time.
    pub fn next_due_ns(&self) -> Option<u64> {
        self.quarantine.next_due_ns()
    }

    /// Number of retired objects whose quarantine is over and that are still held, and how many of
    /// them for longer than `suspect_ns`.
    pub fn held_longer(&self, now_ns: u64, suspect_ns: u64) -> (u64, u64) {
        let long = |(since, _): &&(u64, (u32, u32))| now_ns.saturating_sub(*since) > suspect_ns;
        (self.held.len() as u64, self.held.iter().filter(long).count() as u64)
    }

    /// Bytes of the extents of these.
    pub fn bytes_held_longer(&self) -> u64 {
        let states = self.held.iter().filter_map(|(_, (slot, _))| Some(self.at(*slot)?.state));
        states.filter_map(State::extent).map(PackedExtent::bytes).sum()
    }

    /// Writes the access time, in milliseconds, of an object that is live at that epoch; else
    /// returns false.
    pub fn touch(&mut self, slot: u32, epoch: u32, now_ms: u64) -> bool {
        let at = self.heap.layout().header_off(slot);
        self.is_live(slot, epoch) && self.heap.memory().store(at + LAST_ACCESS_OFF, now_ms).is_ok()
    }

    /// Notes a read of an object whose commit has not come yet, if it is to go after its first
    /// read.
    pub fn touch_open(&mut self, slot: u32, epoch: u32, now_ms: u64) {
        let header = self.heap.layout().header_off(slot);
        let word = self.heap.memory().load(header + OWNER_OFF).unwrap_or_default();
        if self.is_open(slot, epoch) && matches!(Retention::of_word(word), Retention::UntilRead(_))
        {
            // If it fails, one read is not known.
            let _ = self.heap.memory().store(header + LAST_ACCESS_OFF, now_ms);
        }
    }

    /// The counters. O(1).
    pub fn usage(&self) -> Usage {
        Usage { index_overflow: self.index.overflowed(), ..self.usage }
    }

    /// The segment.
    pub fn heap(&self) -> &Heap {
        &self.heap
    }

    /// A slot that serves a key in this segment, among those for which `among` returns true.
    /// `among` is called for slots of the log, too.
    pub fn serving(&self, key: KeyId, among: impl Fn(u32) -> bool) -> Option<u32> {
        self.index.find(key, |slot| {
            let header = among(slot).then(|| read_header(&self.heap, slot).ok()).flatten();
            header.is_some_and(|h| key_of(&h) == key && low(h.owner) & flag::LIVE != 0)
        })
    }

    /// The index of this segment.
    pub fn index(&self) -> &Index {
        &self.index
    }

    /// The index, to add the objects of the device log, which are not in this table.
    pub fn index_mut(&mut self) -> &mut Index {
        &mut self.index
    }

    pub(super) fn at(&self, slot: u32) -> Option<Slot> {
        self.slots.get(self.index_of(slot)?).copied()
    }

    /// Its state, if it is at that epoch.
    pub(super) fn state_at(&self, slot: u32, epoch: u32) -> Option<State> {
        self.at(slot).filter(|at| at.epoch == epoch).map(|at| at.state)
    }

    pub(super) fn all(&self) -> impl Iterator<Item = (u32, Slot)> + '_ {
        self.heap.layout().managed_slots().zip(self.slots.iter().copied())
    }

    /// Index of a slot in the table; None for a slot of the log.
    fn index_of(&self, slot: u32) -> Option<usize> {
        slot.checked_sub(self.heap.layout().log_slots).map(|index| index as usize)
    }

    pub(super) fn begin_quarantine(&mut self, slot: u32, epoch: u32, now_ns: u64) {
        let q = self.heap.layout().quarantine_ns();
        self.quarantine.begin((slot, epoch), now_ns.saturating_add(q));
    }

    pub(super) fn clear_live(&self, slot: u32, epoch: u32) -> Result<(), StoreError> {
        let at = self.heap.layout().header_off(slot) + OWNER_OFF;
        let flags = low(self.heap.memory().load(at)?);
        self.heap.memory().store(at, word(flags & !flag::LIVE, epoch))
    }

    /// Ends a quarantine and arms the slot. `None` if it is not in quarantine at that epoch.
    fn arm_next(&mut self, slot: u32, epoch: u32) -> Result<Option<Extent>, StoreError> {
        let elapsed =
            self.at(slot).map(|at| (at.state.extent(), decide(at, epoch, Event::Elapsed)));
        let Some((Some(packed), Decision::Become(next))) = elapsed else {
            return Ok(None);
        };
        if next.state == State::Free {
            let header = self.heap.layout().header_off(slot);
            arm(self.heap.memory().as_ref(), header, next.epoch)?;
        }
        self.put(slot, next);
        Ok(Some(packed.extent(&self.heap.layout().arena)))
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
            count(&mut self.usage, at.state, u64::sub_assign);
            count(&mut self.usage, next.state, u64::add_assign);
            *at = next;
        }
    }
}

/// What an object counts in the bytes of hard pins.
fn hard_bytes(retention: Retention, extent: PackedExtent) -> u64 {
    match retention {
        Retention::HardPin => extent.bytes(),
        _ => 0,
    }
}
