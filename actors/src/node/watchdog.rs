//! The watchdog: a thread that no actor can hold up (in a simulation, where none could, a task). It sees actors that no longer move, says so in
//! the log, and ends the node when one stays frozen: only a fresh process frees its thread.

use crate::cell::{BEAT_MS, CellWatch};
use crate::environment::{Environment, Grounds};
use nkv_store::StoreError;
use nkv_store::clock::Clock;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::watch;

/// A look that comes so much later than planned means that this whole process stood still.
const PAUSE_MS: u64 = 1_000;

#[derive(Debug)]
struct Watched {
    cell: CellWatch,
    // Since when it was seen frozen, by looks that were on time.
    frozen_since: Option<u64>,
}

/// Whom the watchdog looks at, by segment: those of the node itself are with segment 0.
#[derive(Debug, Default)]
pub(super) struct Watchlist(Mutex<BTreeMap<u32, Vec<Watched>>>);

impl Watchlist {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<u32, Vec<Watched>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at these, too.
    pub(super) fn add(&self, segment: u32, cells: impl IntoIterator<Item = CellWatch>) {
        let watched = cells.into_iter().map(|cell| Watched { cell, frozen_since: None });
        self.lock().entry(segment).or_default().extend(watched);
    }

    /// The actors of this segment end.
    pub(super) fn remove(&self, segment: u32) {
        self.lock().remove(&segment);
    }

    fn forget_the_past(&self) {
        self.lock().values_mut().flatten().for_each(|w| w.frozen_since = None);
    }

    /// Why the node must end, if actors have been frozen for `limit_ms`: of these, the one that holds
    /// the thread, not one that merely shares it.
    fn look(&self, now_ms: u64, limit_ms: u64) -> Option<String> {
        let mut past = Vec::new();
        for (segment, all) in self.lock().iter_mut() {
            for watched in all {
                let status = watched.cell.status();
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
        let of = if segment == 0 { String::new() } else { format!(" of segment {segment}") };
        let what = status.frozen_in.unwrap_or_default();
        Some(format!("the {} actor{of} is frozen ({what})", status.name))
    }
}

/// Between two looks.
const LOOK: Duration = Duration::from_millis(BEAT_MS);

struct Watchdog {
    clock: Arc<dyn Clock>,
    list: Arc<Watchlist>,
    limit_ms: u64,
    failed: watch::Sender<Option<String>>,
    closing: Arc<AtomicBool>,
    last_look_ms: u64,
}

impl Watchdog {
    /// One look; false if it was the last.
    fn look(&mut self) -> bool {
        let now = self.clock.now_ms();
        if now.saturating_sub(self.last_look_ms) > BEAT_MS + PAUSE_MS {
            self.list.forget_the_past();
        }
        self.last_look_ms = now;
        if let Some(why) = self.list.look(now, self.limit_ms) {
            self.failed.send_replace(Some(why));
            return false;
        }
        !self.closing.load(Ordering::Acquire)
    }
}

/// Watches until `closing`; tells `failed` of an actor frozen for `limit_ms`.
pub(super) fn start(
    env: &Environment,
    list: Arc<Watchlist>,
    limit_ms: u64,
    failed: watch::Sender<Option<String>>,
    closing: Arc<AtomicBool>,
) -> Result<(), StoreError> {
    let (clock, last_look_ms) = (env.clock.clone(), env.clock.now_ms());
    let mut dog = Watchdog { clock, list, limit_ms, failed, closing, last_look_ms };
    match env.grounds {
        Grounds::Threads => nkv_store::threads::spawn_named("nkv-watch", move || {
            while dog.look() {
                std::thread::sleep(LOOK);
            }
        })
        .map(drop),
        Grounds::Here => {
            tokio::task::spawn_local(async move {
                while dog.look() {
                    tokio::time::sleep(LOOK).await;
                }
            });
            Ok(())
        }
    }
}
