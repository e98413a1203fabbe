//! Groups of objects lie on many ranks. What an owner says of them is passed on to all others, in
//! turns, since they may have more of the same groups. Nothing is kept.

use super::Master;
use crate::message::{GroupNews, MAX_GROUPS, MasterToOwner, SegmentId};
use nkv_store::KeyId;
use std::collections::BTreeMap;

/// Between two turns.
const TURN_MS: u64 = 100;

/// What was said since the last turn, and who said it: None if several did.
#[derive(Debug, Default)]
pub(super) struct Groups {
    used: BTreeMap<KeyId, Option<SegmentId>>,
    lost: BTreeMap<KeyId, Option<SegmentId>>,
    next_ms: u64,
}

fn note(all: &mut BTreeMap<KeyId, Option<SegmentId>>, groups: Vec<KeyId>, from: SegmentId) {
    for group in groups {
        if all.len() < MAX_GROUPS || all.contains_key(&group) {
            let known = all.entry(group).or_insert(Some(from));
            *known = known.filter(|known| *known == from);
        }
    }
}

/// Those that somebody else said.
fn of_others(all: &BTreeMap<KeyId, Option<SegmentId>>, to: SegmentId) -> Vec<KeyId> {
    all.iter().filter(|(_, from)| **from != Some(to)).map(|(group, _)| *group).collect()
}

impl Master {
    /// An owner says what became of groups.
    pub(super) fn note_groups(&mut self, from: SegmentId, news: GroupNews) {
        note(&mut self.groups.used, news.used, from);
        note(&mut self.groups.lost, news.lost, from);
    }

    /// Passes on what owners said since the last turn.
    pub(super) fn pass_groups_on(&mut self) {
        let now = self.now_ms();
        let groups = &mut self.groups;
        if now < groups.next_ms || groups.used.is_empty() && groups.lost.is_empty() {
            return;
        }
        groups.next_ms = now + TURN_MS;
        let (used, lost) = (std::mem::take(&mut groups.used), std::mem::take(&mut groups.lost));
        for to in self.allocators.keys() {
            let news = GroupNews { used: of_others(&used, *to), lost: of_others(&lost, *to) };
            if news != GroupNews::default() {
                self.durable.members.send(*to, MasterToOwner::Groups(news));
            }
        }
    }
}
