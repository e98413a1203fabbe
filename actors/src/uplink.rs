//! The queue in which an owner leaves its frames for the master; the membership task of its segment
//! sends them. It decides nothing.

use crate::message::OwnerToMaster;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use tokio::sync::mpsc;

/// Most frames queued for the master; beyond it the link is closed, and the report after the next
/// join recovers everything.
pub(crate) const UPLINK_FRAMES: usize = 8192;

/// The owner's outgoing queue to the master. Sending never blocks; frames that cannot be sent are
/// recovered by the report after the next join.
#[derive(Debug, Default)]
pub struct Uplink {
    tx: Mutex<Option<mpsc::Sender<OwnerToMaster>>>,
    // When it came up or broke.
    changed_ms: AtomicU64,
}

impl Uplink {
    /// Queues a frame. Drops it if the link is down; drops it and closes the link if the link takes
    /// no more frames.
    pub fn send(&self, up: OwnerToMaster) {
        let mut tx = self.tx.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(t) = tx.as_ref()
            && t.try_send(up).is_err()
        {
            tracing::warn!("the link to the master takes no more frames; it will be set up again");
            *tx = None;
        }
    }

    /// The frames that would be sent, for a test that acts as the master.
    #[cfg(any(test, feature = "hostile"))]
    pub(crate) fn capture(&self) -> mpsc::Receiver<OwnerToMaster> {
        let (tx, rx) = mpsc::channel(UPLINK_FRAMES);
        self.set(Some(tx), 0);
        rx
    }

    /// Sets where frames go, or that the link is down.
    pub(crate) fn set(&self, new: Option<mpsc::Sender<OwnerToMaster>>, now_ms: u64) {
        *self.tx.lock().unwrap_or_else(PoisonError::into_inner) = new;
        self.changed_ms.store(now_ms, Ordering::Relaxed);
    }

    /// When the link came up or broke; 0 if it never was up.
    pub fn changed_ms(&self) -> u64 {
        self.changed_ms.load(Ordering::Relaxed)
    }
}
