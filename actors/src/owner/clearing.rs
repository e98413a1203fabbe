//! A segment that is being unmounted: its objects cease to be readable before its owner leaves, so
//! that whoever still maps the memory finds nothing, not a value that was written anew elsewhere [I6].

use super::{Owner, RetireAll};
use crate::cell::{On, Reply, Turn};
use nkv_store::object::SlotKind;
use std::sync::atomic::Ordering;

/// Objects that lose LIVE between two frames to the master.
const OBJECTS_PER_FRAME: usize = 4096;

impl On<RetireAll> for Owner {
    fn on(&mut self, _: RetireAll, reply: Reply<u64>, turn: &mut Turn<'_, Self>) {
        let retired = &self.truth.tables.clone().gauges.retired;
        let before = retired.load(Ordering::Relaxed);
        let live = self.slots.report().filter(|r| matches!(r.kind, SlotKind::Live { .. }));
        let mut live: Vec<_> = live.map(|r| (r.slot, r.epoch)).collect();
        live.extend(self.live_in_log());
        for part in live.chunks(OBJECTS_PER_FRAME) {
            self.retire(part);
        }
        self.settle(turn);
        reply.send(retired.load(Ordering::Relaxed) - before);
    }
}
