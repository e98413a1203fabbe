//! What the master says to owners: a bounded queue for each link, who is behind with his, and which
//! plans an owner has recorded. It does not decide what is said.

use super::{Member, Members};
use crate::message::{MasterToOwner, PlanId, RankState, SegmentId};
use std::sync::atomic::Ordering;
use tokio::sync::mpsc;

/// Frames waiting for one owner; past it the link is cut and its next report says everything.
pub const DOWNLINK_FRAMES: usize = 65_536;
/// Words in a link's queue from which on nothing new is placed there: its owner comes first.
const BACKLOG_FRAMES: usize = 4_096;

impl Members {
    /// Whether an owner has so many words still to take that it should get no new plans.
    pub(in crate::master) fn is_backlogged(&self, segment_id: SegmentId) -> bool {
        let inner = self.lock();
        let queued = |tx: &mpsc::Sender<MasterToOwner>| tx.max_capacity() - tx.capacity();
        inner
            .ranks
            .get(&segment_id)
            .and_then(|m| m.tx.as_ref())
            .is_some_and(|tx| queued(tx) >= BACKLOG_FRAMES)
    }

    /// Sends to an owner; a choked link is cut, its next report repairs what was lost.
    pub(in crate::master) fn send(&self, segment_id: SegmentId, down: MasterToOwner) {
        let inner = &mut *self.lock();
        let Some(m) = inner.ranks.get_mut(&segment_id) else { return };
        let waited_for = match &down {
            // By its commit, which asks whether the owner has recorded it; in this process by a
            // producer's first byte over tcp: the agent knows the plan from the owner.
            MasterToOwner::PlanOpened(p) => {
                let maps = inner.producers.get(&p.producer).is_some_and(|p| p.rings > 0);
                !(m.own && m.same_host && maps)
            }
            MasterToOwner::Committed(_) | MasterToOwner::FreedAck(_) | MasterToOwner::Heartbeat => {
                false
            }
            _ => true,
        };
        if waited_for {
            m.urgent.notify_one();
        }
        if !m.send(down) {
            inner.number += 1;
        }
    }

    /// The owner has recorded every plan told over its present link, up to this one.
    pub(in crate::master) fn has_recorded(&self, segment_id: SegmentId, up_to: PlanId) {
        if let Some(m) = self.lock().ranks.get_mut(&segment_id) {
            // It cannot have recorded more than it was told.
            m.recorded = m.recorded.max(m.last_sent.min(Some(up_to)));
        }
    }

    /// Whether a plan told over the present link is where it survives this process, or need not.
    pub(in crate::master) fn is_recorded(&self, segment_id: SegmentId, plan: PlanId) -> bool {
        let recorded = |m: &Member| m.own || m.recorded >= Some(plan);
        self.lock().ranks.get(&segment_id).is_some_and(recorded)
    }

    /// What was kept back for a moment is said now.
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
            tracing::warn!(segment_id = %self.info.id(), "its link is choked or down");
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
