//! Rebuilds the owner's table after its actor restarted, from the two control words and the
//! headers, which survive the actor. Abandoned and void claims were recorded only in the table:
//! they are holes again until another hole check ends.

use super::accept::Pass;
use super::left_behind::Left;
use super::{DeviceLog, Directory, HEAP_LIMIT_OFF, LogLayout, LogRules, Moves};
use crate::error::StoreError;
use crate::layout::epoch_of;
use crate::memory::Memory;
use std::sync::Arc;

impl DeviceLog {
    /// Reads the words and every header between tail and limit. What was LIVE is live and inserted
    /// into `directory` again. What the owner had retired is held for Q from `now_ns` on (call
    /// [`DeviceLog::restart_quarantines`] afterwards). What producers settled meanwhile is left to
    /// the next [`DeviceLog::accept`]: of two objects of one key, the one that was served before
    /// wins [I15]. `BadSegment` if the limit is not one that an owner wrote.
    pub fn rebuild<D: Directory + ?Sized>(
        memory: Arc<dyn Memory>,
        layout: LogLayout,
        (rules, moves): (LogRules, Arc<Moves>),
        now_ns: u64,
        directory: &mut D,
    ) -> Result<DeviceLog, StoreError> {
        let limit = memory.load(HEAP_LIMIT_OFF)?;
        let tail = limit.checked_sub(layout.log_bytes());
        let fits = limit.is_multiple_of(layout.unit()) && limit <= layout.end();
        let Some(tail) = tail.filter(|_| fits) else {
            return Err(StoreError::BadSegment(format!(
                "the limit of its log is {limit} for {} bytes in units of {}: only a fresh segment \
                 helps",
                layout.log_bytes(),
                layout.unit()
            )));
        };
        let mut log = DeviceLog::of((memory, layout), rules, moves, tail);
        log.pass(Pass::Rebuild, now_ns, directory)?;
        // Owner words read before this are visible to every access after it, so Q may begin [I8].
        log.memory.flush();
        Ok(log)
    }

    /// After a rebuild: of what is held (slot, epoch), finds the extents that the tail had passed
    /// before the actor restarted. The claims over them are holes, which become void as others do.
    pub fn find_left_behind(
        &mut self,
        held: impl IntoIterator<Item = (u32, u32)>,
    ) -> Result<(), StoreError> {
        for (slot, epoch) in held {
            let Some(x) = self.layout.position(slot, epoch).filter(|x| *x < self.tail) else {
                continue;
            };
            let header = self.header(x)?;
            let bytes = self.layout.claim_bytes(header.bytes_total);
            if let Some(bytes) = bytes.filter(|_| epoch_of(header.publish) == epoch) {
                let laps = (self.tail - x).div_ceil(self.layout.log_bytes());
                let at = x + laps * self.layout.log_bytes();
                self.left.insert(at, Left { bytes, slot, epoch });
            }
        }
        Ok(())
    }
}
