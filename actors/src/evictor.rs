//! Evictor: picks victims when a heap is above its high watermark or an open waits for room. It
//! only names them; the Owner retires them. Its list is read from the headers when it starts, and
//! is compared with them when the Owner could not tell it something: a piece at a time.

mod reading;

use crate::actor::{ActorAddr, Context, Message, On, Reply, Role};
use crate::owner::tables::OwnerTables;
use crate::owner::{Evict, EvictWindow, Owner};
use nkv_store::arena::Arena;
use nkv_store::evict::{Policy, PolicyKind, Watermarks};
use nkv_store::heap::Heap;
use reading::Reading;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Victims in one message to the owner.
const VICTIMS_PER_BATCH: usize = 4096;
/// From this attempt on, recency does not help: take the cheapest contiguous window.
const WINDOW_FROM_ATTEMPT: u32 = 1;
/// Calls that wait until the list is read, at most; the others are served from what is there.
const MAX_WAITING: usize = 64;
/// Between looks at whether the owner could not tell something.
const RECHECK_INTERVAL: Duration = Duration::from_millis(500);

/// What outlives the Evictor actor.
#[derive(Clone)]
pub struct EvictorDurable {
    /// The segment, to rebuild from.
    pub heap: Heap,
    /// Which policy.
    pub policy: PolicyKind,
    /// When to start and stop.
    pub watermarks: Watermarks,
    /// The owner's figures.
    pub tables: Arc<OwnerTables>,
    /// Who retires.
    pub owner: Arc<OnceLock<ActorAddr<Owner>>>,
}

/// See the file's first paragraph.
pub struct Evictor {
    durable: EvictorDurable,
    policy: Box<dyn Policy>,
    capacity: u64,
    // The headers were read, or are: what was said before that, and heard after, is stale.
    recheck: bool,
    // The headers are being read.
    reading: Option<Reading>,
    // Until the list is whole: to how many bytes to evict, and who wants to know what went.
    waiting: Vec<(u64, Reply<Victims>)>,
}

/// A timer.
struct EvictorTick;
/// Objects that became live: (slot, epoch, bytes of the extent), oldest first.
#[derive(Debug)]
pub struct Admit(pub Vec<(u32, u32, u64)>);
/// Objects that were read, in the order in which to touch.
#[derive(Debug)]
pub struct Touched(pub Vec<(u32, u32)>);
/// Objects that are no longer live.
#[derive(Debug)]
pub struct Forget(pub Vec<(u32, u32)>);
/// An open waits for so many contiguous bytes.
#[derive(Debug)]
pub struct MakeRoom {
    /// Bytes wanted.
    pub bytes: u64,
    /// Times it was asked in vain.
    pub attempt: u32,
}
/// Evict until used bytes are at most this; answers what goes.
#[derive(Debug)]
pub struct EvictTo(pub u64);

/// Victims that the owner was told of.
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
impl Message for Admit {
    type Reply = ();
}
impl Message for Touched {
    type Reply = ();
}
impl Message for Forget {
    type Reply = ();
}
impl Message for MakeRoom {
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
        let geometry = durable.heap.geometry();
        let mut evictor = Self {
            durable: durable.clone(),
            policy: durable.policy.build(geometry.slots),
            capacity: geometry.arena.len,
            recheck: false,
            reading: None,
            waiting: Vec::new(),
        };
        evictor.read(Reading::cold(&durable.heap), ctx);
        evictor
    }
}

impl Evictor {
    /// Decides: pops victims until the policy's bytes are at most `target`, sparing the last
    /// `spare`.
    fn victims_down_to(&mut self, target: u64, spare: usize) -> Vec<(u32, u32, u64)> {
        let mut victims = Vec::new();
        while self.policy.bytes() > target && self.policy.len() > spare {
            let Some(victim) = self.policy.victim() else { break };
            victims.push(victim);
        }
        victims
    }

    /// Applies: hands the victims to the owner.
    fn evict_down_to(&mut self, target: u64, spare: usize) -> Victims {
        let (victims, mut sent) = (self.victims_down_to(target, spare), Victims::default());
        let Some(owner) = self.durable.owner.get() else {
            return sent;
        };
        let mut batches = victims.chunks(VICTIMS_PER_BATCH);
        for batch in batches.by_ref() {
            let names = batch.iter().map(|(slot, epoch, _)| (*slot, *epoch)).collect();
            if let Err(error) = owner.try_send(Evict(names)) {
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

    /// Victims that the owner did not hear of go on as the newest; better than never again.
    fn take_back(&mut self, victims: &[(u32, u32, u64)]) {
        for (slot, epoch, bytes) in victims {
            self.policy.admit(*slot, *epoch, *bytes);
        }
    }

    /// Reads the list from the headers again when it lost sight of objects (a batch missed).
    fn read_if_blind(&mut self, ctx: &Context<'_, Self>) {
        let objects = self.durable.tables.gauges.objects.load(Ordering::Relaxed);
        if self.policy.is_empty() && objects > 0 && self.reading.is_none() {
            self.read(Reading::cold(&self.durable.heap), ctx);
        }
    }

    /// Compares the list with the headers if the owner could not tell something, and once more at
    /// the look after that: by then every word is heard that was on its way when the headers were
    /// read.
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

    /// Evicts now, or once the list is whole.
    fn evict_when_read(&mut self, target: u64, reply: Reply<Victims>) {
        let cold = self.reading.as_ref().is_some_and(Reading::is_cold);
        if cold && self.waiting.len() < MAX_WAITING {
            self.waiting.push((target, reply));
        } else {
            reply.send(self.evict_down_to(target, 0));
        }
    }

    fn open_bytes(&self) -> u64 {
        self.durable.tables.gauges.open_bytes.load(Ordering::Relaxed)
    }

    fn check_watermark(&mut self) {
        let open = self.open_bytes();
        let held = self.durable.tables.gauges.held_bytes.load(Ordering::Relaxed);
        let marks = self.durable.watermarks;
        if marks.above_hi(self.policy.bytes() + open + held, self.capacity) {
            // The newest stays: an object as large as the heap must be stored, not just accepted.
            self.evict_down_to(marks.target_bytes(self.capacity).saturating_sub(open), 1);
        }
    }
}

impl On<EvictorTick> for Evictor {
    fn on(&mut self, _: EvictorTick, reply: Reply<()>, ctx: &mut Context<'_, Self>) {
        ctx.after(RECHECK_INTERVAL, EvictorTick);
        self.catch_up(ctx);
        reply.send(());
    }
}

impl On<Admit> for Evictor {
    fn on(&mut self, m: Admit, reply: Reply<()>, _: &mut Context<'_, Self>) {
        for (slot, epoch, bytes) in m.0 {
            self.policy.admit(slot, epoch, bytes);
        }
        self.check_watermark();
        reply.send(());
    }
}

impl On<Touched> for Evictor {
    fn on(&mut self, m: Touched, reply: Reply<()>, _: &mut Context<'_, Self>) {
        // The reader already put them tail to head.
        for (slot, epoch) in m.0 {
            self.policy.touch(slot, epoch);
        }
        reply.send(());
    }
}

impl On<Forget> for Evictor {
    fn on(&mut self, m: Forget, reply: Reply<()>, _: &mut Context<'_, Self>) {
        for (slot, epoch) in m.0 {
            self.policy.forget(slot, epoch);
        }
        // It may stand in what was read of it before.
        self.recheck |= self.reading.as_ref().is_some_and(Reading::is_cold);
        reply.send(());
    }
}

impl On<MakeRoom> for Evictor {
    fn on(&mut self, m: MakeRoom, reply: Reply<()>, ctx: &mut Context<'_, Self>) {
        let need = Arena::rounded_within(m.bytes, self.capacity);
        self.read_if_blind(ctx);
        if m.attempt >= WINDOW_FROM_ATTEMPT
            && let Some(owner) = self.durable.owner.get()
            && let Err(error) = owner.try_send(EvictWindow(need))
        {
            tracing::warn!(%error, "the owner missed a window eviction");
        }
        let open = self.open_bytes();
        let room = self.capacity.saturating_sub(need).saturating_sub(open);
        let mark = self.durable.watermarks.target_bytes(self.capacity).saturating_sub(open);
        self.evict_when_read(room.min(mark), Reply::nobody());
        reply.send(());
    }
}

impl On<EvictTo> for Evictor {
    fn on(&mut self, m: EvictTo, reply: Reply<Victims>, ctx: &mut Context<'_, Self>) {
        self.read_if_blind(ctx);
        let open = self.open_bytes();
        self.evict_when_read(m.0.saturating_sub(open), reply);
    }
}

#[cfg(test)]
mod tests;
