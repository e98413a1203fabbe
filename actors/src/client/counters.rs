//! Outcomes of reads and puts: one counter on every branch, so that retries are visible before they
//! hurt [I7].

use crate::durations::{Durations, Histogram, named};
use crate::message::{Request, Via};
use crate::slow_path::counters;
use serde::Serialize;

counters! {
    /// Puts of one handle (and its clones) since it was made.
    Writes as WriteCounters {
        /// Objects put through a device log, without waiting for a message; of several replicas
        /// each.
        by_log,
        /// Puts of at least 64 KiB under a key that a mapped segment served already: nothing was
        /// written.
        there_already,
        /// Objects put by a plan.
        by_plan,
        /// Objects put in stripes. `by_plan` counts their stripes and manifests.
        striped,
        /// Replicas that puts asked for and did not make: no other rank had room, or none could be
        /// reached.
        replicas_short,
        /// Puts that tried a log and then used a plan, and replicas that a log did not take: no
        /// room in it, now or ever, or a claim given up.
        log_full,
        /// Claims given up while they waited for room.
        log_abandoned,
    }

    /// Messages of one handle (and its clones) to actors since it was made. One-sided reads and
    /// writes are not messages, even if the owner's tcp agent executes them.
    Messages as MessageCounters {
        /// Messages whose answer a call waited for: requests, attachments, questions about plans.
        waited,
        /// Messages without an answer: touches, reported keys, claims and plans given up.
        one_way,
    }

    /// Reads of one handle (and its clones) since it was made.
    Reads as ReadCounters {
        /// Objects read and found valid.
        accepted,
        /// Objects read by plain loads from a mapped segment; `accepted` and `by_index` include
        /// them.
        by_loads,
        /// Objects joined from their stripes. `accepted` counts those and the manifests.
        striped,
        /// Objects viewed in place.
        viewed,
        /// Reads and views located by an index, without waiting for a message.
        by_index,
        /// Reads and views located by a location seen before, without waiting for a message.
        by_cache,
        /// Reads and views located by the master.
        by_master,
        /// Batches that were too slow: their headers were read once more, strictly.
        strict,
        /// Objects that had changed during the read: they were looked up again.
        changed,
        /// Objects that had changed and were nowhere else: NotFound.
        lost,
        /// Objects kept at this handle's rank after they were read from another host.
        cached,
        /// Last known locations used because the master did not answer.
        stood_in,
        /// Reads that the transport refused or that found their owner dead.
        failed,
    }
}

impl Reads {
    /// The counters now.
    pub(crate) fn all(&self) -> ReadCounters {
        let r = self.snapshot();
        ReadCounters { accepted: r.accepted + r.by_loads, by_index: r.by_index + r.by_loads, ..r }
    }

    /// Counts a read by the source of its location.
    pub(crate) fn via(&self, via: Via) {
        match via {
            Via::Index => self.by_index.one(),
            Via::Cache => self.by_cache.one(),
            Via::Master => self.by_master.one(),
        }
    }
}

/// How long calls of one handle (and its clones) took. Gets and puts in mapped memory alone are not
/// timed: reading the clock twice would be a large part of their time.
#[derive(Debug, Default)]
pub(crate) struct Times {
    pub(crate) requests: [Histogram; Request::KINDS.len()],
    pub(crate) puts: Histogram,
    pub(crate) reads: Histogram,
}

/// How long calls of one handle (and its clones) took since it was made.
#[derive(Debug, Clone)]
pub struct CallTimes {
    /// Requests to the master, each with its kind.
    pub requests: Vec<(&'static str, Durations)>,
    /// Calls that put by plans: open, write, publish, commit.
    pub puts: Durations,
    /// Reads through a transport: one for each chain of headers and payloads.
    pub reads: Durations,
}

impl Times {
    pub(crate) fn snapshot(&self) -> CallTimes {
        CallTimes {
            requests: named(Request::KINDS, &self.requests),
            puts: self.puts.snapshot(),
            reads: self.reads.snapshot(),
        }
    }
}
