//! The watchdog: a thread that no actor can block (in a simulation a task). It detects frozen
//! actors, logs them, and ends the node if one stays frozen: only a new process frees its thread.

use crate::actor::{ActorWatch, BEAT_MS, STOOD_STILL_MS};
use crate::environment::{Environment, Platform};
use nkv_store::StoreError;
use nkv_store::clock::Clock;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::watch;

#[derive(Debug)]
struct Watched {
    actor: ActorWatch,
    // Since when it is frozen, as seen by checks that were on time.
    frozen_since: Option<u64>,
}

/// Where the master of a node is listed: no segment has this number.
pub(super) const OF_MASTER: u32 = u32::MAX;

/// The actors that the watchdog checks, by segment; those of the node itself are under segment 0.
#[derive(Debug, Default)]
pub(super) struct Watchlist {
    cells: Mutex<BTreeMap<u32, Vec<Watched>>>,
    // Time of the last check; actors compare with it to find out whether the process ran.
    checked_ns: Arc<AtomicU64>,
}

impl Watchlist {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<u32, Vec<Watched>>> {
        self.cells.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds actors to check.
    pub(super) fn add(&self, segment: u32, cells: impl IntoIterator<Item = ActorWatch>) {
        let watched = cells.into_iter().map(|actor| {
            actor.watched_by(self.checked_ns.clone());
            Watched { actor, frozen_since: None }
        });
        self.lock().entry(segment).or_default().extend(watched);
    }

    /// Removes the actors of a segment, which end.
    pub(super) fn remove(&self, segment: u32) {
        self.lock().remove(&segment);
    }

    /// Resets all actors after the process was paused: none could give a sign of life.
    fn forgive(&self, now_ns: u64) {
        for watched in self.lock().values_mut().flatten() {
            watched.frozen_since = None;
            watched.actor.forgive(now_ns);
        }
    }

    /// Why the node must end, if an actor has been frozen for `limit_ms`. Of several it names the
    /// one that holds the thread, not one that merely shares it.
    fn check(&self, now_ms: u64, limit_ms: u64) -> Option<String> {
        let mut past = Vec::new();
        for (segment, all) in self.lock().iter_mut() {
            for watched in all {
                let status = watched.actor.status();
                let Some(what) = &status.frozen_in else {
                    watched.frozen_since = None;
                    continue;
                };
                if watched.frozen_since.is_none() {
                    tracing::error!(actor = status.name, segment, %what, "an actor is frozen");
                }
                if now_ms - *watched.frozen_since.get_or_insert(now_ms) >= limit_ms {
                    past.push((*segment, status));
                }
            }
        }
        let (segment, status) = past.into_iter().max_by_key(|(_, s)| s.busy_ms)?;
        let of = match segment {
            0 | OF_MASTER => String::new(),
            n => format!(" of segment {n}"),
        };
        let what = status.frozen_in.unwrap_or_default();
        Some(format!("the {} actor{of} is frozen ({what})", status.name))
    }
}

/// Between two checks.
const POLL_INTERVAL: Duration = Duration::from_millis(BEAT_MS);

struct Watchdog {
    clock: Arc<dyn Clock>,
    list: Arc<Watchlist>,
    limit_ms: u64,
    failed: watch::Sender<Option<String>>,
    closing: Arc<AtomicBool>,
    last_check_ms: u64,
}

impl Watchdog {
    /// One check; false if it was the last.
    fn check(&mut self) -> bool {
        let now_ns = self.clock.now_ns();
        let now = now_ns / 1_000_000;
        let still_ms = now.saturating_sub(self.last_check_ms);
        if still_ms > STOOD_STILL_MS {
            self.list.forgive(now_ns);
            tracing::warn!(
                still_ms,
                "this process did not run: stopped by a signal or a debugger, suspended with its \
                 machine, or without a processor; its actors do not count as frozen"
            );
        }
        self.last_check_ms = now;
        self.list.checked_ns.store(now_ns, Ordering::Relaxed);
        if let Some(why) = self.list.check(now, self.limit_ms) {
            self.failed.send_replace(Some(why));
            return false;
        }
        !self.closing.load(Ordering::Acquire)
    }
}

/// Watches until `closing`; sends `failed` the reason once an actor is frozen for `limit_ms`.
pub(super) fn start(
    env: &Environment,
    list: Arc<Watchlist>,
    limit_ms: u64,
    failed: watch::Sender<Option<String>>,
    closing: Arc<AtomicBool>,
) -> Result<(), StoreError> {
    let (clock, last_check_ms) = (env.clock.clone(), env.clock.now_ms());
    let mut dog = Watchdog { clock, list, limit_ms, failed, closing, last_check_ms };
    match env.platform {
        Platform::Threads => nkv_store::threads::spawn_named("nkv-watch", move || {
            while dog.check() {
                std::thread::sleep(POLL_INTERVAL);
            }
        })
        .map(drop),
        Platform::Here => {
            tokio::task::spawn_local(async move {
                while dog.check() {
                    tokio::time::sleep(POLL_INTERVAL).await;
                }
            });
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::executor::OwnedExecutor;
    use nkv_store::clock::ManualClock;

    #[tokio::test]
    async fn a_process_that_stood_still_blames_no_actor_for_it() {
        let clock = ManualClock::default();
        let shared: Arc<dyn Clock> = Arc::new(clock.clone());
        let here = tokio::task::LocalSet::new();
        here.run_until(async move {
            let executor = OwnedExecutor::here(shared.clone());
            let actor = ActorWatch::of_nobody("owner", executor.executor().clone());
            let list = Arc::<Watchlist>::default();
            list.add(0, [actor.clone()]);
            let (failed, closing) = (watch::channel(None).0, Arc::default());
            let mut dog = Watchdog {
                clock: shared,
                list,
                limit_ms: 4_000,
                failed,
                closing,
                last_check_ms: 0,
            };
            clock.advance_ms(BEAT_MS);
            dog.check();

            // Stopped, and checked before the watchdog runs again; then the watchdog runs.
            clock.advance_ms(9_000);
            assert_eq!(actor.status().frozen_in, None);
            assert!(dog.check(), "nobody is to blame");
            assert_eq!((actor.status().state, actor.status().idle_ms), ("running", 0));

            // The watchdog runs, and the actor gives no sign of life: now it is frozen.
            for _ in 0..crate::actor::FROZEN_MS / BEAT_MS {
                clock.advance_ms(BEAT_MS);
                dog.check();
            }
            let frozen = actor.status().frozen_in;
            assert_eq!(frozen.as_deref(), Some("another actor holds its thread"));
        })
        .await;
    }
}
