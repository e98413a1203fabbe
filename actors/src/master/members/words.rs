//! What the master says to owners: a bounded queue for each link, who is behind with his, and when
//! what was said has left this process. It does not decide what is said.

use super::{LinkId, Member, Members};
use crate::message::{Down, RankState, Seat};
use hashbrown::HashSet;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::mpsc;

/// Frames waiting for one owner; past it the link is cut and its next report says everything.
pub const DOWNLINK_FRAMES: usize = 65_536;
/// Words in a link's queue from which on nothing new is placed there: its owner comes first.
const BEHIND_FRAMES: usize = 4_096;
/// How often, and how, a commit's answer waits for words to owners: turns first, then pauses.
const LEFT_TRIES: u32 = 64;
const LEFT_TURNS: u32 = 32;
const LEFT_PAUSE: Duration = Duration::from_millis(1);

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
            // By a producer's first byte over tcp: the agent knows the plan from the owner.
            Down::PlanOpened(p) => {
                !m.near || inner.producers.get(&p.producer).is_none_or(|p| p.rings == 0)
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

    /// What has been said to the links of these incarnations so far.
    fn said(&self, owners: &HashSet<u64>) -> Vec<(Seat, LinkId, u64)> {
        let inner = self.lock();
        let theirs = |m: &Member| m.tx.is_some() && owners.contains(&m.info.incarnation);
        let linked = inner.ranks.iter().filter(|(_, m)| theirs(m));
        linked.map(|(seat, m)| (*seat, m.link, m.sent)).collect()
    }

    /// True if all of that left this process; of a link that ended since there is nothing to wait for.
    fn have_left(&self, said: &[(Seat, LinkId, u64)]) -> bool {
        let inner = self.lock();
        said.iter().all(|(seat, link, sent)| {
            inner.ranks.get(seat).is_none_or(|m| {
                m.link != *link || m.tx.is_none() || m.written.load(Ordering::Acquire) >= *sent
            })
        })
    }

    /// What was kept back for a moment is said now.
    pub(crate) fn hurry_all(&self) {
        let inner = self.lock();
        let unsaid = |m: &&Member| m.written.load(Ordering::Acquire) < m.sent;
        inner.ranks.values().filter(unsaid).for_each(|m| m.urgent.notify_one());
    }

    fn hurry(&self, owners: &HashSet<u64>) {
        let inner = self.lock();
        let theirs = inner.ranks.values().filter(|m| owners.contains(&m.info.incarnation));
        theirs.for_each(|m| m.urgent.notify_one());
    }

    /// Returns once what was said to these owners so far has left this process, or after a bounded
    /// wait. Before a commit is acknowledged: with the owner's word of a plan goes its key string.
    /// Of its owners only: a stopped rank elsewhere, whose link is full, holds nobody up.
    pub(crate) async fn words_left(&self, owners: &HashSet<u64>) {
        let said = self.said(owners);
        if self.have_left(&said) {
            return;
        }
        self.hurry(owners);
        for attempt in 0..LEFT_TRIES {
            if self.have_left(&said) {
                return;
            }
            // The links' tasks run on this very thread: they only need a turn.
            match attempt {
                0..LEFT_TURNS => tokio::task::yield_now().await,
                _ => tokio::time::sleep(LEFT_PAUSE).await,
            }
        }
    }
}

impl Member {
    pub(super) fn send(&mut self, down: Down) -> bool {
        let Some(tx) = &self.tx else { return true };
        self.sent += 1;
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
