//! Objects that are read often: the owner counts reads as touches arrive, and each second the
//! master hears of those that are above a bound. Counts are lost with the actor.

use super::Owner;
use crate::message::{MAX_REPLICAS, OftenRead, OwnerToMaster, Touch};
use hashbrown::HashMap;
use hashbrown::hash_map::Entry;

/// How long reads are counted before they are judged.
const WINDOW_MS: u64 = 1_000;
/// Objects that are counted in one window at most. What is read as often as a bound demands is
/// among the first of a window.
const MOST_COUNTED: usize = 16_384;
/// Objects in one report, those with the most reads first.
const MOST_REPORTED: usize = 64;
/// An object that has replicas because it is hot keeps them while each is read at this share of the
/// bound: with as many replicas as there can be, reads of each may fall so far.
const WARM_SHARE: u64 = MAX_REPLICAS as u64;

/// The reads of one window, by slot and epoch.
#[derive(Debug, Default)]
pub(super) struct ReadCounts {
    reads: HashMap<(u32, u32), u64>,
    began_ms: u64,
}

impl Owner {
    pub(super) fn count_reads(&mut self, list: &[Touch], now_ms: u64) {
        if self.durable.hot_reads == 0 {
            return;
        }
        let reads = &mut self.read_counts.reads;
        for t in list {
            let full = reads.len() >= MOST_COUNTED;
            match reads.entry((t.slot, t.epoch)) {
                Entry::Occupied(mut known) => *known.get_mut() += 1,
                Entry::Vacant(new) if !full => drop(new.insert(1)),
                Entry::Vacant(_) => {}
            }
        }
        self.report_often_read(now_ms);
    }

    /// At the end of a window: what was above the bound, or may still be.
    pub(super) fn report_often_read(&mut self, now_ms: u64) {
        let counts = &mut self.read_counts;
        let passed_ms = now_ms.saturating_sub(counts.began_ms);
        if passed_ms < WINDOW_MS {
            return;
        }
        counts.began_ms = now_ms;
        let bound = self.durable.hot_reads;
        // In a window that was longer, as after a pause, more are needed.
        let a_second = |reads: u64| reads.saturating_mul(1_000) / passed_ms;
        let counted = counts.reads.drain().map(|(at, reads)| (a_second(reads), at));
        let mut often: Vec<_> = counted.filter(|(n, _)| *n >= bound.div_ceil(WARM_SHARE)).collect();
        if often.is_empty() {
            return;
        }
        often.sort_unstable_by(|a, b| b.cmp(a));
        often.truncate(MOST_REPORTED);
        let report = |(reads, (slot, epoch))| OftenRead { slot, epoch, hot: reads >= bound };
        self.send_to_master(OwnerToMaster::OftenRead(often.into_iter().map(report).collect()));
    }
}
