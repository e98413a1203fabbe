//! The owner's report of its slots: sent after every join, and when a rebuilt master asks.

use super::Owner;
use crate::message::{KeyBytes, LogObjectEntry, OwnerToMaster, SlotContent, SlotEntry};
use hashbrown::HashMap;
use nkv_store::arena::Extent;
use nkv_store::object::{SlotKind, SlotReport};

/// Slots reported in one frame, each with its key; with keys of 1,024 bytes a frame stays far below
/// the frame limit.
const REPORTED_PER_FRAME: usize = 4096;

impl Owner {
    /// Sends every slot except those that are free at their first epoch, in bounded parts.
    pub(super) fn report(&mut self, number: u64) {
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
        let entries: Vec<SlotEntry> = {
            let t = self.durable.tables.lock();
            let by_slot: HashMap<_, _> =
                t.plans.values().map(|p| (p.opened.at, &p.opened)).collect();
            let open =
                |r: &SlotReport| by_slot.get(&self.at(r.slot, r.epoch)).map(|p| (*p).clone());
            let key = |r: &SlotReport| match t.keys.get(&r.slot) {
                Some((epoch, key)) if *epoch == r.epoch => key.clone(),
                _ => KeyBytes::default(),
            };
            self.slots.report().map(|r| entry(&r, &open, &key)).collect()
        };
        let entries: Vec<_> = entries.into_iter().chain(self.log_entries()).collect();
        let mut parts = entries.chunks(REPORTED_PER_FRAME).peekable();
        if parts.peek().is_none() {
            return self.send_to_master(OwnerToMaster::Report {
                number,
                slots: Vec::new(),
                last: true,
            });
        }
        while let Some(part) = parts.next() {
            let last = parts.peek().is_none();
            self.send_to_master(OwnerToMaster::Report { number, slots: part.to_vec(), last });
        }
    }
}

impl Owner {
    /// Live logged objects whose key string is known. The master finds the others by asking, and
    /// gets them as `Announced` once their key string is known.
    fn log_entries(&mut self) -> Vec<SlotEntry> {
        self.process_log();
        let named = self.named_in_log().into_iter();
        let entry = |o: LogObjectEntry| SlotEntry {
            slot: o.slot,
            epoch: o.epoch,
            what: SlotContent::Logged(Box::new(o)),
        };
        named.map(entry).collect()
    }
}

fn entry(
    r: &SlotReport,
    open: &dyn Fn(&SlotReport) -> Option<crate::message::PlanOpened>,
    key: &dyn Fn(&SlotReport) -> KeyBytes,
) -> SlotEntry {
    let extent = r.extent.unwrap_or(Extent { offset: 0, len: 0 });
    let held = SlotContent::Held(extent);
    let what = match &r.kind {
        SlotKind::Free => SlotContent::Free,
        SlotKind::Held => held,
        SlotKind::Open => open(r).map_or(held, |p| SlotContent::Open(Box::new(p))),
        SlotKind::Live { object, .. } => SlotContent::Live { key: key(r), object: *object },
    };
    SlotEntry { slot: r.slot, epoch: r.epoch, what }
}
