//! Evictor: picks victims when a heap is above its high watermark or an open waits for room. It
//! only sends them to the Owner, which retires them. It reads its list from the headers when it
//! starts, and compares the list with the headers when it missed a message of the Owner, a piece at
//! a time.

mod reading;

use crate::actor::{ActorAddr, Context, Message, On, Reply, Role};
use crate::error::Result;
use crate::owner::tables::OwnerTables;
use crate::owner::{Evict, EvictWindow, HeapEvent, HeapObserver, Owner, ReadAndExpired};
use nkv_store::Retention;
use nkv_store::clock::Clock;
use nkv_store::evict::{Candidate, Marks, PolicyKind, Retained, Watermarks};
use nkv_store::heap::Heap;
use nkv_store::object::live_slot;
use reading::Reading;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Victims in one message to the owner.
const VICTIMS_PER_BATCH: usize = 4096;
/// From this attempt on, evicting by recency did not help: the owner evicts the cheapest contiguous
/// window.
const WINDOW_FROM_ATTEMPT: u32 = 1;
/// Calls that wait until the list is read, at most; further ones are served from the incomplete
/// list.
const MAX_WAITING: usize = 64;
/// Objects that the owner is asked to have removed at one tick.
const EXPIRED_PER_TICK: usize = 4096;
/// Interval between checks for missed messages of the owner.
const RECHECK_INTERVAL: Duration = Duration::from_millis(500);

/// State that outlives the Evictor actor.
#[derive(Clone)]
pub struct EvictorDurable {
    /// The segment, whose headers the list is read from.
    pub heap: Heap,
    /// The eviction policy.
    pub policy: PolicyKind,
    /// Where eviction begins and ends.
    pub watermarks: Watermarks,
    /// The owner's tables and gauges.
    pub tables: Arc<OwnerTables>,
    /// The owner, which retires the victims.
    pub owner: Arc<OnceLock<ActorAddr<Owner>>>,
    /// The owner's clock.
    pub clock: Arc<dyn Clock>,
}

/// See the file's first paragraph.
pub struct Evictor {
    durable: EvictorDurable,
    policy: Retained,
    capacity: u64,
    marks: Marks,
    // Compare the list with the headers once more: a message that was sent before the last reading
    // may have arrived after it.
    recheck: bool,
    // The reading of the headers that is in progress.
    reading: Option<Reading>,
    // Evictions that wait until the list is complete: target, and the reply.
    waiting: Vec<(Target, Reply<Victims>)>,
}

/// How far to evict.
#[derive(Debug, Clone, Copy)]
struct Target {
    /// Until the objects have at most so many bytes.
    bytes: u64,
    /// Or until only so many are left.
    spare: usize,
    /// Whether the victims may go on in the log.
    spill: bool,
    /// Only of what goes before all others.
    only_first: bool,
}

/// A timer.
struct EvictorTick;
/// Evict until used bytes are at most this; replies with the victims.
#[derive(Debug)]
pub struct EvictTo(pub u64);

/// Victims that were sent to the owner.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Victims {
    /// How many.
    pub objects: u64,
    /// Bytes of their extents.
    pub bytes: u64,
}

impl Message for EvictorTick {
    type Reply = ();
}
impl Message for HeapEvent {
    type Reply = ();
}
impl Message for EvictTo {
    type Reply = Victims;
}

impl Role for Evictor {
    type Durable = EvictorDurable;
    const NAME: &'static str = "evictor";

    fn boot(durable: &EvictorDurable, ctx: &mut Context<'_, Self>) -> Self {
        ctx.after(RECHECK_INTERVAL, EvictorTick);
        let layout = durable.heap.layout();
        let mut evictor = Self {
            durable: durable.clone(),
            policy: Retained::new(durable.policy, layout.slots),
            capacity: layout.arena.len,
            marks: Marks::new(durable.watermarks, layout.arena.len, layout.log_slots > 0),
            recheck: false,
            reading: None,
            waiting: Vec::new(),
        };
        evictor.read(Reading::cold(&durable.heap), ctx);
        evictor
    }
}

/// The mailbox takes what the owner tells.
impl HeapObserver for ActorAddr<Evictor> {
    fn notify(&self, event: HeapEvent) -> Result<()> {
        self.try_send(event)
    }
}

impl Evictor {
    /// Takes victims from the policy until its target is reached, and sends them to the owner;
    /// returns those that were sent.
    fn evict_down_to(&mut self, target: Target) -> Victims {
        let (mut first, mut others) = (Vec::new(), Vec::new());
        let now_ms = self.durable.clock.now_ms();
        while self.policy.bytes() > target.bytes && self.policy.len() > target.spare {
            let goes_first = self.policy.has_first();
            if target.only_first && !goes_first {
                break;
            }
            let Some(victim) = self.policy.victim(now_ms) else { break };
            if goes_first { first.push(victim) } else { others.push(victim) }
        }
        // What goes before all others goes for good.
        let (mut sent, others) = (self.send(&first, false), self.send(&others, target.spill));
        sent.objects += others.objects;
        sent.bytes += others.bytes;
        sent
    }

    /// Sends victims to the owner, and returns how many; the others are taken back.
    fn send(&mut self, victims: &[(u32, u32, u64)], spill: bool) -> Victims {
        let mut sent = Victims::default();
        let Some(owner) = self.durable.owner.clone().get().cloned() else { return sent };
        let mut batches = victims.chunks(VICTIMS_PER_BATCH);
        for batch in batches.by_ref() {
            let names = batch.iter().map(|(slot, epoch, _)| (*slot, *epoch)).collect();
            if let Err(error) = owner.try_send(Evict { victims: names, spill }) {
                tracing::warn!(%error, victims = batch.len(), "the owner is busy: victims kept");
                self.take_back(batch);
                break;
            }
            sent.objects += batch.len() as u64;
            sent.bytes += batch.iter().map(|(_, _, bytes)| bytes).sum::<u64>();
        }
        batches.for_each(|batch| self.take_back(batch));
        sent
    }

    /// Puts victims that could not be sent back into the policy as the newest: otherwise they would
    /// never be evicted.
    fn take_back(&mut self, victims: &[(u32, u32, u64)]) {
        let now_ms = self.durable.clock.now_ms();
        for &(slot, epoch, bytes) in victims {
            let live = live_slot(&self.durable.heap, slot).filter(|o| o.epoch == epoch);
            let retention = live.map_or(Retention::Usual, |o| o.retention);
            self.policy.admit(Candidate { slot, epoch, bytes, retention }, now_ms);
            live.into_iter().for_each(|object| self.note_read(&object));
        }
    }

    /// Reads the list from the headers again if it is empty while the owner has live objects (after
    /// missed messages).
    fn read_if_blind(&mut self, ctx: &Context<'_, Self>) {
        let objects = self.durable.tables.gauges.objects.load(Ordering::Relaxed);
        if self.policy.is_empty() && objects > 0 && self.reading.is_none() {
            self.read(Reading::cold(&self.durable.heap), ctx);
        }
    }

    /// Compares the list with the headers if a message was missed, and once more at the next check:
    /// by then all messages have arrived that were in flight when the headers were read.
    fn catch_up(&mut self, ctx: &Context<'_, Self>) {
        if self.reading.is_some() {
            return;
        }
        let missed = self.durable.tables.evictor_missed.swap(false, Ordering::AcqRel);
        if missed || self.recheck {
            self.read(Reading::missed(&self.durable.heap), ctx);
        }
        self.recheck = missed;
    }

    /// Evicts so that an open of this many contiguous bytes finds room, and those that wait behind
    /// it, too.
    fn make_room(&mut self, (bytes, all): (u64, u64), attempt: u32, ctx: &Context<'_, Self>) {
        let need = self.durable.heap.layout().placed_bytes(bytes);
        self.read_if_blind(ctx);
        if attempt >= WINDOW_FROM_ATTEMPT
            && let Some(owner) = self.durable.owner.get()
            && let Err(error) = owner.try_send(EvictWindow(need))
        {
            tracing::warn!(%error, "the owner's mailbox did not take a window eviction");
        }
        if attempt > WINDOW_FROM_ATTEMPT
            && self.reading.is_none()
            && self.used().saturating_add(need) <= self.capacity
        {
            self.marks.is_in_pieces();
        }
        let bytes = self.marks.target_for(need, all).saturating_sub(self.taken());
        let target = Target { bytes, spare: 0, spill: true, only_first: false };
        self.evict_when_read(target, Reply::nobody());
    }

    /// Evicts until used bytes are at most this.
    fn shrink(&mut self, bytes: u64, reply: Reply<Victims>, ctx: &Context<'_, Self>) {
        self.read_if_blind(ctx);
        let bytes = bytes.saturating_sub(self.open_bytes());
        let target = Target { bytes, spare: 0, spill: false, only_first: false };
        self.evict_when_read(target, reply);
    }

    /// Evicts now, or once the list is complete.
    fn evict_when_read(&mut self, target: Target, reply: Reply<Victims>) {
        let cold = self.reading.as_ref().is_some_and(Reading::is_cold);
        if cold && self.waiting.len() < MAX_WAITING {
            self.waiting.push((target, reply));
        } else {
            reply.send(self.evict_down_to(target));
        }
    }

    /// Has objects removed whose time after their first read is over.
    fn expire_read(&mut self) {
        let due = self.policy.take_due(self.durable.clock.now_ms(), EXPIRED_PER_TICK);
        if let Some(owner) = self.durable.owner.get().filter(|_| !due.is_empty())
            && let Err(error) = owner.try_send(ReadAndExpired(due))
        {
            tracing::debug!(%error, "the owner is busy: asked again later");
        }
    }

    fn open_bytes(&self) -> u64 {
        self.durable.tables.gauges.open_bytes.load(Ordering::Relaxed)
    }

    /// Bytes that no eviction makes room of: being written, or held by views. Of the latter no more
    /// than a heap ever keeps free: whatever holds memory, it must not empty the heap.
    fn taken(&self) -> u64 {
        let pinned = self.durable.tables.pinned_bytes.load(Ordering::Relaxed);
        self.open_bytes() + pinned.min(self.marks.most_room())
    }

    /// Bytes that no object can be placed on.
    fn used(&self) -> u64 {
        let held = self.durable.tables.gauges.held_bytes.load(Ordering::Relaxed);
        self.policy.bytes() + self.open_bytes() + held
    }

    /// Evicts if a watermark is exceeded. `new` bytes are of objects that are admitted next, and
    /// `spare` objects stay in any case.
    fn check_watermark(&mut self, new: u64, spare: usize) {
        let taken = self.taken().saturating_add(new);
        if let Some(bytes) = self.marks.target_of_first(self.used().saturating_add(new)) {
            let bytes = bytes.saturating_sub(taken);
            self.evict_down_to(Target { bytes, spare: 0, spill: true, only_first: true });
        }
        if self.marks.exceeded_by(self.used().saturating_add(new)) {
            let bytes = self.marks.target().saturating_sub(taken);
            self.evict_down_to(Target { bytes, spare, spill: true, only_first: false });
        }
    }

    /// Objects were committed. A new one that goes before all others goes at the next of these at
    /// the earliest.
    fn admit(&mut self, objects: Vec<Candidate>) {
        let now_ms = self.durable.clock.now_ms();
        objects.iter().for_each(|object| self.marks.admitted(object.bytes));
        let (first, others): (Vec<_>, Vec<_>) =
            objects.into_iter().partition(|object| object.retention.goes_first());
        // The newest stays: otherwise an object as large as the heap would be evicted at once.
        let spare = usize::from(!others.is_empty());
        others.into_iter().for_each(|object| self.policy.admit(object, now_ms));
        self.check_watermark(first.iter().map(|object| object.bytes).sum(), spare);
        first.into_iter().for_each(|object| self.policy.admit(object, now_ms));
    }
}

impl On<EvictorTick> for Evictor {
    fn on(&mut self, _: EvictorTick, reply: Reply<()>, ctx: &mut Context<'_, Self>) {
        ctx.after(RECHECK_INTERVAL, EvictorTick);
        self.catch_up(ctx);
        self.expire_read();
        reply.send(());
    }
}

impl On<HeapEvent> for Evictor {
    fn on(&mut self, event: HeapEvent, reply: Reply<()>, ctx: &mut Context<'_, Self>) {
        match event {
            HeapEvent::BecameLive(objects) => self.admit(objects),
            // The reader ordered them tail to head already.
            HeapEvent::WereRead(objects) => {
                let now_ms = self.durable.clock.now_ms();
                for (slot, epoch) in objects {
                    self.policy.touch(slot, epoch, now_ms);
                }
            }
            HeapEvent::GoFirst(objects) => {
                objects.iter().for_each(|object| self.policy.go_first(object));
            }
            HeapEvent::Ended(objects) => {
                objects.into_iter().for_each(|(slot, epoch)| self.policy.forget(slot, epoch));
                // The pieces read before may still contain it.
                self.recheck |= self.reading.as_ref().is_some_and(Reading::is_cold);
            }
            HeapEvent::RoomWanted { bytes, all, attempt } => {
                self.make_room((bytes, all), attempt, ctx);
            }
            HeapEvent::Shrink(bytes) => self.shrink(bytes, Reply::nobody(), ctx),
        }
        reply.send(());
    }
}

impl On<EvictTo> for Evictor {
    fn on(&mut self, m: EvictTo, reply: Reply<Victims>, ctx: &mut Context<'_, Self>) {
        self.shrink(m.0, reply, ctx);
    }
}

#[cfg(test)]
mod tests;
