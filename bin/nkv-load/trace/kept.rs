//! What a replay leaves to be explained: what stayed in the ranks' memory, what went and why, and
//! how far the hit ratio is from that of a cache with room for everything. It only prints.

use super::file::Request;
use comfy_table::{Table, presets};
use nkv::Blocking;
use nkv::Cluster;
use nkv::message::{ClusterStats, OwnerGauges, RankStats};
use nkv_programs::sizes::show_bytes;
use std::collections::HashSet;

/// The hit ratio of these requests with room for all blocks: no policy can do better.
pub(super) fn print_bound(requests: &[Request]) {
    let (mut seen, mut hits, mut blocks) = (HashSet::<u64>::new(), 0, 0);
    for Request { hash_ids, .. } in requests {
        blocks += hash_ids.len();
        hits += hash_ids.iter().take_while(|id| seen.contains(*id)).count();
        seen.extend(hash_ids);
    }
    eprintln!(
        "nkv-load: {} unique blocks; with room for all of them the ratio would be {:.4}",
        seen.len(),
        hits as f64 / blocks.max(1) as f64
    );
}

/// How the handle's puts and reads went.
pub(super) fn print_calls(handle: &Blocking) {
    let client = handle.client();
    let (puts, reads) = (client.write_counters(), client.read_counters());
    eprintln!(
        "nkv-load: puts: {} by logs, {} there already, {} by plans; {} of these for want of room \
         in a log, {} gave up a claim; reads: {} changed meanwhile, {} of them found nowhere else",
        puts.by_log,
        puts.there_already,
        puts.by_plan,
        puts.log_full,
        puts.log_abandoned,
        reads.changed,
        reads.lost,
    );
}

/// What the ranks' disks hold and did, one row for each; nothing without an SSD tier.
pub(super) fn print_tiers(cluster: &Cluster) {
    let mut table = Table::new();
    table.load_preset(presets::UTF8_FULL_CONDENSED);
    table.set_header([
        "rank",
        "on disk",
        "bytes",
        "saved",
        "there already",
        "lost",
        "brought back",
        "failed",
        "queue full",
    ]);
    for (rank, node) in cluster.nodes().iter().enumerate() {
        let Some(f) = node.tier().map(|tier| tier.figures()) else { return };
        let lost = f.writer_save_fail + f.kv_demote_unnamed + f.kv_demote_dropped;
        let figures = [f.ssd_objects.to_string(), show_bytes(f.ssd_used_bytes)].into_iter();
        let counts = [
            f.ssd_save_success,
            f.ssd_save_dedup_skip,
            lost,
            f.kv_promote_hits,
            f.kv_promote_fail,
            f.writer_queue_full_sync_fallback,
        ];
        let counts = counts.map(|n| n.to_string());
        table.add_row([rank.to_string()].into_iter().chain(figures).chain(counts));
    }
    eprintln!("{table}");
}

/// One line per rank: what it holds, and what it did since the run began; one more for its log,
/// and one for all logs.
pub(super) fn print(before: &ClusterStats, after: &ClusterStats) {
    let mut all = Tail::default();
    for rank in &after.ranks {
        let same = |r: &&RankStats| r.incarnation == rank.incarnation;
        let old = before.ranks.iter().find(same).map(|r| r.owner).unwrap_or_default();
        let new = rank.owner;
        eprintln!(
            "nkv-load: rank {}: {} objects, {} live; this run: {} gets served, {} bytes read, {} \
             commits, {} evictions",
            rank.rank,
            new.objects,
            show_bytes(new.live_bytes),
            new.gets_served.saturating_sub(old.gets_served),
            new.bytes_read.saturating_sub(old.bytes_read),
            new.commits.saturating_sub(old.commits),
            new.evictions.saturating_sub(old.evictions),
        );
        if new.log_total > 0 {
            print_log(rank.rank, &old, &new);
            all.add(&old, &new);
        }
    }
    if all.came() > 0 {
        eprintln!("nkv-load: {all}");
    }
}

fn print_log(rank: u32, old: &OwnerGauges, new: &OwnerGauges) {
    eprintln!(
        "nkv-load: rank {rank}: in its log {} objects, {} of {} live; this run: {} accepted, {} \
         duplicates, {} copied to the head, {} of them from the heap, {} copied in vain, {} went \
         with the tail, {} of them though they had been read",
        new.log_objects,
        show_bytes(new.log_live_bytes),
        show_bytes(new.log_total),
        new.log_accepted.saturating_sub(old.log_accepted),
        new.log_duplicates.saturating_sub(old.log_duplicates),
        new.log_copies.saturating_sub(old.log_copies),
        new.log_spills.saturating_sub(old.log_spills),
        new.log_stale_copies.saturating_sub(old.log_stale_copies),
        new.log_evictions.saturating_sub(old.log_evictions),
        new.log_lost_reads.saturating_sub(old.log_lost_reads),
    );
}

/// What became of the objects to which the tails of logs came.
#[derive(Debug, Default, PartialEq, Eq)]
struct Tail {
    copied: u64,
    unread: u64,
    lost: u64,
}

impl Tail {
    fn add(&mut self, old: &OwnerGauges, new: &OwnerGauges) {
        let copies = new.log_copies.saturating_sub(old.log_copies);
        let lost = new.log_lost_reads.saturating_sub(old.log_lost_reads);
        self.copied += copies.saturating_sub(new.log_spills.saturating_sub(old.log_spills));
        self.unread += new.log_evictions.saturating_sub(old.log_evictions).saturating_sub(lost);
        self.lost += lost;
    }

    fn came(&self) -> u64 {
        self.copied + self.unread + self.lost
    }
}

impl std::fmt::Display for Tail {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "of {} objects at the tails of logs {} had been read and were copied to the head, {} \
             went unread, {} went read, for want of time or room for a copy",
            self.came(),
            self.copied,
            self.unread,
            self.lost
        )
    }
}

#[cfg(test)]
mod tests {
    use super::Tail;
    use nkv::message::OwnerGauges;

    #[test]
    fn what_came_to_the_tail_is_counted_once() {
        let old = OwnerGauges { log_copies: 5, log_evictions: 10, ..OwnerGauges::default() };
        let new = OwnerGauges {
            log_copies: 25,
            log_spills: 4,
            log_evictions: 40,
            log_lost_reads: 3,
            ..OwnerGauges::default()
        };
        let mut all = Tail::default();
        all.add(&old, &new);
        assert_eq!(all, Tail { copied: 16, unread: 27, lost: 3 });
        assert_eq!(all.came(), 46);
        assert!(all.to_string().contains("of 46 objects"), "{all}");
    }
}
