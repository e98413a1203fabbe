//! Counters on branches that are rare in production: retries, fences that had to wait, changes of
//! terms, answers that were held back. They decide nothing; `/status` shows them, and the
//! simulation demands that each of them moves, or the branch was never tested.

use serde::Serialize;
use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($(#[doc = $about:literal] $set:ident as $counts:ident {
        $($(#[doc = $doc:literal])+ $name:ident),+ $(,)?
    })+) => {$(
        #[doc = $about]
        #[derive(Debug, Default)]
        pub(crate) struct $set { $(pub(crate) $name: Counter),+ }

        #[doc = $about]
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
        pub struct $counts { $($(#[doc = $doc])+ pub $name: u64),+ }

        impl $set {
            pub(crate) fn snapshot(&self) -> $counts {
                $counts { $($name: self.$name.0.load(Ordering::Relaxed)),+ }
            }
        }

        impl $counts {
            /// Every counter with its name.
            pub fn all(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name)),+]
            }
        }
    )+};
}

/// A counter that only grows.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, n: usize) {
        self.0.fetch_add(n as u64, Ordering::Relaxed);
    }

    pub(crate) fn one(&self) {
        self.add(1);
    }
}

counters! {
    #[doc = "What a master had to do besides serving, since its process began."]
    MasterSlowPath as MasterSlowPathCounters {
        /// Its term rose above one that a joining rank had obeyed.
        terms_risen,
        /// Incarnations refused because an earlier master had lost them, or they came too late.
        late_refused,
        /// Reports asked for once more.
        reports_repeated,
        /// Plans told again to an owner that had not heard of them.
        plans_resent,
        /// Objects reported that had been superseded meanwhile: retired.
        superseded,
        /// Answers to removals held back until the others knew of a loss.
        removals_deferred,
        /// Removals that no owner confirmed in time.
        removals_unconfirmed,
        /// Commits that came before their owner had recorded the plan, and waited.
        commits_waited,
        /// Of these, those that waited in vain.
        commits_unrecorded,
        /// Calls parked while the state was rebuilt.
        calls_parked,
        /// Pauses of its own that were forgiven to everybody.
        pauses_forgiven,
    }

    #[doc = "What an owner had to do besides serving, since its segment was made."]
    OwnerSlowPath as OwnerSlowPathCounters {
        /// Looks at a fence that was not complete.
        fences_waited,
        /// Terms that it came to obey.
        terms_obeyed,
        /// Looks at a term whose writers of lower ones were not all out.
        terms_waited,
        /// Slots written to for plans never heard of: retired at a new term.
        unheard_retired,
        /// `Freed` said once more.
        freed_repeated,
        /// Plans that ended before their own message was handled.
        ended_unopened,
        /// Commits that a header denied.
        commits_denied,
    }

    #[doc = "What a handle had to do besides its calls, since it was made."]
    ClientSlowPath as ClientSlowPathCounters {
        /// Calls repeated over a fresh connection.
        reconnected,
        /// Calls repeated because an actor was rebuilt under them.
        asked_again,
        /// Commits repeated because an owner was unsure.
        commits_repeated,
        /// Opens withdrawn without an answer.
        withdrawn,
        /// Plans given up.
        abandoned,
        /// Plans that an owner, or a new term, had ended before they were registered.
        refused_at_once,
        /// Owners attached to anew after their link broke.
        attached_again,
    }
}
