//! Evictor: picks victims when a heap is above its high watermark or an open waits for room. It
//! only names them; the Owner retires them. Its list is read from the headers when it starts, and is
//! compared with them when the Owner could not tell it something: a piece at a time.

mod reading;

use crate::cell::{CellAddr, Message, On, Reply, Role, Turn};
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
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// What outlives the Evictor actor.
#[derive(Clone)]
pub struct EvictorTruth {
    /// The segment, to rebuild from.
    pub heap: Heap,
    /// Which policy.
    pub policy: PolicyKind,
    /// When to start and stop.
    pub watermarks: Watermarks,
    /// The owner's figures.
    pub tables: Arc<OwnerTables>,
    /// Who retires.
    pub owner: Arc<OnceLock<CellAddr<Owner>>>,
}

/// See the file's first paragraph.
pub struct Evictor {
    truth: EvictorTruth,
    policy: Box<dyn Policy>,
    capacity: u64,
    // The headers were read, or are: what was said before that, and heard after, is stale.
    look_again: bool,
    // The headers are being read.
    reading: Option<Reading>,
    // Until the list is whole: to how many bytes to evict, and who wants to know what went.
    waiting: Vec<(u64, Reply<Victims>)>,
}

/// A timer.
struct LookAgain;
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

impl Message for LookAgain {
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
    type Truth = EvictorTruth;
    const NAME: &'static str = "evictor";

    fn boot(truth: &EvictorTruth, turn: &mut Turn<'_, Self>) -> Self {
        turn.after(LOOK_AGAIN, LookAgain);
        let geometry = truth.heap.geometry();
        let mut evictor = Self {
            truth: truth.clone(),
            policy: truth.policy.build(geometry.slots),
            capacity: geometry.arena.len,
            look_again: false,
            reading: None,
            waiting: Vec::new(),
        };
        evictor.read(Reading::cold(&truth.heap), turn);
        evictor
    }
}

impl Evictor {
    /// Decides: pops victims until the policy's bytes are at most `target`, sparing the last `spare`.
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
        let (victims, mut told) = (self.victims_down_to(target, spare), Victims::default());
        let Some(owner) = self.truth.owner.get() else {
            return told;
        };
        let mut batches = victims.chunks(VICTIMS_PER_BATCH);
        for batch in batches.by_ref() {
            let names = batch.iter().map(|(slot, epoch, _)| (*slot, *epoch)).collect();
            if let Err(error) = owner.tell(Evict(names)) {
                tracing::warn!(%error, victims = batch.len(), "the owner is busy: victims kept");
                self.take_back(batch);
                break;
            }
            told.objects += batch.len() as u64;
            told.bytes += batch.iter().map(|(_, _, bytes)| bytes).sum::<u64>();
        }
        batches.for_each(|batch| self.take_back(batch));
        told
    }

    /// Victims that the owner did not hear of go on as the newest; better than never again.
    fn take_back(&mut self, victims: &[(u32, u32, u64)]) {
        for (slot, epoch, bytes) in victims {
            self.policy.admit(*slot, *epoch, *bytes);
        }
    }

    /// Reads the list from the headers again when it lost sight of objects (a batch missed).
    fn read_if_blind(&mut self, turn: &Turn<'_, Self>) {
        let objects = self.truth.tables.gauges.objects.load(Ordering::Relaxed);
        if self.policy.is_empty() && objects > 0 && self.reading.is_none() {
            self.read(Reading::cold(&self.truth.heap), turn);
        }
    }

    /// Compares the list with the headers if the owner could not tell something, and once more at the
    /// look after that: by then every word is heard that was on its way when the headers were read.
    fn catch_up(&mut self, turn: &Turn<'_, Self>) {
        if self.reading.is_some() {
            return;
        }
        let missed = self.truth.tables.evictor_missed.swap(false, Ordering::AcqRel);
        if missed || self.look_again {
            self.read(Reading::missed(&self.truth.heap), turn);
        }
        self.look_again = missed;
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
        self.truth.tables.gauges.open_bytes.load(Ordering::Relaxed)
    }

    fn check_watermark(&mut self) {
        let open = self.open_bytes();
        let held = self.truth.tables.gauges.held_bytes.load(Ordering::Relaxed);
        let marks = self.truth.watermarks;
        if marks.above_hi(self.policy.bytes() + open + held, self.capacity) {
            // The newest stays: an object as large as the heap must be stored, not just accepted.
            self.evict_down_to(marks.target_bytes(self.capacity).saturating_sub(open), 1);
        }
    }
}

impl On<LookAgain> for Evictor {
    fn on(&mut self, _: LookAgain, reply: Reply<()>, turn: &mut Turn<'_, Self>) {
        turn.after(LOOK_AGAIN, LookAgain);
        self.catch_up(turn);
        reply.send(());
    }
}

impl On<Admit> for Evictor {
    fn on(&mut self, m: Admit, reply: Reply<()>, _: &mut Turn<'_, Self>) {
        for (slot, epoch, bytes) in m.0 {
            self.policy.admit(slot, epoch, bytes);
        }
        self.check_watermark();
        reply.send(());
    }
}

impl On<Touched> for Evictor {
    fn on(&mut self, m: Touched, reply: Reply<()>, _: &mut Turn<'_, Self>) {
        // The reader already put them tail to head.
        for (slot, epoch) in m.0 {
            self.policy.touch(slot, epoch);
        }
        reply.send(());
    }
}

impl On<Forget> for Evictor {
    fn on(&mut self, m: Forget, reply: Reply<()>, _: &mut Turn<'_, Self>) {
        for (slot, epoch) in m.0 {
            self.policy.forget(slot, epoch);
        }
        // It may stand in what was read of it before.
        self.look_again |= self.reading.as_ref().is_some_and(Reading::is_cold);
        reply.send(());
    }
}

impl On<MakeRoom> for Evictor {
    fn on(&mut self, m: MakeRoom, reply: Reply<()>, turn: &mut Turn<'_, Self>) {
        let need = Arena::rounded_within(m.bytes, self.capacity);
        self.read_if_blind(turn);
        if m.attempt >= WINDOW_FROM_ATTEMPT
            && let Some(owner) = self.truth.owner.get()
            && let Err(error) = owner.tell(EvictWindow(need))
        {
            tracing::warn!(%error, "the owner missed a window eviction");
        }
        let open = self.open_bytes();
        let room = self.capacity.saturating_sub(need).saturating_sub(open);
        let mark = self.truth.watermarks.target_bytes(self.capacity).saturating_sub(open);
        self.evict_when_read(room.min(mark), Reply::nobody());
        reply.send(());
    }
}

impl On<EvictTo> for Evictor {
    fn on(&mut self, m: EvictTo, reply: Reply<Victims>, turn: &mut Turn<'_, Self>) {
        self.read_if_blind(turn);
        let open = self.open_bytes();
        self.evict_when_read(m.0.saturating_sub(open), reply);
    }
}

#[cfg(test)]
mod tests;
