//! Sets of replicas that were removed: a replica that its producer writes into this log only now,
//! or whose last bytes are still on their way, must not be served any more [I6].

use crate::message::MAX_ENDED_SETS;
use hashbrown::HashMap;
use nkv_store::KeyId;
use nkv_store::object::SetMark;
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// How long a set is remembered. A put ends within seconds, unless its process is stopped.
const KEPT_NS: u64 = 60_000_000_000;
/// Most sets that are remembered; further ones push out the oldest.
const MOST: usize = MAX_ENDED_SETS;

type Set = (KeyId, u32);

#[derive(Debug, Default)]
struct State {
    until_ns: HashMap<Set, u64>,
    order: VecDeque<(u64, Set)>,
}

/// See the file's first paragraph. Kept outside the Owner actor.
#[derive(Debug, Default)]
pub struct EndedSets(Mutex<State>);

impl EndedSets {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// These were removed.
    pub(super) fn add(&self, sets: &[Set], now_ns: u64) {
        let mut state = self.lock();
        let until = now_ns.saturating_add(KEPT_NS);
        for set in sets {
            state.until_ns.insert(*set, until);
            state.order.push_back((until, *set));
        }
        while let Some((until, set)) = state.order.front().copied()
            && (until <= now_ns || state.order.len() > MOST)
        {
            state.order.pop_front();
            if state.until_ns.get(&set) == Some(&until) {
                state.until_ns.remove(&set);
            }
        }
    }

    /// Whether an object with this mark was removed before it came.
    pub(super) fn contains(&self, key: KeyId, mark: SetMark) -> bool {
        !mark.is_none() && self.lock().until_ns.contains_key(&(key, mark.word()))
    }
}

#[cfg(test)]
mod tests {
    use super::{EndedSets, KEPT_NS, MOST};
    use nkv_store::KeyId;
    use nkv_store::object::SetMark;

    #[test]
    fn i6_a_set_is_remembered_for_its_time_and_their_number_is_bounded() {
        let (sets, mark) = (EndedSets::default(), SetMark::new(1, 2));
        let key = |n| KeyId { hash: n, check: 0 };
        sets.add(&[(key(1), mark.word())], 0);
        assert!(sets.contains(key(1), mark) && !sets.contains(key(2), mark));
        assert!(
            !sets.contains(key(1), SetMark::new(2, 2)) && !sets.contains(key(1), SetMark::NONE)
        );
        // Ended once more, it is kept for longer.
        sets.add(&[(key(1), mark.word())], 5);
        sets.add(&[], KEPT_NS);
        assert!(sets.contains(key(1), mark));
        sets.add(&[], KEPT_NS + 5);
        assert!(!sets.contains(key(1), mark));
        let many: Vec<_> = (0..MOST as u64 + 1).map(|n| (key(n), mark.word())).collect();
        sets.add(&many, 0);
        assert!(!sets.contains(key(0), mark) && sets.contains(key(MOST as u64), mark));
    }
}
