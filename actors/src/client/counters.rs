//! What became of reads: one counter on every branch of [I7], so that retries are seen before they
//! hurt.

use serde::Serialize;
use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $name:ident),+ $(,)?) => {
        /// The counters, as atomics.
        #[derive(Debug, Default)]
        pub(crate) struct Reads { $(pub(crate) $name: AtomicU64),+ }

        /// How reads of one handle (and its clones) went since it was made.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
        pub struct ReadCounters { $($(#[doc = $doc])+ pub $name: u64),+ }

        impl Reads {
            pub(crate) fn snapshot(&self) -> ReadCounters {
                ReadCounters { $($name: self.$name.load(Ordering::Relaxed)),+ }
            }
        }
    };
}

counters!(
    /// Objects read and believed.
    accepted,
    /// Batches too slow for their chain: their headers were read once more, strictly.
    strict,
    /// Objects that had changed under the read: the master was asked once more.
    changed,
    /// Objects that had changed again: NotFound.
    lost,
    /// Locations that stood in because the master did not answer.
    stood_in,
    /// Reads that the transport refused or that found their owner dead.
    failed,
);

impl Reads {
    pub(crate) fn count(counter: &AtomicU64, n: u64) {
        if n > 0 {
            counter.fetch_add(n, Ordering::Relaxed);
        }
    }
}
