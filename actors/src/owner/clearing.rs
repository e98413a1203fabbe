//! A segment that is being unmounted: its objects are retired before its owner leaves, so that a
//! process which still maps the memory finds no object there. It might find an old value whose key
//! was written again elsewhere [I6].

use super::object_life::ObjectEnd;
use super::{Owner, RetireAll};
use crate::actor::{Context, On, Reply};
use nkv_store::object::SlotKind;

/// Objects that are retired before the next frame to the master.
const OBJECTS_PER_FRAME: usize = 4096;

impl On<RetireAll> for Owner {
    fn on(&mut self, _: RetireAll, reply: Reply<u64>, ctx: &mut Context<'_, Self>) {
        let mut retired = 0;
        let live = self.slots.report().filter(|r| matches!(r.kind, SlotKind::Live { .. }));
        let mut live: Vec<_> = live.map(|r| (r.slot, r.epoch)).collect();
        live.extend(self.live_in_log());
        for part in live.chunks(OBJECTS_PER_FRAME) {
            retired += self.retire(part, ObjectEnd::Removed).0;
        }
        self.reschedule(ctx);
        reply.send(retired);
    }
}
