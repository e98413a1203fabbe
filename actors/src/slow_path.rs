//! Counters on branches that are rare in production: retries, fences that had to wait, changes of
//! terms, delayed answers. They decide nothing. `/status` shows them, and the simulation requires
//! that each of them moves, so that no branch stays untested.

use serde::Serialize;
use std::sync::atomic::{AtomicU64, Ordering};

/// Makes sets of counters: the atomics, and what they are at one moment.
macro_rules! counters {
    ($($(#[doc = $about:literal])+ $set:ident as $counts:ident {
        $($(#[doc = $doc:literal])+ $name:ident),+ $(,)?
    })+) => {$(
        $(#[doc = $about])+
        #[derive(Debug, Default)]
        pub(crate) struct $set { $(pub(crate) $name: $crate::slow_path::Counter),+ }

        $(#[doc = $about])+
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
        pub struct $counts { $($(#[doc = $doc])+ pub $name: u64),+ }

        impl $set {
            pub(crate) fn snapshot(&self) -> $counts {
                $counts { $($name: self.$name.now()),+ }
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
pub(crate) use counters;

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

    pub(crate) fn now(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

counters! {
    /// Slow paths of a master since its process began.
    MasterSlowPath as MasterSlowPathCounters {
        /// Its term was raised above one that a joining rank had obeyed.
        terms_risen,
        /// Incarnations refused because an earlier master had lost them, or they came too late.
        late_refused,
        /// Reports requested again.
        reports_repeated,
        /// Plans sent again to an owner that had not received them.
        plans_resent,
        /// Reported objects that had been superseded meanwhile, and were retired.
        superseded,
        /// Answers to removals delayed until the other ranks knew of a lost rank.
        removals_deferred,
        /// Removals that no owner confirmed in time.
        removals_unconfirmed,
        /// Commits that came before their owner had recorded the plan, and had to wait.
        commits_waited,
        /// Of these, commits whose plan was not recorded in time.
        commits_unrecorded,
        /// Calls delayed while the state was rebuilt.
        calls_parked,
        /// Pauses of its own process, for which the TTLs of all ranks were extended.
        pauses_forgiven,
    }

    /// Slow paths of an owner since its segment was made.
    OwnerSlowPath as OwnerSlowPathCounters {
        /// Checks of a fence that was not complete.
        fences_waited,
        /// New terms that it obeyed.
        terms_obeyed,
        /// Checks of a new term while writes of lower terms were still in flight.
        terms_waited,
        /// Slots written for plans that it never received, retired at a new term.
        unheard_retired,
        /// `Freed` sent again.
        freed_repeated,
        /// Plans that ended before their `PlanOpened` was handled.
        ended_unopened,
        /// Commits rejected because the header did not match.
        commits_denied,
    }

    /// Slow paths of a handle (and its clones) since it was made.
    ClientSlowPath as ClientSlowPathCounters {
        /// Calls repeated over a fresh connection.
        reconnected,
        /// Calls repeated because an actor was rebuilt under them.
        asked_again,
        /// Commits repeated after NotReady.
        commits_repeated,
        /// Opens withdrawn without an answer.
        withdrawn,
        /// Plans given up.
        abandoned,
        /// Plans that an owner, or a new term, had ended before they were registered.
        refused_at_once,
        /// Owners attached to again after their link broke.
        attached_again,
    }
}
