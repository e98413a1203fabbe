//! The last words of a handle: what it noted and was not told yet, and goodbye to every owner.

use super::Client;
use crate::error::{Error, Result};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// What every verb of a closed handle ends with.
pub(crate) fn closed() -> Error {
    Error::disconnected("this handle is closed, and its clones with it: connect once more")
}

impl Client {
    /// Returns when every touch noted so far has left this process (lost ones of dead ranks aside).
    pub async fn flush(&self) -> Result<()> {
        self.check_usable()?;
        self.send_noted().await
    }

    async fn send_noted(&self) -> Result<()> {
        for peer in self.shared.peers.all().into_iter().filter(|p| p.is_alive()) {
            peer.send_names(usize::MAX);
            let sent = tokio::time::timeout(self.limit(), peer.send_touches(true)).await;
            match sent
                .map_err(|_| Error::timeout(format!("rank {} takes no touches", peer.rank)))?
            {
                Err(e) if peer.is_alive() => return Err(e),
                _ => {}
            }
        }
        Ok(())
    }

    /// Flushes and says goodbye to every owner. Open plans are aborted first. From its beginning on
    /// every verb of this handle and of its clones ends with Disconnected and reserves nothing;
    /// views stay.
    pub async fn close(&self) {
        self.shared.plans.shut();
        self.shared.closed.store(true, Ordering::Relaxed);
        if !self.abort_open_plans().await {
            // A copy is still in flight: no owner may be told that nothing is. Their links stay.
            tracing::warn!("closed with a write in flight; its space is held until it ends");
            return;
        }
        self.wait_until_abandoned().await;
        if let Err(error) = self.send_noted().await {
            tracing::debug!(%error, "closing");
        }
        for peer in self.shared.peers.all() {
            // It is dead from here on, and may be removed before it is asked about.
            let peers = &self.shared.peers;
            peer.detach(|| peers.writes_on(peer.incarnation, Some(&peer))).await;
        }
        self.shared.peers.clear();
    }

    /// Once the master knows which plans nobody will finish, those included that are being granted,
    /// or the call's limit is over: whoever comes next may want their keys at once.
    async fn wait_until_abandoned(&self) {
        for _ in 0..self.limit().as_millis() {
            // In this order: what was granted last is given up before it counts as opened.
            if self.shared.plans.none_opening() && Arc::strong_count(&self.shared.abandoning) == 1 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Plans of this handle that are open now.
    pub fn open_plans(&self) -> usize {
        self.shared.plans.len()
    }
}
