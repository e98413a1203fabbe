//! What happened in runs, counted: every branch that is rare in production must have been taken in some
//! of them, or they tested less than they seem to.

use nkv::NodeStatus;
use nkv::client::ReadCounters;
use std::collections::BTreeMap;

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

    /// What a node counted until now; read once, at its end.
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
        ];
        owner.iter().for_each(|(what, n)| self.add(&format!("owner: {what}"), *n));
        self.add("agent: requests", status.agent.requests);
        self.add("agent: refused", status.agent.refused);
        for actor in status.all_actors() {
            self.add(&format!("panics: {}", actor.name), u64::from(actor.panics));
        }
        self.of_reads(&status.reads);
    }

    /// How the reads of a handle went.
    pub fn of_reads(&mut self, r: &ReadCounters) {
        let reads = [
            ("accepted", r.accepted),
            ("strict", r.strict),
            ("changed", r.changed),
            ("lost", r.lost),
            ("stood in", r.stood_in),
            ("failed", r.failed),
        ];
        reads.iter().for_each(|(what, n)| self.add(&format!("reads: {what}"), *n));
    }
}
