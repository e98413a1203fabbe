//! Groups of objects lie on many ranks. What an owner says of them is passed on to all, in turns,
//! since they may have more of the same groups. Nothing is kept.

use super::Master;
use crate::message::{GroupNews, MAX_GROUPS, MasterToOwner};
use nkv_store::KeyId;
use std::collections::BTreeSet;

/// Between two turns.
const TURN_MS: u64 = 100;
/// Groups of each kind in one turn, over all messages: with more ranks each is sent fewer.
const MOST_IN_A_TURN: usize = 65_536;

/// What was said since the last turn.
#[derive(Debug, Default)]
pub(super) struct Groups {
    used: BTreeSet<KeyId>,
    lost: BTreeSet<KeyId>,
    next_ms: u64,
}

impl Master {
    /// An owner says what became of groups.
    pub(super) fn note_groups(&mut self, news: GroupNews) {
        // Nobody else has any of them.
        let ranks = self.allocators.len();
        if ranks < 2 {
            return;
        }
        let most = (MOST_IN_A_TURN / ranks).clamp(1, MAX_GROUPS);
        let note = |all: &mut BTreeSet<KeyId>, groups: Vec<KeyId>| {
            let room = most.saturating_sub(all.len());
            all.extend(groups.into_iter().take(room));
        };
        note(&mut self.groups.used, news.used);
        note(&mut self.groups.lost, news.lost);
    }

    /// Passes on what owners said since the last turn, also to those who said it: they have done it
    /// already.
    pub(super) fn pass_groups_on(&mut self) {
        let now = self.now_ms();
        let groups = &mut self.groups;
        if now < groups.next_ms || groups.used.is_empty() && groups.lost.is_empty() {
            return;
        }
        groups.next_ms = now + TURN_MS;
        let of = |groups: &mut BTreeSet<KeyId>| std::mem::take(groups).into_iter().collect();
        let news = GroupNews { used: of(&mut groups.used), lost: of(&mut groups.lost) };
        for to in self.allocators.keys() {
            self.durable.members.send(*to, MasterToOwner::Groups(news.clone()));
        }
    }
}
