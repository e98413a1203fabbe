//! The watchdog: a thread that no actor can hold up. It sees actors that no longer move, says so in
//! the log, and ends the node when one stays frozen: only a fresh process frees its thread.

use crate::cell::{BEAT_MS, CellStatus, CellWatch};
use nkv_store::StoreError;
use nkv_store::clock::{BootClock, Clock};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::watch;

/// A look that comes so much later than planned means that this whole process stood still.
const PAUSE_MS: u64 = 1_000;

/// Watches until `closing`; tells `failed` of an actor frozen for `limit_ms`.
pub(super) fn start(
    cells: Vec<CellWatch>,
    limit_ms: u64,
    failed: watch::Sender<Option<String>>,
    closing: Arc<AtomicBool>,
) -> Result<(), StoreError> {
    nkv_store::threads::spawn_named("nkv-watch", move || {
        let mut last_look = BootClock.now_ms();
        // Since when each cell was seen frozen, by looks that were on time.
        let mut frozen_since: Vec<Option<u64>> = vec![None; cells.len()];
        while !closing.load(Ordering::Acquire) {
            std::thread::sleep(Duration::from_millis(BEAT_MS));
            let now = BootClock.now_ms();
            if now.saturating_sub(last_look) > BEAT_MS + PAUSE_MS {
                frozen_since.fill(None);
            }
            last_look = now;
            if let Some(status) = longest_frozen(&cells, &mut frozen_since, now, limit_ms) {
                let what = status.frozen_in.unwrap_or_default();
                let text = format!("the {} actor is frozen ({what})", status.name);
                failed.send_replace(Some(text));
                return;
            }
        }
    })
    .map(drop)
}

/// Of those frozen past the limit the one that holds the thread, not one that merely shares it.
fn longest_frozen(
    cells: &[CellWatch],
    frozen_since: &mut [Option<u64>],
    now_ms: u64,
    limit_ms: u64,
) -> Option<CellStatus> {
    let mut past = Vec::new();
    for (cell, since) in cells.iter().zip(frozen_since) {
        let status = cell.status();
        let Some(what) = &status.frozen_in else {
            *since = None;
            continue;
        };
        if since.is_none() {
            tracing::error!(actor = status.name, %what, "an actor is frozen");
        }
        if now_ms - *since.get_or_insert(now_ms) >= limit_ms {
            past.push(status);
        }
    }
    past.into_iter().max_by_key(|s| s.busy_ms)
}
