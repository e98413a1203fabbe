//! What happened in runs, counted: every branch that is rare in production must have been taken in
//! some of them; else the runs tested less than intended.

use nkv::NodeStatus;
use nkv_actors::client::{ReadCounters, WriteCounters};
use std::collections::BTreeMap;

/// Counters that exist only once the event has happened, and that must have happened.
const MUST_HAPPEN: [&str; 49] = [
    "connections broken",
    "fault: a client is killed",
    "fault: a client stands still",
    "fault: a host is cut off",
    "fault: a path is cut",
    "fault: a producer dies in its claim",
    "fault: a rank is killed",
    "fault: a rank leaves",
    "fault: a rank stands still",
    "fault: an actor panics",
    "fault: connections break",
    "fault: the master is killed",
    "fault: the master dies and its words with it",
    "fault: the master dies while a writer stands still",
    "abort: done",
    "evict: done",
    "get: Disconnected",
    "get: NotFound",
    "get: NotReady",
    "get: Timeout",
    "get: done",
    "get-striped: done",
    "list: done",
    "master: hot objects",
    "master: replicas repaired",
    "match-prefix: done",
    "mount: done",
    "placed: hash",
    "placed: local-first",
    "placed: most-free",
    "placed: random",
    "placed: topology",
    "put-many: done",
    "put-pages: Reclaimed",
    "put-pages: done",
    "put: AlreadyExists",
    "put: OutOfMemory",
    "put: Timeout",
    "put: done",
    "put-striped: done",
    "read-into: done",
    "remove-all: done",
    "remove-many: done",
    "remove-matching: done",
    "remove-striped: done",
    "replicate: done",
    "take-overs",
    "terms that rose",
    "unmount: done",
];

/// Runs from which on the rarest events must have happened.
const MANY: u64 = 10_000;
/// Events of one in some hundreds of runs, or fewer: required only of [`MANY`] runs.
const RAREST: [&str; 10] = [
    "log: bytes abandoned",
    "master: out of memory",
    "master: reports_repeated",
    "master: superseded",
    "owner: commits_denied",
    "owner: ended_unopened",
    "owner: producers lost",
    "owner: unheard_retired",
    "put: OutOfMemory",
    "puts: given up in line",
];

/// Counters by name.
#[derive(Debug, Clone, Default)]
pub struct Coverage(pub BTreeMap<String, u64>);

impl Coverage {
    /// One more of these.
    pub fn count(&mut self, what: &str) {
        self.add(what, 1);
    }

    /// So many more of these.
    pub fn add(&mut self, what: &str, n: u64) {
        if let Some(counter) = self.0.get_mut(what) {
            *counter += n;
        } else {
            self.0.insert(what.to_string(), n);
        }
    }

    /// All of another one's.
    pub fn join(&mut self, other: &Self) {
        other.0.iter().for_each(|(what, n)| self.add(what, *n));
    }

    /// Adds a node's counters; called once, at its end.
    pub fn of_node(&mut self, status: &NodeStatus) {
        let o = &status.owner;
        let owner = [
            ("evictions", o.evictions),
            ("commits", o.commits),
            ("plans expired", o.plans_expired),
            ("producers lost", o.producers_lost),
            ("adopted", o.adopted),
            ("reclaimed", o.reclaimed),
            ("retired", o.retired),
            ("freed", o.freed),
            ("used with their groups", o.group_reads),
            ("groups lost", o.groups_lost),
        ];
        let log = [
            ("accepted", o.log_accepted),
            ("duplicates", o.log_duplicates),
            ("evictions", o.log_evictions),
            ("bytes skipped", o.log_skipped_bytes),
            ("bytes abandoned", o.log_abandoned_bytes),
            ("bytes voided", o.log_voided_bytes),
            ("hole checks", o.log_hole_checks),
            ("copies", o.log_copies),
            ("spills", o.log_spills),
            ("producers fenced", o.log_fenced),
        ];
        log.iter().for_each(|(what, n)| self.add(&format!("log: {what}"), *n));
        owner.iter().for_each(|(what, n)| self.add(&format!("owner: {what}"), *n));
        self.add("agent: requests", status.agent.requests);
        self.add("agent: refused", status.agent.refused);
        for actor in status.all_actors() {
            self.add(&format!("panics: {}", actor.name), u64::from(actor.panics));
        }
        self.of_reads(&status.reads);
        self.of_writes(&status.writes);
        self.of_slow_path("handle", status.handle_slow_path.all());
        self.of_slow_path("master", status.master_slow_path.map(|m| m.all()).unwrap_or_default());
        self.of_slow_path("owner", status.owner_slow_path.all());
    }

    /// Adds counters of slow paths.
    pub fn of_slow_path(&mut self, of: &str, counted: Vec<(&'static str, u64)>) {
        counted.iter().for_each(|(what, n)| self.add(&format!("{of}: {what}"), *n));
    }

    /// Adds a handle's counters of puts.
    pub fn of_writes(&mut self, w: &WriteCounters) {
        let writes = [
            ("by log", w.by_log),
            ("by plan", w.by_plan),
            ("log full", w.log_full),
            ("given up in line", w.log_abandoned),
        ];
        writes.iter().for_each(|(what, n)| self.add(&format!("puts: {what}"), *n));
    }

    /// Adds a handle's counters of reads.
    pub fn of_reads(&mut self, r: &ReadCounters) {
        let reads = [
            ("accepted", r.accepted),
            ("strict", r.strict),
            ("changed", r.changed),
            ("lost", r.lost),
            ("stood in", r.stood_in),
            ("failed", r.failed),
            ("cached", r.cached),
        ];
        reads.iter().for_each(|(what, n)| self.add(&format!("reads: {what}"), *n));
    }
}

impl Coverage {
    /// Events that must have happened in `runs` runs, two hundred or more, and did not: every
    /// counter that the program has of a retry, a fence, a change of terms, a loss or a refusal,
    /// and every fault. Counters are known by being added, also with 0, so a new counter of the
    /// program is required without a change here.
    pub fn never(&self, runs: u64) -> Vec<&str> {
        let zero = self.0.iter().filter(|(_, n)| **n == 0).map(|(what, _)| &what[..]);
        let listed = MUST_HAPPEN.iter().copied().filter(|what| !self.0.contains_key(*what));
        zero.chain(listed).filter(|what| runs >= MANY || !RAREST.contains(what)).collect()
    }
}
