//! The master's queues to owners: one bounded queue per link, which of them are long, and which
//! plans an owner has recorded. What is sent is decided elsewhere.

use super::{Member, Members};
use crate::message::{MasterToOwner, PlanId, RankState, SegmentId};
use std::sync::atomic::Ordering;
use tokio::sync::mpsc;

/// Frames queued for one owner. When the queue is full the link is cut; the report after the next
/// join contains everything.
pub const DOWNLINK_FRAMES: usize = 65_536;
/// From this queue length on, nothing new is placed on the segment.
const BACKLOG_FRAMES: usize = 4_096;

impl Members {
    /// Whether the queue to an owner is so long that it should get no new plans.
    pub(in crate::master) fn is_backlogged(&self, segment_id: SegmentId) -> bool {
        let inner = self.lock();
        let queued = |tx: &mpsc::Sender<MasterToOwner>| tx.max_capacity() - tx.capacity();
        inner
            .ranks
            .get(&segment_id)
            .and_then(|m| m.tx.as_ref())
            .is_some_and(|tx| queued(tx) >= BACKLOG_FRAMES)
    }

    /// Queues a frame to an owner. If the queue is full the link is cut, and the next report
    /// repairs what was lost.
    pub(in crate::master) fn send(&self, segment_id: SegmentId, down: MasterToOwner) {
        let inner = &mut *self.lock();
        let Some(m) = inner.ranks.get_mut(&segment_id) else { return };
        let waited_for = match &down {
            // The plan's commit waits until the owner has recorded it. A segment in this process
            // needs no record, but its agent gets the plan from the owner, so a tcp producer's
            // first write waits.
            MasterToOwner::PlanOpened(p) => {
                let maps = inner.producers.get(&p.producer).is_some_and(|p| p.rings > 0);
                !(m.own && m.same_host && maps)
            }
            MasterToOwner::Committed(_)
            | MasterToOwner::FreedAck(_)
            | MasterToOwner::Groups(_)
            | MasterToOwner::Heartbeat { .. } => false,
            _ => true,
        };
        if waited_for {
            m.urgent.notify_one();
        }
        if !m.send(down) {
            inner.changed();
        }
    }

    /// The owner has recorded every plan up to this one that was sent over its current link.
    pub(in crate::master) fn has_recorded(&self, segment_id: SegmentId, up_to: PlanId) {
        if let Some(m) = self.lock().ranks.get_mut(&segment_id) {
            // It cannot have recorded a plan that it was not sent.
            m.recorded = m.recorded.max(m.last_sent.min(Some(up_to)));
        }
    }

    /// Whether the owner has recorded a plan, so that it survives this process; always true for a
    /// segment in this process, which ends with it.
    pub(in crate::master) fn is_recorded(&self, segment_id: SegmentId, plan: PlanId) -> bool {
        let recorded = |m: &Member| m.own || m.recorded >= Some(plan);
        self.lock().ranks.get(&segment_id).is_some_and(recorded)
    }

    /// Makes the links write frames that they hold back for batching.
    pub(crate) fn flush_all(&self) {
        let inner = self.lock();
        let unsaid = |m: &&Member| m.written.load(Ordering::Acquire) < m.sent;
        inner.ranks.values().filter(unsaid).for_each(|m| m.urgent.notify_one());
    }
}

impl Member {
    pub(super) fn send(&mut self, down: MasterToOwner) -> bool {
        let Some(tx) = &self.tx else { return true };
        self.sent += 1;
        if let MasterToOwner::PlanOpened(p) = &down {
            self.last_sent = self.last_sent.max(Some(p.plan));
        }
        if tx.try_send(down).is_err() {
            tracing::warn!(segment_id = %self.info.id(), "cut: its queue is full or closed");
            self.cut();
            return false;
        }
        true
    }

    pub(in crate::master) fn cut(&mut self) {
        self.state = RankState::Suspect;
        self.tx = None;
    }
}
