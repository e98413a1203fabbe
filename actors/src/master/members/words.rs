//! What the master says to owners: a bounded queue for each link, who is behind with his, and which
//! plans an owner has recorded. It does not decide what is said.

use super::{Member, Members};
use crate::message::{Down, PlanId, RankState, Seat};
use std::sync::atomic::Ordering;
use tokio::sync::mpsc;

/// Frames waiting for one owner; past it the link is cut and its next report says everything.
pub const DOWNLINK_FRAMES: usize = 65_536;
/// Words in a link's queue from which on nothing new is placed there: its owner comes first.
const BEHIND_FRAMES: usize = 4_096;

impl Members {
    /// Whether an owner has so many words still to take that it should get no new plans.
    pub(in crate::master) fn is_behind(&self, seat: Seat) -> bool {
        let inner = self.lock();
        let queued = |tx: &mpsc::Sender<Down>| tx.max_capacity() - tx.capacity();
        inner
            .ranks
            .get(&seat)
            .and_then(|m| m.tx.as_ref())
            .is_some_and(|tx| queued(tx) >= BEHIND_FRAMES)
    }

    /// Sends to an owner; a choked link is cut, its next report repairs what was lost.
    pub(in crate::master) fn send(&self, seat: Seat, down: Down) {
        let inner = &mut *self.lock();
        let Some(m) = inner.ranks.get_mut(&seat) else { return };
        let waited_for = match &down {
            // By its commit, which asks whether the owner has recorded it; in this process by a producer's
            // first byte over tcp: the agent knows the plan from the owner.
            Down::PlanOpened(p) => {
                let maps = inner.producers.get(&p.producer).is_some_and(|p| p.rings > 0);
                !(m.own && m.near && maps)
            }
            Down::Committed(_) | Down::FreedAck(_) | Down::Beat => false,
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
    pub(in crate::master) fn has_recorded(&self, seat: Seat, up_to: PlanId) {
        if let Some(m) = self.lock().ranks.get_mut(&seat) {
            // It cannot have recorded more than it was told.
            m.recorded = m.recorded.max(m.told.min(Some(up_to)));
        }
    }

    /// Whether a plan told over the present link is where it survives this process, or need not.
    pub(in crate::master) fn is_recorded(&self, seat: Seat, plan: PlanId) -> bool {
        let recorded = |m: &Member| m.own || m.recorded >= Some(plan);
        self.lock().ranks.get(&seat).is_some_and(recorded)
    }

    /// What was kept back for a moment is said now.
    pub(crate) fn hurry_all(&self) {
        let inner = self.lock();
        let unsaid = |m: &&Member| m.written.load(Ordering::Acquire) < m.sent;
        inner.ranks.values().filter(unsaid).for_each(|m| m.urgent.notify_one());
    }
}

impl Member {
    pub(super) fn send(&mut self, down: Down) -> bool {
        let Some(tx) = &self.tx else { return true };
        self.sent += 1;
        if let Down::PlanOpened(p) = &down {
            self.told = self.told.max(Some(p.plan));
        }
        if tx.try_send(down).is_err() {
            tracing::warn!(seat = %self.info.seat(), "its link is choked or down");
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
