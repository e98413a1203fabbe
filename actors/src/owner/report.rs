//! The owner's report of its slots: sent after every join, and when a rebuilt master asks.

use super::Owner;
use crate::message::{KeyBytes, OwnerToMaster, SlotContent, SlotEntry};
use hashbrown::HashMap;
use nkv_store::arena::Extent;
use nkv_store::object::{SlotKind, SlotReport};

/// Slots reported in one frame, each with its key; with keys of 1,024 bytes a frame stays far below
/// the frame limit.
const REPORTED_PER_FRAME: usize = 4096;

impl Owner {
    /// Sends every slot except those that are free at their first epoch, in bounded parts.
    pub(super) fn report(&mut self, number: u64) {
        // First: it may end objects of the heap for their copies in the log.
        self.process_log();
        // A plan that the link recorded is open, also if its message is not handled yet.
        let recorded: Vec<_> = {
            let t = self.durable.tables.lock();
            let open = t.plans.values().filter(|p| p.ending.is_none());
            open.map(|p| (p.opened.at, p.opened.object.extent)).collect()
        };
        for (at, extent) in recorded {
            if let Err(error) = self.slots.open(at.slot, at.epoch, extent) {
                tracing::debug!(%error, "the slot of a recorded plan has moved on");
            }
        }
        let mut entries: Vec<SlotEntry> = {
            let t = self.durable.tables.lock();
            let by_slot: HashMap<_, _> =
                t.plans.values().map(|p| (p.opened.at, &p.opened)).collect();
            let content = |r: &SlotReport| {
                let held = SlotContent::Held(r.extent.unwrap_or(Extent { offset: 0, len: 0 }));
                match r.kind {
                    SlotKind::Free => SlotContent::Free,
                    SlotKind::Held => held,
                    SlotKind::Open => by_slot
                        .get(&self.at(r.slot, r.epoch))
                        .map_or(held, |p| SlotContent::Open(Box::new((*p).clone()))),
                    SlotKind::Live { object, retention, .. } => {
                        let key = t.key(r.slot, r.epoch).cloned();
                        let key = key.map_or_else(KeyBytes::default, KeyBytes::shared);
                        let set = t.set(r.slot, r.epoch);
                        SlotContent::Live { key, object, set, retention }
                    }
                }
            };
            let entry =
                |r: SlotReport| SlotEntry { slot: r.slot, epoch: r.epoch, what: content(&r) };
            self.slots.report().map(entry).collect()
        };
        // Live logged objects whose key string is known. The master finds the others by asking, and
        // gets them as `Announced` once their key string is known.
        entries.extend(self.named_in_log().into_iter().map(|o| SlotEntry {
            slot: o.slot,
            epoch: o.epoch,
            what: SlotContent::Logged(Box::new(o)),
        }));
        let mut entries = entries.into_iter().peekable();
        let mut last = false;
        while !last {
            let slots = entries.by_ref().take(REPORTED_PER_FRAME).collect();
            last = entries.peek().is_none();
            self.send_to_master(OwnerToMaster::Report { number, slots, last });
        }
    }
}
