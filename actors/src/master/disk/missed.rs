//! Removals of which the disks of ranks that were away do not know [I6]. They stand in one bounded
//! list, in their order; each such rank has its place there. Once it is back it is sent them before
//! it is asked for anything, until its disk has confirmed them.

use super::super::{Master, Members};
use crate::message::{
    DiskAnswer, DiskQuestion, DiskSelection, KeyBytes, MAX_BATCH, MasterToOwner, SegmentId,
};
use hashbrown::HashSet;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Keys that are remembered. A disk that missed more begins empty.
const MOST_KEYS: usize = MAX_BATCH;
/// A pattern counts as so many keys: it makes a disk read all of its own.
const KEYS_OF_PATTERN: usize = 1024;
/// Keys in a message.
const KEYS_AT_ONCE: usize = 4096;
/// After so long a disk that has not answered, or could not remove, is told again.
const AGAIN_MS: u64 = 1_000;

/// See the file's first paragraph.
#[derive(Debug, Default)]
pub(in crate::master) struct Missed {
    list: VecDeque<(u64, DiskSelection)>,
    keys: usize,
    /// The number of the next one.
    next: u64,
    /// Those below this number were dropped, because there were too many.
    dropped: u64,
    /// The first and the last that a rank missed.
    of_ranks: BTreeMap<u32, (u64, u64)>,
    /// How many removals have begun, and which of them are not over.
    begun: u64,
    running: BTreeSet<u64>,
    /// How many had begun when a segment joined, with its incarnation.
    joined: BTreeMap<SegmentId, (u64, u64)>,
}

fn keys_of(which: &DiskSelection) -> usize {
    match which {
        DiskSelection::Keys(keys) => keys.len(),
        DiskSelection::Matching(_) | DiskSelection::All => KEYS_OF_PATTERN,
    }
}

impl Missed {
    /// These ranks do not hear of a removal.
    pub fn note(&mut self, which: &DiskSelection, ranks: impl IntoIterator<Item = u32>) {
        let mut ranks = ranks.into_iter().peekable();
        if ranks.peek().is_none() {
            return;
        }
        // A removal by pattern is noted at each of its rounds: then it counts as the newest one.
        if !matches!(which, DiskSelection::Keys(_))
            && let Some(at) = self.list.iter().position(|(_, noted)| noted == which)
        {
            self.list.remove(at);
            self.keys -= keys_of(which);
        }
        let number = self.next;
        self.list.push_back((number, which.clone()));
        self.keys += keys_of(which);
        self.next += 1;
        for rank in ranks {
            let (first, last) = self.of_ranks.entry(rank).or_insert((number, number));
            (*first, *last) = (number.min(*first), number.max(*last));
        }
        while self.keys > MOST_KEYS {
            self.dropped = self.list.front().map_or(self.dropped, |(number, _)| number + 1);
            self.drop_first();
        }
    }

    fn drop_first(&mut self) {
        if let Some((_, which)) = self.list.pop_front() {
            self.keys -= keys_of(&which);
        }
    }

    /// A segment joined, as this process.
    pub fn joins(&mut self, segment_id: SegmentId, incarnation: u64) {
        let joined = self.joined.entry(segment_id).or_insert((incarnation, self.begun));
        if joined.0 != incarnation {
            *joined = (incarnation, self.begun);
        }
    }

    /// Whether a removal is running that began before this process joined: it is not asked.
    fn is_running_without(&self, segment_id: SegmentId, incarnation: u64) -> bool {
        let joined = self.joined.get(&segment_id).filter(|(of, _)| *of == incarnation);
        joined.is_some_and(|(_, begun)| self.running.first().is_some_and(|first| first < begun))
    }

    /// Whether the disk of this rank does not know of everything yet.
    pub fn has(&self, rank: u32) -> bool {
        self.of_ranks.contains_key(&rank)
    }

    /// The ranks whose disks do not.
    fn ranks(&self) -> Vec<u32> {
        self.of_ranks.keys().copied().collect()
    }

    /// What it missed, in few messages, and the number of the next removal.
    fn of(&self, rank: u32) -> Option<(VecDeque<DiskSelection>, u64)> {
        let (since, _) = *self.of_ranks.get(&rank)?;
        let missed = || self.list.iter().filter(|(number, _)| *number >= since).map(|(_, w)| w);
        if since < self.dropped || missed().any(|which| *which == DiskSelection::All) {
            return Some((VecDeque::from([DiskSelection::All]), self.next));
        }
        let mut keys: HashSet<&KeyBytes> = HashSet::new();
        let mut list = VecDeque::new();
        for which in missed() {
            match which {
                DiskSelection::Keys(some) => keys.extend(some),
                pattern => list.push_back(pattern.clone()),
            }
        }
        let keys: Vec<KeyBytes> = keys.into_iter().cloned().collect();
        list.extend(keys.chunks(KEYS_AT_ONCE).map(|keys| DiskSelection::Keys(keys.to_vec())));
        Some((list, self.next))
    }

    /// The disk of a rank has removed everything before this number.
    fn heard(&mut self, rank: u32, up_to: u64) {
        match self.of_ranks.get_mut(&rank) {
            // It was away again meanwhile.
            Some((first, last)) if *last >= up_to => *first = up_to.max(*first),
            _ => drop(self.of_ranks.remove(&rank)),
        }
        let needed = self.of_ranks.values().map(|(first, _)| *first).min().unwrap_or(self.next);
        while self.list.front().is_some_and(|(number, _)| *number < needed) {
            self.drop_first();
        }
    }
}

/// A removal that is not over. It counts as running as long as this lives.
pub(super) struct RunningRemoval {
    members: Arc<Members>,
    number: u64,
}

impl RunningRemoval {
    pub fn begin(members: Arc<Members>) -> Self {
        let number = {
            let missed = &mut members.lock().missed;
            let number = missed.begun;
            missed.begun += 1;
            missed.running.insert(number);
            number
        };
        Self { members, number }
    }
}

impl Drop for RunningRemoval {
    fn drop(&mut self) {
        self.members.lock().missed.running.remove(&self.number);
    }
}

/// What a rank that is back was sent, ahead of any other question: it marks all of it before it
/// looks for anything.
pub(in crate::master) struct Resending {
    incarnation: u64,
    /// By the number of the question: what its disk has not confirmed, with the number of the
    /// removal.
    open: BTreeMap<u64, (u64, DiskSelection)>,
    /// Its disk could not remove something, and may have marked nothing.
    failed: bool,
    up_to: u64,
    again_ms: u64,
}

impl Master {
    /// A rank has reported, over a new link: its disk learns what it missed.
    pub(in crate::master) fn send_missed_removals(&mut self, segment_id: SegmentId) {
        let with_disk = self.allocators.get(&segment_id);
        let with_disk = with_disk.filter(|a| a.info.disk && segment_id.is_first());
        let Some(incarnation) = with_disk.map(|a| a.info.incarnation) else { return };
        let missed = self.durable.members.lock().missed.of(segment_id.rank);
        let Some((list, up_to)) = missed else { return };
        let numbered = |which| {
            let number = self.durable.next_plan.fetch_add(1, Ordering::Relaxed);
            (number, (self.durable.random.u64(), which))
        };
        let open = list.into_iter().map(numbered).collect();
        let resending = Resending { incarnation, open, failed: false, up_to, again_ms: 0 };
        self.resending.insert(segment_id.rank, resending);
        self.send_open(segment_id.rank);
    }

    fn send_open(&mut self, rank: u32) {
        let (segment_id, now_ms) = (SegmentId::first(rank), self.now_ms());
        let Some(resending) = self.resending.get_mut(&rank) else { return };
        resending.again_ms = now_ms + AGAIN_MS;
        for (number, (removal, which)) in &resending.open {
            let question = DiskQuestion::Remove { removal: *removal, which: which.clone() };
            let number = *number;
            self.durable.members.send(segment_id, MasterToOwner::AskDisk { number, question });
        }
    }

    /// A rank has a new link: what was sent over the old one may be lost.
    pub(in crate::master) fn forget_resending(&mut self, segment_id: SegmentId) {
        if segment_id.is_first() {
            self.resending.remove(&segment_id.rank);
        }
    }

    /// Whether the disk of this rank has marked, at least, all that was removed while it was away,
    /// and nothing is being removed without it.
    pub(super) fn knows_removals(&self, segment_id: SegmentId, incarnation: u64) -> bool {
        let rank = segment_id.rank;
        let sent = |r: &Resending| r.incarnation == incarnation && !r.failed;
        let missed = &self.durable.members.lock().missed;
        !missed.is_running_without(segment_id, incarnation)
            && (!missed.has(rank) || self.resending.get(&rank).is_some_and(sent))
    }

    /// Whether a disk answered what it was sent so; its answer is dealt with.
    pub(super) fn missed_answer(
        &mut self,
        segment_id: SegmentId,
        number: u64,
        answer: &DiskAnswer,
    ) -> bool {
        let rank = segment_id.rank;
        let resending = self.resending.get_mut(&rank).filter(|_| segment_id.is_first());
        let Some(resending) = resending.filter(|r| r.open.contains_key(&number)) else {
            return false;
        };
        if let Some(error) = &answer.failed {
            resending.failed = true;
            tracing::warn!(%segment_id, %error, "its disk cannot remove what was removed before");
            return true;
        }
        if let Some((removal, _)) = resending.open.remove(&number) {
            let over = MasterToOwner::RemovalOver { removal, again: false };
            self.durable.members.send(segment_id, over);
        }
        if resending.open.is_empty() {
            let up_to = resending.up_to;
            self.resending.remove(&rank);
            self.durable.members.lock().missed.heard(rank, up_to);
            // More, if it was away again.
            self.send_missed_removals(segment_id);
        }
        true
    }

    /// Sends again what a disk did not answer, or could not remove, and what a rank missed that
    /// joined while something was being removed.
    pub(in crate::master) fn resend_missed(&mut self) {
        let ranks = self.durable.members.lock().missed.ranks();
        let now_ms = self.now_ms();
        for rank in ranks {
            let there = self.allocators.get(&SegmentId::first(rank)).filter(|a| a.reported);
            let incarnation = there.map(|a| a.info.incarnation);
            match self.resending.get(&rank) {
                Some(resending) if Some(resending.incarnation) != incarnation => {
                    self.resending.remove(&rank);
                }
                Some(resending) if now_ms < resending.again_ms => {}
                Some(_) => self.send_open(rank),
                None if incarnation.is_some() => self.send_missed_removals(SegmentId::first(rank)),
                None => {}
            }
        }
    }
}

impl Members {
    /// A removal is confirmed that only these disks have carried out: others hear of it later.
    pub(super) fn note_missed(&self, which: &DiskSelection, by: &[(SegmentId, u64)]) {
        let mut inner = self.lock();
        let is_away = |rank: &u32| {
            let first = SegmentId::first(*rank);
            let info = inner.ranks.get(&first).map(|member| &member.info);
            info.is_none_or(|info| info.disk && !by.contains(&(first, info.incarnation)))
        };
        let away: Vec<u32> = (0..self.world_size()).filter(is_away).collect();
        inner.missed.note(which, away);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(from: usize, count: usize) -> DiskSelection {
        DiskSelection::Keys(
            (from..from + count).map(|n| n.to_string().into_bytes().into()).collect(),
        )
    }

    fn sorted(missed: &Missed, rank: u32) -> Option<Vec<KeyBytes>> {
        let (list, _) = missed.of(rank)?;
        let mut all = Vec::new();
        for which in list {
            let DiskSelection::Keys(some) = which else { panic!("{which:?}") };
            assert!(some.len() <= KEYS_AT_ONCE);
            all.extend(some);
        }
        all.sort();
        Some(all)
    }

    #[test]
    fn i6_each_rank_hears_what_it_missed_and_one_that_never_comes_takes_bounded_memory() {
        let mut missed = Missed::default();
        missed.note(&keys(0, 1), [7]);
        missed.note(&keys(1, 2), [1, 7]);
        missed.note(&keys(1, 2), [1, 7]);
        assert_eq!(sorted(&missed, 1), Some(vec![b"1".to_vec().into(), b"2".to_vec().into()]));
        assert_eq!(sorted(&missed, 7).map(|all| all.len()), Some(3));
        assert_eq!(sorted(&missed, 2), None);
        let (_, up_to) = missed.of(1).unwrap();
        missed.heard(1, up_to);
        assert!(!missed.has(1) && missed.has(7));
        for n in 0..100 {
            missed.note(&keys(10 + n * 1000, 1000), [7]);
            assert!(missed.keys <= MOST_KEYS);
        }
        assert_eq!(missed.of(7).unwrap().0, [DiskSelection::All], "it missed too much");
        missed.note(&keys(0, 10_000), [1]);
        assert_eq!(sorted(&missed, 1).map(|all| all.len()), Some(10_000));
    }

    #[test]
    fn i6_what_a_rank_missed_while_it_was_told_is_told_later() {
        let mut missed = Missed::default();
        missed.note(&keys(0, 1), [1]);
        let (_, up_to) = missed.of(1).unwrap();
        missed.note(&keys(1, 1), [1]);
        missed.heard(1, up_to);
        assert_eq!(sorted(&missed, 1), Some(vec![b"1".to_vec().into()]));
        // What only another rank missed keeps nobody waiting.
        let (_, up_to) = missed.of(1).unwrap();
        missed.note(&keys(2, 1), [2]);
        missed.heard(1, up_to);
        assert!(!missed.has(1) && missed.has(2));
    }

    /// Another rank, which never comes, keeps the list long.
    #[test]
    fn a_rank_is_sent_nothing_of_before_it_was_away() {
        let mut missed = Missed::default();
        let pattern = DiskSelection::Matching("^a".into());
        missed.note(&pattern, [7]);
        missed.note(&keys(0, 5), [7]);
        missed.note(&pattern, [2, 7]);
        assert_eq!(missed.of(2).unwrap().0, std::slice::from_ref(&pattern));
        for n in 0..10 {
            missed.note(&keys(10 + n * 10_000, 10_000), [7]);
        }
        missed.note(&pattern, [3, 7]);
        assert_eq!(missed.of(7).unwrap().0, [DiskSelection::All], "it missed too much");
        assert_eq!(missed.of(3).unwrap().0, std::slice::from_ref(&pattern));
        // Not gone because it was noted again.
        missed.note(&pattern, [7]);
        assert_eq!(missed.of(3).unwrap().0, [pattern]);
    }

    #[test]
    fn a_removal_by_pattern_of_many_rounds_is_noted_once() {
        let mut missed = Missed::default();
        let pattern = DiskSelection::Matching("^a".into());
        for _ in 0..1000 {
            missed.note(&pattern, [1]);
        }
        assert_eq!(missed.of(1).unwrap().0, [pattern]);
    }
}
