//! What became of reads and puts: one counter on every branch, so that retries are seen before they
//! hurt [I7].

use crate::durations::{Durations, Histogram, named};
use crate::message::{Request, Via};
use serde::Serialize;
use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    (
        $atomics:ident, $(#[doc = $of:literal])+
        $snapshot:ident: $($(#[doc = $doc:literal])+ $name:ident),+ $(,)?
    ) => {
        /// The counters, as atomics.
        #[derive(Debug, Default)]
        pub(crate) struct $atomics { $(pub(crate) $name: AtomicU64),+ }

        $(#[doc = $of])+
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
        pub struct $snapshot { $($(#[doc = $doc])+ pub $name: u64),+ }

        impl $atomics {
            pub(crate) fn snapshot(&self) -> $snapshot {
                $snapshot { $($name: self.$name.load(Ordering::Relaxed)),+ }
            }

            pub(crate) fn count(counter: &AtomicU64, n: u64) {
                if n > 0 {
                    counter.fetch_add(n, Ordering::Relaxed);
                }
            }
        }
    };
}

counters!(
    Writes,
    /// How puts of one handle (and its clones) went since it was made.
    WriteCounters:
    /// Objects put through a device log: no message was waited for.
    by_log,
    /// Objects put by a plan of the master's.
    by_plan,
    /// Puts that tried a log and took a plan: no room, now or ever, or a claim given up.
    log_full,
    /// Claims given up in line.
    log_abandoned,
);

counters!(
    Messages,
    /// What one handle (and its clones) said to actors since it was made. What goes one-sided to an
    /// owner's memory is no message, also where its tcp agent carries it out.
    MessageCounters:
    /// Messages whose answer a call waited for: requests, attachments, questions about plans.
    waited,
    /// Words that nobody waits for: reads reported, keys told, claims and plans given up.
    one_way,
);

counters!(
    Reads,
    /// How reads of one handle (and its clones) went since it was made.
    ReadCounters:
    /// Objects read and believed.
    accepted,
    /// Those of them that loads alone read, led by an index: counted once, for all three.
    by_loads,
    /// Objects viewed in place.
    viewed,
    /// Reads and views that an index led to: no message was waited for.
    by_index,
    /// Those that a location seen before led to: none either.
    by_cache,
    /// Those that the master was asked about.
    by_master,
    /// Batches too slow for their chain: their headers were read once more, strictly.
    strict,
    /// Objects that had changed under the read: they were looked for further.
    changed,
    /// Objects that had changed and lay nowhere else: NotFound.
    lost,
    /// Locations that stood in because the master did not answer.
    stood_in,
    /// Reads that the transport refused or that found their owner dead.
    failed,
);

impl Reads {
    /// The counters now.
    pub(crate) fn all(&self) -> ReadCounters {
        let r = self.snapshot();
        ReadCounters { accepted: r.accepted + r.by_loads, by_index: r.by_index + r.by_loads, ..r }
    }

    /// Counts reads by who told where to.
    pub(crate) fn via(&self, via: Via, n: u64) {
        let counter = match via {
            Via::Index => &self.by_index,
            Via::Cache => &self.by_cache,
            Via::Master => &self.by_master,
        };
        Self::count(counter, n);
    }
}

/// How long calls of one handle (and its clones) took. Gets and puts that mapped memory alone
/// answers are not timed: two looks at a clock would be a good part of them.
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
