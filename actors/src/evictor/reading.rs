//! Reads the headers a piece at a time. Owner and Evictor share a thread, and a segment may have
//! tens of millions of slots: between two pieces the messages of both are handled, commits among
//! them. These messages take precedence over what was read before.

use super::Evictor;
use crate::actor::{Context, Message, On, Reply};
use nkv_store::Retention;
use nkv_store::evict::Candidate;
use nkv_store::heap::Heap;
use nkv_store::object::{LiveSlot, live_slot};
use std::collections::BinaryHeap;

/// Slots that are read, or objects that are listed, in one piece: some 20 microseconds. Some 30
/// pieces run before the thread polls its sockets again.
pub(super) const SLOTS_PER_PIECE: usize = 256;

/// The progress of a reading.
pub(super) enum Reading {
    /// The list exists, and may lack objects or contain objects that are gone.
    Missed { next: u32 },
    /// There is no list: collects the live objects, each piece in the order of last access.
    Cold { next: u32, pieces: Vec<Vec<LiveSlot>> },
    /// All pieces are read: merges them, latest access first.
    Merging { pieces: Vec<Vec<LiveSlot>>, latest: BinaryHeap<(u64, usize)> },
}

/// Sent to itself: read the next piece.
pub(super) struct ReadOn;

impl Message for ReadOn {
    type Reply = ();
}

impl Reading {
    /// Compares an existing list with the headers.
    pub(super) fn missed(heap: &Heap) -> Self {
        Self::Missed { next: heap.layout().managed_slots().start }
    }

    /// Builds the list from nothing.
    pub(super) fn cold(heap: &Heap) -> Self {
        Self::Cold { next: heap.layout().managed_slots().start, pieces: Vec::new() }
    }

    /// True while the list is being built from nothing.
    pub(super) fn is_cold(&self) -> bool {
        !matches!(self, Self::Missed { .. })
    }
}

/// The slots of the piece that begins at `next`.
fn piece(heap: &Heap, next: u32) -> std::ops::Range<u32> {
    let end = heap.layout().managed_slots().end;
    next..next.saturating_add(SLOTS_PER_PIECE as u32).min(end)
}

impl Evictor {
    pub(super) fn read(&mut self, reading: Reading, ctx: &Context<'_, Self>) {
        self.reading = Some(reading);
        ctx.work(async { ReadOn });
    }

    /// The producer wrote the length, so it is capped at the capacity.
    fn candidate(&self, object: &LiveSlot) -> Candidate {
        let LiveSlot { slot, epoch, bytes_total, retention, .. } = *object;
        let bytes = self.durable.heap.layout().placed_bytes(bytes_total.min(self.capacity));
        Candidate { slot, epoch, bytes, retention }
    }

    /// Reads one piece; returns the rest of the reading, if any.
    fn read_on(&mut self, reading: Reading) -> Option<Reading> {
        let heap = self.durable.heap.clone();
        let end = heap.layout().managed_slots().end;
        match reading {
            Reading::Missed { next } => {
                let slots = piece(&heap, next);
                let next = slots.end;
                slots.for_each(|slot| self.compare(&heap, slot));
                (next < end).then_some(Reading::Missed { next })
            }
            Reading::Cold { next, mut pieces } => {
                let slots = piece(&heap, next);
                let next = slots.end;
                let mut live: Vec<_> = slots.filter_map(|slot| live_slot(&heap, slot)).collect();
                live.sort_by_key(|object| object.last_access_ms);
                if !live.is_empty() {
                    pieces.push(live);
                }
                if next < end {
                    return Some(Reading::Cold { next, pieces });
                }
                let latest = |(n, piece): (usize, &Vec<LiveSlot>)| {
                    piece.last().map(|object| (object.last_access_ms, n))
                };
                let latest: BinaryHeap<_> = pieces.iter().enumerate().filter_map(latest).collect();
                (!latest.is_empty()).then_some(Reading::Merging { pieces, latest })
            }
            Reading::Merging { mut pieces, mut latest } => {
                for _ in 0..SLOTS_PER_PIECE {
                    let (_, n) = latest.pop()?;
                    let Some(object) = pieces[n].pop() else { continue };
                    // Objects admitted since the reading began are newer than all of these.
                    let candidate = self.candidate(&object);
                    self.policy.admit_oldest(candidate, object.last_access_ms);
                    if matches!(object.retention, Retention::UntilRead(_)) {
                        // It may have been read since its piece was.
                        let now = live_slot(&heap, object.slot);
                        now.into_iter().for_each(|now| self.note_read(&now));
                    }
                    latest.extend(pieces[n].last().map(|object| (object.last_access_ms, n)));
                }
                Some(Reading::Merging { pieces, latest })
            }
        }
    }

    /// Corrects the list where it differs from a slot's header.
    fn compare(&mut self, heap: &Heap, slot: u32) {
        let live = live_slot(heap, slot);
        let listed = self.policy.epoch_of(slot);
        if let Some(epoch) = listed.filter(|epoch| live.is_none_or(|l| l.epoch != *epoch)) {
            self.policy.forget(slot, epoch);
        }
        if let Some(object) = live.filter(|l| listed != Some(l.epoch)) {
            self.policy.admit(self.candidate(&object), self.durable.clock.now_ms());
        }
        live.into_iter().for_each(|object| self.note_read(&object));
    }

    /// An object until read may have been read, and the message about it lost.
    pub(super) fn note_read(&mut self, object: &LiveSlot) {
        if matches!(object.retention, Retention::UntilRead(_)) && object.last_access_ms > 0 {
            self.policy.was_read(object.slot, object.epoch, object.last_access_ms);
        }
    }
}

impl On<ReadOn> for Evictor {
    fn on(&mut self, _: ReadOn, reply: Reply<()>, ctx: &mut Context<'_, Self>) {
        reply.send(());
        let Some(reading) = self.reading.take() else { return };
        if let Some(rest) = self.read_on(reading) {
            return self.read(rest, ctx);
        }
        for (target, reply) in std::mem::take(&mut self.waiting) {
            reply.send(self.evict_down_to(target));
        }
        self.check_watermark(0, 1);
    }
}
