//! `/metrics`: a node's status as Prometheus text. Every name is in one table here. Each scrape
//! renders the status at that moment, so no value is stale, and a new incarnation begins at zero,
//! as Prometheus expects. Lines always have the order of the tables.

mod process;
mod text;

use nkv::NodeStatus;
use nkv::message::{ClusterStats, OwnerGauges};
use nkv_actors::actor::ActorStatus;
use nkv_actors::durations::Durations;
use nkv_actors::tier::TierFigures;
pub(crate) use process::started;
use text::{Labels, Sort, Text};

/// Content type of a scrape.
pub(crate) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// One figure of a `T`.
struct Metric<T> {
    name: &'static str,
    sort: Sort,
    help: &'static str,
    /// Divisor from the figure to the metric's unit: 1000 for milliseconds shown as seconds.
    per_unit: u32,
    value: fn(&T) -> u64,
}

const fn gauge<T>(name: &'static str, help: &'static str, value: fn(&T) -> u64) -> Metric<T> {
    Metric { name, sort: Sort::Gauge, help, per_unit: 1, value }
}

const fn counter<T>(name: &'static str, help: &'static str, value: fn(&T) -> u64) -> Metric<T> {
    Metric { name, sort: Sort::Counter, help, per_unit: 1, value }
}

/// A figure in milliseconds, shown in seconds.
const fn seconds<T>(name: &'static str, help: &'static str, value: fn(&T) -> u64) -> Metric<T> {
    Metric { name, sort: Sort::Gauge, help, per_unit: 1_000, value }
}

/// Of a heap: the rank's first one, and with the label `segment` each mounted one.
const HEAP: &[Metric<OwnerGauges>] = &[
    gauge("nkv_heap_total_bytes", "Payload bytes of the heap", |o| o.heap_total),
    gauge("nkv_heap_used_bytes", "Bytes live, open, fencing and in quarantine", |o| o.heap_used),
    gauge("nkv_heap_live_bytes", "Bytes of READY objects", |o| o.live_bytes),
    gauge("nkv_heap_hard_pinned_bytes", "Of these, bytes of objects with a hard pin", |o| {
        o.hard_pinned_bytes
    }),
    gauge("nkv_heap_open_bytes", "Bytes of objects being written", |o| o.open_bytes),
    gauge("nkv_heap_held_bytes", "Bytes fencing or in quarantine", |o| o.held_bytes),
    gauge("nkv_objects_ready", "READY objects", |o| o.objects),
    gauge("nkv_plans_open", "Plans open on this rank", |o| o.plans_open),
    gauge("nkv_slots_fencing", "Slots that wait for a producer to be fenced", |o| o.fencing),
    gauge("nkv_slots_quarantined", "Slots in quarantine", |o| o.quarantined),
    gauge("nkv_objects_pinned", "Retired objects that a view holds", |o| o.pinned),
    gauge("nkv_pins_suspect", "Of these, those held for more than 10 s", |o| o.pins_suspect),
    gauge("nkv_index_overflow", "Objects that the index has no room for", |o| o.index_overflow),
    gauge("nkv_log_total_bytes", "Bytes of the device log", |o| o.log_total),
    gauge("nkv_log_live_bytes", "Bytes of live objects in it", |o| o.log_live_bytes),
    gauge("nkv_log_objects", "Live objects in it", |o| o.log_objects),
    counter("nkv_log_claimed_bytes_total", "Bytes claimed in it", |o| o.log_claimed_bytes),
    counter("nkv_log_accepted_bytes_total", "Bytes of claims that were published", |o| {
        o.log_accepted_bytes
    }),
    counter("nkv_log_skipped_bytes_total", "Bytes of claims skipped or aborted", |o| {
        o.log_skipped_bytes
    }),
    counter(
        "nkv_log_abandoned_bytes_total",
        "Bytes of claims abandoned while waiting for room",
        |o| o.log_abandoned_bytes,
    ),
    counter("nkv_log_voided_bytes_total", "Bytes that became void", |o| o.log_voided_bytes),
    counter("nkv_log_accepted_total", "Objects accepted in it", |o| o.log_accepted),
    counter("nkv_log_duplicates_total", "READY claims of a known key", |o| o.log_duplicates),
    counter("nkv_log_evictions_total", "Objects evicted from it to make room", |o| o.log_evictions),
    counter("nkv_log_hole_checks_total", "Times all producers were asked about a hole", |o| {
        o.log_hole_checks
    }),
    counter("nkv_log_copies_total", "Objects copied to its head", |o| o.log_copies),
    counter("nkv_log_spills_total", "Objects of the heap that were copied to the log", |o| {
        o.log_spills
    }),
    counter("nkv_log_stale_copies_total", "Such copies whose object had ended", |o| {
        o.log_stale_copies
    }),
    counter("nkv_log_lost_reads_total", "Objects that were read but not copied in time", |o| {
        o.log_lost_reads
    }),
    counter("nkv_log_passed_over_bytes_total", "Bytes left out because views pin them", |o| {
        o.log_passed_over_bytes
    }),
    counter("nkv_log_fenced_total", "Producers proven to write no more", |o| o.log_fenced),
    counter("nkv_group_reads_total", "Objects used since another of their group was", |o| {
        o.group_reads
    }),
    counter("nkv_groups_lost_total", "Groups of which an object was evicted here", |o| {
        o.groups_lost
    }),
    counter("nkv_evictions_total", "Objects evicted", |o| o.evictions),
    counter("nkv_gets_served_total", "Gets that readers reported", |o| o.gets_served),
    counter("nkv_gets_by_index_total", "Gets located by an index", |o| o.gets_by_index),
    counter("nkv_gets_by_cache_total", "Gets located by a cached location", |o| o.gets_by_cache),
    counter("nkv_gets_by_master_total", "Gets located by the master", |o| o.gets_by_master),
    counter("nkv_bytes_read_total", "Bytes that readers reported", |o| o.bytes_read),
    counter("nkv_commits_total", "Objects committed here", |o| o.commits),
    counter("nkv_bytes_written_total", "Bytes of objects committed here", |o| o.bytes_written),
    counter("nkv_plans_expired_total", "Plans that reached their deadline", |o| o.plans_expired),
    counter("nkv_producers_lost_total", "Plans ended because their producer was gone", |o| {
        o.producers_lost
    }),
    counter("nkv_adopted_total", "Ended plans that were READY and were kept", |o| o.adopted),
    counter("nkv_reclaimed_total", "Plans ended before READY, their producer fenced", |o| {
        o.reclaimed
    }),
    counter("nkv_retired_total", "Objects retired", |o| o.retired),
    counter("nkv_freed_total", "Slots freed after quarantine", |o| o.freed),
];

/// Of the rank itself.
const NODE: &[Metric<NodeStatus>] = &[
    seconds("nkv_uptime_seconds", "Time since this incarnation started", |s| s.uptime_ms),
    gauge("nkv_joined", "1 while the link to the master is up", |s| u64::from(s.link == "joined")),
    gauge("nkv_draining", "1 while the rank drains", |s| u64::from(s.draining)),
    gauge("nkv_world_size", "Ranks the job has", |s| u64::from(s.world_size)),
    gauge("nkv_attachments", "Attachments, but those by tcp", |s| s.attachments as u64),
    counter("nkv_tcp_bytes_received_total", "Payload bytes the tcp agent received", |s| {
        s.agent.bytes_in
    }),
    counter("nkv_tcp_bytes_sent_total", "Payload bytes the tcp agent sent", |s| s.agent.bytes_out),
    counter("nkv_tcp_requests_total", "Requests the tcp agent served", |s| s.agent.requests),
    counter("nkv_tcp_refused_total", "Requests the tcp agent refused", |s| s.agent.refused),
    counter("nkv_auth_refused_total", "Connections refused for failed authentication", |s| {
        s.auth_refused
    }),
    gauge("nkv_tcp_connections", "Connections of the tcp agent", |s| s.agent.connections),
];

/// Of the SSD tier, if the rank has one.
const SSD: &[Metric<TierFigures>] = &[
    counter("nkv_ssd_save_success_total", "Objects saved", |t| t.ssd_save_success),
    counter("nkv_ssd_save_fail_total", "Objects that could not be saved", |t| t.ssd_save_fail),
    counter("nkv_ssd_save_dedup_skip_total", "Objects that were on disk already", |t| {
        t.ssd_save_dedup_skip
    }),
    counter("nkv_ssd_stale_index_cleaned_total", "Entries without a whole record, dropped", |t| {
        t.ssd_stale_index_cleaned
    }),
    counter(
        "nkv_ssd_hash_collision_detected_total",
        "Objects of one key that differ; neither is served from disk",
        |t| t.ssd_hash_collision_detected,
    ),
    counter(
        "nkv_ssd_journal_pages_damaged_total",
        "Damaged pages of the journal, 1 if it was missing: objects are lost",
        |t| t.ssd_journal_pages_damaged,
    ),
    counter("nkv_ssd_orphans_cleaned_total", "Records without an entry, freed at start", |t| {
        t.ssd_orphans_cleaned
    }),
    counter("nkv_ssd_load_success_total", "Objects read from disk", |t| t.ssd_load_success),
    counter("nkv_ssd_load_corrupt_total", "Objects that were damaged on disk", |t| {
        t.ssd_load_corrupt
    }),
    counter("nkv_ssd_load_fail_total", "Objects that the disk did not give", |t| t.ssd_load_fail),
    counter(
        "nkv_ssd_expired_total",
        "Objects removed because nobody used them for the time to live",
        |t| t.ssd_expired,
    ),
    counter("nkv_ssd_evicted_total", "Objects removed from disk to make space", |t| t.ssd_evicted),
    counter("nkv_writer_enqueue_total", "Objects handed to the writer", |t| t.writer_enqueue_total),
    counter("nkv_writer_enqueue_dedup_skip_total", "Objects whose key waited there already", |t| {
        t.writer_enqueue_dedup_skip
    }),
    counter("nkv_writer_save_success_total", "Objects of the writer that are on disk", |t| {
        t.writer_save_success
    }),
    counter("nkv_writer_save_fail_total", "Objects of the writer that are not", |t| {
        t.writer_save_fail
    }),
    counter(
        "nkv_writer_queue_full_sync_fallback_total",
        "Objects for which the writer's queue was full",
        |t| t.writer_queue_full_sync_fallback,
    ),
    counter("nkv_writer_retry_attempts_total", "Saves tried again", |t| t.writer_retry_attempts),
    counter("nkv_writer_retry_final_fail_total", "Objects given up after the last retry", |t| {
        t.writer_retry_final_fail
    }),
    counter("nkv_kv_lookup_hits_total", "Keys asked for that the disk has", |t| t.kv_lookup_hits),
    counter("nkv_kv_lookup_miss_total", "Keys asked for that it does not have", |t| {
        t.kv_lookup_miss
    }),
    counter(
        "nkv_kv_promote_requested_total",
        "Keys that were to be brought back into memory",
        |t| t.kv_promote_requested,
    ),
    counter(
        "nkv_kv_promote_coalesced_total",
        "Of these, those that were being brought back already",
        |t| t.kv_promote_coalesced,
    ),
    counter("nkv_kv_promote_hits_total", "Objects brought back", |t| t.kv_promote_hits),
    counter("nkv_kv_promote_fail_total", "Objects that were not", |t| t.kv_promote_fail),
    counter("nkv_kv_promoted_bytes_total", "Bytes brought back", |t| t.kv_promoted_bytes),
    counter(
        "nkv_kv_save_asked_total",
        "Objects to be saved because somebody asked for that",
        |t| t.kv_save_asked,
    ),
    counter("nkv_kv_save_asked_fail_total", "Of these, those that were not", |t| {
        t.kv_save_asked_fail
    }),
    counter(
        "nkv_kv_demote_unnamed_total",
        "Objects evicted before their key string was known, and lost",
        |t| t.kv_demote_unnamed,
    ),
    counter("nkv_kv_demote_dropped_total", "Objects lost because the disk was too slow", |t| {
        t.kv_demote_dropped
    }),
    gauge("nkv_ssd_objects", "Objects on disk", |t| t.ssd_objects),
    gauge("nkv_ssd_used_bytes", "Bytes that they take there", |t| t.ssd_used_bytes),
    gauge("nkv_ssd_capacity_bytes", "Bytes that they may take", |t| t.ssd_capacity_bytes),
    gauge("nkv_kv_demote_pending", "Objects on their way to disk", |t| t.kv_demote_pending),
    gauge("nkv_kv_promote_pending", "Objects on their way back", |t| t.kv_promote_pending),
    gauge("nkv_shutdown_clean", "1 if the process before this one saved all", |t| {
        u64::from(t.shutdown_clean)
    }),
    gauge("nkv_shutdown_partial_flush", "1 if it ended before all was saved", |t| {
        u64::from(t.shutdown_partial_flush)
    }),
];

/// Of the master, on rank 0.
const MASTER: &[Metric<ClusterStats>] = &[
    gauge("nkv_master_ranks", "Ranks that are members", |c| {
        c.ranks.iter().filter(|r| r.segment == 0).count() as u64
    }),
    gauge("nkv_master_segments", "Segments that are members", |c| c.ranks.len() as u64),
    gauge("nkv_master_objects", "Objects listed by the master", |c| c.objects),
    gauge("nkv_master_plans_open", "Plans open in the cluster", |c| c.plans_open),
    gauge("nkv_master_waiting", "Opens that wait for room", |c| c.waiting),
    counter("nkv_master_opened_total", "Plans opened", |c| c.master.opened),
    counter("nkv_master_committed_total", "Commits accepted", |c| c.master.committed),
    counter("nkv_master_commit_refused_total", "Commits refused as Reclaimed", |c| {
        c.master.commit_refused
    }),
    counter("nkv_master_plans_ended_total", "Plans that ended without a commit", |c| {
        c.master.plans_ended
    }),
    counter("nkv_master_adopted_total", "Expired plans found READY", |c| c.master.adopted),
    counter("nkv_master_out_of_memory_total", "Opens refused for want of room", |c| {
        c.master.out_of_memory
    }),
    counter(
        "nkv_master_replicas_short_total",
        "Replicas that puts asked for and no other rank could take",
        |c| c.master.replicas_short,
    ),
    counter(
        "nkv_master_replicas_repaired_total",
        "Objects whose missing replicas were made",
        |c| c.master.replicas_repaired,
    ),
    counter(
        "nkv_master_hot_objects_total",
        "Times that an object was given a replica because it is read often",
        |c| c.master.hot_objects,
    ),
    counter(
        "nkv_master_repairs_given_up_total",
        "Objects that keep fewer replicas than they should: nobody could make them",
        |c| c.master.repairs_given_up,
    ),
    gauge("nkv_master_repairs_waiting", "Objects that wait for replicas", |c| {
        c.master.repairs_waiting
    }),
    counter("nkv_master_lookup_hits_total", "Keys found", |c| c.master.lookup_hits),
    counter("nkv_master_lookup_misses_total", "Keys not found", |c| c.master.lookup_misses),
    counter("nkv_master_removed_total", "Keys removed", |c| c.master.removed),
];

/// Of each actor, labelled `actor`.
const ACTOR: &[Metric<ActorStatus>] = &[
    gauge("nkv_actor_queue", "Messages in its mailbox", |a| a.queue),
    seconds("nkv_actor_busy_seconds", "Time in the present message", |a| a.busy_ms),
    seconds("nkv_actor_idle_seconds", "Time since the actor's last heartbeat", |a| a.idle_ms),
    counter("nkv_actor_handled_total", "Messages handled", |a| a.handled),
    counter("nkv_actor_restarts_total", "Restarts after a panic", |a| u64::from(a.restarts)),
    counter("nkv_actor_panics_total", "Panics caught", |a| u64::from(a.panics)),
];

/// The subjects of a table's figures, each with its labels.
type Subjects<'a, T> = Vec<(Vec<(&'static str, &'a str)>, &'a T)>;

/// The status as Prometheus text, every line labelled with the rank.
pub(crate) fn render(status: &NodeStatus, cluster: Option<&ClusterStats>) -> String {
    let mut text = Text::of_rank(status.rank);
    build(&mut text);
    process::write(&mut text);
    let numbers: Vec<String> = status.segments.iter().map(|s| s.segment.to_string()).collect();
    let mounted = || numbers.iter().zip(&status.segments);
    let mut heaps: Subjects<'_, OwnerGauges> = vec![(Vec::new(), &status.owner)];
    heaps.extend(mounted().map(|(n, s)| (vec![("segment", n.as_str())], &s.owner)));
    let mut actors: Subjects<'_, ActorStatus> =
        status.actors.iter().map(|a| (vec![("actor", a.name)], a)).collect();
    for (n, segment) in mounted() {
        let labels = |a: &ActorStatus| vec![("actor", a.name), ("segment", n.as_str())];
        actors.extend(segment.actors.iter().map(|a| (labels(a), a)));
    }
    table(&mut text, HEAP, &heaps);
    table(&mut text, NODE, &vec![(Vec::new(), status)]);
    if let Some(ssd) = &status.ssd {
        table(&mut text, SSD, &vec![(Vec::new(), ssd)]);
        let times = [(Vec::new(), &ssd.promote_times)];
        text.histogram("nkv_kv_promote_duration_seconds", "From a request to memory", times);
    }
    if let Some(cluster) = cluster {
        table(&mut text, MASTER, &vec![(Vec::new(), cluster)]);
    }
    table(&mut text, ACTOR, &actors);
    let handling = actors.iter().map(|(labels, actor)| (labels.clone(), &actor.handling));
    text.histogram("nkv_actor_handling_duration_seconds", "Messages in their handlers", handling);
    durations(&mut text, status);
    text.into_string()
}

/// The build's version.
fn build(text: &mut Text) {
    text.metric("nkv_build_info", Sort::Gauge, "1, labelled with what this program was built from");
    let labels = [("version", env!("CARGO_PKG_VERSION")), ("commit", env!("NKV_BUILD_COMMIT"))];
    text.sample("nkv_build_info", &labels, 1);
}

fn table<T>(text: &mut Text, table: &[Metric<T>], of: &Subjects<'_, T>) {
    for metric in table {
        text.metric(metric.name, metric.sort, metric.help);
        for (labels, subject) in of {
            sample(text, metric, labels, (metric.value)(subject));
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "Prometheus has no other numbers")]
fn sample<T>(text: &mut Text, metric: &Metric<T>, labels: Labels<'_>, value: u64) {
    match metric.per_unit {
        1 => text.sample(metric.name, labels, value),
        n => text.sample(metric.name, labels, value as f64 / f64::from(n)),
    }
}

/// Durations of calls.
fn durations(text: &mut Text, status: &NodeStatus) {
    let calls = &status.call_times;
    text.histogram(
        "nkv_client_request_duration_seconds",
        "Requests of this node's own handle to the master",
        requests(&calls.requests),
    );
    text.histogram(
        "nkv_client_put_duration_seconds",
        "Puts by plans of this node's own handle, open to commit",
        [(Vec::new(), &calls.puts)],
    );
    text.histogram(
        "nkv_client_read_duration_seconds",
        "Reads of this node's own handle, except loads from mapped memory",
        [(Vec::new(), &calls.reads)],
    );
    if !status.master_requests.is_empty() {
        text.histogram(
            "nkv_master_request_duration_seconds",
            "Requests to the master on this node, arrival to answer",
            requests(&status.master_requests),
        );
    }
}

/// Only kinds of requests that occurred: all kinds would be hundreds of empty lines.
fn requests<'a>(all: &'a [(&'static str, Durations)]) -> Subjects<'a, Durations> {
    let found = all.iter().filter(|(_, d)| d.counts.iter().any(|n| *n > 0));
    found.map(|(kind, d)| (vec![("request", *kind)], d)).collect()
}

#[cfg(test)]
mod tests {
    use super::{ACTOR, HEAP, MASTER, NODE, SSD, Sort};
    use std::collections::BTreeSet;

    #[test]
    fn names_are_unique_and_say_what_they_count() {
        let heap = HEAP.iter().map(|m| (m.name, m.sort, m.help));
        let node = heap.chain(NODE.iter().map(|m| (m.name, m.sort, m.help)));
        let node = node.chain(SSD.iter().map(|m| (m.name, m.sort, m.help)));
        let master = MASTER.iter().map(|m| (m.name, m.sort, m.help));
        let actor = ACTOR.iter().map(|m| (m.name, m.sort, m.help));
        let mut seen = BTreeSet::new();
        for (name, sort, help) in node.chain(master).chain(actor) {
            assert!(seen.insert(name), "{name} twice");
            assert!(name.starts_with("nkv_") && !help.is_empty(), "{name}");
            assert_eq!(name.ends_with("_total"), sort == Sort::Counter, "{name}");
            let milliseconds = name.ends_with("_ms") || name.contains("_ms_");
            assert!(!milliseconds && !name.ends_with("_count"), "{name}");
        }
    }
}
